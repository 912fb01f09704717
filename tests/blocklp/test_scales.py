"""No scale of costs, of variables or of rows is better than another."""

from fractions import Fraction

import pytest
import torch

import blocklp as bl
from blocklp.blocks.contract import Constraints
from blocklp.oracles import Edge, Knapsack

METHODS = ["admm", "pdhg", "prox", "bundle", "polyak", "adam", "supergradient"]
EXACT = 2.0**27
"""A power of two changes no digit."""


class Choice(bl.BlockType):
    """Points that sum to a number, of which only the row's scale may differ."""

    dim = 4

    def __init__(self, total: float = 1.0, row: float = 1.0) -> None:
        self.total, self.row = total, row

    def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        point = torch.nn.functional.one_hot(cost.argmin(-1), 4).to(cost) * self.total
        return point, (cost * point).sum(-1)

    def value_error(self, cost: torch.Tensor) -> torch.Tensor:
        return 8 * torch.finfo(cost.dtype).eps * cost.abs().amax(-1) * self.total

    def constraints(self) -> Constraints:
        return Constraints.rows(torch.full((1, 4), self.row), [self.row * self.total], [self.row * self.total])


def choices(costs: float = 1.0, units: float = 1.0, rows: float = 1.0) -> bl.Model:
    draw = torch.Generator().manual_seed(3)
    cost = 10 + 40 * torch.rand(8, 4, generator=draw, dtype=torch.float64)
    size = torch.randint(5, 25, (4, 8), generator=draw).double()
    m = bl.Model()
    x = m.variable("x", (8, 4), lower=0, upper=units)
    m.add(Choice(units, rows), x)
    m.add(Knapsack(size * rows, size.sum(1) / 4 * units * rows, 0, torch.tensor(units, dtype=torch.float64)), x.T)
    m.minimize(costs * (cost * x).sum())
    return m


def graph(costs: float = 1.0) -> bl.Model:
    draw = torch.Generator().manual_seed(5)
    a, b = torch.triu_indices(10, 10, 1)
    m = bl.Model()
    y, z = m.variable("y", 10, lower=0, upper=1), m.variable("z", len(a), lower=0, upper=1)
    m.add(Edge(), [y[a], y[b], z])
    linear, pairs = (torch.randn(n, generator=draw, dtype=torch.float64) for n in (10, len(a)))
    m.minimize(costs * (3 * linear @ y + pairs @ z))
    return m


def outcome(solution: bl.Solution) -> tuple[bl.Status, int, float]:
    return solution.status[0], int(solution.passes), float(solution.gap)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
def test_powers_of_two_change_neither_status_nor_gap_nor_passes(method: str, dtype: torch.dtype) -> None:
    known = outcome(choices().solve(method=method, dtype=dtype, passes=60))
    for scale in (EXACT, 1 / EXACT):
        for scaled in (choices(costs=scale), choices(units=scale), choices(rows=scale)):
            assert outcome(scaled.solve(method=method, dtype=dtype, passes=60)) == known
    known = outcome(graph().solve(method=method, dtype=dtype, passes=30))
    for scale in (EXACT, 1 / EXACT):
        assert outcome(graph(scale).solve(method=method, dtype=dtype, passes=30)) == known


@pytest.mark.parametrize("scale", [1e-8, 1e-5, 1e8])
def test_an_optimal_status_means_a_gap_relative_to_the_value_at_any_scale(scale: float) -> None:
    truth = choices().solve(method="pdhg", tol=1e-10)
    for made, unit in ((choices(costs=scale), scale), (choices(units=scale), scale), (choices(rows=scale), 1.0)):
        found = made.solve(tol=1e-5)
        assert found.status == (bl.Status.OPTIMAL,)
        assert abs(float(found.bound) / unit - float(truth.bound)) <= 2e-5 * abs(float(truth.bound))
        assert float(found.gap) <= 1e-5


def test_optimal_points_may_not_lie_below_the_bound_by_more_than_the_tolerance() -> None:
    # Columns of different units: a violation that is small beside the largest entry is not small in its own row.
    draw = torch.Generator().manual_seed(1)
    units = 10.0 ** torch.arange(2).repeat(6).double()
    inside = 0.3 + 0.4 * torch.rand(12, generator=draw, dtype=torch.float64)  # a point of all tables
    optimal = 0
    for _ in range(3):
        m = bl.Model()
        x = m.variable("x", 12, lower=0, upper=units)
        for k in range(8):
            scope = torch.randperm(12, generator=draw)[:4]
            away = 0.5 * torch.rand(6, 4, generator=draw, dtype=torch.float64) - 0.25
            m.add(_Table((inside[scope] + away - away.mean(0)) * units[scope]), x[scope], name=f"table {k}")
        m.minimize((torch.randn(12, generator=draw, dtype=torch.float64) / units) @ x)
        truth = float(bl.reference(m).objective)
        for method, dtype, tol in (("pdhg", torch.float64, 1e-3), ("pdhg", torch.float32, 1e-2)):
            found = m.solve(method=method, dtype=dtype, tol=tol, passes=1000)
            assert float(found.bound) <= truth + 1e-9 * abs(truth)
            if found.status == (bl.Status.OPTIMAL,):
                optimal += 1
                scale = max(abs(float(found.primal)), abs(float(found.bound)), float(found.floor))
                assert abs(float(found.primal) - float(found.bound)) <= tol * scale
                assert abs(float(found.primal) - truth) <= 2 * tol * scale
    assert optimal >= 4


class _Table(bl.FiniteVertices):
    def __init__(self, vertices: torch.Tensor) -> None:
        self.vertices = vertices
        super().__init__()


def test_marginals_of_any_size_are_met_relative_to_themselves() -> None:
    total = 1e-8
    m = bl.Model()
    x = m.variable("x", (4, 4), lower=0, upper=1)
    m.add(Choice(total), x)
    m.add(Choice(total), x.T, name="columns")
    draw = torch.Generator().manual_seed(0)
    m.minimize((torch.rand(4, 4, generator=draw, dtype=torch.float64) * x).sum())
    found = m.solve(tol=1e-5)
    assert found.status == (bl.Status.OPTIMAL,)
    sums = found.x[x][0].sum(0) / total
    assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)


@pytest.mark.parametrize("constant", [-1e20, 1e20, 12345.678, 2.0**60, -0.1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_bounds_pay_for_the_rounding_of_the_constant(constant: float, dtype: torch.dtype) -> None:
    for sense in ("minimize", "maximize"):
        m = bl.Model()
        x, y, z = (m.variable(name, 1, lower=0, upper=1) for name in "xyz")
        m.add(Edge(), [x, y, z])
        sign = 1 if sense == "minimize" else -1
        getattr(m, sense)(sign * (-3.0 * x.sum() + constant))
        found = m.solve(dtype=dtype, passes=30)
        optimum = Fraction(sign) * (Fraction(-3) + Fraction(constant))
        for bound in (found.bound, found.safe_bound):
            assert sign * Fraction(float(bound)) <= sign * optimum


def test_a_run_that_still_moves_is_not_stalled_and_one_that_is_still_is() -> None:
    m = graph()
    moving = m.solve(method="supergradient", tol=1e-12, patience=10, passes=200)
    assert moving.status == (bl.Status.PASS_LIMIT,) and int(moving.passes) >= 200
    still = m.solve(method=bl.methods.Supergradient(rate=1e-30), patience=40, passes=2000)  # steps that change no digit
    assert still.status == (bl.Status.STALLED,) and int(still.passes) < 200
    assert "method=" in still.message
