"""Common parts of block types on graphs: numbers of nodes, arcs by node, calls of compiled searches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.blocks.block_data import as_block_data
from blocklp.blocks.finite import struck_out
from blocklp.errors import ModelError, ShapeError
from blocklp.kernels.compiled import in_time
from blocklp.options import numbers
from blocklp.oracles.simplex import merge_masks
from blocklp.rounding import roundoff

LARGEST_SYSTEM = 4_000_000
"""Entries of a dense system of constraints beyond which none is stated."""

SUBSETS = 16
"""Most nodes of a graph whose sets of nodes are gone through for constraints."""

LARGEST_LISTED = 100_000
"""Entries of a system of constraints of such sets beyond which none is stated."""


def graph(tails: object, heads: object, name: str) -> Tensor:
    """Tails and heads of arcs as one tensor.

    Parameters
    ----------
    tails, heads : array_like
        ``(arcs,)`` integers from 0 on.
    name : str
        Name of the block type, for messages.

    Returns
    -------
    Tensor
        ``(2, arcs)`` int64.

    Raises
    ------
    ShapeError
        If these are not two rows of one length, one arc at least.
    ModelError
        If a node is no integer from 0 on, or an arc enters the node that it leaves.
    """
    sides = ((f"{name} tails", tails), (f"{name} heads", heads))
    ends = [node_numbers(numbers(side, what), what) for what, side in sides]
    if ends[0].dim() != 1 or ends[0].shape != ends[1].shape or not len(ends[0]):
        shapes = f"{tuple(ends[0].shape)} and {tuple(ends[1].shape)}"
        raise ShapeError(f"{name} tails and heads have shapes {shapes}; give (arcs,) of each")
    loops = (ends[0] == ends[1]).nonzero()
    if len(loops):
        raise ModelError(f"{name}: arc {int(loops[0])} enters the node that it leaves; leave it out")
    return torch.stack(ends)


def node_numbers(values: Tensor, what: str) -> Tensor:
    """Numbers of nodes as int64.

    Raises
    ------
    ModelError
        If one is no integer from 0 on.
    """
    wrong = (values < 0) | (values != values.round())
    if bool(wrong.any()):
        raise ModelError(f"{what} holds {float(values[wrong][0]):g}; nodes are integers from 0 on")
    return values.long()


def subsets(nodes: int) -> NDArray[np.bool_]:
    """All sets of so many nodes ``(2**nodes, nodes)`` bool, in the order of their binary numbers."""
    return (np.arange(2**nodes)[:, None] >> np.arange(nodes) & 1).astype(bool)


def node_order(ends: Tensor, nodes: int) -> list[int] | None:
    """All nodes, each after those with an arc ``(2, arcs)`` to it; None where there is a cycle."""
    before: dict[int, list[int]] = {v: [] for v in range(nodes)}
    for tail, head in ends.T.tolist():
        before[head].append(tail)
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError:
        return None


def reached(ends: Tensor, start: Tensor) -> Tensor:
    """Nodes that paths along arcs ``(2, arcs)`` lead to from those of a mask: ``(..., nodes)`` bool."""
    tails, heads = ends[0], ends[1].expand(*start.shape[:-1], -1)
    while True:
        further = start.scatter_reduce(-1, heads, start[..., tails], "amax")
        if torch.equal(further, start):
            return start
        start = further


def by_node(side: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Where the arcs of every node begin ``(nodes + 1,)``, and the arcs node by node ``(arcs,)``."""
    starts = torch.nn.functional.pad(torch.bincount(side, minlength=nodes).cumsum(0), (1, 0))
    return starts, side.argsort(stable=True)


def terminals(
    source: object, target: object, demand: object, name: str, *, gradients: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Sources, targets and demands of blocks, each ``(batch or 1, blocks or 1)``; nodes are int64.

    Parameters
    ----------
    source, target, demand : array_like
        A number, ``(blocks,)`` or ``(batch, blocks)``.
    name : str
        Name of the block type, for messages.
    gradients : bool
        Whether demands keep their graph.

    Raises
    ------
    ModelError
        If a node is no integer from 0 on, or a demand is not positive.
    """
    start, end = (
        node_numbers(as_block_data(side, 0, f"{name} {what}"), f"{name} {what}")
        for what, side in (("source", source), ("target", target))
    )
    amount = as_block_data(demand, 0, f"{name} demand", gradients=gradients)
    if bool((amount <= 0).any()):
        raise ModelError(f"{name}: a demand is {float(amount.min()):g}; demands must be positive")
    return start, end, amount


def refuse_blocks(wrong: Tensor, source: Tensor, name: str, what: str) -> None:
    """Refuse blocks of which something is wrong.

    Parameters
    ----------
    wrong, source : Tensor
        ``(batch or 1, blocks or 1)`` bool, and int64: the node that the message names.
    name, what : str
        Name of the block type, and what is wrong.

    Raises
    ------
    ModelError
        If a block is wrong.
    """
    if bool(wrong.any()):
        i, b = wrong.nonzero()[0].tolist()
        raise ModelError(f"{name}: the source {int(source[i, b])} of block {b} of instance {i} {what}")


def masked_arcs(excluded: Tensor | None, lower: Tensor, upper: Tensor, most: Tensor | float) -> Tensor | None:
    """The mask of arcs, with those besides that bounds fix to zero; None for bounds that cut flows off.

    Parameters
    ----------
    excluded : Tensor or None
        ``(batch or 1, blocks, arcs)`` bool: the mask so far.
    lower, upper : Tensor
        ``(batch, blocks, arcs)``: the bounds.
    most : Tensor or float
        What an arc carries at most.
    """
    if bool((lower > 0).any() | (upper < 0).any() | ((upper > 0) & (upper < most)).any()):
        return None
    return merge_masks(excluded, upper <= 0)


def fixed_further(fixed: Tensor, lower: Tensor, upper: Tensor) -> Tensor | None:
    """Fixings to 0 and 1, with those besides of bounds; None for other bounds, or where both disagree.

    Parameters
    ----------
    fixed : Tensor
        ``(batch or 1, blocks or 1, n)``: 0, 1, or 1/2 where free.
    lower, upper : Tensor
        ``(batch, blocks, n)``: the bounds.
    """
    between = ((lower > 0) & (lower < 1)) | ((upper > 0) & (upper < 1)) | (lower > 1) | (upper < 0)
    ones, zeros = (lower == 1) | (fixed == 1), (upper == 0) | (fixed == 0)
    if bool((between | (ones & zeros)).any()):
        return None
    return torch.where(ones, 1.0, torch.where(zeros, 0.0, torch.full_like(fixed, 0.5)))


def lowered(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 values that rounding to another precision may raise, less as much as that is at most."""
    return value if dtype == torch.float64 else value - 2 * torch.finfo(dtype).eps * value.abs()


Found = TypeVar("Found")


def arc_costs(cost: Tensor, excluded: Tensor | None) -> Tensor:
    """Costs of arcs for a search on the CPU.

    Parameters
    ----------
    cost : Tensor
        ``(batch, blocks, arcs)`` float64.
    excluded : Tensor or None
        ``(batch or 1, blocks, arcs)`` bool: arcs that must not be used.

    Returns
    -------
    Tensor
        ``(batch * blocks, arcs)`` float64, infinite for these.
    """
    allowed = cost if excluded is None else cost.masked_fill(excluded, torch.inf)
    return allowed.cpu().reshape(-1, cost.shape[-1]).contiguous()


def answered_once(find: Callable[[Any, Tensor], Found]) -> Callable[[Any, Tensor], Found]:
    """Remember what a method of a block type found for its last costs.

    A check asks for values, then for their errors.  The answer stands as long as the block data are the same
    objects.
    """

    @functools.wraps(find)
    def ask(kind: Any, cost: Tensor) -> Found:
        data = tuple(kind.tensors().values())
        known, before, answer = vars(kind).get("_answered", ((), None, None))
        same = before is not None and len(known) == len(data)
        same = same and all(a is b for a, b in zip(known, data, strict=True))
        if same and before.dtype == cost.dtype and before.device == cost.device and torch.equal(before, cost):
            return cast(Found, answer)
        found = find(kind, cost)
        vars(kind)["_answered"] = data, cost.detach().clone(), found
        return found

    return ask


def error_of_bound(value: Tensor, terms: Tensor, cost: Tensor, more: float = 0.0) -> Tensor:
    """Rounding error of values that are valid bounds: minima are between them and their points.

    Parameters
    ----------
    value : Tensor
        ``(batch, blocks)`` in the dtype of the cost.
    terms : Tensor
        ``(batch, blocks, dim)`` float64: costs of the points, which are exact.
    cost : Tensor
        ``(batch, blocks, dim)``: of which only the dtype counts.
    more : float
        Part of the terms' sizes that is charged besides.

    Returns
    -------
    Tensor
        ``(batch, blocks)`` in the dtype of the cost; zero where a block has no point.
    """
    size, kind = terms.abs().sum(-1), torch.finfo(cost.dtype)
    above = (terms.sum(-1) - value.double()).clamp(min=0) + roundoff(cost.shape[-1] + 4, size) + more * size
    error = (above * (1 + 4 * kind.eps)).to(cost.dtype) + kind.tiny
    return torch.where(value >= struck_out(cost.dtype), torch.zeros_like(error), error)


def search(
    kernels: str,
    module: ModuleType,
    name: str,
    blocks: int,
    *arguments: Tensor | tuple[Tensor, ...],
) -> None:
    """Call a function ``(first, last, ...)`` for all blocks: compiled with numba, else in Python.

    Parameters
    ----------
    kernels : str
        Name of the module of compiled functions.
    module : module
        The module of the functions that it compiles.
    name : str
        Name of the function in both.
    blocks : int
        Number of blocks.
    *arguments : Tensor or tuple of Tensor
        The further arguments, on the CPU; results are written into them.
    """
    if (compiled := in_time(kernels, torch.float64)) is not None:
        getattr(compiled, name)(blocks, *arguments)
    else:
        arrays = (tuple(t.numpy() for t in a) if isinstance(a, tuple) else a.numpy() for a in arguments)
        getattr(module, name)(0, blocks, *arrays)
