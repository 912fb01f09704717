"""Modules of compiled loops for block types that state functions of one block (:class:`HasProxBlock`).

A module holds the functions of a type, as they are asked for by tiles of blocks
(:mod:`blocklp.kernels.block_tiles`), and the text of the templates beside this file, ``instance_*.py``.  Its
name is a digest of all that it is written from, so that an edited function is another module, and one that
has been written is found without parsing anything.

Functions that name each coordinate by its number, without loops, get numbers instead of arrays: compiled, a
loop over blocks then takes several at once.
"""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import inspect
import logging
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from blocklp import generated
from blocklp.blocks.capabilities import HasProxBlock, supports
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError

FIXED = {
    "prox_block": ("cost", "centre", "step", "point"),
    "min_block": ("cost",),
    "complete_block": ("cost", "point"),
}
"""The first parameters of the functions of one block; others are names of block data."""

ARRAYS = ("cost", "centre", "point")
"""Those that hold a number for every coordinate."""

PASSES, CHECKS = ("instance_passes", "instance_updates"), ("instance_bounds", "instance_points")
"""Templates that ask for :meth:`HasProxBlock.prox_block`, and for the other functions of one block."""

MOST = 2048
"""Coupled copies at a time in passes over whole instances."""

HEADER = '''"""Loops over blocks of {owner}, written by blocklp."""

import math
from typing import Any

import numpy as np

from blocklp.kernels.compiled import FAST, TILE, compile, kernel
from blocklp.kernels.turns import claim, done, fetch

DIM, COUPLED, CHAINS, RUN = {dim}, {coupled}, {chains}, {run}
'''

Functions = tuple[Callable[..., Any] | None, ...]


def module_of(kind: BlockType, dim: int) -> str | None:
    """The name of the module of a type's loops, written if it is not there; None where there is none.

    Parameters
    ----------
    kind : BlockType
        The type; which of its block data are None decides what is compiled.
    dim : int
        Variables of a block.
    """
    if not supports(kind, HasProxBlock):
        return None
    return _written(*asked(kind), dim)


def asked(kind: Any) -> tuple[Functions, str, int, frozenset[str]]:
    """The functions of a type, its name, its private coordinates, and which block data are None.

    Raises
    ------
    ModelError
        If a function reads what the type does not have.
    """
    functions = tuple(getattr(kind, name, None) for name in FIXED)
    if missing := [name for name in _names(kind.__class__) if not hasattr(kind, name)]:
        which = f"{type(kind).__name__}: its functions of one block have parameters {', '.join(missing)}"
        raise ModelError(f"{which}, which it has no block data of; there are {kind.block_data}")
    absent = frozenset(name for name in _names(kind.__class__) if getattr(kind, name) is None)
    return functions, type(kind).__name__, kind.private_coordinates, absent


def block_data(kind: Any) -> tuple[Tensor, ...]:
    """The tensors that the functions of a type read, without those that are None."""
    return tuple(t for name in _names(kind.__class__) if (t := getattr(kind, name)) is not None)


def loop_data(kind: Any) -> tuple[Tensor, ...]:
    """Block data as loops take them: contiguous, one row where all instances or all blocks share memory.

    Loops are compiled anew for every layout of their arguments in memory; this is the only one.
    """
    found = []
    for data in block_data(kind):
        for side in (0, 1):
            data = data.narrow(side, 0, 1) if data.stride(side) == 0 and data.shape[side] > 1 else data
        found.append(data.contiguous())
    return tuple(found)


@functools.cache
def _names(kind: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the block data that the functions of a type read, each once."""
    given = (getattr(kind, name, None) for name in FIXED)
    names = (data_of(function) for function in given if function is not None)
    return tuple(dict.fromkeys(name for some in names for name in some))


def data_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the block data that a function of one block reads."""
    return tuple(inspect.signature(function).parameters)[len(FIXED[function.__name__]) :]


@functools.cache
def _written(functions: Functions, owner: str, private: int, absent: frozenset[str], dim: int) -> str | None:
    """Write the module of some functions, whose data are None where they are among the absent ones."""
    stated = functions, (Path(__file__).stem, *_templates(functions)), (owner, private, sorted(absent), dim)
    return written("blocks", *stated, lambda: _text(functions, owner, private, absent, dim))


def written(
    stem: str,
    functions: Functions,
    files: tuple[str, ...],
    stated: tuple[Any, ...],
    text: Callable[[], str],
) -> str | None:
    """Write a module, unless it is there; its name is a digest of all that it is made of.

    Parameters
    ----------
    stem : str
        How its name begins.
    functions : tuple of callable
        Functions of one block of a type, None for those that it has not.
    files : tuple of str
        Names of the modules of this folder whose text decides, without ending.
    stated : tuple
        What else does; the first entry is the name of the type.
    text : callable
        Makes its text.

    Returns
    -------
    str or None
        Its name; None where the functions have no source, or it cannot be written, which the log says.
    """
    try:
        own = [inspect.getsource(function) for function in functions if function is not None]
        used = [_file(name).read_text(encoding="utf-8") for name in files]
        digest = hashlib.sha256(repr((own, used, *stated, sys.version_info)).encode()).hexdigest()
        name = f"{stem}_{digest[:16]}"
        place = generated.folder() / f"{name}.py"
        made = None if place.exists() else text()
    except (OSError, SyntaxError, TypeError):  # typed in where no source is kept
        message = "%s.prox_block has no source: tensor operations serve"
        logging.getLogger("blocklp").info(message, stated[0])
        return None
    try:
        if made is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = place.with_suffix(f".{os.getpid()}")
            draft.write_text(made, encoding="utf-8")
            draft.replace(place)
    except OSError as error:
        logging.getLogger("blocklp").info("%s cannot be written (%s): tensor operations serve", place, error)
        return None
    return f"{generated.__name__}.{name}"


def _text(functions: Functions, owner: str, private: int, absent: frozenset[str], dim: int) -> str:
    """The text of a module."""
    coupled = dim - private
    run = max(64, MOST // coupled)
    given = [f for f in functions if f is not None]
    names = tuple(dict.fromkeys(n for f in given for n in data_of(f) if n not in absent))
    header = HEADER.format(owner=owner, dim=dim, coupled=coupled, chains=min(coupled, 2), run=run)
    parts = [
        header,
        *(_Tiled(f, dim, private, names, absent).text() for f in given),
        *map(_template, _templates(functions)),
    ]
    return "\n\n".join(parts)


def _templates(functions: Functions) -> tuple[str, ...]:
    """The templates of a type with some of the functions of one block."""
    return PASSES if None in functions else PASSES + CHECKS


def _file(name: str) -> Path:
    """A file beside this one."""
    return Path(__file__).with_name(f"{name}.py")


def _template(name: str) -> str:
    """The text of a template without its imports."""
    tree = ast.parse(_file(name).read_text(encoding="utf-8"))
    kept = [node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    return ast.unparse(ast.Module(kept, []))


class _Absent(ast.NodeTransformer):
    """Data that are None, and the branches that they rule out."""

    def __init__(self, absent: frozenset[str]) -> None:
        self.absent = absent

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(None) if node.id in self.absent else node

    def visit_If(self, node: ast.If) -> Any:
        found = self.generic_visit(node)
        assert isinstance(found, ast.If)
        known = _decided(found.test)
        return found if known is None else (found.body if known else found.orelse) or ast.Pass()

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        found = self.generic_visit(node)
        assert isinstance(found, ast.IfExp)
        known = _decided(found.test)
        return found if known is None else found.body if known else found.orelse

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        found = self.generic_visit(node)
        assert isinstance(found, ast.BoolOp)
        first, every = _decided(found.values[0]), isinstance(found.op, ast.And)
        return ast.Constant(not every) if first is (not every) else found


def _decided(test: ast.expr) -> bool | None:
    """What a test that None is None, or is not, comes to; None for all others."""
    if isinstance(test, ast.Constant) and isinstance(test.value, bool):
        return test.value
    if (
        not isinstance(test, ast.Compare)
        or not isinstance(test.left, ast.Constant)
        or test.left.value is not None
    ):
        return None
    return isinstance(test.ops[0], ast.Is)


def parsed(function: Callable[..., Any], absent: frozenset[str]) -> ast.FunctionDef:
    """The source of a function of one block, bare, without block data that are None.

    Raises
    ------
    OSError, SyntaxError, TypeError
        If there is none.
    """
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(found, ast.FunctionDef):
        raise SyntaxError("no function")
    if ast.get_docstring(found) is not None:
        del found.body[0]
    _Absent(absent).generic_visit(found)
    found.decorator_list, found.returns = [], None
    kept = [a for a in found.args.args if a.arg not in absent]
    found.args = ast.arguments([], [ast.arg(a.arg) for a in kept], None, [], [], None, [])
    return found


class _Numbers(ast.NodeTransformer):
    """Entries of arrays as variables of their own, and numbers as parameters in the working precision.

    Raises
    ------
    LookupError
        If an array is used otherwise than by the number of a coordinate.
    """

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        whose, at = node.value, node.slice
        if isinstance(whose, ast.Name) and whose.id in ARRAYS and isinstance(at, ast.Constant):
            return ast.Name(f"{whose.id}_{at.value!r}", node.ctx)
        raise LookupError(ast.unparse(node))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ARRAYS:
            raise LookupError(node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise LookupError(str(node.value))
        self.numbers = [*self.numbers, float(node.value)] if node.value not in self.numbers else self.numbers
        return ast.Name(f"number_{self.numbers.index(node.value)}", ast.Load())

    def visit_For(self, node: ast.For) -> ast.expr:
        raise LookupError("a loop")

    visit_While = visit_Return = visit_For  # type: ignore[assignment]


class _Tiled:
    """A function of one block, and how it is asked for a tile of blocks."""

    def __init__(
        self,
        function: Callable[..., Any],
        dim: int,
        private: int,
        names: tuple[str, ...],
        absent: frozenset[str],
    ) -> None:
        self.name, self.dim, self.coupled, self.names = function.__name__, dim, dim - private, names
        self.found = parsed(function, absent)
        self.read = [a.arg for a in self.found.args.args[len(FIXED[self.name]) :]]

    def text(self) -> str:
        """The function, and those of :mod:`blocklp.kernels.block_tiles` that ask it."""
        try:
            return self._by_numbers()
        except LookupError:
            return self._by_arrays()

    def _by_arrays(self) -> str:
        """Arrays of one block are filled and emptied again, block after block."""
        at = {n: k for k, n in enumerate(self.names)}
        own = [f"data[0][{at[n]}]" for n in self.read]
        own = [f", {d}[data[1] % len({d}), (first + q) % {d}.shape[1]]" for d in own]
        asked, data = f'@compile(nogil=True, error_model="numpy")\n{ast.unparse(self.found)}\n', "".join(own)
        dim, coupled = self.dim, self.coupled
        begin = ["start, blocks, first, count = tile"]
        each = [f"for i in range({dim}):", "    a = start + i * blocks + first + q"]
        if self.name == "prox_block":
            begin += [f"{name} = np.zeros(DIM, centres.dtype)" for name in ARRAYS]
            each = [
                "for q in range(count):",
                *_in(each),
                f"        centre[i] = centres[a] if i < {coupled} else 0",
            ]
            each += [
                f"        cost[i] = 0 if i < {coupled} else costs[a]",
                f"    prox_block(cost, centre, step, point{data})",
            ]
            shown = [*begin, *each, "    for i in range(DIM):", "        out[i, q] = point[i]"]
            mirrored = [f"    for i in range({coupled}):", "        a = start + i * blocks + first + q"]
            mirrored += [
                "        out[i, q] = point[i] + point[i] - centres[a]",
                "        centres[a] -= relaxation * point[i]",
            ]
            return asked + _tile("points", shown) + _tile("reflect", [*begin, *each, *mirrored])
        if self.name == "min_block":
            lines = [*begin, "for q in range(count):", f"    out[q] = min_block(costs[:, q]{data})"]
            return asked + _tile("least", lines)
        lines = [
            *begin,
            "for q in range(count):",
            f"    out[q] = complete_block(costs[:, q], values[:, q]{data})",
        ]
        return asked + _tile("complete", lines)

    def _by_numbers(self) -> str:
        """A function of numbers, in loops over rows of numbers."""
        if self.read:
            raise LookupError("block data")
        numbers, body = _Numbers(), copy.deepcopy(self.found.body)
        last = body.pop() if self.name != "prox_block" else None
        statements = [numbers.visit(node) for node in body]
        result = []
        if last is not None:
            if not isinstance(last, ast.Return) or last.value is None:
                raise LookupError("no value at the end")
            result = [ast.unparse(numbers.visit(last.value))]
        dim, coupled = self.dim, self.coupled
        costs, points = [f"cost_{i}" for i in range(dim)], [f"point_{i}" for i in range(dim)]
        constants = [f"number_{k}" for k in range(len(numbers.numbers))]
        given, out, rows = costs, result, "out"
        if self.name == "prox_block":
            given, out = [*costs, *(f"centre_{i}" for i in range(dim)), "step"], points
        elif self.name == "complete_block":
            given, out = [*costs, *points[:coupled]], [*points[coupled:], *result]
        function = [*(line for node in statements for line in ast.unparse(node).splitlines())]
        function += [f"return {', '.join(out)}"]
        scalar = '@compile(inline="always")\n' + _def(f"{self.name}_numbers", [*given, *constants], function)
        kind = "centres" if self.name == "prox_block" else "costs"
        begin = ["start, blocks, first, count = tile", f"kind = {kind}.dtype.type"]
        begin += [f"{name} = kind({value!r})" for name, value in zip(constants, numbers.numbers, strict=True)]
        row = "{0}_{1} = {0}[start + {1} * blocks + first : start + {1} * blocks + first + count]"
        call = f"{self.name}_numbers"
        if self.name == "prox_block":
            begin += ["zero = kind(0)", *(row.format("costs", i) for i in range(coupled, dim))]
            begin += [row.format("centres", i) for i in range(coupled)]
            asked = ["zero"] * coupled + [f"costs_{i}[q]" for i in range(coupled, dim)]
            asked += (
                [f"centres_{i}[q]" for i in range(coupled)]
                + ["zero"] * (dim - coupled)
                + ["step", *constants]
            )
            each = ["for q in range(count):", f"    {', '.join(points)} = {call}({', '.join(asked)})"]
            shown = [f"out_{i} = out[{i}]" for i in range(dim)]
            shown = [*begin, *shown, *each, *(f"    out_{i}[q] = point_{i}" for i in range(dim))]
            mirrored = [*begin, *(f"out_{i} = out[{i}]" for i in range(coupled)), *each]
            for i in range(coupled):
                mirrored += [f"    out_{i}[q] = point_{i} + point_{i} - centres_{i}[q]"]
                mirrored += [f"    centres_{i}[q] -= relaxation * point_{i}"]
            return scalar + _tile("points", shown) + _tile("reflect", mirrored)
        asked, rows = [f"costs_{i}[q]" for i in range(dim)], "out[q]"
        begin += [f"costs_{i} = costs[{i}]" for i in range(dim)]
        if self.name == "complete_block":
            begin += [f"values_{i} = values[{i}]" for i in range(dim)]
            asked += [f"values_{i}[q]" for i in range(coupled)]
            rows = ", ".join([*(f"values_{i}[q]" for i in range(coupled, dim)), rows])
        lines = [*begin, "for q in range(count):", f"    {rows} = {call}({', '.join([*asked, *constants])})"]
        return scalar + _tile("least" if self.name == "min_block" else "complete", lines)


SIGNATURES = {
    "points": ["step", "costs", "centres", "tile", "out", "data"],
    "reflect": ["step", "relaxation", "costs", "centres", "tile", "out", "data"],
    "least": ["costs", "tile", "out", "data"],
    "complete": ["costs", "values", "tile", "out", "data"],
}
"""Parameters of the functions of :mod:`blocklp.kernels.block_tiles`."""


def _tile(name: str, lines: list[str]) -> str:
    """One of these functions."""
    return '\n\n@compile(nogil=True, error_model="numpy")\n' + _def(name, SIGNATURES[name], lines)


def _def(name: str, parameters: list[str], lines: list[str]) -> str:
    """The text of a function."""
    return "\n".join([f"def {name}({', '.join(parameters)}):", *_in(lines)]) + "\n"


def _in(lines: list[str]) -> list[str]:
    """Lines, indented."""
    return [f"    {line}" for line in lines]
