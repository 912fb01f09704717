"""Ascent on functions whose maxima are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from blocklp.search.parameter_ascent import ascend


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


@pytest.mark.parametrize("lost", [torch.nan, torch.inf, 3e38])
def test_supergradients_beyond_the_range_move_nothing_else(lost: float) -> None:
    """An entry that is not finite, or nearly not, leaves its parameter where it is; the others climb."""

    class Torn(Tent):
        def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
            value, (rise,) = super().evaluate(parameters)
            rise[:, 2] = lost
            return value, [rise]

    peak = tent().peak
    reached = ascend(Torn(peak, []), [torch.full((40, 6), 0.5)], 60).parameters[0]
    others = [0, 1, 3, 4, 5]
    assert bool((reached[:, 2] == 0.5).all())
    assert float((reached - peak)[:, others].abs().max()) < 0.05


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
    reached = ascend(goal, [torch.zeros(40, 6)], 100, late=lambda seconds: next(calls))
    assert len(goal.asked) == 3
    torch.testing.assert_close(reached.value, -(reached.parameters[0] - tent().peak).abs().sum(1))


def left(steps: int) -> Tensor:
    goal = tent()
    return -ascend(goal, [torch.zeros(40, 6)], steps).value


def test_more_steps_come_closer() -> None:
    """Whatever their number, a run ends with steps that are small for what it can reach."""
    means = [float(left(steps).mean()) for steps in (1, 5, 10, 20, 50, 100, 300)]
    assert all(later < earlier for earlier, later in pairwise(means))
    assert means[3] < 0.02 * means[0] and means[5] < 0.002 * means[0]


def test_an_instance_gets_the_same_whatever_is_in_its_batch() -> None:
    goal = tent()
    whole = ascend(goal, [torch.zeros(40, 6)], 30)
    for row in (0, 7, 39):
        alone = ascend(Tent(goal.peak[row : row + 1], []), [torch.zeros(1, 6)], 30)
        assert torch.equal(alone.parameters[0][0], whole.parameters[0][row]) and torch.equal(alone.value[0], whole.value[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_of_parameters_and_values_do_not_matter(dtype: torch.dtype) -> None:
    """Supergradients count by their ratio to earlier ones: tents of any steepness are climbed alike."""

    @dataclass
    class Steep(Tent):
        steepness: Tensor

        def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
            value, (gradient,) = super().evaluate(parameters)
            return value * self.steepness[:, 0], [gradient * self.steepness]

    peak = tent().peak.to(dtype)
    steepness = 2.0 ** torch.arange(-40, 40, 2, dtype=dtype)[:, None]
    plain = ascend(Tent(peak, []), [torch.zeros(40, 6, dtype=dtype)], 30)
    steep = ascend(Steep(peak, [], steepness), [torch.zeros(40, 6, dtype=dtype)], 30)
    torch.testing.assert_close(steep.parameters[0], plain.parameters[0])


def test_later_points_win_ties_of_rounding_only() -> None:
    class Hill:
        """Its value falls by a share at every step after the first."""

        def __init__(self, share: float) -> None:
            self.share, self.step = share, 0

        def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
            self.step += 1
            return torch.tensor([1 - self.share * (self.step > 1)]), [torch.ones(1, 1)]

        def project(self, parameters: Sequence[Tensor]) -> None:
            pass

        def select(self, rows: Tensor) -> Hill:
            return self

    assert float(ascend(Hill(1e-6), [torch.zeros(1, 1)], 5).parameters[0]) > 0
    assert float(ascend(Hill(1e-5), [torch.zeros(1, 1)], 5).parameters[0]) == 0
