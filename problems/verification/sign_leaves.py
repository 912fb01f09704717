"""Leaves of a search over signs: the LP of a network whose signs are all fixed, and the proof that its multipliers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import NonFiniteError
from blocklp.problems.verification.clipped_boxes import ClippedBoxes
from blocklp.problems.verification.exact import solve_leaf
from blocklp.problems.verification.interval_cuts import INNER, IntervalCuts
from blocklp.problems.verification.proving import stated_mix, within
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.slopes import SlopeDual
from blocklp.search.best_first import Node

RAY_FACTORS = tuple(10.0**k for k in range(13))
"""What a ray is multiplied by in a leaf whose signs contradict each other, in units of the multipliers' usual size."""


class Splits(Protocol):
    """What a leaf needs of a search, as :class:`ReluSplits` has it."""

    exact: Relaxation
    mixes: Tensor
    owned: Tensor
    node: int
    scales: dict[int, float]
    coarse: float
    margin: float
    deadline: Deadline
    inspect: Callable[[Tensor], None]
    cuts: IntervalCuts
    boxes: ClippedBoxes


def bound_leaf(splits: Splits, node: Node, dual: SlopeDual, start: list[Tensor]) -> Node:
    """Bound a node without a free neuron by multipliers of the LP that the network is there; try its minimiser.

    Parameters
    ----------
    splits : Splits
        The search.
    node : Node
        It comes back as it is where nothing is proved.
    dual, start : SlopeDual, list of Tensor
        Its dual in float64, and its multipliers as parameters of that.
    """
    if not splits.cuts.last:
        return node  # without an activation to split that would gain anything, or could be
    state, device = node.state, splits.mixes.device
    on = {r: low[0] >= 0 for r, (low, _) in dual.relaxation.bounds.items()}
    on |= {r: (low[0] > 0).double() - (high[0] < 0).double() for r in splits.cuts.curves for low, high in [dual.relaxation.bounds[r]]}
    lower, upper, owned = splits.exact.lower[0], splits.exact.upper[0], splits.owned[state.spec]
    try:
        found, mix, betas = solve_leaf(splits.exact.network, lower, upper, on, splits.node, owned, splits.deadline)
    except NonFiniteError:
        return node
    if betas is not None:
        largest = max(float(abs(beta).max()) for beta in betas.values()) or 1.0
        scale = max(splits.scales.values()) / largest
        chosen = [1.0] if found.status == "optimal" else [scale * f for f in RAY_FACTORS]
        factors = torch.tensor(chosen, dtype=torch.float64, device=device)
        # Whatever the LP code says, only rows of the clause count, and none is subtracted.
        cost = torch.as_tensor(mix, device=device).clamp(min=0) * owned if found.status == "optimal" else splits.mixes[state.spec]
        cost = within(cost) if state.part is None else stated_mix(cost)
        rays = {r: _implied(r, torch.as_tensor(beta, device=device), dual.relaxation, factors) for r, beta in betas.items()}
        slopes, _ = dual.named(start)
        costs = cost.repeat(len(factors), 1)
        values = dual.relaxation.backward(splits.node, costs, slopes, rays, charge=True, coarse=splits.coarse).value
        bound = float(values.max())
        if bound > 0:
            if state.part is not None:
                state.part.close(cost[owned], {}, {r: beta[int(values.argmax())] for r, beta in rays.items()})
            return Node(min(bound, splits.margin) if splits.boxes.on else bound, node.depth)  # as its box was clipped, too
    if found.status == "optimal":
        splits.inspect(torch.as_tensor(found.x, device=device).view(1, *lower.shape))
        widest = max((float(splits.exact.widest[r].max()) for r in splits.cuts.curves), default=0.0)
        for share in INNER if splits.cuts.curves else ():  # the least value is often where a sign jumps
            inner = solve_leaf(splits.exact.network, lower, upper, on, splits.node, owned, splits.deadline, share * widest).optimum
            if inner.status == "optimal":
                splits.inspect(torch.as_tensor(inner.x, device=device).view(1, *lower.shape))
    return node


def _implied(relu: int, beta: Tensor, relaxation: Relaxation, factors: Tensor) -> Tensor:
    """Multiples ``(factors, *shape)`` of multipliers of signs; whatever an LP code says, only of signs that bounds imply."""
    low, high = relaxation.bounds[relu]
    beta = beta.view(low.shape)
    beta = beta.clamp(min=0) * (low >= 0) + beta.clamp(max=0) * (high <= 0)
    return factors.view(-1, *[1] * (beta.dim() - 1)) * beta
