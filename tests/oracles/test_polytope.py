"""The generic polytope: both of its ways against HiGHS, degenerate systems, and what is refused."""

import numpy as np
import pytest
import torch

import blocklp.oracles.polytope as module
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import Polytope
from blocklp.small_lp import minimum


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_listed_vertices_against_lps(dim: int) -> None:
    draw = np.random.default_rng(dim)
    for trial in range(12):
        rows = int(draw.integers(1, 5))
        # Integer rows make degenerate vertices; every other system has an equality through an interior point.
        matrix = draw.integers(-2, 3, size=(rows, dim)).astype(float)
        inside = draw.uniform(-0.5, 0.5, size=dim)
        lower, upper = matrix @ inside - draw.uniform(0, 1, rows), matrix @ inside + draw.uniform(0, 1, rows)
        if trial % 2:
            lower[0] = upper[0] = matrix[0] @ inside
        else:
            lower[0] = -np.inf
        x_lower, x_upper = -np.ones(dim), np.ones(dim)
        kind = Polytope(matrix, lower, upper, x_lower, x_upper)
        assert kind.vertices is not None
        cost = draw.normal(size=(30, dim))
        value = kind.min_oracle(torch.tensor(cost)[:, None])[1][:, 0]
        for c, v in zip(cost, value.tolist(), strict=True):
            best = minimum(c, matrix, lower, upper, x_lower, x_upper)
            assert best is not None and abs(c @ best - v) < 1e-7


def test_both_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(2, 3, 2, 4))
    data = (matrix, [-1.0, -np.inf], [0.5, 0.5], -np.ones(4), np.ones(4))
    cost = torch.tensor(draw.normal(size=(2, 3, 4)))
    listed = Polytope(*data)
    monkeypatch.setattr(module, "SYSTEMS", 0)
    solved = Polytope(*data)
    assert listed.vertices is not None and solved.vertices is None
    assert torch.allclose(listed.min_oracle(cost)[1], solved.min_oracle(cost)[1], atol=1e-8)
    low = solved.to(torch.float32, cost.device).min_oracle(cost.float())
    assert low[0].dtype == low[1].dtype == torch.float32
    assert torch.allclose(low[1].double(), listed.min_oracle(cost)[1], atol=1e-5)
    assert torch.equal(solved.min_oracle(cost)[0], solved.min_oracle(cost)[0])


def test_simple_vertices() -> None:
    square = Polytope(np.zeros((0, 2)), [], [], [0, 0], [1, 1])
    assert square.vertices is not None and square.vertices[0, 0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    triangle = Polytope([[1.0, 1.0]], [-np.inf], [1.0], [0, 0], [1, 1])
    assert triangle.vertices is not None and triangle.vertices[0, 0].tolist() == [[0, 0], [0, 1], [1, 0]]
    point = Polytope([[1.0, 1.0]], [2.0], [2.0], [0, 0], [1, 1])
    assert point.vertices is not None and point.vertices[0, 0].tolist() == [[1, 1]]
    useless_row = Polytope([[0.0, 0.0]], [-1.0], [1.0], [0, 0], [1, 1])
    assert useless_row.vertices is not None and useless_row.vertices.shape[2] == 4


def test_blocks_with_different_numbers_of_vertices() -> None:
    kind = Polytope([[1.0, 1.0]], [[-np.inf], [2.0]], [[1.5], [2.0]], [0, 0], [1, 1])
    point, value = kind.min_oracle(-torch.ones(1, 2, 2, dtype=torch.float64))
    assert value.tolist() == [[-1.5, -2.0]] and point[0, 1].tolist() == [1, 1]


def test_nearly_parallel_rows_go_to_the_lp() -> None:
    """Intersections of rows at an angle of 1e-8 are not trusted."""
    kind = Polytope([[1.0, 0.0], [1.0, 1e-8]], [-np.inf] * 2, [0.5, 0.5], [0, 0], [1, 1])
    assert kind.vertices is None
    assert abs(kind.min_oracle(torch.tensor([[[-1.0, 0.0]]], dtype=torch.float64))[1].item() + 0.5) < 1e-8


def test_without_points_or_bounds() -> None:
    with pytest.raises(ModelError, match="block 1 of instance 0 is infeasible"):
        Polytope([[1.0, 1.0]], [[0.0], [3.0]], [4.0], [0, 0], [1, 1])
    with pytest.raises(ModelError, match="block 0 of instance 0 is infeasible"):
        Polytope(np.ones((1, 9)), [10.0], [11.0], np.zeros(9), np.ones(9))
    with pytest.raises(ModelError, match="is infeasible"):
        Polytope([[1.0, 1.0]], [0.0], [1.0], [0, 1], [1, 0])
    with pytest.raises(ModelError, match="x_upper holds infinities"):
        Polytope([[1.0, 1.0]], [0.0], [1.0], [0, 0], [1, np.inf])
    with pytest.raises(ModelError, match="NaN"):
        Polytope([[1.0, 1.0]], [np.nan], [1.0], [0, 0], [1, 1])
    with pytest.raises(ShapeError, match="1 rows of 2 variables"):
        Polytope([[1.0, 1.0]], [0.0, 0.0], [1.0], [0, 0], [1, 1])
    empty = torch.ones(1, 1, 2, dtype=torch.float64)
    assert Polytope([[1.0, 1.0]], [-np.inf], [1.0], [0, 0], [1, 1]).restrict(empty, empty) is None
