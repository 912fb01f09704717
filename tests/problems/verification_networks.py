"""Random networks for the tests of verification."""

from __future__ import annotations

import itertools
import math

import torch

from blocklp.problems.verification import Builder, Network
from blocklp.problems.verification.operations import Affine


def dense(seed: int, sizes: tuple[int, ...] = (3, 6, 5, 2)) -> Network:
    g = torch.Generator().manual_seed(seed)
    b = Builder(sizes[:1], f"dense {seed}")
    at = 0
    for k, (a, c) in enumerate(itertools.pairwise(sizes)):
        at = b.linear(at, torch.randn(c, a, generator=g), torch.randn(c, generator=g) / 2)
        if k + 2 < len(sizes):
            at = b.relu(at)
    return b.build()


def conv(seed: int) -> Network:
    """Two convolutions with strides and paddings, even asymmetric ones, a scaling, and a dense layer."""
    g = torch.Generator().manual_seed(seed)
    b = Builder((2, 6, 7), f"conv {seed}")
    at = b.conv(0, torch.randn(3, 2, 3, 2, generator=g) / 2, torch.randn(3, generator=g), (2, 1), (1, 0, 1, 2))
    at = b.relu(b.scale(at, torch.tensor([[[1.5]], [[0.5]], [[-1.0]]]), torch.tensor([[[0.1]], [[0.0]], [[0.3]]])))
    at = b.relu(b.conv(at, torch.randn(4, 3, 2, 2, generator=g) / 2, torch.randn(4, generator=g) / 2, (1, 2), (1, 1, 0, 0)))
    at = b.reorder(at, (1, 2, 0), (math.prod(b.ops[at].shape),))
    b.linear(at, torch.randn(3, b.ops[at].shape[0], generator=g) / 3, torch.randn(3, generator=g))
    return b.build()


def residual(seed: int) -> Network:
    g = torch.Generator().manual_seed(seed)
    b = Builder((4,), f"residual {seed}")
    first = b.relu(b.linear(0, torch.randn(5, 4, generator=g), torch.randn(5, generator=g) / 2))
    inner = b.relu(b.linear(first, torch.randn(6, 5, generator=g) / 2, torch.randn(6, generator=g) / 2))
    again = b.linear(inner, torch.randn(5, 6, generator=g) / 2)
    entries = torch.tensor([0, 1, 1, 2, 3, 4, 4]), torch.tensor([4, 0, 2, 1, 3, 0, 4]), torch.rand(7, generator=g) + 0.5
    again = b.sparse(again, (5,), entries, torch.randn(5, generator=g) / 4)
    last = b.relu(b.add(first, again))
    b.linear(last, torch.randn(2, 5, generator=g), torch.randn(2, generator=g))
    return b.build()


def all_kinds(seeds: range) -> list[Network]:
    return [make(seed) for seed in seeds for make in (dense, conv, residual)]


def unit_box(network: Network, seed: int, radius: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    centre = torch.randn(network.input_shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return centre - radius, centre + radius


def holds_adjoints(network: Network) -> None:
    """State what every affine map promises: its adjoint, and the map of magnitudes."""
    generator = torch.Generator().manual_seed(5)
    for op in network.ops:
        if not isinstance(op, Affine):
            continue
        x = torch.randn(3, *op.source, generator=generator, dtype=torch.float64)
        y = torch.randn(3, *op.shape, generator=generator, dtype=torch.float64)
        forward, back = op.linear(x), op.adjoint(y)
        assert forward.shape == y.shape
        assert back.shape == x.shape
        size = (op.absolute().linear(x.abs()) * y.abs()).flatten(1).sum(1) + 1
        assert (((forward * y).flatten(1).sum(1) - (x * back).flatten(1).sum(1)).abs() <= 1e-12 * size).all()
        magnitude = op.absolute().linear(x.abs())
        assert (forward.abs() <= magnitude * (1 + 1e-12) + 1e-12).all()
        assert torch.equal(op.absolute().shift(), op.shift().abs())
