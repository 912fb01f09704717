"""Comparison of a network with its source at random points, by what rounding explains."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operations import Add, Affine, Folded, Relu, SmoothActivation

#: Rounding units of the sources that networks are compared with.
UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}

# Products below the smallest normal number are flushed to zero, which no relative bound covers.
UNDERFLOW = 1e-30

# Sums of float32 numbers may overflow from about here.
LARGEST = 1e37

# How many times the rounding of its own sum may be what a neuron has inherited from its predecessors.
KINK = 64

# Rounding units that runtimes' approximations of smooth functions are allowed.
APPROXIMATED = 16

# More outputs than these are compared by sums with random signs.
MOST_PROBES = 32

# Points at which networks are compared.
POINTS = 20

# Results to differentiate at a time: some hundredths of a second.
MOST_NUMBERS = 2**17


def random_points(network: Network, count: int = POINTS) -> Tensor:
    """Return inputs ``(count, *input_shape)`` to compare at, exact in float32: zero, [0, 1], [-1, 1], normal and large ones."""
    generator = torch.Generator().manual_seed(0)
    flat = (count, network.inputs)
    uniform, normal = torch.rand(flat, generator=generator), torch.randn(flat, generator=generator)
    kinds = (uniform, 2 * uniform - 1, normal, 100 * normal)
    points = torch.stack([kinds[i % 4][i] for i in range(count)])
    points[0] = 0.0
    return points.double().reshape(count, *network.input_shape)


def rounding(network: Network, x: Tensor, probes: Tensor, unit: float, deadline: Deadline | None = None) -> tuple[Tensor, Tensor]:
    """Estimate how far an evaluation in floating point can be from the real numbers.

    A sum of n products in any order is off by at most n u / (1 - n u) times the sum of their magnitudes (Higham, Accuracy
    and Stability of Numerical Algorithms, section 3.1).  What reaches the output of the error of one operation is, to first
    order, its product with the derivative of the output.  Products of the magnitudes of all layers would be a bound without
    "to first order", but one that exceeds the outputs of trained networks a thousand times.

    Parameters
    ----------
    network : Network
        In float64.
    x : Tensor, shape (batch, *input_shape)
        Inputs that the precision holds exactly.
    probes : Tensor, shape (probes, outputs)
        Combinations of outputs.
    unit : float
        u, half the distance of 1 to the next number.
    deadline : Deadline, optional
        When to raise a ``TimeLimitError``.

    Returns
    -------
    values, errors : Tensor, shape (batch, probes)
        Combinations in float64 and the estimate; infinite where a sum may exceed ``LARGEST`` and overflow in float32.
    """
    deadline, began = Deadline() if deadline is None else deadline, time.perf_counter()
    results: list[Tensor] = []
    local: list[Tensor] = []
    largest = x.flatten(1).abs().amax(1)
    for op in network.ops:
        of = [results[i] for i in op.inputs]
        op.ask(deadline, x)
        gamma, magnitude = unit, torch.zeros_like(of[0].detach() if of else x)
        if isinstance(op, Add):
            result, magnitude = of[0] + of[1], (of[0].abs() + of[1].abs()).detach()
        elif isinstance(op, Relu):
            # An error may switch a neuron that is this close to zero, so what comes through it counts.
            open_ = of[0] >= -KINK * local[op.inputs[0]]
            result = of[0].detach().clamp(min=0) + (of[0] - of[0].detach()) * open_
        elif isinstance(op, SmoothActivation):
            # Runtimes approximate: to a few units, of the argument for those that are unbounded.
            result, magnitude, gamma = op.curve.value(of[0]), op.curve.largest(of[0].detach().abs()), APPROXIMATED * unit
            if op.curve.jumps:  # by an error that takes an argument this close to zero to the other side
                magnitude, gamma = 2.0 * (of[0].detach().abs() <= KINK * local[op.inputs[0]]), 1.0
        elif isinstance(op, Affine):
            result, magnitude = op(of[0]), op.absolute()(of[0].detach().abs())
            gamma = op.terms * unit / (1 - op.terms * unit)
            if isinstance(op, Folded):
                magnitude = magnitude + op.parts
        else:
            result = x.clone().requires_grad_()
        results.append(result)
        local.append(gamma * magnitude + (op.curve.cut if isinstance(op, SmoothActivation) else UNDERFLOW))
        largest = torch.maximum(largest, magnitude.flatten(1).amax(1))
    values = results[-1].flatten(1) @ probes.T
    errors = torch.zeros_like(values)
    seconds = time.perf_counter() - began  # a derivative takes about as long
    for probe in range(len(probes)):
        deadline.check(f"checking {network.name}", seconds)
        slopes = torch.autograd.grad(values[:, probe].sum(), results, retain_graph=True, allow_unused=True)
        parts = [(slope.abs() * off).flatten(1).sum(1) for slope, off in zip(slopes, local, strict=True) if slope is not None]
        errors[:, probe] = torch.stack(parts).sum(0).detach()
    return values.detach(), torch.where(largest[:, None] > LARGEST, torch.inf, errors)


def compare(network: Network, x: Tensor, outputs: Tensor, unit: float, source: str, deadline: Deadline | None = None) -> None:
    """Refuse a network that differs from its source by more than rounding.

    Parameters
    ----------
    network : Network
        In float64.
    x : Tensor, shape (batch, *input_shape)
        Points.
    outputs : Tensor, shape (batch, outputs)
        What the source gives there.
    unit : float
        Rounding unit of the source.
    source : str
        Name of the source for the message.
    deadline : Deadline, optional
        When to give up.

    Raises
    ------
    ModelError
        They differ.
    TimeLimitError
        The deadline is over, or would be.
    """
    if network.outputs != outputs.shape[1]:
        raise ModelError(f"{network.name} has {network.outputs} outputs where {source} has {outputs.shape[1]}")
    few = network.outputs <= MOST_PROBES
    signs = torch.randint(2, (MOST_PROBES, network.outputs), generator=torch.Generator().manual_seed(1))
    probes = torch.eye(network.outputs, dtype=torch.float64) if few else 2.0 * signs.double() - 1
    size = sum(math.prod(op.shape) for op in network.ops)
    step = max(1, MOST_NUMBERS // size)
    parts = [rounding(network, x[start : start + step], probes, unit, deadline) for start in range(0, len(x), step)]
    own, errors = (torch.cat(part) for part in zip(*parts, strict=True))
    # Twice each for the source's rounding of folded constants, and for ReLUs that rounding switches.
    others, allowed = outputs.double() @ probes.T, 4 * errors
    far = ~((own - others).abs() <= allowed) & allowed.isfinite()
    if bool(far.any()):
        at, probe = (int(i) for i in far.nonzero()[0])
        raise ModelError(
            f"{network.name}: {'output' if few else 'sum of outputs'} {probe} is {own[at, probe]:.9g} where {source} gives "
            f"{others[at, probe]:.9g} at test point {at}; rounding explains {allowed[at, probe]:.2g}; please report the network"
        )
