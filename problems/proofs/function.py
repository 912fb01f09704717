"""Functions of discrete variables as sums of tables of integers, for proofs.

Coefficients are rounded down to a common grid of :data:`FINE` bits, where most are already: a bound of the lowered function holds for
the given one.  Infinite entries become :data:`HARD`, above all that finite entries add up to, and sums are cut off there; that lowers
the function as well, and a bound above all values of labels without such entries proves that there are none.  Labels whose own entry
is infinite are dropped at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklp.errors import FormatError, ModelError, ShapeError
from blocklp.problems.discrete.given import check_instance
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.qpbo.instance import Qubo

Scope: TypeAlias = tuple[int, ...]
Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

Discrete: TypeAlias = Qubo | Mrf | WeightedGraph
"""What proofs are about: of a graph, minus the weights of its independent sets; two neighbours are an infinite entry."""

FINE = 56
"""Bits that the largest magnitudes of all tables add up to."""
HARD = 1 << 60
"""What infinite entries become, and the largest entry of any table: finite ones add up to a sixteenth of it at most."""
MOST = 1 << 58
"""What multipliers of one part, or of one table, may add up to: so finite sums are never cut off at :data:`HARD`."""
ENTRIES = 1 << 25
"""Entries of a table at most, and of all that an elimination adds at a time."""


@dataclass(frozen=True, eq=False)
class IntegerFunction:
    """A constant and tables of integers, in units of ``2**-exponent``.

    Attributes
    ----------
    labels : dict of int to tuple of int
        Labels of each variable that is free, two or more.
    tables : dict of tuple of int to numpy.ndarray
        Tables by their variables, ascending, one axis a variable.
    constant : int
        The constant.
    exponent : int
        What a unit is.
    """

    labels: Mapping[int, tuple[int, ...]]
    tables: Mapping[Scope, Integers]
    constant: int
    exponent: int

    @property
    def unit(self) -> Fraction:
        """What the integer 1 stands for."""
        return 1 / Fraction(2) ** self.exponent

    @cached_property
    def spacing(self) -> int:
        """Values of labels without infinite entries are the constant plus multiples of this."""
        divisors = (int(np.gcd.reduce(table[table < HARD // 2], axis=None, initial=0)) for table in self.tables.values())
        return math.gcd(*divisors)

    def raised(self, bound: int) -> int:
        """Return the least integer that may be a value and is not below a bound."""
        return self.constant - (self.constant - bound) // self.spacing * self.spacing if self.spacing else bound

    def value(self, labels: Sequence[int]) -> int:
        """Return the value of labels, in which those of variables that are not free do not count."""
        entries = (int(table[tuple(self.labels[v].index(labels[v]) for v in scope)]) for scope, table in self.tables.items())
        return self.constant + sum(entries)

    def least(self) -> int:
        """Return the sum of the least entries, which is a lower bound, and exact where nothing is free."""
        return self.constant + sum(int(table.min()) for table in self.tables.values())

    def with_labels(self, kept: Mapping[int, Sequence[int]]) -> IntegerFunction:
        """Return the function of some labels of each variable that is named; a variable with one label is free no more."""
        return self._restricted(kept).possible()

    def _restricted(self, kept: Mapping[int, Sequence[int]]) -> IntegerFunction:
        places = {v: [self.labels[v].index(label) for label in some] for v, some in kept.items()}
        labels = {v: tuple(kept[v]) if v in kept else own for v, own in self.labels.items()}
        tables: dict[Scope, Integers] = {}
        constant, smaller = self.constant, []
        for scope, table in self.tables.items():
            if places.keys().isdisjoint(scope):
                tables[scope] = table
                continue
            for axis, v in enumerate(scope):
                if v in places:
                    table = table.take(places[v], axis)
            smaller.append((tuple(v for v in scope if len(labels[v]) > 1), table.squeeze()))
        for scope, table in smaller:
            if scope:
                tables[scope] = added(tables[scope], table) if scope in tables else table
            else:
                constant += int(table)
        return IntegerFunction({v: own for v, own in labels.items() if len(own) > 1}, tables, constant, self.exponent)

    def possible(self) -> IntegerFunction:
        """Return the function without labels whose own entry is infinite; just :data:`HARD` where a variable has no others."""
        function = self
        while True:
            kept = {}
            for v, own in function.labels.items():
                table = function.tables.get((v,))
                if table is not None and int(table.max()) >= HARD // 2:
                    kept[v] = [label for label, entry in zip(own, table.tolist(), strict=True) if entry < HARD // 2]
            if not all(kept.values()) or function.constant >= HARD // 2:
                return IntegerFunction({}, {}, HARD, self.exponent)
            if not kept:
                return function
            function = function._restricted(kept)

    def without(self, variables: Sequence[int]) -> IntegerFunction:
        """Minimise variables out, one after the other.

        Raises
        ------
        FormatError
            One is not free, or a table would have more than :data:`ENTRIES` entries.
        """
        labels, constant, tables, more = dict(self.labels), self.constant, dict(self.tables), 0
        holding: dict[int, set[Scope]] = defaultdict(set)
        for scope in tables:
            for v in scope:
                holding[v].add(scope)
        for v in variables:
            if v not in labels:
                raise FormatError(f"the proof eliminates variable {v}, which does not exist or is not free there")
            scopes = sorted(holding.pop(v, ()))
            around = tuple(sorted({v}.union(*scopes)))
            named = [(scope, tables.pop(scope)) for scope in scopes]
            least = total(around, [len(labels[u]) for u in around], named).min(around.index(v))
            del labels[v]
            for scope in scopes:
                for u in scope:
                    if u != v:
                        holding[u].discard(scope)
            more += least.size - sum(table.size for _, table in named)
            check_size(more)
            rest = tuple(u for u in around if u != v)
            if not rest:
                constant += int(least)
                continue
            tables[rest] = added(tables[rest], least) if rest in tables else least
            for u in rest:
                holding[u].add(rest)
        return IntegerFunction(labels, tables, constant, self.exponent).possible()

    def parts(self, variables: Sequence[Sequence[int]]) -> list[IntegerFunction]:
        """Split into functions of some variables each, whose sum it is; the first one has the constant.

        Raises
        ------
        FormatError
            The parts do not hold every free variable once, or a table has variables of two.
        """
        owner = {v: k for k, own in enumerate(variables) for v in own}
        if (
            not variables
            or len(owner) != sum(map(len, variables))
            or owner.keys() != self.labels.keys()
            or not all(len(own) for own in variables)
        ):
            raise FormatError("the proof splits the variables into parts that do not hold each of them once")
        tables: list[dict[Scope, Integers]] = [{} for _ in variables]
        for scope, table in self.tables.items():
            if len({owner[v] for v in scope}) > 1:
                raise FormatError(f"the proof splits the variables {scope}, which have a table in common")
            tables[owner[scope[0]]][scope] = table
        return [
            IntegerFunction({v: self.labels[v] for v in own}, mine, 0 if k else self.constant, self.exponent)
            for k, (own, mine) in enumerate(zip(variables, tables, strict=True))
        ]

    def rounded(self, values: ArrayLike) -> Integers:
        """Round numbers of a proof down to units.

        Raises
        ------
        FormatError
            One is not finite, or larger than :data:`MOST`.
        """
        try:
            given = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            given = np.array(math.nan)
        found = _whole(given, self.exponent)
        if not np.abs(found).max(initial=0.0) < MOST:  # NaN is not, either
            raise FormatError("a proof has multipliers that are not finite numbers, or much larger than the function")
        return found.astype(np.int64)


def added(first: Integers, second: Integers) -> Integers:
    """Add up two tables, cut off at :data:`HARD`."""
    return np.asarray(np.minimum(first + second, HARD))


def check_size(entries: int) -> None:
    """Raise a ``FormatError`` where tables have more than :data:`ENTRIES` entries."""
    if entries > ENTRIES:
        raise FormatError("the proof needs tables that are too large to be checked; branch on some of their variables first")


def total(scope: Scope, sizes: Sequence[int], tables: Iterable[tuple[Scope, Integers]]) -> Integers:
    """Add up tables of some of the variables of a scope; all are ascending.

    Raises
    ------
    FormatError
        The sum would have more than :data:`ENTRIES` entries.
    """
    check_size(math.prod(sizes))
    found: Integers = np.zeros(sizes, dtype=np.int64)
    for mine, table in tables:
        found = added(found, table.reshape([size if v in mine else 1 for v, size in zip(scope, sizes, strict=True)]))
    return found


class ExactFunction:
    """What a proof is about.

    Parameters
    ----------
    problem : Qubo, Mrf or WeightedGraph
        The problem.

    Attributes
    ----------
    function : IntegerFunction
        The function, rounded down.
    ceiling : Fraction or float
        Labellings of this value or more are forbidden; infinite where none is.

    Raises
    ------
    ModelError
        The problem is none of these, or a graph that states a clique problem.
    """

    def __init__(self, problem: Discrete) -> None:
        check_instance(problem, Discrete)
        self.problem = problem
        counts, self._tables, self._constant, top = _stated(problem)
        largest = [float(np.abs(table[np.isfinite(table)]).max(initial=0.0)) for table in self._tables.values()]
        most = math.frexp(max(abs(self._constant), *largest, 0.0))[1]
        # In units of the largest, so that the sum does not overflow.
        summed = math.fsum(math.ldexp(size, -most) for size in (abs(self._constant), *largest))
        exponent = FINE - most - math.frexp(summed)[1]
        tables = {scope: np.minimum(_whole(table, exponent), HARD).astype(np.int64) for scope, table in self._tables.items()}
        every = {v: tuple(range(count)) for v, count in enumerate(counts)}
        constant = int(_whole(np.array(self._constant), exponent))
        stated = IntegerFunction(every, tables, constant, exponent)
        self.function = stated.with_labels({v: own for v, own in every.items() if len(own) == 1})
        self.ceiling: Fraction | float = Fraction(top) if math.isfinite(top) else top
        if any(np.isinf(table).any() for table in self._tables.values()):
            highest = constant + sum(int(table.max(initial=0, where=table < HARD)) for table in tables.values())
            # Rounding has lowered each of the tables by less than a unit.
            self.ceiling = min(self.ceiling, (highest + len(tables) + 1) * self.function.unit)

    def value(self, labels: ArrayLike) -> Fraction:
        """Return the value of a labelling, without rounding.

        Raises
        ------
        ShapeError, ScopeError
            The labels do not fit.
        ModelError
            They are forbidden, or no independent set.
        """
        problem = self.problem
        try:
            given = np.asarray(labels)
        except ValueError:
            given = np.zeros(0)
        if given.shape != (problem.n,):
            raise ShapeError(f"labels have shape {given.shape}; give one for each of the {problem.n} variables")
        x = problem.checked_labels(given) if isinstance(problem, Mrf) else _binary(given)
        if isinstance(problem, WeightedGraph) and not bool(problem.independent(x.astype(np.bool_))):
            raise ModelError("the labels choose two neighbours; give the members of an independent set")
        entries = [float(table[tuple(x[list(scope)])]) for scope, table in self._tables.items()]
        if math.inf in entries or (found := sum(map(Fraction, entries), Fraction(self._constant))) >= self.ceiling:
            raise ModelError("the labels violate a hard constraint, or their energy is the top or more")
        return found


def _whole(values: Floats, exponent: int) -> Floats:
    """Numbers rounded down to multiples of ``2**-exponent``, in these units."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(values, exponent)
    return np.where((scaled == 0) & (values < 0), -1.0, np.floor(scaled))  # even where it is too small for a float


def _binary(labels: NDArray[Any]) -> Integers:
    if labels.dtype.kind not in "biuf" or not np.isin(labels, (0, 1)).all():
        raise ShapeError("labels must be 0 or 1")
    return labels.astype(np.int64)


def _stated(problem: Discrete) -> tuple[list[int], dict[Scope, Floats], float, float]:
    """Numbers of labels, tables, constant and top of a problem."""
    if isinstance(problem, Mrf):
        return problem.counts.tolist(), dict(problem.factors), problem.constant, problem.top
    if isinstance(problem, WeightedGraph):
        problem.require_independent_set()
        alone, pairs, offset = -problem.weights, np.full(len(problem.edges), math.inf), 0.0
    else:
        alone, pairs, offset = problem.linear, problem.quadratic, problem.offset
    tables: dict[Scope, Floats] = {(i,): np.array([0.0, c]) for i, c in enumerate(alone.tolist())}
    for (i, j), c in zip(problem.edges.tolist(), pairs.tolist(), strict=True):
        tables[i, j] = np.array([[0.0, 0.0], [0.0, c]])
    return [2] * problem.n, tables, offset, math.inf
