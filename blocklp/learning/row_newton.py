r"""Nearest points of polytopes with known constraints, by Newton's method in the multipliers of their rows.

.. math:: \arg\min_x \tfrac12 |x - z|^2 \quad \text{subject to} \quad
          b \le x \le a, \quad l \le R x \le u

For multipliers :math:`\mu` of the rows, the minimiser is :math:`x = [z - R^\top \mu]_b^a`.  The dual is
concave and piecewise quadratic, with the gradient :math:`R x - u` where :math:`\mu > 0`, :math:`R x - l`
where :math:`\mu < 0`, and the generalised Hessian :math:`-R D R^\top`, where the diagonal matrix D is 1 for
variables strictly between their bounds (Li, Sun and Toh, *On the efficient computation of a projector over
the Birkhoff polytope*, Math. Program. 2020, for equations).  A step that is too long ends at the maximum
along it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition

MOST_ENTRIES, MOST_PAIRS, MOST_WORK = 2_000_000, 200_000, 1000
"""Largest system: rows times variables, pairs of entries in a column, cube of the rows over the variables."""

DENSE = 40
"""Products of all pairs of entries for each that is not zero, up to which matrix products are faster."""

SHIFT = 1e-9
"""What is added to diagonals, since rows may depend on each other; solutions are corrected for it once."""

NEAR = 1e-2
"""Multipliers go to zero at once that are up to this part of the residual, and whose row is off its side."""

TIGHT = 1e-12
"""Distance from its side up to which a row is tight, relative to its terms."""

FLAT = 1e-6
"""Slope at the end of a step, over that at its beginning, that does not tell the end from the maximum."""

MOST_STEPS = 100
"""Most steps: where the constraints leave no point, there is no end to them."""

EXACT = 1e-14
"""Residual at which nothing is left but rounding."""


class _Point(NamedTuple):
    """What multipliers lead to.

    Attributes
    ----------
    price : Tensor
        ``(batch, rows)``: the multipliers.
    x : Tensor
        ``(batch, variables)``: the minimisers.
    gradient : Tensor
        ``(batch, rows)``: of the dual; where it has a kink, the least subgradient.
    size : Tensor
        ``(batch,)``: largest number of target and minimiser.
    residual : Tensor
        ``(batch,)``: what is missed of the optimality conditions, over the size.
    """

    price: Tensor
    x: Tensor
    gradient: Tensor
    size: Tensor
    residual: Tensor

    def put(self, rows: Tensor, other: _Point) -> None:
        """Replace those of instances ``rows`` ``(k,)``."""
        for mine, given in zip(self, other, strict=True):
            mine[rows] = given

    def select(self, rows: Tensor) -> _Point:
        """Those of some instances."""
        return _Point(*(own[rows] for own in self))


class _NormalEquations(NamedTuple):
    """Systems for multipliers of tight rows, of which variables inside their bounds depend.

    Attributes
    ----------
    inside : Tensor
        ``(batch, variables)``: 1 where a variable is between its bounds, else 0.
    tight : Tensor
        ``(batch, rows)``: 1 where a row is at a side, else 0.
    gram : Tensor
        ``(batch, rows, rows)``: products of tight rows on the variables inside; 1 on other diagonals.
    factor : Tensor
        ``(batch, rows, rows)``: Cholesky factors, shifted by :data:`SHIFT`.
    """

    inside: Tensor
    tight: Tensor
    gram: Tensor
    factor: Tensor

    @classmethod
    def of(cls, system: RowSystem, inside: Tensor, tight: Tensor) -> _NormalEquations:
        """Factor the systems."""
        gram = system.gram(inside) * (tight[:, None] * tight[:, :, None])
        gram.diagonal(dim1=1, dim2=2).add_(1 - tight)
        shifted = gram.clone()
        shifted.diagonal(dim1=1, dim2=2).add_(SHIFT)
        return cls(inside, tight, gram, torch.linalg.cholesky_ex(shifted).L)

    def put(self, rows: Tensor, other: _NormalEquations) -> None:
        """Replace those of instances ``rows`` ``(k,)``."""
        for mine, given in zip(self, other, strict=True):
            mine[rows] = given

    def solve(self, right: Tensor) -> Tensor:
        """Solutions ``(batch, rows)`` of systems that may be singular, corrected for the factors' shift."""
        found = torch.cholesky_solve(right[:, :, None], self.factor)
        found = found + torch.cholesky_solve(right[:, :, None] - self.gram @ found, self.factor)
        return found[:, :, 0]


@dataclass(frozen=True)
class RowFace:
    """The faces of a polytope in which points of a batch lie.

    Attributes
    ----------
    system : RowSystem
        The polytope.
    inside : Tensor
        ``(batch, variables)``: 1 where a variable may move: it is between its bounds, or no multiplier holds
        it at one.
    tight : Tensor
        ``(batch, rows)``: 1 where a row is at a side.
    steps : list of (Tensor, _NormalEquations)
        Instances of Newton's steps and what these solved, which for most instances is that of their face.
    """

    system: RowSystem
    inside: Tensor
    tight: Tensor
    steps: list[tuple[Tensor, _NormalEquations]]

    @cached_property
    def equations(self) -> _NormalEquations:
        """The normal equations of the faces, factored where the steps did not."""
        if not self.steps or len(self.steps[0][0]) < len(self.inside):
            return _NormalEquations.of(self.system, self.inside, self.tight)
        found = self.steps[0][1]
        for rows, own in self.steps[1:]:
            found.put(rows, own)
        other = ((self.inside != found.inside).any(1) | (self.tight != found.tight).any(1)).nonzero()[:, 0]
        if len(other):
            found.put(other, _NormalEquations.of(self.system, self.inside[other], self.tight[other]))
        return found

    def along(self, direction: Tensor) -> Tensor:
        """The nearest direction within the face: ``(batch, variables)``."""
        free = direction * self.inside
        price = self.equations.solve(self.system.activities(free) * self.tight)
        return free - price @ self.system.matrix * self.inside


class RowSystem:
    """The polytope of a decomposition as bounds and rows.

    Parameters
    ----------
    matrix : Tensor
        ``(rows, variables)`` float64.
    lower, upper : Tensor
        ``(rows,)`` float64: sides, infinite for none.
    below, above : Tensor
        ``(variables,)`` float64: bounds, infinite for none.
    """

    def __init__(self, matrix: Tensor, lower: Tensor, upper: Tensor, below: Tensor, above: Tensor) -> None:
        norm = matrix.norm(dim=1)
        norm = torch.where(norm > 0, norm, 1.0)
        self.matrix, self.lower, self.upper = matrix / norm[:, None], lower / norm, upper / norm
        self.below, self.above, self.ranged = below, above, lower < upper
        self.sizes = self.matrix.abs().T
        # Pairs of entries of a column, one column after the other: the products of which R D R' is the sum.
        column, row = self.matrix.T.nonzero().T
        entry, counts = self.matrix[row, column], torch.bincount(column, minlength=len(below))
        many = counts[column]
        first = torch.repeat_interleave(many)
        own = torch.arange(len(first), device=first.device) - (many.cumsum(0) - many)[first]
        second = (counts.cumsum(0) - counts)[column[first]] + own
        self.column, self.place = column[first], row[first] * len(matrix) + row[second]
        self.product = entry[first] * entry[second]
        self.products: Tensor | None = None
        if len(matrix) ** 2 * len(below) <= DENSE * len(first):
            self.products = (self.matrix.T[:, :, None] * self.matrix.T[:, None]).flatten(1)

    @classmethod
    def of(cls, problem: Decomposition) -> RowSystem | None:
        """The system of one instance; None where a type states no constraints, or others are faster."""
        size, coupling, rows = problem.cost.shape[1], problem.coupling, problem.rows
        if coupling.maps or not coupling.indexed or any(g.constraints is None for g in problem.groups):
            return None
        systems = [(group, own) for group in problem.groups if (own := group.constraints) is not None]
        count = 0 if rows is None else rows.count
        count += sum(group.blocks * own.matrix.shape[2] for group, own in systems)
        if not count or count * size > MOST_ENTRIES or count**3 > MOST_WORK * size:
            return None
        matrix = problem.cost.new_zeros(count, size)
        lower, upper = problem.cost.new_zeros(2, count)
        below = torch.full_like(problem.cost[0], -math.inf)
        above, end = -below, 0
        if rows is not None:
            end = rows.count
            matrix.index_put_((rows.row, rows.column), rows.entry.to(matrix), accumulate=True)
            lower[:end], upper[:end] = rows.lower[0], rows.upper[0]
        for group, own in systems:
            scope = group.view(coupling.index)[0]
            if own.below is not None and own.above is not None:
                low, high = (side[0].to(below).expand(scope.shape) for side in (own.below, own.above))
                below.scatter_reduce_(0, scope.flatten(), low.flatten(), "amax")
                above.scatter_reduce_(0, scope.flatten(), high.flatten(), "amin")
            shape = group.blocks, own.matrix.shape[2]
            start, end = end, end + math.prod(shape)
            place = torch.arange(start, end, device=matrix.device).view(*shape, 1)
            entries = own.matrix[0].to(matrix).expand(*shape, -1)
            matrix.index_put_(
                (place.expand_as(entries), scope[:, None].expand_as(entries)), entries, accumulate=True
            )
            lower[start:end] = own.lower[0].to(matrix).expand(shape).flatten()
            upper[start:end] = own.upper[0].to(matrix).expand(shape).flatten()
        if int((matrix != 0).sum(0).square().sum()) > MOST_PAIRS:
            return None
        return cls(matrix, lower, upper, below, above)

    def activities(self, x: Tensor) -> Tensor:
        """R x: ``(batch, variables) -> (batch, rows)``."""
        return x @ self.matrix.T

    def gram(self, inside: Tensor) -> Tensor:
        r""":math:`R D R^\top` for diagonals ``(batch, variables)``: ``(batch, rows, rows)``."""
        rows = len(self.lower)
        if self.products is not None:
            return (inside @ self.products).view(-1, rows, rows)
        flat = inside.new_zeros(len(inside), rows * rows)
        return flat.index_add_(1, self.place, inside[:, self.column] * self.product).view(-1, rows, rows)

    def nearest(
        self, target: Tensor, price: Tensor | None, tolerance: float, most: int
    ) -> tuple[Tensor, RowFace, Tensor, Tensor]:
        """Nearest points, and multipliers of the rows at them.

        Parameters
        ----------
        target : Tensor
            ``(batch, variables)`` float64.
        price : Tensor or None
            ``(batch, rows)``: multipliers to start from, by default zero.
        tolerance : float
            Relative residual at which an instance ends that gets no nearer.
        most : int
            Most steps.

        Returns
        -------
        points : Tensor
            ``(batch, variables)`` float64.
        face : RowFace
            Where they lie.
        residual : Tensor
            ``(batch,)``: what they miss of the optimality conditions, over the largest of their numbers.
        price : Tensor
            ``(batch, rows)``: the multipliers.
        """
        if price is None:
            price = target.new_zeros(len(target), len(self.lower))
        found = self._evaluated(target, price)
        left = (found.residual > EXACT).nonzero()[:, 0]
        here, steps = found.select(left), []
        for _ in range(min(most, MOST_STEPS)):
            if not len(left):
                break
            here, equations = self._stepped(target[left], here)
            steps.append((left, equations))
            before = found.residual[left]
            stalled = (before <= tolerance) & (here.residual >= before)
            if bool(stalled.any()):
                left, here = left[~stalled], here.select(~stalled)
            found.put(left, here)
            open_ = here.residual > EXACT
            if not bool(open_.all()):
                left, here = left[open_], here.select(open_)
        activity = self.activities(found.x)
        reach = TIGHT * (found.x.abs() @ self.sizes)
        paid = (
            found.price.abs() > 2 * (found.residual * found.size)[:, None]
        )  # more than a loose row's can be
        tight = paid | (activity >= self.upper - reach) | (activity <= self.lower + reach)
        face = RowFace(self, self._free(target, found).to(target), tight.to(target), steps)
        return found.x, face, found.residual, found.price

    def _evaluated(self, target: Tensor, price: Tensor) -> _Point:
        """Minimisers for multipliers, and what they miss."""
        x = (target - price @ self.matrix).clamp(self.below, self.above)
        activity = self.activities(x)
        size = torch.maximum(target.abs().amax(1), x.abs().amax(1)).clamp(min=torch.finfo(x.dtype).tiny)
        missed = activity - (activity + price).clamp(self.lower, self.upper)
        nearest = activity.clamp(self.lower, self.upper)
        side = torch.where(price > 0, self.upper, torch.where(price < 0, self.lower, nearest))
        return _Point(price, x, activity - side, size, missed.abs().amax(1) / size)

    def _free(self, target: Tensor, found: _Point) -> Tensor:
        """Where variables are between their bounds, or no multiplier holds them at one."""
        moved = target - found.price @ self.matrix
        reach = TIGHT * found.size[:, None]
        return (moved >= self.below - reach) & (moved <= self.above + reach)

    def _stepped(self, target: Tensor, here: _Point) -> tuple[_Point, _NormalEquations]:
        """The point after a Newton step, and the equations of the step.

        As in two-metric projection (Bertsekas, SIAM J. Control Optim. 1982), multipliers at zero stay there
        where the dual falls on both sides, and small ones go there at once where it rises towards zero.
        """
        small = here.price.abs() <= NEAR * (here.residual * here.size)[:, None]
        back = small & (here.price * here.gradient < 0) & self.ranged
        price = torch.where(back, 0.0, here.price)
        slope = torch.where(back, 0.0, here.gradient)
        inside = ((here.x > self.below) & (here.x < self.above)).to(target)
        equations = _NormalEquations.of(self, inside, ((price != 0) | (slope != 0)).to(target))
        step = equations.solve(slope)
        step = torch.where((price == 0) & self.ranged & (step * slope <= 0), 0.0, step)
        rise = (step * slope).sum(1)
        found = self._evaluated(target, price + step)
        across = self.ranged & (price * step < 0) & (price * found.price <= 0)
        long = across.any(1) | ((step * found.gradient).sum(1) < -FLAT * rise)
        if bool(long.any()):
            rows = long.nonzero()[:, 0]
            shorter = self._to_maximum(target[rows], price[rows], step[rows], rise[rows])
            found.put(rows, self._evaluated(target[rows], price[rows] + shorter))
        return found, equations

    def _to_maximum(self, target: Tensor, price: Tensor, step: Tensor, rise: Tensor) -> Tensor:
        """The multiple of a step that leads to the maximum of the dual along it: ``(batch, rows)``.

        The slope of the dual along a step is piecewise linear: it bends where a variable leaves a bound or
        gets to one, and falls where a multiplier changes its sign, as the other side of its row counts then.
        """
        start, change = target - price @ self.matrix, -step @ self.matrix
        ends = [(bound - start) / change for bound in (self.below, self.above)]
        crossing = torch.where((price * step < 0) & self.ranged, -price / step, math.inf)
        fall = torch.where(crossing.isfinite(), step.abs() * (self.upper - self.lower), 0.0)
        bend, none = torch.where(change == 0, 0.0, -change.square()), torch.zeros_like(change)
        at = torch.cat([torch.minimum(*ends), torch.maximum(*ends), crossing], 1)
        at = at.nan_to_num(math.inf, math.inf, -math.inf)
        bends = torch.cat([bend, -bend, torch.zeros_like(step)], 1)
        falls = torch.cat([none, none, fall], 1)
        begun = at <= 0
        curve = torch.where(begun, bends, 0.0).sum(1, keepdim=True)
        at, order = at.clamp(min=0).sort(1)
        bends, falls = (torch.where(begun, 0.0, own).gather(1, order) for own in (bends, falls))
        # The curvature up to each breakpoint, and the slope behind it.
        curves = torch.cat([curve, curve + bends.cumsum(1)[:, :-1]], 1)
        gaps = torch.diff(at, dim=1, prepend=at.new_zeros(len(at), 1)).nan_to_num(math.inf)
        slopes = torch.where(curves < 0, curves * gaps, 0.0).cumsum(1) - falls.cumsum(1) + rise[:, None]
        ended = slopes <= 0
        first = torch.where(ended.any(1), ended.long().argmax(1), at.shape[1] - 1)[:, None]
        since = torch.cat([at.new_zeros(len(at), 1), at], 1).gather(1, first)
        slope = torch.cat([rise[:, None], slopes], 1).gather(1, first)
        curve = curves.gather(1, first)
        within = torch.where(curve < 0, since - slope / curve, math.inf)
        length = torch.minimum(within, at.gather(1, first))
        length = torch.where(length.isfinite(), length, 1.0)
        return torch.where(crossing == length, -price, length * step)
