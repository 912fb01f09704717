"""Paths in a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.blocks.block_data import common_shape
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.finite import struck_out
from blocklp.oracles import path_search
from blocklp.oracles.graphs import (
    LARGEST_SYSTEM,
    answered_once,
    arc_costs,
    by_node,
    error_of_bound,
    graph,
    lowered,
    masked_arcs,
    node_order,
    refuse_blocks,
    search,
    terminals,
)
from blocklp.rounding import rounding, roundoff

KERNELS = "blocklp.oracles.path_kernels"


class Path(BlockType):
    r"""Paths of a directed graph from a source to a target, or flows of a demand along them.

    With a variable for every arc,

    .. math:: \{0 \le x \le demand : \sum_{a \text{ leaves } v} x_a - \sum_{a \text{ enters } v} x_a = b_v\},

    where b is the demand at the source, minus the demand at the target, and 0 elsewhere.  Blocks share the
    graph and may differ in source, target and demand.

    Minimum: in a graph without cycles, dynamic programming.  Otherwise costs may be negative around a cycle,
    as multipliers are even where the costs of a model are not, and what the block may send around it is
    limited by its demand: the arcs of negative cost are filled, and the flow is made whole along shortest
    augmenting paths.  Where all costs are nonnegative that is Dijkstra's algorithm.  Compiled loops do the
    work where numba is installed.

    Parameters
    ----------
    tails, heads : array_like
        ``(arcs,)`` integers from 0 on: the nodes that each arc leaves and enters.
    source, target : array_like
        A number, ``(blocks,)`` or ``(batch, blocks)``: nodes.
    demand : array_like
        A number, ``(blocks,)`` or ``(batch, blocks)``, positive and finite.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a node is no integer from 0 on, an arc enters the node that it leaves, a demand is not positive, a
        source is its target, or no path leads there.

    Examples
    --------
    >>> import torch
    >>> from blocklp.oracles import Path
    >>> kind = Path([0, 0, 1], [1, 2, 2], source=0, target=2)
    >>> point, value = kind.min_oracle(torch.tensor([[[1.0, 3.0, 1.0]]], dtype=torch.float64))
    >>> point.tolist(), value.tolist()
    ([[[1.0, 0.0, 1.0]]], [[2.0]])
    """

    by_points = True
    block_data = ("source", "target", "demand", "excluded")
    _kept = ("_answered",)
    #: ``(batch or 1, blocks or 1)`` int64, int64 and float.
    source: Tensor
    target: Tensor
    demand: Tensor
    #: ``(batch or 1, blocks, arcs)`` bool, or None: mask of the arcs that must not be used.
    excluded: Tensor | None = None

    def __init__(
        self,
        tails: object,
        heads: object,
        source: object,
        target: object,
        demand: object = 1.0,
    ) -> None:
        self.ends = graph(tails, heads, "Path")
        start, end, self.demand = terminals(source, target, demand, "Path", gradients=True)
        shape = common_shape("Path", start.shape, end.shape, self.demand.shape)
        self.nodes = 1 + int(max(self.ends.max(), start.max(), end.max()))
        self.source, self.target = start.expand(shape), end.expand(shape)
        self.dim: int = self.ends.shape[1]
        # Arcs of an acyclic graph by the order of their tails, None for others, and the arcs of the longest
        # path.
        self.order, self.longest = _topological(self.ends, self.nodes)
        value = self.min_oracle(torch.ones(*shape, self.dim, dtype=torch.float64))[1]
        refuse_blocks(self.source == self.target, self.source, "Path", "is its target")
        refuse_blocks(value >= struck_out(value.dtype), self.source, "Path", "has no path to its target")

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Find the cheapest paths, or flows."""
        taken, value = self._cheapest(cost)
        return taken.to(cost) * self.demand[..., None].to(cost), value

    def value_error(self, cost: Tensor) -> Tensor:
        r"""Rounding error of the sum along a path, at most that of the largest costs along the longest path.

        In graphs with cycles the value is a valid bound, and the error at most the cost of the flow less the
        value.
        """
        demand = self.demand.to(cost)
        if self.order is not None:
            return roundoff(self.longest + 4, cost.abs().topk(self.longest, -1).values.sum(-1) * demand)
        taken, value = self._cheapest(cost)
        terms = torch.where(taken, cost.double(), 0.0) * self.demand.double()[..., None]
        # More for demands in this precision.
        return error_of_bound(value, terms, cost, torch.finfo(cost.dtype).eps)

    @answered_once
    def _cheapest(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Arcs in use ``(batch, blocks, arcs)`` bool, and values ``(batch, blocks)`` in the cost's dtype."""
        lead, device = cost.shape[:2], cost.device
        c = arc_costs(cost.detach().double(), self.excluded)
        source, target = (t.expand(lead).reshape(-1).cpu().contiguous() for t in (self.source, self.target))
        taken = torch.zeros(c.shape, dtype=torch.bool)
        price = torch.zeros(len(c), self.nodes, dtype=torch.float64)
        feasible, ends = torch.ones(len(c), dtype=torch.bool), self.ends.cpu()
        rest = (c, (source, target), taken, price)
        if self.order is not None:
            search(KERNELS, path_search, "walk", len(c), ends, self.order, *rest)
            value = price.gather(1, target[:, None])[:, 0]
            feasible = torch.isfinite(value)
        else:
            out, into = (by_node(side, self.nodes) for side in ends)
            search(KERNELS, path_search, "send", len(c), ends, out, into, *rest, feasible)
            value = _proved(ends, c, price, source, target)
        demand = self.demand.expand(lead).double()
        value, feasible = value.view(lead).to(device), feasible.view(lead).to(device)
        value = value * demand
        value = lowered(value, cost.dtype) if self.order is None else value
        value = torch.where(feasible, value.to(cost.dtype), struck_out(cost.dtype))
        return taken.view(cost.shape).to(device), value

    def constraints(self) -> Constraints | None:
        """A row for each node, with zero and the demand as bounds; None for large dense systems."""
        if self.nodes * self.dim > LARGEST_SYSTEM:
            return None
        matrix, arc = torch.zeros(self.nodes, self.dim, dtype=torch.float64), torch.arange(self.dim)
        matrix[self.ends[0], arc], matrix[self.ends[1], arc] = 1.0, -1.0
        demand = self.demand.double().expand(self.source.shape)[..., None]
        supply = torch.zeros(*self.source.shape, self.nodes, dtype=torch.float64)
        supply = supply.scatter(-1, self.source[..., None], demand)
        supply = supply.scatter(-1, self.target[..., None], -demand)
        above = self.demand.double()[..., None].expand(*self.demand.shape, self.dim)
        return Constraints(matrix[None, None], supply, supply, torch.zeros_like(above), above)

    def restrict(self, lower: Tensor, upper: Tensor) -> Path | None:
        """Mask arcs by fixings to zero; None for other bounds."""
        excluded = masked_arcs(self.excluded, lower, upper, self.demand[..., None])
        return None if excluded is None else self.with_data(excluded=excluded)

    def __repr__(self) -> str:
        return f"{self.name}(nodes={self.nodes}, arcs={self.dim})"


def _topological(ends: Tensor, nodes: int) -> tuple[Tensor | None, int]:
    """Arcs by the order of their tails, None where there is a cycle, and most arcs of a path."""
    sequence = node_order(ends, nodes)
    if sequence is None:
        return None, ends.shape[1]
    rank, longest = torch.empty(nodes, dtype=torch.long), [0] * nodes
    rank[torch.tensor(sequence)] = torch.arange(nodes)
    order = rank[ends[0]].argsort(stable=True)
    for tail, head in ends[:, order].T.tolist():
        longest[head] = max(longest[head], longest[tail] + 1)
    return order, max(longest)


def _proved(ends: Tensor, cost: Tensor, price: Tensor, source: Tensor, target: Tensor) -> Tensor:
    r"""The bound that potentials prove for unit flows, less its rounding error: ``(blocks,)``.

    .. math:: p_t - p_s + \sum_{a = (u, v)} \min(0, c_a + p_u - p_v)
    """
    usable = torch.isfinite(cost)
    c, tail, head = torch.where(usable, cost, 0.0), price[:, ends[0]], price[:, ends[1]]
    first, last = (price.gather(1, node[:, None])[:, 0] for node in (source, target))
    value = last - first + torch.where(usable, c + tail - head, 0.0).clamp(max=0).sum(1)
    size = last.abs() + first.abs() + torch.where(usable, c.abs() + tail.abs() + head.abs(), 0.0).sum(1)
    # Terms are rounded three times each; their sum, of which most are zero, by no more than its magnitude.
    least = torch.where(usable, c + tail - head, 0.0).clamp(max=0).abs().sum(1)
    return value - rounding(6, price.dtype) * size - rounding(cost.shape[1], price.dtype) * least
