"""Divide and conquer against the lattice's own matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.oracles.filters.divide_and_conquer import divide_and_conquer
from blocklp.oracles.filters.ordered import ordered_filter
from blocklp.oracles.filters.permutohedral import Lattice

POINTS = 150


def features(d: int) -> Tensor:
    return 2 * torch.randn(POINTS, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)


def dense(lattice: Lattice) -> Tensor:
    return lattice.filter(torch.eye(lattice.points, dtype=torch.float64))


def by_definition(matrix: Tensor, y: Tensor, values: Tensor) -> Tensor:
    return torch.stack([(matrix * (s[:, None] - s).sign()) @ v for s, v in zip(y.T, values.T, strict=True)], 1)


@pytest.mark.parametrize("leaf", [1, 5, 64])
@pytest.mark.parametrize("d", [2, 5])
def test_is_the_order_on_the_whole_lattice(leaf: int, d: int) -> None:
    lattice, draw = Lattice.build(features(d)), torch.Generator().manual_seed(leaf)
    spread = torch.rand(POINTS, 1, generator=draw, dtype=torch.float64)
    # All distinct, ties, many points at the top, at the bottom and between, and none apart.
    y = torch.cat([spread, (9 * spread).floor(), spread.clamp(max=0.2), spread.clamp(min=0.8), 0 * spread], 1)
    y = torch.cat([y, torch.where(spread > 0.5, 0.5, spread) + (spread > 0.9)], 1)
    values = torch.randn(y.shape, generator=draw, dtype=torch.float64)
    truth = dense(lattice)
    torch.testing.assert_close(divide_and_conquer(lattice, y, values, leaf), by_definition(truth, y, values), rtol=1e-11, atol=1e-11)
    found = divide_and_conquer(lattice, y, leaf=leaf)
    torch.testing.assert_close(found, by_definition(truth, y, torch.ones_like(y)), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found, ordered_filter(lattice, y, levels=POINTS), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_a_part_of_a_lattice_is_a_block_of_its_matrix(d: int) -> None:
    lattice = Lattice.build(features(d))
    points = torch.randperm(POINTS, generator=torch.Generator().manual_seed(0))[:25].sort().values
    part = lattice.restrict(points)
    assert part.size < lattice.size
    torch.testing.assert_close(dense(part), dense(lattice)[points][:, points], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(part.diagonal, lattice.diagonal[points])
    # A lattice of these points alone is another kernel.
    if d > 1:
        assert not torch.allclose(dense(Lattice.build(features(d)[points])), dense(part), rtol=1e-3)


def test_images_are_alone() -> None:
    sizes, f = (60, 1, 89), features(2)
    image = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    lattice = Lattice.build(f, image)
    y = torch.rand(POINTS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alone = [divide_and_conquer(Lattice.build(part), s) for part, s in zip(f.split(sizes), y.split(sizes), strict=True)]
    assert torch.equal(divide_and_conquer(lattice, y), torch.cat(alone))
    points = torch.tensor([3, 8, 50, 51, 60, 61, 70, 149])
    part = lattice.restrict(points)
    torch.testing.assert_close(dense(part), dense(lattice)[points][:, points])
    for one, own in zip(part.images, points.split((4, 1, 3)), strict=True):
        torch.testing.assert_close(dense(one), dense(lattice)[own][:, own])


def test_what_does_not_fit_is_refused() -> None:
    lattice = Lattice.build(features(2))
    with pytest.raises(ShapeError, match="150 points"):
        divide_and_conquer(lattice, torch.rand(POINTS))
    with pytest.raises(ShapeError, match="150 points"):
        divide_and_conquer(lattice, torch.rand(POINTS, 2), torch.rand(POINTS, 1))
    with pytest.raises(ModelError, match="symmetric=True"):
        divide_and_conquer(Lattice.build(features(2), symmetric=False), torch.rand(POINTS, 2))
