"""Blocks of QPBO: variables y in {0, 1} and a variable z for each product of two of them.

The hulls over more products are tighter: a :class:`Triangle` implies its three edges, a :class:`FourCycle`
its four.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.contract import Constraints
from blocklp.blocks.finite import FiniteVertices, binary_vertices
from blocklp.rounding import rounding

Pairs = Sequence[tuple[int, int]]


class Edge(FiniteVertices):
    r"""A pair with its product: the convex hull of :math:`(y_1, y_2, y_1 y_2)`.

    The four vertices are those of the McCormick envelope for a cost of either sign; the two-step oracle
    printed in the thesis (4.1.4.3) misses the minimum on about a quarter of random costs.
    """

    vertices = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1))
    stateless = True
    private_coordinates = 1

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Compare the four vertices."""
        if self.excluded is not None:
            return super().min_oracle(cost)
        a, b, _ = cost.unbind(-1)
        best = self.min_value(cost)
        none = best == 0
        first = (a == best).logical_or_(b != best).logical_and_(~none)
        second = (a != best).logical_and_(~none)
        point = torch.stack([first, second, first & second], 1)  # laid out as copies are
        return point.to(cost.dtype).transpose(1, 2), best

    def value_error(self, cost: Tensor) -> Tensor:
        """Two additions."""
        a, b, p = cost.unbind(
            -1
        )  # quicker than a sum over the last dimension, along which copies are not contiguous
        return rounding(2, cost.dtype) * (a.abs() + b.abs() + p.abs())

    def min_value(self, cost: Tensor) -> Tensor:
        """The least of four sums."""
        if self.excluded is not None:
            return super().min_value(cost)
        a, b, p = cost.unbind(-1)
        return torch.minimum(torch.minimum(a, b), a + b + p).clamp_(max=0)

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        """The other end's cost with and without this one; the product against the three other vertices."""
        if self.excluded is not None:
            return super().min_marginals(cost)
        a, b, p = cost.unbind(-1)
        low_a, low_b = a.clamp(max=0), b.clamp(max=0)
        first, second = a + (b + p).clamp(max=0) - low_b, b + (a + p).clamp(max=0) - low_a
        return torch.stack([first, second, a + b + p - torch.minimum(low_a, low_b)], -1)

    masked_table = FiniteVertices.masked_table
    overlap = FiniteVertices.overlap
    restrict = FiniteVertices.restrict
    soft_min = FiniteVertices.soft_min
    vertex_table = FiniteVertices.vertex_table
    vertex_values = FiniteVertices.vertex_values

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        r"""In closed form where no other block shares the product.

        For a cost :math:`p \ge 0` of the product the block minimises
        :math:`\langle c, y \rangle + p \max(0, y_1 + y_2 - 1)` plus the proximal term; with
        :math:`y_2 \to 1 - y_2` a cost :math:`p < 0` has the same form.  The multiplier t of the kink lies in
        :math:`[0, |p|]`, and both ends are clipped.

        Parameters
        ----------
        cost, centre, step, shared
            As in :meth:`HasProx.prox`.

        Returns
        -------
        Tensor or None
            ``(batch, blocks, 3)``; None where another block shares the product, or an end is not shared.
        """
        if shared.tolist() != [1, 1, 0]:
            return None
        u, v = (centre[..., i] - step[..., 0] * cost[..., i] for i in (0, 1))
        p = step[..., 0] * cost[..., 2]
        gain = p.clamp(max=0)
        side = torch.where(p < 0, -torch.ones_like(p), torch.ones_like(p))
        kink = (u + side * v + torch.where(p < 0, -p, side.neg())) * 0.5
        kink = torch.minimum(kink.clamp_(min=0), p.abs())
        first, second = (u - kink - gain).clamp_(0, 1), (v - side * kink).clamp_(0, 1)
        if self.excluded is not None:
            first, second = self._fixed(u, v, p, first, second)
        both = torch.where(p < 0, torch.minimum(first, second), (first + second - 1).clamp_(min=0))
        if self.excluded is not None:
            both = both.masked_fill(self.excluded[..., 3], 0.0)
        return torch.stack([first, second, both], -1)

    @staticmethod
    def prox_block(cost: Any, centre: Any, step: float, point: Any, excluded: Any) -> None:
        """The proximal point of one pair, as :meth:`prox`.

        Parameters
        ----------
        cost, centre, step, point
            As in :meth:`blocklp.blocks.HasProxBlock.prox_block`.
        excluded : array or None
            ``(4,)`` bool: masked vertices.
        """
        u, v, p = centre[0] - step * cost[0], centre[1] - step * cost[1], step * cost[2]
        side = -1.0 if p < 0.0 else 1.0
        kink = min(max((u + side * v + (-p if p < 0.0 else -1.0)) * 0.5, 0.0), abs(p))
        point[0] = min(max(u - kink - min(p, 0.0), 0.0), 1.0)
        point[1] = min(max(v - side * kink, 0.0), 1.0)
        if excluded is not None:
            one, zero = excluded[0] and excluded[1], excluded[2] and excluded[3]  # the second end is fixed
            first_one, first_zero = excluded[0] and excluded[2], excluded[1] and excluded[3]
            if excluded[3]:  # the product is zero: the ends share what is left
                p, half = 1.0 + abs(u) + abs(v), max((u + v - 1.0) * 0.5, 0.0)
                point[0], point[1] = min(max(u - half, 0.0), 1.0), min(max(v - half, 0.0), 1.0)
            if one or zero:
                point[0] = min(max(u - p if one else u, 0.0), 1.0)
            if first_one or first_zero:
                point[1] = min(max(v - p if first_one else v, 0.0), 1.0)
                point[0] = 1.0 if first_one else 0.0
            if one or zero:
                point[1] = 1.0 if one else 0.0
        point[2] = min(point[0], point[1]) if p < 0.0 else max(point[0] + point[1] - 1.0, 0.0)
        if excluded is not None and excluded[3]:
            point[2] = 0.0

    @staticmethod
    def min_block(cost: Any, excluded: Any) -> Any:
        """The least cost of a vertex.

        Parameters
        ----------
        cost : array
            ``(3,)``.
        excluded : array or None
            ``(4,)`` bool: masked vertices.
        """
        none, first, second, both = 0.0, cost[0], cost[1], cost[0] + cost[1] + cost[2]
        if excluded is not None:
            masked = np.finfo(np.float64).max ** 0.75
            none, first = masked if excluded[0] else none, masked if excluded[1] else first
            second, both = masked if excluded[2] else second, masked if excluded[3] else both
        return min(min(first, second), min(both, none))

    @staticmethod
    def complete_block(cost: Any, point: Any, excluded: Any) -> Any:
        """The least product that the ends allow, or the largest, by the sign of its cost.

        Parameters
        ----------
        cost, point : array
            ``(3,)``; the product is written.
        excluded : array or None
            ``(4,)`` bool: masked vertices.

        Returns
        -------
        float
            How far the point leaves the hull of all vertices.
        """
        least = max(point[0] + point[1] - 1.0, 0.0)
        point[2] = least if cost[2] > 0.0 else min(point[0], point[1])
        if excluded is not None and excluded[3]:
            point[2] = 0.0
        outside = max(max(-point[0], point[0] - 1.0), max(-point[1], point[1] - 1.0))
        return max(outside, max(least - point[2], 0.0))

    def _fixed(self, u: Tensor, v: Tensor, p: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Proximal points where fixings rule vertices out: an end that is fixed, or the product at zero."""
        assert self.excluded is not None
        none, one, two, both = self.excluded.unbind(-1)
        # The product at zero: the ends share what is left, and one excludes the other.
        p = torch.where(both, 1 + u.abs() + v.abs(), p)
        half = ((u + v - 1) * 0.5).clamp_(min=0)
        first = torch.where(both, (u - half).clamp(0, 1), first)
        second = torch.where(both, (v - half).clamp(0, 1), second)
        # An end follows the other where that is fixed, and goes where it is fixed itself.
        for _ in range(2):
            first = torch.where((none & one) | (two & both), (u - p * (none & one)).clamp(0, 1), first)
            (first, second), (u, v), (one, two) = (second, first), (v, u), (two, one)
        second = torch.where((none & one) | (two & both), (none & one).to(u), second)
        first = torch.where((none & two) | (one & both), (none & two).to(u), first)
        return first, second

    def complete(self, cost: Tensor, point: Tensor, shared: Tensor) -> Tensor | None:
        """The least product that the ends allow, or the largest, by the sign of its cost.

        Parameters
        ----------
        cost, point, shared
            As in :meth:`HasCompletion.complete`.

        Returns
        -------
        Tensor or None
            ``(batch, blocks, 1)``: the products; None where others than they are to be chosen.
        """
        if shared.tolist() != [1, 1, 0]:
            return None
        a, b = point[..., 0], point[..., 1]
        best = torch.where(cost[..., 2] > 0, (a + b - 1).clamp_(min=0), torch.minimum(a, b))
        return (best if self.excluded is None else best.masked_fill(self.excluded[..., 3], 0.0))[..., None]

    def constraints(self) -> Constraints:
        """The McCormick inequalities (thesis, 4.1.4.6), without those that follow from the others."""
        return _of_a_pair()


class Triangle(FiniteVertices):
    r"""Three variables with all products, 8 vertices.

    The hull of :math:`(y_1, y_2, y_3, y_1 y_2, y_1 y_3, y_2 y_3)`.
    """

    pairs = ((0, 1), (0, 2), (1, 2))

    def __init__(self) -> None:
        super().__init__(products(3, self.pairs))

    def constraints(self) -> Constraints:
        """McCormick and triangle inequalities (Padberg 1989, The boolean quadric polytope)."""
        return Constraints.rows(*cycle(3, self.pairs))


class FourCycle(FiniteVertices):
    r"""A cycle of four products, 16 vertices.

    The hull of :math:`(y_1, .., y_4, y_1 y_2, y_2 y_3, y_3 y_4, y_4 y_1)`.
    """

    pairs = ((0, 1), (1, 2), (2, 3), (3, 0))

    def __init__(self) -> None:
        super().__init__(products(4, self.pairs))

    def constraints(self) -> Constraints:
        """McCormick and cycle inequalities (Padberg 1989, The boolean quadric polytope)."""
        return Constraints.rows(*cycle(4, self.pairs))


class FourClique(FiniteVertices):
    r"""Four variables with all products, 16 vertices.

    The hull of :math:`(y_1, .., y_4, y_1 y_2, y_1 y_3, .., y_3 y_4)`.
    """

    pairs = tuple(itertools.combinations(range(4), 2))

    def __init__(self) -> None:
        super().__init__(products(4, self.pairs))

    def constraints(self) -> Constraints:
        """McCormick, triangle and pentagonal inequalities.

        See Deza and Laurent 1997, Geometry of Cuts and Metrics, section 30.6.
        """
        parts = [mccormick(4, self.pairs)]
        for nodes in itertools.combinations(range(4), 3):
            inside = [self.pairs.index(pair) for pair in itertools.combinations(nodes, 2)]
            parts.append(odd_cuts(cuts(4, self.pairs)[inside]))
        matrix, above = pentagonal()
        by_cut = np.vstack([np.eye(4, 10), cuts(4, self.pairs)])
        parts.append((matrix @ by_cut, np.full(len(above), -np.inf), above))
        matrix, lower, upper = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Constraints.rows(matrix, lower, upper)


@functools.cache
def _of_a_pair() -> Constraints:
    """The constraints of all edges, which every small solve asks for."""
    return Constraints.rows(*mccormick(2, [(0, 1)]))


def pentagonal() -> tuple[np.ndarray, np.ndarray]:
    r"""The pentagonal inequalities of four variables, switched in all ways: rows ``matrix @ s <= above``.

    With a fifth node that is always 0 every labelling y is a cut, of which s holds :math:`y_1, .., y_4` and
    then :math:`s_{ij} = |y_i - y_j|` for all pairs.  For signs b of the five nodes,
    :math:`\sum_{ij} b_i b_j s_{ij} \le (\sum_i b_i)^2 / 4` rounded down.
    """
    signs = np.hstack([np.ones((16, 1)), 1 - 2 * binary_vertices(4)])
    pairs = itertools.combinations(range(5), 2)
    return np.stack([signs[:, i] * signs[:, j] for i, j in pairs], 1), signs.sum(1) ** 2 // 4


def products(count: int, pairs: Pairs) -> np.ndarray:
    """All 0/1 vectors of a length with the products of some pairs: ``(2 ** count, count + len(pairs))``."""
    y = binary_vertices(count)
    return np.hstack([y, np.stack([y[:, i] * y[:, j] for i, j in pairs], 1)])


def mccormick(count: int, pairs: Pairs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows ``lower <= matrix @ (y, z) <= upper`` of each pair.

    They are z >= 0, z >= y_i + y_j - 1, z <= y_i and z <= y_j.
    """
    matrix = np.zeros((len(pairs), 4, count + len(pairs)))
    for k, (i, j) in enumerate(pairs):
        matrix[k][:, [i, j, count + k]] = [[0, 0, 1], [1, 1, -1], [-1, 0, 1], [0, -1, 1]]
    lower = np.tile([0.0, -np.inf, -np.inf, -np.inf], len(pairs))
    upper = np.tile([np.inf, 1.0, 0.0, 0.0], len(pairs))
    return matrix.reshape(-1, count + len(pairs)), lower, upper


def cycle(count: int, pairs: Pairs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""McCormick rows and the cycle inequalities of pairs that form one cycle.

    A 0/1 vector cuts an even number of the pairs, those with :math:`s_e = y_i + y_j - 2 z_{ij} = 1`.  Hence
    :math:`\sum_{e \in F} s_e - \sum_{e \notin F} s_e \le |F| - 1` for every odd set F of pairs.  Together
    these rows describe the hull, since a cycle is series-parallel.
    """
    parts = mccormick(count, pairs), odd_cuts(cuts(count, pairs))
    matrix, lower, upper = (np.concatenate(part) for part in zip(*parts, strict=True))
    return matrix, lower, upper


def cuts(count: int, pairs: Pairs) -> np.ndarray:
    """Rows whose value at (y, z) is 1 where a 0/1 vector cuts the pair: y_i + y_j - 2 z_ij."""
    cut = np.zeros((len(pairs), count + len(pairs)))
    for k, (i, j) in enumerate(pairs):
        cut[k, [i, j, count + k]] = [1, 1, -2]
    return cut


def odd_cuts(cut: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cycle inequalities of pairs that form one cycle, given by their rows of :func:`cuts`."""
    signs = np.array([s for s in itertools.product((-1.0, 1.0), repeat=len(cut)) if s.count(1.0) % 2])
    return signs @ cut, np.full(len(signs), -np.inf), (signs > 0).sum(1) - 1.0
