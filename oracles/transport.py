"""The transport polytope; assignments among them."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data, common_shape
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import transport_flow
from blocklp.oracles.graphs import LARGEST_SYSTEM, answered_once, lowered, search
from blocklp.oracles.simplex import mask_costs, merge_masks
from blocklp.rounding import rounding, roundoff

DIGITS = 50
"""Binary digits of the total that supplies and demands are kept to."""

UNBALANCED = 1e-9
"""Part of the total up to which a difference of supplies and demands is taken for rounding."""


class Transport(BlockType):
    r"""Shipments from n sources to k sinks.

    .. math:: \{x \ge 0 : \sum_j x_{ij} \le supply_i, \; \sum_i x_{ij} = demand_j\}

    Where supplies and demands have one sum, all is shipped: :math:`\sum_j x_{ij} = supply_i`.  With ones
    these are the assignments.  Variables are those of the first source, then of the second, and so on.
    Minimum: shortest augmenting paths, of whole multiples of a unit, so that the point is exact; the value is
    that of their potentials less its rounding, which no shipment is below.

    Masses are kept as multiples of :math:`2^{-50}` of the power of two of the total, as numbers of similar
    size are already.  Sums that differ by less than a billionth are taken for equal: the largest mass of the
    larger one is lowered by the difference.  Fixings of a shipment to zero or to all that its source or sink
    has are kept as a mask.  Compiled loops do the work where numba is installed.

    Parameters
    ----------
    supply : array_like
        ``(n,)``, ``(blocks, n)`` or ``(batch, blocks, n)``, finite, nonnegative.
    demand : array_like
        ``(k,)``, ``(blocks, k)`` or ``(batch, blocks, k)``, finite, nonnegative; no more in sum than the
        supplies.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a mass is negative or not finite, or demands exceed supplies.

    Examples
    --------
    >>> import blocklp as bl
    >>> from blocklp.oracles import Transport
    >>> m = bl.Model()
    >>> x = m.variable("x", (2, 2), lower=0, upper=1)
    >>> m.add(Transport([1.0, 1.0], [1.0, 1.0]), x[[[0, 0, 1, 1]], [[0, 1, 0, 1]]])
    Transport: 1 x Transport(2 x 2)
    """

    by_points = True
    block_data = ("sources", "sinks", "power", "excluded")
    _kept = ("_answered",)
    #: ``(batch or 1, blocks or 1, n)`` and ``(batch or 1, blocks or 1, k + 1)`` int64: masses, after those of
    #: the sinks what is left over, in units of :math:`2^{power}`, ``(batch or 1, blocks or 1)`` int64.
    sources: Tensor
    sinks: Tensor
    power: Tensor
    #: ``(batch or 1, blocks, n * k)`` bool, or None: mask of the shipments that violate bounds.
    excluded: Tensor | None = None
    #: ``(batch or 1, blocks or 1, n)`` and ``(batch or 1, blocks or 1, k)`` float64: masses as they were
    #: given, where they require gradients.
    supply: Tensor | None = None
    demand: Tensor | None = None

    def __init__(self, supply: object, demand: object) -> None:
        s = as_block_data(supply, 1, "Transport supply", gradients=True)
        d = as_block_data(demand, 1, "Transport demand", gradients=True)
        lead = common_shape("Transport", s.shape[:2], d.shape[:2])
        for what, masses in (("supply", s), ("demand", d)):
            if not masses.shape[2]:
                raise ShapeError(f"Transport {what} has shape {tuple(masses.shape)}; give a number at least")
            if bool((masses < 0).any()):
                place = f"(instance, block, number) {tuple((masses < 0).nonzero()[0].tolist())}"
                raise ModelError(f"Transport: the {what} at {place} is negative; masses must be >= 0")
        if s.requires_grad or d.requires_grad:
            self.supply, self.demand = s, d
        s, d = s.detach(), d.detach()
        total = s.sum(-1)
        self.power = torch.frexp(total).exponent.long().expand(lead) - DIGITS
        self.sources, sinks = (_whole(masses.expand(*lead, -1), self.power) for masses in (s, d))
        spare = self.sources.sum(-1) - sinks.sum(-1)
        short = (spare < -UNBALANCED * self.sources.sum(-1)).nonzero()
        if len(short):
            i, b = short[0].tolist()
            asked, given = float(d.expand(*lead, -1)[i, b].sum()), float(total.expand(lead)[i, b])
            raise ModelError(
                f"Transport: the demands of block {b} of instance {i} add up to {asked!r}, its supplies to "
                f"{given!r}; raise supplies or lower demands"
            )
        # A difference that rounding makes is less than the largest mass, unless there are millions of them.
        near = spare.abs() <= UNBALANCED * self.sources.sum(-1)
        excess, deficit = (part.clamp(min=0).where(near, 0)[..., None] for part in (spare, -spare))
        self.sources = self.sources.scatter_add(-1, self.sources.argmax(-1, keepdim=True), -excess)
        sinks = sinks.scatter_add(-1, sinks.argmax(-1, keepdim=True), -deficit)
        self.sinks = torch.cat([sinks, spare.where(~near, 0)[..., None]], -1)
        self.n, self.k = s.shape[2], d.shape[2]
        self.dim: int = self.n * self.k

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Ship along shortest augmenting paths."""
        point, value, _ = self._shipped(cost)
        return point, value

    def value_error(self, cost: Tensor) -> Tensor:
        """Cost of the point, which is exact, less the value: the minimum is between them."""
        point, value, exact = self._shipped(cost)
        terms = cost.double() * exact
        above = terms.sum(-1) + roundoff(self.dim + 2, terms.abs().sum(-1)) - value.double()
        return (above * (1 + 4 * torch.finfo(cost.dtype).eps)).to(cost.dtype) + torch.finfo(cost.dtype).tiny

    @answered_once
    def _shipped(self, cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Points and values in the dtype of the cost, and points in float64.

        Points are ``(batch, blocks, dim)``, values ``(batch, blocks)``.
        """
        lead, shape = cost.shape[:2], (-1, self.n, self.k)
        left_over = bool((self.sinks[..., -1] > 0).any())
        masses = (self.sources, self.sinks)
        sources, sinks = (t.expand(*lead, -1).reshape(-1, t.shape[-1]).cpu() for t in masses)
        sinks = sinks.contiguous() if left_over else sinks[:, :-1].contiguous()
        c = mask_costs(cost.detach().double(), self.excluded).cpu().reshape(shape)
        c = torch.nn.functional.pad(c, (0, 1)) if left_over else c
        c, flow = c.contiguous(), torch.zeros(c.shape, dtype=torch.long)
        price = torch.zeros(sources.shape, dtype=torch.float64)
        arguments = (c, sources.contiguous(), sinks, flow, price)
        search("blocklp.oracles.transport_kernels", transport_flow, "send", len(c), *arguments)
        power = self.power.expand(lead).cpu()
        ends, demand, supply = (c + price[..., None]).amin(1), sinks.double(), sources.double()
        value = (ends * demand).sum(-1) - (price * supply).sum(-1)
        size = (ends.abs() * demand).sum(-1) + (price.abs() * supply).sum(-1)
        value = torch.ldexp((value - rounding(self.n + self.k + 6, torch.float64) * size).view(lead), power)
        tiny = torch.finfo(torch.float64).tiny
        # The only product that may underflow is this one with a power of two.
        value = torch.where((value.abs() < tiny) & (value != 0), value - tiny, value)
        exact = torch.ldexp(flow[..., : self.k].double().reshape(*lead, self.dim), power[..., None])
        return exact.to(cost), lowered(value, cost.dtype).to(cost), exact.to(cost.device)

    def constraints(self) -> Constraints | None:
        """A row for each source and each sink; bounds zero and the lesser mass of source and sink."""
        if (self.n + self.k) * self.dim > LARGEST_SYSTEM:
            return None
        one, n, k = torch.ones(1, 1).double(), torch.eye(self.n).double(), torch.eye(self.k).double()
        matrix = torch.cat([torch.kron(n, one.expand(1, self.k)), torch.kron(one.expand(1, self.n), k)])
        supply, demand = self._masses()
        least = torch.where(self.sinks[..., -1:] > 0, -torch.inf, supply)
        if self.carried() and self.supply is not None and self.demand is not None:
            supply, demand = self.supply.expand_as(supply), self.demand.expand_as(demand)
            least = torch.where(least.isfinite(), supply, least)
        above = torch.minimum(supply[..., :, None], demand[..., None, :]).flatten(2)
        lower, upper = torch.cat([least, demand], -1), torch.cat([supply, demand], -1)
        return Constraints(matrix.to(supply)[None, None], lower, upper, torch.zeros_like(above), above)

    def restrict(self, lower: Tensor, upper: Tensor) -> Transport | None:
        """Mask shipments by fixings to zero, or to the mass of a source or a sink; None for other bounds."""
        supply, demand = self._masses()
        most = torch.minimum(supply[..., :, None], demand[..., None, :])
        low, high = (side.reshape(*side.shape[:2], self.n, self.k) for side in (lower, upper))
        if bool(((high > 0) & (high < most)).any() | ((low > 0) & (low < most)).any() | (low > high).any()):
            return None
        # All of a source goes to one sink: then none of it to others; and all of a sink comes from one
        # source.
        every = (low > 0) & (low >= most)
        row, column = every & (most == supply[..., :, None]), every & (most == demand[..., None, :])
        mask = ((high <= 0) & (most > 0)) | ((high < 0) | (low > most)).flatten(2).any(-1)[..., None, None]
        mask = mask | (row.any(-1, keepdim=True) & ~row) | (column.any(-2, keepdim=True) & ~column)
        return self.with_data(excluded=merge_masks(self.excluded, mask.flatten(2)))

    def _masses(self) -> tuple[Tensor, Tensor]:
        """Supplies ``(batch or 1, blocks or 1, n)`` and demands ``(batch or 1, blocks or 1, k)``, float64."""
        supply, demand = (t.double() for t in (self.sources, self.sinks[..., :-1]))
        return torch.ldexp(supply, self.power[..., None]), torch.ldexp(demand, self.power[..., None])

    def __repr__(self) -> str:
        return f"{self.name}({self.n} x {self.k})"


def _whole(masses: Tensor, power: Tensor) -> Tensor:
    """Masses ``(batch, blocks, k)`` in units of ``2**power``, rounded to whole numbers."""
    return torch.ldexp(masses, -power[..., None]).round().long()
