"""The three ways to solve a small LP agree."""

import sys
from fractions import Fraction

import numpy as np
import pytest

from blocklp.errors import BlocklpError
from blocklp.general_solvers.small_lp import exact_minimum, minimum


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


def test_costs_at_which_the_dual_simplex_method_gives_up() -> None:
    """Tiny costs beside a large one, as multipliers near an optimum are: HiGHS then says that the status is unknown."""
    cost = np.array([1.3575667076992648e-05, -4.376253056048718e-07, -3.0251547714632565e-06, 0.13523551119658705, 0.0, 0.0])
    cost[4:] = -2.1282969759950365e-05, 9.58659987893018e-07
    rows = [
        [0.5421959472928339, -0.9379316679003687, -0.6806732505343999, 0.6513448243705758, 0.7443249989740529, -0.9949336162157113],
        [0.2927456460780492, -1.1676075153267953, 1.2238842488852195, 0.6671788900041897, 2.278213063665826, 1.513382041057936],
        [
            -0.657304255513299,
            0.19966244048740006,
            -0.47367660064509864,
            0.14340596326399774,
            0.7844278986496858,
            -0.004554013838874466,
        ],
        [0.06195929293713912, -1.3365018435922746, 0.5796160972598751, -0.013706262580966801, 0.6252310987267325, 1.0407074995504326],
    ]
    upper = [-0.6410703427870696, 3.077735900517893, 0.7872317573313636, 0.653256692607342]
    found = minimum(cost, np.array(rows), np.full(4, -np.inf), np.array(upper), 0.0, 1.0)
    assert found is not None
    box = np.eye(6).tolist()
    exact = exact_minimum(cost.tolist(), rows + box, [-np.inf] * 4 + [0.0] * 6, [*upper, *[1.0] * 6])
    assert exact is not None and abs(cost @ found - float(exact)) < 1e-12
