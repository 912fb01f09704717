"""What a pass of :class:`Prox` decides for each instance, in one launch by Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.kernels.operations import implements
from blocklp.kernels.plan import Plan
from blocklp.kernels.triton_launch import LANES, launch
from blocklp.kernels.triton_prox_kernels import prox_numbers
from blocklp.methods.prox import Prox, ProxStepState, Scalars
from blocklp.methods.proximal_weight import REACH, Fixed, SeriousStepRule
from blocklp.methods.sweeps import Asked


def _known_rule(plan: Plan, method: Prox, *_: object) -> bool:
    return type(method) is Prox and type(method.rule) in (SeriousStepRule, Fixed)


@implements("prox_schedule", "triton", _known_rule)
def _prox_schedule(
    plan: Plan, method: Prox, state: ProxStepState, asked: Asked
) -> tuple[Tensor, Tensor, Scalars]:
    """See :func:`blocklp.methods.prox.prox_schedule`."""
    batch, rule = len(state.eta), method.rule
    constants = (rule.factor, rule.full, REACH) if isinstance(rule, SeriousStepRule) else ()
    outer = torch.empty_like(state.eta, dtype=torch.int8)
    found = state.eta.new_empty(7, batch)
    given = asked.model, asked.value, asked.cost
    kept = tuple(getattr(state, name).contiguous() for name in Scalars._fields), state.origin
    numbers = {"RULE": constants, "INNER": float(method.most_inner), "BLOCK": LANES}
    distance = asked.model.stride(0)
    assert all(t.stride(0) == distance for t in given)
    grid = (-(-batch // LANES),)
    launch(prox_numbers, grid, batch, distance, given, (*kept[0], kept[1]), outer, found, **numbers)
    return outer.view(torch.bool), found[6], Scalars(*found[:6])
