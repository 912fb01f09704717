"""Blocks over the joint labels of a few variables: higher-order factors and clusters of random fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from blocklp.blocks.contract import Constraints
from blocklp.blocks.finite import FiniteVertices, soft
from blocklp.errors import ModelError
from blocklp.oracles.chain import LARGEST_SYSTEM
from blocklp.oracles.simplex import (
    against_others,
    fixings_only,
    mask_costs,
    masked_choices,
    merge_masks,
    positive,
)
from blocklp.rounding import rounding


class Joint(FiniteVertices):
    r"""Joint labels of a few variables, and marginals of them.

    The scope is one part a marginal, the one-hot vector of the labels of its variables (the last one
    fastest), then the one of all variables.  Vertices are the joint labels: :class:`Pairwise` is the case of
    two variables with marginals ``[(0,), (1,)]``.  Of three variables with all pairs as marginals it is the
    triplet cluster of D. Sontag et al., Tightening LP relaxations for MAP using message passing, UAI 2008.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of labels of the variables.
    marginals : sequence of sequence of int
        Ascending positions of the variables of each marginal; at least one, and not all variables.

    Raises
    ------
    ModelError
        If a size is not positive or a marginal does not name variables as it must.
    """

    def __init__(self, sizes: Sequence[int], marginals: Sequence[Sequence[int]]) -> None:
        self.sizes = tuple(positive(size, "Joint size") for size in sizes)
        everyone = tuple(range(len(self.sizes)))
        self.parts = (*(tuple(part) for part in marginals), everyone)
        for part in self.parts[:-1]:
            if not part or part == everyone or list(part) != sorted(set(part) & set(everyone)):
                rule = f"name some of the positions {everyone}, ascending, and not all"
                raise ModelError(f"Joint has a marginal {part}; {rule}")
        self.lengths = [math.prod(self.sizes[i] for i in part) for part in self.parts]
        self.dim: int = sum(self.lengths)

    @property
    def vertex_count(self) -> int:
        """Number of joint labels."""
        return self.lengths[-1]

    @cached_property
    def members(self) -> list[Tensor]:
        """For each part the entry that every joint label belongs to: ``(vertices,)`` int64."""
        joint = torch.arange(self.vertex_count).reshape(self.sizes)
        entries = []
        for part, length in zip(self.parts, self.lengths, strict=True):
            shape = [self.sizes[i] if i in part else 1 for i in range(len(self.sizes))]
            entries.append(torch.arange(length).reshape(shape).expand_as(joint).flatten())
        return entries

    @cached_property
    def table(self) -> Tensor:  # type: ignore[override]
        """The vertices ``(vertices, dim)``; listed on demand, since the oracle does without."""
        return self.vertex_points(torch.arange(self.vertex_count), torch.zeros(1).double())

    def vertex_values(self, cost: Tensor) -> Tensor:
        """Cost of every joint label: ``(batch, blocks, vertices)``."""
        return mask_costs(self._sums(cost), self.excluded)

    def vertex_points(self, row: Tensor, like: Tensor) -> Tensor:
        """One-hot vectors of numbered joint labels: ``(...) -> (..., dim)``, in the dtype of ``like``."""
        parts = zip(self.members, self.lengths, strict=True)
        return torch.cat([one_hot(m.to(row.device)[row], length) for m, length in parts], -1).to(like.dtype)

    def min_marginals(self, cost: Tensor) -> Tensor:
        """Least cost with each entry of each part, less the least cost without it."""
        sums = self._sums(cost)
        if self.excluded is not None:
            sums = sums.masked_fill(self.excluded, torch.inf)
        joint = sums.reshape(*sums.shape[:-1], *self.sizes)
        least = [joint.amin(self._others(part)) if part != self.parts[-1] else joint for part in self.parts]
        return torch.cat([against_others(m.flatten(cost.dim() - 1)) for m in least], -1)

    def overlap(self, shared: Tensor) -> int:
        """At most two coordinates of each part, since two one-hot vectors differ in two."""
        return max(1, sum(min(2, int(part.sum())) for part in self._split(shared)))

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all joint labels, and their marginals."""
        weights, value, excess = soft(self.vertex_values(cost), temperature)
        return self._marginals(weights), value, excess

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of one addition a part."""
        return rounding(len(self.parts), cost.dtype) * self._sums(cost.abs()).amax(-1)

    def constraints(self) -> Constraints | None:
        """Normalisation and signs of the joint labels, and marginalisation to every other part.

        ``None`` where the dense matrix would have more than :data:`LARGEST_SYSTEM` entries.
        """
        count = self.vertex_count
        if self.dim**2 > LARGEST_SYSTEM:
            return None
        eye = torch.eye(count, dtype=torch.float64)
        sums = self._marginals(eye).T  # (dim, vertices): which joint labels belong to each entry
        rows = torch.eye(self.dim, dtype=torch.float64)
        rows[: self.dim - count, self.dim - count :] -= sums[: self.dim - count]
        total = torch.zeros(1, self.dim, dtype=torch.float64)
        total[0, self.dim - count :] = 1
        lower = torch.zeros(self.dim + 1, dtype=torch.float64)
        upper = torch.zeros(self.dim + 1, dtype=torch.float64)
        upper[self.dim - count : self.dim] = torch.inf
        lower[-1] = upper[-1] = 1
        return Constraints.rows(torch.cat([rows, total]), lower, upper)

    def restrict(self, lower: Tensor, upper: Tensor) -> Joint | None:
        """Mask joint labels by 0/1 fixings; None for bounds that are no fixings."""
        if not fixings_only(lower, upper):
            return None
        sides = zip(self._split(lower), self._split(upper), strict=True)
        masks = [masked_choices(lo, up)[0] for lo, up in sides]
        joint = masks[-1]
        for mask, member in zip(masks[:-1], self.members[:-1], strict=True):
            joint = joint | mask[..., member]
        return self.with_data(excluded=merge_masks(self.excluded, joint))

    def _split(self, row: Tensor) -> tuple[Tensor, ...]:
        return torch.split(row, self.lengths, -1)

    def _others(self, part: tuple[int, ...]) -> tuple[int, ...]:
        """Axes from the right of the variables that are not in a part."""
        return tuple(i - len(self.sizes) for i in range(len(self.sizes)) if i not in part)

    def _sums(self, cost: Tensor) -> Tensor:
        """Cost of every joint label with its marginals: ``(..., dim) -> (..., vertices)``."""
        *rest, joint = self._split(cost)
        total = joint.reshape(*joint.shape[:-1], *self.sizes)
        for part, costs in zip(self.parts, rest, strict=False):
            shape = [self.sizes[i] if i in part else 1 for i in range(len(self.sizes))]
            total = total + costs.reshape(*costs.shape[:-1], *shape)
        return total.flatten(cost.dim() - 1)

    def _marginals(self, weights: Tensor) -> Tensor:
        """Marginals of all parts of weights of joint labels: ``(..., vertices) -> (..., dim)``."""
        joint = weights.reshape(*weights.shape[:-1], *self.sizes)
        sums = [joint.sum(self._others(part)) if part != self.parts[-1] else joint for part in self.parts]
        return torch.cat([s.flatten(weights.dim() - 1) for s in sums], -1)

    def __repr__(self) -> str:
        return f"{self.name}({self.sizes}, {self.parts[:-1]})"
