"""Refusing answers of oracles that cannot be right, where a type is declared."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from blocklp.blocks.capabilities import (
    constraints_of,
    integer_constraints_of,
    value_error_of,
)
from blocklp.blocks.contract import BlockType, Stateless
from blocklp.blocks.formulas import check_formulas
from blocklp.blocks.refusals import CHEAPER, refuse
from blocklp.errors import OracleError

LOST = 1e-10
"""Relative error of a value that is no rounding of double precision."""


def ask(kind: BlockType, batch: int, count: int, dim: int) -> None:
    """Ask the oracle of a block type for two costs, and refuse what :func:`check_answer` refuses.

    Parameters
    ----------
    kind : BlockType
        The type.
    batch, count, dim : int
        Instances, blocks and variables of a block in the costs.

    Raises
    ------
    OracleError
        As in :func:`check_answer`, or if one answer is cheaper at the other cost than the minimum there.
    ModelError
        As in :func:`blocklp.blocks.check_formulas`.
    """
    check_formulas(type(kind))
    # Sevenths are no floats, and tell an oracle that calculates in single precision.
    sevenths = (1.0 - 2.0 * (torch.arange(batch * count * dim) % 3)).double().reshape(batch, count, dim) / 7
    sevenths = sevenths.abs() if kind.nonnegative_costs else sevenths
    largest, answers = 0.0, []
    for cost in (sevenths, torch.zeros_like(sevenths)):
        answer = kind.min_oracle(cost)
        largest = max(largest, check_answer(kind, cost, answer, largest))
        if type(kind).min_value is not BlockType.min_value:
            _check_value(kind, cost, answer[0], kind.min_value(cost), "min_value")
        answers.append(answer)
    (_, minimum), (other, _) = answers
    terms = sevenths * other  # of what it answers where all points cost the same
    slack = 1e-6 * (1 + terms.abs().sum(-1) + minimum.abs())
    if (error := value_error_of(kind, sevenths)) is not None:
        slack += error
    refuse(kind, terms.sum(-1) < minimum - slack, CHEAPER)


@functools.lru_cache(16)
def ask_known(which: Stateless, batch: int, count: int, dim: int) -> None:
    """:func:`ask` one object of a class that tells none apart: thousands of models may hold such blocks.

    Parameters
    ----------
    which : Stateless
        The class, by one of its objects.
    batch, count, dim
        As for :func:`ask`.
    """
    ask(which.kind, batch, count, dim)


def check_answer(kind: BlockType, cost: Tensor, answer: object, largest: float = 0.0) -> float:
    """Refuse an oracle's answer that cannot be right.

    Parameters
    ----------
    kind : BlockType
        The type.
    cost : Tensor
        ``(batch, blocks, dim)``: the cost that was given.
    answer : object
        What the oracle returned for it.
    largest : float
        Largest magnitude of a coordinate in other answers: tolerances are relative to all answers so far.

    Returns
    -------
    float
        The largest magnitude of a coordinate in this and in other answers.

    Raises
    ------
    OracleError
        If shapes or dtypes are wrong, entries are not finite, the value is not the point's cost, or was
        calculated in single precision, or the point violates the type's constraints.
    """
    who = f"min_oracle of {kind.name}"
    if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(a, Tensor) for a in answer)):
        raise OracleError(f"{who} must return the tensors (point, value), got {type(answer).__name__}")
    point, value = answer
    if point.shape != cost.shape or value.shape != cost.shape[:2]:
        raise OracleError(
            f"{who} returned point {tuple(point.shape)} and value {tuple(value.shape)}; "
            f"for a cost {tuple(cost.shape)} it must return {tuple(cost.shape)} and {tuple(cost.shape[:2])}"
        )
    if point.dtype != cost.dtype or value.dtype != cost.dtype:
        raise OracleError(
            f"{who} got a cost of {cost.dtype} and returned point and value of {point.dtype} and "
            f"{value.dtype}; calculate in the dtype of the cost: "
            f"bounds are as exact as the values that they sum"
        )
    if not (bool(torch.isfinite(point).all()) and bool(torch.isfinite(value).all())):
        raise OracleError(f"{who} returned NaN or infinite entries for a finite cost")
    if point.requires_grad or value.requires_grad:
        raise OracleError(
            f"{who} returned tensors that require gradients, and bounds are not differentiable in the data "
            f"of a type; detach() the data"
        )
    _check_value(kind, cost, point, value, "min_oracle")
    largest = max(largest, float(point.abs().max()))
    if (rows := integer_constraints_of(kind)) is not None and bool((point != point.round()).any()):
        raise OracleError(f"{who} returned a point that is not integral, as it says that its points are")
    if (constraints := constraints_of(kind) or rows) is not None:
        worst = float(constraints.violation(point, torch.full_like(value, largest)).max())
        if worst > 1e-6:
            by = f"by {worst:.3g} of the size of a row"
            raise OracleError(f"{who} returned a point that violates its own constraints {by}")
    return largest


def _check_value(kind: BlockType, cost: Tensor, point: Tensor, value: Tensor, verb: str) -> None:
    """Refuse values that are not the cost of the point, up to ``value_error``, or of a lower precision."""
    terms = cost * point
    size, above = 1 + terms.abs().sum(-1), value - terms.sum(-1)
    off = above.abs() > LOST * size
    if not bool(off.any()):
        return
    if (error := value_error_of(kind, cost)) is not None:
        off &= above.abs() > error
    if not bool(off.any()):
        return
    # A value that single precision holds, of a point whose cost it does not hold, was calculated in it.
    single = torch.equal(value, value.float().double()) and bool((value[off] != 0).all())
    worst, where = (above.abs() / size).where(off, 0.0).flatten().max(0)
    if cost.dtype == torch.float64 and single and float(worst) < 1e-4:
        raise OracleError(
            f"{verb} of {kind.name} calculates in single precision: its value "
            f"{float(value.flatten()[where])!r} is a float32 and differs by "
            f"{float(above.flatten()[where]):.1e} from the cost of its point in float64, and bounds would be "
            f"off "
            f"as much; calculate in the dtype of the cost (no .float(), no float32 tables or arrays)"
        )
    # A value below the cost of its point: the point is no minimiser; a value above: it is no minimum.
    if bool((off & ((above > 0) | (-above > 1e-6 * size))).any()):
        what = "returned a value that is not the cost of its point"
        raise OracleError(f"{verb} of {kind.name} {what}; return value = (cost * point).sum(-1)")
