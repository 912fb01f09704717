"""Any bounded polytope given by inequalities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data, common_shape
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.finite import soft, struck_out
from blocklp.certify.exact_arithmetic import Exact, sums_of_products
from blocklp.decomposition.valid_bounds import NOISE
from blocklp.errors import ModelError, ShapeError
from blocklp.general_solvers.small_lp import minimum, optimum
from blocklp.gradients.block_values import value_of_rows
from blocklp.oracles.lp import dual_simplex
from blocklp.oracles.lp.dual_simplex import SimplexSettings, System
from blocklp.rounding import rounding, roundoff

ENUMERATED_DIM = 6
"""Blocks with more variables are solved as LPs too."""

REGULAR = 1e-6
"""Least singular value of rows of length 1 that are solved for a vertex."""

ROUGH = 1e-7
"""Violation up to which a point may be a vertex before it is refined, relative to its size."""

REFINEMENTS = 4
"""Number of refinements of a vertex; each makes the error about a billionth of the last one."""

REMAINDER = 1e-28
"""Largest error of an entry of a vertex after refinement, relative to the largest entry."""

TOLERANCE = 1e-9
"""Largest violations and differences of values of an answer, relative to the sizes."""


class Polytope(BlockType):
    r"""A polytope given by rows and a finite box.

    .. math:: \{x : lower \le A x \le upper, \; x_{lower} \le x \le x_{upper}\}

    Small systems are enumerated once: every choice of ``dim`` tight rows and bounds that is regular and
    feasible is a vertex, and the min-oracle takes the best one, the lexicographically first on ties.  Larger
    ones are solved by a dual simplex method in every call, all blocks at once and in float64
    (:mod:`blocklp.oracles.lp.dual_simplex`); a block where it does not end within 1e-9 is left to HiGHS.

    The value of an LP is the one that its row duals prove, less some rounding; ``value_error`` charges all
    rounding, and what the value of listed vertices exceeds the one that row duals prove.

    Parameters
    ----------
    matrix : array_like
        ``(rows, dim)``, ``(blocks, rows, dim)`` or ``(batch, blocks, rows, dim)``, finite.
    lower, upper : array_like
        ``(rows,)``, with the leading dimensions of ``matrix`` or none; may be infinite.
    x_lower, x_upper : array_like
        ``(dim,)``, with the leading dimensions of ``matrix`` or none; finite.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a block has no point, or may be unbounded since its box is not finite.
    """

    by_rows = True
    block_data = ("matrix", "lower", "upper", "x_lower", "x_upper", "vertices")
    #: ``(batch or 1, blocks or 1, vertices, dim)``, short lists filled up by their first vertex; None if
    #: solved as LPs.
    vertices: Tensor | None = None
    #: Candidates for vertices up to which a block's are listed; the minimum of others is an LP.
    most_systems: ClassVar[int] = 20_000
    #: Limits of the dual simplex method that solves these.
    simplex: ClassVar[SimplexSettings] = SimplexSettings()

    #: Shape, data and system of the last call.
    _kept = ("_last",)
    _last: tuple[tuple[int, ...], tuple[Tensor, ...], System] | None = None

    def __init__(
        self,
        matrix: object,
        lower: object,
        upper: object,
        x_lower: object,
        x_upper: object,
    ) -> None:
        a = as_block_data(matrix, 2, "Polytope matrix", gradients=True)
        low = as_block_data(lower, 1, "Polytope lower", infinite=True, gradients=True)
        high = as_block_data(upper, 1, "Polytope upper", infinite=True, gradients=True)
        x_low = as_block_data(x_lower, 1, "Polytope x_lower", gradients=True)
        x_high = as_block_data(x_upper, 1, "Polytope x_upper", gradients=True)
        rows, dim = a.shape[2:]
        if {low.shape[2], high.shape[2]} != {rows} or {x_low.shape[2], x_high.shape[2]} != {dim} or not dim:
            raise ShapeError(
                f"Polytope: matrix has {rows} rows of {dim} variables; lower and upper need {rows} entries, "
                f"got {low.shape[2]} and {high.shape[2]}, x_lower and x_upper {dim}, got {x_low.shape[2]} "
                f"and {x_high.shape[2]}"
            )
        lead = common_shape("Polytope", *(t.shape[:2] for t in (a, low, high, x_low, x_high)))
        self.matrix = a.expand(*lead, -1, -1)
        self.lower, self.upper = low.expand(*lead, -1), high.expand(*lead, -1)
        self.x_lower, self.x_upper = x_low.expand(*lead, -1), x_high.expand(*lead, -1)
        self.dim = dim
        self._refuse_empty(lead)
        lists = [self._vertices(i, b) for i, b in itertools.product(*map(range, lead))]
        if all(lists):
            longest = max(map(len, lists))
            filled = [p + p[:1] * (longest - len(p)) for p in lists]
            self.vertices = torch.tensor(filled, dtype=torch.float64).view(*lead, longest, dim)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Take the best vertex, or solve an LP for each block."""
        if self.vertices is not None:
            vertices = self.vertices.to(cost)
            value, row = (vertices @ cost[..., None])[..., 0].min(-1)
            vertices = vertices.expand(*cost.shape[:2], -1, -1)
            return vertices.gather(2, row[..., None, None].expand(-1, -1, 1, cost.shape[2]))[:, :, 0], value
        exact = cost.double()
        point, duals, _ = self._minimum(exact)
        (value, magnitude), system = self._proven(exact, duals), self._system(cost.shape[:2])
        # Where the point is infeasible or its cost above the value, HiGHS solves the LP.
        size = (exact.abs() * (1 + point.abs())).sum(-1)
        length = 1 + (system.matrix.abs() * point.abs().flatten(0, 1)[:, None]).sum(-1)
        infeasible = (system.violation(point.flatten(0, 1)) > TOLERANCE * length).any(-1).view(value.shape)
        gap = (exact * point).sum(-1) - value > TOLERANCE * size + NOISE * magnitude
        for i, b in (gap | infeasible).nonzero().tolist():
            point[i, b], duals[i, b] = self._by_highs(i, b, exact[i, b])
            value, magnitude = self._proven(exact, duals)
        return point.to(cost), (value - NOISE * magnitude).to(cost)

    def value_error(self, cost: Tensor) -> Tensor:
        """Difference of value and bound of row duals, cost of the point above that, and rounding error."""
        exact, value = cost.double(), self.min_value(cost).double()
        point, duals, _ = self._minimum(exact)
        (proven, magnitude), system = self._proven(exact, duals), self._system(cost.shape[:2])
        beyond = (duals.abs() * system.violation(point.flatten(0, 1)).view(duals.shape)).sum(-1)
        error = (value - proven).abs() + ((exact * point).sum(-1) - proven).abs() + beyond
        return 2 * roundoff(system.terms, magnitude) + error * (1 + rounding(8, exact.dtype))

    def _minimum(self, cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Points, row duals and the mask of empty blocks, for costs ``(batch, blocks, dim)`` float64."""
        flat = dual_simplex.minimum(self._system(cost.shape[:2]), cost.flatten(0, 1), self.simplex)
        point, duals, empty = (t.view(*cost.shape[:2], *t.shape[1:]) for t in flat)
        return point, duals, empty

    def _proven(self, cost: Tensor, duals: Tensor) -> tuple[Tensor, Tensor]:
        """The bound that row duals prove, and the magnitude of its terms: ``(batch, blocks)``."""
        value, magnitude = self._system(cost.shape[:2]).proven(cost.flatten(0, 1), duals.flatten(0, 1))
        return value.view(cost.shape[:2]), magnitude.view(cost.shape[:2])

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Weights of the vertices where they are listed; padding has none."""
        if self.vertices is None:
            return None
        vertices = self.vertices.to(cost)
        padding = (vertices == vertices[:, :, :1]).all(-1)
        padding[..., 0] = False
        values = (vertices @ cost[..., None])[..., 0]
        weights, value, excess = soft(values.masked_fill(padding, struck_out(values.dtype)), temperature)
        return (weights[..., None] * vertices).sum(2), value, excess

    def constraints(self) -> Constraints:
        """The rows and the box."""
        return Constraints(self.matrix, self.lower, self.upper, self.x_lower, self.x_upper)

    def value_at(self, cost: Tensor, point: Tensor) -> Tensor:
        """The Lagrangian of the rows, with the duals of the dual simplex method."""
        with torch.no_grad():
            duals = self.detached()._minimum(cost)[1]
        return value_of_rows(self.constraints(), duals, cost, point)

    def restrict(self, lower: Tensor, upper: Tensor) -> Polytope | None:
        """The intersection with a box is a polytope, unless it is empty."""
        low, high = torch.maximum(self.x_lower, lower), torch.minimum(self.x_upper, upper)
        try:
            return type(self)(self.matrix, self.lower, self.upper, low, high)
        except ModelError:
            return None

    @classmethod
    def alike(cls, kinds: Sequence[Self]) -> list[Self]:
        """Make types stackable: vertex lists of one length, or LPs for all where a type has none."""
        lists = [kind.vertices for kind in kinds if kind.vertices is not None]
        if len(lists) < len(kinds):
            return [kind.with_data(vertices=None) for kind in kinds]
        longest = max((v.shape[2] for v in lists), default=0)
        padded = [torch.cat([v, v[:, :, :1].expand(-1, -1, longest - v.shape[2], -1)], 2) for v in lists]
        return [kind.with_data(vertices=v) for kind, v in zip(kinds, padded, strict=True)]

    def to(self, dtype: torch.dtype, device: torch.device) -> Polytope:
        """A copy with its block data on a device, vertices in ``dtype``.

        Rows and box stay float64, since rounding them could leave a system without a point.
        """
        moved = super().to(torch.float64, device)
        return moved if moved.vertices is None else moved.with_data(vertices=moved.vertices.to(dtype))

    def _system(self, lead: Sequence[int]) -> System:
        """Rows and boxes of all blocks ``(batch, blocks)``, one after the other.

        The system of the last call is kept, unless blocks share data.
        """
        data = (self.matrix, self.lower, self.upper, self.x_lower, self.x_upper)
        if self._last is not None:
            shape, tensors, system = self._last
            if shape == tuple(lead) and all(a is b for a, b in zip(tensors, data, strict=True)):
                return system
        system = System(*(t.expand(*lead, *t.shape[2:]).flatten(0, 1) for t in data))
        if self.matrix.shape[:2] == tuple(lead):
            _ = system.scaled  # scaled once for all costs
            self._last = tuple(lead), data, system
        return system

    def _block(self, i: int, b: int) -> tuple[np.ndarray, ...]:
        """Rows and box of a block: matrix, lower, upper, x_lower, x_upper."""
        data = (self.matrix, self.lower, self.upper, self.x_lower, self.x_upper)
        return tuple(t[i % t.shape[0], b % t.shape[1]].detach().cpu().numpy() for t in data)

    def _by_highs(self, i: int, b: int, cost: Tensor) -> tuple[Tensor, Tensor]:
        """A minimiser and row duals by HiGHS."""
        solution = optimum(cost.cpu().numpy(), *self._block(i, b))
        if solution is None:
            block = f"block {b} of instance {i}"
            raise ModelError(f"Polytope: HiGHS finds no point in {block}, which had one; rescale its rows")
        return torch.from_numpy(solution[0]).to(cost), torch.from_numpy(solution[1]).to(cost)

    def _refuse_empty(self, lead: Sequence[int]) -> None:
        """Raise if a block has no point; HiGHS decides where the dual simplex method found none."""
        system = self._system(lead)
        point, _, empty = dual_simplex.minimum(system, system.x_lower * 0)
        length = 1 + (system.matrix.abs() * point.abs()[:, None]).sum(-1)
        without_point = empty | (system.violation(point) > TOLERANCE * length).any(-1)
        for i, b in without_point.view(*lead).nonzero().tolist():
            if minimum(np.zeros(self.matrix.shape[-1]), *self._block(i, b)) is None:
                rule = "no point satisfies its rows and bounds; relax one"
                raise ModelError(f"Polytope: block {b} of instance {i} is infeasible: {rule}")

    def _vertices(self, i: int, b: int) -> list[list[float]]:
        matrix, *sides = self._block(i, b)
        lower, upper, x_lower, x_upper = sides
        return enumerate_vertices(matrix, lower, upper, x_lower, x_upper, self.most_systems)

    def __repr__(self) -> str:
        return f"{self.name}(rows={self.matrix.shape[2]}, dim={self.dim})"


def enumerate_vertices(
    matrix: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    x_lower: np.ndarray,
    x_upper: np.ndarray,
    most_systems: int,
) -> list[list[float]]:
    """List the vertices of a small polytope, every entry right to a few roundings, however wide the box.

    Parameters
    ----------
    matrix : ndarray
        ``(rows, dim)`` float64.
    lower, upper : ndarray
        ``(rows,)`` float64, may be infinite.
    x_lower, x_upper : ndarray
        ``(dim,)`` float64, finite.
    most_systems : int
        Candidates for vertices up to which these are looked for.

    Returns
    -------
    list of list of float
        Vertices in lexicographic order; none if the system is too large, so ill-conditioned that vertices
        could be missed, or has no point.
    """
    dim = len(x_lower)
    if dim > ENUMERATED_DIM or math.comb(len(matrix) + dim, dim) * 2**dim > most_systems:
        return []
    # Rows about as large as 1, in units that are powers of two: nothing is rounded.
    sums = np.abs(matrix).sum(1)
    row = np.ldexp(1.0, -np.frexp(sums)[1])
    rows = np.vstack([matrix * row[:, None], np.eye(dim)])
    low, high = np.concatenate([lower * row, x_lower]), np.concatenate([upper * row, x_upper])
    length = np.linalg.norm(rows, axis=1)
    if bool((low > high).any()) or bool(((length == 0) & ((low > 0) | (high < 0))).any()):
        return []
    picks = np.array([p for p in itertools.combinations(np.flatnonzero(length), dim)])
    smallest = np.linalg.svd(rows[picks] / length[picks][..., None], compute_uv=False)[:, -1]
    singular = smallest < REGULAR
    if not all(map(dependent, Exact.of(rows).integers[picks[singular]].tolist())):
        return []
    picks = picks[~singular]
    sides = np.array(list(itertools.product((0, 1), repeat=dim)))
    # right[s, t, k]: the side t picks for the k-th tight row of choice s.
    right = np.stack([low, high])[sides[None], picks[:, None]]
    usable = np.isfinite(right).all(-1)
    tight = np.broadcast_to(rows[picks][:, None], (*usable.shape, dim, dim))[usable]
    right = right[usable]
    points = np.linalg.solve(tight, right[..., None])[..., 0]
    points, error = _refined(tight, right, low, high, rows)
    unit = float(np.finfo(np.float64).eps)
    sizes = np.maximum(*(np.where(np.isfinite(side), np.abs(side), 0) for side in (low, high)))
    slack = 8 * (dim + 2) * unit * (np.abs(points) @ np.abs(rows).T + sizes) + error
    activity = points @ rows.T
    points = points[((activity >= low - slack) & (activity <= high + slack)).all(1)]
    if not len(points):
        return []
    # Bounds hold exactly, and points that differ by rounding alone are one vertex.
    spacing = 4 * unit * np.abs(points).max(0)
    _, first = np.unique(np.round(points / np.where(spacing > 0, spacing, 1)), axis=0, return_index=True)
    vertices: list[list[float]] = (np.clip(points[first], x_lower, x_upper) + 0.0).tolist()
    return vertices


def _refined(
    tight: np.ndarray,
    right: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    rows: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Solutions of systems that may satisfy the rows, each entry right to its rounding, and the error left.

    Solutions are ``(k, dim)``; the error ``(k, 1)`` of activities is left where entries are far smaller than
    others, or zero.
    """
    points = np.linalg.solve(tight, right[..., None])[..., 0]
    reach = np.abs(rows).sum(1)
    activity, size = points @ rows.T, np.abs(points).max(1, keepdims=True)
    below, above = (np.where(np.isfinite(side), np.abs(side), 0) for side in (low, high))
    slack = ROUGH * (reach * size + below + above)
    some = ((activity >= low - slack) & (activity <= high + slack)).all(1)
    points, tight, right, size = points[some], tight[some], right[some], size[some]
    # Refinement in twice the precision: residuals in which nothing cancels, and points that are sums of two
    # floats.
    rest = np.zeros_like(points)
    factors = np.concatenate([-tight, -tight, right[..., None]], -1)
    for _ in range(REFINEMENTS):
        both = np.concatenate([points, rest, np.ones((len(points), 1))], -1)
        residual = np.ldexp(*sums_of_products(factors, np.broadcast_to(both[:, None], factors.shape)))
        rest = rest + np.linalg.solve(tight, residual[..., None])[..., 0]
        points, rest = points + rest, rest - ((points + rest) - points)
    return points, REMAINDER * size * reach.max()


def dependent(rows: list[list[int]]) -> bool:
    """Whether the rows of a square matrix of integers are linearly dependent (Bareiss 1968)."""
    before = 1
    for k in range(len(rows)):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return True
        rows[k], rows[pivot] = rows[pivot], rows[k]
        top = rows[k]
        for line in rows[k + 1 :]:
            line[k + 1 :] = [(top[k] * line[j] - line[k] * top[j]) // before for j in range(k + 1, len(rows))]
        before = top[k]
    return False
