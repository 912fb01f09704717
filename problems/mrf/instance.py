"""Discrete energies: the instance type and its constructors.

An ``Mrf`` is the function

    E(x) = constant + sum_f table_f[x_scope(f)],      x_i in {0, .., counts[i] - 1},

to be minimised.  Its factors have any order; an entry ``inf`` forbids its labels, and labellings of the energy ``top`` or more are
forbidden as a whole.

Reference: J. H. Kappes et al., A comparative study of modern inference techniques for structured discrete energy minimization
problems, International Journal of Computer Vision 115 (2015).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from blocklp.errors import ModelError, NonFiniteError, ScopeError, ShapeError
from blocklp.problems.qpbo.arrays import FloatArray, IntArray, as_finite, as_real, first_true, graph_attributes
from blocklp.problems.qpbo.instance import Qubo

Factor = tuple[tuple[int, ...], FloatArray]
"""The variables of a factor, ascending, and its table, one axis a variable."""


@dataclass(frozen=True)
class FactorGroup:
    """All factors whose tables have one shape.

    Attributes
    ----------
    scopes : numpy.ndarray, shape (factors, order), int64
    tables : numpy.ndarray, shape (factors, ...), float64
    """

    scopes: IntArray
    tables: FloatArray

    @property
    def shape(self) -> tuple[int, ...]:
        """Label counts of the positions."""
        return tuple(self.tables.shape[1:])

    @property
    def order(self) -> int:
        """Number of variables of a factor."""
        return int(self.scopes.shape[1])

    def entries(self, labels: IntArray) -> IntArray:
        """Positions in the flat tables ``(factors, -1)`` that labellings ``(..., n)`` choose: ``(..., factors)``."""
        position = labels[..., self.scopes[:, 0]]
        for axis in range(1, self.order):
            position = position * self.shape[axis] + labels[..., self.scopes[:, axis]]
        return np.asarray(position)

    def values(self, labels: IntArray) -> FloatArray:
        """The entries that labellings ``(..., n)`` choose: ``(..., factors)``."""
        flat = self.tables.reshape(len(self.tables), -1)
        return np.asarray(flat[np.arange(len(flat)), self.entries(labels)])


@dataclass(frozen=True, eq=False)
class Mrf:
    """Minimise ``constant + sum_f table_f[x_scope(f)]`` over the labellings ``x`` of an energy below ``top``.

    Parameters
    ----------
    counts : array_like of int, shape (n,)
        Number of labels of each variable, n > 0.
    factors : iterable of (scope, table)
        Scopes name different variables in any order, and axis k of a table belongs to position k of its scope.  Factors on the same
        variables are added up, those on none go to ``constant``, or forbid all labels where they are infinite; ``factors`` then
        holds one an ascending scope, in sorted order.
    constant : float
        Constant term.
    name : str
        Name of the instance.
    top : float
        Energies of this value or more are forbidden, as those of infinite entries are: the upper bound of a weighted CSP.

    Raises
    ------
    ModelError
        There is no variable, a number of labels is not positive, ``top`` is NaN, or tables are not numbers.
    ScopeError
        A scope names a variable twice, or one that does not exist, or is no sequence of variables.
    ShapeError
        A table does not fit the labels of its variables.
    NonFiniteError
        A table holds NaN or minus infinity, or tables on the same variables add up to more than float64 holds.
    """

    counts: IntArray
    factors: tuple[Factor, ...]
    constant: float = 0.0
    name: str = ""
    top: float = math.inf

    def __init__(
        self,
        counts: ArrayLike,
        factors: Iterable[tuple[Sequence[int], ArrayLike]],
        constant: float = 0.0,
        name: str = "",
        top: float = math.inf,
    ) -> None:
        sizes = np.asarray(counts)
        if sizes.ndim != 1 or sizes.size == 0 or not np.issubdtype(sizes.dtype, np.integer) or (sizes < 1).any():
            raise ModelError(f"counts is {counts!r}; give the number of labels of every variable, each at least 1")
        total = float(as_finite([constant], "constant")[0])
        merged: dict[tuple[int, ...], FloatArray] = {}
        for number, (given, values) in enumerate(factors):
            scope, table = _checked(number, given, values, sizes)
            if not scope and math.isinf(table):  # no labelling is left, as where a variable has no label
                scope, table = (0,), np.full(sizes[0], np.inf)
            if not scope:
                total += float(table)
            elif scope in merged:
                merged[scope] = _added(merged[scope], table, scope)
            else:
                merged[scope] = table
        as_finite([total], "the constant, with all factors without variables,")
        if math.isnan(top):
            raise ModelError("top is NaN; give a number, or infinity for none")
        for table in merged.values():
            table.setflags(write=False)
        object.__setattr__(self, "counts", sizes.astype(np.int64))
        object.__setattr__(self, "factors", tuple(sorted(merged.items(), key=lambda f: (len(f[0]), f[0]))))
        object.__setattr__(self, "constant", total)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "top", float(top))

    @classmethod
    def of_factors(
        cls, counts: IntArray, factors: tuple[Factor, ...], constant: float = 0.0, name: str = "", top: float = math.inf
    ) -> Mrf:
        """Build an energy without a look at its parts, for large ones that are made of those of others.

        Parameters
        ----------
        counts : numpy.ndarray, shape (n,), int64
            Number of labels of each variable.
        factors : tuple of (tuple of int, numpy.ndarray)
            As the attribute: one for each ascending scope, by their numbers of variables and then by their variables, with tables
            float64 without NaN and minus infinity that nobody writes to any more.
        constant, name, top
            As in the class.
        """
        found = object.__new__(cls)
        given = {"counts": counts, "factors": factors, "constant": constant, "name": name, "top": top}
        for key, value in given.items():
            object.__setattr__(found, key, value)
        return found

    def with_tables(self, tables: Sequence[FloatArray]) -> Mrf:
        """Return the energy of the same scopes with other tables, and without a constant, a name and a top.

        Parameters
        ----------
        tables : sequence of numpy.ndarray
            Those of each of the ``groups``, of the shapes that they have, float64 without NaN and minus infinity.
        """
        groups = tuple(FactorGroup(group.scopes, own) for group, own in zip(self.groups, tables, strict=True))
        rest = {group.shape: iter(group.tables) for group in groups}
        found = Mrf.of_factors(self.counts, tuple((scope, next(rest[table.shape])) for scope, table in self.factors))
        found.__dict__["groups"] = groups  # where the property keeps them
        return found

    @property
    def n(self) -> int:
        """Number of variables."""
        return self.counts.size

    @property
    def order(self) -> int:
        """Largest number of variables of a factor."""
        return len(self.factors[-1][0]) if self.factors else 0

    @cached_property
    def groups(self) -> tuple[FactorGroup, ...]:
        """The factors by the shapes of their tables."""
        by_shape: dict[tuple[int, ...], list[Factor]] = {}
        for scope, table in self.factors:
            by_shape.setdefault(table.shape, []).append((scope, table))
        return tuple(
            FactorGroup(np.array([scope for scope, _ in some], dtype=np.int64), np.stack([table for _, table in some]))
            for some in by_shape.values()
        )

    @cached_property
    def edges(self) -> IntArray:
        """Pairs of variables that some factor has in common: ``(m, 2)``, smaller first, sorted."""
        pairs = [np.zeros((0, 2), dtype=np.int64)]
        for group in self.groups:
            pairs += [group.scopes[:, ends] for ends in itertools.combinations(range(group.order), 2)]
        i, j = np.concatenate(pairs).T
        return np.stack(np.divmod(np.unique(i * self.n + j), self.n), axis=1)

    def energy(self, labels: ArrayLike) -> FloatArray:
        """Return the value of each labelling.

        Parameters
        ----------
        labels : array_like of int, shape (..., n)

        Returns
        -------
        numpy.ndarray, shape (...), float64
            ``inf`` where a hard constraint is violated, or ``top`` is reached.

        Raises
        ------
        ShapeError
            The last axis is not of length n, or the labels are not whole numbers.
        ScopeError
            A label does not exist.
        """
        x = self.checked_labels(labels)
        total = np.full(x.shape[:-1], self.constant)
        for group in self.groups:
            total = total + group.values(x).sum(axis=-1)
        return np.where(total < self.top, total, np.inf)

    def without_top(self) -> Mrf:
        """Return the energy of all labellings, whatever their energies."""
        return self if math.isinf(self.top) else Mrf.of_factors(self.counts, self.factors, self.constant, self.name)

    def checked_labels(self, labels: ArrayLike) -> IntArray:
        """Return labellings as int64; raises as :meth:`energy`."""
        x = np.asarray(labels)
        if x.ndim == 0 or x.shape[-1] != self.n or not np.issubdtype(x.dtype, np.integer):
            raise ShapeError(f"labels have shape {x.shape} and dtype {x.dtype}; give integers (..., {self.n})")
        wrong = np.asarray(((x < 0) | (x >= self.counts)).reshape(-1, self.n).any(axis=0))
        if (bad := first_true(wrong)) is not None:
            raise ScopeError(f"a label of variable {bad} is outside 0 .. {self.counts[bad] - 1}; number labels from 0")
        return x.astype(np.int64)

    def condition(self, evidence: Mapping[int, int]) -> Mrf:
        """Forbid all labels of some variables but one each.

        Parameters
        ----------
        evidence : mapping of int to int
            Variables and their labels.

        Raises
        ------
        ScopeError
            A variable or a label does not exist.
        """
        hard: list[tuple[tuple[int, ...], FloatArray]] = []
        for variable, label in evidence.items():
            if not 0 <= variable < self.n or not 0 <= label < self.counts[variable]:
                raise ScopeError(f"the evidence gives variable {variable} the label {label}; one of them does not exist")
            hard.append(((variable,), np.where(np.arange(self.counts[variable]) == label, 0.0, np.inf)))
        return Mrf(self.counts, [*self.factors, *hard], self.constant, self.name, self.top)

    def to_qubo(self) -> Qubo | None:
        """Return the same function as a ``Qubo``: label 1 is ``y = 1``.

        ``None`` if a variable has not two labels, a factor more than two variables, an entry is infinite, or ``top`` finite.
        """
        if self.order > 2 or math.isfinite(self.top) or (self.counts != 2).any():
            return None
        if any(np.isinf(group.tables).any() for group in self.groups):
            return None
        linear, offset = np.zeros(self.n), self.constant
        edges, quadratic = np.zeros((0, 2), dtype=np.int64), np.zeros(0)
        for group in self.groups:
            t = group.tables
            none = t.reshape(len(t), -1)[:, 0]
            offset += float(none.sum())
            for axis in range(group.order):
                alone = t[:, 1] if group.order == 1 else t[:, 1, 0] if axis == 0 else t[:, 0, 1]
                np.add.at(linear, group.scopes[:, axis], alone - none)
            if group.order == 2:
                edges, quadratic = group.scopes, t[:, 0, 0] - t[:, 0, 1] - t[:, 1, 0] + t[:, 1, 1]
        return Qubo.from_terms(linear, edges, quadratic, offset, name=self.name)

    @classmethod
    def from_arrays(cls, unary: ArrayLike, edges: ArrayLike, pairwise: ArrayLike, name: str = "") -> Mrf:
        """Build a pairwise model whose variables have equally many labels.

        Parameters
        ----------
        unary : array_like, shape (n, labels)
        edges : array_like of int, shape (m, 2)
        pairwise : array_like, shape (m, labels, labels) or (labels, labels)
            A table for each edge, or one for all.
        name : str
            Name of the instance.

        Raises
        ------
        ModelError, ShapeError, ScopeError, NonFiniteError
            As in the class.
        """
        costs, ends = as_real(unary, "unary"), np.asarray(edges).reshape(-1, 2)
        if costs.ndim != 2:
            raise ShapeError(f"unary has shape {costs.shape}; give (n, labels)")
        tables = as_real(pairwise, "pairwise")
        tables = np.broadcast_to(tables, (len(ends), *tables.shape)) if tables.ndim == 2 else tables
        if tables.shape != (len(ends), costs.shape[1], costs.shape[1]):
            raise ShapeError(f"pairwise has shape {tables.shape}; give ({len(ends)}, {costs.shape[1]}, {costs.shape[1]})")
        factors: list[tuple[Sequence[int], ArrayLike]] = [((i,), row) for i, row in enumerate(costs)]
        factors += zip(ends.tolist(), tables, strict=True)
        return cls(np.full(len(costs), costs.shape[1]), factors, name=name)

    @classmethod
    def from_networkx(cls, graph: Any, unary: str = "unary", pairwise: str = "pairwise") -> Mrf:
        """Build a pairwise model from a networkx graph; its nodes are numbered in their order.

        Parameters
        ----------
        graph : networkx.Graph
        unary : str
            Node attribute with the costs of its labels.
        pairwise : str
            Edge attribute with the table ``(labels of the first node, labels of the second)``; the first is the one that comes first
            in the graph's order of nodes, in a directed graph the tail.

        Raises
        ------
        ModelError
            A node or an edge lacks its attribute, or the graph has no node.
        ShapeError, NonFiniteError
            As in the class.
        """
        costs, terms = graph_attributes(graph, unary, pairwise)
        counts = [len(np.atleast_1d(np.asarray(own))) for own in costs]
        factors: list[tuple[Sequence[int], ArrayLike]] = [((i,), own) for i, own in enumerate(costs)]
        factors += [(ends if graph.is_directed() else sorted(ends), table) for *ends, table in terms]
        return cls(np.array(counts, dtype=np.int64), factors, name=str(graph.name))


def _added(first: FloatArray, second: FloatArray, scope: tuple[int, ...]) -> FloatArray:
    """Add tables; infinite entries do not overflow, finite ones may."""
    try:
        with np.errstate(over="raise"):
            return np.asarray(first + second)
    except FloatingPointError as error:
        raise NonFiniteError(f"the tables on {scope} add up to more than float64 holds; divide all of them by a constant") from error


def _checked(number: int, given: Sequence[int], values: ArrayLike, counts: IntArray) -> Factor:
    """Check a factor, sort its variables and transpose its table, as a copy."""
    try:
        scope = [int(i) for i in given]
    except (TypeError, ValueError) as error:
        raise ScopeError(f"factor {number} has the scope {given!r}; give its variables as a tuple, such as (0,)") from error
    if len(set(scope)) != len(scope) or (scope and not 0 <= min(scope) <= max(scope) < len(counts)):
        raise ScopeError(f"factor {number} has the scope {tuple(scope)}; name different variables of 0 .. {len(counts) - 1}")
    table = as_real(values, f"the table of factor {number} on {tuple(scope)}")
    wanted = tuple(int(counts[i]) for i in scope)
    if table.shape != wanted:
        raise ShapeError(f"factor {number} on {tuple(scope)} has a table of shape {table.shape}; its variables need {wanted}")
    if not table.min() > -np.inf:  # NaN is not, either
        raise NonFiniteError(f"factor {number} on {tuple(scope)} holds NaN or -inf; entries are finite, or inf to forbid labels")
    order = sorted(range(len(scope)), key=scope.__getitem__)
    return tuple(sorted(scope)), np.array(table.transpose(order), order="C")
