"""Ranges of the coordinates of blocks: bounds of variables that are no tighter need not be stated again."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.blocks.capabilities import stated_rows_of
from blocklp.blocks.contract import BlockType, Constraints, Stateless
from blocklp.errors import OracleError
from blocklp.rounding import rounding

HULL_DIM = 64
"""Blocks with more variables are not asked for their own extent: their constraints tell what they can."""

AT_ONCE = 1_000_000
"""Numbers of all costs that an oracle is asked for in one call."""

KEPT = 200_000
"""Numbers of all points up to which the oracle's answers are kept."""


@dataclass(frozen=True)
class Extent:
    """Ranges of the coordinates of blocks.

    Attributes
    ----------
    least, most : Tensor
        ``(rows, count, dim)`` float64, infinite where nothing is known.
    points : Tensor or None
        ``(points, rows, count, dim)`` float64: where the oracle found them, points of the blocks that are
        least or largest in one coordinate; None where it was not asked, or there are many.
    """

    least: Tensor
    most: Tensor
    points: Tensor | None = None


def extent(kind: BlockType, rows: int, count: int, dim: int) -> Extent:
    """Least and largest value of every coordinate over its block, by the oracle itself.

    Blocks with more than :data:`HULL_DIM` variables get the ranges that their constraints imply, which may be
    wider. Stateless types without block data are asked once.

    Parameters
    ----------
    kind : BlockType
        The type; its data are float64.
    rows, count : int
        Instances and blocks that differ in their data; 1 where all share them.
    dim : int
        Number of variables of a block.

    Returns
    -------
    Extent
        With sides ``(rows, count, dim)`` float64.
    """
    if kind.stateless and not kind.tensors():
        return _asked_once(Stateless(kind), rows, count, dim)
    return _asked(kind, rows, count, dim)


def _asked(kind: BlockType, rows: int, count: int, dim: int) -> Extent:
    """Ask a type for the ranges of :func:`extent`."""
    if dim > HULL_DIM:
        below, above = (side.expand(rows, count, dim) for side in implied(stated_rows_of(kind), dim))
        return Extent(below, above)
    unit = torch.eye(dim, dtype=torch.float64)
    costs = unit if kind.nonnegative_costs else torch.cat([unit, -unit])
    # Data of a single instance serve any number of costs at once.
    step = max(1, AT_ONCE // (count * dim)) if rows == 1 else 1
    few = len(costs) * rows * count * dim <= KEPT and not kind.nonnegative_costs
    answers = [_answers(kind, some, rows, count, few) for some in torch.split(costs, step)]
    points, values = (torch.cat(own) for own in zip(*answers, strict=True))
    least = values[:dim].movedim(0, -1)
    if kind.nonnegative_costs:
        return Extent(least, torch.full_like(least, torch.inf))
    return Extent(least, -values[dim:].movedim(0, -1), torch.unique(points, dim=0) if few else None)


@functools.lru_cache(16)
def _asked_once(which: Stateless, rows: int, count: int, dim: int) -> Extent:
    """Ask one object of a class that tells none apart: thousands of models may hold such blocks."""
    return _asked(which.kind, rows, count, dim)


def _answers(kind: BlockType, costs: Tensor, rows: int, count: int, kept: bool) -> tuple[Tensor, Tensor]:
    """Answers of blocks at costs ``(costs, dim)``: one instance, or one cost.

    Points, where they are kept, are ``(costs, rows, count, dim)``, and values ``(costs, rows, count)``.
    """
    full = costs[:, None].expand(-1, count, -1) if rows == 1 else costs.expand(rows, count, -1)
    point, value = _answer(kind, full.contiguous())
    shape = len(costs), rows, count
    points = point.reshape(*shape, -1) if kept else point.new_zeros(0, *shape[1:], costs.shape[1])
    return points, value.reshape(shape)


def _answer(kind: BlockType, cost: Tensor) -> tuple[Tensor, Tensor]:
    """The answer at other numbers of instances and blocks than were asked for when the type was added."""
    try:
        point, value = kind.min_oracle(cost)
        if point.shape == cost.shape and value.shape == cost.shape[:2]:
            return point, value
        got, reason = f"returned point {tuple(point.shape)} and value {tuple(value.shape)}", None
    except RuntimeError as error:  # of shapes that do not match
        got, reason = f"failed ({error})", error
    raise OracleError(
        f"min_oracle of {kind.name} {got} for a cost {tuple(cost.shape)}; it is asked for any number of "
        f"instances and blocks: tensors that differ among these must be named in block_data"
    ) from reason


def implied(stated: Constraints | None, dim: int) -> tuple[Tensor, Tensor]:
    """Bounds stated of single variables, or implied by a row and the bounds of the others, rounded outwards.

    Returns
    -------
    below, above : Tensor
        ``(batch or 1, blocks or 1, dim)`` float64, infinite where nothing is said.
    """
    none = torch.full((1, 1, dim), torch.inf, dtype=torch.float64)
    if stated is None or stated.below is None or stated.above is None:
        return -none, none
    below, above, eps = stated.below, stated.above, torch.finfo(torch.float64).eps
    unit = rounding(dim + 8, torch.float64)
    parts = stated.matrix, stated.lower, below, above
    batch, blocks = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    below, above = (side.expand(batch, blocks, dim).clone() for side in (below, above))
    sides = (side[..., None].unbind(2) for side in (stated.lower, stated.upper))
    for row, lower, upper in zip(stated.matrix.unbind(2), *sides, strict=True):
        at = row.flatten(0, 1).any(0).nonzero()[:, 0]  # of many variables, a row has few as a rule
        own, bounds = row[..., at], (stated.below[..., at], stated.above[..., at])
        for entries, side in ((own, upper), (-own, -lower)):  # entries @ x <= side
            least = torch.where(entries > 0, *bounds)
            terms = torch.where(entries != 0, entries * least, 0.0)
            size = terms.abs().sum(-1, keepdim=True) + side.abs()
            # NaN where another variable has no bound: then the row says nothing.
            left = (side - terms.sum(-1, keepdim=True) + terms + unit * size) / entries
            left = left + 8 * eps * left.abs() * entries.sign()
            most, low = above[..., at], below[..., at]
            above[..., at] = torch.where((entries > 0) & (left < most), left, most)
            below[..., at] = torch.where((entries < 0) & (left > low), left, low)
    return below, above
