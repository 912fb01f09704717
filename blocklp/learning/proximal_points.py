r"""Nearest points of a whole model, to the accuracy of rounding, with the faces in which they lie.

.. math:: \arg\min_{x \in X} \tfrac12 |x - z|^2, \qquad
          X = \{x : (E x)_b \in X_b \; \forall b, \; l \le A x \le u\}

Where no two blocks share a variable, every block is projected onto on its own.  Otherwise the alternating
direction method of multipliers (Boyd et al. 2011) finds the faces, and the answer is computed from these:
the nearest point of the intersection of their affine hulls, and multipliers in their normal spaces.  It is
accepted where every block, asked for the nearest point of the copy plus its multiplier, returns the copy:
this holds at the answer only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasProx, supports
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.learning.faces import Copies, Faces, faces_at
from blocklp.learning.nearest import ActiveVertices, nearest

PENALTY = 1.0
"""Penalty of the copies, relative to the curvature of the objective, which is 1."""

RELAXATION = 1.6
"""Over-relaxation of the alternating direction method."""

FIRST, LONGER, MOST = 15, 1.5, 20_000
"""Passes before the faces are tried, how much longer the next turn is, and most passes of all turns."""


@dataclass
class ProximalStart:
    """What a later call for other targets of the same instances starts from.

    Attributes
    ----------
    points, duals : Tensor
        ``(batch, copies)``: nearest points of the blocks, and multipliers over the penalty.
    active : dict of str to ActiveVertices
        Vertices by names of groups.
    """

    points: Tensor
    duals: Tensor
    active: dict[str, ActiveVertices]


@dataclass
class ProximalAnswer:
    """Nearest points.

    Attributes
    ----------
    x : Tensor
        ``(batch, variables)`` float64.
    faces : Faces
        Where they lie.
    residual : Tensor
        ``(batch,)``: how far blocks move their copies, relative to what they are given.
    start : ProximalStart
        For a later call.
    """

    x: Tensor
    faces: Faces
    residual: Tensor
    start: ProximalStart


class ProximalPoints:
    """Nearest points of the one instance of a decomposition.

    Parameters
    ----------
    problem : Decomposition
        Of one instance, in float64; its costs are not read.
    tolerance : float
        Residual at which a point is accepted.
    """

    def __init__(self, problem: Decomposition, tolerance: float) -> None:
        self.copies, self.tolerance = Copies(problem), tolerance
        counts = problem.counts[0]
        self.weight = 1 + PENALTY * counts
        self.factor: Tensor | None = None
        if (matrix := self.copies.matrix) is not None:
            inner = (matrix / self.weight) @ matrix.T
            inner.diagonal().add_(1 / PENALTY)
            self.factor = torch.linalg.cholesky(inner)
        self.formulas = [self._has_formula(group) for group in problem.groups]

    def __repr__(self) -> str:
        if self.copies.separate:
            return "nearest points of separate blocks"
        return "nearest points by alternating directions, then faces"

    def solve(self, target: Tensor, start: ProximalStart | None = None) -> ProximalAnswer:
        """Find the nearest points.

        Parameters
        ----------
        target : Tensor
            ``(batch, variables)`` float64.
        start : ProximalStart, optional
            Of an earlier call, for other targets.

        Returns
        -------
        ProximalAnswer
            Points, faces, and how exact they are.
        """
        copies = self.copies
        if copies.separate:
            moved = copies.spread(target)
            points, faces = faces_at(copies, moved, None if start is None else start.active)
            x = torch.empty_like(target).scatter_(
                1, copies.problem.coupling.index.expand(len(target), -1), points
            )
            none = points[:, :0]
            return ProximalAnswer(
                x, faces, target.new_zeros(len(target)), ProximalStart(none, none, faces.active)
            )
        if start is None:
            points = self._projected(copies.spread(target), {})
            state = ProximalStart(points, torch.zeros_like(points), {})
        else:
            state = ProximalStart(start.points.clone(), start.duals.clone(), start.active)
        return self._alternate(target, state, warm=start is not None)

    def _alternate(self, target: Tensor, state: ProximalStart, *, warm: bool) -> ProximalAnswer:
        """Passes and tries of the faces, until all instances are accepted."""
        answer: ProximalAnswer | None = None
        rows = torch.arange(len(target), device=target.device)
        passes, turn = 0, 0 if warm else FIRST
        while True:
            state = self._passes(target, state, turn)
            passes += turn
            turn = max(FIRST, int(LONGER * turn))
            own = self._polished(target, state)
            if answer is None:
                answer = own
            else:
                answer = ProximalAnswer(
                    answer.x.index_copy_(0, rows, own.x),
                    answer.faces.put(rows, own.faces),
                    answer.residual.index_copy_(0, rows, own.residual),
                    _put(answer.start, rows, own.start),
                )
            keep = (own.residual > self.tolerance).nonzero()[:, 0]
            if not len(keep) or passes >= MOST:
                return answer
            rows, target, state = rows[keep], target[keep], _select(state, keep, own.start.active)

    def _passes(self, target: Tensor, state: ProximalStart, count: int) -> ProximalStart:
        """Some passes of the alternating direction method."""
        points, duals, active = state.points, state.duals, state.active
        for _ in range(count):
            x = self._joined(target, points - duals)
            relaxed = RELAXATION * self.copies.spread(x) + (1 - RELAXATION) * points
            moved = relaxed + duals
            points = self._projected(moved, active)
            duals = moved - points
        return ProximalStart(points, duals, active)

    def _joined(self, target: Tensor, copies: Tensor) -> Tensor:
        """The point near to the target and, with the penalty, to copies: ``(batch, variables)``."""
        x = (target + PENALTY * self.copies.collect(copies)) / self.weight
        if self.factor is None or self.copies.matrix is None:
            return x
        inner = torch.cholesky_solve((x @ self.copies.matrix.T).T, self.factor).T
        return x - (inner @ self.copies.matrix) / self.weight

    def _projected(self, moved: Tensor, active: dict[str, ActiveVertices]) -> Tensor:
        """Nearest points of all blocks and sides; vertices are noted where a type has no formula."""
        points, copies = torch.empty_like(moved), self.copies
        for group, formula in zip(copies.groups, self.formulas, strict=True):
            own, into = group.view(moved), group.view(points)
            ends = copies.intervals(group)
            if ends is not None:
                into.copy_(torch.minimum(torch.maximum(own, ends[0]), ends[1]))
            elif formula:
                into.copy_(_by_formula(group, own))
            else:
                active[group.name] = nearest(group.type, own.contiguous(), active.get(group.name))
                into.copy_(active[group.name].points())
        if copies.lower is not None and copies.upper is not None:
            own = moved[:, copies.in_blocks :]
            points[:, copies.in_blocks :] = torch.minimum(torch.maximum(own, copies.lower), copies.upper)
        return points

    def _polished(self, target: Tensor, state: ProximalStart) -> ProximalAnswer:
        """The answer that the present faces give, and whether it is one."""
        copies = self.copies
        x = self._joined(target, state.points - state.duals)
        moved = copies.spread(x) + state.duals
        points, faces = faces_at(copies, moved, state.active)
        away = faces.solve(copies.collect(faces.normal(copies.spread(target) - points)), target)
        x = target - away
        normal = faces.normal(PENALTY * (moved - points))
        rest = faces.solve(away - copies.collect(normal), target)
        normal = normal + faces.normal(copies.spread(rest))
        there = copies.spread(x)
        moved = there + normal / PENALTY
        nearest_points, final = faces_at(copies, moved, faces.active)
        size = moved.abs().amax(1).clamp(min=torch.finfo(x.dtype).tiny)
        residual = (nearest_points - there).abs().amax(1) / size
        start = ProximalStart(nearest_points, moved - nearest_points, final.active)
        return ProximalAnswer(x, faces, residual, start)

    def _has_formula(self, group: Group) -> bool:
        """Whether the type of a group projects by a formula where all coordinates count."""
        if not supports(group.type, HasProx):
            return False
        zero = self.weight.new_zeros(1, group.blocks, group.dim)
        return _by_formula(group, zero) is not None


def _by_formula(group: Group, own: Tensor) -> Tensor:
    """Nearest points of the blocks of a type with a proximal point, None where it has no formula."""
    ones = torch.ones(group.dim, dtype=torch.float64)
    assert group.prox is not None
    step = own.new_ones(len(own), 1, 1)
    return group.prox(torch.zeros_like(own), own.contiguous(), step, ones)  # type: ignore[return-value]


def _select(state: ProximalStart, rows: Tensor, active: dict[str, ActiveVertices]) -> ProximalStart:
    """The state of some instances, with vertices found since."""
    return ProximalStart(
        state.points[rows], state.duals[rows], {name: own.select(rows) for name, own in active.items()}
    )


def _put(state: ProximalStart, rows: Tensor, other: ProximalStart) -> ProximalStart:
    """The state with those of some instances in place of its own."""
    state.points[rows], state.duals[rows] = other.points, other.duals
    return ProximalStart(
        state.points,
        state.duals,
        {name: own.put(rows, other.active[name]) for name, own in state.active.items()},
    )
