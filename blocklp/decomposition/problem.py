r"""The Lagrangean decomposition of a batch of models, as the engine sees it.

.. math:: \max_{\sum_b \lambda_b = c} \sum_b \min_{x_b \in X_b} \langle \lambda_b, x_b \rangle

(thesis, eq. 4.1.5.3). Primal tensors are ``(batch, variables)``; multipliers and points of the blocks
("copies") are ``(batch, copies)``; ``Group.view`` shows those of a block type as ``(batch, blocks, dim)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from blocklp.blocks.capabilities import (
    HasMaskedTable,
    HasMinMarginals,
    HasProx,
    HasSoftMin,
    constraints_of,
    supports,
    value_error_of,
)
from blocklp.blocks.contract import BlockType, Constraints, Rows, pick
from blocklp.decomposition.incidence import Coupling
from blocklp.decomposition.row_sums import largest
from blocklp.decomposition.rows import CouplingRows
from blocklp.decomposition.totals import WHOLE, Totals

TABLE_LIMIT = 32
"""Vertex tables longer than this are treated as general oracles: the work on weights grows with the table."""


@dataclass(frozen=True)
class Group:
    """The blocks of one type.

    Attributes
    ----------
    name : str
        Name of the handle that :meth:`Model.add` returned, the first one of several.
    type : BlockType
        The type, with its block data on the solver's device.
    blocks, dim : int
        Number of blocks of an instance (padding included) and of variables of a block.
    start : int
        First copy of the group in a row of copies.
    coupled : Tensor
        ``(dim,)``, 1 where some block shares this coordinate with another block and 0 where all copies are
        the only one of their variable: those have fixed multipliers and stay out of norms and steps.
    valid : Tensor or None
        ``(batch, blocks)`` in the working dtype: 1 for valid blocks, 0 for padding; None if all are valid.
    known : Tensor or None
        ``(batch or 1, points, blocks or 1, dim)`` float64: points of the blocks, where some are known.
    added : tuple of tuple
        Names of several handles with their numbers of blocks, in order; empty where there is one.
    """

    name: str
    type: BlockType
    blocks: int
    dim: int
    start: int
    coupled: Tensor
    valid: Tensor | None = None
    known: Tensor | None = None
    added: tuple[tuple[str, int], ...] = ()

    @property
    def named(self) -> list[tuple[str, slice]]:
        """The names that identify the blocks in states, and the places of those of each."""
        added = self.added or ((self.name, self.blocks),)
        stops = accumulate(count for _, count in added)
        return [(name, slice(stop - count, stop)) for (name, count), stop in zip(added, stops, strict=True)]

    @property
    def stop(self) -> int:
        """One past the last copy of the group."""
        return self.start + self.blocks * self.dim

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First copy and one past the last of every coordinate."""
        return [(self.start + i * self.blocks, self.start + (i + 1) * self.blocks) for i in range(self.dim)]

    @cached_property
    def pattern(self) -> tuple[bool, ...]:
        """Which coordinates are coupled: ``dim`` entries, read once."""
        return tuple(c > 0 for c in self.coupled.tolist())

    @cached_property
    def shared(self) -> Tensor:
        """:attr:`pattern` for types: ``(dim,)`` float64 on the CPU, where they ask which formula serves."""
        return torch.tensor(self.pattern, dtype=torch.float64)

    @cached_property
    def unshared(self) -> list[tuple[int, int]]:
        """First copy and one past the last of every run of coordinates that no other block shares."""
        runs: list[tuple[int, int]] = []
        for (first, last), coupled in zip(self.spans, self.pattern, strict=True):
            if not coupled and runs and runs[-1][1] == first:
                runs[-1] = runs[-1][0], last
            elif not coupled:
                runs.append((first, last))
        return runs

    @cached_property
    def filled(self) -> Tensor:
        """Number of valid blocks, which come before the padding: ``(batch or 1,)`` int64."""
        every = torch.full((1,), self.blocks, device=self.coupled.device)
        return every if self.valid is None else self.valid.sum(1).long()

    @cached_property
    def constraints(self) -> Constraints | None:
        """The constraints that its type states, asked for once; None where it states none."""
        return (found := constraints_of(self.type)) and found.bounds_on(self.coupled.device)

    @cached_property
    def few_vertices(self) -> tuple[Tensor, Tensor | None] | None:
        """:meth:`HasMaskedTable.masked_table` of its type, up to :data:`TABLE_LIMIT` vertices, or None."""
        return self.type.masked_table(TABLE_LIMIT) if supports(self.type, HasMaskedTable) else None

    @cached_property
    def prox(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None] | None:
        """:meth:`HasProx.prox` of its type, or None."""
        return self.type.prox if supports(self.type, HasProx) else None

    @cached_property
    def min_marginals(self) -> Callable[[Tensor], Tensor | None] | None:
        """:meth:`HasMinMarginals.min_marginals` of its type, or None."""
        return self.type.min_marginals if supports(self.type, HasMinMarginals) else None

    @cached_property
    def soft_min(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor] | None] | None:
        """:meth:`HasSoftMin.soft_min` of its type, or None."""
        return self.type.soft_min if supports(self.type, HasSoftMin) else None

    @cached_property
    def shares(self) -> bool:
        """Whether its blocks have variables in common with others."""
        return any(self.pattern)

    def rows(self, copies: Tensor) -> Tensor:
        """Copies as stored: ``(batch, dim, blocks)``, a view."""
        return copies[:, self.start : self.stop].view(copies.shape[0], self.dim, self.blocks)

    def view(self, copies: Tensor) -> Tensor:
        """Copies as block types see them: ``(batch, blocks, dim)``, a view."""
        return self.rows(copies).transpose(1, 2)

    def blockwise(self, own: Tensor) -> Tensor:
        """Copies of this group alone, ``(batch, dim * blocks)``, as block types see them."""
        return own.view(own.shape[0], self.dim, self.blocks).transpose(1, 2)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Call the type's oracle; padding gives zero, and a part without blocks does not ask it."""
        point, value = self.type.min_oracle(cost) if self.blocks else (cost.clone(), cost.sum(-1))
        if self.valid is not None:
            point, value = point * self.valid[..., None], value * self.valid
        return point, value

    def block_values(self, cost: Tensor) -> Tensor:
        """Return the optimal value of every block: ``(batch, blocks)``."""
        value = self.type.min_value(cost) if self.blocks else cost.new_zeros(cost.shape[:2])
        return value if self.valid is None else value * self.valid

    def value_error(self, cost: Tensor) -> Tensor | None:
        """Bound on the rounding error of :meth:`block_values`; None where the type states none."""
        error = value_error_of(self.type, cost) if self.blocks else cost.new_zeros(cost.shape[:2])
        return error if error is None or self.valid is None else error * self.valid

    def select(self, rows: Rows) -> Group:
        """Return the group of some instances."""
        valid = None if self.valid is None else pick(self.valid, rows)
        known = self.known if self.known is None or len(self.known) == 1 else pick(self.known, rows)
        return self._changed(self.type.select(rows), valid, known)

    def to(self, dtype: torch.dtype) -> Group:
        """Return the group in another precision."""
        kind, valid = self.type.to(dtype, self.coupled.device), self.valid
        return self._changed(kind, None if valid is None else valid.to(dtype), self.known)

    def _changed(self, kind: BlockType, valid: Tensor | None, known: Tensor | None) -> Group:
        """Return these blocks with other data, which know what this one has read from the device."""
        other = replace(self, type=kind, valid=valid, known=known)
        vars(other).update({name: value for name, value in vars(self).items() if name == "pattern"})
        return other


@dataclass(frozen=True)
class Decomposition:
    """A batch of decomposed LPs with a common layout.

    Attributes
    ----------
    cost : Tensor
        ``(batch, variables)``.
    lower, upper : Tensor
        ``(batch or 1, variables)``, finite.
    offset : Tensor
        ``(batch,)``: constant of the objective.
    groups : tuple of Group
        The block types.
    coupling : Coupling
        Which copy belongs to which variable.
    counts : Tensor
        ``(batch or 1, variables)``: number of copies :math:`N_j` (at least 1).
    grid : Tensor or None
        ``(batch or 1, variables)``: primal points are also tried rounded to multiples of it; 0 for variables
        that are not.
    sharing : Tensor or None
        ``(batch, coordinates of all groups)`` bool, where instances differ in it: what :attr:`Group.coupled`
        would be for each alone.
    rows : CouplingRows or None
        Rows beside the blocks; their prices come after the copies of the blocks.
    beyond : Tensor or None
        ``(batch or 1, variables)``: largest magnitude of each variable in blocks that do not take in its
        bounds, or 0.
    totals : Totals
        Sums over blocks and variables, where processes hold parts of the instances.
    """

    cost: Tensor
    lower: Tensor
    upper: Tensor
    offset: Tensor
    groups: tuple[Group, ...]
    coupling: Coupling
    counts: Tensor
    grid: Tensor | None = None
    sharing: Tensor | None = None
    rows: CouplingRows | None = None
    beyond: Tensor | None = None
    totals: Totals = field(default=WHOLE, kw_only=True, repr=False)

    @property
    def batch(self) -> int:
        """Number of instances."""
        return self.cost.shape[0]

    @property
    def copies(self) -> int:
        """Number of copies of an instance, and of prices of rows after them."""
        return self.in_blocks + (0 if self.rows is None else self.rows.count)

    @property
    def in_blocks(self) -> int:
        """Number of copies of an instance that are in blocks."""
        return self.groups[-1].stop

    @cached_property
    def reach(self) -> Tensor:
        """Largest magnitude that each variable can have: ``(batch or 1, variables)``."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    @cached_property
    def extent(self) -> Tensor:
        """Largest magnitude that each variable or a copy of it can have: ``(batch or 1, variables)``."""
        return self.reach if self.beyond is None else torch.maximum(self.reach, self.beyond)

    @cached_property
    def cost_terms(self) -> tuple[Tensor, Tensor]:
        r"""Return :math:`\sum_j |c_j| reach_j` and :math:`\sum_j |c_j|`, both ``(batch,)``.

        Variables reach no further than rows ask for.  Where all are fixed at zero, their copies are not: sums
        that are zero are those of :attr:`extent`.
        """
        cost, reach = self.cost.abs(), self.reach
        if self.rows is not None:  # bounds of variables may be far beyond what rows ask for
            asked = self.rows.asked(cost.shape[1])
            most = self.totals.greatest(asked.amax(1, keepdim=True))
            reach = torch.where(most > 0, torch.minimum(reach, torch.where(asked > 0, asked, most)), reach)
        total = self.totals.over_variables
        terms = total(cost * reach)
        if self.beyond is not None:
            terms = torch.where(terms > 0, terms, total(cost * self.extent))
        return terms, total(cost)

    def sizes(self, x: Tensor) -> Tensor:
        """Magnitudes of the entries of points, both ``(batch, variables)``, of which errors are small parts.

        The largest entry, or the reach of the variable if that is less: bounds may be far from any point, and
        a point may hold numbers of different units.
        """
        return torch.minimum(self.reach, self.totals.greatest(largest(x))[:, None])

    def magnitude(self, copies: Tensor, total: Tensor | None = None) -> Tensor:
        r"""Return :math:`\sum_b \sum_{i \in b} |\lambda_{b,i}| \, extent_i`, with prices: ``(batch,)``.

        ``total`` is :meth:`total_size` where it is known.
        """
        total = self.total_size(copies) if total is None else total
        size = self.totals.over_variables(total * self.extent)
        if self.rows is None:
            return size
        return size + (copies[:, self.in_blocks :].abs() * self.rows.reach()).sum(1)

    def total_size(self, copies: Tensor) -> Tensor:
        """Sum of the magnitudes that :meth:`collect` adds up, at least: ``(batch, variables)``."""
        total = self.coupling.magnitudes(copies[:, : self.in_blocks])
        if self.rows is None:
            return total
        return total + self.rows.absolute().adjoint(copies[:, self.in_blocks :].abs(), total.shape[1])

    @cached_property
    def terms(self) -> Tensor:
        """How many numbers :meth:`collect` adds up, a product as two: ``(batch or 1, variables)``."""
        if self.rows is None:
            return self.counts
        entries = torch.bincount(self.rows.column, minlength=self.counts.shape[1]).to(self.counts)
        return self.counts + 2 * entries

    @cached_property
    def testable(self) -> bool:
        """Whether all types state their constraints, so that a point can be tested."""
        return all(group.constraints is not None for group in self.groups)

    def spread(self, values: Tensor) -> Tensor:
        """Every copy gets the value of its variable, and every row its activity."""
        copies = self.coupling.spread(values)
        return copies if self.rows is None else torch.cat([copies, self.rows.activity(values)], 1)

    def collect(self, copies: Tensor) -> Tensor:
        r"""Sum of the copies of each variable and of priced rows: :math:`\sum_b \lambda_b + A^\top y`."""
        total = self.coupling.collect(copies[:, : self.in_blocks])
        if self.rows is None:
            return total
        return total + self.rows.adjoint(copies[:, self.in_blocks :], total.shape[1])

    def to_dual(self, primal: Tensor) -> Tensor:
        r"""Share a primal vector equally among its copies: :math:`x_b = n \odot x` (thesis, 4.1.7.1).

        Rows get nothing.
        """
        shared = self.coupling.spread(primal / self.counts)
        return shared if self.rows is None else torch.nn.functional.pad(shared, (0, self.rows.count))

    def to_primal(self, copies: Tensor) -> Tensor:
        r"""Sum copies to a primal vector: :math:`x = \sum_b x_b` (thesis, 4.1.7.1)."""
        return self.collect(copies)

    def mean(self, copies: Tensor) -> Tensor:
        """Mean of the copies of every variable, which are points: ``(batch, variables)``."""
        return self.coupling.collect_points(copies[:, : self.in_blocks]) / self.counts

    def disagreement(self, copies: Tensor) -> Tensor:
        r""":math:`P x = x - \mathrm{mean}(x)`, the orthogonal projector with kernel agreement."""
        means = self.spread(self.mean(copies))
        return torch.sub(copies, means, out=means)

    def recentred(self, duals: Tensor) -> Tensor:
        r"""Restore :math:`\sum_b \lambda_b = c` by sharing the residual equally among the copies."""
        return self.to_dual(self.cost - self.collect(duals)).add_(duals)

    def min_oracle(self, duals: Tensor) -> tuple[Tensor, Tensor]:
        """One pass: a minimiser of every block ``(batch, copies)`` and the sum of the values ``(batch,)``."""
        points = torch.empty_like(duals)
        total = torch.zeros_like(duals[:, 0])
        for group in self.groups:
            point, value = group.min_oracle(group.view(duals))
            group.view(points).copy_(point)
            total += self.totals.over_blocks(value)
        if self.rows is not None:
            prices = duals[:, self.in_blocks :]
            points[:, self.in_blocks :] = self.rows.point(prices)
            total += self.rows.value(prices).sum(1)
        return points, total

    def primal_value(self, x: Tensor) -> Tensor:
        """The objective at points ``(batch, variables)``: ``(batch,)``."""
        return self.totals.over_variables(self.cost * x) + self.offset

    def value(self, duals: Tensor) -> Tensor:
        """The dual value of multipliers ``(batch, copies)``: one pass, ``(batch,)``."""
        values = [self.totals.over_blocks(group.block_values(group.view(duals))) for group in self.groups]
        if self.rows is not None:
            values.append(self.rows.value(duals[:, self.in_blocks :]).sum(1))
        return torch.stack(values).sum(0)

    def select(self, rows: Rows) -> Decomposition:
        """Return the decomposition of some instances: ``(k,)`` int64, or a slice, which copies nothing."""

        def own(t: Tensor) -> Tensor:
            return t if t.shape[0] == 1 and self.batch > 1 else pick(t, rows)

        part = Decomposition(
            pick(self.cost, rows),
            own(self.lower),
            own(self.upper),
            pick(self.offset, rows),
            tuple(g.select(rows) for g in self.groups),
            self.coupling.select(rows),
            own(self.counts),
            None if self.grid is None else own(self.grid),
            None if self.sharing is None else pick(self.sharing, rows),
            rows=None if self.rows is None else self.rows.select(rows),
            beyond=None if self.beyond is None else own(self.beyond),
            totals=self.totals,
        )
        if "reach" in vars(self):
            vars(part)["reach"] = own(self.reach)
        if "cost_terms" in vars(self):
            vars(part)["cost_terms"] = tuple(pick(terms, rows) for terms in self.cost_terms)
        return part

    def alike(self) -> tuple[Tensor, list[tuple[slice, Decomposition]]]:
        """Put instances with the same coupled coordinates side by side: each is solved as it is alone.

        Returns
        -------
        order : Tensor
            ``(batch,)`` int64: where they were.
        parts : list
            Which of them, in this order, and their decomposition.
        """
        if self.sharing is None:
            return torch.arange(self.batch, device=self.cost.device), [(slice(0, self.batch), self)]
        patterns, numbers, counts = torch.unique(self.sharing, dim=0, return_inverse=True, return_counts=True)
        order, parts, first = numbers.argsort(stable=True), [], 0
        for pattern, count in zip(patterns.to(torch.float64), counts.tolist(), strict=True):
            own = self.select(order[first : first + count])
            split = pattern.split([group.dim for group in self.groups])
            groups = tuple(replace(g, coupled=coupled) for g, coupled in zip(own.groups, split, strict=True))
            parts.append((slice(first, first + count), replace(own, groups=groups, sharing=None)))
            first += count
        return order, parts

    def to(self, dtype: torch.dtype) -> Decomposition:
        """Return the same problem in another precision."""
        if dtype == self.cost.dtype:
            return self
        names = ("cost", "lower", "upper", "offset", "counts", "rows", "beyond")
        moved = {name: own.to(dtype) for name in names if (own := getattr(self, name)) is not None}
        return replace(self, **moved, groups=tuple(group.to(dtype) for group in self.groups))
