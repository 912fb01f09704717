"""The bundle method: few oracle calls, steps only where the dual rises, instances on their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.oracles import Edge, Polytope

from ..random_models import polytopes


def pairs(seed: int, n: int = 20, count: int = 50) -> bl.Model:
    """Roof duality of a random QUBO."""
    draw = np.random.default_rng(seed)
    all_pairs = np.array([(i, j) for i in range(n) for j in range(i)])
    chosen = all_pairs[draw.permutation(len(all_pairs))[:count]]
    m = bl.Model()
    y, z = m.variable("y", n, lower=0, upper=1), m.variable("z", count, lower=0, upper=1)
    m.add(Edge(), [y[chosen[:, 0]], y[chosen[:, 1]], z])
    m.minimize(draw.normal(size=n) @ y + draw.normal(size=count) @ z)
    return m


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("family", [pairs, polytopes])
def test_few_oracle_calls_reach_the_optimum(family, seed: int) -> None:
    m = family(seed)
    truth = reference(m).objective
    found = m.solve(method="bundle", tol=0, passes=60, patience=60)
    assert bool((found.bound <= truth + 1e-9).all())
    assert bool((truth - found.bound <= 1e-4 * truth.abs()).all())


def test_a_pass_is_one_oracle_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, oracle = [0], Polytope.min_oracle

    def counted(self, cost):
        calls[0] += 1
        return oracle(self, cost)

    monkeypatch.setattr(Polytope, "min_oracle", counted)
    found = []
    for passes in (10, 20):
        calls[0] = 0
        assert polytopes(0).solve(method="bundle", passes=passes, tol=0, check_every=100).passes[0] <= passes + 1
        found.append(calls[0])
    assert found[1] - found[0] == 10


def test_the_centre_moves_only_where_the_dual_rises() -> None:
    solver = pairs(1).compile()
    problem = solver.decomposition()
    method = bl.methods.Bundle()
    state = method.start(Plan(problem), problem.recentred(torch.zeros(1, problem.copies, dtype=torch.float64)), None)
    for _ in range(15):
        after = method.step(Plan(problem), state)
        torch.testing.assert_close(after.value, problem.min_oracle(after.duals)[1])
        assert bool((after.centre_value >= state.centre_value).all())
        torch.testing.assert_close(problem.collect(after.duals), problem.cost)
        state = after


def test_an_instance_does_not_depend_on_its_batch() -> None:
    models = [pairs(seed) for seed in range(7)]  # of one size, so that not even the order of sums differs
    together = bl.compile(models).solve(method="bundle", tol=1e-6, passes=30)
    for k, m in enumerate(models):
        alone = m.solve(method="bundle", tol=1e-6, passes=30)
        assert alone.bound[0] == together.bound[k] and alone.passes[0] == together.passes[k]


def test_steps_must_be_positive() -> None:
    with pytest.raises(OptionError, match="inner"):
        bl.methods.Bundle(inner=0)
