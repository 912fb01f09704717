"""Expressions in functions of one block, as Triton's: see :mod:`blocklp.kernels.triton_translation`."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from blocklp.kernels.triton_symbols import (
    ARRAYS,
    BOTH,
    CASTS,
    FUNCTIONS,
    OPERATORS,
    ORDER,
    PREDICATES,
    REAL,
    SIGNS,
    TRUTH,
    WHOLE,
)


class Untranslatable(Exception):
    """What a function uses that has no translation."""


class TooLong(Exception):
    """Loops cannot be written out: coordinates have to be in memory."""


@dataclass(frozen=True)
class Data:
    """Block data of a function.

    Attributes
    ----------
    number : int
        Which of the tensors handed to the kernel they are.
    kind : str
        Real, whole or true-or-false.
    shape : tuple of int
        Of a block; empty for a number.
    """

    number: int
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class TritonTerm:
    """An expression: its text, its kind, its value where that is known, and whether it has lanes."""

    code: str
    kind: str
    value: bool | int | float | None = None
    lanes: bool = True


def known(value: bool | int | float) -> TritonTerm:
    """A value that is known now."""
    kind = TRUTH if isinstance(value, bool) else WHOLE if isinstance(value, int) else REAL
    return TritonTerm(repr(value), kind, value, lanes=False)


def refuse(node: ast.AST) -> NoReturn:
    """Say that a piece of source has no translation."""
    raise Untranslatable(ast.unparse(node))


@dataclass
class Expressions:
    """Translates expressions of one function.

    Attributes
    ----------
    dim, coupled : int
        Variables of a block, and how many of them, the first ones, other blocks share.
    unrolled : bool
        Whether coordinates are variables of their own.
    cost, centre : tuple of bool
        Which coordinates of these there are; the others are zero.
    data : dict
        Block data by name.
    kinds : dict
        Kinds of the variables, by their names in Triton.
    """

    dim: int
    coupled: int
    unrolled: bool
    cost: tuple[bool, ...]
    centre: tuple[bool, ...]
    data: dict[str, Data]
    kinds: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what has been translated, but not the kinds of variables."""
        self.lines: list[str] = []
        self.depth, self.count = 0, 0
        self.numbers: list[float] = []  # real numbers that the function names
        self.loaded: dict[str, str] = {}  # entries of block data, read once
        self.bound: dict[str, TritonTerm] = {"step": TritonTerm("v_step", REAL)}
        self.defined: set[str] = set()
        self.within: dict[str, tuple[int, int]] = {}  # least and largest number of a loop's turn

    def emit(self, line: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.depth + line)

    def temporary(self, code: str) -> str:
        """Keep the value of an expression under a name of its own."""
        self.count += 1
        self.emit(f"t_{self.count} = {code}")
        return f"t_{self.count}"

    def _named(self, code: str) -> str:
        """A name for what is read twice."""
        return code if code.isidentifier() else self.temporary(code)

    def kept(self, term: TritonTerm) -> TritonTerm:
        """A term whose variables may change before it is used."""
        if term.value is not None:
            return term
        return TritonTerm(self.temporary(term.code), term.kind, lanes=term.lanes)

    def text(self, kind: str, term: TritonTerm) -> str:
        """The text of a term as one of another kind."""
        if kind == REAL and term.value is not None:
            value = float(term.value)
            same = [k for k, v in enumerate(self.numbers) if repr(v) == repr(value)]
            if not same:
                self.numbers.append(value)
            return f"number_{same[0] if same else len(self.numbers) - 1}"
        if kind == TRUTH and term.kind == TRUTH and term.value is not None:
            return "(mine | ~mine)" if term.value else "(mine & ~mine)"
        if kind == term.kind:
            return term.code
        if kind == TRUTH:
            return f"({term.code} != 0)"
        code = f"({term.code})" if term.lanes else f"tl.where(mine, {term.code}, {term.code})"
        return f"{code}.to({'KIND' if kind == REAL else 'tl.int64'})"

    def index(self, node: ast.expr, shape: tuple[int, ...], mask: str | None) -> TritonTerm:
        """The place of an entry in an array of a shape.

        Parameters
        ----------
        node, shape, mask : expr, tuple of int, str or None
            The index, the shape, and the text of the mask of lanes.
        """
        places = node.elts if isinstance(node, ast.Tuple) else [node]
        if len(places) != len(shape):
            refuse(node)
        found: TritonTerm | None = None
        for place, size in zip(places, shape, strict=True):
            term = self.term(place, mask)
            if term.kind == REAL:
                refuse(place)
            least, largest = self.within.get(term.code, (-1, size))
            if term.value is not None:
                if not -size <= term.value < size:
                    refuse(place)
                term = known(int(term.value) % size)
            elif least < 0 or largest >= size:
                term = self._inside(term, size)
            if found is None:
                found = term
            elif found.value is not None and term.value is not None:
                found = known(int(found.value) * size + int(term.value))
            else:
                code = f"({found.code} * {size} + {term.code})"
                found = TritonTerm(code, WHOLE, lanes=found.lanes or term.lanes)
        assert found is not None
        return found

    def _inside(self, term: TritonTerm, size: int) -> TritonTerm:
        """A place within an array, below zero from the end; lanes may read what they do not use."""
        at = self.temporary(term.code)
        code = f"tl.minimum(tl.maximum(tl.where({at} < 0, {at} + {size}, {at}), 0), {size - 1})"
        return TritonTerm(code, WHOLE, lanes=term.lanes)

    def term(self, node: ast.expr, mask: str | None) -> TritonTerm:
        """Translate an expression, which only the lanes of the mask ask for."""
        if isinstance(node, ast.Constant):
            return known(node.value) if isinstance(node.value, bool | int | float) else refuse(node)
        if isinstance(node, ast.Name):
            return self._read(node)
        if isinstance(node, ast.Subscript):
            return self._entry(node, mask)
        if isinstance(node, ast.Attribute):
            return known(constant(node))
        if isinstance(node, ast.Call):
            return self._call(node, mask)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, self.term(node.operand, mask))
        if isinstance(node, ast.BinOp):
            return self._binary(node, self.term(node.left, mask), self.term(node.right, mask))
        if isinstance(node, ast.BoolOp):
            return self._both(node, [self.term(v, mask) for v in node.values])
        if isinstance(node, ast.Compare):
            return self._compared(node, mask)
        if isinstance(node, ast.IfExp):
            test = self.term(node.test, mask)
            if test.value is not None:
                return self.term(node.body if test.value else node.orelse, mask)
            return self._where(test, self.term(node.body, mask), self.term(node.orelse, mask))
        return refuse(node)

    def _where(self, test: TritonTerm, one: TritonTerm, other: TritonTerm) -> TritonTerm:
        """One of two terms."""
        kind = max(one.kind, other.kind, key=ORDER.__getitem__)
        code = f"tl.where({self.text(TRUTH, test)}, {self.text(kind, one)}, {self.text(kind, other)})"
        return TritonTerm(code, kind, lanes=test.lanes or one.lanes or other.lanes)

    def _read(self, node: ast.Name) -> TritonTerm:
        """A variable, a number of the block data, or a number that is known."""
        if node.id in self.bound:
            return self.bound[node.id]
        if node.id in self.data and not self.data[node.id].shape:
            return TritonTerm(f"data_{node.id}", self.data[node.id].kind)
        kind = self.kinds.get(f"v_{node.id}")
        if kind is None or f"v_{node.id}" not in self.defined:
            refuse(node)
        return TritonTerm(f"v_{node.id}", kind)

    def _entry(self, node: ast.Subscript, mask: str | None) -> TritonTerm:
        """An entry of an array, or of its shape."""
        whose = node.value
        if (
            isinstance(whose, ast.Attribute)
            and whose.attr == "shape"
            and isinstance(node.slice, ast.Constant)
        ):
            return known(self._shape(whose.value)[int(str(node.slice.value))])
        if not isinstance(whose, ast.Name):
            refuse(node)
        if whose.id in self.data and self.data[whose.id].shape:
            own, name = self.data[whose.id], f"at_{whose.id}"
            at = self.index(node.slice, own.shape, mask)
            if self.unrolled and at.value is not None:
                entry = f"data_{whose.id}_{at.value}"
                self.loaded[entry] = load(f"{name} + {at.value}", own.kind, "mine")
                return TritonTerm(entry, own.kind)
            return TritonTerm(load(f"{name} + {at.code}", own.kind, mask or "mine"), own.kind)
        if whose.id not in ARRAYS or isinstance(node.slice, ast.Slice):
            refuse(node)
        at = self.index(node.slice, (self.dim,), mask)
        there = {"cost": self.cost, "centre": self.centre}.get(whose.id, (True,) * self.dim)
        if not any(there) or (at.value is not None and not there[int(at.value)]):
            return known(0.0)
        if not self.unrolled:
            within = "" if all(there) else f" & ({at.code} {'>=' if there[-1] else '<'} {self.coupled})"
            place = f"{whose.id} + {at.code} * stride"
            return TritonTerm(f"tl.load({place}, mask={mask or 'mine'}{within}, other=0.0).to(KIND)", REAL)
        if at.value is None:
            raise TooLong(ast.unparse(node))
        name = f"{whose.id}_{at.value}"
        if whose.id == "point" and name not in self.defined:
            refuse(node)
        return TritonTerm(name, REAL)

    def _shape(self, node: ast.expr) -> tuple[int, ...]:
        """The shape of an array."""
        if isinstance(node, ast.Name) and node.id in ARRAYS:
            return (self.dim,)
        if isinstance(node, ast.Name) and node.id in self.data and self.data[node.id].shape:
            return self.data[node.id].shape
        return refuse(node)

    def _call(self, node: ast.Call, mask: str | None) -> TritonTerm:
        """A function of numbers, or the length of an array."""
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            refuse(node)
        name = ast.unparse(node.func)
        if name == "len" and len(node.args) == 1:
            return known(self._shape(node.args[0])[0])
        module, _, last = name.rpartition(".")
        there = last in FUNCTIONS and module in ("math", "np", "numpy")
        if not there and name not in ("min", "max", "abs", "np.where", "numpy.where", *CASTS):
            refuse(node.func)
        terms = [self.term(a, mask) for a in node.args]
        if name in ("min", "max") and len(terms) > 1:
            found = terms[0]
            for term in terms[1:]:
                found = self._extreme(name, found, term)
            return found
        if name in CASTS and len(terms) == 1:
            kind = CASTS[name]
            if terms[0].value is not None:
                value = terms[0].value
                return known(float(value) if kind == REAL else bool(value) if kind == TRUTH else int(value))
            return TritonTerm(self.text(kind, terms[0]), kind, lanes=terms[0].lanes)
        if name in ("np.where", "numpy.where") and len(terms) == 3:
            return self._where(*terms)
        if last not in FUNCTIONS or len(terms) != (2 if last in BOTH else 1):
            refuse(node)
        if last == "abs" and terms[0].kind == WHOLE and terms[0].value is None:
            return TritonTerm(f"tl.abs({terms[0].code})", WHOLE, lanes=terms[0].lanes)
        code = FUNCTIONS[last](*(self.text(REAL, t) for t in terms))
        return TritonTerm(code, TRUTH if last in PREDICATES else REAL, lanes=any(t.lanes for t in terms))

    def _extreme(self, name: str, a: TritonTerm, b: TritonTerm) -> TritonTerm:
        """The smaller or the larger of two numbers; the first one on a tie, as Python has it."""
        if a.value is not None and b.value is not None:
            return known(min(a.value, b.value) if name == "min" else max(a.value, b.value))
        kind = max(a.kind, b.kind, WHOLE, key=ORDER.__getitem__)
        one, other = (self._named(self.text(kind, t)) for t in (a, b))
        sign = "<" if name == "min" else ">"
        if not a.lanes and not b.lanes:
            one = f"tl.where(mine, {one}, {one})"
        return TritonTerm(f"tl.where({other} {sign} {one}, {other}, {one})", kind)

    def _unary(self, node: ast.UnaryOp, term: TritonTerm) -> TritonTerm:
        """A sign, or the contrary."""
        if isinstance(node.op, ast.Not):
            if term.value is not None:
                return known(not term.value)
            return TritonTerm(f"(~({self.text(TRUTH, term)}))", TRUTH, lanes=term.lanes)
        if not isinstance(node.op, ast.USub | ast.UAdd):
            refuse(node)
        if term.value is not None:
            return known(-term.value if isinstance(node.op, ast.USub) else +term.value)
        kind = max(term.kind, WHOLE, key=ORDER.__getitem__)
        code = self.text(kind, term)
        return TritonTerm(f"(-{code})" if isinstance(node.op, ast.USub) else code, kind, lanes=term.lanes)

    def _binary(self, node: ast.BinOp, a: TritonTerm, b: TritonTerm) -> TritonTerm:
        """Arithmetic; whole numbers are divided where they are known, and powers have known exponents."""
        if a.value is not None and b.value is not None:
            _, apply = OPERATORS.get(type(node.op)) or refuse(node)
            try:
                return known(apply(a.value, b.value))
            except ArithmeticError:
                refuse(node)
        lanes, op = a.lanes or b.lanes, node.op
        sign, _ = OPERATORS.get(type(op)) or refuse(node)
        if isinstance(op, ast.BitAnd | ast.BitOr | ast.BitXor) and a.kind == b.kind == TRUTH:
            return TritonTerm(f"({self.text(TRUTH, a)} {sign} {self.text(TRUTH, b)})", TRUTH, lanes=lanes)
        if isinstance(op, ast.Div):
            return TritonTerm(f"divided({self.text(REAL, a)}, {self.text(REAL, b)})", REAL, lanes=lanes)
        if isinstance(op, ast.Pow) and b.value in (2, 3, 0.5):
            base = self.kept(TritonTerm(self.text(REAL, a), REAL, lanes=a.lanes)).code
            return TritonTerm(
                f"root({base})" if b.value == 0.5 else f"({' * '.join([base] * int(b.value))})",
                REAL,
                lanes=lanes,
            )
        if not isinstance(op, ast.Add | ast.Sub | ast.Mult):
            refuse(node)
        kind = max(a.kind, b.kind, WHOLE, key=ORDER.__getitem__)
        return TritonTerm(f"({self.text(kind, a)} {sign} {self.text(kind, b)})", kind, lanes=lanes)

    def _both(self, node: ast.BoolOp, terms: list[TritonTerm]) -> TritonTerm:
        """``and`` and ``or``, of masks as a rule; else the operand that Python returns."""
        every, found = isinstance(node.op, ast.And), terms[-1]
        for term in reversed(terms[:-1]):
            if term.value is not None:
                found = found if bool(term.value) is every else term
            elif term.kind == found.kind == TRUTH:
                if found.value is not None:
                    found = term if bool(found.value) is every else found
                else:
                    code = f"({term.code} {'&' if every else '|'} {found.code})"
                    found = TritonTerm(code, TRUTH, lanes=term.lanes or found.lanes)
            else:
                found = self._where(term, found, term) if every else self._where(term, term, found)
        return found

    def _compared(self, node: ast.Compare, mask: str | None) -> TritonTerm:
        """A chain of comparisons."""
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            return self._none(node)
        terms = [self.term(v, mask) for v in (node.left, *node.comparators)]
        if len(terms) > 2:  # those between are read twice
            terms = list(map(self.kept, terms))
        links = []
        for op, a, b in zip(node.ops, terms, terms[1:], strict=False):
            sign, apply = SIGNS.get(type(op)) or refuse(node)
            if a.value is not None and b.value is not None:
                links.append(known(bool(apply(a.value, b.value))))
                continue
            kind = max(a.kind, b.kind, WHOLE, key=ORDER.__getitem__)
            left, right = self.text(kind, a), self.text(kind, b)
            if not a.lanes and not b.lanes:  # a mask has lanes
                left = f"tl.where(mine, {left}, {left})"
            links.append(TritonTerm(f"({left} {sign} {right})", TRUTH))
        return links[0] if len(links) == 1 else self._both(ast.BoolOp(ast.And(), []), links)

    def _none(self, node: ast.Compare) -> TritonTerm:
        """Whether block data are None: none of those that are left."""
        whose, other = node.left, node.comparators[0]
        if not isinstance(whose, ast.Name) or whose.id not in self.data or ast.unparse(other) != "None":
            refuse(node)
        return known(isinstance(node.ops[0], ast.IsNot))


def constant(node: ast.Attribute) -> float:
    """A number of ``math`` or ``np``, such as ``np.inf`` and ``np.finfo(np.float64).eps``."""
    text = ast.unparse(node)
    module, _, name = text.rpartition(".")
    if module in ("math", "np", "numpy") and name in ("inf", "nan", "pi", "e"):
        return float(getattr(math, name))
    owner, _, asked = module.partition(".finfo(")
    if owner in ("np", "numpy") and asked and name in ("max", "min", "eps", "tiny", "smallest_normal"):
        kind = asked.removesuffix(")").rpartition(".")[2]
        if kind in ("float64", "float32"):
            return float(getattr(np.finfo(kind), name))
    return refuse(node)


def number(value: float) -> str:
    """The text of a number."""
    return repr(value) if math.isfinite(value) else f"float('{value!r}')"


def load(at: str, kind: str, mask: str) -> str:
    """The text that reads an entry of block data.

    Parameters
    ----------
    at, kind, mask : str
        Texts of the pointer and of the mask, and the kind of the entry.
    """
    return (
        f"tl.load({at}, mask={mask}, other=0)"
        + {REAL: ".to(KIND)", WHOLE: ".to(tl.int64)", TRUTH: " != 0"}[kind]
    )
