r"""Ascent over multipliers that are a function of few parameters.

Where good multipliers have a known form, it pays to ascend over what the form leaves free: every parameter gives feasible
multipliers, so every value is a bound.  The slopes of network bounds are such a form (Xu et al., ICLR 2021), and this method
knows nothing of networks: it asks an objective for values and supergradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Objective(Protocol):
    """A concave or nearly concave function of a few tensors, for a batch of instances."""

    def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Values ``(batch,)`` and supergradients, shaped like the parameters."""

    def project(self, parameters: Sequence[Tensor]) -> None:
        """Move parameters to the nearest allowed ones, in place."""

    def select(self, rows: Tensor) -> Objective:
        """Return the objective of some instances."""


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
    late: Callable[[], bool] = lambda: False,
) -> Ascended:
    """Ascend by projected Adam with a rate that falls geometrically; the best point of every instance is kept.

    Parameters
    ----------
    objective : Objective
        What to maximise.
    start : sequence of Tensor
        Feasible parameters, ``(batch, ...)`` each.
    steps : int
        Evaluations, at least 1; the first one is at ``start``.
    done : callable, optional
        Best values ``(k,)`` to a mask of instances that need no better ones: they leave the batch.
    late : callable, optional
        True once time is up; the best so far is returned.

    Notes
    -----
    The constants were chosen on five CIFAR networks at two radii: short memories (0.5, 0.95) leave an eighth of what Adam's usual
    ones leave open after 20 steps.  The rate of the last step falls with the steps: a twentieth of the first one is best up to 40,
    and leaves thirty times as much open after 300 as this one does.
    """
    rate, first, second = 0.4, 0.5, 0.95
    last_rate = 0.05 * min(1.0, 40 / steps) ** 2.5  # relative to the first
    decay = max(0.85, min(0.99, last_rate ** (1 / steps)))
    point = [p.clone() for p in start]
    mean, square = [torch.zeros_like(p) for p in point], [torch.zeros_like(p) for p in point]
    best = [p.clone() for p in point]
    rows = torch.arange(len(point[0]), device=point[0].device)
    total: Tensor | None = None
    value_here = point[0].new_full((len(rows),), -torch.inf)
    best_here = [p.clone() for p in point]
    for step in range(1, steps + 1):
        value, gradients = objective.evaluate(point)
        total = value.new_full((len(rows),), -torch.inf) if total is None else total
        better = value > value_here
        value_here = torch.where(better, value, value_here)
        last = step == steps or late()
        for kept, p in zip(best_here, point, strict=True):
            kept.copy_(torch.where(better.view(-1, *[1] * (p.dim() - 1)), p, kept))
        finished = torch.ones_like(better) if last else (torch.zeros_like(better) if done is None else done(value_here))
        # Instances are copied out in bulk: leaving costs a copy of everything that stays.
        if last or int(finished.sum()) * 4 > len(finished):
            out = finished.nonzero()[:, 0]
            total[rows[out]] = value_here[out]
            for all_best, kept in zip(best, best_here, strict=True):
                all_best[rows[out]] = kept[out]
            keep = (~finished).nonzero()[:, 0]
            if last or not len(keep):
                break
            objective, rows, value_here = objective.select(keep), rows[keep], value_here[keep]
            point, mean, square, best_here, gradients = (
                [t[keep] for t in tensors] for tensors in (point, mean, square, best_here, gradients)
            )
        for p, m, s, g in zip(point, mean, square, gradients, strict=True):
            m.mul_(first).add_(g, alpha=1 - first)
            s.mul_(second).addcmul_(g, g, value=1 - second)
            size = (s / (1 - second**step)).sqrt_().add_(torch.finfo(s.dtype).tiny ** 0.5)
            p.addcdiv_(m, size, value=rate / (1 - first**step))
        objective.project(point)
        rate *= decay
    assert total is not None
    return Ascended(total, best)
