r"""Points of each block as convex combinations of a few of its vertices ("atoms").

A block's point is :math:`x_b = \sum_k w_{b,k} a_{b,k}` with weights on the simplex. :class:`VertexTable`
holds all vertices of a type with few of them (:class:`HasMaskedTable`), shared by its blocks;
:class:`PartVertices` those of the parts of a block (:class:`HasParts`); :class:`VertexCache` keeps the last
few points that a general min-oracle returned for each block. All answer the same questions, so the methods
know one kind of block.

Weights and values are ``(batch, atoms, blocks)``, points ``(batch, dim, blocks)``: the block index runs
fastest. Where blocks have parts, weights and values are those of all parts,
``(batch, atoms, blocks * parts)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasMaskedTable, HasParts, supports
from blocklp.blocks.finite import struck_out
from blocklp.decomposition.problem import Decomposition, Group

SLOTS = 6
"""Atoms kept for a block without a vertex table."""


class OracleAnswer(NamedTuple):
    """The result of one oracle call for a group."""

    atoms: Atoms
    weights: Tensor  # the current weights on these atoms
    earlier: Tensor  # the weights of the step before, likewise
    values: Tensor  # (batch, atoms, blocks): cost of every atom
    best: Tensor  # (batch, blocks): value of every block


@dataclass(frozen=True)
class VertexTable:
    """All vertices of the type; nothing to store but the weights."""

    table: Tensor  # (atoms, dim)
    gram: Tensor  # (atoms, atoms)

    @classmethod
    def build(cls, group: Group, like: Tensor) -> VertexTable:
        """Take the table of a type with few vertices."""
        assert group.few_vertices is not None
        table = group.few_vertices[0].to(like)
        coupled = table * group.coupled.to(like)
        return cls(table, coupled @ coupled.T)

    def answer(self, group: Group, duals: Tensor, weights: Tensor, earlier: Tensor) -> OracleAnswer:
        """Evaluate all vertices; the atoms stay as they are.

        Parameters
        ----------
        group : Group
            The group that the atoms belong to.
        duals : Tensor
            ``(batch, copies)``: multipliers of all groups.
        weights, earlier : Tensor
            ``(batch, atoms, blocks)``: weights now and before the last step.

        Returns
        -------
        OracleAnswer
            All vertices, the weights given, and costs ``(batch, atoms, blocks)``.
        """
        values = self.values(group, duals)
        best = values.amin(1)
        return OracleAnswer(
            self, weights, earlier, values, best if group.valid is None else best * group.valid
        )

    def values(self, group: Group, duals: Tensor) -> Tensor:
        """Cost of every atom: ``(batch, atoms, blocks)``."""
        values = torch.matmul(self.table, group.rows(duals))
        assert group.few_vertices is not None
        mask = group.few_vertices[1]
        return values if mask is None else values.masked_fill(mask.transpose(1, 2), struck_out(values.dtype))

    def combine(self, weights: Tensor) -> Tensor:
        """Return the points of some weights: ``(batch, dim, blocks)``."""
        return torch.matmul(self.table.T, weights)

    def products(self, weights: Tensor) -> Tensor:
        r"""Return :math:`\langle a_k, \sum_l w_l a_l \rangle` for every atom."""
        return torch.matmul(self.gram, weights)

    def select(self, rows: Tensor) -> VertexTable:
        """Nothing depends on the instance."""
        return self


@dataclass(frozen=True)
class PartVertices:
    """All vertices of the parts of blocks."""

    type: HasParts
    blocks: int
    vertices: Tensor  # (batch or 1, size, atoms, blocks * parts)
    curvature: Tensor  # (size, 1, blocks * parts): a diagonal bound of the squared distances of points

    @classmethod
    def build(cls, group: Group, like: Tensor) -> PartVertices:
        """Take the vertices of the type and bound the lengths of steps."""
        assert supports(group.type, HasParts)
        vertices = group.type.vertices().to(like)
        vertices = vertices.expand(-1, group.blocks, -1, -1, -1).permute(0, 3, 2, 1, 4).flatten(3)
        curvature = group.type.curvature(group.coupled.to(like)).repeat(1, group.blocks)[:, None]
        return cls(group.type, group.blocks, vertices, curvature)

    def answer(self, group: Group, duals: Tensor, weights: Tensor, earlier: Tensor) -> OracleAnswer:
        """Evaluate all vertices of every part; the atoms stay as they are.

        Parameters
        ----------
        group, duals, weights, earlier
            As in :meth:`VertexTable.answer`, with weights ``(batch, atoms, blocks * parts)``.
        """
        values = self.values(group, duals)
        best = values.amin(1)
        best = best if group.valid is None else best * _by_part(group.valid, best)
        return OracleAnswer(self, weights, earlier, values, best)

    def values(self, group: Group, duals: Tensor) -> Tensor:
        """Cost of every atom: ``(batch, atoms, blocks * parts)``."""
        cost = group.view(duals)
        part_costs = self.type.adjoint(cost)
        values = self._over_size(part_costs.transpose(1, 2).flatten(2)[:, :, None], self.vertices)
        # The constant of a block belongs to its first part.
        constant = cost @ self.type.shift().to(cost)
        values.view(*values.shape[:2], self.blocks, -1)[..., 0] += constant[:, None]
        return values

    def combine(self, weights: Tensor) -> Tensor:
        """Return the points of some weights: ``(batch, dim, blocks)``."""
        parts = (self.vertices * weights[:, None]).sum(2)
        return self.type.apply(parts.view(*parts.shape[:2], self.blocks, -1).transpose(1, 2)).transpose(1, 2)

    def products(self, weights: Tensor) -> Tensor:
        r"""Return :math:`\langle a_k, \sum_l w_l a_l \rangle_C` for every atom; C is the curvature."""
        point = (self.vertices * weights[:, None]).sum(2, keepdim=True)
        return self._over_size(point * self.curvature, self.vertices)

    def select(self, rows: Tensor) -> PartVertices:
        """Return the atoms of some instances."""
        if len(self.vertices) == 1:
            return self
        return replace(self, vertices=self.vertices.index_select(0, rows))

    @staticmethod
    def _over_size(first: Tensor, second: Tensor) -> Tensor:
        total = first[:, 0] * second[:, 0]
        for k in range(1, second.shape[1]):
            total = total.addcmul_(first[:, k], second[:, k])
        return total


@dataclass(frozen=True)
class VertexCache:
    """The last few points of each block; slot 0 holds the aggregate of what was dropped."""

    points: Tensor  # (batch, atoms, dim, blocks)
    coupled: Tensor  # (dim, 1): 1 for coordinates that other blocks share

    def answer(self, group: Group, duals: Tensor, weights: Tensor, earlier: Tensor) -> OracleAnswer:
        """Ask the oracle and put its point in the slot of least weight, which is merged into the aggregate.

        Parameters
        ----------
        group, duals, weights, earlier
            As in :meth:`VertexTable.answer`.

        Returns
        -------
        OracleAnswer
            The new atoms, both weights on them, and costs ``(batch, atoms, blocks)``.
        """
        point, best = group.min_oracle(group.view(duals))
        new, values = point.transpose(1, 2), self.values(group, duals)
        known = values.amin(1) <= best + 1e-12 * best.abs()
        slot = weights[:, 1:].argmin(1, keepdim=True) + 1
        least = weights.gather(1, slot)
        slot = slot.masked_fill(known[:, None], 0)  # slot 0: nothing is replaced
        chosen = torch.zeros_like(weights).scatter_(1, slot, 1.0)
        chosen[:, 0] = 0
        replaced = chosen.bool()
        # Merge: the aggregate becomes the mean of itself and the dropped atom, weighted by what they carry.
        moved = torch.where(replaced.any(1, keepdim=True), least, torch.zeros_like(least))
        base = weights[:, :1]
        share = moved / (base + moved).clamp(min=torch.finfo(duals.dtype).tiny)
        dropped = (self.points * chosen[:, :, None]).sum(1)
        points = torch.where(replaced[:, :, None], new[:, None], self.points)
        points[:, 0] += share * (dropped - points[:, 0])
        aggregates = [w[:, :1] + (w * chosen).sum(1, keepdim=True) for w in (weights, earlier)]
        weights, earlier = (
            torch.cat([aggregate, w[:, 1:].masked_fill(replaced[:, 1:], 0.0)], 1)
            for aggregate, w in zip(aggregates, (weights, earlier), strict=True)
        )
        found = replace(self, points=points)
        return OracleAnswer(found, weights, earlier, found.values(group, duals), best)

    def values(self, group: Group, duals: Tensor) -> Tensor:
        """Cost of every atom: ``(batch, atoms, blocks)``."""
        return (self.points * group.rows(duals)[:, None]).sum(2)

    def combine(self, weights: Tensor) -> Tensor:
        """Return the points of some weights: ``(batch, dim, blocks)``."""
        return (self.points * weights[:, :, None]).sum(1)

    def products(self, weights: Tensor) -> Tensor:
        r"""Return :math:`\langle a_k, \sum_l w_l a_l \rangle` for every atom."""
        return (self.points * (self.coupled * self.combine(weights))[:, None]).sum(2)

    def select(self, rows: Tensor) -> VertexCache:
        """Return the atoms of some instances."""
        return replace(self, points=self.points.index_select(0, rows))


Atoms = VertexTable | PartVertices | VertexCache


def start(group: Group, duals: Tensor) -> tuple[Atoms, Tensor, Tensor]:
    """Atoms and weights at the oracle's answer, and the values of the blocks: one oracle call."""
    if supports(group.type, HasParts):
        parts = PartVertices.build(group, duals)
        nothing = duals.new_zeros(len(duals), *parts.vertices.shape[2:])
        answer = parts.answer(group, duals, nothing, nothing)
        chosen = torch.nn.functional.one_hot(answer.values.argmin(1), nothing.shape[1])
        weights = chosen.to(duals).transpose(1, 2).contiguous()
        if group.valid is not None:
            weights = weights * _by_part(group.valid, weights)[:, None]
        return parts, weights, answer.best
    point, value = group.min_oracle(group.view(duals))
    valid = torch.ones_like(value) if group.valid is None else group.valid
    if supports(group.type, HasMaskedTable) and group.few_vertices is not None:
        atoms = VertexTable.build(group, duals)
        rows = group.type.vertex_values(group.view(duals)).argmin(-1)
        chosen = torch.nn.functional.one_hot(rows, len(atoms.table))
        weights = chosen.to(duals).transpose(1, 2) * valid[:, None]
        return atoms, weights.contiguous(), value
    points = point.transpose(1, 2)[:, None].expand(-1, SLOTS, -1, -1)
    points = points.clone(memory_format=torch.contiguous_format)
    weights = torch.zeros_like(points[:, :, 0])
    weights[:, 0] = valid
    return VertexCache(points, group.coupled.to(duals)[:, None]), weights, value


def begin(
    problem: Decomposition,
    duals: Tensor,
) -> tuple[tuple[Atoms, ...], tuple[Tensor, ...], Tensor, Tensor]:
    """Atoms and weights of all groups at the oracles' answers (:func:`start`): one call of each oracle.

    Returns
    -------
    atoms, weights : tuple
        One entry for each group.
    points, value : Tensor
        ``(batch, copies)`` and ``(batch,)``: the points of the weights, and the dual value.
    """
    points, value = torch.empty_like(duals), torch.zeros_like(duals[:, 0])
    atoms, weights = [], []
    for group in problem.groups:
        found, own, best = start(group, duals)
        group.rows(points).copy_(found.combine(own))
        value = value + best.sum(1)
        atoms.append(found)
        weights.append(own)
    return tuple(atoms), tuple(weights), points, value


def _by_part(values: Tensor, like: Tensor) -> Tensor:
    """Repeat values of blocks ``(batch, blocks)`` for all of their parts: ``(batch, blocks * parts)``."""
    return values.repeat_interleave(like.shape[-1] // values.shape[1], 1)


def pairwise_steps(atoms: Atoms, weights: Tensor, values: Tensor, eta: Tensor, repeats: int) -> Tensor:
    r"""Descend on every block's own quadratic model by pairwise Frank-Wolfe steps of closed-form size.

    The model around the point :math:`y` with gradient ``values`` on the atoms is
    :math:`\langle \lambda, x \rangle + |x - y|^2 / (2 \eta)`: the proximal objective with :math:`\beta`
    fixed, in which blocks separate. A step moves weight from the worst atom in use to the best atom (ties
    share); its optimal size is the difference of their gradients times :math:`\eta` over their squared
    distance, at most the weight there is.

    Parameters
    ----------
    atoms : VertexTable, PartVertices or VertexCache
        The vertices.
    weights : Tensor
        ``(batch, atoms, blocks)``: weights on them at y, on the simplex; not written.
    values : Tensor
        ``(batch, atoms, blocks)``: their costs.
    eta : Tensor
        ``(batch,)``: the proximal weight, positive.
    repeats : int
        Number of steps.

    Returns
    -------
    Tensor
        ``(batch, atoms, blocks)``: the weights after the steps.
    """
    eta = eta[:, None, None]
    out, tiny = ruled_out(values.dtype), torch.finfo(values.dtype).tiny
    gradient, weights = values, weights.clone()
    to, leave, stay = (torch.empty_like(weights) for _ in range(3))
    for repeat in range(repeats):
        # Masks as numbers in buffers, not as bools, indices or selects: on a CPU these are several times
        # faster, and minima with indices start a parallel region however small the tensor is.
        best = gradient.amin(1, keepdim=True)
        torch.eq(gradient, best, out=to)
        in_use = torch.le(weights, 0, out=leave).mul_(out).add_(gradient)
        worst = in_use.amax(1, keepdim=True)
        torch.lt(in_use, worst, out=stay)
        torch.ge(in_use, worst, out=leave)
        ties = leave.sum(1, keepdim=True)
        most = stay.mul_(-out).add_(weights).amin(1, keepdim=True).mul_(ties)
        direction = to.div_(to.sum(1, keepdim=True)).sub_(leave.div_(ties))
        turn = atoms.products(direction)
        length = torch.mul(direction, turn, out=stay).sum(1, keepdim=True).clamp_(min=tiny)
        step = worst.sub_(best).mul_(eta).div_(length).clamp_(min=0)
        torch.minimum(step, most, out=step)
        weights.addcmul_(direction, step).clamp_(min=0)
        if repeat + 1 < repeats:
            gradient = turn.mul_(step.div_(eta)).add_(gradient)
    return weights


def extrapolated(weights: Tensor, earlier: Tensor, momentum: float | Tensor) -> Tensor:
    """Weights moved on by a share of their last step, on the simplex again.

    Parameters
    ----------
    weights, earlier : Tensor
        ``(batch, atoms, blocks)``: now and before the last step.
    momentum : float or Tensor
        The share, as a number or ``(batch, 1, 1)``.

    Returns
    -------
    Tensor
        ``(batch, atoms, blocks)``: not negative, and 1 in all for each block.
    """
    ahead = (weights - earlier).mul_(momentum).add_(weights).clamp_(min=0)
    return ahead.div_(ahead.sum(1, keepdim=True).clamp_(min=torch.finfo(ahead.dtype).tiny))


def ruled_out(dtype: torch.dtype) -> float:
    """Below any real value, also after the huge cost of a masked vertex is added."""
    return -float(torch.finfo(dtype).max ** 0.9)
