"""The slopes of a relaxation, and mixes of objectives, as parameters of :func:`blocklp.search.ascend`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.problems.verification.relaxation import Relaxation, Trace

SHARES = 4.0
"""Parameter of the greatest slope of a smooth activation: steps of an ascent are so many times as small a part of the slopes as
of those of ReLUs.  (On six networks 5 and 20 steps came further with 4 than with 1, 2, 8 and 16.)"""

RESERVE = 5
"""Evaluations in float32 that take about as long as one in float64 and what follows it."""


def out_of_time(deadline: Deadline) -> Callable[[float], bool]:
    """Return what tells an ascent, by the seconds of an evaluation, that only its result can still be evaluated."""
    return lambda seconds: not deadline.affords(RESERVE * seconds)


@dataclass
class SlopeDual:
    """The dual of ``min <cost, result of node>`` as a function of slopes and, after splits, of ``beta``.

    Parameters are the slopes of ``relus``, which may be smooth activations too, followed by the multipliers of ``split``,
    ``(batch, *shape)`` each: positive for neurons that are on, negative for those that are off, 0 for others; of either sign for
    smooth activations that were split.  The magnitudes in ``split`` are the scales in which
    these multipliers are measured, so that steps of one size suit slopes and multipliers.

    With ``averaged`` the inputs that minimise the linear bounds are averaged (later ones count more): near the optimum
    that mean is close to the input of a primal solution.
    """

    relaxation: Relaxation
    node: int
    cost: Tensor
    relus: list[int]
    split: dict[int, Tensor]
    averaged: bool = False
    x: Tensor | None = None
    count: int = 0
    trace: Trace | None = None
    found: dict[int, Tensor] = field(default_factory=dict)  # the last evaluation's forward pass
    also: Mapping[int, Tensor] | None = None  # costs of other results, for the backward pass alone

    def start(self) -> list[Tensor]:
        """CROWN's slopes and no multipliers for splits."""
        slopes = self.relaxation.start(self.relus, len(self.cost))
        return [slopes[r] * self.reach(r) for r in self.relus] + [torch.zeros_like(slopes[r]) for r in self.split]

    def named(self, parameters: Sequence[Tensor]) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Slopes and betas by activation."""
        curves = self.relaxation.curves
        slopes = {r: p / SHARES if r in curves else p for r, p in zip(self.relus, parameters, strict=False)}
        scaled = zip(self.split.items(), parameters[len(self.relus) :], strict=True)
        return slopes, {r: beta * scale.abs() for (r, scale), beta in scaled}

    def reach(self, at: int) -> float:
        """The greatest parameter of a slope."""
        return SHARES if at in self.relaxation.curves else 1.0

    def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One backward and one forward pass."""
        slopes, betas = self.named(parameters)
        trace = self.trace = self.relaxation.backward(self.node, self.cost, slopes, betas, valued=False, also=self.also)
        if self.averaged:
            x = self.relaxation.minimiser(trace)
            self.count += 1
            self.x = x if self.x is None else self.x + (x - self.x) * (2 / (self.count + 1))
        found = self.relaxation.forward(self.node, trace)
        self.found = found
        value = self.relaxation.attained(self.node, self.cost, found, betas) - trace.noise
        free, curves = self.relaxation.free, self.relaxation.curves
        gradients = [
            trace.activation[r] * (found[r] - trace.touch[r]) * (curves[r].span(trace.upper[r]) / SHARES)
            if r in curves
            else trace.activation[r].clamp(min=0).mul_(found[r]).mul_(free[r])
            for r in self.relus
        ]
        gradients += [self._of_beta(r, betas[r], found[r]) * scale.abs() for r, scale in self.split.items()]
        return value, gradients

    def _of_beta(self, at: int, beta: Tensor, z: Tensor) -> Tensor:
        """Derivative of the value with respect to multipliers of splits; at zero, that of the side that rises."""
        if at not in self.relaxation.curves:
            return -z
        low, high = self.relaxation.bounds[at]
        none = (low - z).clamp(min=0) + (high - z).clamp(max=0)
        return torch.where(beta > 0, low - z, torch.where(beta < 0, high - z, none))

    def project(self, parameters: Sequence[Tensor]) -> None:
        """Slopes to their range, betas to their sign."""
        for at, slope in zip(self.relus, parameters, strict=False):
            slope.clamp_(0, self.reach(at))
        for (at, scale), beta in zip(self.split.items(), parameters[len(self.relus) :], strict=True):
            sign = scale.sign()
            if at in self.relaxation.curves:
                beta.mul_(sign.abs())
            else:
                beta.mul_(sign).clamp_(min=0).mul_(sign)

    def select(self, rows: Tensor) -> SlopeDual:
        """Return the dual of some instances."""
        return replace(
            self,
            relaxation=self.relaxation.select(rows),
            cost=self.cost.index_select(0, rows),
            split={r: s.index_select(0, rows) for r, s in self.split.items()},
            x=None if self.x is None else self.x.index_select(0, rows),
        )

    def primal(self) -> Tensor:
        """Value of a feasible point of the LP (without splits): ``(batch,)``."""
        assert self.x is not None and self.trace is not None
        return self.relaxation.primal(self.node, self.cost, self.x, self.trace)


@dataclass
class MixedDual:
    """A dual whose cost is a parameter too, after the others: a convex combination ``(batch, rows)`` of the ``allowed`` rows."""

    dual: SlopeDual
    allowed: Tensor

    def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One backward and one forward pass."""
        self.dual.cost = parameters[-1]
        value, gradients = self.dual.evaluate(parameters[:-1])
        return value, [*gradients, self.dual.found[self.dual.node] * self.allowed]

    def project(self, parameters: Sequence[Tensor]) -> None:
        """The mix to the simplex (Held, Wolfe and Crowder 1974)."""
        self.dual.project(parameters[:-1])
        mix = parameters[-1]
        most = mix.masked_fill(~self.allowed, -torch.inf).sort(1, descending=True).values
        over = (most.cumsum(1) - 1) / torch.arange(1, mix.shape[1] + 1, device=mix.device)
        kept = (most > over).sum(1, keepdim=True)
        mix.sub_(over.gather(1, kept - 1)).clamp_(min=0).mul_(self.allowed)

    def select(self, rows: Tensor) -> MixedDual:
        """Return the dual of some instances."""
        return MixedDual(self.dual.select(rows), self.allowed.index_select(0, rows))
