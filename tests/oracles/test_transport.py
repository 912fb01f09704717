"""Transport polytopes against scipy, in exact masses, with and without compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog

import blocklp as bl
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import Knapsack, Transport

DRAW = np.random.default_rng(0)


@pytest.fixture(params=[True, False], ids=["loops", "as written"], autouse=True)
def both(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> None:
    if not request.param:
        use_backend("torch")


def highs(cost: np.ndarray, supply: np.ndarray, demand: np.ndarray) -> float:
    n, k = cost.shape
    sent, met = np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))
    return float(linprog(cost.ravel(), A_ub=sent, b_ub=supply, A_eq=met, b_eq=demand, method="highs").fun)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_assignments(n: int) -> None:
    """Costs of either sign, with ties and zeros, of all sizes."""
    kind = Transport(np.ones(n), np.ones(n))
    cost = DRAW.normal(size=(3, 4, n, n)) * 10.0 ** DRAW.integers(-6, 7, (3, 4, 1, 1))
    cost[1] = cost[1].round()
    point, value = kind.min_oracle(torch.from_numpy(cost).flatten(2))
    for c, x, v in zip(cost.reshape(-1, n, n), point.reshape(-1, n, n), value.flatten().tolist(), strict=True):
        assert sorted(x.argmax(1).tolist()) == list(range(n)) and bool(((x == 0) | (x == 1)).all())
        truth = c[linear_sum_assignment(c)].sum()
        assert v == pytest.approx(truth, rel=1e-12, abs=1e-12 * np.abs(c).max()) and v <= truth + 1e-13 * np.abs(c).max() * n


@pytest.mark.parametrize("spare", [0.0, 0.5])
def test_masses(spare: float) -> None:
    """Whole multiples of a unit: sums of the point are the masses to the last bit, whatever their size."""
    for n, k, size in ((3, 5, 1.0), (6, 4, 1e-9), (1, 4, 1e12), (5, 1, 1.0)):
        supply, demand = DRAW.dirichlet(np.ones(n), 3) * size * (1 + spare), DRAW.dirichlet(np.ones(k), 3) * size
        kind, cost = Transport(supply, demand), DRAW.normal(size=(2, 3, n * k))
        point, value = kind.min_oracle(torch.from_numpy(cost))
        rows = kind.constraints()
        assert rows is not None
        kept = rows.upper[0].numpy()
        assert np.allclose(kept, np.concatenate([supply, demand], 1), rtol=1e-12, atol=1e-14 * size)
        for i, b in np.ndindex(2, 3):
            x = [[Fraction(v) for v in line] for line in point[i, b].view(n, k).tolist()]
            assert [sum(line) for line in zip(*x, strict=True)] == [Fraction(d) for d in kept[b, n:]]
            sent, given = [sum(line) for line in x], [Fraction(s) for s in kept[b, :n]]
            assert all(a <= s for a, s in zip(sent, given, strict=True)) and (spare > 0 or sent == given)
            truth = size * highs(cost[i, b].reshape(n, k), supply[b] / size, demand[b] / size)
            assert float(value[i, b]) == pytest.approx(truth, rel=1e-6, abs=1e-7 * size)


def test_values_are_proved() -> None:
    """Between the value and the cost of the point there is no more than value_error, and the value is the smaller one."""
    kind = Transport(DRAW.random(6), 0.1 * DRAW.random(5))
    for dtype in (torch.float64, torch.float32):
        cost = torch.from_numpy(DRAW.normal(size=(1, 50, 30)) * 2.0 ** DRAW.integers(-30, 30, (1, 50, 30))).to(dtype)
        working = kind.to(dtype, cost.device)
        value, error = working.min_oracle(cost)[1], working.value_error(cost)
        exact = kind.min_oracle(cost.double())[0]
        for b in range(50):
            paid = sum(Fraction(c) * Fraction(x) for c, x in zip(cost[0, b].tolist(), exact[0, b].tolist(), strict=True))
            assert Fraction(float(value[0, b])) <= paid <= Fraction(float(value[0, b])) + Fraction(float(error[0, b]))
        assert bool((error <= 100 * torch.finfo(dtype).eps * (cost.abs().amax(-1) * 6 + 1e-30)).all())


def test_fixings() -> None:
    """A fixed pair leaves the others; pairs that leave nothing prove that."""
    kind, cost = Transport(np.ones(3), np.ones(3)), torch.from_numpy(DRAW.normal(size=(1, 1, 9)))
    zero, one = torch.zeros(1, 1, 9, dtype=torch.float64), torch.ones(1, 1, 9, dtype=torch.float64)
    low = zero.clone()
    low[..., 4] = 1
    fixed = kind.restrict(low, one)
    assert fixed is not None
    point, value = fixed.min_oracle(cost)
    c = cost.view(3, 3)
    truth = float(c[1, 1] + min(c[0, 0] + c[2, 2], c[0, 2] + c[2, 0]))
    assert float(value) == pytest.approx(truth, rel=1e-12) and point[0, 0, 4] == 1
    high = one.clone()
    high[..., :3] = 0
    none = kind.restrict(zero, high)
    assert none is not None and float(none.min_oracle(cost)[1]) > 1e100
    assert kind.restrict(zero, 0.5 * one) is None


def test_two_assignments_with_capacities() -> None:
    """Assignments of four instances that share capacities, against HiGHS."""
    m = bl.Model(batch=2)
    x = m.variable("x", (4, 9), lower=0, upper=1)
    m.add(Transport(np.ones(3), np.ones(3)), x)
    m.add(Knapsack(np.ones(4), 1.5), x.T)
    m.minimize((torch.from_numpy(DRAW.random((2, 4, 9))) * x).sum())
    solution, truth = m.solve(tol=1e-5), bl.reference(m).objective
    assert bool((solution.bound <= truth + 1e-12).all()) and torch.allclose(solution.bound, truth, rtol=2e-5)
    assert bool((bl.verify_certificate(m, solution.state).bound <= truth).all())


def test_what_cannot_be_shipped_is_refused() -> None:
    with pytest.raises(ModelError, match=r"demands of block 1 of instance 0 add up to 2.5, its supplies to 2.0"):
        Transport([1.0, 1.0], [[1.0], [2.5]])
    with pytest.raises(ModelError, match=r"the supply at \(instance, block, number\) \(0, 0, 1\) is negative"):
        Transport([1.0, -1.0], [0.0])
    with pytest.raises(ShapeError, match="do not fit together"):
        Transport(np.ones((2, 3)), np.ones((3, 3)))
    nearly = Transport([0.1, 0.2], [0.3])  # 0.1 + 0.2 is 0.30000000000000004, or less than 0.3 elsewhere
    assert float(nearly.min_oracle(torch.ones(1, 1, 2, dtype=torch.float64))[0].sum()) == pytest.approx(0.3, rel=1e-14)
    assert Transport([0.3], [0.1, 0.2]).dim == 2
