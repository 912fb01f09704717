"""Blocks made of parts, on zonotopes: images of cubes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import blocklp as bl
from blocklp.testing.conformance import BlockTypeConformance


class Zonotope(bl.FactoredBlock):
    """``{centre + generators @ v : lower <= v <= upper}``, one part a generator."""

    block_data = ("lower", "upper")

    def __init__(self, centre: Tensor, generators: Tensor, lower: Tensor, upper: Tensor) -> None:
        self.centre, self.generators, self.lower, self.upper = centre, generators, lower, upper
        self.dim = len(centre)

    def vertices(self) -> Tensor:
        return torch.stack([self.lower, self.upper], 2)[:, :, :, None]

    def apply(self, parts: Tensor) -> Tensor:
        return self.centre.to(parts) + parts[:, :, 0] @ self.generators.to(parts).T

    def adjoint(self, cost: Tensor) -> Tensor:
        return (cost @ self.generators.to(cost))[:, :, None]

    def shift(self) -> Tensor:
        return self.centre


def zonotope(seed: int, dim: int, parts: int, batch: int = 1, blocks: int = 1) -> Zonotope:
    g = torch.Generator().manual_seed(seed)
    centre, generators, low, width = (
        torch.rand(*shape, generator=g, dtype=torch.float64)
        for shape in ((dim,), (dim, parts), (batch, blocks, parts), (batch, blocks, parts))
    )
    return Zonotope(centre - 0.5, 2 * generators - 1, low - 1, low + width)


class TestZonotope(BlockTypeConformance):
    """The derived oracle against all corners of the cube."""

    def block_type(self) -> Zonotope:
        return zonotope(0, 3, 5, 2, 3)

    def vertices(self) -> np.ndarray:
        block = self.block_type()
        corners = [torch.where(torch.tensor(c), block.upper, block.lower) for c in itertools.product((True, False), repeat=5)]
        return torch.stack([block.apply(c[:, :, None]) for c in corners], 2).numpy()


@pytest.mark.parametrize("seed", range(10))
def test_curvature_bounds_every_step(seed: int) -> None:
    block = zonotope(seed, 12, 30)
    shared = (torch.rand(12, generator=torch.Generator().manual_seed(seed)) < 0.7).double()
    diagonal = block.curvature(shared)
    assert diagonal.shape == (1, 30)
    image = shared[:, None] * block.generators / diagonal[0].sqrt()
    largest = torch.linalg.eigvalsh(image.T @ image)[-1].item()
    assert 0.5 < largest < 1.1


def chained(batch: int) -> tuple[bl.Model, list[float]]:
    """Zonotopes that share variables, and the optima by HiGHS, parts as columns."""
    first, second = zonotope(1, 14, 30, batch), zonotope(2, 14, 30, batch)
    # Both hold the point of their mid-parts after this shift, so the sets intersect.
    middle = [block.apply((block.lower + block.upper)[:1, :, None] / 2)[0, 0] for block in (first, second)]
    second.centre = second.centre + middle[0] - middle[1]
    if batch > 1:
        for block in (first, second):
            block.lower, block.upper = block.lower[:1].repeat(batch, 1, 1), block.upper[:1].repeat(batch, 1, 1)
    cost = torch.randn(batch, 14, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    m = bl.Model(batch=batch)
    x = m.variable("x", 14, lower=-100, upper=100)
    for block in (first, second):
        m.add(block, scope=x.reshape(1, -1))
    m.minimize((cost * x).sum())
    equal = np.hstack([first.generators.numpy(), -second.generators.numpy()])
    right = (second.centre - first.centre).numpy()
    truths = []
    for k in range(batch):
        low, high = (torch.cat([getattr(block, side)[k, 0] for block in (first, second)]) for side in ("lower", "upper"))
        c = np.concatenate([cost[k].numpy() @ first.generators.numpy(), np.zeros(30)])
        truths.append(
            linprog(c, A_eq=equal, b_eq=right, bounds=torch.stack([low, high], 1).numpy()).fun + float(cost[k] @ first.centre)
        )
    return m, truths


@pytest.mark.parametrize("batch", [1, 3])
def test_bounds_reach_the_optimum(batch: int) -> None:
    m, truths = chained(batch)
    bound = m.solve(tol=0, passes=1500).bound
    truth = torch.tensor(truths, dtype=torch.float64)
    assert bool((bound <= truth + 1e-9).all())
    torch.testing.assert_close(bound, truth, rtol=1e-4, atol=1e-4)
