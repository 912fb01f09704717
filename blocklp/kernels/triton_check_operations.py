"""Operations of checks by Triton, where one type alone shares variables and has functions for them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blocklp.kernels.operations import implements
from blocklp.kernels.plan import Plan
from blocklp.kernels.triton_checks import CheckTables, is_small
from blocklp.kernels.triton_tables import TritonTables


def _checked(plan: Plan, *_: Any) -> bool:
    """Whether kernels check whole instances."""
    return isinstance(plan.tables, TritonTables) and plan.tables.checks is not None


def _recorded(plan: Plan, *given: Any) -> bool:
    """Whether they pack records too: of small instances, whose points one program reads."""
    return _checked(plan) and is_small(plan.problem.cost.shape[1]) and given[4] is None


def _of(plan: Plan) -> CheckTables:
    """The tables of a plan."""
    assert isinstance(plan.tables, TritonTables) and plan.tables.checks is not None
    return plan.tables.checks


@implements("improved_bounds", "triton", _checked)
def _improved_bounds(
    plan: Plan, duals: Tensor, limits: tuple[float, float], primal: Tensor, best: Tensor, best_duals: Tensor
) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.engine.best_bound.improved_bounds`."""
    return _of(plan).bounds(plan.problem, duals, limits, primal, (best, best_duals)), best


@implements("offer_mean", "triton", _checked)
def _offer_mean(
    plan: Plan, mean: Tensor, limits: tuple[float, float], bound: Tensor, primal: Tensor, x: Tensor
) -> None:
    """See :func:`blocklp.engine.points.offer_mean`."""
    _of(plan).completed(plan.problem, limits, mean, bound, (primal, x))


@implements("finish_points", "triton", _checked)
def _finish_points(plan: Plan, rows: Tensor, x: Tensor) -> None:
    """See :func:`blocklp.engine.points.finish_points`."""
    _of(plan).finished(plan.problem, rows, x)


@implements("status_record", "triton", _recorded)
def _status_record(
    plan: Plan, bound: Tensor, value: Tensor, primal: Tensor, x: Tensor, worst: Tensor | None, eta: Tensor
) -> Tensor:
    """See :func:`blocklp.engine.status_record.status_record`."""
    return _of(plan).recorded(plan.problem, bound, value, primal, x, eta)
