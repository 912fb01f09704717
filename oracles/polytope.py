"""Any bounded polytope given by inequalities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from blocklp.block import BlockType, Constraints, as_block_data, common_shape
from blocklp.bounds import rounding, roundoff
from blocklp.errors import ModelError, ShapeError
from blocklp.exact import Exact, sums_of_products
from blocklp.finite import soft, struck_out
from blocklp.oracles import dual_simplex
from blocklp.oracles.dual_simplex import System
from blocklp.small_lp import minimum, optimum
from blocklp.valid_bounds import NOISE

SYSTEMS = 20_000
"""Blocks with more candidate vertices than this are solved as LPs instead of being enumerated."""

ENUMERATED_DIM = 6
"""So are blocks with more variables."""

REGULAR = 1e-6
"""Least singular value of rows of length 1 that are solved for a vertex."""

ROUGH = 1e-7
"""Violation up to which a point may be a vertex before it is refined, relative to its size."""

REFINEMENTS = 4
"""Times that it is refined; each makes the error about a billionth of what it was."""

SEEN = 1e-28
"""Part of the largest entry of a vertex that is left of its error then, at most."""

MET = 1e-9
"""Largest violations and differences of values of an answer, relative to the sizes."""


class Polytope(BlockType):
    r"""The polytope :math:`\{x : lower \le A x \le upper, \; x_{lower} \le x \le x_{upper}\}`, with a finite box.

    Small systems are enumerated once: every choice of ``dim`` tight rows and bounds that is regular and feasible is a
    vertex, and the min-oracle takes the best one, the lexicographically first on ties.  Larger ones are solved by a dual simplex
    method in every call, all blocks at once and in float64 (:mod:`blocklp.oracles.dual_simplex`); a block where it does not end
    within 1e-9 is left to HiGHS.

    The value of an LP is the one that its row duals prove, less some rounding; ``value_error`` charges all rounding, and what the
    value of listed vertices exceeds the one that row duals prove.

    Parameters
    ----------
    matrix : array_like
        ``(rows, dim)``, ``(blocks, rows, dim)`` or ``(batch, blocks, rows, dim)``, finite.
    lower, upper : array_like
        ``(rows,)``, with the leading dimensions of ``matrix`` or none; may be infinite.
    x_lower, x_upper : array_like
        ``(dim,)``, likewise, finite.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a block has no point, or may be unbounded since its box is not finite.
    """

    by_rows = True
    block_data = ("matrix", "lower", "upper", "x_lower", "x_upper", "vertices")
    #: ``(batch or 1, blocks or 1, vertices, dim)``, short lists filled up by their first vertex; None if solved as LPs.
    vertices: Tensor | None = None

    #: Shape, data and system of the last call.
    _last: tuple[tuple[int, ...], tuple[Tensor, ...], System] | None = None

    def __init__(self, matrix: object, lower: object, upper: object, x_lower: object, x_upper: object) -> None:
        a = as_block_data(matrix, 2, "Polytope matrix")
        low, high = (as_block_data(t, 1, f"Polytope {side}", infinite=True) for t, side in ((lower, "lower"), (upper, "upper")))
        x_low, x_high = (as_block_data(t, 1, f"Polytope {side}") for t, side in ((x_lower, "x_lower"), (x_upper, "x_upper")))
        rows, dim = a.shape[2:]
        if {low.shape[2], high.shape[2]} != {rows} or {x_low.shape[2], x_high.shape[2]} != {dim} or not dim:
            raise ShapeError(
                f"Polytope: matrix has {rows} rows of {dim} variables; lower and upper need {rows} entries, got {low.shape[2]} "
                f"and {high.shape[2]}, x_lower and x_upper {dim}, got {x_low.shape[2]} and {x_high.shape[2]}"
            )
        lead = common_shape("Polytope", *(t.shape[:2] for t in (a, low, high, x_low, x_high)))
        self.matrix = a.expand(*lead, -1, -1)
        self.lower, self.upper, self.x_lower, self.x_upper = (t.expand(*lead, -1) for t in (low, high, x_low, x_high))
        self.dim = dim
        self._refuse_empty(lead)
        found = {(i, b): self._vertices(i, b) for i, b in itertools.product(*map(range, lead))}
        if all(found.values()):
            longest = max(map(len, found.values()))
            filled = [p + p[:1] * (longest - len(p)) for p in found.values()]
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
        # Where the value and the point do not meet, HiGHS decides.
        size = (exact.abs() * (1 + point.abs())).sum(-1)
        length = 1 + (system.matrix.abs() * point.abs().flatten(0, 1)[:, None]).sum(-1)
        outside = (system.violation(point.flatten(0, 1)) > MET * length).any(-1).view(value.shape)
        apart = (exact * point).sum(-1) - value > MET * size + NOISE * magnitude
        for i, b in (apart | outside).nonzero().tolist():
            point[i, b], duals[i, b] = self._by_highs(i, b, exact[i, b])
            value, magnitude = self._proven(exact, duals)
        return point.to(cost), (value - NOISE * magnitude).to(cost)

    def value_error(self, cost: Tensor) -> Tensor:
        """What the value differs from the one that row duals prove, the cost of the point above that, and all rounding."""
        exact, value = cost.double(), self.min_value(cost).double()
        point, duals, _ = self._minimum(exact)
        (proven, magnitude), system = self._proven(exact, duals), self._system(cost.shape[:2])
        beyond = (duals.abs() * system.violation(point.flatten(0, 1)).view(duals.shape)).sum(-1)
        error = (value - proven).abs() + ((exact * point).sum(-1) - proven).abs() + beyond
        return 2 * roundoff(system.terms, magnitude) + error * (1 + rounding(8, exact.dtype))

    def _minimum(self, cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Points, row duals and whether there is none, of costs ``(batch, blocks, dim)`` float64."""
        found = dual_simplex.minimum(self._system(cost.shape[:2]), cost.flatten(0, 1))
        point, duals, empty = (t.view(*cost.shape[:2], *t.shape[1:]) for t in found)
        return point, duals, empty

    def _proven(self, cost: Tensor, duals: Tensor) -> tuple[Tensor, Tensor]:
        """What row duals prove, and the magnitudes in it: ``(batch, blocks)``."""
        value, magnitude = self._system(cost.shape[:2]).proven(cost.flatten(0, 1), duals.flatten(0, 1))
        return value.view(cost.shape[:2]), magnitude.view(cost.shape[:2])

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Weights of the vertices, where they are listed, without those that fill up short lists."""
        if self.vertices is None:
            return None
        vertices = self.vertices.to(cost)
        repeated = (vertices == vertices[:, :, :1]).all(-1)
        repeated[..., 0] = False
        values = (vertices @ cost[..., None])[..., 0]
        weights, value, excess = soft(values.masked_fill(repeated, struck_out(values.dtype)), temperature)
        return (weights[..., None] * vertices).sum(2), value, excess

    def constraints(self) -> Constraints:
        """The rows and the box."""
        return Constraints(self.matrix, self.lower, self.upper, self.x_lower, self.x_upper)

    def restrict(self, lower: Tensor, upper: Tensor) -> Polytope | None:
        """The intersection with a box is a polytope, unless it is empty."""
        low, high = torch.maximum(self.x_lower, lower), torch.minimum(self.x_upper, upper)
        try:
            return type(self)(self.matrix, self.lower, self.upper, low, high)
        except ModelError:
            return None

    @classmethod
    def alike(cls, kinds: Sequence[Self]) -> list[Self]:
        """Lists of vertices of one length; without one of a type all are solved as LPs."""
        lists = [kind.vertices for kind in kinds]
        longest = max((v.shape[2] for v in lists if v is not None), default=0)
        filled = [torch.cat([v, v[:, :, :1].expand(-1, -1, longest - v.shape[2], -1)], 2) if v is not None else None for v in lists]
        return [kind.with_data(vertices=None if any(w is None for w in filled) else v) for kind, v in zip(kinds, filled, strict=True)]

    def to(self, dtype: torch.dtype, device: torch.device) -> Polytope:
        """As for every type; the rows stay float64, since rounding them could leave a system without a point."""
        moved = super().to(torch.float64, device)
        return moved if moved.vertices is None else moved.with_data(vertices=moved.vertices.to(dtype))

    def _system(self, lead: Sequence[int]) -> System:
        """Rows and boxes of all blocks ``(batch, blocks)``, one after the other; the last ones are kept, unless blocks share data."""
        data = (self.matrix, self.lower, self.upper, self.x_lower, self.x_upper)
        known = self._last
        if known is None or known[0] != tuple(lead) or any(a is not b for a, b in zip(known[1], data, strict=True)):
            known = tuple(lead), data, System(*(t.expand(*lead, *t.shape[2:]).flatten(0, 1) for t in data))
            if self.matrix.shape[:2] == tuple(lead):
                _ = known[2].scaled  # scaled once for all costs
                self._last = known
        return known[2]

    def _block(self, i: int, b: int) -> tuple[np.ndarray, ...]:
        """Rows and box of a block: matrix, lower, upper, x_lower, x_upper."""
        data = (self.matrix, self.lower, self.upper, self.x_lower, self.x_upper)
        return tuple(t[i % t.shape[0], b % t.shape[1]].cpu().numpy() for t in data)

    def _by_highs(self, i: int, b: int, cost: Tensor) -> tuple[Tensor, Tensor]:
        """A minimiser and row duals by HiGHS."""
        found = optimum(cost.cpu().numpy(), *self._block(i, b))
        if found is None:
            raise ModelError(f"Polytope: HiGHS finds no point in block {b} of instance {i}, which had one; rescale its rows")
        return torch.from_numpy(found[0]).to(cost), torch.from_numpy(found[1]).to(cost)

    def _refuse_empty(self, lead: Sequence[int]) -> None:
        """HiGHS has the last word where the dual simplex method finds no point or does not find one."""
        system = self._system(lead)
        point, _, empty = dual_simplex.minimum(system, system.x_lower * 0)
        length = 1 + (system.matrix.abs() * point.abs()[:, None]).sum(-1)
        doubted = empty | (system.violation(point) > MET * length).any(-1)
        for i, b in doubted.view(*lead).nonzero().tolist():
            if minimum(np.zeros(self.matrix.shape[-1]), *self._block(i, b)) is None:
                raise ModelError(
                    f"Polytope: block {b} of instance {i} is infeasible: no point satisfies its rows and bounds; relax one"
                )

    def _vertices(self, i: int, b: int) -> list[list[float]]:
        return enumerate_vertices(*self._block(i, b))

    def __repr__(self) -> str:
        return f"{self.name}(rows={self.matrix.shape[2]}, dim={self.dim})"


def enumerate_vertices(
    matrix: np.ndarray, lower: np.ndarray, upper: np.ndarray, x_lower: np.ndarray, x_upper: np.ndarray
) -> list[list[float]]:
    """List the vertices of a small polytope in lexicographic order, every entry right to a few roundings, however wide the box.

    Returns an empty list if the system is too large, so ill-conditioned that vertices could be missed, or has no point.
    """
    dim = len(x_lower)
    if dim > ENUMERATED_DIM or math.comb(len(matrix) + dim, dim) * 2**dim > SYSTEMS:
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
    doubtful = smallest < REGULAR
    if not all(map(dependent, Exact.of(rows).integers[picks[doubtful]].tolist())):
        return []
    picks = picks[~doubtful]
    sides = np.array(list(itertools.product((0, 1), repeat=dim)))
    # right[s, t, k]: the side t picks for the k-th tight row of choice s.
    right = np.stack([low, high])[sides[None], picks[:, None]]
    usable = np.isfinite(right).all(-1)
    tight = np.broadcast_to(rows[picks][:, None], (*usable.shape, dim, dim))[usable]
    right = right[usable]
    points = np.linalg.solve(tight, right[..., None])[..., 0]
    points, lost = _refined(tight, right, low, high, rows)
    unit = float(np.finfo(np.float64).eps)
    sizes = np.maximum(np.where(np.isfinite(low), np.abs(low), 0), np.where(np.isfinite(high), np.abs(high), 0))
    room = 8 * (dim + 2) * unit * (np.abs(points) @ np.abs(rows).T + sizes) + lost
    activity = points @ rows.T
    points = points[((activity >= low - room) & (activity <= high + room)).all(1)]
    if not len(points):
        return []
    # Bounds are met exactly, and what differs by rounding alone is one vertex.
    grid = 4 * unit * np.abs(points).max(0)
    _, first = np.unique(np.round(points / np.where(grid > 0, grid, 1)), axis=0, return_index=True)
    listed: list[list[float]] = (np.clip(points[first], x_lower, x_upper) + 0.0).tolist()
    return listed


def _refined(
    tight: np.ndarray, right: np.ndarray, low: np.ndarray, high: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solutions ``(systems, dim)`` that may satisfy the rows, every entry right to a rounding of its own, and what is not seen.

    That is the error ``(solutions, 1)`` of activities that is left where entries are far smaller than others, or zero.
    """
    points = np.linalg.solve(tight, right[..., None])[..., 0]
    reach = np.abs(rows).sum(1)
    activity, size = points @ rows.T, np.abs(points).max(1, keepdims=True)
    room = ROUGH * (reach * size + np.where(np.isfinite(low), np.abs(low), 0) + np.where(np.isfinite(high), np.abs(high), 0))
    some = ((activity >= low - room) & (activity <= high + room)).all(1)
    points, tight, right, size = points[some], tight[some], right[some], size[some]
    # Refinement in twice the precision: residuals in which nothing cancels, and points that are sums of two floats.
    rest = np.zeros_like(points)
    factors = np.concatenate([-tight, -tight, right[..., None]], -1)
    for _ in range(REFINEMENTS):
        both = np.concatenate([points, rest, np.ones((len(points), 1))], -1)
        residual = np.ldexp(*sums_of_products(factors, np.broadcast_to(both[:, None], factors.shape)))
        rest = rest + np.linalg.solve(tight, residual[..., None])[..., 0]
        points, rest = points + rest, rest - ((points + rest) - points)
    return points, SEEN * size * reach.max()


def dependent(rows: list[list[int]]) -> bool:
    """Whether the rows of a square matrix of integers are linearly dependent (Bareiss 1968)."""
    before = 1
    for k in range(len(rows)):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return True
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for line in rows[k + 1 :]:
            line[k + 1 :] = [(rows[k][k] * line[j] - line[k] * rows[k][j]) // before for j in range(k + 1, len(rows))]
        before = rows[k][k]
    return False
