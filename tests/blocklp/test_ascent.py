"""Ascent on functions whose maxima are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.ascent import ascend


@dataclass
class Tent:
    """-|p - peak| in the box [0, 1]; the rows that it is asked for are counted."""

    peak: Tensor
    asked: list[int]

    def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        self.asked.append(len(self.peak))
        return -(parameters[0] - self.peak).abs().sum(1), [(self.peak - parameters[0]).sign()]

    def project(self, parameters: Sequence[Tensor]) -> None:
        parameters[0].clamp_(0, 1)

    def select(self, rows: Tensor) -> Tent:
        return Tent(self.peak[rows], self.asked)


def tent(rows: int = 40) -> Tent:
    return Tent(torch.rand(rows, 6, generator=torch.Generator().manual_seed(0)), [])


def test_it_climbs_and_keeps_the_best() -> None:
    goal = tent()
    start = torch.zeros(40, 6)
    reached = ascend(goal, [start], 100)
    assert float(reached.value.min()) > -0.05
    torch.testing.assert_close(reached.value, -(reached.parameters[0] - goal.peak).abs().sum(1))
    assert bool((start == 0).all())
    # A maximum at the border is reached exactly.
    outside = Tent(torch.full((1, 2), 3.0), [])
    assert ascend(outside, [torch.zeros(1, 2)], 50).value.item() == -4.0


def test_one_step_is_the_start() -> None:
    goal = tent()
    reached = ascend(goal, [goal.peak.clone()], 1)
    assert bool((reached.value == 0).all()) and goal.asked == [40]
    assert torch.equal(reached.parameters[0], goal.peak)


def test_instances_that_are_done_leave_and_get_the_same() -> None:
    goal, alone = tent(), tent()
    done = ascend(goal, [torch.zeros(40, 6)], 60, lambda value: value > -0.5)
    full = ascend(alone, [torch.zeros(40, 6)], 60)
    assert bool((done.value > -0.5).all()) and sum(goal.asked) < sum(alone.asked)
    torch.testing.assert_close(done.value, -(done.parameters[0] - tent().peak).abs().sum(1))
    # Who stays is not disturbed by who leaves.
    hard = ascend(tent(), [torch.zeros(40, 6)], 60, lambda value: value > -1e-3 * torch.arange(len(value)))
    assert bool((hard.value <= full.value + 1e-6).all())


def test_a_deadline_returns_the_best_so_far() -> None:
    goal = tent()
    calls = iter([False, False, True])
    reached = ascend(goal, [torch.zeros(40, 6)], 100, late=lambda: next(calls))
    assert len(goal.asked) == 3
    torch.testing.assert_close(reached.value, -(reached.parameters[0] - tent().peak).abs().sum(1))
