"""Reductions: a batch restated in a form that the loop solves, and the inverse for all that comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blocklp.decomposition.valid_bounds import box_minimum
from blocklp.engine.records import Event, Hooks, Record, picked
from blocklp.kernels.plan import Plan


@dataclass(frozen=True)
class SamePattern:
    """Instances with the same coupled coordinates side by side, so that each is solved as it is alone.

    Attributes
    ----------
    parts : list of (slice, Plan)
        Instances that agree in these coordinates, by their numbers in the new order, and their plan.
    least : Tensor
        ``(batch,)`` float64, in the new order: what the bounds of the variables alone prove.
    order, back : Tensor or None
        ``(batch,)`` int64 on the CPU: the old numbers in the new order, and the reverse; None where nothing
        moves.
    """

    parts: list[tuple[slice, Plan]]
    least: Tensor
    order: Tensor | None = None
    back: Tensor | None = None

    @classmethod
    def of(cls, plan: Plan) -> SamePattern:
        """Lower a plan: one for every pattern of coordinates."""
        order, same = plan.problem.alike()
        least = box_minimum(plan.problem)
        own = plan.deadline, plan.backend, plan.settings
        parts = [(rows, plan if part is plan.problem else Plan(part, *own)) for rows, part in same]
        if len(parts) == 1:
            return cls(parts, least)
        there = order.cpu()
        return cls(parts, least[order], there, there.argsort())

    def apply(self, record: Record) -> Record:
        """Limits or a start in the new order."""
        return record if self.order is None else picked(record, self.order)

    def inverse(self, record: Record) -> Record:
        """An event or results in the old order."""
        return record if self.back is None else picked(record, self.back)

    def hooks(self, given: Hooks) -> Hooks:
        """Functions for the new order that call those of the caller with the old one."""
        if (order := self.order) is None:
            return given
        callback, record, repair = given.callback, given.record, given.repair

        def called(event: Event) -> Any:
            assert callback is not None
            answer = callback(self.inverse(event))
            if answer is None or isinstance(answer, bool):
                return answer
            return torch.as_tensor(answer).cpu().expand(len(order))[order]

        def recorded(event: Event) -> None:
            assert record is not None
            record(self.inverse(event))

        def repaired(x: Tensor, rows: Tensor) -> Tensor:
            assert repair is not None
            return repair(x, order.to(rows.device)[rows])

        return Hooks(repair and repaired, callback and called, record and recorded, given.save)
