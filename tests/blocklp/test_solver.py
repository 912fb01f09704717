"""Batches, warm starts, limits, callbacks and precision."""

from __future__ import annotations

import math
import time

import networkx as nx
import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne, Edge, Triangle
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


def qubo(n: int, seed: int, degree: int = 4) -> Qubo:
    rng = np.random.default_rng(seed)
    edges = np.array(nx.barabasi_albert_graph(n, degree, seed=seed).edges())
    weights = rng.random(n)
    return Qubo.from_terms(-weights, edges, np.maximum(weights[edges[:, 0]], weights[edges[:, 1]]))


def one_graph(batch: int) -> tuple[bl.Model, bl.Variable, torch.Tensor]:
    """One graph with a cost vector for each instance."""
    q = qubo(30, 1)
    m = bl.Model(batch)
    y, z = m.variable("y", q.n, lower=0, upper=1), m.variable("z", len(q.edges), lower=0, upper=1)
    m.add(Edge(), [y[q.edges[:, 0]], y[q.edges[:, 1]], z], name="pairs")
    costs = -torch.rand(batch, q.n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    m.minimize(costs @ y + torch.tensor(q.quadratic) @ z)
    return m, y, costs


@pytest.mark.parametrize("method", list(bl.methods.METHODS))
def test_different_graphs_of_one_size_give_what_single_runs_give_bit_for_bit(method: str) -> None:
    models = [roof_duality_model(qubo(30, seed)) for seed in range(4)]
    together = bl.compile(models).solve(method=method, passes=120, tol=1e-5)
    for i, m in enumerate(models):
        alone = m.solve(method=method, passes=120, tol=1e-5)
        mine = together.instance(i)
        assert mine.status == alone.status
        assert mine.passes.item() == alone.passes.item()
        assert mine.bound.item() == alone.bound.item()
        assert torch.equal(mine.state.duals["Edge"], alone.state.duals["Edge"])


def test_a_ragged_batch_gives_what_single_runs_give_within_the_tolerance() -> None:
    models = [roof_duality_model(qubo(n, n)) for n in (8, 30, 17, 60)]
    together = bl.compile(models).solve(tol=1e-6)
    for i, m in enumerate(models):
        alone, mine, truth = m.solve(tol=1e-6), together.instance(i), reference(m).objective.item()
        assert mine.status == alone.status == (bl.Status.OPTIMAL,)
        for bound in (mine.bound.item(), alone.bound.item()):
            assert truth - 2e-6 * max(1, abs(truth)) <= bound <= truth + 1e-9
        assert mine.x["y"].shape == alone.x["y"].shape
        assert mine.state.duals["Edge"].shape == alone.state.duals["Edge"].shape
        warm = m.solve(passes=1, warm_start=mine.state)
        assert warm.bound.item() >= mine.bound.item() - 1e-9


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_shared_graph_with_many_costs_gives_what_single_runs_give(dtype: torch.dtype) -> None:
    m, _, costs = one_graph(6)
    truth = reference(m).objective
    solution = m.solve(tol=1e-5, dtype=dtype)
    assert set(solution.status) == {bl.Status.OPTIMAL}
    assert bool((solution.bound <= truth + 1e-9).all())
    assert torch.allclose(solution.bound, truth, rtol=3e-5)


def test_the_same_run_twice_is_the_same_bit_for_bit() -> None:
    m, _, _ = one_graph(5)
    first, second = (m.compile().solve(passes=200, tol=0) for _ in range(2))
    assert torch.equal(first.bound, second.bound)
    assert torch.equal(first.state.duals["pairs"], second.state.duals["pairs"])


def test_each_instance_has_its_own_tolerance_cutoff_and_status() -> None:
    models = [roof_duality_model(qubo(30, seed)) for seed in range(3)]
    cutoff = torch.tensor([reference(models[0]).objective.item() * 1.2, math.inf, math.inf])
    solution = bl.compile(models).solve(cutoff=cutoff, tol=torch.tensor([1e-9, 0.3, 1e-9]), passes=60)
    assert solution.status[:2] == (bl.Status.CUTOFF, bl.Status.OPTIMAL)
    assert solution.bound[0] >= cutoff[0]
    assert solution.passes[0] < solution.passes[2] and solution.passes[1] < solution.passes[2]
    assert solution.gap[1] <= 0.3


def test_fixings_are_data_of_a_solve() -> None:
    m, y, costs = one_graph(4)
    solver = m.compile()
    free = solver.solve(tol=1e-6)
    low, high = torch.zeros(4, 30), torch.ones(4, 30)
    low[1, 3] = 1
    high[2, :5] = 0
    low[3, 2], high[3, 9] = 1, 0
    fixed = solver.solve(bounds={y: (low, high)}, tol=1e-6, warm_start=free.state)
    for i in range(4):
        child = bl.Model()
        q = qubo(30, 1)
        u = child.variable("y", 30, lower=low[i], upper=high[i])
        v = child.variable("z", len(q.edges), lower=0, upper=1)
        child.add(Edge(), [u[q.edges[:, 0]], u[q.edges[:, 1]], v])
        child.minimize(costs[i] @ u + torch.tensor(q.quadratic) @ v)
        optimum = reference(child).objective.item()
        assert fixed.bound[i].item() <= optimum + 1e-9
        assert fixed.bound[i].item() == pytest.approx(optimum, rel=2e-6)
        assert fixed.bound[i].item() >= free.bound[i].item() - 1e-5
    with pytest.raises(ModelError, match="no value"):
        solver.solve(bounds={y[[3]]: (2.0, 1.0)})


def test_a_warm_start_begins_where_the_last_run_ended() -> None:
    m, _, _ = one_graph(3)
    solver = m.compile()
    first = solver.solve(passes=100, tol=0)
    again = solver.solve(passes=1, tol=0, warm_start=first.state)
    assert bool((again.bound >= first.bound - 1e-9).all())
    picked = solver.solve(passes=1, warm_start=bl.State.concatenate([first.state.select([0, 1]), first.state.select([2])]))
    assert torch.allclose(picked.bound, again.bound, rtol=1e-12)
    repeated = first.state.repeat(2)
    assert repeated.batch == 6 and torch.equal(repeated.eta[0], repeated.eta[1])
    with pytest.raises(ShapeError, match="select, repeat or concatenate"):
        solver.solve(warm_start=repeated)


def test_added_blocks_start_with_no_share_and_only_raise_the_bound() -> None:
    rng = np.random.default_rng(3)
    cost, product_cost = rng.standard_normal(3), np.array([-1.0, 1.0, 1.0]) * 3

    def model(triangles: bool) -> bl.Model:
        m = bl.Model()
        y, z = m.variable("y", 3, lower=0, upper=1), m.variable("z", 3, lower=0, upper=1)
        m.add(Edge(), [y[[0, 0, 1]], y[[1, 2, 2]], z], name="pairs")
        if triangles:
            m.add(Triangle(), [y[[0]], y[[1]], y[[2]], z[[0]], z[[1]], z[[2]]], name="triangles")
        m.minimize(cost @ y + product_cost @ z)
        return m

    loose = model(False).solve(tol=1e-9)
    tight = model(True)
    started = tight.solve(passes=1, warm_start=loose.state)
    assert started.bound.item() >= loose.bound.item() - 1e-9
    finished = tight.solve(tol=1e-7, warm_start=loose.state)
    assert finished.bound.item() == pytest.approx(reference(tight).objective.item(), abs=1e-5)


def test_the_multipliers_sum_to_the_cost() -> None:
    m, y, costs = one_graph(2)
    solution = m.solve(passes=50, tol=0)
    duals, scope = solution.duals["pairs"], m.blocks[0].scope
    total = torch.zeros(2, m.size, dtype=torch.float64)
    total.scatter_add_(1, scope.reshape(1, -1).expand(2, -1), duals.reshape(2, -1))
    assert torch.allclose(total[:, y.columns], costs, atol=1e-12)


def test_limits_return_the_best_so_far() -> None:
    m, _, _ = one_graph(2)
    limited = m.solve(passes=30, tol=0)
    assert limited.status == (bl.Status.PASS_LIMIT,) * 2
    # One more pass certifies the multipliers that are returned.
    assert limited.passes.tolist() == [31, 31]
    began = time.process_time()
    timed = roof_duality_model(qubo(30_000, 0)).solve(passes=10**9, time_limit=0.1, tol=0)
    assert timed.status == (bl.Status.TIME_LIMIT,)
    assert time.process_time() - began < 5
    assert bool(torch.isfinite(timed.bound).all())


def test_callbacks_see_improving_bounds_and_can_stop_instances() -> None:
    m, _, _ = one_graph(3)
    events: list[bl.Event] = []

    def watch(event: bl.Event) -> torch.Tensor:
        events.append(event)
        return torch.tensor([event.passes >= 30, False, False])

    solution = m.solve(callback=watch, passes=80, tol=0, history=True)
    assert solution.status == (bl.Status.INTERRUPTED, bl.Status.PASS_LIMIT, bl.Status.PASS_LIMIT)
    assert [e.passes for e in events] == sorted(e.passes for e in events) == [e.passes for e in solution.history]
    bounds = torch.stack([e.bound for e in events])
    assert bool((bounds.diff(dim=0) >= 0).all())


@pytest.mark.parametrize("when", [1, 40])
def test_an_interrupt_keeps_the_best_bound(when: int) -> None:
    m, _, _ = one_graph(2)

    def stop(event: bl.Event) -> None:
        if event.passes >= when:
            raise KeyboardInterrupt

    solution = m.solve(callback=stop, tol=0)
    assert solution.status == (bl.Status.INTERRUPTED,) * 2
    assert bool((solution.bound <= reference(m).objective + 1e-9).all())
    assert bool(torch.isfinite(solution.bound).all())


def test_infeasible_instances_are_proved_so_and_the_others_solved() -> None:
    m = bl.Model(2)
    x = m.variable("x", 4, lower=torch.tensor([[0.0, 0, 0, 0], [1.0, 1, 0, 0]]), upper=1)
    m.add(AtMostOne(3), x[torch.tensor([[0, 2, 3], [1, 2, 3]])])
    m.add(AtMostOne(2), x[:2])
    m.minimize(-(x.sum()))
    solution = m.solve(tol=1e-6)
    assert solution.status == (bl.Status.OPTIMAL, bl.Status.INFEASIBLE)
    assert reference(m).status == ("optimal", "infeasible")


def test_one_diverging_instance_spoils_no_other() -> None:
    class Fragile(bl.BlockType):
        """Fails (NaN) for instances with large costs, after it was declared."""

        dim = 2

        def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            point = (cost < 0).to(cost)
            value = (cost * point).sum(-1)
            return point, torch.where(cost.abs().amax(-1) > 1e3, torch.nan, value)

    m = bl.Model(2)
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Fragile(), x[torch.tensor([[0, 1], [1, 2]])])
    m.minimize(torch.tensor([[-1.0, -1, 1], [-1e6, 0, 0]]) @ x)
    solution = m.solve(tol=1e-6, passes=100)
    assert solution.status == (bl.Status.OPTIMAL, bl.Status.NUMERICAL_ERROR)
    assert solution.bound[0].item() == pytest.approx(-2)


def test_models_that_do_not_fit_together_are_refused() -> None:
    a, b = roof_duality_model(qubo(10, 0)), bl.Model()
    x = b.variable("x", 2, lower=0, upper=1)
    b.minimize(x.sum())
    with pytest.raises(ModelError, match="same"):
        bl.compile([a, b])
    with pytest.raises(OptionError, match="single compiled model"):
        bl.compile([a, a]).solve(bounds={a.variables["y"]: (0, 1)})


def test_a_repair_hook_without_feasible_points_hides_nothing_and_is_told() -> None:
    m, y, _ = one_graph(2)
    without = m.solve(passes=200, tol=1e-6)
    m.repair_with(lambda x: {"y": torch.ones_like(x["y"]), "z": torch.zeros_like(x["z"])})  # violates the pairs
    solution = m.solve(passes=200, tol=1e-6)
    assert torch.allclose(solution.primal, without.primal, rtol=1e-5)
    assert bool((solution.primal >= reference(m).objective - 1e-6).all())
    assert solution.hook_failed.tolist() == [True, True]
    assert "repair hook" in solution.instance(0).message
    m.repair_with(lambda x: {"y": torch.zeros_like(x["y"]), "z": torch.zeros_like(x["z"])})
    helped = m.solve(passes=200, tol=1e-6)
    assert helped.hook_failed.tolist() == [False, False] and "hook" not in helped.instance(0).message
    assert torch.allclose(helped.primal, without.primal, rtol=1e-5)  # though the hook's point is far worse
    m.repair_with(lambda x: {"y": x["y"]})
    with pytest.raises(ModelError, match="'z'"):
        m.solve(passes=30)


def test_one_model_of_a_batch_may_have_a_repair_hook() -> None:
    models = [roof_duality_model(qubo(30, seed)) for seed in range(2)]
    models[1].repair_with(lambda x: {k: torch.full_like(v, 7.0) for k, v in x.items()})
    solution = bl.compile(models).solve(tol=1e-5)
    assert solution.hook_failed.tolist() == [False, True]
    for i, m in enumerate(models):
        assert solution.primal[i].item() == pytest.approx(reference(m).objective.item(), rel=1e-4)


def two(weights=(-1.0, -1.0)) -> tuple[bl.Model, bl.language.View]:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    m.add(AtMostOne(2), x[[[0, 1]]])
    m.minimize(np.array(weights) @ x)
    return m, x


def test_another_objective_after_compiling_counts() -> None:
    m, x = two()
    solver = m.compile()
    assert float(solver.solve(tol=1e-9).bound) == pytest.approx(-1)
    m.minimize(np.array([-5.0, -1.0]) @ x)
    assert float(solver.solve(tol=1e-9).bound) == pytest.approx(-5)
    solver.decomposition().cost.mul_(3)  # a copy
    assert float(solver.solve(tol=1e-9).bound) == pytest.approx(-5)


def test_a_model_that_has_grown_is_compiled_again() -> None:
    m, _ = two()
    solver = m.compile()
    solver.solve()
    m.variable("more", 3, lower=0, upper=1)
    with pytest.raises(ModelError, match="compile it again"):
        solver.solve()


def test_types_are_not_asked_for_the_data_of_no_instance() -> None:
    class Scaled(AtMostOne):
        block_data = ("factor",)
        factor = torch.ones(2, 1, dtype=torch.float64)

        def select(self, rows):
            chosen = super().select(rows)
            assert len(chosen.factor) > 0
            return chosen

    m = bl.Model(batch=2)
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Scaled(2), x[[[0, 1], [1, 2]]])
    m.minimize(-x.sum())
    for method in ("admm", "prox"):
        assert m.solve(method=method, tol=1e-6).status == (bl.Status.OPTIMAL,) * 2


@pytest.mark.parametrize("method", ["polyak", "smooth", "pdhg", "min-marginals", "supergradient", "adam"])
def test_only_proximal_methods_give_a_weight(method: str) -> None:
    m, _ = two()
    assert bool(m.solve(method=method, passes=20).state.eta.isnan().all())


@pytest.mark.parametrize("method", [bl.methods.Prox, bl.methods.ProxBC, bl.methods.ProxFW, bl.methods.Bundle, bl.methods.Admm])
def test_a_fixed_weight_stays_after_a_warm_start(method) -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(AtMostOne(2), x[[[0, 1], [1, 2], [2, 0]]])
    m.minimize(np.array([-1.0, -1.1, -1.2]) @ x)
    before = m.solve(method="prox", passes=5, tol=0)
    assert float(m.solve(method=method(5.0), passes=5, tol=0, warm_start=before.state).state.eta) == 5.0


@pytest.mark.parametrize("method", [bl.methods.Prox, bl.methods.ProxBC, bl.methods.ProxFW, bl.methods.Bundle])
def test_a_weight_that_is_none_is_refused(method) -> None:
    with pytest.raises(OptionError, match="eta"):
        method("heavy")


@pytest.mark.parametrize("method", list(bl.methods.METHODS))
def test_deadlines_do_not_wait_for_checks(method: str) -> None:
    m, _ = two((-1.0, -1.3))
    began = time.process_time()
    m.solve(method=method, tol=0, passes=10**7, check_every=10**6, patience=10**7, time_limit=0.2)
    assert time.process_time() - began < 5
