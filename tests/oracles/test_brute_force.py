"""Thousands of costs against plain enumeration, and every 0/1 fixing of the small types."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.oracles import AtMostOne, Edge, FourClique, FourCycle, Pairwise, Simplex, Triangle


def pairwise_rows(first: int, second: int) -> list[list[float]]:
    rows = []
    for a, b in itertools.product(range(first), range(second)):
        pair = [float((i, j) == (a, b)) for i in range(first) for j in range(second)]
        rows.append([float(i == a) for i in range(first)] + [float(j == b) for j in range(second)] + pair)
    return rows


def product_rows(count: int, pairs: list[tuple[int, int]]) -> list[list[float]]:
    return [[*y, *(y[i] * y[j] for i, j in pairs)] for y in itertools.product((0.0, 1.0), repeat=count)]


CASES: list[tuple[BlockType, list[list[float]]]] = [
    (Edge(), [[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 1]]),
    (Triangle(), product_rows(3, [(0, 1), (0, 2), (1, 2)])),
    (FourClique(), product_rows(4, FourClique.pairs)),
    (FourCycle(), product_rows(4, [(0, 1), (1, 2), (2, 3), (3, 0)])),
    (Simplex(1), np.eye(1).tolist()),
    (Simplex(5), np.eye(5).tolist()),
    (AtMostOne(1), [[0.0], [1.0]]),
    (AtMostOne(6), [[0.0] * 6, *np.eye(6).tolist()]),
    (Pairwise(1, 1), pairwise_rows(1, 1)),
    (Pairwise(2, 2), pairwise_rows(2, 2)),
    (Pairwise(3, 4), pairwise_rows(3, 4)),
]
EVERY = pytest.mark.parametrize(("kind", "rows"), CASES, ids=[repr(kind) for kind, _ in CASES])


def costs(dim: int, dtype: torch.dtype, count: int = 3000) -> Tensor:
    """A third normal, a third small integers (ties), a third of magnitudes far apart: ``(2, count, dim)``."""
    draw = torch.Generator().manual_seed(dim)
    normal = torch.randn(2, count, dim, generator=draw, dtype=torch.float64)
    kinds = [normal, normal.round(), normal * 10.0 ** torch.randint(-8, 9, normal.shape, generator=draw)]
    return torch.stack(kinds)[torch.arange(count) % 3, :, torch.arange(count)].transpose(0, 1).to(dtype)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_value_and_point_are_the_best_row(kind: BlockType, rows: list[list[float]], dtype: torch.dtype) -> None:
    table = torch.tensor(rows, dtype=torch.float64)
    cost = costs(table.shape[1], dtype)
    point, value = kind.min_oracle(cost)
    best = (cost.double() @ table.T).amin(-1)
    error = kind.value_error(cost)
    assert error is not None and point.dtype == value.dtype == dtype
    # The reference rounds as well, in float64.
    assert ((value.double() - best).abs() <= error.double() + 1e-15 * cost.abs().sum(-1).double()).all()
    assert (point.double()[:, :, None] == table).all(-1).any(-1).all()
    assert (((cost * point).double().sum(-1) - best).abs() <= 4 * torch.finfo(dtype).eps * cost.abs().double().sum(-1)).all()


@EVERY
def test_ties_go_to_the_first_row(kind: BlockType, rows: list[list[float]]) -> None:
    table = torch.tensor(rows, dtype=torch.float64)
    cost = costs(table.shape[1], torch.float64).round().clamp(-3, 3)
    # Sums of small integers are exact, so that ties are ties.
    assert torch.equal(kind.min_oracle(cost)[0], table[(cost @ table.T).argmin(-1)])


@EVERY
def test_every_fixing(kind: BlockType, rows: list[list[float]]) -> None:
    """All 3 ** dim choices of free, 0 and 1, as the blocks of one batch (sampled where there are many)."""
    table = torch.tensor(rows, dtype=torch.float64)
    dim = table.shape[1]
    if dim <= 6:
        choice = torch.tensor(list(itertools.product(range(3), repeat=dim)))
    else:
        # Mostly free, or all choices would contradict each other.
        draw = torch.Generator().manual_seed(0)
        choice = torch.randint(0, 3, (2000, dim), generator=draw) * (torch.rand(2000, dim, generator=draw) < 0.2)
    lower, upper = (choice == 2).double()[None], (choice != 1).double()[None]
    restricted = kind.restrict(lower, upper)
    assert restricted is not None
    cost = torch.randn(2, len(choice), dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inside = ((table >= lower[..., None, :]) & (table <= upper[..., None, :])).all(-1)
    best = (cost @ table.T).masked_fill(~inside, torch.inf).amin(-1)
    point, value = restricted.min_oracle(cost)
    empty = ~inside.any(-1).expand_as(value)
    assert bool(empty.any()) or dim == 1
    assert torch.allclose(value[~empty], best[~empty], rtol=0, atol=1e-12)
    assert (value[empty] > 1e100).all()
    assert ((point >= lower) & (point <= upper)).all(-1)[~empty].all()
    # In two steps, half of the fixings each, and in float32.
    half = torch.arange(dim) % 2 == 0
    first = kind.restrict(torch.where(half, lower, 0.0), torch.where(half, upper, 1.0))
    assert first is not None
    second = first.restrict(torch.where(half, 0.0, lower), torch.where(half, 1.0, upper))
    assert second is not None and torch.equal(second.min_oracle(cost)[1], value)
    low = restricted.to(torch.float32, cost.device).min_oracle(cost.float())[1]
    assert torch.allclose(low.double()[~empty], value[~empty], rtol=0, atol=1e-4)


def test_bounds_inside_are_refused() -> None:
    for kind, rows in CASES:
        table = torch.tensor(rows, dtype=torch.float64)
        for moving in (table.amin(0) != table.amax(0)).nonzero()[:, 0]:
            upper = torch.ones(1, 1, table.shape[1], dtype=torch.float64)
            upper[..., moving] = 0.5
            assert kind.restrict(torch.zeros_like(upper), upper) is None


def test_bounds_beyond_the_block_change_nothing() -> None:
    for kind, rows in CASES:
        cost = costs(len(rows[0]), torch.float64, count=30)
        wide = torch.full((1, 30, len(rows[0])), 7.0, dtype=torch.float64)
        restricted = kind.restrict(-wide, wide)
        assert restricted is not None and torch.equal(restricted.min_oracle(cost)[0], kind.min_oracle(cost)[0])


def test_printed_edge_oracle_is_wrong() -> None:
    """The two-step rule of the thesis gives 3 for this cost; the minimum is -1."""
    for dtype in (torch.float32, torch.float64):
        point, value = Edge().min_oracle(torch.tensor([[[-1.0, -1.0, 5.0]]], dtype=dtype))
        assert value.item() == -1.0 and point.tolist() == [[[1.0, 0.0, 0.0]]]


def test_cliques_are_exact_in_value() -> None:
    cost = costs(6, torch.float64)
    assert torch.equal(AtMostOne(6).min_oracle(cost)[1], cost.amin(-1).clamp(max=0))
    assert torch.equal(Simplex(6).min_oracle(cost)[1], cost.amin(-1))
