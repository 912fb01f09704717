"""The three ways to solve a small LP agree."""

import sys
from fractions import Fraction

import numpy as np
import pytest

from blocklp.errors import BlocklpError
from blocklp.small_lp import exact_minimum, minimum


@pytest.mark.parametrize("seed", range(40))
def test_three_ways(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(seed)
    dim, rows = int(draw.integers(1, 5)), int(draw.integers(1, 6))
    matrix = np.vstack([draw.integers(-3, 4, size=(rows, dim)), np.eye(dim)]).astype(float)
    lower = np.append(draw.integers(-3, 2, rows), -np.ones(dim)).astype(float)
    upper = np.append(lower[:rows] + draw.integers(0, 3, rows), np.ones(dim))
    lower[: rows // 2] = -np.inf
    cost = draw.normal(size=dim).round(2)
    exact = exact_minimum(cost.tolist(), matrix.tolist(), lower.tolist(), upper.tolist())
    first = minimum(cost, matrix, lower, upper)
    monkeypatch.setitem(sys.modules, "highspy", None)
    second = minimum(cost, matrix, lower, upper)
    if exact is None:
        assert first is None and second is None
    else:
        assert first is not None and second is not None
        assert abs(cost @ first - float(exact)) < 1e-7 and abs(cost @ second - float(exact)) < 1e-7


def test_exact_minimum_is_exact() -> None:
    third = 1 / 3
    assert exact_minimum([third, -1.0], [[1.0, 0.0], [0.0, 3.0]], [0.1, -1.0], [1.0, 1.0]) == Fraction(third) * Fraction(
        0.1
    ) - Fraction(1, 3)


def test_redundant_equalities() -> None:
    rows = [[1.0, 1.0], [2.0, 2.0], [1.0, 0.0], [0.0, 1.0]]
    assert exact_minimum([1.0, 0.0], rows, [1.0, 2.0, 0.0, 0.0], [1.0, 2.0, 1.0, 1.0]) == 0


@pytest.mark.parametrize("without", [[], ["highspy"]])
def test_unbounded(without: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in without:
        monkeypatch.setitem(sys.modules, name, None)
    one = np.ones((1, 1))
    with pytest.raises(BlocklpError):
        minimum(np.array([-1.0]), one, np.array([0.0]), np.array([np.inf]))
    with pytest.raises(BlocklpError, match="unbounded"):
        exact_minimum([-1.0], [[1.0]], [0.0], [float("inf")])
