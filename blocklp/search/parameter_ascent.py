r"""Ascent over multipliers that are a function of few parameters.

Where good multipliers have a known form, it pays to ascend over what the form leaves free: every parameter
gives feasible multipliers, so every value is a bound. The slopes of network bounds are such a form (Xu et
al., ICLR 2021), and this method knows nothing of networks: it asks an objective for values and
supergradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LOOKS = 4
"""Steps on a device between two looks at which instances are done: a look waits for all work before it."""


class Objective(Protocol):
    """A concave or nearly concave function of a few tensors, for a batch of instances."""

    def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Values ``(batch,)`` and supergradients, shaped like the parameters, which the caller may change."""

    def project(self, parameters: Sequence[Tensor]) -> None:
        """Move parameters to the nearest allowed ones, in place."""

    def select(self, rows: Tensor) -> Objective:
        """Return the objective of some instances."""


@dataclass(frozen=True)
class StepSchedule:
    """How far parameters move in each of some steps.

    The constants depend on the number of steps alone. They were chosen on five CIFAR networks at two radii, 5
    to 300 steps each, and leave a fifth to two thirds of what Adam leaves whose rate falls geometrically. Few
    steps want short memories: each supergradient says on which side of a kink its parameter is, and is soon
    out of date. Many want longer ones. A maximum forgets an outlier more slowly than a mean of squares does,
    and parameters at a kink settle.

    Attributes
    ----------
    memory : float
        What is kept of the mean of supergradients in a step.
    fading : float
        What is kept of the maximum of their magnitudes.
    sizes : tuple of float
        Of all steps: what the mean is multiplied by before it is divided by the maximum.
    """

    memory: float
    fading: float
    sizes: tuple[float, ...]

    @classmethod
    def of(cls, steps: int) -> StepSchedule:
        """The schedule of so many steps, at least 1."""
        memory, fading = min(0.65, 0.2 + 0.005 * steps), 1 - min(0.3, (2 / steps) ** 0.5)
        rate, power = min(0.6, 0.6 * (5 / steps) ** 0.25), min(3.0, (steps / 5) ** 0.5)
        least = min(0.005, 2 / steps**2)
        left = [(1 - k / max(steps - 1, 1)) ** power for k in range(steps)]
        # The mean starts at zero.
        sizes = [rate * (least + (1 - least) * of) / (1 - memory ** (k + 1)) for k, of in enumerate(left)]
        return cls(memory, fading, tuple(sizes))


@dataclass(frozen=True)
class Ascended:
    """The best that every instance reached: ``value`` ``(batch,)``, ``parameters`` ``(batch, ...)`` each."""

    value: Tensor
    parameters: list[Tensor]


def ascend(
    objective: Objective,
    start: Sequence[Tensor],
    steps: int,
    done: Callable[[Tensor], Tensor] | None = None,
    late: Callable[[float], bool] = lambda seconds: False,
) -> Ascended:
    r"""Ascend by projected Adamax with a falling rate; the best point of every instance is kept.

    With supergradients :math:`g`, a mean :math:`m \leftarrow \beta_1 m + (1 - \beta_1) g` and a decaying
    maximum :math:`s \leftarrow \max(\beta_2 s, |g|)`, every parameter moves by :math:`\eta_t m / s`, less its
    start at zero (Kingma and Ba, ICLR 2015, algorithm 2).

    Parameters
    ----------
    objective : Objective
        What to maximise.
    start : sequence of Tensor
        Feasible parameters, ``(batch, ...)`` each.
    steps : int
        Evaluations, at least 1; the first one is at ``start``.
    done : callable, optional
        Best values ``(k,)`` to a mask of instances that need no better ones: they leave the batch, on a
        device other than the CPU at every step of :data:`LOOKS` alone.  Without it the host waits nowhere.
    late : callable, optional
        Seconds of the longest evaluation so far to whether there is no time for another; the best so far is
        returned.

    Values that are not finite, such as those of iterates that left the range of their precision, are bounds
    of which nothing is known; entries of supergradients that are not finite, or nearly not, count as zero.
    At worst the start is returned.

    Returns
    -------
    Ascended
        Value ``(batch,)`` and parameters of the best point of every instance.
    """
    schedule = StepSchedule.of(steps)
    point = [p.clone() for p in start]
    mean, most = [torch.zeros_like(p) for p in point], [torch.zeros_like(p) for p in point]
    best = [p.clone() for p in point]
    rows = torch.arange(len(point[0]), device=point[0].device)
    total: Tensor | None = None
    value_here = highest = point[0].new_full((len(rows),), -torch.inf)
    best_here = [p.clone() for p in point]
    longest = 0.0
    here = point[0].device.type == "cpu"
    largest = torch.finfo(value_here.dtype).max ** 0.9  # differences of such numbers do not overflow either
    for step, size in enumerate(schedule.sizes, 1):
        began = time.perf_counter()
        value, gradients = objective.evaluate(point)
        value = torch.where(value.isfinite(), value, -torch.inf)
        if not here or not all(float(g.abs().amax()) < largest for g in gradients if g.numel()):
            for g in gradients:
                g.masked_fill_(~(g.abs() < largest), 0.0)
        total = value.new_full((len(rows),), -torch.inf) if total is None else total
        # Of values that rounding cannot tell apart the later one is likely to be the better one: steps are
        # ever smaller.
        highest = torch.maximum(highest, value)
        better = (value > value_here) | (value >= highest - 16 * torch.finfo(value.dtype).eps * highest.abs())
        value_here = torch.where(better, value, value_here)
        longest = max(longest, time.perf_counter() - began)
        last = step == steps or late(longest)
        for kept, p in zip(best_here, point, strict=True):
            # Weights 0 and 1 give the ends as they are, quicker than a choice.
            kept.lerp_(p, better.to(p.dtype).view(-1, *[1] * (p.dim() - 1)))
        if last:
            total[rows] = value_here
            for all_best, kept in zip(best, best_here, strict=True):
                all_best[rows] = kept
            break
        looks = done is not None and (here or step % LOOKS == 0)
        finished = done(value_here) if looks and done is not None else None
        # Instances are copied out in bulk: leaving costs a copy of everything that stays.
        if finished is not None and int(finished.sum()) * 4 > len(finished):
            out = finished.nonzero()[:, 0]
            total[rows[out]] = value_here[out]
            for all_best, kept in zip(best, best_here, strict=True):
                all_best[rows[out]] = kept[out]
            keep = (~finished).nonzero()[:, 0]
            if not len(keep):
                break
            objective, rows = objective.select(keep), rows[keep]
            value_here, highest = value_here[keep], highest[keep]
            point, mean, most, best_here, gradients = (
                [t[keep] for t in tensors] for tensors in (point, mean, most, best_here, gradients)
            )
        for p, m, s, g in zip(point, mean, most, gradients, strict=True):
            m.lerp_(g, 1 - schedule.memory)
            torch.maximum(s.mul_(schedule.fading), g.abs_(), out=s).add_(torch.finfo(s.dtype).tiny ** 0.5)
            p.addcdiv_(m, s, value=size)
        objective.project(point)
    assert total is not None
    return Ascended(total, best)
