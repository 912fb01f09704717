"""Points completed and tested in runs of blocks, so that tensors in between reuse memory on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasCompletion, supports
from blocklp.decomposition.problem import Decomposition, Group

RUN = 2**14
"""Blocks, or variables, of each instance that a CPU completes or tests at once."""


def completed(problem: Decomposition, x: Tensor) -> Tensor | None:
    """Points ``(batch, variables)`` with variables of a single block at their best for the rest.

    None if a type cannot tell, states no constraints that test the points, or if there are rows as well.
    """
    groups = [group for group in problem.groups if not all(group.pattern)]
    able = all(supports(group.type, HasCompletion) for group in groups)
    if problem.rows is not None or not problem.testable or not able:
        return None
    found, known = x.clone(), True
    for group, blocks in ((own, blocks) for own in groups for blocks in runs(problem, own)):
        size = blocks.stop - blocks.start
        kind = group.type if size == group.blocks else group.type.part(blocks)
        assert isinstance(kind, HasCompletion)
        private = [i for i, shared in enumerate(group.pattern) if not shared]
        spans = [(first + blocks.start, first + blocks.stop) for first, _ in group.spans]
        own, cost = torch.empty(2, len(x), group.dim, size, dtype=x.dtype, device=x.device)
        for i, span in enumerate(spans):
            into, values = (cost, problem.cost) if i in private else (own, x)
            into[:, i] = problem.coupling.spread_part(values, *span)
        best = kind.complete(cost.transpose(1, 2), own.transpose(1, 2), group.shared)
        if best is None:
            known = False
            break
        best = best if group.valid is None else best * group.valid[:, blocks, None]
        for values, i in zip(best.unbind(-1), private, strict=True):
            index = problem.coupling.index[:, slice(*spans[i])]
            found.scatter_(1, index.expand(len(found), -1), values)
    return found if bool(problem.totals.everywhere(torch.tensor(known))) else None


def run_length(problem: Decomposition) -> int:
    """Blocks, or variables, of an instance that are dealt with at once: on a device all."""
    return RUN if problem.cost.device.type == "cpu" else max(problem.cost.shape[1], problem.copies)


def runs(problem: Decomposition, group: Group) -> list[slice]:
    """All blocks of a group, in runs where no map is the caller's."""
    run = max(group.blocks, 1) if problem.coupling.maps else run_length(problem)
    return [slice(first, min(first + run, group.blocks)) for first in range(0, group.blocks, run)]


def of_blocks(problem: Decomposition, values: Tensor, group: Group, blocks: slice) -> Tensor:
    """Give copies of some blocks the values of their variables.

    Parameters
    ----------
    problem : Decomposition
        The problem.
    values : Tensor
        ``(batch, variables)``.
    group, blocks : Group, slice
        The blocks.

    Returns
    -------
    Tensor
        ``(batch, blocks, dim)``.
    """
    if problem.coupling.maps:
        return group.blockwise(problem.coupling.spread_part(values, group.start, group.stop))[:, blocks]
    index = group.rows(problem.coupling.index)[..., blocks]
    own = values.gather(1, index.flatten(1).expand(len(values), -1))
    return own.view(len(values), group.dim, -1).transpose(1, 2)
