"""Walks in a graph whose resources are limited: routes of vehicles, duties of crews."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data, common_shape
from blocklp.blocks.contract import BlockType
from blocklp.blocks.finite import struck_out
from blocklp.errors import ModelError, ShapeError
from blocklp.options import flag, numbers
from blocklp.oracles import resource_path_search
from blocklp.oracles.graphs import (
    answered_once,
    arc_costs,
    by_node,
    error_of_bound,
    graph,
    masked_arcs,
    node_order,
    refuse_blocks,
    search,
    terminals,
)
from blocklp.rounding import rounding

LARGEST_AMOUNT = 2**40
"""Amounts of resources beyond which sums might not fit a machine word."""

LARGEST_REACH = 50_000_000
"""Numbers of a pass over all arcs for all nodes beyond which it is not asked which nodes can be reached."""

KERNELS = "blocklp.oracles.resource_path_kernels"

BITS = 62
"""Nodes that a word of a walk's memory holds."""


class ResourcePath(BlockType):
    r"""Walks of a directed graph from a source to a target within limited resources.

    The pricing problem of vehicle routing and crew scheduling (Desrochers and Soumis 1988; Irnich and
    Desaulniers 2005). A variable for every arc says how often it is taken. A walk begins with the least
    amounts at its source; along an arc :math:`a = (u, v)` its amount :math:`t_r` of resource r becomes

    .. math:: \max(lower_{r, v}, \; t_r + consumption_{r, a}) \le upper_{r, v},

    so that one who is early waits. It ends where it first reaches the target. The block is ``demand`` times
    the convex hull of all such walks, as many vehicles of one kind are. Blocks share the graph and may differ
    in all else.

    Minimum: label setting with dominance, in compiled loops where numba is installed. In graphs with cycles
    walks may come to a node several times, whatever the variables' bounds, while resources last (q-routes;
    Christofides, Mingozzi and Toth 1981). ``neighbourhoods`` make them ng-routes (Baldacci, Mingozzi and
    Roberti 2011), which do not return to a node as long as all nodes in between have it in their
    neighbourhood; ``elementary=True`` forbids any return, which may take time that is exponential in the
    number of nodes.

    No rows are known for the hull, so that none are stated: a bound is that of Dantzig and Wolfe's
    decomposition, mostly far above that of an LP over flows, and ``method="auto"`` takes a restricted master.

    Parameters
    ----------
    tails, heads : array_like
        ``(arcs,)`` integers from 0 on: the nodes that each arc leaves and enters.
    source, target : array_like
        A number, ``(blocks,)`` or ``(batch, blocks)``: nodes. Tours have their depot twice. Give an arc from
        source to target where a vehicle may stay.
    consumption : array_like
        ``(resources, arcs)``, ``(blocks, resources, arcs)`` or ``(batch, blocks, resources, arcs)``: whole
        numbers, not negative. Around every cycle something must be consumed.
    upper : array_like
        ``(resources, nodes)``, or with blocks, or batch and blocks, before: the largest amounts at each node,
        whole numbers, or one for all nodes, ``(resources, 1)``: the latest times, capacities.
    lower : array_like, optional
        Likewise, the least amounts, such as the earliest times; 0 by default.
    demand : array_like
        A number, ``(blocks,)`` or ``(batch, blocks)``, positive and finite: walks in a block.
    neighbourhoods : array_like, optional
        ``(nodes, nodes)`` bool: whether a node (rows) has another one (columns) in its neighbourhood.
    elementary : bool
        Whether no node may be visited twice.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a node is no integer from 0 on, an arc enters the node that it leaves, an amount is no whole number
        or out of range, a cycle consumes nothing, a demand is not positive, a source is its target, or no
        walk leads there within the limits.

    Examples
    --------
    >>> import torch
    >>> from blocklp.oracles import ResourcePath
    >>> kind = ResourcePath([0, 0, 1], [1, 2, 2], 0, 2, consumption=[[2, 1, 2]], upper=[[3]])
    >>> point, value = kind.min_oracle(torch.tensor([[[1.0, 3.0, 1.0]]], dtype=torch.float64))
    >>> point.tolist(), round(value.item(), 9)  # the cheaper walk through 1 consumes 4
    ([[[0.0, 1.0, 0.0]]], 3.0)
    """

    _kept = ("_answered",)
    block_data = (
        "source",
        "target",
        "demand",
        "consumption",
        "lower",
        "upper",
        "reach",
        "longest",
        "excluded",
    )
    #: ``(batch or 1, blocks or 1)`` int64, int64 and float.
    source: Tensor
    target: Tensor
    demand: Tensor
    #: ``(batch or 1, blocks or 1, arcs or nodes, resources)`` int64; upper are the amounts up to which the
    #: target may still be reached, -1 where it may not.
    consumption: Tensor
    lower: Tensor
    upper: Tensor
    #: ``(batch or 1, blocks or 1, other nodes, nodes, resources)`` int64: the largest amounts at a node with
    #: which another one may still be reached; without memory no numbers.
    reach: Tensor
    #: ``(batch or 1, blocks or 1)`` int64: the most arcs of a walk.
    longest: Tensor
    #: ``(batch or 1, blocks, arcs)`` bool, or None: mask of the arcs that must not be used.
    excluded: Tensor | None = None

    def __init__(
        self,
        tails: object,
        heads: object,
        source: object,
        target: object,
        consumption: object,
        upper: object,
        lower: object = None,
        demand: object = 1.0,
        *,
        neighbourhoods: object = None,
        elementary: bool = False,
    ) -> None:
        self.ends = graph(tails, heads, self.name)
        self.dim: int = self.ends.shape[1]
        start, end, self.demand = terminals(source, target, demand, self.name)
        self.nodes = 1 + int(max(self.ends.max(), start.max(), end.max()))
        self.consumption = self._amounts(consumption, "consumption", self.dim)
        self.upper = self._amounts(upper, "upper", self.nodes)
        self.lower = self._amounts([[0.0]] if lower is None else lower, "lower", self.nodes)
        amounts = self.consumption, self.lower, self.upper
        shape = common_shape(self.name, *(t.shape[:2] for t in (start, end, *amounts)))
        common_shape(self.name, shape, self.demand.shape)
        count = common_shape(f"{self.name} resources", *(t.shape[3:] for t in amounts))
        self.consumption, self.lower, self.upper = (t.expand(*t.shape[:3], *count) for t in amounts)
        self.source, self.target = start.expand(shape), end.expand(shape)
        refuse_blocks(self.source == self.target, self.source, self.name, "is its target")
        free = (self.consumption == 0).all(-1).flatten(0, 1).any(0)
        if node_order(self.ends[:, free], self.nodes) is None:
            raise ModelError(
                f"{self.name}: a cycle of arcs consumes nothing, and walks might go around it for ever; let "
                f"every cycle consume something"
            )
        upper, lower = (t.expand(*shape, -1, -1) for t in (self.upper, self.lower))
        self.upper = _latest(self.ends, self.consumption, lower, upper, self.target)
        # The most arcs of a walk: costs of -1 make it longest. Walks that remember nodes are no longer.
        self.memory = torch.zeros(2, self.nodes, 0, dtype=torch.long)
        self.reach = torch.zeros(1, 1, 0, 0, *count, dtype=torch.long)
        used, value = self._walks(torch.full((*shape, self.dim), -1.0, dtype=torch.float64))
        lost = "has no walk to its target within the resources"
        refuse_blocks(torch.isinf(value), self.source, self.name, lost)
        self.longest, self.elementary = used.sum(-1).long(), flag(elementary, "elementary")
        if self.elementary:
            if neighbourhoods is not None:
                raise ModelError(f"{self.name}: give neighbourhoods or elementary=True, not both")
            self.longest = self.longest.clamp(max=self.nodes - 1)
            neighbourhoods = torch.ones(self.nodes, self.nodes)
        if neighbourhoods is not None:
            self.memory = self._memory(numbers(neighbourhoods, f"{self.name} neighbourhoods"))
            self.reach = self._reach()

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Find the cheapest walks."""
        used, value = self._cheapest(cost)
        return (used * self.demand.to(used)[..., None]).to(cost), value

    def value_error(self, cost: Tensor) -> Tensor:
        """Cost of the walk less the value: the minimum is between them."""
        used, value = self._cheapest(cost)
        terms = cost.double() * used * self.demand.double()[..., None]
        # Demands are rounded to this precision, and multiplied by.
        return error_of_bound(value, terms, cost, 2 * torch.finfo(cost.dtype).eps)

    @answered_once
    def _cheapest(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """How often arcs are used ``(batch, blocks, arcs)`` float64, and values in the dtype of the cost.

        The sums along all walks are rounded by no more than the largest costs along the longest one, which
        the values ``(batch, blocks)`` are lowered by.
        """
        c = cost.detach().double()
        used, value = self._walks(c)
        size = c.abs() if self.excluded is None else c.abs().masked_fill(self.excluded, 0.0)
        longest, demand = self.longest.to(c), self.demand.to(c)
        largest = size.amax(-1) * longest
        error = rounding(longest + 4, torch.float64) * largest + torch.finfo(torch.float64).tiny
        feasible = torch.isfinite(value)
        value = torch.where(largest > 0, value - error, value) * demand
        value = value - 2 * torch.finfo(cost.dtype).eps * value.abs()
        return used, torch.where(feasible, value.to(cost.dtype), struck_out(cost.dtype))

    def _walks(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Single walks ``(batch, blocks, arcs)`` and their costs ``(batch, blocks)``, float64.

        Costs ``(batch, blocks, arcs)`` are float64; infinite where there is no walk.
        """
        lead, device = cost.shape[:2], cost.device
        c = arc_costs(cost, self.excluded)
        limits, same = (self.consumption, self.lower, self.upper, self.reach), torch.arange(len(c))
        if all(t.shape[:2] == (1, 1) for t in (self.source, self.target, *limits)):
            # Vehicles of one kind often have equal costs, of which each is asked for once.
            c, same = torch.unique(c, dim=0, return_inverse=True)
            lead = torch.Size((1, len(c)))
        used, value = torch.zeros_like(c), torch.empty(len(c), dtype=torch.float64)
        terminals = tuple(t.expand(lead).reshape(-1).cpu().contiguous() for t in (self.source, self.target))
        resources = tuple(
            (t[0] if t.shape[:2] == (1, 1) else t.expand(*lead, *t.shape[2:]).flatten(0, 1))
            .cpu()
            .contiguous()
            for t in limits
        )
        ends, memory = self.ends.cpu(), tuple(self.memory.cpu())
        given = ends, by_node(ends[0], self.nodes), c, terminals, resources, memory
        search(KERNELS, resource_path_search, "label", len(c), *given, used, value)
        return used[same].view(cost.shape).to(device), value[same].view(cost.shape[:2]).to(device)

    def restrict(self, lower: Tensor, upper: Tensor) -> ResourcePath | None:
        """Mask arcs by fixings to zero; None for other bounds that cut walks off."""
        most = self.demand * (1 if self.elementary else self.longest)
        excluded = masked_arcs(self.excluded, lower, upper, most[..., None])
        return None if excluded is None else self.with_data(excluded=excluded)

    def _amounts(self, given: object, what: str, length: int) -> Tensor:
        """Amounts of resources ``(batch or 1, blocks or 1, length, resources)`` int64."""
        data, name = as_block_data(given, 2, f"{self.name} {what}"), f"{self.name} {what}"
        if data.shape[3] not in (1, length) or not data.shape[2]:
            raise ShapeError(f"{name} has shape {tuple(data.shape)}; give (resources, {length}) for a block")
        wrong = (data != data.round()) | (data < 0) | (data > LARGEST_AMOUNT)
        if bool(wrong.any()):
            raise ModelError(
                f"{name} holds {float(data[wrong][0]):g}; give whole numbers from 0 to 2**40, in a unit that "
                f"is small enough"
            )
        return data.expand(*data.shape[:3], length).transpose(2, 3).long()

    def _reach(self) -> Tensor:
        """The largest amounts at a node with which another one may still be reached, -1 where there are none.

        ``(batch or 1, blocks or 1, other nodes, nodes, resources)``; no limits where these are too many.
        """
        shape, count = (*self.upper.shape[:2], self.nodes), self.upper.shape[3]
        if self.upper.shape[:2].numel() * self.nodes * self.dim * count > LARGEST_REACH:
            full = torch.full((1, 1, 1, 1, 1), LARGEST_AMOUNT)
            return full.expand(1, 1, self.nodes, self.nodes, count)
        upper, lower = (t[:, :, None].expand(*shape, -1, -1) for t in (self.upper, self.lower))
        return _latest(
            self.ends, self.consumption[:, :, None], lower, upper, torch.arange(self.nodes).expand(shape)
        )

    def _memory(self, near: Tensor) -> Tensor:
        """Bits of the nodes, and of those that walks remember there, ``(2, nodes, words)`` int64."""
        if near.shape != (self.nodes, self.nodes):
            need = f"({self.nodes}, {self.nodes}), a row for each node"
            raise ShapeError(f"{self.name} neighbourhoods has shape {tuple(near.shape)}; give {need}")
        words = -(-self.nodes // BITS)
        node = torch.arange(words * BITS)
        wide = torch.nn.functional.pad(near != 0, (0, len(node) - self.nodes)).long()
        kept = (wide << node % BITS).view(self.nodes, words, BITS).sum(-1)
        own = torch.zeros_like(kept)
        own[node[: self.nodes], node[: self.nodes] // BITS] = 1 << node[: self.nodes] % BITS
        return torch.stack([own, kept])

    def __repr__(self) -> str:
        return f"{self.name}(nodes={self.nodes}, arcs={self.dim}, resources={self.lower.shape[-1]})"


def _latest(ends: Tensor, consumption: Tensor, lower: Tensor, upper: Tensor, target: Tensor) -> Tensor:
    """The largest amounts at each node with which a target may still be reached, for each resource by itself.

    They are ``(..., nodes, resources)`` int64, like the bounds, and -1 where there are none.
    """
    onto = ends[0][:, None].expand(*upper.shape[:-2], ends.shape[1], upper.shape[-1])
    at_target = torch.arange(upper.shape[-2])[:, None] == target[..., None, None]
    latest = torch.where(at_target & (lower <= upper), upper, -1)
    while True:
        onward = torch.where(latest >= 0, latest, -LARGEST_AMOUNT)[..., ends[1], :] - consumption
        reached = torch.full_like(latest, -1).scatter_reduce(-2, onto, onward, "amax")
        reached = torch.where(at_target, latest, torch.minimum(upper, reached))
        reached = torch.where(reached < lower, -1, reached)
        if torch.equal(reached, latest):
            return latest
        latest = reached
