"""Triton functions of many blocks, made from those that a type states for one block (:class:`HasProxBlock`).

:func:`functions_of` translates the functions of a type (:mod:`blocklp.kernels.triton_translation`), writes a
module of them beside those of numba (:mod:`blocklp.kernels.block_source`), imports it, and returns its device
functions as a :class:`BlockFunctions`.  A kernel takes them as ``tl.constexpr`` arguments, or as tuples of
them, one a group.  A lane is a block; ``unrolled`` tells which form they have:

unrolled, where a block has few coordinates, which then are registers::

    prox_block(cost, centre, step, data, strides, row, block, mine, KIND) -> (x_0, ..., x_last)
    min_block(cost, data, strides, row, block, mine, KIND) -> value
    complete_block(cost, point, data, strides, row, block, mine, KIND) -> (x_coupled, ..., x_last, violation)

else, in memory::

    prox_block(cost, centre, step, point, stride, data, strides, row, block, mine, KIND)
    min_block(cost, stride, data, strides, row, block, mine, KIND) -> value
    complete_block(cost, point, stride, data, strides, row, block, mine, KIND) -> violation

``cost``, ``centre``, ``point``
    Unrolled: tuples of tensors with an entry a lane. For ``prox_block`` those of the ``dim - coupled`` last
    coordinates (cost) and the ``coupled`` first ones (centre); for the others those of all coordinates (cost)
    and the coupled ones (point).
    In memory: tensors of pointers to the first coordinate of each lane's block, ``stride`` entries from one
    coordinate to the next; read and written are as many as above, and all of ``point`` in ``prox_block``. A
    lane reads what it has written itself: a program must have as many lanes as threads, which
    :func:`blocklp.kernels.triton_launch.launch` sees to.
``step``
    The proximal weight, a number.
``data``, ``strides``
    What :func:`data_arguments` returns for the type: a tuple of pointers, and one of numbers.
``row``, ``block``
    Number of the instance, int64, and numbers of the lanes' blocks.
``mine``
    Mask of the lanes that have a block; results of other lanes are arbitrary.
``KIND``
    The dtype of all numbers, ``tl.float32`` or ``tl.float64``, ``tl.constexpr``.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from blocklp.blocks.capabilities import HasProxBlock, supports
from blocklp.blocks.contract import BlockType
from blocklp.kernels.block_source import FIXED, Functions, asked, block_data, data_of, parsed, written
from blocklp.kernels.triton_expressions import Data, TooLong, Untranslatable
from blocklp.kernels.triton_symbols import REAL, TRUTH, WHOLE
from blocklp.kernels.triton_translation import Translation

FEW = 8
"""Most coordinates of a block that are registers."""

HEADER = '''"""Blocks of {owner} for Triton, written by blocklp."""

import triton
import triton.language as tl

from blocklp.kernels.triton_functions import divided, highest, lowest, root, sign, some, with_sign
'''

FILES = Path(__file__).stem, "triton_translation", "triton_expressions", "triton_symbols", "block_source"
"""Modules whose text decides what is written."""

LAST = "data, strides, row, block, mine, KIND: tl.constexpr"

Shapes = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class BlockFunctions:
    """Device functions of a type.

    Attributes
    ----------
    dim, coupled : int
        Variables of a block, and how many of them, the first ones, other blocks share.
    unrolled : bool
        The form that the functions have.
    prox_block : JITFunction
        See :meth:`HasProxBlock.prox_block`.
    min_block, complete_block : JITFunction or None
        None where the type has none, or none that can be translated.
    """

    dim: int
    coupled: int
    unrolled: bool
    prox_block: Any
    min_block: Any
    complete_block: Any


def functions_of(kind: BlockType, dim: int) -> BlockFunctions | None:
    """The device functions of a type.

    Parameters
    ----------
    kind : BlockType
        The type; dtypes and shapes of its block data, and which are None, decide what is written.
    dim : int
        Variables of a block.

    Returns
    -------
    BlockFunctions or None
        None where it states no ``prox_block``, or one that uses what has no translation, which the log says.
    """
    if not supports(kind, HasProxBlock):
        return None
    functions, owner, private, absent = asked(kind)
    return _functions(functions, owner, private, absent, dim, _shapes(kind, functions, absent))


def data_arguments(kind: BlockType) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The block data of a type as kernels take them.

    Returns
    -------
    data, strides : tuple of Tensor, tuple of int
        The tensors, ``(batch or 1, blocks or 1, ...)``; and for each of them the entries from one instance to
        the next, and from one block to the next, 0 where all have the same.
    """
    data = tuple(t if t.dim() < 3 or t[0, 0].is_contiguous() else t.contiguous() for t in block_data(kind))
    strides = ((t.stride(0) if len(t) > 1 else 0, t.stride(1) if t.shape[1] > 1 else 0) for t in data)
    return data, tuple(n for pair in strides for n in pair)


def _shapes(kind: Any, functions: Functions, absent: frozenset[str]) -> Shapes:
    """Name, kind and shape of a block of all data that are there."""
    names = dict.fromkeys(n for f in functions if f is not None for n in data_of(f) if n not in absent)
    found = []
    for name in names:
        own: Tensor = getattr(kind, name)
        sort = REAL if own.is_floating_point() else WHOLE if own.dtype.itemsize > 1 else TRUTH
        found.append((name, sort, tuple(own.shape[2:])))
    return tuple(found)


@functools.cache
def _functions(
    functions: Functions, owner: str, private: int, absent: frozenset[str], dim: int, shapes: Shapes
) -> BlockFunctions | None:
    """Write and import the module of some functions."""
    unrolled = dim <= FEW
    try:
        try:
            name = _named(functions, owner, private, absent, dim, shapes, unrolled)
        except TooLong:
            unrolled = False
            name = _named(functions, owner, private, absent, dim, shapes, unrolled)
    except Untranslatable as error:
        _say(owner, "prox_block", str(error))
        return None
    if name is None:
        return None
    found = importlib.import_module(name)
    for own, piece in found.MISSING.items():
        _say(owner, own, piece)
    device = (getattr(found, own, None) for own in FIXED)
    return BlockFunctions(dim, dim - private, unrolled, *device)


def _named(
    functions: Functions,
    owner: str,
    private: int,
    absent: frozenset[str],
    dim: int,
    shapes: Shapes,
    unrolled: bool,
) -> str | None:
    """The name of the module of some functions in one of the two forms."""
    coupled = dim - private

    def text() -> str:
        parts, missing = [HEADER.format(owner=owner)], {}
        for function in functions:
            if function is None:
                continue
            try:
                parts.append(_translated(function, absent, dim, coupled, shapes, unrolled))
            except Untranslatable as error:
                if function.__name__ == "prox_block":
                    raise
                missing[function.__name__] = str(error)
        return "\n\n".join([*parts, f"MISSING = {missing!r}\n"])

    stated = owner, private, sorted(absent), dim, shapes, unrolled
    return written("triton", functions, FILES, stated, text)


def _translated(
    function: Callable[..., Any],
    absent: frozenset[str],
    dim: int,
    coupled: int,
    shapes: Shapes,
    unrolled: bool,
) -> str:
    """The text of one function."""
    name, source = function.__name__, parsed(function, absent)
    number = {own: k for k, (own, _, _) in enumerate(shapes)}
    read = [a.arg for a in source.args.args[len(FIXED[name]) :]]
    data = {own: Data(number[own], *shapes[number[own]][1:]) for own in read}
    first, last = tuple(i < coupled for i in range(dim)), tuple(i >= coupled for i in range(dim))
    proximal, completes = name == "prox_block", name == "complete_block"
    cost = last if proximal else (True,) * dim
    head = ["v_step = tl.where(mine, step, step)"] if proximal else []
    own = Translation(dim, coupled, unrolled, cost, first, data)
    if not unrolled:
        lines, result = own.body(source.body, [])
        given = {"prox_block": "cost, centre, step, point", "min_block": "cost"}.get(name, "cost, point")
        return _def(name, f"{given}, stride", [*head, *lines, *([f"return {result}"] if result else [])])
    given, out = "cost", []
    unpacked = [f"cost_{i} = cost[{i - (coupled if proximal else 0)}]" for i in range(dim) if cost[i]]
    if proximal:
        given = "cost, centre, step"
        unpacked += [f"centre_{i} = centre[{i}]" for i in range(coupled)]
        out = [f"point_{i}" for i in range(dim)]
    elif completes:
        given = "cost, point"
        unpacked += [f"point_{i} = point[{i}]" for i in range(coupled)]
        out = [f"point_{i}" for i in range(coupled, dim)]
    named = [f"point_{i}" for i in range(coupled)] if completes else []
    lines, result = own.body(source.body, named)
    for entry in out:
        if entry not in own.defined:
            raise Untranslatable(f"no value for {entry.replace('_', '[')}]")
    returned = f"({', '.join(out)},)" if proximal else ", ".join([*out, *([result] if result else [])])
    return _def(name, given, [*head, *unpacked, *lines, f"return {returned}"])


def _def(name: str, given: str, lines: list[str]) -> str:
    """The text of a device function."""
    return (
        "\n".join(["@triton.jit", f"def {name}({given}, {LAST}):", *(f"    {line}" for line in lines)]) + "\n"
    )


def _say(owner: str, name: str, piece: str) -> None:
    """Say why tensor operations serve."""
    message = "%s.%s is not translated to Triton, for it has `%s`: tensor operations serve"
    logging.getLogger("blocklp").info(message, owner, name, piece)
