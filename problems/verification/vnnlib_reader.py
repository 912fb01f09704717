"""Reader of VNN-LIB files.

Such a file states the *counterexample*: it is satisfiable iff the property is violated.  ``read_property`` takes
version 1 (``declare-const X_0 Real``) and version 2 (``declare-network``), with linear comparisons under any nesting of
``and`` and ``or``, provided that each alternative keeps the input in a box.

Numbers are read exactly and rounded once, outwards: a float64 box contains the stated one, and so does the polyhedron
``matrix @ y <= right`` if its coefficients are float64 numbers (others, such as 0.1, go to the nearest).  Boxes are closed,
so a strict bound on an input is kept as a plain one.  Both enlarge the set of counterexamples, never shrink it: "holds"
stays true of the file.  What a point must satisfy to be a counterexample is kept beside it as it is stated: the box rounded
inwards (``Clause.inside``), which has the same float64 points, and rational rows (``Clause.stated``).  Decimals mean real
numbers whatever the element type; whoever reads 0.1 as the nearest float32 has another box.

Memory is limited by ``max_bytes``: of the text, which grows :data:`GROWTH` times while it is parsed, and of the clauses.

Reference: VNN-LIB standard 2.0, chapter "Query language" (https://www.vnnlib.org).
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np

from blocklp.deadline import Deadline
from blocklp.errors import FormatError
from blocklp.problems.files import MAX_BYTES, read_text
from blocklp.problems.lines import instance_name
from blocklp.problems.verification.properties import Clause, Property, Row
from blocklp.problems.verification.vnnlib_formula import (
    LARGEST_FLOAT32,
    ONE,
    ZERO,
    Bound,
    ClauseArrays,
    Formula,
    Junction,
    Linear,
    added,
    alternatives,
    bits,
    count,
    first_empty,
    first_missing,
    join,
    nearest_float32,
    scaled,
    tighten,
)
from blocklp.problems.verification.vnnlib_syntax import Parenthesis, VnnlibText

GROWTH = 64
"""Bytes of memory that a byte of text becomes while it is parsed, at most."""

CLAUSE = 8192
"""Bytes that a clause of the expansion may take, besides its numbers."""

LONGEST_NUMBER = 1000
"""Characters of a number, and a third of the bits of a constant product."""

ELEMENT_TYPES = ("real", "float16", "bfloat16", "float32", "float64")

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
INDEXED = re.compile(r"(\w+)\s*\[([^\[\]]*)\]")
FLAT = re.compile(r"([XY])_(0|[1-9]\d{0,8})")


def read_property(
    path: str | os.PathLike[str],
    inputs: int | None = None,
    outputs: int | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | Deadline = math.inf,
) -> Property:
    """Read a VNN-LIB file of version 1 or 2 (see the module's text), compressed or not.

    Parameters
    ----------
    path : path-like
        The file; compressed data are known by their first bytes, not by the name.
    inputs, outputs : int, optional
        What the network has, to be compared with the file.  A version 1 file may leave out outputs; by default the
        largest declared index gives their number.
    max_bytes : int
        Most bytes of memory that the property may take, while it is read too; a larger text is not decompressed further.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    Property
        Named after the file.  Tensors of version 2 are flattened in C order.  An alternative whose bounds, compared
        exactly, leave an input no value is dropped.

    Raises
    ------
    FormatError
        The file is damaged, not text or malformed; it declares other variables than the network has; an input lacks a
        bound, or no alternative is left with a point in its box; an alternative says nothing about outputs; the text or the
        clauses of its expansion exceed ``max_bytes``; or it needs what a box and linear rows cannot state (several
        networks, hidden tensors, products of variables, constraints between inputs, or between inputs and outputs).
    TimeLimitError
        The deadline is over.
    FileNotFoundError
        There is no such file.
    """
    deadline = Deadline.of(time_limit)
    return parse_property(Path(path), read_vnnlib(path, max_bytes, deadline), inputs, outputs, max_bytes, deadline)


def read_vnnlib(path: str | os.PathLike[str], max_bytes: int, deadline: Deadline) -> str:
    """Return the text of a file, whose parse will fit into memory; errors are those of ``read_property``.

    Parameters
    ----------
    path : path-like
        The file.
    max_bytes : int
        Memory that the parse may take.
    deadline : Deadline
        When to give up.
    """
    return read_text(Path(path), max_bytes=max(max_bytes // GROWTH, 1), deadline=deadline)


def parse_property(
    file: Path, text: str, inputs: int | None, outputs: int | None, max_bytes: int, deadline: Deadline, float32: bool = False
) -> Property:
    """Return what a text states; errors are those of ``read_property``.

    Parameters
    ----------
    file : Path
        The file of the text, for messages.
    text : str
        The text.
    inputs, outputs, max_bytes
        As in ``read_property``.
    deadline : Deadline
        When to give up.
    float32 : bool
        Read decimals as the nearest float32 numbers, and refuse arithmetic, which would be rounded.
    """
    reader = _VnnlibReader(file, text, deadline, max_bytes, float32)
    reader.read()
    try:
        clauses = reader.clauses(*reader.counts(inputs, outputs))
    except OverflowError:
        raise FormatError(f"{file}: arithmetic on constants leaves the range of float64; rescale them") from None
    except MemoryError:
        told = f"more than {max_bytes // 8} numbers after expansion; split the file by cases, or raise max_bytes"
        raise FormatError(f"{file}: {told}") from None
    element_type = reader.tensors[0].element_type if reader.tensors else "real"
    return Property(clauses, instance_name(file, (".vnnlib",)), element_type, reader.network)


@dataclass(frozen=True)
class _Tensor:
    """A declared tensor; the keys of an output's elements are complements of their indices, an input's the indices."""

    name: str
    element_type: str
    shape: tuple[int, ...]
    is_input: bool


@dataclass
class _VnnlibReader(VnnlibText):
    """The state of reading one file: its text, what it has declared and what it has asserted."""

    max_bytes: int
    float32: bool = False
    version: int = 1
    network: str = "N"
    # Keys of elements by the text that names them, filled at the declaration in version 1 and at the first use in 2.
    keys: dict[str, int] = field(default_factory=dict)
    tensors: list[_Tensor] = field(default_factory=list)
    numbers: dict[str, Fraction] = field(default_factory=dict)
    asserted: list[Formula] = field(default_factory=list)

    def read(self) -> None:
        """Read all commands."""
        groups = self.groups()
        if not groups:
            raise FormatError(f"{self.path}: the file is empty; declare variables and assert something about them")
        if groups[0].head == "vnnlib-version":
            match groups[0].items:
                case [_, str(stated)] if re.fullmatch(r"<[12]\.\d+>", stated):
                    self.version = int(stated[1])
                case _:
                    raise self.error(groups[0], "unsupported: this version; write '(vnnlib-version <2.0>)'")
            groups = groups[1:]
        for group in groups:
            match group.head:
                case "assert":
                    match group.items:
                        case [_, Parenthesis() as formula]:
                            self.asserted.append(self.formula(formula))
                        case _:
                            raise self.error(group, "an assertion holds one comparison, 'and' or 'or' in parentheses")
                case "declare-const" if self.version == 1:
                    self.declare_const(group)
                case "declare-network" if self.version == 2:
                    self.declare_network(group)
                case "declare-network":
                    raise self.error(group, "a network is declared in version 2 only; begin with '(vnnlib-version <2.0>)'")
                case head:
                    raise self.error(group, f"unknown or misplaced command {head!r} of version {self.version}")

    def declare_const(self, group: Parenthesis) -> None:
        """Read ``(declare-const X_0 Real)``."""
        match group.items:
            case [_, str(name), "Real"] if matched := FLAT.fullmatch(name):
                if name in self.keys:
                    raise self.error(group, f"{name} is declared twice; keep one")
                index = int(matched[2])
                self.keys[name] = index if matched[1] == "X" else ~index
            case _:
                raise self.error(group, "unsupported: this declaration; write '(declare-const X_0 Real)', with X_ or Y_")

    def declare_network(self, group: Parenthesis) -> None:
        """Read ``(declare-network N (declare-input X float32 [1,5]) (declare-output Y float32 [1,2]))``."""
        if self.tensors:
            raise self.error(group, "unsupported: several networks; state the property of one")
        match group.items:
            case [_, str(name), *declarations] if re.fullmatch(r"[A-Za-z]\w*", name):
                self.network = name
            case _:
                raise self.error(group, "a network has a name and declarations of an input and an output")
        for declaration in declarations:
            if not isinstance(declaration, Parenthesis):
                raise self.error(group, f"unknown symbol {declaration!r} in the declaration of a network")
            if declaration.head not in ("declare-input", "declare-output"):
                raise self.error(declaration, f"unsupported: {declaration.head}; declare one input and one output")
            self.tensors.append(self.tensor(declaration))
        if [tensor.is_input for tensor in self.tensors] != [True, False]:
            raise self.error(group, "unsupported: a network with other than one input and, after it, one output")
        if len({tensor.name for tensor in self.tensors} | {self.network}) < 3:
            raise self.error(group, "network, input and output share a name; rename one")
        if self.tensors[0].element_type != self.tensors[1].element_type:
            raise self.error(group, "unsupported: input and output of different element types")

    def tensor(self, group: Parenthesis) -> _Tensor:
        """Read ``(declare-input X float32 [1,5])``."""
        match group.items:
            case [_, str(name), str(typed)] if re.fullmatch(r"[A-Za-z]\w*", name) and (matched := INDEXED.fullmatch(typed)):
                shape = self.integers(matched[2], group)
            case [_, _, _, "initialized"]:
                raise self.error(group, "unsupported: an initialized input; bound the input and drop the word")
            case _:
                raise self.error(group, "not a declaration of a tensor; write '(declare-input X float32 [1,5])'")
        if (element_type := matched[1].lower()) not in ELEMENT_TYPES:
            raise self.error(group, f"unsupported: element type {matched[1]}; use one of {', '.join(ELEMENT_TYPES)}")
        if 0 in shape or math.prod(shape) > self.max_bytes // 8:
            raise self.error(group, f"a tensor of shape {list(shape)} is empty or too large; correct it, or raise max_bytes")
        return _Tensor(name, element_type, shape, group.head == "declare-input")

    def key(self, name: str, group: Parenthesis) -> int:
        """Return the key of an element that is not in ``keys`` yet: of a tensor, or none at all."""
        matched = INDEXED.fullmatch(name)
        stem = matched[1] if matched else name
        tensor = next((tensor for tensor in self.tensors if tensor.name == stem), None)
        if tensor is None:
            raise self.error(group, f"{name!r} is neither a declared variable nor a number; declare it or correct it")
        indices = self.integers(matched[2], group) if matched else ()
        if len(indices) != len(tensor.shape) or any(index >= size for index, size in zip(indices, tensor.shape, strict=True)):
            raise self.error(group, f"{name} is outside of the declared shape {list(tensor.shape)}; correct one of them")
        flat = int(np.ravel_multi_index(indices, tensor.shape)) if indices else 0
        self.keys[name] = flat if tensor.is_input else ~flat
        return self.keys[name]

    def number(self, text: str, group: Parenthesis) -> Fraction:
        """Return the exact value of a decimal."""
        if NUMBER.fullmatch(text) is None:
            raise self.error(group, f"{text!r} is not a number; correct it")
        # The range of float64 is also what keeps the exact value short.
        if len(text) > LONGEST_NUMBER:
            raise self.error(group, f"a number of {len(text)} characters; write at most {LONGEST_NUMBER}")
        if math.isinf(float(text)) or (Decimal(text) and Decimal(text).adjusted() < -400):
            raise self.error(group, f"{text} is beyond the range of float64; leave out the constraint or rescale it")
        self.numbers[text] = Fraction(Decimal(text))
        if self.float32:
            if abs(self.numbers[text]) > LARGEST_FLOAT32:
                raise self.error(group, f"{text} is beyond the range of float32; leave out the constraint or rescale it")
            self.numbers[text] = nearest_float32(self.numbers[text])
        return self.numbers[text]

    def linear(self, item: str | Parenthesis, group: Parenthesis) -> Linear:
        """Return an arithmetic term as coefficients by key and a constant."""
        if isinstance(item, str):
            if (key := self.keys.get(item)) is not None:
                return {key: ONE}, ZERO
            if (value := self.numbers.get(item)) is not None:
                return {}, value
            if item.lstrip("+-").lower() in ("nan", "inf", "infinity"):
                raise self.error(group, f"{item} is not a finite number; leave out the constraint")
            if item[0] in "+-.0123456789":
                return {}, self.number(item, group)
            return {self.key(item, group): ONE}, ZERO
        if item.head not in ("+", "-", "*") or len(item.items) < 2:
            raise self.error(item, f"unsupported: {item.head or 'this'!r} as arithmetic; use '+', '-' or '*' and what they apply to")
        first, *rest = [self.linear(part, item) for part in item.items[1:]]
        if self.float32 and (rest or item.head != "-" or first[0]):
            raise self.error(item, "unsupported: arithmetic in float32, which rounds; compare elements, or give --real-semantics")
        if item.head == "-" and not rest:
            return scaled(first, -ONE)
        total = first
        for other in rest:
            if item.head == "*":
                if total[0] and other[0]:
                    raise self.error(item, "unsupported: a product of variables; only linear terms can be bounded")
                total = scaled(total, other[1]) if total[0] else scaled(other, total[1])
                if max(map(bits, (*total[0].values(), total[1]))) > 12 * LONGEST_NUMBER:
                    raise self.error(item, "arithmetic on constants leaves the range of float64; rescale them")
            else:
                total = added(total, other if item.head == "+" else scaled(other, -ONE))
        return total

    def formula(self, group: Parenthesis) -> Formula:
        """Return a formula without its constants."""
        self.look()
        if group.head in ("and", "or"):
            if len(group.items) < 2:
                raise self.error(group, f"an empty {group.head!r}; give it a part")
            parts: list[Formula] = []
            for item in group.items[1:]:
                if not isinstance(item, Parenthesis):
                    raise self.error(group, f"unknown symbol {item!r} under {group.head!r}; give comparisons in parentheses")
                parts.append(self.formula(item))
            return join(group.head == "and", parts)
        if group.head not in ("<=", ">=", "<", ">", "=", "==", "!="):
            raise self.error(group, f"unsupported: {group.head or 'this'!r} as a formula; use and, or, <=, >=, <, >, =, ==, !=")
        if len(group.items) != 3:
            raise self.error(group, f"{group.head!r} compares two terms and has {len(group.items) - 1}; split or complete it")
        left, right = self.linear(group.items[1], group), self.linear(group.items[2], group)
        if group.head in ("<=", "<"):
            return self.at_most(left, right, group.head == "<", group)
        if group.head in (">=", ">"):
            return self.at_most(right, left, group.head == ">", group)
        equal = group.head != "!="
        return join(equal, [self.at_most(left, right, not equal, group), self.at_most(right, left, not equal, group)])

    def at_most(self, left: Linear, right: Linear, strict: bool, group: Parenthesis) -> Formula:
        """Return ``left <= right``."""
        terms, constant = added(left, scaled(right, -ONE))
        if not terms:
            return constant < 0 or (constant == 0 and not strict)
        kinds = {key >= 0 for key in terms}
        if kinds == {False}:
            return Row({~key: value for key, value in terms.items()}, -constant, strict)
        if len(kinds) == 2:
            raise self.error(group, "unsupported: a constraint between inputs and outputs; keep them apart")
        if len(terms) > 1:
            raise self.error(group, "unsupported: a constraint between several inputs; only a box can be searched")
        ((key, scale),) = terms.items()
        return Bound(key if scale > 0 else ~key, -constant / abs(scale), strict)

    def counts(self, inputs: int | None, outputs: int | None) -> tuple[int, int]:
        """Return the numbers of inputs and outputs, compared with those asked for."""
        if self.version == 2:
            if not self.tensors:
                raise FormatError(f"{self.path}: no network is declared; add a declare-network")
            sizes = math.prod(self.tensors[0].shape), math.prod(self.tensors[1].shape)
        else:
            sizes = max(self.keys.values(), default=-1) + 1, -min(self.keys.values(), default=0)
        for kind, letter, size, asked in (("inputs", "X", sizes[0], inputs), ("outputs", "Y", sizes[1], outputs)):
            if size <= 0:
                raise FormatError(f"{self.path}: no {kind} are declared; add '(declare-const {letter}_0 Real)'")
            # A version 1 file may leave out outputs.
            if asked is not None and (size > asked or (size < asked and (self.version == 2 or kind == "inputs"))):
                batch = "" if asked % size else f", or export it at batch 1, not {asked // size}, or with a free batch axis"
                raise FormatError(f"{self.path}: {size} {kind} are declared but the network has {asked}; check that they fit{batch}")
        if self.version == 2:
            return sizes
        inputs, outputs = inputs or sizes[0], outputs or sizes[1]
        declared = set(self.keys.values())
        if (absent := next((index for index in range(inputs) if index not in declared), None)) is not None:
            raise FormatError(f"{self.path}: input X_{absent} is not declared, and so has no bounds; declare and bound it")
        return inputs, outputs

    def input_name(self, index: int) -> str:
        """Return what the file calls an input."""
        if self.version == 1:
            return f"X_{index}"
        position = ",".join(map(str, np.unravel_index(index, self.tensors[0].shape))) if self.tensors[0].shape else ""
        return f"{self.tensors[0].name}[{position}]" if position else self.tensors[0].name

    def no_value(self, bounds: dict[int, Bound], index: int) -> FormatError:
        """Build the error of an empty box."""
        lower, upper = -bounds[~index].value, bounds[index].value
        return FormatError(
            f"{self.path}: the box is empty in every alternative: no value of input {self.input_name(index)} lies between "
            f"its lower bound {float(lower)} and its upper bound {float(upper)}; correct them"
        )

    def clauses(self, inputs: int, outputs: int) -> tuple[Clause, ...]:
        """Expand what is asserted; a clause that certainly has no point is dropped."""
        formula = join(True, self.asserted)
        if isinstance(formula, bool):
            told = (
                "nothing is asserted about X and Y"
                if formula
                else "comparisons of constants that are false rule out any counterexample"
            )
            raise FormatError(f"{self.path}: {told}; correct the assertions")
        if (cases := count(formula)) > (most := self.max_bytes // CLAUSE):
            shown = str(cases) if cases < 10**30 else f"about 2^{cases.bit_length() - 1}"
            told = f"{shown} alternatives after expansion, above {most}; split the file by cases, or raise max_bytes"
            raise FormatError(f"{self.path}: {told}")
        parts = formula.parts if isinstance(formula, Junction) and formula.every else [formula]
        shared = [part for part in parts if isinstance(part, Row)]
        common: dict[int, Bound] = {}
        for part in parts:
            if isinstance(part, Bound):
                tighten(common, part, {})
        if (empty := first_empty(common, {})) is not None:
            raise self.no_value(common, empty)
        # What is common to all alternatives is not copied into each: it holds thousands of bounds.
        cases_of = alternatives(Junction(True, [part for part in parts if isinstance(part, Junction)]))
        arrays = ClauseArrays(common, inputs, outputs, self.max_bytes // 8)
        clauses: list[Clause] = []
        refined: dict[int, Bound] = {}
        for atoms in cases_of:
            self.look()
            rows = shared + [atom for atom in atoms if isinstance(atom, Row)]
            refined = {}
            for atom in atoms:
                if isinstance(atom, Bound):
                    tighten(refined, atom, common)
            if (empty := first_empty(refined, common)) is not None:
                continue
            if (missing := first_missing(refined, common, inputs)) is not None:
                name, side = self.input_name(max(missing, ~missing)), "lower" if missing < 0 else "upper"
                raise FormatError(f"{self.path}: input {name} has no {side} bound; assert one in every alternative")
            if not rows:
                raise FormatError(
                    f"{self.path}: nothing is asserted about the outputs, at least in one alternative, so that every point of "
                    "its box is a counterexample; assert something about Y"
                )
            clauses.append(arrays.clause(refined, rows))
        if empty is not None and not clauses:
            raise self.no_value(common | refined, empty)
        return tuple(clauses)
