r"""Exact reductions of a discrete energy, with the way home for labellings.

*Hard constraints.*  A label all of whose joint labels some factor forbids is dropped.  *Dead ends.*  So is a label a of variable i
that is nowhere better than a label b,

.. math:: \theta_i(a) - \theta_i(b) + \sum_f \min_{x_f} (\theta_f(a, x_f) - \theta_f(b, x_f)) \ge 0

(R. F. Goldstein, Efficient rotamer elimination applied to protein side-chains, Biophysical Journal 66 (1994)).  *Degree.*  A variable
with at most two neighbours is minimised out.  *Components* are left to be solved apart.
"""

from __future__ import annotations

import itertools

import numpy as np

from blocklp.deadline import Deadline
from blocklp.problems.discrete.elimination import added, aligned
from blocklp.problems.discrete.exact import DEFAULT
from blocklp.problems.discrete.reduced import Elimination, Reduced, Rule, components
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.qpbo.arrays import FloatArray

Scope = tuple[int, ...]


def reduced(mrf: Mrf, deadline: Deadline | None = None, most: int = DEFAULT.reduced_table) -> Reduced[Mrf]:
    """Drop labels and minimise out variables until nothing more goes, and split into components.

    Parameters
    ----------
    mrf : Mrf
        Sums and differences of its entries must not be rounded.
    deadline : Deadline, optional
        What could be reduced further then is left as it is.
    most : int
        Entries of differences of two labels, or of a table that a variable leaves, that are looked at.
    """
    return _Reducer(mrf, most).run(deadline or Deadline())


class _Reducer:
    """An energy that shrinks: unary tables, the tables of larger factors by their scopes, and the labels that are left."""

    def __init__(self, mrf: Mrf, most: int) -> None:
        self.mrf, self.most, self.constant = mrf, most, mrf.constant
        self.alone: list[FloatArray] = [np.zeros(count) for count in mrf.counts.tolist()]
        self.tables: dict[Scope, FloatArray] = {}
        self.near: list[set[Scope]] = [set() for _ in range(mrf.n)]
        self.labels = [np.arange(count) for count in mrf.counts.tolist()]
        self.gone = np.zeros(mrf.n, dtype=bool)
        self.rules: list[Rule] = []
        self.waiting = dict.fromkeys(range(mrf.n))
        for scope, table in mrf.factors:
            self._add(scope, table)

    def run(self, deadline: Deadline) -> Reduced[Mrf]:
        """Look at variables until nothing changes."""
        while self.waiting and self.constant < np.inf and not deadline.over():
            i = next(iter(self.waiting))
            del self.waiting[i]
            if not self.gone[i]:
                self._look(i)
        if not self.constant < np.inf:
            return Reduced(np.inf, (), lambda found: np.zeros(self.mrf.n, dtype=np.int64))
        pairs = [pair for scope in self.tables for pair in itertools.pairwise(scope)]
        variables = components(np.array(pairs, dtype=np.int64).reshape(-1, 2), ~self.gone)
        home = Elimination(self.mrf.counts.tolist(), self.rules, variables, self.labels)
        return Reduced(self.constant, tuple(self._part(mine.tolist()) for mine in variables), home)

    def _look(self, i: int) -> None:
        for scope in self.near[i]:
            self.alone[i] = np.where(np.isinf(self._rows(i, scope)).all(1), np.inf, self.alone[i])
        keep = np.isfinite(self.alone[i])
        if not keep.any():
            self.constant = np.inf
            return
        if not keep.all():
            self._restrict(i, keep)
        keep = self._not_dominated(i)
        if not keep.all():
            self._restrict(i, keep)
        others = sorted({j for scope in self.near[i] for j in scope} - {i})
        if len(others) <= 2 and len(self.alone[i]) * np.prod([len(self.alone[j]) for j in others], initial=1.0) <= self.most:
            self._minimise_out(i, tuple(others))
        elif len(self.alone[i]) == 1:
            self._minimise_out(i, ())

    def _rows(self, i: int, scope: Scope) -> FloatArray:
        """The table of a factor, one row a label of i."""
        table = np.moveaxis(self.tables[scope], scope.index(i), 0)
        return table.reshape(len(table), -1)

    def _not_dominated(self, i: int) -> np.ndarray:
        """Labels that some other is not as good as everywhere."""
        count = len(self.alone[i])
        keep = np.ones(count, dtype=bool)
        rows = [self._rows(i, scope) for scope in self.near[i]]
        if count == 1 or count * max((r.size for r in rows), default=0) > self.most:
            return keep
        excess = self.alone[i][:, None] - self.alone[i]
        with np.errstate(invalid="ignore"):
            for r in rows:
                # Where both are forbidden neither is better.
                excess = excess + np.nan_to_num(r[:, None] - r, nan=np.inf, posinf=np.inf, neginf=-np.inf).min(-1)
        # One after another: of two labels that are equal everywhere one stays.
        for a in range(count):
            keep[a] = False
            keep[a] = not (excess[a, keep] >= 0).any()
        return keep

    def _restrict(self, i: int, keep: np.ndarray) -> None:
        """Drop labels of a variable."""
        self.alone[i], self.labels[i] = self.alone[i][keep], self.labels[i][keep]
        for scope in self.near[i]:
            self.tables[scope] = np.compress(keep, self.tables[scope], axis=scope.index(i))
            self.waiting |= dict.fromkeys(j for j in scope if j != i)

    def _minimise_out(self, i: int, others: Scope) -> None:
        """Replace a variable by its minimum over its label, for all labels of ``others``; a variable with one label needs none."""
        if not others and self.near[i]:
            for scope in tuple(self.near[i]):
                table = np.take(self._remove(scope), 0, axis=scope.index(i))
                self._add(tuple(j for j in scope if j != i), table)
        scopes = (i, *others)
        place = {j: k for k, j in enumerate(scopes)}
        tables = [aligned([place[j] for j in scope], self._remove(scope)) for scope in tuple(self.near[i])]
        shape = [len(self.alone[j]) for j in scopes]
        total = added(range(len(scopes)), shape, shape, [((0,), self.alone[i]), *tables])
        best = self.labels[i][total.argmin(0)]
        known = np.zeros([self.mrf.counts[j] for j in others], dtype=np.int64)
        known[np.ix_(*(self.labels[j] for j in others))] = best
        self.rules.append((i, others, known.ravel()))
        self.gone[i] = True
        self._add(others, total.min(0))

    def _add(self, scope: Scope, table: FloatArray) -> None:
        """Add a factor; its variables are to be looked at again."""
        if not scope:
            self.constant += float(table)
        elif len(scope) == 1:
            self.alone[scope[0]] = self.alone[scope[0]] + table
        elif scope in self.tables:
            self.tables[scope] = self.tables[scope] + table
        else:
            self.tables[scope] = table
            for j in scope:
                self.near[j].add(scope)
        self.waiting |= dict.fromkeys(scope)

    def _remove(self, scope: Scope) -> FloatArray:
        for j in scope:
            self.near[j].discard(scope)
        self.waiting |= dict.fromkeys(scope)
        return self.tables.pop(scope)

    def _part(self, mine: list[int]) -> Mrf:
        """The energy of some variables, without a constant."""
        place = {i: k for k, i in enumerate(mine)}
        scopes = sorted({scope for i in mine for scope in self.near[i]}, key=lambda scope: (len(scope), scope))
        larger = [(tuple([place[j] for j in scope]), self.tables[scope]) for scope in scopes]
        counts = np.array([len(self.labels[i]) for i in mine], dtype=np.int64)
        # Places ascend as the variables do, so that the factors stay in their order.
        return Mrf.of_factors(counts, (*(((k,), self.alone[i]) for k, i in enumerate(mine)), *larger))
