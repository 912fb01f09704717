r"""The Planet relaxation of a network and its dual, evaluated by one backward pass.

For pre-activation bounds :math:`l \le z \le u` a ReLU is relaxed to the triangle with the corners (l, 0), (0, 0), (u, u)
(Ehlers 2017; thesis, 4.1.4).  The dual of the LP has one multiplier :math:`\rho` for every pre-activation; with
:math:`\mu = W' \rho'` the cost that the next layers put on the activation,

.. math:: D(\rho) = \min_{x_0} \langle W_1' \rho_1, x_0 \rangle + \sum_k \sum_j
          \min\{-\rho l,\ 0,\ (\mu - \rho) u\}_{kj} + \text{biases}

(the decomposition of thesis, 4.1.4.12-15, with biases W y + b).  Going backwards, the best multiplier is known where
:math:`\mu < 0` (:math:`\rho = \mu u / (u - l)`) and is :math:`\rho = a \mu` with a free *slope* :math:`0 \le a \le 1` where
:math:`\mu > 0`.  A neuron that is split to one side has a free multiplier :math:`\beta \ge 0` instead (Wang et al. 2021).
Every choice of slopes and :math:`\beta` gives a valid bound, in exact arithmetic; with ``charge`` the pass subtracts a bound
on its own rounding errors.

A smooth activation is relaxed to the convex hull of its graph over :math:`l \le z \le u`.  Its slope is that of a line that
touches the hull from below where :math:`\mu > 0`, from above elsewhere: :class:`CurveSlopes` has them as shares from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.problems.verification.balls import Balls, picked
from blocklp.problems.verification.curve_slopes import MIDDLE, CurveSlopes
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operations import Add, Affine, Input, Relu, SmoothActivation, float_error, send
from blocklp.rounding import rounding

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Trace:
    """What a backward pass leaves for the forward pass: costs on activations and lines used, by ReLU."""

    value: Tensor  # (batch,); NaN if it was not asked for
    cost: Tensor  # (batch, *input_shape): multipliers of the input
    activation: dict[int, Tensor]  # (batch, *shape): mu
    upper: dict[int, Tensor]  # 1 where mu <= 0 and the upper line is used, 0 elsewhere
    slope: dict[int, Tensor]  # of the line used
    shift: dict[int, Tensor]  # of smooth activations: the value of that line at zero
    touch: dict[int, Tensor]  # of smooth activations: where it touches the hull
    noise: Tensor  # (batch,): what rounding in the arithmetic of the network may take from the value


@dataclass(frozen=True)
class Relaxation:
    """Boxes of inputs and pre-activations for a batch of LPs over one network.

    Attributes
    ----------
    network : Network
        In the working precision.
    lower, upper : Tensor
        ``(batch or 1, *input_shape)``.
    bounds : mapping
        Position of an activation to its pre-activation bounds, ``(batch or 1, *shape)`` each; infinite where nothing is known.
    deadline : Deadline
        Every pass raises a ``TimeLimitError`` before the operation that it would be over in.
    balls : Balls, optional
        Inputs are in these, too.
    """

    network: Network
    lower: Tensor
    upper: Tensor
    bounds: Mapping[int, Pair]
    deadline: Deadline = field(default_factory=Deadline)
    balls: Balls | None = None

    @cached_property
    def lines(self) -> dict[int, Pair]:
        """Slope and shift of the upper line of every ReLU; the identity or zero where the sign is known."""
        lines = {}
        for relu, (lower, upper) in self.bounds.items():
            if not isinstance(self.network.ops[relu], Relu):
                continue
            low, high = lower.clamp(max=0), upper.clamp(min=0)
            slope = (high / 2) / (high / 2 - low / 2).clamp(min=torch.finfo(low.dtype).tiny / 2)  # of halves, lest it overflows
            # l = u = 0 is a neuron fixed to zero, whatever its pre-activation is: windows fill their outside with these.
            slope = torch.where(upper <= 0, torch.zeros_like(slope), torch.where(lower >= 0, torch.ones_like(slope), slope))
            lines[relu] = (slope, -slope * low)
        return lines

    @cached_property
    def curves(self) -> dict[int, CurveSlopes]:
        """Slopes of lines below and above every smooth activation."""
        ops = self.network.ops
        return {
            at: CurveSlopes.of(op.curve, *pair) for at, pair in self.bounds.items() if isinstance(op := ops[at], SmoothActivation)
        }

    @cached_property
    def open(self) -> dict[int, Tensor]:
        """Neurons that may be split: of unknown sign, or smooth and not constant."""
        return {at: undecided(self.network, at, *pair) for at, pair in self.bounds.items()}

    @cached_property
    def free(self) -> dict[int, Tensor]:
        """1 for these, 0 for others."""
        return {relu: t.to(self.lower.dtype) for relu, t in self.open.items()}

    @cached_property
    def widest(self) -> dict[int, Tensor]:
        """Largest magnitude of every pre-activation, and a little more for what underflows."""
        tiny = torch.finfo(self.lower.dtype).tiny
        return {relu: torch.maximum(low.abs(), high.abs()) + tiny for relu, (low, high) in self.bounds.items()}

    @cached_property
    def shifts(self) -> dict[int, Tensor]:
        """Flat constant of every affine operation."""
        return {
            at: op.shift().to(self.lower).expand(1, *op.shape).reshape(-1)
            for at, op in enumerate(self.network.ops)
            if isinstance(op, Affine)
        }

    @cached_property
    def magnitudes(self) -> list[Tensor]:
        """Bound on the magnitude of every result and of what is summed to form it, over the batch: ``(1, *shape)``."""
        found: list[Tensor] = []
        for at, op in enumerate(self.network.ops):
            if isinstance(op, Input):
                found.append(torch.maximum(self.lower.abs(), self.upper.abs()).amax(0, keepdim=True))
            elif isinstance(op, Relu):
                here = self.bounds[at][1].amax(0, keepdim=True) if at in self.bounds else found[op.inputs[0]]
                found.append(here.clamp(min=0))
            elif isinstance(op, SmoothActivation):
                widest = self.widest[at].amax(0, keepdim=True) if at in self.widest else found[op.inputs[0]]
                found.append(op.curve.largest(widest))
            elif isinstance(op, Add):
                found.append(found[op.inputs[0]] + found[op.inputs[1]])
            else:
                assert isinstance(op, Affine)
                found.append(op.absolute()(found[op.inputs[0]]))
        return found

    @cached_property
    def noise(self) -> dict[int, Tensor]:
        """Flat bound on the rounding error of every operation that has one, in the arithmetic of the network, over the batch."""
        unit, errors, found = self.network.unit, dict[int, Tensor](), list[Tensor]()
        for at, op in enumerate(self.network.ops) if unit else ():
            if isinstance(op, Input):
                size = torch.maximum(self.lower.abs(), self.upper.abs()).amax(0, keepdim=True)
            elif isinstance(op, Relu):
                size = (self.bounds[at][1].amax(0, keepdim=True) if at in self.bounds else found[op.inputs[0]]).clamp(min=0)
            elif isinstance(op, SmoothActivation):
                size = op.curve.largest(found[op.inputs[0]])
            elif isinstance(op, Add):
                size = found[op.inputs[0]] + found[op.inputs[1]]
            else:
                assert isinstance(op, Affine)
                size = op.absolute()(found[op.inputs[0]])
            error = float_error(op, size, unit)
            if error is not None:
                errors[at] = error.flatten()
            found.append(size if error is None else size + error)
        return errors

    def to(self, dtype: torch.dtype, device: torch.device | str | None = None) -> Relaxation:
        """Return the relaxation in another precision, and on another device if one is given."""
        place = self.lower.device if device is None else device
        return replace(
            self,
            network=self.network.to(dtype, place),
            lower=self.lower.to(place, dtype),
            upper=self.upper.to(place, dtype),
            bounds={relu: (low.to(place, dtype), high.to(place, dtype)) for relu, (low, high) in self.bounds.items()},
            balls=None if self.balls is None else self.balls.to(dtype, place),
        )

    def select(self, rows: Tensor) -> Relaxation:
        """Return the relaxation of some instances."""

        def pairs(of: Mapping[int, Pair]) -> dict[int, Pair]:
            return {relu: (picked(a, rows), picked(b, rows)) for relu, (a, b) in of.items()}

        chosen = replace(self, lower=picked(self.lower, rows), upper=picked(self.upper, rows), bounds=pairs(self.bounds))
        if self.balls is not None:
            chosen = replace(chosen, balls=self.balls.select(rows))
        # What is derived is picked too: instances are often many rows of few boxes.
        chosen.__dict__["lines"] = pairs(self.lines)
        chosen.__dict__["curves"] = {at: slopes.select(rows) for at, slopes in self.curves.items()}
        chosen.__dict__["open"] = {relu: picked(t, rows) for relu, t in self.open.items()}
        chosen.__dict__["free"] = {relu: picked(t, rows) for relu, t in self.free.items()}
        chosen.__dict__["widest"] = {relu: picked(t, rows) for relu, t in self.widest.items()}
        chosen.__dict__["shifts"] = self.shifts
        chosen.__dict__["magnitudes"] = self.magnitudes
        chosen.__dict__["noise"] = self.noise
        return chosen

    def start(self, relus: list[int], batch: int) -> dict[int, Tensor]:
        """CROWN's slopes: the nearer of 0 and 1 to the upper line; of smooth activations the lines best in the middle."""
        slopes = {}
        for relu in relus:
            if relu in self.curves:
                low = self.bounds[relu][0]
                slopes[relu] = torch.full_like(low, MIDDLE).expand(batch, *low.shape[1:])
                continue
            slope = self.lines[relu][0]
            slopes[relu] = torch.where(self.open[relu], (slope > 0.5).to(slope), slope).expand(batch, *slope.shape[1:])
        return slopes

    def backward(
        self,
        node: int,
        cost: Tensor,
        slopes: Mapping[int, Tensor],
        betas: Mapping[int, Tensor] | None = None,
        charge: bool = False,
        valued: bool = True,
        coarse: float = 0.0,
        also: Mapping[int, Tensor] | None = None,
    ) -> Trace:
        """Evaluate the dual of ``min <cost, result of node>``.

        Parameters
        ----------
        node : int
            Position of the operation whose result is minimised.
        cost : Tensor
            ``(batch, *shape)``.
        slopes, betas : mapping
            Slopes in [0, 1] ``(batch, *shape)`` of the activations before ``node``; signed multipliers of split neurons: a
            positive one pays for z >= 0, a negative one for z <= 0; of smooth activations for their lower and upper bounds.
        charge : bool
            Subtract a bound on the rounding errors of this pass; a value that left the range of the precision becomes minus
            infinity, so that every value is a bound.
        valued : bool
            Sum up the value.  A forward pass that follows gives it for less: :meth:`attained`.
        coarse : float
            Share of the costs of activations of unknown sign that is charged too: for somebody who evaluates the same bound in
            another way, with bounds of neurons that differ a little and fewer bits of multipliers.
        also : mapping, optional
            Costs of results before ``node`` that are minimised together with it.
        """
        network = self.network
        value, size, pending = cost.new_zeros(len(cost)), cost.new_zeros(len(cost)), {node: cost, **(also or {})}
        activation, upper, slope, shifts, touch = {}, {}, {}, {}, {}
        noise = torch.zeros_like(value)
        for at in range(node, 0, -1):
            y = pending.pop(at, None)
            if y is None:
                continue
            op = network.ops[at]
            op.ask(self.deadline, y)
            if at in self.noise:
                noise = noise + y.abs().flatten(1) @ self.noise[at]
            if isinstance(op, Relu):
                line, shift = self.lines[at]
                activation[at] = y
                upper[at] = _nonpositive(y)
                # Weights 0 and 1 give the ends as they are; a choice by a mask costs many times as much.
                slope[at] = torch.lerp(slopes[at], line, upper[at])
                if valued:
                    value = value + (y.clamp(max=0) * shift).flatten(1).sum(1)
                if coarse:
                    cut = _cut(y) + (_cut(betas[at]) if betas is not None and at in betas else 0.0)
                    value = value - coarse * ((y.abs() * self.free[at] + cut) * self.widest[at]).flatten(1).sum(1)
                rho = y * slope[at]
                if charge:
                    # Slopes are at most 1: |rho| <= |mu|, but for beta.
                    size = size + 4 * (y.abs() * self.widest[at]).flatten(1).sum(1)
                if betas is not None and at in betas:
                    rho = rho - betas[at]
                    if charge:
                        size = size + 2 * (betas[at].abs() * self.widest[at]).flatten(1).sum(1)
                y = rho
            elif isinstance(op, SmoothActivation):
                activation[at], upper[at] = y, _nonpositive(y)
                slope[at], shifts[at], touch[at] = self.curves[at].lines(slopes[at], upper[at])
                rho = y * slope[at]
                if valued:
                    value = value + (y * shifts[at]).flatten(1).sum(1)
                if charge:
                    size = size + 4 * (y.abs() * (shifts[at].abs() + slope[at].abs() * self.widest[at])).flatten(1).sum(1)
                if betas is not None and at in betas:
                    rho = rho - betas[at]
                    if valued:
                        value = value + self.curves[at].paid(betas[at])
                    if charge:
                        size = size + 4 * (betas[at].abs() * self.widest[at]).flatten(1).sum(1)
                y = rho
            elif isinstance(op, Add):
                send(pending, op.inputs[1], y)
            else:
                assert isinstance(op, Affine)
                if valued:
                    value = value + y.flatten(1) @ self.shifts[at]
                if charge:
                    size = size + y.abs().flatten(1) @ self.magnitudes[at].flatten()
                y = op.adjoint(y)
            send(pending, op.inputs[0], y)
        y = pending[0]
        if valued:
            inputs = torch.minimum(y * self.lower, y * self.upper).flatten(1).sum(1)
            if self.balls is not None:  # either is a bound
                over_ball, ball_size, _ = self.balls.least(y, self.lower, self.upper)
                inputs, size = torch.maximum(inputs, over_ball), size + ball_size
            value = value + inputs - (coarse * (_cut(y) * self.magnitudes[0]).flatten(1).sum(1) if coarse else 0.0)
        else:
            value.fill_(torch.nan)
        value = value - noise
        if charge:
            size = size + noise + 2 * (y.abs().flatten(1) @ self.magnitudes[0].flatten())
            value = value - rounding(self._terms, cost.dtype) * size - self._underflow
            value = torch.where(value.isfinite(), value, -torch.inf)
        return Trace(value, y, activation, upper, slope, shifts, touch, noise)

    @cached_property
    def _terms(self) -> int:
        """Roundings that a number of a backward pass is subject to, at most.

        The blocks of the decomposition do not depend on each other's rounding: each multiplier is what it is, and only the
        errors made between it and the value of its own block count.  These are the sum of the adjoint (``terms`` of the
        operation), a handful in the block itself, and the summation of all blocks.
        """
        longest = max(m[0].numel() for m in self.magnitudes)
        return (
            longest + max((op.terms for op in self.network.ops if isinstance(op, Affine)), default=0) + 4 * len(self.network.ops) + 16
        )

    @cached_property
    def _underflow(self) -> Tensor:
        """Bound on the errors of numbers below the least normal one, which no relative error covers: ``()`` float64."""
        total = torch.zeros((), dtype=torch.float64, device=self.lower.device)
        for magnitude in self.magnitudes:
            total = total + magnitude.sum().double()
        return 4 * torch.finfo(self.lower.dtype).tiny * self._terms * (len(self.magnitudes) + total)

    def minimiser(self, trace: Trace) -> Tensor:
        """The input that minimises the linear bound: ``(batch, *input_shape)``."""
        y = trace.cost
        corner = torch.lerp(self.lower, self.upper, _nonpositive(y))
        if self.balls is None:
            return corner
        value, _, x = self.balls.least(y, self.lower, self.upper)
        ball = value > (y * corner).flatten(1).sum(1)
        return torch.where(ball.view(-1, *[1] * (y.dim() - 1)), x, corner)

    def forward(self, node: int, trace: Trace) -> dict[int, Tensor]:
        """Pre-activations of the ReLUs before ``node``, and its result, at the minimiser of the linear bound.

        ``(batch, *shape)`` each.  The derivative of the value with respect to a slope is the positive part of mu times this,
        with respect to a ``beta`` minus this, and with respect to the cost the result.
        """
        found: dict[int, Tensor] = {}

        def relax(at: int, z: Tensor) -> Tensor:
            found[at] = z
            if at in trace.shift:
                return torch.addcmul(trace.shift[at], trace.slope[at], z)
            return torch.addcmul(trace.upper[at] * self.lines[at][1], trace.slope[at], z)

        found[node] = self._propagate(node, self.minimiser(trace), trace, relax)
        return found

    def attained(self, node: int, cost: Tensor, found: Mapping[int, Tensor], betas: Mapping[int, Tensor]) -> Tensor:
        """The value of a dual, from the forward pass: that of the linear bound at its minimiser.

        Parameters
        ----------
        node : int
            Position of the result that is bounded.
        cost : Tensor
            ``(batch, ...)``: its costs.
        found, betas : mapping
            Results of the forward pass by position, and multipliers of splits by ReLU.
        """
        value = (cost * found[node]).flatten(1).sum(1)
        for relu, beta in betas.items():
            value = value - (beta * found[relu]).flatten(1).sum(1)
            if relu in self.curves:
                value = value + self.curves[relu].paid(beta)
        return value

    def primal(self, node: int, cost: Tensor, x: Tensor, trace: Trace) -> Tensor:
        """Value of a point of the LP with input ``x``: activations on the side of the triangle that ``trace`` prefers, or smooth.

        It is feasible, so the value is at least the optimum, if no sign was fixed by a split.

        Parameters
        ----------
        node : int
            Position of the result that is bounded.
        cost, x : Tensor
            ``(batch, ...)``: its costs, and inputs.
        trace : Trace
            The costs of activations that the backward pass met.
        """

        def relax(at: int, z: Tensor) -> Tensor:
            op = self.network.ops[at]
            if isinstance(op, SmoothActivation):
                return op.curve.value(z)
            slope, shift = self.lines[at]
            line = torch.addcmul(shift, slope, z)
            return torch.where((trace.activation[at] > 0) & self.open[at], z.clamp(min=0), line)

        return (cost * self._propagate(node, x, trace, relax)).flatten(1).sum(1)

    def _propagate(self, node: int, x: Tensor, trace: Trace, relax: Callable[[int, Tensor], Tensor]) -> Tensor:
        results = {0: x}
        for at in self.network.ancestors(node)[1:]:
            op = self.network.ops[at]
            first = results[op.inputs[0]]
            op.ask(self.deadline, first)
            if isinstance(op, (Relu, SmoothActivation)):
                results[at] = relax(at, first)
            elif isinstance(op, Add):
                results[at] = first + results[op.inputs[1]]
            else:
                assert isinstance(op, Affine)
                results[at] = op(first)
        return results[node]


def undecided(network: Network, at: int, low: Tensor, high: Tensor) -> Tensor:
    """Return where neurons may be split: ReLUs and signs of unknown sign, and smooth activations that are not constant.

    Parameters
    ----------
    network : Network
        The network.
    at : int
        Position of the activation, or behind the last operation.
    low, high : Tensor
        Bounds of its pre-activations.
    """
    op = network.ops[at] if at < len(network.ops) else None
    if not isinstance(op, SmoothActivation):
        return (low < 0) & (high > 0)
    return (low < high) & (low <= 0) & (high >= 0) if op.curve.jumps else low < high


def _nonpositive(y: Tensor) -> Tensor:
    """1 where ``y`` is zero or less, 0 elsewhere, in the dtype of ``y``."""
    return torch.le(y, 0, out=torch.empty_like(y))


def _cut(y: Tensor) -> Tensor:
    """What the checker may cut off each number, in units of ``coarse``: half of the last of its bits, as is usual."""
    return 2.0**-12 * y.abs().amax(tuple(range(1, y.dim())), keepdim=True)
