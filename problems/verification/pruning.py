"""Networks without the neurons that are off everywhere in a region.

A ReLU whose argument is at most zero in the whole region is zero there, and its row of the matrix before and its column of the one
after say nothing.  Of trained dense networks over small boxes, most neurons are of this kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from blocklp.problems.verification.operations import Linear, Relu
from blocklp.problems.verification.relaxation import Relaxation


def pruned(relaxation: Relaxation, signs: Mapping[int, Tensor]) -> tuple[Relaxation, dict[int, Tensor]]:
    """Return a relaxation of the same function of real numbers over its region, and the signs of the neurons that are left.

    Positions of operations stay; only ReLUs between two matrices, used by nothing else, lose neurons.

    Parameters
    ----------
    relaxation : Relaxation
        Float64, a batch of 1, with valid bounds of all ReLUs.
    signs : mapping
        Position of a ReLU to ``(1, *shape)``: neurons with a sign stay, as multipliers of that may count.
    """
    network = relaxation.network
    ops, bounds, left = list(network.ops), dict(relaxation.bounds), dict(signs)
    users: dict[int, list[int]] = {}
    for at, op in enumerate(ops):
        for argument in op.inputs:
            users.setdefault(argument, []).append(at)
    for at, op in enumerate(ops):
        if not isinstance(op, Relu) or at not in bounds or len(op.shape) != 1:
            continue
        if len(users.get(at, ())) != 1 or len(users[op.inputs[0]]) != 1:
            continue
        before, after = ops[op.inputs[0]], ops[users[at][0]]
        # Of an exact type: others compute their weights, or round them.
        if type(before) is not Linear or type(after) is not Linear:
            continue
        kept = bounds[at][1].flatten() > 0
        if at in signs:
            kept |= signs[at].flatten() != 0
        kept[0] |= ~kept.any()  # no operation is without results
        if bool(kept.all()):
            continue
        shape = (int(kept.sum()),)
        ops[op.inputs[0]] = replace(before, shape=shape, weight=before.weight[kept], bias=before.bias[kept])
        ops[at] = replace(op, shape=shape)
        ops[users[at][0]] = replace(after, source=shape, weight=after.weight[:, kept].contiguous())
        low, high = bounds[at]
        bounds[at] = low[:, kept], high[:, kept]
        if at in signs:
            left[at] = signs[at][:, kept]
    return replace(relaxation, network=replace(network, ops=tuple(ops)), bounds=bounds), left
