r"""Nearest points of a whole model, to the accuracy of rounding, with the faces in which they lie.

.. math:: \arg\min_{x \in X} \tfrac12 |x - z|^2, \qquad
          X = \{x : (E x)_b \in X_b \; \forall b, \; l \le A x \le u\}

Where no two blocks share a variable, every block is projected onto on its own.  Where all types state their
constraints, and these have few rows, Newton's method finds multipliers of the rows
(:mod:`blocklp.learning.row_newton`).  Otherwise the alternating direction method of multipliers (Boyd et al.
2011) finds the faces, and the answer is computed from these:
the nearest point of the intersection of their affine hulls, and multipliers in their normal spaces.  It is
accepted where every block, asked for the nearest point of the copy plus its multiplier, returns the copy:
this holds at the answer only.  Until then it is a semismooth Newton step, which is taken where it gets nearer
to a fixed point of the passes (Ali, Wong and Kolter, ICML 2017).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.learning.faces import Copies, Faces, faces_at
from blocklp.learning.nearest import ActiveVertices
from blocklp.learning.row_newton import RowFace, RowSystem

LARGEST = 1e4
"""Largest penalty of the copies, and one over the least, relative to the curvature of the objective: 1."""

EVERY = 24
"""Passes between changes of penalties."""

CHANGE = 10.0
"""Most by which a penalty changes at once."""

RELAXATION = 1.6
"""Over-relaxation of the alternating direction method."""

DECREASE = 0.9
"""Part of the distance from a fixed point at which an answer of the faces replaces the passes' iterate."""

WARM, FIRST, LONGER = 8, 24, 2.0
"""Passes before the faces are tried, from a warm start and else, and how much longer the next turn is."""


@dataclass
class ProximalStart:
    """What a later call for other targets of the same instances starts from.

    Attributes
    ----------
    points, duals : Tensor
        ``(batch, copies)``: nearest points of the blocks, and multipliers over the penalty; for Newton's
        method no points, and multipliers of the rows ``(batch, rows)``.
    penalty : Tensor
        ``(batch,)``: penalty of the copies.
    active : dict of str to ActiveVertices
        Vertices by names of groups.
    """

    points: Tensor
    duals: Tensor
    penalty: Tensor
    active: dict[str, ActiveVertices]


@dataclass
class ProximalAnswer:
    """Nearest points.

    Attributes
    ----------
    x : Tensor
        ``(batch, variables)`` float64.
    faces : Faces or RowFace
        Where they lie.
    residual : Tensor
        ``(batch,)``: how far blocks move their copies, or rows are from their sides, relative to what they
        are given; of blocks that share nothing, the Frank-Wolfe gap relative to its terms.
    start : ProximalStart
        For a later call.
    """

    x: Tensor
    faces: Faces | RowFace
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
    most : int
        Most passes of the alternating direction method.
    """

    def __init__(self, problem: Decomposition, tolerance: float, most: int) -> None:
        self.copies, self.tolerance, self.most = Copies(problem), tolerance, most
        self.system = None if self.copies.separate else RowSystem.of(problem)
        self.square: Tensor = problem.counts
        self.axes: Tensor | None = None
        if (matrix := self.copies.matrix) is not None:
            self.square, self.axes = torch.linalg.eigh(problem.counts[0].diag() + matrix.T @ matrix)

    def __repr__(self) -> str:
        if self.copies.separate:
            return "nearest points of separate blocks"
        if self.system is not None:
            return "nearest points by Newton's method in multipliers"
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
            none, residual = points[:, :0], target.new_zeros(len(target))
            for own in faces.active.values():
                assert own.gap is not None
                if own.gap.numel():
                    residual = torch.maximum(residual, own.gap.amax(1))
            return ProximalAnswer(x, faces, residual, ProximalStart(none, none, residual, faces.active))
        if self.system is not None:
            return self._by_rows(self.system, target, start)
        if start is None:
            state = self._cold(target)
        else:
            state = ProximalStart(start.points.clone(), start.duals.clone(), start.penalty, start.active)
        return self._alternate(target, state, warm=start is not None)

    def _by_rows(self, system: RowSystem, target: Tensor, start: ProximalStart | None) -> ProximalAnswer:
        """By Newton's method; by alternating directions where that ends before it is there."""
        before = None if start is None else start.duals
        x, face, residual, price = system.nearest(target, before, self.tolerance, self.most)
        kept = ProximalStart(price[:, :0], price, torch.zeros_like(residual), {})
        if bool((residual <= self.tolerance).all()):
            return ProximalAnswer(x, face, residual, kept)
        return replace(self._alternate(target, self._cold(target), warm=False), start=kept)

    def _alternate(self, target: Tensor, state: ProximalStart, *, warm: bool) -> ProximalAnswer:
        """Passes and tries of the faces, until all instances are accepted."""
        answer: ProximalAnswer | None = None
        faces: Faces | None = None
        rows = torch.arange(len(target), device=target.device)
        passes, turn = 0, min(WARM if warm else FIRST, self.most)
        while True:
            state = self._passes(target, state, turn)
            passes += turn
            own, there, better = self._polished(target, state)
            if answer is None or faces is None:
                answer, faces = own, there
            else:
                faces = faces.put(rows, there)
                answer = ProximalAnswer(
                    answer.x.index_copy_(0, rows, own.x),
                    faces,
                    answer.residual.index_copy_(0, rows, own.residual),
                    _put(answer.start, rows, own.start),
                )
            open_ = ~(own.residual <= self.tolerance)
            if not bool(open_.any()) or passes >= self.most:
                return answer
            turn = min(max(FIRST, int(LONGER * turn)), self.most - passes)
            pairs = (own.start.points, state.points), (own.start.duals, state.duals)
            points, duals = (torch.where(better[:, None], new, old) for new, old in pairs)
            keep = open_.nonzero()[:, 0]
            state = _select(ProximalStart(points, duals, state.penalty, own.start.active), keep)
            rows, target = rows[keep], target[keep]

    def _passes(self, target: Tensor, state: ProximalStart, count: int) -> ProximalStart:
        """Some passes of the alternating direction method."""
        points, duals, penalty, active = state.points, state.duals, state.penalty, state.active
        for k in range(count):
            x = self._joined(target, points - duals, penalty)
            there, before = self.copies.spread(x), points
            moved = RELAXATION * there + (1 - RELAXATION) * points + duals
            points = self.copies.projected(moved, active)
            duals = moved - points
            if (k + 1) % EVERY == 0:
                scale = self._balance(there - points, points - before, penalty)
                penalty, duals = penalty * scale, duals / scale[:, None]
        return ProximalStart(points, duals, penalty, active)

    def _balance(self, apart: Tensor, change: Tensor, penalty: Tensor) -> Tensor:
        """By how much penalties change, so that primal and dual residuals get alike: ``(batch,)``."""
        primal, dual = apart.norm(dim=1), penalty * self.copies.collect(change).norm(dim=1)
        least = torch.finfo(penalty.dtype).tiny
        ratio = ((primal + least) / (dual + least)).sqrt().clamp(1 / CHANGE, CHANGE)
        scale: Tensor = (penalty * ratio).clamp(1 / LARGEST, LARGEST) / penalty
        return scale

    def _cold(self, target: Tensor) -> ProximalStart:
        """Where passes start: the target's copies moved into their blocks, and penalties that move as far."""
        copies = self.copies.spread(target)
        points = self.copies.projected(copies, {})
        far = (copies - points).norm(dim=1) / points.norm(dim=1).clamp(min=torch.finfo(points.dtype).tiny)
        return ProximalStart(points, torch.zeros_like(points), far.clamp(1.0, LARGEST), {})

    def _joined(self, target: Tensor, copies: Tensor, penalty: Tensor) -> Tensor:
        """The point near to the target and, with the penalty, to copies: ``(batch, variables)``."""
        weight = penalty[:, None]
        x = target + weight * self.copies.collect(copies)
        if self.axes is None:
            return x / (1 + weight * self.square)
        return (x @ self.axes / (1 + weight * self.square)) @ self.axes.T

    def _polished(self, target: Tensor, state: ProximalStart) -> tuple[ProximalAnswer, Faces, Tensor]:
        """The answer that the present faces give, these, and whether it is nearer to a fixed point."""
        copies = self.copies
        penalty = state.penalty
        x = self._joined(target, state.points - state.duals, penalty)
        moved = copies.spread(x) + state.duals
        points, faces = faces_at(copies, moved, state.active)
        before = self._distance(target, points, moved, penalty)
        away = faces.solve(copies.collect(faces.normal(copies.spread(target) - points)), target)
        x = target - away
        normal = faces.normal(penalty[:, None] * (moved - points))
        rest = faces.solve(away - copies.collect(normal), target)
        normal = normal + faces.normal(copies.spread(rest))
        there = copies.spread(x)
        moved = there + normal / penalty[:, None]
        active = dict(faces.active)
        nearest_points = self.copies.projected(moved, active)
        size = moved.abs().amax(1).clamp(min=torch.finfo(x.dtype).tiny)
        residual = (nearest_points - there).abs().amax(1) / size
        start = ProximalStart(nearest_points, moved - nearest_points, penalty, active)
        better = self._distance(target, nearest_points, moved, penalty) < DECREASE * before
        return ProximalAnswer(x, faces, residual, start), faces, better

    def _distance(self, target: Tensor, points: Tensor, moved: Tensor, penalty: Tensor) -> Tensor:
        """How far a pass would move what it is given, copies whose nearest points are known: ``(batch,)``."""
        x = self._joined(target, 2 * points - moved, penalty)
        far: Tensor = (self.copies.spread(x) - points).norm(dim=1)
        return far


def _select(state: ProximalStart, rows: Tensor) -> ProximalStart:
    """The state of some instances."""
    active = {name: own.select(rows) for name, own in state.active.items()}
    return ProximalStart(state.points[rows], state.duals[rows], state.penalty[rows], active)


def _put(state: ProximalStart, rows: Tensor, other: ProximalStart) -> ProximalStart:
    """The state with those of some instances in place of its own."""
    state.points[rows], state.duals[rows] = other.points, other.duals
    penalty = state.penalty.index_copy(0, rows, other.penalty)
    active = {name: own.put(rows, other.active[name]) for name, own in state.active.items()}
    return ProximalStart(state.points, state.duals, penalty, active)
