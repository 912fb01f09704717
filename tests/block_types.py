"""Block types as users write them: by an oracle alone, and by a table."""

from __future__ import annotations

import torch
from torch import Tensor

import blocklp as bl


class Oracle(bl.BlockType):
    """At most one of three, by its oracle alone."""

    dim = 3

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        value, at = cost.min(-1)
        point = torch.zeros_like(cost).scatter(-1, at[..., None], (value < 0).to(cost)[..., None])
        return point, (cost * point).sum(-1)


class Table(bl.FiniteVertices):
    """A table of a user's."""

    vertices = ((0, 0, 0), (1, 0, 0), (0, 1, 1))
