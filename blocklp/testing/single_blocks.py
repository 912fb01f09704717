"""Checks of functions of one block (:class:`HasProxBlock`) against what a type says of all together."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from blocklp.blocks.capabilities import constraints_of
from blocklp.blocks.contract import BlockType
from blocklp.blocks.refusals import refuse, size
from blocklp.testing.block_functions import completed_of, point_of, value_of

FEW = 40
"""Blocks that are looked at alone."""


def value_of_one(kind: BlockType, cost: Tensor, point: Tensor, value: Tensor) -> None:
    """Check that the values of some blocks alone are those of all blocks together.

    Parameters
    ----------
    kind : BlockType
        The type.
    cost, point : Tensor
        ``(batch, blocks, dim)`` float64: costs and minimisers.
    value : Tensor
        ``(batch, blocks)``: least values.

    Raises
    ------
    OracleError
        If one differs.
    """
    bad = torch.zeros_like(value, dtype=torch.bool)
    for place in some_blocks(cost):
        away = abs(value_of(kind, place, cost[place]) - float(value[place]))
        bad[place] = away > 1e-10 * float(size(cost, point)[place])
    refuse(kind, bad, "has another value in min_block() than min_oracle gives")


def proximal_of_one(kind: BlockType, points: Tensor, cost: Tensor, centre: Tensor, step: Tensor) -> None:
    """Check that the proximal points of some blocks alone are those of all blocks together.

    Parameters
    ----------
    kind : BlockType
        The type.
    points, cost, centre : Tensor
        ``(batch, blocks, dim)`` float64: proximal points, costs and centres.
    step : Tensor
        ``(batch, 1, 1)``: proximal step lengths.

    Raises
    ------
    OracleError
        If one differs.
    """
    bad = torch.zeros(cost.shape[:2], dtype=torch.bool)
    scale = points.abs() + centre.abs() + (step * cost).abs()
    for b, k in some_blocks(cost):
        found = point_of(kind, (b, k), cost[b, k], centre[b, k], float(step[b]))
        bad[b, k] = not bool(((found - points[b, k]).abs() <= 1e-8 * scale[b, k].max()).all())
    refuse(kind, bad, "has another proximal point in prox_block() than in prox()")


def completed_alone(kind: BlockType, cost: Tensor, inside: Tensor, values: Tensor | None) -> None:
    """Check that some blocks alone are completed as all blocks together, and that what is outside is told.

    Parameters
    ----------
    kind : BlockType
        The type.
    cost, inside : Tensor
        ``(batch, blocks, dim)`` float64: costs, and points in the blocks.
    values : Tensor or None
        ``(batch, blocks, k)``: the coordinates that only one block has, completed; None where there are none.

    Raises
    ------
    OracleError
        If one differs, or a point outside is not told.
    """
    bad, private = torch.zeros(cost.shape[:2], dtype=torch.bool), cost.shape[-1] - kind.private_coordinates
    told, rows = torch.zeros_like(bad), constraints_of(kind)
    for place in some_blocks(cost):
        point, violation = completed_of(kind, place, cost[place], inside[place])
        wrong = values is not None and bool(
            ((point[private:] - values[place]).abs() > 1e-9 * inside.abs().max()).any()
        )
        bad[place] = wrong or violation > 1e-9
        if rows is not None:
            away, violation = completed_of(kind, place, cost[place], inside[place] + 1 + inside.abs().max())
            outside = rows.block(*place).violation(away[None, None])
            told[place] = violation <= 1e-9 < float(outside)
    refuse(kind, bad, "completes a point in another way in complete_block() than in complete()")
    refuse(kind, told, "does not say in complete_block() that a point is outside the block")


def some_blocks(cost: Tensor) -> list[tuple[int, int]]:
    """Instances and numbers of a few blocks of costs ``(batch, blocks, dim)``."""
    batch, blocks = cost.shape[:2]
    return list(itertools.islice(itertools.product(range(batch), range(blocks)), FEW))


def served(kind: BlockType, cost: Tensor) -> Tensor:
    """The mask ``(dim,)`` of coupled coordinates for which the functions of one block are written."""
    shared = torch.ones(cost.shape[-1], dtype=cost.dtype)
    shared[len(shared) - kind.private_coordinates :] = 0
    return shared
