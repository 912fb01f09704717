"""What an oracle answers when it is declared: wrong shapes, values and points are refused at once."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from blocklp.block import BlockType
from blocklp.errors import OracleError

LOST = 1e-10
"""Relative error of a value that is no rounding of double precision."""


def ask(kind: BlockType, batch: int, count: int, dim: int) -> None:
    """Ask an oracle for two costs of so many blocks, and refuse what :func:`check_answer` refuses."""
    # Sevenths are no floats, and tell an oracle that calculates in single precision.
    sevenths = (1.0 - 2.0 * (torch.arange(batch * count * dim) % 3)).double().reshape(batch, count, dim) / 7
    largest = 0.0
    for cost in (sevenths, torch.zeros_like(sevenths)):
        answer = kind.min_oracle(cost)
        largest = max(largest, check_answer(kind, cost, answer, largest))
        if type(kind).min_value is not BlockType.min_value:
            _check_value(kind, cost, answer[0], kind.min_value(cost), "min_value")


ask_known = functools.lru_cache(16)(ask)  # thousands of models may share a type


def check_answer(kind: BlockType, cost: Tensor, answer: object, largest: float = 0.0) -> float:
    """Refuse an oracle's answer that cannot be right.

    Points are off by a part of their largest entry, of all blocks and of other answers (``largest``); it is returned.

    Raises
    ------
    OracleError
        If shapes or dtypes are wrong, entries are not finite, the value is not the point's cost, or was calculated in single
        precision, or the point violates the type's constraints.
    """
    who = f"min_oracle of {kind.name}"
    if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(a, Tensor) for a in answer)):
        raise OracleError(f"{who} must return the tensors (point, value), got {type(answer).__name__}")
    point, value = answer
    if point.shape != cost.shape or value.shape != cost.shape[:2]:
        raise OracleError(
            f"{who} returned point {tuple(point.shape)} and value {tuple(value.shape)}; for a cost {tuple(cost.shape)} it "
            f"must return {tuple(cost.shape)} and {tuple(cost.shape[:2])}"
        )
    if point.dtype != cost.dtype or value.dtype != cost.dtype:
        raise OracleError(
            f"{who} got a cost of {cost.dtype} and returned point and value of {point.dtype} and {value.dtype}; "
            f"calculate in the dtype of the cost: bounds are as exact as the values that they sum"
        )
    if not (bool(torch.isfinite(point).all()) and bool(torch.isfinite(value).all())):
        raise OracleError(f"{who} returned NaN or infinite entries for a finite cost")
    if point.requires_grad or value.requires_grad:
        raise OracleError(
            f"{who} returned tensors that require gradients, and bounds are not differentiable in the data of a type; "
            f"detach() the data"
        )
    _check_value(kind, cost, point, value, "min_oracle")
    largest = max(largest, float(point.abs().max()))
    if (constraints := kind.constraints()) is not None:
        worst = float(constraints.violation(point, torch.full_like(value, largest)).max())
        if worst > 1e-6:
            raise OracleError(f"{who} returned a point that violates its own constraints by {worst:.3g} of the size of a row")
    return largest


def _check_value(kind: BlockType, cost: Tensor, point: Tensor, value: Tensor, verb: str) -> None:
    """The value is the cost of the point, in the precision of the cost; what ``value_error`` admits may be missing."""
    terms = cost * point
    size, above = 1 + terms.abs().sum(-1), value - terms.sum(-1)
    off = above.abs() > LOST * size
    if not bool(off.any()):
        return
    if (error := kind.value_error(cost)) is not None:
        off &= above.abs() > error
    if not bool(off.any()):
        return
    # A value that single precision holds, of a point whose cost it does not hold, was calculated in it.
    single = torch.equal(value, value.float().double()) and bool((value[off] != 0).all())
    worst, where = (above.abs() / size).where(off, 0.0).flatten().max(0)
    if cost.dtype == torch.float64 and single and float(worst) < 1e-4:
        raise OracleError(
            f"{verb} of {kind.name} calculates in single precision: its value {float(value.flatten()[where])!r} is a float32 "
            f"and differs by {float(above.flatten()[where]):.1e} from the cost of its point in float64, and bounds would be off "
            f"as much; calculate in the dtype of the cost (no .float(), no float32 tables or arrays)"
        )
    # A value may lie below the cost of its point, which then is no minimiser; above it the value is no minimum.
    if bool((off & ((above > 0) | (-above > 1e-6 * size))).any()):
        raise OracleError(
            f"{verb} of {kind.name} returned a value that is not the cost of its point; return value = (cost * point).sum(-1)"
        )
