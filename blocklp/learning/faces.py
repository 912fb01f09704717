r"""Copies of a decomposition in one Euclidean space, and the faces of blocks and rows in which points lie.

With the copies :math:`E x` of a point (those of every block, and the activities of rows whose coefficients
have norm 1) and the orthogonal projectors :math:`P_b` onto the directions :math:`T_b` within the faces,

.. math:: T = \{d : (I - P) E d = 0\} = \ker M, \qquad M = E^\top (I - P) E,

are the directions in which a point moves within all faces at once.  Projections onto T take conjugate
gradients on M, which stay in its range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasProx, constraints_of, supports
from blocklp.blocks.contract import Constraints
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.learning.nearest import ActiveVertices, leave_out, nearest, tangents

CONVERGED = 1e-15
"""Residual at which conjugate gradients end, relative to the numbers that it was computed from."""

FLAT = 1e-11
"""Curvature of a unit direction up to which it lies within all faces, so that rounding led there."""

MOST_STEPS = 2000
"""Most steps of conjugate gradients."""

TIGHT = 1e-13
"""Distance from its side up to which a row of a block is tight, relative to its terms."""


class Copies:
    """Copies and rows of the one instance of a decomposition, for any number of points.

    Parameters
    ----------
    problem : Decomposition
        Of one instance, in float64.

    Attributes
    ----------
    groups : tuple of Group
        The blocks.
    count : int
        Number of copies, rows included.
    matrix : Tensor or None
        ``(rows, variables)``: rows whose coefficients have norm 1.
    lower, upper : Tensor or None
        ``(rows,)``: their sides.
    """

    def __init__(self, problem: Decomposition) -> None:
        self.problem, self.groups, self.rows = problem, problem.groups, problem.rows
        self.variables, self.in_blocks, self.count = problem.cost.shape[1], problem.in_blocks, problem.copies
        self.matrix = self.lower = self.upper = None
        if self.rows is not None:
            matrix = problem.cost.new_zeros(self.rows.count, self.variables)
            at = self.rows.row, self.rows.column
            matrix.index_put_(at, self.rows.entry.to(matrix), accumulate=True)
            norm = matrix.norm(dim=1)
            norm = torch.where(norm > 0, norm, 1.0)
            self.matrix = matrix / norm[:, None]
            self.lower, self.upper = self.rows.lower[0] / norm, self.rows.upper[0] / norm

    @cached_property
    def separate(self) -> bool:
        """Whether no two blocks share a variable, and there are no rows."""
        return self.rows is None and not self.problem.coupling.maps and bool((self.problem.counts <= 1).all())

    def spread(self, x: Tensor) -> Tensor:
        """Copies of points: ``(batch, variables) -> (batch, copies)``."""
        copies = self.problem.coupling.spread(x)
        return copies if self.matrix is None else torch.cat([copies, x @ self.matrix.T], 1)

    def collect(self, copies: Tensor) -> Tensor:
        """The adjoint: ``(batch, copies) -> (batch, variables)``."""
        total = self.problem.coupling.collect(copies[:, : self.in_blocks])
        return total if self.matrix is None else total + copies[:, self.in_blocks :] @ self.matrix

    @cached_property
    def formulas(self) -> frozenset[str]:
        """Names of the groups whose type projects by a formula where all coordinates count."""
        zero = self.problem.cost.new_zeros(1, self.count)
        return frozenset(
            g.name for g in self.groups if supports(g.type, HasProx) and _formula(g, zero) is not None
        )

    @cached_property
    def systems(self) -> dict[str, Constraints]:
        """Constraints of groups with a formula that are bounds and one row at most: points tell the faces."""
        found = {}
        for group in self.groups:
            own = constraints_of(group.type) if group.name in self.formulas else None
            if own is not None and own.below is not None and own.matrix.shape[2] <= 1:
                matrix, lower, upper = (
                    side.to(self.problem.cost) for side in (own.matrix, own.lower, own.upper)
                )
                rows = Constraints(matrix, lower, upper, own.below, own.above)
                found[group.name] = rows.bounds_on(group.coupled.device)
        return found

    def projected(self, moved: Tensor, active: dict[str, ActiveVertices]) -> Tensor:
        """Nearest points of all blocks and sides.

        Parameters
        ----------
        moved : Tensor
            ``(batch, copies)`` float64.
        active : dict of str to ActiveVertices
            Vertices to start from, by names of groups without a formula; replaced by those at the end.

        Returns
        -------
        Tensor
            ``(batch, copies)``.
        """
        points = torch.empty_like(moved)
        for group in self.groups:
            if group.name in self.formulas:
                own = _formula(group, moved)
                assert own is not None
            else:
                active[group.name] = nearest(
                    group.type, group.view(moved).contiguous(), active.get(group.name)
                )
                own = active[group.name].points()
            group.view(points).copy_(own)
        if self.lower is not None and self.upper is not None:
            own = moved[:, self.in_blocks :]
            points[:, self.in_blocks :] = torch.minimum(torch.maximum(own, self.lower), self.upper)
        return points


def _formula(group: Group, moved: Tensor) -> Tensor | None:
    """Nearest points ``(batch, blocks, dim)`` by the formula of a type, None where it has none."""
    assert group.prox is not None
    own = group.view(moved).contiguous()
    every = torch.ones(group.dim, dtype=torch.float64)
    return group.prox(torch.zeros_like(own), own, own.new_ones(len(own), 1, 1), every)


@dataclass(frozen=True)
class Faces:
    """The faces of all blocks and rows in which points of a batch lie.

    Attributes
    ----------
    copies : Copies
        The blocks and rows.
    active : dict of str to ActiveVertices
        Vertices that span the faces, of groups without a formula or with several rows.
    inside : dict of str to Tensor
        ``(batch, blocks, dim)``: 1 where a coordinate is strictly between its bounds, of the others.
    rows : dict of str to Tensor
        ``(batch, blocks, dim)``: the row of a block on these coordinates, of norm 1, where it is tight,
        and zero where it is not; of those of the others that have a row.
    tight : Tensor or None
        ``(batch, rows)``: 1 where a row is at a side.
    """

    copies: Copies
    active: dict[str, ActiveVertices]
    inside: dict[str, Tensor]
    rows: dict[str, Tensor]
    tight: Tensor | None

    @cached_property
    def bases(self) -> dict[str, Tensor]:
        """Orthonormal directions ``(batch, blocks, places, dim)`` of the faces that vertices span."""
        return {name: tangents(own) for name, own in self.active.items()}

    def put(self, rows: Tensor, other: Faces) -> Faces:
        """With those of instances ``rows`` ``(k,)`` in place of its own."""
        active = {name: own.put(rows, other.active[name]) for name, own in self.active.items()}
        for mine, given in ((self.inside, other.inside), (self.rows, other.rows)):
            for name, own in mine.items():
                own[rows] = given[name]
        if self.tight is not None and other.tight is not None:
            self.tight[rows] = other.tight
        return replace(self, active=active)

    def normal(self, copies: Tensor) -> Tensor:
        """The parts of copies ``(batch, copies)`` that are orthogonal to the faces."""
        out = torch.empty_like(copies)
        for group in self.copies.groups:
            own, into = group.view(copies), group.view(out)
            if group.name in self.inside:
                torch.mul(own, 1 - self.inside[group.name], out=into)
                if (row := self.rows.get(group.name)) is not None:
                    into.addcmul_(row, (row * own).sum(-1, keepdim=True))
                continue
            into.copy_(leave_out(self.bases[group.name], own))
        if self.tight is not None:
            out[:, self.copies.in_blocks :] = copies[:, self.copies.in_blocks :] * self.tight
        return out

    def apply(self, x: Tensor) -> Tensor:
        """M x: ``(batch, variables)``."""
        return self.copies.collect(self.normal(self.copies.spread(x)))

    def along(self, direction: Tensor) -> Tensor:
        """The nearest direction within all faces: the projection of ``(batch, variables)`` onto T."""
        if self.copies.separate:
            return direction - self.apply(direction)
        return direction - self.solve(self.apply(direction), direction)

    def solve(self, right: Tensor, terms: Tensor) -> Tensor:
        """The least solution x of M x = r, for r in the range of M up to rounding.

        Parameters
        ----------
        right : Tensor
            ``(batch, variables)``: r.
        terms : Tensor
            ``(batch, variables)``: numbers of the size of those that r was computed from.

        Returns
        -------
        Tensor
            ``(batch, variables)``.
        """
        x, residual = torch.zeros_like(right), right.clone()
        direction, size = residual.clone(), (residual * residual).sum(1)
        goal = CONVERGED**2 * (terms * terms).sum(1)
        for _ in range(min(MOST_STEPS, 4 * right.shape[1] + 20)):
            open_ = size > goal
            if not bool(open_.any()):
                break
            product = self.apply(direction)
            curvature = (direction * product).sum(1)
            inside = curvature > FLAT * (direction * direction).sum(1)
            step = torch.where(open_ & inside, size / curvature, 0.0)[:, None]
            x += step * direction
            residual -= step * product
            now = (residual * residual).sum(1)
            direction = residual + torch.where(size > 0, now / size, 0.0)[:, None] * direction
            size = torch.where(step[:, 0] > 0, now, 0.0)
        return x


def faces_at(copies: Copies, moved: Tensor, start: dict[str, ActiveVertices] | None) -> tuple[Tensor, Faces]:
    """Project copies onto their blocks and sides, and say in which faces the nearest points lie.

    Parameters
    ----------
    copies : Copies
        The blocks and rows.
    moved : Tensor
        ``(batch, copies)`` float64.
    start : dict, optional
        Vertices to start from, by names of groups.

    Returns
    -------
    points : Tensor
        ``(batch, copies)``.
    faces : Faces
        Where they lie.
    """
    active = {} if start is None else dict(start)
    points = copies.projected(moved, active)
    inside, rows, tight = {}, {}, None
    for group in copies.groups:
        own = group.view(points)
        if (system := copies.systems.get(group.name)) is not None:
            assert system.below is not None and system.above is not None
            inside[group.name] = ((own > system.below) & (own < system.above)).to(moved)
            if system.matrix.shape[2]:
                rows[group.name] = _tight_row(system, own, inside[group.name])
        elif group.name in copies.formulas:  # the formula does not say in which face a point lies
            active[group.name] = nearest(group.type, group.view(moved).contiguous(), active.get(group.name))
    if copies.lower is not None and copies.upper is not None:
        own = moved[:, copies.in_blocks :]
        tight = ((own <= copies.lower) | (own >= copies.upper)).to(moved)
    return points, Faces(copies, active, inside, rows, tight)


def _tight_row(system: Constraints, points: Tensor, inside: Tensor) -> Tensor:
    """The row of each block on its coordinates inside, of norm 1, where it is tight, and else zero."""
    row = system.matrix[:, :, 0]
    terms = row * points
    load, most = terms.sum(-1), TIGHT * terms.abs().sum(-1)
    tight = (load >= system.upper[..., 0] - most) | (load <= system.lower[..., 0] + most)
    free: Tensor = row * inside * tight[..., None]
    norm = free.norm(dim=-1, keepdim=True)
    return free / torch.where(norm > 0, norm, 1.0)
