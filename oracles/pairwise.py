"""The pairwise block of a Markov random field."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from blocklp.blocks.contract import Constraints
from blocklp.blocks.finite import FiniteVertices
from blocklp.oracles.simplex import (
    against_others,
    fixings_only,
    mask_costs,
    masked_choices,
    merge_masks,
    positive,
)
from blocklp.rounding import rounding


class Pairwise(FiniteVertices):
    r"""Two labels and their pair: one-hot :math:`x_i, x_j` and :math:`x_{ij}(a, b) = x_i(a) x_j(b)`.

    The scope is :math:`x_i` (``first`` variables), :math:`x_j` (``second``), then :math:`x_{ij}`, row by row
    (``first * second``).  The polytope is the local one, whose vertices are the pairs of labels.  Minimum:
    :math:`\min_{a, b} c_i(a) + c_j(b) + c_{ij}(a, b)`, the first pair on ties.

    Parameters
    ----------
    first, second : int
        Numbers of labels, at least 1.

    Raises
    ------
    ModelError
        If a number of labels is not a positive integer.
    """

    def __init__(self, first: int, second: int) -> None:
        self.first, self.second = positive(first, "Pairwise first"), positive(second, "Pairwise second")
        self.dim = self.first + self.second + self.first * self.second

    @cached_property
    def table(self) -> Tensor:  # type: ignore[override]
        """The vertices ``(first * second, dim)``; listed on demand, since the oracle does without."""
        return self.vertex_points(torch.arange(self.first * self.second), torch.zeros(1).double())

    @property
    def vertex_count(self) -> int:
        """Number of pairs of labels."""
        return self.first * self.second

    def vertex_values(self, cost: Tensor) -> Tensor:
        """Cost of every pair of labels: ``(batch, blocks, first * second)``."""
        return mask_costs(self._sums(cost), self.excluded)

    def vertex_points(self, row: Tensor, like: Tensor) -> Tensor:
        """One-hot vectors of numbered pairs: ``(...) -> (..., dim)``, in the dtype of ``like``."""
        ends = one_hot(row // self.second, self.first), one_hot(row % self.second, self.second)
        return torch.cat([*ends, one_hot(row, self.first * self.second)], -1).to(like.dtype)

    def min_marginals(self, cost: Tensor) -> Tensor:
        """Least cost with each label and each pair of labels, less the least cost without it."""
        sums = self._sums(cost)
        if self.excluded is not None:
            sums = sums.masked_fill(self.excluded, torch.inf)
        pairs = sums.reshape(*sums.shape[:-1], self.first, self.second)
        return torch.cat([against_others(m) for m in (pairs.amin(-1), pairs.amin(-2), sums)], -1)

    def overlap(self, shared: Tensor) -> int:
        """At most two coordinates of each part, since two one-hot vectors differ in two."""
        return max(1, sum(min(2, int(part.sum())) for part in self._parts(shared)))

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of two additions for every pair."""
        return rounding(2, cost.dtype) * self._sums(cost.abs()).amax(-1)

    def constraints(self) -> Constraints:
        """Local polytope: normalisation, marginalisation to either end, and signs."""
        return self._stated

    @cached_property
    def _stated(self) -> Constraints:
        """The rows, which take hundreds of megabytes where labels are hundreds."""
        n, m = self.first, self.second
        matrix = torch.zeros(1 + n + m, n + m + n * m, dtype=torch.float64)
        equal = matrix.new_zeros(1 + n + m)
        label, pair = torch.arange(n + m), torch.arange(n * m)
        matrix[0, :n] = equal[0] = 1
        matrix[1 + label, label] = -1
        matrix[1 + pair // m, n + m + pair] = matrix[1 + n + pair % m, n + m + pair] = 1
        zero = matrix.new_zeros(1, 1, matrix.shape[1])
        sides = equal[None, None], equal[None, None]
        return Constraints(matrix[None, None], *sides, zero, torch.full_like(zero, torch.inf))

    def restrict(self, lower: Tensor, upper: Tensor) -> Pairwise | None:
        """Mask pairs of labels by 0/1 fixings; None for bounds that are no fixings."""
        if not fixings_only(lower, upper):
            return None
        sides = zip(self._parts(lower), self._parts(upper), strict=True)
        masks = [masked_choices(lo, up)[0] for lo, up in sides]
        pairs = (masks[0][..., :, None] | masks[1][..., None, :]).flatten(-2) | masks[2]
        return self.with_data(excluded=merge_masks(self.excluded, pairs))

    def _parts(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Positions of the first label, of the second and of the pairs."""
        ends = self.first + self.second
        return row[..., : self.first], row[..., self.first : ends], row[..., ends:]

    def _sums(self, cost: Tensor) -> Tensor:
        """Cost of every pair with its ends: ``(..., dim) -> (..., first * second)``."""
        c_i, c_j, c_ij = self._parts(cost)
        pairs = c_ij.reshape(*c_ij.shape[:-1], self.first, self.second)
        return (c_i[..., :, None] + c_j[..., None, :] + pairs).flatten(-2)

    def __repr__(self) -> str:
        return f"{self.name}({self.first}, {self.second})"
