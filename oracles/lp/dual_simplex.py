r"""The dual simplex method on many small LPs at once.

.. math:: \min \langle c, x \rangle, \; l \le A x \le u, \; lo \le x \le hi

The finite box makes the vertex of cheapest bounds dual feasible, so that there is no first phase.  A row that
its neighbours violate leaves the basis, the one of the largest violation over the length of its row of the
tableau (dual steepest edge, Forrest and Goldfarb 1992), and the ratio test passes all breakpoints up to the
one where the dual objective turns (Maros 2003, "long steps").  All LPs pivot together on dense tableaus
``(blocks, rows, dim)``, and those that are done leave; on a CPU with numba compiled loops make these pivots,
up to rounding, block by block.

Point and duals of the last basis are refined once with the data, and the value is the one that these row
duals prove.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blocklp.kernels.compiled import in_time

PIVOT = 1e-9
"""Smaller entries of a scaled tableau are taken for rounding."""

VIOLATED = 1e-12
"""Violation from which on a scaled row leaves, relative to the size of the box."""


@dataclass(frozen=True)
class SimplexSettings:
    """Limits of the method.

    Attributes
    ----------
    cached : int
        Entries of the tableaus that a CPU works on at a time: they stay in its cache.
    patience : int
        Pivots that are made at most, over the number of rows and variables.
    """

    cached: int = 60_000
    patience: int = 6


DEFAULT = SimplexSettings()


@dataclass(frozen=True)
class System:
    """Rows and boxes, one a block, float64: ``lower <= matrix @ x <= upper``, ``x_lower <= x <= x_upper``."""

    matrix: Tensor  # (blocks, rows, dim)
    lower: Tensor  # (blocks, rows), may be infinite
    upper: Tensor
    x_lower: Tensor  # (blocks, dim)
    x_upper: Tensor

    def __getitem__(self, some: slice) -> System:
        """The systems of some blocks."""
        data = (self.matrix, self.lower, self.upper, self.x_lower, self.x_upper)
        return System(*(t[some] for t in data))

    @cached_property
    def scaled(self) -> ScaledSystem:
        """The systems in the units in which pivots are made."""
        column, row = _scales(self)
        matrix = self.matrix * row[..., None] * column[:, None]
        # Rows without a side get one that the box implies.
        box = self.x_lower / column, self.x_upper / column
        plus, minus = matrix.clamp(min=0), matrix.clamp(max=0)
        least = (plus * box[0][:, None] + minus * box[1][:, None]).sum(-1) - 1
        most = (plus * box[1][:, None] + minus * box[0][:, None]).sum(-1) + 1
        low = torch.cat([box[0], torch.where(self.lower.isinf(), least, self.lower * row)], 1)
        high = torch.cat([box[1], torch.where(self.upper.isinf(), most, self.upper * row)], 1)
        return ScaledSystem(matrix, column, row, low, high)

    @property
    def reach(self) -> Tensor:
        """Largest magnitudes in the box: ``(blocks, dim)``."""
        return torch.maximum(self.x_lower.abs(), self.x_upper.abs())

    def proven(self, cost: Tensor, duals: Tensor) -> tuple[Tensor, Tensor]:
        """The bound that row duals prove, and the magnitude of its terms (Neumaier and Shcherbina 2004).

        Costs are ``(blocks, dim)``, duals ``(blocks, rows)`` of any size, but zero for infinite sides; bound
        and magnitude are ``(blocks,)``.
        """
        reduced = cost - (self.matrix * duals[..., None]).sum(1)
        sides = torch.where(duals > 0, self.lower, self.upper)
        rows = torch.where(duals == 0, 0.0, duals * sides)
        boxes = torch.minimum(reduced * self.x_lower, reduced * self.x_upper)
        size = cost.abs() + (self.matrix * duals[..., None]).abs().sum(1)
        return rows.sum(-1) + boxes.sum(-1), rows.abs().sum(-1) + (size * self.reach).sum(-1)

    @property
    def terms(self) -> int:
        """Largest number of roundings of a term in the bound of :meth:`proven`."""
        return sum(self.matrix.shape[1:]) + 6

    def violation(self, x: Tensor) -> Tensor:
        """Violation of each row ``(blocks, rows)`` at points ``(blocks, dim)`` of the box."""
        activity = (self.matrix * x[:, None]).sum(-1)
        return torch.maximum(self.lower - activity, activity - self.upper).clamp(min=0)


@dataclass(frozen=True)
class ScaledSystem:
    """Scaled systems, which do not depend on costs: ``low <= (x, A x) <= high``, all about as large as 1."""

    matrix: Tensor  # (blocks, rows, dim)
    column: Tensor  # (blocks, dim): units of the variables
    row: Tensor  # (blocks, rows): inverse units of the rows
    low: Tensor  # (blocks, dim + rows)
    high: Tensor

    def __getitem__(self, some: slice) -> ScaledSystem:
        """The systems of some blocks."""
        return ScaledSystem(*(t[some] for t in vars(self).values()))


@dataclass(frozen=True)
class Basis:
    """The state of the method, one row a block; variables are numbered before rows."""

    tableau: Tensor  # (blocks, rows, dim): basic variables, by nonbasic ones
    reduced: Tensor  # (blocks, dim): reduced costs
    low: Tensor  # (blocks, dim + rows): bounds of variables and rows
    high: Tensor
    outside: Tensor  # (blocks, dim): numbers of the nonbasic variables
    inside: Tensor  # (blocks, rows): numbers of the basic variables
    above: Tensor  # (blocks, dim): whether a nonbasic variable is at its upper bound

    def __getitem__(self, some: Tensor) -> Basis:
        """The bases of some blocks."""
        return Basis(*(t[some] for t in vars(self).values()))

    @property
    def at(self) -> Tensor:
        """Values of the nonbasic variables: ``(blocks, dim)``."""
        return torch.where(self.above, self.high.gather(1, self.outside), self.low.gather(1, self.outside))


def minimum(
    system: System,
    cost: Tensor,
    settings: SimplexSettings = DEFAULT,
) -> tuple[Tensor, Tensor, Tensor]:
    """Minimise all costs.

    Parameters
    ----------
    system : System
        The blocks.
    cost : Tensor
        ``(blocks, dim)`` float64.
    settings : SimplexSettings
        Limits of the method.

    Returns
    -------
    point, duals, empty : Tensor
        ``(blocks, dim)``, ``(blocks, rows)`` and ``(blocks,)``: a point of the box, near to a vertex; row
        duals; and whether the block was found to have no point.  Where the method did not end, point and
        duals are no optimum: test them.
    """
    each = max(1, system.matrix[:1].numel())
    size = max(1, settings.cached // each) if cost.device.type == "cpu" else max(1, len(cost))
    cuts = [slice(first, first + size) for first in range(0, len(cost), size)]
    cached = vars(system).get("scaled")
    parts = []
    for cut in cuts:
        part = system[cut]
        parts.append(_minimum(part, part.scaled if cached is None else cached[cut], cost[cut], settings))
    point, duals, empty = zip(*parts, strict=True)
    return torch.cat(point), torch.cat(duals), torch.cat(empty)


def _minimum(
    system: System,
    scaled: ScaledSystem,
    cost: Tensor,
    settings: SimplexSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    matrix, column, row, low, high = vars(scaled).values()
    blocks, rows, dim = matrix.shape
    numbers = torch.arange(dim + rows, device=cost.device).expand(blocks, -1)
    basis = Basis(matrix, cost * column, low, high, numbers[:, :dim], numbers[:, dim:], cost < 0)
    done, empty = _pivoted(basis, settings.patience)
    # Values of variables and rows; reduced costs of variables and duals of rows, zero where basic.
    values, prices = torch.zeros_like(low), torch.zeros_like(low)
    values.scatter_(1, done.outside, done.at)
    values.scatter_(1, done.inside, (done.tableau * done.at[:, None]).sum(-1))
    prices.scatter_(1, done.outside, done.reduced)
    # One step of refinement: what rows and costs are off in the data moves the basic ones through the
    # tableau.
    x, y = values[:, :dim], prices[:, dim:]
    off = torch.cat([torch.zeros_like(x), values[:, dim:] - (matrix * x[:, None]).sum(-1)], 1)
    move = (done.tableau * off.gather(1, done.outside)[:, None]).sum(-1)
    x = x + torch.zeros_like(low).scatter_(1, done.inside, move)[:, :dim]
    left = cost * column - (matrix * y[..., None]).sum(1) - prices[:, :dim]
    off = torch.cat([left, torch.zeros_like(y)], 1)
    move = (done.tableau * off.gather(1, done.inside)[..., None]).sum(1)
    y = y + torch.zeros_like(low).scatter_(1, done.outside, move)[:, dim:]
    y = torch.where(torch.where(y > 0, system.lower, system.upper).isinf(), 0.0, y)
    return torch.minimum(torch.maximum(x * column, system.x_lower), system.x_upper), y * row, empty


def _scales(system: System) -> tuple[Tensor, Tensor]:
    """Powers of two that make boxes and rows about as large as 1, by column and by row."""
    width = (system.x_upper - system.x_lower).clamp(min=0)
    column = torch.where(width > 0, torch.exp2(torch.where(width > 0, width, 1.0).log2().round()), 1.0)
    size = (system.matrix.abs() * column[:, None]).sum(-1)
    return column, torch.where(size > 0, torch.exp2(-torch.where(size > 0, size, 1.0).log2().round()), 1.0)


def _pivoted(basis: Basis, patience: int) -> tuple[Basis, Tensor]:
    """The last bases, and the blocks that have no point."""
    blocks, rows, dim = basis.tableau.shape
    empty = (basis.low > basis.high).any(1)
    slack = VIOLATED * (1 + torch.maximum(basis.low.abs(), basis.high.abs()).amax(1, keepdim=True))
    limit, stall = patience * (rows + dim) if rows else 0, 2 * (rows + dim)
    last = Basis(*(t.clone(memory_format=torch.contiguous_format) for t in vars(basis).values()))
    if empty.device.type == "cpu":
        compiled = in_time("blocklp.oracles.lp.dual_simplex_kernels", last.tableau.dtype)
        if compiled is not None:
            compiled.pivoted(blocks, limit, stall, PIVOT, slack, *vars(last).values(), empty)
            return last, empty
    left = torch.arange(blocks, device=empty.device)
    for pivot in range(limit):
        value = (basis.tableau * basis.at[:, None]).sum(-1)
        low, high = basis.low.gather(1, basis.inside), basis.high.gather(1, basis.inside)
        excess = torch.maximum(low - value, value - high)
        violated = excess > slack[left]
        score = torch.where(violated, excess.square() / (1 + basis.tableau.square().sum(-1)), -1.0)
        if pivot > stall:  # degenerate pivots may cycle: prefer other rows every time
            score = score * (1 + (basis.inside * 7919 + pivot * 104729) % 61)
        row = score.argmax(1, keepdim=True)
        entries = basis.tableau.gather(1, row[..., None].expand(-1, -1, dim))[:, 0]
        too_low = value.gather(1, row) < low.gather(1, row)
        slope, needed = torch.where(too_low, entries, -entries), excess.gather(1, row) - slack[left]
        column, passed = _breakpoint(basis, slope, needed)
        infeasible = violated.any(1) & (column[:, 0] < 0)
        empty[left[infeasible]] = True
        active = violated.any(1) & (column[:, 0] >= 0) & ~empty[left]
        if not bool(active.all()):
            for stored, current in zip(vars(last).values(), vars(basis).values(), strict=True):
                stored[left[~active]] = current[~active]
            basis, left = basis[active], left[active]
            chosen = (row, entries, too_low, column, passed)
            row, entries, too_low, column, passed = (t[active] for t in chosen)
        if not len(left):
            return last, empty
        basis = _exchanged(basis, row, column, entries, passed, too_low)
    for stored, current in zip(vars(last).values(), vars(basis).values(), strict=True):
        stored[left] = current
    return last, empty


def _breakpoint(basis: Basis, slope: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """The entering column ``(blocks, 1)``, and those that change sides before it ``(blocks, dim)`` bool.

    ``slope`` is how much a column adds to the row, which must rise by ``excess``; the column is -1 where it
    cannot.
    """
    size = slope.abs()
    able = torch.where(basis.above, slope < 0, slope > 0) & (size > PIVOT)
    ratio = torch.where(able, basis.reduced.abs() / size, torch.inf)
    width = basis.high.gather(1, basis.outside) - basis.low.gather(1, basis.outside)
    most = torch.where(able, size * width, 0.0)
    # Sorting short rows takes longer than to compare all pairs.  Larger pivots first among ties, then smaller
    # numbers.
    other, number = ratio[:, None], torch.arange(size.shape[1], device=size.device)
    larger, same = size[:, None] > size[..., None], size[:, None] == size[..., None]
    tied = (other == ratio[..., None]) & (larger | (same & (number < number[:, None])))
    before = ((other < ratio[..., None]) | tied).to(size)
    sum_before = (before * most[:, None]).sum(-1)
    place = torch.where(able & (sum_before + most >= excess), before.sum(-1), torch.inf)
    first, column = place.min(1, keepdim=True)
    column = torch.where(first < torch.inf, column, -1)
    return column, able & (before.sum(-1) < first)


def _exchanged(
    basis: Basis,
    row: Tensor,
    column: Tensor,
    entries: Tensor,
    passed: Tensor,
    too_low: Tensor,
) -> Basis:
    """Make the row of each block leave the basis and the column enter it."""
    pivot = entries.gather(1, column)
    down = basis.tableau.gather(2, column[:, None].expand(-1, basis.tableau.shape[1], -1))[..., 0]
    across = entries / pivot
    step = basis.reduced.gather(1, column) / pivot
    tableau = basis.tableau - down[..., None] * across[:, None]
    tableau.scatter_(2, column[:, None].expand(-1, tableau.shape[1], -1), (down / pivot)[..., None])
    new_row = (-across).scatter(1, column, 1 / pivot)[:, None]
    tableau.scatter_(1, row[..., None].expand(-1, -1, tableau.shape[2]), new_row)
    return Basis(
        tableau,
        (basis.reduced - step * entries).scatter(1, column, step),
        basis.low,
        basis.high,
        basis.outside.scatter(1, column, basis.inside.gather(1, row)),
        basis.inside.scatter(1, row, basis.outside.gather(1, column)),
        (basis.above ^ passed).scatter(1, column, ~too_low),
    )
