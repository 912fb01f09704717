"""Probes of a block type: each compares its oracle with something that it must agree with.

:func:`blocklp.check` runs some of them on a model, :class:`blocklp.testing.BlockTypeConformance` all of them
on a type.  A probe raises an :class:`OracleError` that names the first wrong block and how to correct it.
Costs are ``(batch, blocks, dim)`` float64.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from blocklp.blocks.capabilities import (
    HasCompleteBlock,
    HasCompletion,
    HasMinBlock,
    HasMinMarginals,
    HasProx,
    HasProxBlock,
    HasSoftMin,
    constraints_of,
    overlap_of,
    supports,
    vertices_of,
)
from blocklp.blocks.contract import BlockType
from blocklp.blocks.formulas import check_formulas
from blocklp.blocks.oracle_answers import check_answer
from blocklp.blocks.refusals import CHEAPER, refuse, size
from blocklp.errors import OracleError
from blocklp.testing.single_blocks import completed_alone, proximal_of_one, served, value_of_one

Picks = Iterable[tuple[int, int]]
"""Pairs (instance, block)."""

CPU = torch.device("cpu")


def answer(kind: BlockType, cost: Tensor) -> None:
    """Check shapes, dtype, finiteness, value and feasibility, and that the oracle is a pure function."""
    check_formulas(type(kind))
    before = cost.clone()
    given = kind.min_oracle(cost)
    if not torch.equal(cost, before):
        raise OracleError(f"min_oracle of {kind.name} changed its cost in place; work on a copy")
    check_answer(kind, cost, given)
    point, value = given
    if {point.dtype, value.dtype} != {cost.dtype} or {point.device, value.device} != {cost.device}:
        raise OracleError(
            f"min_oracle of {kind.name} got {cost.dtype} on {cost.device} and returned {point.dtype} and "
            f"{value.dtype} on {point.device} and {value.device}; keep dtype and device of the cost"
        )
    again = kind.min_oracle(cost)
    if not (torch.equal(again[0], point) and torch.equal(again[1], value)):
        remedy = "keep no state and break ties by a rule"
        raise OracleError(f"min_oracle of {kind.name} gave two answers for one cost; {remedy}")


def value_alone(kind: BlockType, cost: Tensor) -> None:
    """Check that ``min_value`` is the value of ``min_oracle``, and ``min_block`` too."""
    single = supports(kind, HasMinBlock)
    point, value = kind.min_oracle(cost)
    bad = (kind.min_value(cost) - value).abs() > 1e-10 * size(cost, point)
    refuse(kind, bad, "has another min_value than min_oracle gives; both must minimise over the same block")
    if single:
        value_of_one(kind, cost, point, value)


def proximal(kind: BlockType, cost: Tensor, centre: Tensor, step: Tensor) -> int:
    """Check that proximal points are feasible and that the oracle finds no descent at the gradient there.

    Parameters
    ----------
    kind : BlockType
        The type.
    cost, centre : Tensor
        ``(batch, blocks, dim)`` float64: costs and proximal centres.
    step : Tensor
        ``(batch, 1, 1)`` float64: proximal step lengths, positive.

    Returns
    -------
    int
        For how many masks, with all coordinates coupled or all but one, the type has a formula.

    Raises
    ------
    OracleError
        If a proximal point is wrong.
    """
    prox, scalar = kind.prox if supports(kind, HasProx) else None, supports(kind, HasProxBlock)
    if prox is None:
        if scalar:
            raise OracleError(f"{kind.name} has prox_block() and no prox(), which it stands for; add prox()")
        return 0
    found, rows = 0, constraints_of(kind)
    for shared in shared_masks(cost):
        point = prox(cost, centre, step, shared)
        if point is None:
            continue
        found += 1
        slope = cost + shared * (point - centre) / step
        gap = (slope * point).sum(-1) - kind.min_oracle(slope)[1]
        scale = size(cost.abs() + shared * (point - centre).abs() / step, point)
        bad = gap.abs() > 1e-9 * scale
        refuse(kind, bad, f"has no proximal point from prox() where {shared.tolist()} are shared")
        if rows is not None:
            largest = torch.maximum(point.abs(), centre.abs() + step * cost.abs()).amax(-1)
            outside = rows.violation(point, largest) > 1e-9
            refuse(kind, outside, "has a proximal point that is not in the block")
    if scalar:
        shared = served(kind, cost)
        points = prox(cost, centre, step, shared)
        if points is None:
            need = f"prox_block() and no prox() where {shared.tolist()} are shared, which it stands for"
            raise OracleError(f"{kind.name} has {need}; add it")
        proximal_of_one(kind, points, cost, centre, step)
    return found


def completion(kind: BlockType, cost: Tensor, other: Tensor) -> int:
    """Check that completed points are feasible and cost no more than the points that they replace.

    Parameters
    ----------
    kind, cost : BlockType, Tensor
        The type, and costs ``(batch, blocks, dim)`` float64.
    other : Tensor
        ``(batch, blocks, dim)`` float64: costs whose minimisers give a point inside each block.

    Returns
    -------
    int
        For how many masks the type has a formula.

    Raises
    ------
    OracleError
        If a completed point is wrong.
    """
    one = supports(kind, HasCompleteBlock)
    complete = kind.complete if supports(kind, HasCompletion) else None
    if complete is None:
        return 0
    found, rows = 0, constraints_of(kind)
    inside = (kind.min_oracle(other)[0] + kind.min_oracle(-other)[0] + kind.min_oracle(cost.flip(-1))[0]) / 3
    for shared in shared_masks(cost)[1:]:
        values = complete(cost, inside, shared)
        if values is None:
            continue
        found += 1
        point = inside.clone()
        point[..., shared == 0] = values
        dearer = ((point - inside) * cost).sum(-1) > 1e-9 * size(cost, point)
        where = f"where {shared.tolist()} are shared"
        refuse(kind, dearer, f"completes a point by values that cost more than it had, {where}")
        if rows is not None:
            largest = inside.abs().amax(-1)
            refuse(kind, rows.violation(point, largest) > 1e-9, "completes a point outside the block")
    if one:
        completed_alone(kind, cost, inside, complete(cost, inside, served(kind, cost)))
    return found


def listed(kind: BlockType, cost: Tensor) -> None:
    """Check that values are the least costs of vertices in the type's table, if it states one."""
    table = vertices_of(kind)
    if table is None:
        return
    if table.dim() != 2 or table.shape[1] != cost.shape[-1]:
        need = f"give (vertices, {cost.shape[-1]})"
        raise OracleError(f"vertex_table of {kind.name} has shape {tuple(table.shape)}; {need}")
    point, value = kind.min_oracle(cost)
    differs = ((cost @ table.to(cost).T).amin(-1) - value).abs() > 1e-9 * size(cost, point)
    remedy = "correct min_oracle() or vertex_table()"
    refuse(kind, differs, f"has another value than the best vertex of its table; {remedy}")


def marginals(kind: BlockType, cost: Tensor) -> bool:
    """Check min-marginals, and that they may be subtracted from the cost as ``overlap`` says.

    The oracle gives the truth, by costs that drive each coordinate to 1 and to 0.  Returns whether the type
    has a formula for min-marginals.
    """
    found = kind.min_marginals(cost) if supports(kind, HasMinMarginals) else None
    if found is None:
        return False
    if found.shape != cost.shape or found.dtype != cost.dtype:
        raise OracleError(
            f"min_marginals of {kind.name} got {cost.dtype} {tuple(cost.shape)} and returned {found.dtype} "
            f"{tuple(found.shape)}; keep both"
        )
    point, value = kind.min_oracle(cost)
    slack = 1e-9 * size(cost, point)
    beyond = 1 + 2 * (value + kind.min_oracle(-cost)[1]).abs()
    for i in range(cost.shape[-1]):
        sides = []
        for at in (1.0, 0.0):
            driven = cost.clone()
            driven[..., i] += (1 - 2 * at) * beyond
            best = kind.min_oracle(driven)[0]
            sides.append(torch.where((best[..., i] - at).abs() < 1e-9, (cost * best).sum(-1), torch.inf))
        own, expected = found[..., i], sides[0] - sides[1]
        wrong = (own != expected) & ~((own - expected).abs() <= slack) & ~own.isnan()
        truth = "its best value with 1 minus that with 0"
        refuse(kind, wrong, f"has a min-marginal of coordinate {i} that is not {truth}")
    finite = torch.where(found.isfinite(), found, 0.0)
    for shared in shared_masks(cost):
        given = shared * finite / overlap_of(kind, shared)
        fallen = kind.min_oracle(cost - given)[1] < value + given.neg().clamp(min=0).sum(-1) - slack
        where = f"where {shared.tolist()} are shared"
        refuse(kind, fallen, f"loses value to its min-marginals {where}; return a larger overlap()")
    return True


def soft_minimum(kind: BlockType, cost: Tensor, direction: Tensor) -> bool:
    """Check that the soft minimum comes with the minimum, tends to it, and has its point as gradient.

    Parameters
    ----------
    kind, cost
        As in :func:`completion`.
    direction : Tensor
        ``(batch, blocks, dim)`` float64: the direction of a derivative by finite differences.

    Returns
    -------
    bool
        Whether the type has a soft minimum.

    Raises
    ------
    OracleError
        If a soft minimum is wrong.
    """
    soft_min = kind.soft_min if supports(kind, HasSoftMin) else None
    if soft_min is None:
        return False
    temperature = torch.full((len(cost), 1, 1), 0.7, dtype=cost.dtype)
    found = soft_min(cost, temperature)
    if found is None:
        return False
    point, value, excess = found
    best, expected = kind.min_oracle(cost)
    scale = size(cost, best)
    wrong = (value - expected).abs() > 1e-10 * scale
    refuse(kind, wrong, "has another minimum in soft_min than min_oracle gives")
    refuse(kind, ~(excess >= 0), "has a soft minimum above its minimum")
    cold = soft_min(cost, 1e-9 * temperature)
    assert cold is not None
    wrong = cold[2] > 1e-6
    refuse(kind, wrong, "has a soft minimum that does not tend to its minimum as the temperature falls")
    step = 1e-4
    sides = [soft_min(cost + sign * step * direction, temperature) for sign in (1, -1)]
    ahead, behind = (side[1] - side[2] for side in sides if side is not None)
    slope, reach = (direction * point).sum(-1), size(direction, torch.maximum(point.abs(), best.abs()))
    wrong = ((ahead - behind) / (2 * step) - slope).abs() > 1e-6 * (1 + reach) ** 3
    refuse(kind, wrong, "has a point in soft_min that is not the gradient of the soft minimum")
    return True


def shared_masks(cost: Tensor) -> list[Tensor]:
    """Masks ``(dim,)`` of coupled coordinates: all of them, and all but one."""
    every = torch.ones(cost.shape[-1], dtype=cost.dtype)
    return [every, *(every.index_fill(0, torch.tensor([i]), 0.0) for i in range(len(every)))]


def homogeneity(kind: BlockType, cost: Tensor) -> None:
    """Check that the value of ``t * cost`` is ``t`` times the value, for nonnegative ``t``."""
    point, value = kind.min_oracle(cost)
    for factor in (0.0, 0.3, 8.0):
        slack = 1e-10 * (1 + factor) * size(cost, point)
        bad = (kind.min_oracle(factor * cost)[1] - factor * value).abs() > slack
        what = f"has another value than {factor} times its value when the cost is scaled by that"
        refuse(kind, bad, f"{what}; do not clip costs")


def concavity(kind: BlockType, first: Tensor, second: Tensor) -> None:
    """Check that the value is concave in the cost and each minimiser a supergradient.

    Parameters
    ----------
    kind : BlockType
        The type.
    first, second : Tensor
        ``(batch, blocks, dim)`` float64: two costs; at each, the minimiser of the other is no better than the
        minimum.

    Raises
    ------
    OracleError
        If that is not so.
    """
    point, value = kind.min_oracle(first)
    other_point, other = kind.min_oracle(second)
    slack = 1e-10 * (size(first, point) + size(second, point) + size(second, other_point))
    bad = (second * point).sum(-1) < other - slack
    refuse(kind, bad, CHEAPER)
    middle = kind.min_oracle((first + second) / 2)[1]
    bad = middle < (value + other) / 2 - slack
    refuse(kind, bad, "has a value that is not concave in the cost; minimise over the whole block")


def singles(kind: BlockType, cost: Tensor, picks: Picks) -> None:
    """Check that a block alone, with its own data, has the value that it has among the others.

    Parameters
    ----------
    kind, cost, picks
        As in :func:`blocklp.testing.lp_probes.optimality`.

    Raises
    ------
    OracleError
        If the values differ.
    """
    point, value = kind.min_oracle(cost)
    slack = 1e-10 * size(cost, point)
    for i, b in picks:
        alone = cost[i : i + 1, b : b + 1]
        found, own = one_block(kind, i, b).min_oracle(alone)
        bad = torch.stack([own, (alone * found).sum(-1)]).sub(value[i, b]).abs().amax() > slack[i, b]
        if bool(bad):
            raise OracleError(
                f"{kind.name}: block {b} of instance {i} has value {float(value[i, b])!r} in the batch and "
                f"{float(own)!r} alone; keep blocks and instances apart, and list their data in block_data"
            )


def order(kind: BlockType, cost: Tensor, permutation: Tensor) -> None:
    """Check that blocks in another order, with their data, have their values in that order.

    Parameters
    ----------
    kind, cost
        As in :func:`completion`.
    permutation : Tensor
        ``(blocks,)`` int64: the other order.

    Raises
    ------
    OracleError
        If a value changes.
    """
    point, value = kind.min_oracle(cost)
    data = {k: v[:, permutation] for k, v in kind.tensors().items() if v.shape[1] > 1}
    found = kind.with_data(**data).min_oracle(cost[:, permutation])[1]
    bad = (found - value[:, permutation]).abs() > 1e-10 * size(cost, point)[:, permutation]
    remedy = "list what belongs to a block in block_data"
    refuse(kind, bad, f"changes its value with the order of the blocks; {remedy}")


def layout(kind: BlockType, cost: Tensor) -> None:
    """Check that a cost that is a strided view gives the answer of the contiguous one."""
    point, value = kind.min_oracle(cost.contiguous())
    found, same = kind.min_oracle(cost.transpose(1, 2).contiguous().transpose(1, 2))
    off = torch.maximum((same - value).abs(), ((cost * found).sum(-1) - value).abs())
    bad = off > 1e-10 * size(cost, point)
    refuse(kind, bad, "answers a strided cost differently; use reshape, not storage order")


def precision(kind: BlockType, cost: Tensor) -> None:
    """Check that the value in float32 is that of float64, up to rounding."""
    rounded = cost.float()
    point, value = kind.min_oracle(rounded.double())
    found, low = kind.to(torch.float32, cost.device).min_oracle(rounded)
    if found.dtype != torch.float32 or low.dtype != torch.float32:
        remedy = "use tensors in the dtype of the cost"
        raise OracleError(f"min_oracle of {kind.name} turns float32 into {found.dtype}; {remedy}")
    drift = torch.maximum((low - value).abs(), ((rounded * found).double().sum(-1) - value).abs())
    bad = drift > 1e-4 * size(cost, point)
    refuse(kind, bad, "loses its value in float32; avoid differences of large numbers")


def one_block(kind: BlockType, instance: int, block: int) -> BlockType:
    """The type with the data of one block alone.

    Parameters
    ----------
    kind : BlockType
        The type of all blocks.
    instance, block : int
        Which block.

    Returns
    -------
    BlockType
        With block data ``(1, 1, ...)``.
    """
    return kind.with_data(
        **{
            k: v[instance % v.shape[0], block % v.shape[1]][None, None]
            for k, v in kind.tensors().items()
            if v.shape[0] > 1 or v.shape[1] > 1
        }
    )
