"""Block types as users write them, by an oracle alone and by a table, and models of few blocks for any types."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.oracles import Knapsack, Simplex


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


def sharing(draw: np.random.Generator, *kinds: bl.BlockType) -> bl.Model:
    """Blocks of three variables in rows, and of another type in columns, which share all variables."""
    m = bl.Model(2)
    x = m.variable("x", (6, 3), lower=0, upper=1)
    for kind, scope in zip(kinds, (x, x.T.reshape(6, 3)), strict=True):
        m.add(kind, scope)
    m.minimize((draw.normal(size=(2, 6, 3)) * x).sum())
    return m


def choices(draw: np.random.Generator, batch: int) -> bl.Model:
    """Choices, a knapsack, and rows beside the blocks."""
    m = bl.Model(batch)
    x = m.variable("x", (6, 3), lower=0, upper=1)
    m.add(Simplex(3), x)
    m.add(Knapsack(draw.integers(1, 9, (3, 6)), 14.0), x.T)
    m.add(draw.uniform(0, 1, (4, 18)) @ x.reshape(-1) <= 4.5)
    m.minimize((draw.normal(size=(batch, 6, 3)) * x).sum())
    return m
