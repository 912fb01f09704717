"""Probes of a block type against other solvers: LPs over its constraints, in floating point and in rationals.

See :mod:`blocklp.testing.probes` for those that need the oracle alone.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasRestriction, constraints_of, supports, value_error_of, vertices_of
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.errors import OracleError
from blocklp.general_solvers.small_lp import exact_minimum, minimum
from blocklp.testing.probes import Picks

CPU = torch.device("cpu")

RATIONAL = 32
"""Most variables of a block whose LP is solved in rationals."""

Box = tuple[Tensor, Tensor]
"""Lower and upper bounds ``(dim,)`` of the variables of one block."""


def optimality(kind: BlockType, cost: Tensor, picks: Picks) -> int:
    """Check that values are optima of LPs over the constraints that a type states.

    Parameters
    ----------
    kind : BlockType
        The type.
    cost : Tensor
        ``(batch, blocks, dim)`` float64: costs.
    picks : iterable of (int, int)
        Instances and blocks to check.

    Returns
    -------
    int
        LPs solved; 0 if the type states no constraints.

    Raises
    ------
    OracleError
        If a value is another one, or constraints have no point.
    """
    constraints = constraints_of(kind)
    if constraints is None:
        return 0
    point, value = kind.min_oracle(cost)
    solved = 0
    for i, b in picks:
        slack, own = lp_slack(cost[i, b], point[i, b]), float(value[i, b])

        def agrees(
            optimum: float | None,
            own: float = own,
            slack: float = slack,
            i: int = i,
            b: int = b,
        ) -> bool:
            # The value may be too low by the rounding error that the type states, but never too high.
            off = torch.nan if optimum is None else own - optimum
            return -slack <= off <= slack or -slack - admitted(kind, cost, i, b) <= off <= slack

        optimum = agreed(agrees, constraints, cost, i, b)
        if optimum is None:
            where = f"the constraints of block {b} of instance {i}"
            raise OracleError(f"{kind.name}: {where} have no point; correct constraints()")
        if not agrees(optimum):
            raise OracleError(
                f"{kind.name}: block {b} of instance {i} has value {own!r} and an LP over its constraints "
                f"{optimum!r}; one of min_oracle() and constraints() is wrong, at cost {cost[i, b].tolist()}"
            )
        solved += 1
    return solved


def rounding_error(kind: BlockType, cost: Tensor, picks: Picks) -> int:
    """Check that ``value_error`` covers the distance to the minimum in exact arithmetic.

    Parameters
    ----------
    kind : BlockType
        The type.
    cost : Tensor
        ``(batch, blocks, dim)``: costs; where they are float32 the type is used in float32, and the exact
        minimum is that of its float64 data.
    picks : iterable of (int, int)
        Instances and blocks to check.

    Returns
    -------
    int
        Exact minima found; 0 if the type states no error, or neither constraints nor vertices.

    Raises
    ------
    OracleError
        If an error is too small, negative or NaN.
    """
    working = kind.to(cost.dtype, CPU)
    error = value_error_of(working, cost)
    constraints, table = constraints_of(kind), vertices_of(kind)
    if error is None or (constraints is None and table is None):
        return 0
    value = working.min_oracle(cost)[1]
    if error.shape != value.shape or bool((error < 0).any()) or bool(error.isnan().any()):
        raise OracleError(f"value_error of {kind.name} must be nonnegative, of shape {tuple(value.shape)}")
    done = 0
    for i, b in picks:
        entries = cost[i, b].tolist()
        if table is not None:
            terms = (zip(entries, row, strict=True) for row in table.tolist())
            exact = min(sum(Fraction(c) * Fraction(v) for c, v in pairs) for pairs in terms)
        else:
            assert constraints is not None
            found = exact_minimum(entries, *(t.tolist() for t in block_rows(constraints, i, b)))
            assert found is not None
            exact = Fraction(found)
        distance = abs(exact - Fraction(float(value[i, b])))
        if distance > Fraction(float(error[i, b])):
            raise OracleError(
                f"{kind.name}: block {b} of instance {i} is off its exact minimum by {float(distance):.3g} "
                f"in {cost.dtype}, value_error says {float(error[i, b]):.3g}, at cost {entries}; "
                f"charge every rounding, or return None"
            )
        done += 1
    return done


def restriction(kind: BlockType, cost: Tensor, lower: Tensor, upper: Tensor, picks: Picks) -> int:
    """Check that ``restrict`` gives optima over constraints and box, huge values where there is no point.

    Parameters
    ----------
    kind, cost, picks
        As in :func:`optimality`.
    lower, upper : Tensor
        ``(batch or 1, blocks, dim)`` float64: the box.

    Returns
    -------
    int
        LPs solved; 0 if the type states no constraints or has no restriction.

    Raises
    ------
    OracleError
        If a value is another one.
    """
    constraints = constraints_of(kind)
    restricted = kind.restrict(lower, upper) if supports(kind, HasRestriction) else None
    if constraints is None or restricted is None:
        return 0
    point, value = restricted.min_oracle(cost)
    solved = 0
    for i, b in picks:
        box = lower[i % len(lower), b], upper[i % len(upper), b]
        own, slack = float(value[i, b]), lp_slack(cost[i, b], point[i, b])
        # Without a point the value must prove it: above the largest cost of a point in the box.
        beyond = float(torch.maximum(cost[i, b] * box[0], cost[i, b] * box[1]).sum())

        def agrees(
            optimum: float | None,
            own: float = own,
            slack: float = slack,
            beyond: float = beyond,
        ) -> bool:
            return own > beyond if optimum is None else abs(own - optimum) <= slack

        optimum = agreed(agrees, constraints, cost, i, b, box)
        if not agrees(optimum):
            raise OracleError(
                f"{kind.name}: block {b} of instance {i}, restricted to {[t.tolist() for t in box]}, "
                f"has value {own!r}; an LP says {optimum!r} at cost {cost[i, b].tolist()}; "
                f"return the exact intersection from restrict(), or None"
            )
        solved += 1
    return solved


def agreed(
    agrees: Callable[[float | None], bool],
    constraints: Constraints,
    cost: Tensor,
    instance: int,
    block: int,
    box: Box | None = None,
) -> float | None:
    """Optimum of an LP over the constraints of one block.

    Parameters
    ----------
    agrees : callable
        Whether an optimum agrees with the oracle.  Where that of HiGHS does not, rational arithmetic decides,
        as HiGHS takes entries below 1e-9 for zero.
    constraints : Constraints
        The rows of all blocks.
    cost : Tensor
        ``(batch, blocks, dim)`` float64: costs.
    instance, block : int
        Which block.
    box : tuple of Tensor, optional
        Further bounds ``(dim,)`` of its variables.

    Returns
    -------
    float or None
        None if there is no point.
    """
    own, c = constraints.block(instance, block), cost[instance, block].double()
    if box is not None:
        own = own.within(*(side[None, None] for side in box))
    none = torch.full_like(c, torch.inf)
    low, high = -none, none
    if own.below is not None and own.above is not None:
        low, high = own.below[0, 0], own.above[0, 0]
    matrix, lower, upper = (t[0, 0].numpy() for t in (own.matrix, own.lower, own.upper))
    point = minimum(c.numpy(), matrix, lower, upper, low.numpy(), high.numpy())
    optimum = None if point is None else float(c.numpy() @ point)
    if agrees(optimum) or len(c) > RATIONAL:
        return optimum
    exact = exact_minimum(c.tolist(), *(t.tolist() for t in block_rows(own, 0, 0)))
    return None if exact is None else float(exact)


def lp_slack(cost: Tensor, point: Tensor) -> float:
    """Difference of values that the tolerance of an LP solver explains; large coordinates may cancel."""
    return float(1e-6 * (1e-3 + cost.abs().sum()) + 1e-9 * (cost * point).abs().sum())


def admitted(kind: BlockType, cost: Tensor, instance: int, block: int) -> float:
    """The rounding error that a type states for the value of a block.

    Parameters
    ----------
    kind, cost
        As in :func:`optimality`.
    instance, block : int
        Which block.

    Returns
    -------
    float
        In the units of the cost; 0 where none is stated.
    """
    error = value_error_of(kind, cost)
    return 0.0 if error is None else float(error[instance, block])


def block_rows(constraints: Constraints, instance: int, block: int) -> tuple[Tensor, ...]:
    """Rows of one block, its bounds as further rows.

    Parameters
    ----------
    constraints : Constraints
        The rows of all blocks.
    instance, block : int
        Which block.

    Returns
    -------
    matrix, lower, upper : Tensor
        ``(rows, dim)``, ``(rows,)`` and ``(rows,)``.
    """
    own = constraints.block(instance, block).bounds_as_rows()
    return own.matrix[0, 0], own.lower[0, 0], own.upper[0, 0]
