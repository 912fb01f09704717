"""ProxBC and ProxFW: when the inner loop is left, and weights that nobody tunes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from bench import families
from bench.instances import ba, er
from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.row_sums import dot
from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.methods.proximal_weight import Fixed, InexactRule, SeriousStepRule
from blocklp.oracles import AtMostOne
from blocklp.problems.qpbo.relaxation import roof_duality_model

ALGORITHMS = [bl.methods.ProxBC, bl.methods.ProxFW]


def graphs() -> list[bl.Model]:
    """Weighted independent sets, sparse, dense and of one size."""
    return [roof_duality_model(q) for q in (ba(40, 0), ba(40, 1), ba(40, 2))]


def small_models() -> dict[str, list[bl.Model]]:
    return {
        "assignment": [families.assignment(0, 4, 20)],
        "cliques": [families.cliques(0, 40)],
        "triangles": [families.triangles(0, 20)],
        "polytopes": [families.polytopes(0, 4, 50, 100)],
        "MRF": [families.grid(0, 6, 3)],
        "BA": graphs(),
        "ER, p = 0.4": [roof_duality_model(er(40, 0.4, 0))],
    }


def errors(models: list[bl.Model], method: Any, marks: tuple[int, ...]) -> list[float]:
    """Mean relative errors in percent of the best bound after some passes, from what HiGHS says."""
    solver = bl.compile(models)
    truth = torch.cat([reference(m).objective for m in models])
    sign = -1 if solver.sense.maximizing else 1
    history = solver.solve(method=method, passes=marks[-1], tol=0, patience=10**6, check_every=10, history=True).history
    bounds = [[e.bound for e in history if e.passes <= k][-1] for k in marks]
    return [float((sign * (truth - b) / truth.abs()).mean()) * 100 for b in bounds]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["assignment", "cliques", "triangles", "polytopes", "MRF", "BA", "ER, p = 0.4"])
def test_without_settings_they_keep_up_with_polyak_and_do_not_freeze(family: str) -> None:
    models, marks = small_models()[family], (100, 300, 1000)
    baseline = errors(models, "polyak", marks[:2])
    for method in ALGORITHMS:
        found = errors(models, method(), marks)
        assert found[1] <= max(2 * baseline[1], 0.01), (method, found, baseline)
        for before, after in pairwise(found):
            assert -1e-8 <= after <= max(0.8 * before, 1e-6), (method, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_default_weights_stay_in_reach(method: Any, dtype: torch.dtype) -> None:
    """Long after the optimum rounding alone decides, and must not drive the weight away."""
    solver = bl.compile(graphs(), dtype=dtype)
    first = solver.solve(method=method(), passes=2, tol=0).state.eta
    last = solver.solve(method=method(), passes=2000, tol=0, patience=10**6).state.eta
    assert bool((last < 1e3 * first).all()) and bool((last > 1e-3 * first).all())


def pass_by_pass(problem: Decomposition, method: bl.methods.ProxBC, passes: int) -> list[tuple[bool, bool, int]]:
    """For each pass and instance: whether the centre moved, whether the criterion held, steps on the problem so far."""
    state, seen = method.start(Plan(problem), problem.to_dual(problem.cost), None), []
    for _ in range(passes):
        apart = problem.disagreement(state.points)
        duals = state.centre + apart / state.eta[:, None]
        answer, _ = problem.min_oracle(duals)
        holds = dot(duals, state.points - answer) <= dot(apart, apart) / state.eta
        steps, earlier = state.inner + 1, state.centre.clone()
        state = method.step(Plan(problem), state)
        moved = (state.centre != earlier).any(1)
        assert torch.equal(state.centre[moved], state.duals[moved])
        seen += list(zip(moved.tolist(), holds.tolist(), steps.long().tolist(), strict=True))
    return seen


@pytest.mark.parametrize("inner", [2, 5, None])
@pytest.mark.parametrize("eta", [None, 0.3, 30.0])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_the_inner_loop_is_left_exactly_where_the_criterion_holds(method: Any, eta: float | None, inner: int | None) -> None:
    problem = bl.compile(graphs()).decomposition()
    seen = pass_by_pass(problem, method(eta, inner=inner), 60)
    for moved, holds, steps in seen:
        assert moved == (holds or steps == inner)
        assert inner is None or steps <= inner
    if inner is None:
        assert {moved for moved, *_ in seen} == {False, True}


@pytest.mark.parametrize("method", ALGORITHMS)
def test_without_a_cap_every_centre_raises_the_dual_value(method: Any) -> None:
    problem = bl.compile(graphs()).decomposition()
    algorithm = method(0.5, inner=None)
    state, values = algorithm.start(Plan(problem), problem.to_dual(problem.cost), None), []
    for _ in range(300):
        state = algorithm.step(Plan(problem), state)
        values.append(state.centre_value)
    assert bool((torch.stack(values).diff(dim=0) >= -1e-12).all())
    assert bool((values[-1] > values[0] + 0.1).all())


@pytest.mark.parametrize("inner", [2, 20, None])
@pytest.mark.parametrize("method", ALGORITHMS)
def test_any_number_of_inner_steps_that_is_taken_works(method: Any, inner: int | None) -> None:
    found = errors(graphs(), method(inner=inner), (30, 300, 1000))
    assert found[1] < 0.3 * found[0] and found[2] < 0.5 * found[1] and found[2] < 0.2, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [bl.methods.ProxBC, bl.methods.ProxFW, bl.methods.Prox, bl.methods.Bundle, bl.methods.Admm])
def test_weights_of_instances_give_what_each_gives_alone(method: Any, dtype: torch.dtype) -> None:
    passes = 12 if method is bl.methods.Bundle else 60
    models, weights = graphs(), torch.tensor([0.3, 4.0, 1.7], dtype=torch.float64)
    together = bl.compile(models, dtype=dtype).solve(method=method(weights), passes=passes, tol=0)
    assert torch.equal(together.state.eta, weights.to(dtype).double())
    for i, m in enumerate(models):
        alone = m.solve(method=method(float(weights[i])), passes=passes, tol=0, dtype=dtype)
        assert torch.equal(alone.raw_x[0], together.raw_x[i, : m.size])
        own = together.instance(i).state.duals
        assert all(torch.allclose(v, own[k], rtol=1e-12, atol=1e-14) for k, v in alone.state.duals.items())


def test_weights_follow_instances_that_are_reordered_or_leave() -> None:
    """A star, a ring and pairs share other coordinates, so that the engine solves them in parts; some of them are done early."""
    models = []
    for pairs in ([(0, k) for k in range(1, 5)], [(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 1), (1, 2), (2, 3), (3, 0)]) * 2:
        m = bl.Model()
        x = m.variable("x", 8, lower=0, upper=1)
        m.add(AtMostOne(2), x[np.array(pairs)])
        m.minimize(-np.linspace(1, 2, 8) @ x)
        models.append(m)
    weights = np.array([0.5, 2.0, 8.0, 1.0, 4.0, 16.0])
    found = bl.compile(models).solve(method=bl.methods.ProxFW(weights), passes=80, tol=1e-3)
    assert found.state.eta.tolist() == weights.tolist()
    for i, m in enumerate(models):
        alone = m.solve(method=bl.methods.ProxFW(weights[i]), passes=80, tol=1e-3)
        assert alone.passes[0] == found.passes[i] and torch.equal(alone.raw_x[0], found.raw_x[i, : m.size])


@pytest.mark.parametrize("method", [bl.methods.ProxBC, bl.methods.ProxFW, bl.methods.Prox, bl.methods.Bundle, bl.methods.Admm])
@pytest.mark.parametrize(
    "eta",
    [0.0, -1.0, float("nan"), float("inf"), True, "1.0", object(), [], [1.0, "a"], [1.0, 0.0], [[1.0]], torch.tensor([1.0, np.nan]),
     torch.tensor([True]), torch.ones(2, 2), torch.tensor([1.0 + 1j]), {"x": 1.0}],
)  # fmt: skip
def test_weights_that_are_none_are_refused(method: Any, eta: Any) -> None:
    with pytest.raises(OptionError, match="eta"):
        method(eta)


@pytest.mark.parametrize("method", [bl.methods.ProxBC, bl.methods.ProxFW, bl.methods.Prox, bl.methods.Bundle, bl.methods.Admm])
def test_weights_for_another_batch_are_refused(method: Any) -> None:
    with pytest.raises(OptionError, match="2 weights for a batch of 3"):
        bl.compile(graphs()).solve(method=method([1.0, 2.0]))


def test_given_weights_keep_their_digits() -> None:
    assert Fixed(0.3).weights(2).tolist() == [0.3, 0.3] and Fixed((0.1, 0.7)).weights(2).tolist() == [0.1, 0.7]


def test_given_weights_are_copied_and_methods_compare() -> None:
    weights = torch.tensor([1.0, 2.0])
    method = bl.methods.ProxBC(weights)
    weights[0] = 5.0
    assert method == bl.methods.ProxBC((1.0, 2.0)) and hash(method) == hash(bl.methods.ProxBC(np.array([1.0, 2.0])))


@pytest.mark.parametrize("inner", [1, 0, -1, 2.5, True, "5"])
def test_a_number_of_steps_that_is_none_is_refused(inner: Any) -> None:
    with pytest.raises(OptionError, match="inner"):
        bl.methods.ProxBC(inner=inner)


@pytest.mark.parametrize("method", ["proxbc", "proxfw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_instance_is_solved_as_it_would_be_alone(method: str, dtype: torch.dtype) -> None:
    models = graphs()
    together = bl.compile(models, dtype=dtype).solve(method=method, passes=150, tol=1e-4)
    for i, m in enumerate(models):
        alone = m.solve(method=method, passes=150, tol=1e-4, dtype=dtype)
        assert alone.passes[0] == together.passes[i] and torch.equal(alone.raw_x[0], together.raw_x[i, : m.size])
        assert alone.state.eta[0] == together.state.eta[i]


@pytest.mark.parametrize("method", [bl.methods.Prox, bl.methods.ProxBC, bl.methods.ProxFW])
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_a_weight_that_ran_away_does_not_spoil_a_warm_start(method: Any, factor: float) -> None:
    solver = bl.compile(graphs())
    state = solver.solve(method=method(), passes=10, tol=0).state
    spoilt = bl.State(state.duals, state.eta * factor)
    truth = torch.cat([reference(m).objective for m in solver.models])
    found = solver.solve(method=method(), passes=600, tol=0, warm_start=spoilt, patience=10**6)
    assert bool((truth - found.bound <= 0.01 * truth.abs()).all())


@pytest.mark.parametrize("rule", [SeriousStepRule(), InexactRule()])
@pytest.mark.parametrize("rise", [-1.0, 0.1, 1.0, 1e6])
def test_rules_stay_in_reach_whatever_they_are_told(rule: Any, rise: float) -> None:
    """Neither falls nor rises for ever take a weight where nothing moves, or where rounding is all there is."""
    origin = torch.ones(1, dtype=torch.float64)
    eta: Tensor = origin
    for n in range(1, 3000):
        eta = rule.update(eta, origin, torch.full_like(eta, n), origin * rise, origin, 100 * origin)
    assert 1e-6 <= float(eta) <= 1e6


def test_the_default_raises_its_weight_in_proportion_at_most() -> None:
    """The lengths of the steps, one over the weight, then sum to infinity."""
    origin = torch.ones(1, dtype=torch.float64)
    eta: Tensor = origin
    for n in range(1, 20_000):
        eta = InexactRule().update(eta, origin, torch.full_like(eta, n), -origin, origin, 100 * origin)
        assert float(eta) <= 1 + n


@pytest.mark.slow
def test_the_automatic_weight_of_prox_does_not_freeze() -> None:
    """Raised in full at every centre it left 0.0002 % on this field for good."""
    found = errors([families.grid(0)], bl.methods.Prox(), (1000, 2000))
    assert found[1] < max(0.5 * found[0], 1e-6), found
