r"""A Triton kernel for what a pass of :class:`blocklp.methods.prox.Prox` decides for each instance."""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_launch import kernel


@triton.jit
def serious_step(
    eta: tl.tensor,
    origin: tl.tensor,
    centres: tl.tensor,
    increase: tl.tensor,
    predicted: tl.tensor,
    RULE: tl.constexpr,
) -> tl.tensor:
    """The weight of the next problem (:class:`blocklp.methods.proximal_weight.SeriousStepRule`).

    RULE are factor, centres after which raises are less than full, and the largest factor from the first
    weight.

    Parameters
    ----------
    eta, origin, centres, increase, predicted : (BLOCK,)
        Weight now and at the start, number of centres, and the rise of the value, found and predicted.
    """
    share = tl.minimum(RULE[1] / tl.maximum(centres, 1.0), 1.0)
    grown = tl.where(increase < 0.25 * predicted, eta * (1 + (RULE[0] - 1) * share), eta)
    new = tl.where(increase > 0.75 * predicted, eta / RULE[0], grown)
    return tl.minimum(tl.maximum(new, origin / RULE[2]), origin * RULE[2])


@kernel
def prox_numbers(
    batch: tl.tensor,
    distance: tl.tensor,
    asked: tl.tuple,
    state: tl.tuple,
    outer: tl.tensor,
    found: tl.tensor,
    RULE: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Decide which instances leave their proximal problem (:func:`blocklp.methods.prox.prox_schedule`).

    Parameters
    ----------
    batch, distance : int
        Number of instances, and how far they are from each other in ``asked``.
    asked : tuple of pointers
        Squared disagreement, dual value and cost of the points, ``(batch,)`` each.
    state : tuple of pointers
        ``(batch,)``: weight, value at the centre, centres, steps on the problem, effort, momentum, and the
        weight of the start.
    outer, found : pointer
        ``(batch,)`` int8 and ``(7, batch)``, written: which leave; the first six of the next state, and by
        what part of their step weights are extrapolated.
    RULE : tuple
        As in :func:`serious_step`; empty for weights that stay.
    INNER : float
        Steps on a problem at most, over the effort.
    """
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = b < batch
    eta = tl.load(state[0] + b, mask=mine, other=1.0)
    centre, centres = tl.load(state[1] + b, mask=mine, other=0.0), tl.load(state[2] + b, mask=mine, other=0.0)
    inner, effort = tl.load(state[3] + b, mask=mine, other=0.0), tl.load(state[4] + b, mask=mine, other=1.0)
    momentum, origin = (
        tl.load(state[5] + b, mask=mine, other=1.0),
        tl.load(state[6] + b, mask=mine, other=1.0),
    )
    model = tl.load(asked[0] + b * distance, mask=mine, other=0.0) / eta
    value = tl.load(asked[1] + b * distance, mask=mine, other=0.0)
    gap, rise = tl.load(asked[2] + b * distance, mask=mine, other=0.0) - value, value - centre
    leaves = (gap <= model / effort) | (inner + 1 >= INNER * effort)
    new = eta
    if len(RULE) > 0:
        new = serious_step(eta, origin, centres + 1, rise, model + gap, RULE)
    after = tl.where(leaves, 1.0, (1 + tl.sqrt(1 + 4 * momentum * momentum)) / 2).to(eta.dtype)
    share = tl.where(leaves, 0.0, (momentum - 1) / after)
    tl.store(outer + b, leaves.to(tl.int8), mask=mine)
    tl.store(found + b, tl.where(leaves, new, eta), mask=mine)
    tl.store(found + batch + b, tl.where(leaves, value, centre), mask=mine)
    tl.store(found + 2 * batch + b, tl.where(leaves, centres + 1, centres), mask=mine)
    tl.store(found + 3 * batch + b, tl.where(leaves, 0.0, inner + 1), mask=mine)
    tl.store(
        found + 4 * batch + b,
        tl.where(leaves & (rise < 0), tl.minimum(1.1 * effort, 30.0), effort),
        mask=mine,
    )
    tl.store(found + 5 * batch + b, after, mask=mine)
    tl.store(found + 6 * batch + b, share, mask=mine)
