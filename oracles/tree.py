"""Spanning trees and forests of a graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.finite import struck_out
from blocklp.errors import ModelError
from blocklp.options import flag
from blocklp.oracles import tree_search
from blocklp.oracles.graphs import (
    LARGEST_LISTED,
    SUBSETS,
    answered_once,
    fixed_further,
    graph,
    reached,
    search,
    subsets,
)
from blocklp.rounding import roundoff


class Tree(BlockType):
    r"""Spanning trees of an undirected graph, or its forests.

    With a variable for every edge, trees are the vertices of

    .. math:: \{x \ge 0 : x(E) = n - 1, \; x(E(S)) \le |S| - 1 \text{ for all sets } S \text{ of nodes}\},

    where n is the number of nodes and E(S) are the edges within S (Edmonds 1971). Forests are those of the
    set without :math:`x(E) = n - 1`: of the edges that cost something none is taken. Edges may be parallel.
    Blocks share the graph.

    Minimum: edges by rising cost, those that close no cycle (Kruskal 1956), of equal ones those with the
    lowest numbers. Compiled loops do the work where numba is installed. The constraints of sets that induce a
    2-connected graph imply all others; they are stated for graphs of up to 16 nodes, if they are few. Of
    larger graphs none are stated.

    Parameters
    ----------
    tails, heads : array_like
        ``(edges,)`` integers from 0 on: the two ends of each edge, in either order.
    forest : bool
        Whether forests are meant that need not span.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a node is no integer from 0 on, an edge has two equal ends, or the graph is not connected and trees
        are asked for.

    Examples
    --------
    >>> import torch
    >>> from blocklp.oracles import Tree
    >>> kind = Tree([0, 0, 1], [1, 2, 2])
    >>> point, value = kind.min_oracle(torch.tensor([[[1.0, 3.0, 1.5]]], dtype=torch.float64))
    >>> point.tolist(), value.tolist()
    ([[[1.0, 0.0, 1.0]]], [[2.5]])
    """

    by_points = True
    block_data = ("fixed",)
    _kept = ("_answered",)
    #: ``(batch or 1, blocks or 1, edges)`` float: 1 where an edge must be taken, 0 where it must not, else
    #: 1/2.
    fixed: Tensor

    def __init__(self, tails: object, heads: object, *, forest: bool = False) -> None:
        self.ends, self.forest = graph(tails, heads, self.name), flag(forest, "forest")
        self.nodes = 1 + int(self.ends.max())
        self.dim: int = self.ends.shape[1]
        self.fixed = torch.full((1, 1, self.dim), 0.5, dtype=torch.float64)
        if not self.forest and self.min_oracle(torch.zeros_like(self.fixed))[1] > 0:
            both = torch.cat([self.ends, self.ends.flip(0)], 1)
            apart = int(reached(both, torch.arange(self.nodes) == 0).long().argmin())
            raise ModelError(
                f"{self.name}: no path joins the nodes 0 and {apart}, so that there is no spanning tree; add "
                f"edges, number the nodes without gaps, or take forest=True"
            )

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Find the cheapest trees, or forests."""
        taken, value = self._cheapest(cost)
        return taken.to(cost), value

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of the sum along the tree, which is a cheapest one: costs are compared unrounded."""
        taken, value = self._cheapest(cost)
        error = roundoff(self.nodes + 4, torch.where(taken, cost, 0.0).abs().sum(-1))
        return torch.where(value >= struck_out(cost.dtype), torch.zeros_like(error), error)

    @answered_once
    def _cheapest(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Edges in use ``(batch, blocks, edges)`` bool, and values ``(batch, blocks)`` in its dtype."""
        lead, device = cost.shape[:2], cost.device
        c, fixed = cost.detach().double().cpu(), self.fixed.cpu()
        unwanted = (fixed == 0) | (c >= 0) if self.forest else fixed == 0
        key = c.masked_fill(unwanted, torch.inf).masked_fill(fixed == 1, -torch.inf)
        c, key = (t.reshape(-1, self.dim).contiguous() for t in (c, key))
        order = key.argsort(dim=1, stable=True)
        taken = torch.zeros(c.shape, dtype=torch.bool)
        value, feasible = torch.empty(len(c), dtype=torch.float64), torch.empty(len(c), dtype=torch.bool)
        given = self.ends.cpu(), order, key, c, torch.arange(self.nodes)
        search("blocklp.oracles.tree_kernels", tree_search, "grow", len(c), *given, taken, value, feasible)
        if not self.forest:
            feasible &= taken.sum(1) == self.nodes - 1
        value = torch.where(feasible, value.to(cost.dtype), struck_out(cost.dtype))
        return taken.view(cost.shape).to(device), value.view(lead).to(device)

    def constraints(self) -> Constraints | None:
        """A row for each set of nodes that matters; None where they may be many."""
        if self.nodes > SUBSETS:
            return None
        sets = self._two_connected()
        within = sets[:, self.ends[0]] & sets[:, self.ends[1]]
        every = torch.ones(1 if not self.forest else 0, self.dim, dtype=torch.bool)
        matrix = torch.cat([within, every]).double()
        if matrix.numel() > LARGEST_LISTED:
            return None
        upper = torch.cat([sets.sum(1) - 1, torch.full((len(every),), self.nodes - 1)]).double()[None, None]
        lower = torch.full_like(upper, -torch.inf)
        lower[..., len(sets) :] = upper[..., len(sets) :]
        fixed = self.fixed.double().cpu()
        below, above = (fixed == 1).double(), (fixed != 0).double()
        return Constraints(matrix[None, None], lower, upper, below, above)

    def restrict(self, lower: Tensor, upper: Tensor) -> Tree | None:
        """Fix edges to 0 or 1; None for other bounds."""
        fixed = fixed_further(self.fixed, lower, upper)
        return None if fixed is None else self.with_data(fixed=fixed)

    def _two_connected(self) -> Tensor:
        """Sets of two nodes or more ``(sets, nodes)`` bool that are connected without any one of their nodes.

        Pairs with a single edge are left out, as bounds of variables say what their constraint does.
        """
        n = self.nodes
        edges = np.zeros((n, n), dtype=np.int64)
        np.add.at(edges, tuple(np.concatenate([self.ends, self.ends.flip(0)], 1)), 1)
        member = subsets(n)
        near = member @ (edges > 0)  # nodes with a neighbour in the set
        connected = np.zeros(2**n, dtype=bool)
        connected[1 << np.arange(n)] = True
        size, number = member.sum(1), np.arange(2**n)
        for count in range(2, n + 1):
            some = number[size == count]
            for v in range(n):
                without = some & ~(1 << v)
                connected[some] |= (without != some) & connected[without] & near[without, v]
        robust = connected & (size >= 2)
        for v in range(n):
            robust &= connected[number & ~(1 << v)]
        inside = ((member @ edges) * member).sum(1) // 2
        return torch.from_numpy(member[robust & (inside > 1)])

    def __repr__(self) -> str:
        return f"{self.name}(nodes={self.nodes}, edges={self.dim}{', forest=True' * self.forest})"
