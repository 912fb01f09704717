"""Spanning arborescences of a directed graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.finite import struck_out
from blocklp.errors import ModelError
from blocklp.oracles import arborescence_search
from blocklp.oracles.graphs import (
    LARGEST_LISTED,
    SUBSETS,
    answered_once,
    arc_costs,
    error_of_bound,
    graph,
    lowered,
    node_numbers,
    reached,
    search,
    subsets,
)
from blocklp.oracles.simplex import merge_masks


class Arborescence(BlockType):
    r"""Spanning arborescences of a directed graph: trees that lead from a root to all other nodes.

    With a variable for every arc they are the vertices of

    .. math:: \{x \ge 0 : x(\delta^-(v)) = 1 \text{ for nodes } v \ne root, \; x(\delta^-(root)) = 0, \;
              x(A(S)) \le |S| - 1 \text{ for all sets } S \text{ of nodes}\},

    where :math:`\delta^-(v)` are the arcs that enter v, and A(S) those within S (Edmonds 1967). Blocks share
    the graph and may differ in their root.

    Minimum: every node takes its cheapest entering arc, cycles of these become nodes, and so on (Chu and Liu
    1965, Edmonds 1967), with heaps of arcs; the value is that of the prices which prove it. Compiled loops do
    the work where numba is installed. Constraints are stated for graphs of up to 16 nodes, if they are few:
    sets that are not strongly connected need none. Of larger graphs none are stated.

    Parameters
    ----------
    tails, heads : array_like
        ``(arcs,)`` integers from 0 on: the nodes that each arc leaves and enters.
    root : array_like
        A number, ``(blocks,)`` or ``(batch, blocks)``: nodes.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a node is no integer from 0 on, an arc enters the node that it leaves, or no path leads from a root
        to some node.

    Examples
    --------
    >>> import torch
    >>> from blocklp.oracles import Arborescence
    >>> kind = Arborescence([0, 0, 1, 2], [1, 2, 2, 1], root=0)
    >>> point, value = kind.min_oracle(torch.tensor([[[4.0, 3.0, 1.0, 0.5]]], dtype=torch.float64))
    >>> point.tolist(), round(value.item(), 9)
    ([[[0.0, 1.0, 0.0, 1.0]]], 3.5)
    """

    by_points = True
    block_data = ("root", "excluded")
    _kept = ("_answered",)
    #: ``(batch or 1, blocks or 1)`` int64.
    root: Tensor
    #: ``(batch or 1, blocks, arcs)`` bool, or None: mask of the arcs that must not be used.
    excluded: Tensor | None = None

    def __init__(self, tails: object, heads: object, root: object = 0) -> None:
        self.ends, what = graph(tails, heads, self.name), f"{self.name} root"
        self.root = node_numbers(as_block_data(root, 0, what), what)
        self.nodes = 1 + int(max(self.ends.max(), self.root.max()))
        self.dim: int = self.ends.shape[1]
        start = torch.zeros(*self.root.shape, self.nodes, dtype=torch.bool)
        apart = ~reached(self.ends, start.scatter(-1, self.root[..., None], True))
        if bool(apart.any()):
            i, b, v = apart.nonzero()[0].tolist()
            r = int(self.root[i, b])
            raise ModelError(
                f"{self.name}: no path leads from the root {r} of block {b} of instance {i} to {v}"
            )

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Find the cheapest arborescences."""
        taken, value = self._cheapest(cost)
        return taken.to(cost), value

    def value_error(self, cost: Tensor) -> Tensor:
        """Cost of the point, which is exact, less the value: the minimum is between them."""
        taken, value = self._cheapest(cost)
        return error_of_bound(value, torch.where(taken, cost.double(), 0.0), cost)

    @answered_once
    def _cheapest(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Arcs in use ``(batch, blocks, arcs)`` bool, and values ``(batch, blocks)`` in the cost's dtype."""
        lead, device = cost.shape[:2], cost.device
        c = arc_costs(cost.detach().double(), self.excluded)
        root = self.root.expand(lead).reshape(-1).cpu().contiguous()
        price = torch.zeros(len(c), 2 * self.nodes, dtype=torch.float64)
        taken, value = torch.zeros(c.shape, dtype=torch.bool), torch.empty(len(c), dtype=torch.float64)
        ends, order = self.ends.cpu(), c.argsort(dim=1, stable=True)
        order = order.gather(1, ends[1][order].argsort(dim=1, stable=True))
        given = ends, order, c, root, price, taken, value
        search("blocklp.oracles.arborescence_kernels", arborescence_search, "contract", len(c), *given)
        feasible, value = torch.isfinite(value), value - torch.finfo(torch.float64).tiny
        value = torch.where(feasible, lowered(value, cost.dtype).to(cost.dtype), struck_out(cost.dtype))
        return taken.view(cost.shape).to(device), value.view(lead).to(device)

    def constraints(self) -> Constraints | None:
        """A row for each node, and for each set of nodes that matters; None where they may be many."""
        if self.nodes > SUBSETS:
            return None
        sets = self._strongly_connected()
        within = sets[:, self.ends[0]] & sets[:, self.ends[1]]
        entering = self.ends[1] == torch.arange(self.nodes)[:, None]
        matrix = torch.cat([entering, within]).double()
        if matrix.numel() > LARGEST_LISTED:
            return None
        once = torch.ones(*self.root.shape, self.nodes, dtype=torch.float64)
        once = once.scatter(-1, self.root.cpu()[..., None], 0.0)
        most = (sets.sum(1) - 1).double().expand(*self.root.shape, -1)
        lower, upper = torch.cat([once, torch.full_like(most, -torch.inf)], -1), torch.cat([once, most], -1)
        above = torch.ones(1, 1, self.dim) if self.excluded is None else ~self.excluded
        return Constraints(matrix[None, None], lower, upper, torch.zeros_like(above.double()), above.double())

    def restrict(self, lower: Tensor, upper: Tensor) -> Arborescence | None:
        """Mask arcs by fixings to 0, and to 1 all others that enter the same node; None for other bounds."""
        between = ((lower > 0) & (lower < 1)) | ((upper > 0) & (upper < 1)) | (lower > 1) | (upper < 0)
        if bool(between.any()):
            return None
        taken, heads = lower == 1, self.ends[1].to(lower.device)
        entered = torch.zeros(*taken.shape[:2], self.nodes, dtype=torch.long, device=lower.device)
        entered = entered.scatter_add(-1, heads.expand(taken.shape), taken.long())[..., heads]
        # An arc that must be taken keeps others from its head, two keep each other, and none enters a root.
        nowhere = (taken & (heads == self.root.to(lower.device)[..., None])).any(-1, keepdim=True)
        excluded = (upper == 0) | (entered > taken.long()) | nowhere
        return self.with_data(excluded=merge_masks(self.excluded, excluded))

    def _strongly_connected(self) -> Tensor:
        """Sets of two nodes or more ``(sets, nodes)`` bool whose arcs lead from each node to each other."""
        member = subsets(self.nodes)
        onto = np.zeros((self.nodes, self.nodes), dtype=bool)
        onto[tuple(self.ends)] = True
        strong = member.sum(1) > 1
        for lead in (onto, onto.T):
            near = np.zeros_like(member)
            near[np.arange(1, len(member)), member[1:].argmax(1)] = True
            for _ in range(self.nodes):
                near |= (near @ lead) & member
            strong &= (near == member).all(1)
        return torch.from_numpy(member[strong])

    def __repr__(self) -> str:
        return f"{self.name}(nodes={self.nodes}, arcs={self.dim})"
