"""Networks without the neurons that are off everywhere in a region.

A ReLU whose argument is at most zero in the whole region is zero there, and its row of the matrix before and its column of the one
after say nothing.  Of trained networks over small boxes, most neurons are of this kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from blocklp.problems.verification.operation_matrices import sparse_matrix, worth_forming
from blocklp.problems.verification.operations import Affine, Conv, Linear, Op, Relu, Sparse
from blocklp.problems.verification.relaxation import Relaxation

SPARSE = 0.4
"""Share of the multiplications of convolutions that may be left where they become sparse matrices: these take two to three times as
long for each in float64."""


def pruned(relaxation: Relaxation, signs: Mapping[int, Tensor]) -> tuple[Relaxation, dict[int, Tensor]]:
    """Return a relaxation of the same function of real numbers over its region, and the signs of the neurons that are left.

    Positions of operations stay; only ReLUs between two matrices or convolutions, used by nothing else, lose neurons.  Convolutions
    become sparse matrices if few of their multiplications are left.

    Parameters
    ----------
    relaxation : Relaxation
        Float64, a batch of 1, with valid bounds of all ReLUs.
    signs : mapping
        Position of a ReLU to ``(1, *shape)``: neurons with a sign stay, as multipliers of that may count.
    """
    convolved = (op for op in relaxation.network.ops if isinstance(op, Conv))
    kinds = (Linear, Conv) if worth_forming(convolved, relaxation.deadline) else (Linear,)
    everywhere = _kept(relaxation, signs, kinds)
    ops = _without(relaxation, everywhere)
    convolutions = [at for at, op in enumerate(relaxation.network.ops) if ops[at] is not op and isinstance(op, Conv)]
    left = sum(ops[at].products for at in convolutions)
    if left > SPARSE * sum(relaxation.network.ops[at].products for at in convolutions):
        everywhere = _kept(relaxation, signs, (Linear,))
        ops = _without(relaxation, everywhere)
    bounds, remaining = dict(relaxation.bounds), dict(signs)
    for at, kept in everywhere.items():
        low, high = (end.flatten(1)[:, kept] for end in bounds[at])
        bounds[at] = low, high
        if at in signs:
            remaining[at] = signs[at].flatten(1)[:, kept]
    return replace(relaxation, network=replace(relaxation.network, ops=tuple(ops)), bounds=bounds), remaining


def _kept(relaxation: Relaxation, signs: Mapping[int, Tensor], kinds: tuple[type[Affine], ...]) -> dict[int, Tensor]:
    """Which neurons stay, ``(neurons,)`` bool by position of the ReLUs that lose some; these are between operations of some kinds."""
    ops, found = relaxation.network.ops, {}
    users: dict[int, list[int]] = {}
    for at, op in enumerate(ops):
        for argument in op.inputs:
            users.setdefault(argument, []).append(at)
    for at, op in enumerate(ops):
        if not isinstance(op, Relu) or at not in relaxation.bounds or len(users.get(at, ())) != 1 or len(users[op.inputs[0]]) != 1:
            continue
        # Of an exact type: others compute their weights, or round them.
        beside = ops[op.inputs[0]], ops[users[at][0]]
        if any(type(own) not in kinds for own in beside):
            continue
        kept = relaxation.bounds[at][1].flatten() > 0
        if at in signs:
            kept |= signs[at].flatten() != 0
        kept[0] |= ~kept.any()  # no operation is without results
        if not bool(kept.all()):
            found[at] = kept
    return found


def _without(relaxation: Relaxation, everywhere: Mapping[int, Tensor]) -> list[Op]:
    """The operations, without the neurons that do not stay."""
    ops = list(relaxation.network.ops)
    results = {ops[at].inputs[0]: kept for at, kept in everywhere.items()} | dict(everywhere)
    for at, op in enumerate(ops):
        if at in everywhere:
            ops[at] = replace(op, shape=(int(everywhere[at].sum()),))
        elif isinstance(op, Affine) and (at in results or op.inputs[0] in everywhere):
            ops[at] = _narrowed(op, results.get(at), everywhere.get(op.inputs[0]))
    return ops


def _narrowed(op: Affine, rows: Tensor | None, columns: Tensor | None) -> Affine:
    """The operation from some of its arguments, flat, to some of its results."""
    shape = op.shape if rows is None else (int(rows.sum()),)
    source = op.source if columns is None else (int(columns.sum()),)
    bias = op.shift().expand(1, *op.shape).flatten()
    bias = bias if rows is None else bias[rows]
    if isinstance(op, Linear):
        weight = op.weight if rows is None else op.weight[rows]
        weight = weight if columns is None else weight[:, columns].contiguous()
        return replace(op, shape=shape, source=source, weight=weight, bias=bias)
    matrix = sparse_matrix(op)
    matrix = matrix if rows is None else matrix[rows.cpu().numpy()]
    matrix = (matrix if columns is None else matrix[:, columns.cpu().numpy()]).tocoo()
    row, column = (torch.as_tensor(at, dtype=torch.int64, device=bias.device) for at in (matrix.row, matrix.col))
    entries = torch.as_tensor(matrix.data, device=bias.device)
    return Sparse(op.inputs, shape, op.name, source, op.terms, row, column, entries, bias.reshape(shape))
