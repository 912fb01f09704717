r"""Lower bounds of functions in integers, from numbers that a proof suggests: any numbers give a valid bound.

*Decomposition.*  Tables :math:`\lambda_{p,S}` of parts p on variables S give

.. math:: \min_x f(x) \ge \sum_p \min_x \sum_S \lambda_{p,S}(x_S) + \sum_S \min_x \Bigl(f_S(x_S) - \sum_p \lambda_{p,S}(x_S)\Bigr),

which is Lagrangean duality: the tables on the right add up to f.  Infinite entries add up to themselves: any number of parts may have
them.  A part is minimised by elimination.  With a label of a variable the bound rises by what the minima of the parts and tables of
that variable rise by; labels for which that is enough are removed, and steps below need not look at them.

*Cliques.*  For variables C of two labels, of which y = 1 says the second, and prices :math:`q_C \ge 0`,

.. math:: q_C \Bigl(\sum_{i \in C} y_i - 1\Bigr) \le q_C \sum_{i < j \in C} y_i y_j,

since k - 1 is at most k (k - 1) / 2.  So f falls, if at all, where pairs are lowered by the price, single variables are raised by it,
and the constant is lowered by it.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blocklp.errors import FormatError
from blocklp.problems.proofs.function import HARD, MOST, IntegerFunction, Integers, Scope, check_size, total
from blocklp.problems.proofs.steps import Clique, Decomposition, Parts

Tables = list[tuple[tuple[int, ...], Integers]]
"""Positions, and arrays ``(parts, *labels)``."""

FIRST = -1
"""The axis of the parts, as a variable before all others."""


class Decomposed:
    """A function as parts and what they leave.

    Parameters
    ----------
    function : IntegerFunction
        The function.
    leaf : Decomposition
        The parts.

    Attributes
    ----------
    bound : int
        The least value that their minima allow.

    Raises
    ------
    FormatError
        A part names a variable that is not free, or one twice; its tables do not fit; or it is too wide to be minimised.  A clique
        has a variable that has not two labels, or one twice, or a price that is negative.
    """

    def __init__(self, function: IntegerFunction, leaf: Decomposition) -> None:
        alone, pairs, spent = _prices(function, leaf.cliques)
        self._labels = function.labels
        self._groups = [_checked(function, group) for group in leaf.parts]
        taken = [(group.variables[:, axes], values) for group in self._groups for axes, values in group.tables]
        _check_sums(alone, pairs, taken, self._groups)
        rest = dict(function.tables)
        zero = np.zeros((), dtype=np.int64)
        for v, price in alone.items():
            rest[v,] = rest.get((v,), zero) + np.array([0, price])
        for pair, price in pairs.items():
            rest[pair] = rest.get(pair, zero) - np.array([[0, 0], [0, price]])
        for scopes, values in taken:
            for scope, table in zip(scopes.tolist(), values, strict=True):
                order = sorted(range(len(scope)), key=scope.__getitem__)
                place: Scope = tuple(scope[k] for k in order)
                table = table.transpose(order)
                if (hard := table == HARD).any():
                    if not (np.broadcast_to(function.tables.get(place, zero), table.shape)[hard] >= HARD // 2).all():
                        raise FormatError(f"a leaf has infinite multipliers of the variables {place}, whose table has none there")
                    table = np.where(hard, 0, table)
                rest[place] = rest.get(place, zero) - table
        self._rest = rest
        parts = sum(sum(group.least().tolist()) for group in self._groups)
        self.bound = function.constant - spent + parts + sum(int(table.min()) for table in rest.values())

    def bounds_of(self, variables: Iterable[int]) -> dict[int, list[int]]:
        """Return the bound with each label of some variables: what is lost where a label is not the best one of a part or table.

        Raises
        ------
        FormatError
            A variable is not free.
        """
        found = {}
        for v in variables:
            if v not in self._labels:
                raise FormatError(f"a leaf removes labels of variable {v}, which does not exist or is not free there")
            found[v] = [self.bound] * len(self._labels[v])
        for scope, table in self._rest.items():
            for axis, v in enumerate(scope):
                if v in found:
                    own = table.min(tuple(k for k in range(len(scope)) if k != axis))
                    found[v] = [a + b for a, b in zip(found[v], (own - own.min()).tolist(), strict=True)]
        for group in self._groups:
            for position, owners in enumerate(group.variables.T):
                rows = np.flatnonzero(np.isin(owners, list(found)))
                if not len(rows):
                    continue
                # Instead of what the bound counts of a part, which is no more than the least of these.
                rise = group.least(rows, position) - group.least(rows)[:, None]
                for v, more in zip(owners[rows].tolist(), rise.tolist(), strict=True):
                    found[v] = [a + b for a, b in zip(found[v], more, strict=True)]
        return found


@dataclass(frozen=True, eq=False)
class _Group:
    """Parts with equally many variables and labels, in integers.

    Attributes
    ----------
    variables : numpy.ndarray, shape (parts, k), int64
        Their variables.
    sizes : list of int
        Numbers of labels of each position.
    tables : list of (tuple of int, numpy.ndarray)
        Positions, and arrays ``(parts, *labels)``.
    """

    variables: NDArray[np.int64]
    sizes: list[int]
    tables: Tables

    def least(self, rows: Any = slice(None), kept: int | None = None) -> Integers:
        """The minima of some parts, or by the labels of a position: ``(parts,)`` or ``(parts, labels)``.

        The position is eliminated next that needs the smallest table.
        """
        left: Tables = []
        for axes, values in self.tables:
            order = sorted(range(len(axes)), key=axes.__getitem__)
            left.append((tuple(axes[k] for k in order), values[rows].transpose(0, *(k + 1 for k in order))))
        count, more = len(self.variables[rows]), 0
        positions = set(range(len(self.sizes))) - {kept}
        while positions:
            around: dict[int, set[int]] = {k: {k} for k in positions}
            for axes, _ in left:
                for k in positions.intersection(axes):
                    around[k].update(axes)
            position = min(positions, key=lambda k: (math.prod(self.sizes[j] for j in around[k]), k))
            positions.remove(position)
            own = [entry for entry in left if position in entry[0]]
            left = [entry for entry in left if position not in entry[0]]
            scope = sorted(around[position])
            least = self._sum(count, scope, own).min(1 + scope.index(position))
            scope.remove(position)
            left.append((tuple(scope), least))
            more += least.size - sum(values.size for _, values in own)
            check_size(more)
        return self._sum(count, [] if kept is None else [kept], left)

    def _sum(self, count: int, scope: Sequence[int], tables: Tables) -> Integers:
        stated = [((FIRST, *axes), values) for axes, values in tables]
        return total((FIRST, *scope), [count, *(self.sizes[k] for k in scope)], stated)


def _prices(function: IntegerFunction, cliques: Sequence[Clique]) -> tuple[dict[int, int], dict[Scope, int], int]:
    """What cliques add to single variables, and take from pairs and from the constant."""
    alone: dict[int, int] = defaultdict(int)
    pairs: dict[Scope, int] = defaultdict(int)
    check_size(sum(len(variables) ** 2 for variables, _ in cliques))
    prices = function.rounded([price for _, price in cliques]).tolist()
    for (variables, _), price in zip(cliques, prices, strict=True):
        ascending = sorted(variables)
        if price < 0 or len(set(ascending)) != len(ascending) or any(len(function.labels.get(v, ())) != 2 for v in ascending):
            raise FormatError("a leaf has a clique that does not fit; give different free variables of two labels, and a price")
        for v in ascending:
            alone[v] += price
        for pair in itertools.combinations(ascending, 2):
            pairs[pair] += price
    return alone, pairs, sum(prices)


def _checked(function: IntegerFunction, group: Parts) -> _Group:
    """The parts in integers."""
    rows = group.variables.tolist()
    kinds = {tuple(len(function.labels.get(v, ())) for v in row) for row in rows}
    if len(kinds) != 1 or 0 in (sizes := kinds.pop()) or any(len(set(row)) != len(row) for row in rows):
        raise FormatError("a leaf has parts that do not fit; give different free variables, of equally many labels in all parts")
    tables: Tables = []
    for axes, values in group.tables:
        if len(set(axes)) != len(axes) or not axes or not all(0 <= k < len(sizes) for k in axes):
            raise FormatError(f"a leaf has a table of the positions {axes}; its parts have {len(sizes)} variables")
        if values.shape != (len(rows), *(sizes[k] for k in axes)):
            raise FormatError(f"a leaf has tables of shape {values.shape} for {len(rows)} parts and the positions {axes}")
        hard = np.isnan(values)
        tables.append((axes, np.where(hard, HARD, function.rounded(np.where(hard, 0.0, values)))))
    return _Group(group.variables, list(sizes), tables)


def _check_sums(
    alone: dict[int, int],
    pairs: dict[Scope, int],
    taken: Sequence[tuple[NDArray[np.int64], Integers]],
    groups: Sequence[_Group],
) -> None:
    """Refuse multipliers of a part, or of a table of the function, that add up to more than int64 is sure to hold."""
    sums: dict[Scope, int] = defaultdict(int, {(v,): price for v, price in alone.items()} | pairs)
    for scopes, values in taken:
        for scope, largest in zip(scopes.tolist(), _largest(values), strict=True):
            sums[tuple(sorted(scope))] += largest
    of_parts = [sum(each) for g in groups for each in zip(*(_largest(values) for _, values in g.tables), strict=True)]
    if max(sums.values(), default=0) > MOST or max(of_parts, default=0) > MOST:
        raise FormatError("a leaf has multipliers that are much larger than the function")


def _largest(values: Integers) -> list[int]:
    """The largest finite magnitude of each part's table."""
    finite = np.where(values == HARD, 0, np.abs(values))
    largest: list[int] = finite.reshape(len(values), -1).max(1).tolist()
    return largest
