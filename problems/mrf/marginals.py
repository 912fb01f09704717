"""Where the relaxation of an energy keeps the marginals of which variables, and its primal points."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.language.expression import View
from blocklp.oracles.joint import Joint
from blocklp.problems.mrf.heuristics import Conditionals, descend
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.polytope import rounded_tables
from blocklp.problems.qpbo.arrays import IntArray

Scope = tuple[int, ...]

REPAIR_ROUNDS = 20
"""Rounds of descent at each check."""


class Marginals(Mapping[Scope, View]):
    """Variables of the energy, ascending, to the view of their marginals, the last variable's label fastest.

    Of single variables, factors and clusters.  The marginals of some variables are neighbouring columns.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    model : Model
        Its relaxation.

    Attributes
    ----------
    tables : dict
        Label counts of variables to the variables ``(count, order)`` int64 and the first columns ``(count,)`` of their marginals.
    """

    def __init__(self, mrf: Mrf, model: bl.Model) -> None:
        self.mrf, self.model = mrf, model
        self.tables: dict[Scope, tuple[Tensor, Tensor]] = {}
        self._starts: dict[Scope, int] | None = None
        self._known = 0

    def append(self, scopes: IntArray, first: Tensor) -> None:
        """Note the first columns ``(count,)`` of variables ``(count, order)`` with the same label counts."""
        shape = tuple(self.mrf.counts[scopes[0]].tolist())
        nodes, known = self.tables.get(shape, (torch.zeros(0, len(shape), dtype=torch.long), torch.zeros(0, dtype=torch.long)))
        self.tables[shape] = torch.cat([nodes, torch.tensor(scopes)]), torch.cat([known, first])
        self._starts, self._known = None, self._known + math.prod(shape) * len(scopes)

    @property
    def starts(self) -> dict[Scope, int]:
        """Variables to the first column of their marginals."""
        if self._starts is None:
            self._starts = {}
            for nodes, first in self.tables.values():
                self._starts.update(zip(map(tuple, nodes.tolist()), first.tolist(), strict=True))
        return self._starts

    def columns(self, scopes: IntArray) -> Tensor:
        """Columns ``(count, size)`` of the marginals of variables ``(count, order)`` with the same label counts.

        Raises
        ------
        KeyError
            Some have none.
        """
        shape, given = tuple(self.mrf.counts[scopes[0]].tolist()), torch.tensor(scopes)
        nodes, first = self.tables[shape]
        if len(shape) == 1:
            first = first[torch.searchsorted(nodes[:, 0].contiguous(), given[:, 0].contiguous())]
        elif not torch.equal(nodes, given):
            first = torch.tensor([self.starts[scope] for scope in map(tuple, scopes.tolist())])
        return spread(first, math.prod(shape))

    def __getitem__(self, scope: Scope) -> View:
        start = self.starts[scope]
        return View(self.model, f"marginals of {scope}", torch.arange(start, start + int(np.prod(self.mrf.counts[list(scope)]))))

    def __iter__(self) -> Iterator[Scope]:
        return iter(self.starts)

    def __len__(self) -> int:
        return sum(len(first) for _, first in self.tables.values())

    @property
    def upper(self) -> Tensor:
        """Upper bounds of all variables of the model, in a row: 0 for labels that a hard constraint forbids."""
        return torch.cat([v.upper.reshape(-1) for v in self.model.variables.values()])

    @property
    def owner(self) -> Tensor:
        """The variable of the energy whose own marginals begin at a column, -1 elsewhere: ``(variables,)``."""
        found = torch.full((self.model.size,), -1)
        for shape, (nodes, first) in self.tables.items():
            if len(shape) == 1:
                found[first] = nodes[:, 0]
        return found

    def learn(self) -> None:
        """Note the marginals of clusters that joined the model since."""
        if self._known == self.model.size:
            return
        known, owner, starts = self._known, self.owner, dict(self.starts)
        made: dict[Scope, dict[Scope, int]] = defaultdict(dict)
        for blocks in self.model.blocks:
            if not isinstance(blocks.type, Joint):
                continue
            parts, begins = blocks.type.parts, list(itertools.accumulate(blocks.type.lengths, initial=0))[:-1]
            for row in blocks.scope[blocks.scope[:, -1] >= known][:, begins].tolist():
                # Single variables come first.
                variables = owner[row[: len(blocks.type.sizes)]].tolist()
                for part, first in zip(parts, row, strict=True):
                    scope = tuple(variables[k] for k in part)
                    if scope not in starts:
                        made[tuple(blocks.type.sizes[k] for k in part)][scope] = first
        for new in made.values():
            self.append(np.array(list(new)), torch.tensor(list(new.values())))


def spread(first: Tensor, size: int) -> Tensor:
    """Neighbouring columns ``(count, size)`` from the first ones ``(count,)``."""
    return first[:, None] + torch.arange(size)


class Points:
    """Primal points of a relaxation from labels and from iterates; marginals of clusters that join the model included.

    Parameters
    ----------
    views : Marginals
        Where the model keeps its marginals.

    Attributes
    ----------
    descents : Deadline
        When labellings near iterates are no longer improved; never, by default.
    """

    def __init__(self, views: Marginals) -> None:
        self.views, self.mrf, self.descents = views, views.mrf, bl.Deadline()
        self.conditionals: dict[torch.device, Conditionals] = {}
        self.size = 0
        self._look()

    def _look(self) -> None:
        """Lay out variables by the shapes of their marginals."""
        if self.size == self.views.model.size:
            return
        self.views.learn()
        assert self.views.model.objective is not None
        self.size = self.views.model.size
        self.forbidden = self.views.upper == 0
        self._cost = self.views.model.objective.evaluate()[0][0]
        #: Shapes to variables ``(count, order)`` and columns ``(count, size)``, single variables first.
        self.rows = {
            shape: (nodes, spread(first, math.prod(shape)))
            for shape, (nodes, first) in sorted(self.views.tables.items(), key=lambda item: len(item[0]))
        }

    @property
    def cost(self) -> Tensor:
        """Costs of all variables: ``(variables,)``."""
        self._look()
        return self._cost

    def of_labels(self, labels: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """The point ``(batch, variables)`` of labels ``(batch, n)``."""
        self._look()
        point = torch.zeros(len(labels), self.size, dtype=dtype, device=labels.device)
        for shape, (nodes, columns) in self.rows.items():
            position = labels[:, nodes[:, 0]]
            for axis in range(1, len(shape)):
                position = position * shape[axis] + labels[:, nodes[:, axis]]
            point.scatter_(1, columns.to(labels.device)[torch.arange(len(nodes)), position], 1.0)
        return point

    def repaired(self, x: Tensor) -> Tensor:
        """Return a labelling near an iterate ``(batch, variables)`` or, in pairwise models, the iterate with rounded tables.

        The cheaper one counts.
        """
        self._look()
        candidates = [self._labelled(x)]
        if max(map(len, self.rows)) <= 2:
            candidates.append(self._fractional(x))
        forbidden = self.forbidden.to(x.device)
        values = torch.stack([(c @ self.cost.to(c)).masked_fill((c[:, forbidden] > 1e-9).any(1), torch.inf) for c in candidates])
        return torch.stack(candidates)[values.argmin(0), torch.arange(len(x), device=x.device)]

    def _labelled(self, x: Tensor) -> Tensor:
        mrf = self.mrf
        marginals = x.new_zeros(len(x), mrf.n, int(mrf.counts.max())).to(torch.float64)
        for shape, (nodes, columns) in self.rows.items():
            if len(shape) == 1:
                marginals[:, nodes[:, 0], : shape[0]] = x[:, columns].to(torch.float64)
        labels = marginals.argmax(-1)
        if not self.descents.over():
            if x.device not in self.conditionals:
                self.conditionals[x.device] = Conditionals(mrf, x.device)
            labels = descend(mrf, labels, REPAIR_ROUNDS, self.conditionals[x.device], time_limit=self.descents).labels
        return self.of_labels(labels, x.dtype)

    def _fractional(self, x: Tensor) -> Tensor:
        point = x.clamp(0, 1)
        point[:, self.forbidden] = 0
        for shape, (nodes, index) in self.rows.items():
            if len(shape) == 1:
                point[:, index] = point[:, index] / point[:, index].sum(-1, keepdim=True).clamp(min=1e-30)
                continue
            ends = [self.views.columns(nodes[:, [axis]].numpy()) for axis in (0, 1)]
            table = point[:, index].reshape(len(point), -1, *shape)
            point[:, index] = rounded_tables(table, point[:, ends[0]], point[:, ends[1]]).flatten(-2)
        return point
