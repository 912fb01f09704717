"""Hulls of graphs of smooth activations: the conformance suite, and the engine on models of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import blocklp as bl
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import Knapsack
from blocklp.oracles.smooth import (
    CurveHull,
    GeluHull,
    SigmoidHull,
    SignHull,
    TanhHull,
    hull,
)
from blocklp.testing.conformance import BlockTypeConformance

from .test_curves import TRUE

LOWER, UPPER = [-3.0, 0.5, -2.0], [2.0, 1.5, -0.5]


class TestSigmoidHull(BlockTypeConformance):
    """Intervals on both sides of zero, and on each."""

    trials = 6
    kind: type[CurveHull] = SigmoidHull

    def block_type(self) -> BlockType:
        return self.kind(LOWER, UPPER)

    def test_values_are_those_of_minimised_functions(self) -> None:
        kind = self.block_type()
        for cost in self.costs(3):
            value = kind.min_oracle(cost)[1]
            for i, b in self.everyone:
                of_z, of_value = cost[i, b].tolist()

                def total(z: float, of_z: float = of_z, of_value: float = of_value) -> float:
                    return of_z * z + of_value * float(TRUE[self.kind.curve.name](z))

                grid = np.linspace(LOWER[b], UPPER[b], 30)
                values = [total(z) for z in grid]
                at = int(np.argmin(values))
                ends = grid[max(at - 1, 0)], grid[min(at + 1, 29)]
                found = minimize_scalar(total, bounds=ends, method="bounded", options={"xatol": 1e-9})
                assert float(value[i, b]) == pytest.approx(min(*values, found.fun), abs=1e-9)

    def test_points_are_on_the_graph(self) -> None:
        for cost in self.costs(3):
            point = self.block_type().min_oracle(cost)[0]
            torch.testing.assert_close(point[..., 1], self.kind.curve.value(point[..., 0]))

    def test_stated_errors_cover_those_of_float32(self) -> None:
        kind = self.block_type()
        narrow = kind.to(torch.float32, torch.device("cpu"))
        for cost in self.hard_costs(6, torch.float32):
            value, error = narrow.min_oracle(cost)[1].double(), narrow.value_error(cost).double()  # type: ignore[attr-defined]
            exact = kind.min_oracle(cost.double())[1]
            assert bool((value <= exact + 1e-12 * exact.abs()).all()) and bool((exact - value <= error).all())


class TestGeluHull(TestSigmoidHull):
    kind = GeluHull


class TestSignHull(BlockTypeConformance):
    """Values are those of the best corner: an end, or one of the ends of the graph at zero."""

    trials = 6

    def block_type(self) -> BlockType:
        return SignHull([-3.0, 0.5, 0.0], [2.0, 1.5, 2.0])

    def test_values_are_those_of_corners(self) -> None:
        corners = [[(-3, -1), (0, -1), (0, 1), (2, 1)], [(0.5, 1), (1.5, 1)], [(0, 0), (0, 1), (2, 1)]]
        for cost in self.costs(3):
            value = self.block_type().min_oracle(cost)[1]
            for i, b in self.everyone:
                of_z, of_value = cost[i, b].tolist()
                assert float(value[i, b]) == pytest.approx(min(of_z * z + of_value * y for z, y in corners[b]), abs=1e-12)


def test_types_are_found_by_the_name_of_their_curve() -> None:
    assert hull("tanh") is TanhHull and len({hull(name) for name in TRUE}) == len(TRUE)


@pytest.mark.parametrize("method", ["admm", "proxfw"])
def test_the_engine_finds_the_least_sum_on_a_line(method: str) -> None:
    """Two sigmoids whose arguments have sum zero; the least value over their hulls is that of two envelopes, by sampling."""
    m = bl.Model()
    z = m.variable("z", 2, lower=-4, upper=4)
    y = m.variable("y", 2, lower=0, upper=1)
    m.add(SigmoidHull([-4.0, -4.0], [4.0, 4.0]), scope=[z, y])
    m.add(Knapsack([1.0, 1.0], 0.0, -4.0, 4.0, least=0.0), scope=z.reshape(1, -1))
    m.minimize(y[0] + 3 * y[1] + 0.1 * z[0])
    solution = m.solve(method=method, passes=500, tol=1e-3)
    grid = np.linspace(-4, 4, 4001)
    envelope = lower_envelope(grid)
    truth = float(np.min(envelope + 3 * envelope[::-1] + 0.1 * grid))
    assert solution.bound.item() <= truth + 1e-6
    assert solution.bound.item() == pytest.approx(truth, abs=5e-3)


def lower_envelope(grid: np.ndarray) -> np.ndarray:
    """The convex envelope of the logistic function on a grid, by the hull of its points."""
    values = 1 / (1 + np.exp(-grid))
    kept: list[int] = []
    for k in range(len(grid)):
        while len(kept) > 1:
            i, j = kept[-2:]
            if (values[j] - values[i]) * (grid[k] - grid[i]) < (values[k] - values[i]) * (grid[j] - grid[i]):
                break
            kept.pop()
        kept.append(k)
    return np.asarray(np.interp(grid, grid[kept], values[kept]))


def test_wrong_bounds_are_refused() -> None:
    with pytest.raises(ModelError, match="SigmoidHull: a lower bound is above"):
        SigmoidHull([1.0], [0.0])
    with pytest.raises(ShapeError, match="do not fit together"):
        SigmoidHull([0.0, 0.0], [1.0])
