"""Cuts of a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data, common_shape
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.errors import ModelError
from blocklp.oracles import cut_search
from blocklp.oracles.graphs import (
    LARGEST_SYSTEM,
    answered_once,
    by_node,
    error_of_bound,
    fixed_further,
    graph,
    lowered,
    node_numbers,
    search,
)
from blocklp.rounding import rounding


class Cut(BlockType):
    r"""Two sides of a directed graph, and the arcs between them.

    With a variable :math:`z_v` for every node, 1 on the side of the source, and after them :math:`y_a` for
    every arc, 1 where it leaves that side:

    .. math:: \{0 \le z, y \le 1 : y_a \ge z_u - z_v \text{ for } a = (u, v), z_{source} = 1, z_{sink} = 0\}.

    Vertices are 0/1.  Blocks share the graph and may differ in source and sink, without which nodes choose by
    their costs.

    Minimum: arcs of negative cost are cut in any case; the others are capacities of a flow, the largest of
    which is found by blocking flows (Dinic 1970).  The value is that which the flow proves, whatever its
    rounding.  Compiled loops do the work where numba is installed.

    Parameters
    ----------
    tails, heads : array_like
        ``(arcs,)`` integers from 0 on: the nodes that each arc leaves and enters.
    source, sink : array_like, optional
        A number, ``(blocks,)`` or ``(batch, blocks)``: nodes; None for none.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a node is no integer from 0 on, an arc enters the node that it leaves, or a source is its sink.

    Examples
    --------
    >>> import torch
    >>> from blocklp.oracles import Cut
    >>> kind = Cut([0, 0, 1], [1, 2, 2], source=0, sink=2)
    >>> point, value = kind.min_oracle(torch.tensor([[[0.0, 0.0, 0.0, 3.0, 1.0, 2.0]]], dtype=torch.float64))
    >>> point[0, 0, :3].tolist(), round(value.item(), 9)  # the arcs from 0 to 2 and from 1 to 2
    ([1.0, 1.0, 0.0], 3.0)
    """

    block_data = ("fixed",)
    _kept = ("_answered",)
    #: ``(batch or 1, blocks or 1, nodes)`` float: 1 where a node must be on the side of the source, 0 where
    #: it must not, else 1/2.
    fixed: Tensor

    def __init__(self, tails: object, heads: object, source: object = None, sink: object = None) -> None:
        self.ends = graph(tails, heads, "Cut")
        ends = {
            name: node_numbers(as_block_data(side, 0, f"Cut {name}"), f"Cut {name}")
            for name, side in (("source", source), ("sink", sink))
            if side is not None
        }
        shape = common_shape("Cut", (1, 1), *(t.shape for t in ends.values()))
        self.nodes = 1 + max(int(t.max()) for t in (self.ends, *ends.values()))
        self.dim: int = self.nodes + self.ends.shape[1]
        if len(ends) == 2 and bool((same := (ends["source"] == ends["sink"]).expand(shape)).any()):
            i, b = same.nonzero()[0].tolist()
            raise ModelError(f"Cut: the source of block {b} of instance {i} is its sink; give two nodes")
        self.fixed = torch.full((*shape, self.nodes), 0.5, dtype=torch.float64)
        for name, node in ends.items():
            self.fixed.scatter_(-1, node.expand(shape)[..., None], float(name == "source"))

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Find the cheapest cuts."""
        side, value = self._minimum_cuts(cost)
        across = (side[..., self.ends[0]] & ~side[..., self.ends[1]]) | (cost[..., self.nodes :] < 0)
        return torch.cat([side, across], -1).to(cost), value

    def value_error(self, cost: Tensor) -> Tensor:
        """Cost of the point, which is exact, less the value: the minimum is between them."""
        point, value = self.min_oracle(cost)
        return error_of_bound(value, cost.double() * point.double(), cost)

    @answered_once
    def _minimum_cuts(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        r"""Nodes on the side of the source, and values in the dtype of the cost.

        They are ``(batch, blocks, nodes)`` bool and ``(batch, blocks)``.

        With a flow :math:`0 \le f \le c` and what it takes out of every node, :math:`d_v = \sum_{a \text{
        leaves } v} f_a - \sum_{a \text{ enters } v} f_a`, no cut costs less than :math:`\sum_v \min_{z_v}
        (c_v + d_v) z_v`.
        """
        lead, device = cost.shape[:2], cost.device
        fixed = self.fixed.to(cost.device).expand(*lead, -1).reshape(-1, self.nodes).cpu()
        whole = cost.detach().double().reshape(-1, self.dim).cpu()
        nodes, arcs = whole[:, : self.nodes].contiguous(), whole[:, self.nodes :].contiguous()
        must = torch.where(fixed == 1, -torch.inf, torch.where(fixed == 0, torch.inf, nodes))
        flow, side, ends = torch.zeros_like(arcs), torch.zeros(nodes.shape, dtype=torch.bool), self.ends.cpu()
        out, into = (by_node(end, self.nodes) for end in ends)
        arguments = (ends, out, into, must, arcs.clamp(min=0), flow, side)
        search("blocklp.oracles.cut_kernels", cut_search, "separate", len(nodes), *arguments)
        flow = torch.minimum(flow, arcs.clamp(min=0))
        sums = [torch.zeros_like(nodes).index_add(1, end, flow) for end in ends]
        reduced = nodes + (sums[0] - sums[1])
        least = torch.where(fixed == 1, reduced, torch.where(fixed == 0, 0.0, reduced.clamp(max=0)))
        value = least.sum(1) + arcs.clamp(max=0).sum(1)
        # The sum of a node is rounded as often as it has arcs, and the total once more for every number.
        degree = torch.bincount(self.ends.cpu().flatten()).max().item()
        size = (nodes.abs() + sums[0] + sums[1]).sum(1)
        terms = least.abs().sum(1) + arcs.clamp(max=0).abs().sum(1)
        error = rounding(int(degree) + 4, torch.float64) * size
        error = error + rounding(self.dim + 4, torch.float64) * terms
        value = (value - error - torch.finfo(torch.float64).tiny).view(lead)
        return side.view(*lead, -1).to(device), lowered(value, cost.dtype).to(device, cost.dtype)

    def constraints(self) -> Constraints | None:
        """A row for each arc, bounds of nodes and arcs; None for large dense systems."""
        count = self.ends.shape[1]
        if count * self.dim > LARGEST_SYSTEM:
            return None
        matrix, arc = torch.zeros(count, self.dim, dtype=torch.float64), torch.arange(count)
        matrix[arc, self.ends[0]], matrix[arc, self.ends[1]], matrix[arc, self.nodes + arc] = 1.0, -1.0, -1.0
        zero = torch.zeros(1, 1, count, dtype=torch.float64)
        fixed = self.fixed.double()
        arcs = torch.zeros(*fixed.shape[:2], count, dtype=torch.float64)
        below = torch.cat([(fixed == 1).double(), arcs], -1)
        above = torch.cat([(fixed != 0).double(), arcs + 1], -1)
        return Constraints(matrix[None, None], torch.full_like(zero, -torch.inf), zero, below, above)

    def restrict(self, lower: Tensor, upper: Tensor) -> Cut | None:
        """Fix nodes to 0 or 1; None for other bounds."""
        low, high = lower[..., : self.nodes], upper[..., : self.nodes]
        if bool((lower[..., self.nodes :] > 0).any() | (upper[..., self.nodes :] < 1).any()):
            return None
        fixed = fixed_further(self.fixed, low, high)
        return None if fixed is None else self.with_data(fixed=fixed)

    def __repr__(self) -> str:
        return f"{self.name}(nodes={self.nodes}, arcs={self.ends.shape[1]})"
