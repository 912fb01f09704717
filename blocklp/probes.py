"""Probes of a block type: each compares its oracle with something that it must agree with.

:func:`blocklp.check` runs some of them on a model, :class:`blocklp.testing.BlockTypeConformance` all of them on a type.
A probe returns nothing, or raises an :class:`OracleError` that names the first wrong block and the mend.  Costs are
``(batch, blocks, dim)`` float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

import torch
from torch import Tensor

from blocklp.answers import check_answer
from blocklp.block import BlockType, Constraints
from blocklp.errors import OracleError
from blocklp.finite import FiniteVertices
from blocklp.small_lp import exact_minimum, minimum

Picks = Iterable[tuple[int, int]]
"""Pairs (instance, block)."""

CPU = torch.device("cpu")

RATIONAL = 32
"""Most variables of a block whose LP is solved in rationals."""


def answer(kind: BlockType, cost: Tensor) -> None:
    """Shapes, dtype, finiteness, value, feasibility, and that the oracle is pure: no change of its input, same answer again."""
    before = cost.clone()
    given = kind.min_oracle(cost)
    if not torch.equal(cost, before):
        raise OracleError(f"min_oracle of {kind.name} changed its cost in place; work on a copy")
    check_answer(kind, cost, given)
    point, value = given
    if {point.dtype, value.dtype} != {cost.dtype} or {point.device, value.device} != {cost.device}:
        raise OracleError(
            f"min_oracle of {kind.name} got {cost.dtype} on {cost.device} and returned {point.dtype} and {value.dtype} on "
            f"{point.device} and {value.device}; keep dtype and device of the cost"
        )
    again = kind.min_oracle(cost)
    if not (torch.equal(again[0], point) and torch.equal(again[1], value)):
        raise OracleError(f"min_oracle of {kind.name} gave two answers for one cost; keep no state and break ties by a rule")


def value_alone(kind: BlockType, cost: Tensor) -> None:
    """``min_value`` is the value of ``min_oracle``."""
    point, value = kind.min_oracle(cost)
    bad = (kind.min_value(cost) - value).abs() > 1e-10 * size(cost, point)
    refuse(kind, bad, "has another min_value than min_oracle gives; both must minimise over the same block")


def proximal(kind: BlockType, cost: Tensor, centre: Tensor, step: Tensor) -> int:
    """Proximal points are feasible and leave no descent: the oracle finds nothing below them at the gradient there.

    Tries all coordinates shared and all but one; returns how many of these the type has a formula for.
    """
    found, rows = 0, kind.constraints()
    for shared in shared_masks(cost):
        point = kind.prox(cost, centre, step, shared)
        if point is None:
            continue
        found += 1
        slope = cost + shared * (point - centre) / step
        gap = (slope * point).sum(-1) - kind.min_oracle(slope)[1]
        scale = size(cost.abs() + shared * (point - centre).abs() / step, point)
        refuse(kind, gap.abs() > 1e-9 * scale, f"has no proximal point from prox() where {shared.tolist()} are shared")
        if rows is not None:
            largest = torch.maximum(point.abs(), centre.abs() + step * cost.abs()).amax(-1)
            refuse(kind, rows.violation(point, largest) > 1e-9, "has a proximal point that is not in the block")
    return found


def completion(kind: BlockType, cost: Tensor, other: Tensor) -> int:
    """Completed points are feasible and no dearer than what they replace; returns how many masks the type has a formula for."""
    found, rows = 0, kind.constraints()
    inside = (kind.min_oracle(other)[0] + kind.min_oracle(-other)[0] + kind.min_oracle(cost.flip(-1))[0]) / 3
    for shared in shared_masks(cost)[1:]:
        values = kind.complete(cost, inside, shared)
        if values is None:
            continue
        found += 1
        point = inside.clone()
        point[..., shared == 0] = values
        dearer = ((point - inside) * cost).sum(-1) > 1e-9 * size(cost, point)
        refuse(kind, dearer, f"completes a point by values that cost more than it had, where {shared.tolist()} are shared")
        if rows is not None:
            largest = inside.abs().amax(-1)
            refuse(kind, rows.violation(point, largest) > 1e-9, "completes a point outside the block")
    return found


def listed(kind: BlockType, cost: Tensor) -> None:
    """The least cost of a vertex in the table, if the type states one, is the value of every block."""
    table = kind.vertex_table()
    if table is None:
        return
    if table.dim() != 2 or table.shape[1] != cost.shape[-1]:
        raise OracleError(f"vertex_table of {kind.name} has shape {tuple(table.shape)}; give (vertices, {cost.shape[-1]})")
    point, value = kind.min_oracle(cost)
    apart = ((cost @ table.to(cost).T).amin(-1) - value).abs() > 1e-9 * size(cost, point)
    refuse(kind, apart, "has another value than the best vertex of its table; correct min_oracle() or vertex_table()")


def marginals(kind: BlockType, cost: Tensor) -> bool:
    """Min-marginals are what the oracle says with each coordinate driven to 1 and to 0, and may be subtracted as ``overlap`` says.

    Returns whether the type has a formula for them.
    """
    found = kind.min_marginals(cost)
    if found is None:
        return False
    if found.shape != cost.shape or found.dtype != cost.dtype:
        raise OracleError(
            f"min_marginals of {kind.name} got {cost.dtype} {tuple(cost.shape)} and returned {found.dtype} {tuple(found.shape)}; "
            f"keep both"
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
        refuse(kind, wrong, f"has a min-marginal of coordinate {i} that is not its best value with 1 minus that with 0")
    finite = torch.where(found.isfinite(), found, 0.0)
    for shared in shared_masks(cost):
        given = shared * finite / kind.overlap(shared)
        fallen = kind.min_oracle(cost - given)[1] < value + given.neg().clamp(min=0).sum(-1) - slack
        refuse(kind, fallen, f"loses value to its min-marginals where {shared.tolist()} are shared; return a larger overlap()")
    return True


def soft_minimum(kind: BlockType, cost: Tensor, direction: Tensor) -> bool:
    """The soft minimum comes with the minimum, tends to it, and has its point as gradient; returns whether the type has one."""
    temperature = torch.full((len(cost), 1, 1), 0.7, dtype=cost.dtype)
    found = kind.soft_min(cost, temperature)
    if found is None:
        return False
    point, value, excess = found
    best, expected = kind.min_oracle(cost)
    scale = size(cost, best)
    refuse(kind, (value - expected).abs() > 1e-10 * scale, "has another minimum in soft_min than min_oracle gives")
    refuse(kind, ~(excess >= 0), "has a soft minimum above its minimum")
    cold = kind.soft_min(cost, 1e-9 * temperature)
    assert cold is not None
    refuse(kind, cold[2] > 1e-6, "has a soft minimum that does not tend to its minimum as the temperature falls")
    step = 1e-4
    sides = [kind.soft_min(cost + sign * step * direction, temperature) for sign in (1, -1)]
    ahead, behind = (side[1] - side[2] for side in sides if side is not None)
    slope, reach = (direction * point).sum(-1), size(direction, best)
    wrong = ((ahead - behind) / (2 * step) - slope).abs() > 1e-6 * (1 + reach) ** 3
    refuse(kind, wrong, "has a point in soft_min that is not the gradient of the soft minimum")
    return True


def shared_masks(cost: Tensor) -> list[Tensor]:
    """All coordinates shared, and all but one."""
    every = torch.ones(cost.shape[-1], dtype=cost.dtype)
    return [every, *(every.index_fill(0, torch.tensor([i]), 0.0) for i in range(len(every)))]


def homogeneity(kind: BlockType, cost: Tensor) -> None:
    """The value of ``t * cost`` is ``t`` times the value, for positive ``t``."""
    point, value = kind.min_oracle(cost)
    for factor in (0.0, 0.3, 8.0):
        bad = (kind.min_oracle(factor * cost)[1] - factor * value).abs() > 1e-10 * (1 + factor) * size(cost, point)
        refuse(kind, bad, f"has another value than {factor} times its value when the cost is scaled by that; do not clip costs")


def concavity(kind: BlockType, first: Tensor, second: Tensor) -> None:
    """The value is concave in the cost, and each minimiser is a supergradient: it costs no less than the minimum elsewhere."""
    point, value = kind.min_oracle(first)
    other_point, other = kind.min_oracle(second)
    slack = 1e-10 * (size(first, point) + size(second, point) + size(second, other_point))
    bad = (second * point).sum(-1) < other - slack
    refuse(kind, bad, "returned a point that is cheaper at another cost than the minimum there; minimise over the whole block")
    middle = kind.min_oracle((first + second) / 2)[1]
    refuse(kind, middle < (value + other) / 2 - slack, "has a value that is not concave in the cost; minimise over the whole block")


def singles(kind: BlockType, cost: Tensor, picks: Picks) -> None:
    """A block asked alone, with its own data, gives what it gives among the others."""
    point, value = kind.min_oracle(cost)
    slack = 1e-10 * size(cost, point)
    for i, b in picks:
        alone = cost[i : i + 1, b : b + 1]
        found, own = one_block(kind, i, b).min_oracle(alone)
        bad = torch.stack([own, (alone * found).sum(-1)]).sub(value[i, b]).abs().amax() > slack[i, b]
        if bool(bad):
            raise OracleError(
                f"{kind.name}: block {b} of instance {i} has value {float(value[i, b])!r} in the batch and {float(own)!r} "
                f"alone; keep blocks and instances apart, and list their data in block_data"
            )


def order(kind: BlockType, cost: Tensor, permutation: Tensor) -> None:
    """Blocks in another order, with their data, give their answers in that order."""
    point, value = kind.min_oracle(cost)
    data = {k: v[:, permutation] for k, v in kind.tensors().items() if v.shape[1] > 1}
    found = kind.with_data(**data).min_oracle(cost[:, permutation])[1]
    bad = (found - value[:, permutation]).abs() > 1e-10 * size(cost, point)[:, permutation]
    refuse(kind, bad, "changes its value with the order of the blocks; list what belongs to a block in block_data")


def layout(kind: BlockType, cost: Tensor) -> None:
    """A cost that is a strided view gives the answer of the contiguous one."""
    point, value = kind.min_oracle(cost.contiguous())
    found, same = kind.min_oracle(cost.transpose(1, 2).contiguous().transpose(1, 2))
    bad = torch.maximum((same - value).abs(), ((cost * found).sum(-1) - value).abs()) > 1e-10 * size(cost, point)
    refuse(kind, bad, "answers a strided cost differently; use reshape, not storage order")


def precision(kind: BlockType, cost: Tensor) -> None:
    """In float32 the value is that of float64, up to rounding."""
    rounded = cost.float()
    point, value = kind.min_oracle(rounded.double())
    found, low = kind.to(torch.float32, cost.device).min_oracle(rounded)
    if found.dtype != torch.float32 or low.dtype != torch.float32:
        raise OracleError(f"min_oracle of {kind.name} turns float32 into {found.dtype}; use tensors in the dtype of the cost")
    drift = torch.maximum((low - value).abs(), ((rounded * found).double().sum(-1) - value).abs())
    refuse(kind, drift > 1e-4 * size(cost, point), "loses its value in float32; avoid differences of large numbers")


def optimality(kind: BlockType, cost: Tensor, picks: Picks) -> int:
    """The value is the optimum of an LP over :meth:`BlockType.constraints`; return the number of LPs solved."""
    constraints = kind.constraints()
    if constraints is None:
        return 0
    point, value = kind.min_oracle(cost)
    solved = 0
    for i, b in picks:
        slack, own = lp_slack(cost[i, b], point[i, b]), float(value[i, b])

        def agrees(optimum: float | None, own: float = own, slack: float = slack, i: int = i, b: int = b) -> bool:
            # What the type says that rounding takes off may be missing, but nothing may come on top.
            off = torch.nan if optimum is None else own - optimum
            return -slack <= off <= slack or -slack - admitted(kind, cost, i, b) <= off <= slack

        optimum = agreed(agrees, constraints, cost, i, b)
        if optimum is None:
            raise OracleError(f"{kind.name}: the constraints of block {b} of instance {i} have no point; correct constraints()")
        if not agrees(optimum):
            raise OracleError(
                f"{kind.name}: block {b} of instance {i} has value {own!r} and an LP over its constraints {optimum!r}; one of "
                f"min_oracle() and constraints() is wrong, at cost {cost[i, b].tolist()}"
            )
        solved += 1
    return solved


def rounding_error(kind: BlockType, cost: Tensor, picks: Picks) -> int:
    """``value_error`` covers the distance to the minimum in exact arithmetic; return the number of exact minima.

    ``cost`` may be float32: the type is then used in float32, and the exact minimum is that of its float64 data.
    """
    working = kind.to(cost.dtype, CPU)
    error = working.value_error(cost)
    constraints = kind.constraints()
    if error is None or (constraints is None and not isinstance(kind, FiniteVertices)):
        return 0
    value = working.min_oracle(cost)[1]
    if error.shape != value.shape or bool((error < 0).any()) or bool(error.isnan().any()):
        raise OracleError(f"value_error of {kind.name} must be nonnegative, of shape {tuple(value.shape)}")
    done = 0
    for i, b in picks:
        entries = cost[i, b].tolist()
        if isinstance(kind, FiniteVertices):
            exact = min(sum(Fraction(c) * Fraction(v) for c, v in zip(entries, row, strict=True)) for row in kind.table.tolist())
        else:
            assert constraints is not None
            found = exact_minimum(entries, *(t.tolist() for t in block_rows(constraints, i, b)))
            assert found is not None
            exact = Fraction(found)
        distance = abs(exact - Fraction(float(value[i, b])))
        if distance > Fraction(float(error[i, b])):
            raise OracleError(
                f"{kind.name}: block {b} of instance {i} is off its exact minimum by {float(distance):.3g} in {cost.dtype}, "
                f"value_error says {float(error[i, b]):.3g}, at cost {entries}; charge every rounding, or return None"
            )
        done += 1
    return done


def restriction(kind: BlockType, cost: Tensor, lower: Tensor, upper: Tensor, picks: Picks) -> int:
    """``restrict`` gives the optimum over constraints and box, a huge value if there is no point; return the LPs solved.

    ``lower`` and ``upper`` are ``(batch or 1, blocks, dim)``.
    """
    constraints, restricted = kind.constraints(), kind.restrict(lower, upper)
    if constraints is None or restricted is None:
        return 0
    point, value = restricted.min_oracle(cost)
    solved = 0
    for i, b in picks:
        box = lower[i % len(lower), b], upper[i % len(upper), b]
        own, slack = float(value[i, b]), lp_slack(cost[i, b], point[i, b])
        # Without a point the value must prove it: above the largest cost of a point in the box.
        beyond = float(torch.maximum(cost[i, b] * box[0], cost[i, b] * box[1]).sum())

        def agrees(optimum: float | None, own: float = own, slack: float = slack, beyond: float = beyond) -> bool:
            return own > beyond if optimum is None else abs(own - optimum) <= slack

        optimum = agreed(agrees, constraints, cost, i, b, box)
        if not agrees(optimum):
            raise OracleError(
                f"{kind.name}: block {b} of instance {i}, restricted to {[t.tolist() for t in box]}, has value {own!r}; an "
                f"LP says {optimum!r} at cost {cost[i, b].tolist()}; return the exact intersection from restrict(), or None"
            )
        solved += 1
    return solved


Box = tuple[Tensor, Tensor]
"""Lower and upper bounds ``(dim,)`` of the variables of one block."""


def agreed(
    agrees: Callable[[float | None], bool], constraints: Constraints, cost: Tensor, instance: int, block: int, box: Box | None = None
) -> float | None:
    """Optimum of an LP over the constraints of one block, and a box if given; ``None`` if there is no point.

    Where the answer of HiGHS does not agree, rational arithmetic decides: HiGHS takes entries below 1e-9 for zero.
    """
    own, c = constraints.block(instance, block), cost[instance, block].double()
    if box is not None:
        own = own.within(*(side[None, None] for side in box))
    none = torch.full_like(c, torch.inf)
    low, high = (-none, none) if own.below is None or own.above is None else (own.below[0, 0], own.above[0, 0])
    matrix, lower, upper = (t[0, 0].numpy() for t in (own.matrix, own.lower, own.upper))
    point = minimum(c.numpy(), matrix, lower, upper, low.numpy(), high.numpy())
    optimum = None if point is None else float(c.numpy() @ point)
    if agrees(optimum) or len(c) > RATIONAL:
        return optimum
    exact = exact_minimum(c.tolist(), *(t.tolist() for t in block_rows(own, 0, 0)))
    return None if exact is None else float(exact)


def lp_slack(cost: Tensor, point: Tensor) -> float:
    """Difference of values that the tolerance of an LP solver explains: coordinates may be large, and cancel."""
    return float(1e-6 * (1e-3 + cost.abs().sum()) + 1e-9 * (cost * point).abs().sum())


def admitted(kind: BlockType, cost: Tensor, instance: int, block: int) -> float:
    """The rounding error of a value that its type states."""
    error = kind.value_error(cost)
    return 0.0 if error is None else float(error[instance, block])


def block_rows(constraints: Constraints, instance: int, block: int) -> tuple[Tensor, ...]:
    """Matrix, lower and upper sides of one block, its bounds as further rows."""
    own = constraints.block(instance, block).bounds_as_rows()
    return own.matrix[0, 0], own.lower[0, 0], own.upper[0, 0]


def one_block(kind: BlockType, instance: int, block: int) -> BlockType:
    """The type with the data of one block alone."""
    return kind.with_data(
        **{
            k: v[instance % v.shape[0], block % v.shape[1]][None, None]
            for k, v in kind.tensors().items()
            if v.shape[0] > 1 or v.shape[1] > 1
        }
    )


def size(cost: Tensor, point: Tensor) -> Tensor:
    """Magnitude against which differences of values are judged: ``(batch, blocks)``."""
    return (cost.abs() * (1 + point.abs())).sum(-1).double()


def refuse(kind: BlockType, bad: Tensor, complaint: str) -> None:
    """Raise if any block ``(batch, blocks)`` is bad, naming the first."""
    if bool(bad.any()):
        i, b = bad.nonzero()[0].tolist()
        raise OracleError(f"{kind.name}: block {b} of instance {i} {complaint}")
