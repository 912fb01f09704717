"""The feasibility projection (:mod:`blocklp.engine.projection`) in Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.kernels import triton_projection_kernels as kernels
from blocklp.kernels.operations import implements
from blocklp.kernels.plan import Plan
from blocklp.kernels.row_tables import LANES, apart
from blocklp.kernels.triton_launch import launch
from blocklp.kernels.triton_rows import TILES, has_tables, leaps, tables_of

BETWEEN = 25
"""Passes between looks at the clock, and at whether any instance needs more, for which the host waits."""


@implements("projection_passes", "triton", lambda plan, *_: has_tables(plan.problem))
def _projection_passes(plan: Plan, x: Tensor, slack: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.engine.projection.projection_passes`."""
    program, steps, tables = plan.program, plan.steps, tables_of(plan.program, plan.problem)
    (batch, variables), rows = x.shape, program.lower.shape[1]
    found, duals = x.clone(), x.new_zeros(2, batch, rows)
    slots, passes = tables.by_row.depth * LANES * 2, torch.zeros_like(x[:, 0], dtype=torch.long)
    partial = x.new_zeros(batch, slots, dtype=torch.float64)
    bounds = program.box.lower.contiguous(), program.box.upper.contiguous()
    points = x.contiguous(), *bounds, steps.column
    sides = program.lower, program.upper, steps.row, steps.length
    slack, sums = slack.contiguous(), (tables.by_variable, tables.by_row)
    sizes = variables, rows, batch * rows, apart(program.entries)
    matrix = program.entries, (found, duals)
    if leaps(tables, batch, plan.settings):
        laid = tuple(own.given for own in sums)
        given = most, *sizes, laid, *matrix, (points, sides), slack, partial, passes
        launch(kernels.projection_leap, (batch,), *given, LANES=LANES, **TILES)
        return found, passes
    momenta, ages = x.new_zeros(batch), x.new_zeros(batch)
    actives = torch.ones_like(momenta, dtype=torch.int32)
    each = tuple(zip((False, True), sums, (points, (*sides, slack)), strict=True))
    decided = sums[1].depth, partial, momenta, ages, actives, passes
    for k in range(most):
        if k % BETWEEN == 0 and (plan.deadline.over() or (k and not bool(actives.any()))):
            break
        for by_row, own, numbers in each:
            rest = *sizes, slots, own.given, *matrix, numbers, momenta, actives, partial
            launch(kernels.projection_pass, (batch * own.units,), own.units, *rest, ROWS=by_row, **TILES)
        launch(kernels.projection_decide, (batch,), *decided, LANES=LANES)
    return found, passes
