"""Polyak's steps: what they promise at the true level, levels, scale, and the lead over tuned step lengths."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.oracles import AtMostOne, Edge, Pairwise, Triangle


def triangles(batch: int = 1, factor: float = 1.0) -> bl.Model:
    """QUBOs with normal costs: an edge block for each pair, and a block for each triangle."""
    graph = nx.gnp_random_graph(16, 0.4, seed=1)
    number = {tuple(sorted(e)): k for k, e in enumerate(graph.edges)}
    pairs = np.array(list(number))
    ends = np.array([sorted(t) for t in nx.enumerate_all_cliques(graph) if len(t) == 3])
    products = np.array([[number[a, b], number[a, c], number[b, c]] for a, b, c in ends.tolist()])
    draw = np.random.default_rng(2)
    m = bl.Model(batch)
    y, z = m.variable("y", 16, lower=0, upper=1), m.variable("z", len(pairs), lower=0, upper=1)
    m.add(Edge(), [y[pairs[:, 0]], y[pairs[:, 1]], z])
    m.add(Triangle(), [*(y[ends[:, k]] for k in range(3)), *(z[products[:, k]] for k in range(3))])
    m.minimize(factor * draw.normal(size=(batch, 16)) @ y + factor * draw.normal(size=(batch, len(pairs))) @ z)
    return m


def labelling() -> bl.Model:
    """A Markov random field on a grid, three labels."""
    draw = np.random.default_rng(0)
    edges = np.array(nx.convert_node_labels_to_integers(nx.grid_2d_graph(8, 8)).edges)
    m = bl.Model()
    x = m.variable("x", (64, 3), lower=0, upper=1)
    z = m.variable("z", (len(edges), 9), lower=0, upper=1)
    m.add(Pairwise(3, 3), [*(x[edges[:, end], k] for end in (0, 1) for k in range(3)), *(z[:, k] for k in range(9))])
    m.minimize((draw.normal(size=(64, 3)) * x).sum() + (draw.normal(size=(len(edges), 9)) * z).sum())
    return m


def cliques() -> bl.Model:
    """Weighted packing with blocks of four."""
    draw = np.random.default_rng(3)
    m = bl.Model()
    x = m.variable("x", 60, lower=0, upper=1)
    m.add(AtMostOne(4), x[np.stack([draw.permutation(60)[:4] for _ in range(90)])])
    m.maximize(draw.random(60) @ x)
    return m


def test_a_step_to_the_true_value_comes_closer_to_every_maximiser() -> None:
    p = triangles().compile().decomposition()
    best = triangles().solve(tol=1e-11, method="pdhg", passes=20000, feasibility_tol=1e-11)
    truth = reference(triangles()).objective - p.offset
    optimal = torch.cat([best.state.duals[g.name].transpose(1, 2).flatten(1) for g in p.groups], 1)
    assert p.value(optimal).item() == pytest.approx(truth.item(), abs=1e-8)
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        duals = p.recentred(torch.randn(1, p.copies, generator=draw, dtype=torch.float64))
        begun = bl.methods.Polyak().start(Plan(p), duals, None)
        far = torch.full_like(truth, torch.inf)  # no limit to the step
        state = bl.methods.Polyak().step(Plan(p), replace(begun, rise=truth - begun.value, longest=far))
        before, after = ((d - optimal).square().sum() for d in (duals, state.duals))
        step = (truth - begun.value).square() / begun.direction.square().sum()
        assert after <= before - step + 1e-6


def test_levels_and_values_are_what_they_say() -> None:
    p = triangles(3).compile().decomposition()
    state = bl.methods.Polyak().start(Plan(p), p.to_dual(p.cost), None)
    seen: set[str] = set()
    for _ in range(300):
        after = bl.methods.Polyak().step(Plan(p), state)
        assert torch.allclose(p.value(after.duals), after.value, rtol=1e-12)
        assert torch.allclose(p.value(after.best_duals), after.best, rtol=1e-12)
        assert torch.allclose(p.collect(after.duals), p.cost, atol=1e-11)
        assert bool((after.best >= state.best).all()) and bool((after.value <= after.best).all())
        for i in range(3):
            if after.rise[i] == state.rise[i]:
                seen.add("kept")
            elif after.rise[i] < state.rise[i]:
                seen.add("lowered")
                assert after.best[i] < state.record[i] + 0.25 * state.rise[i]
                assert torch.equal(after.duals[i], after.best_duals[i]) and after.record[i] == after.best[i]
            else:
                assert after.best[i] >= state.record[i] + 0.4 * state.rise[i]
        state = after
    assert seen >= {"kept", "lowered"}


def test_a_level_that_is_too_low_grows() -> None:
    p = triangles().compile().decomposition()
    cold = bl.methods.Polyak().start(Plan(p), p.to_dual(p.cost), None)
    state = bl.methods.Polyak().start(Plan(p), p.to_dual(p.cost), 1e-9 * cold.eta)
    for _ in range(60):
        state = bl.methods.Polyak().step(Plan(p), state)
    assert state.rise.item() > 1e3 * 1e-9 * cold.rise.item()


def test_the_scale_of_the_costs_changes_nothing() -> None:
    """Powers of two scale all numbers exactly."""
    plain, scaled = (triangles(2, factor).solve(method="polyak", passes=200, tol=0) for factor in (1.0, 2.0**-20))
    assert torch.equal(plain.bound, scaled.bound * 2.0**20)
    for key, duals in plain.state.duals.items():
        assert torch.equal(duals, scaled.state.duals[key] * 2.0**20)


def test_instances_do_not_depend_on_the_batch() -> None:
    p = triangles(3).compile().decomposition()
    whole = bl.methods.Polyak().start(Plan(p), p.to_dual(p.cost), None)
    rows = torch.tensor([2])
    q = p.select(rows)
    alone = bl.methods.Polyak().start(Plan(q), q.to_dual(q.cost), None)
    for k in range(150):
        whole, alone = bl.methods.Polyak().step(Plan(p), whole), bl.methods.Polyak().step(Plan(q), alone)
        if k == 70:
            alone = whole.select(rows)
    assert torch.equal(whole.duals[2], alone.duals[0]) and torch.equal(whole.points[2], alone.points[0])


@pytest.mark.parametrize("model", [triangles(), labelling(), cliques()])
def test_it_leads_before_step_lengths_that_fall_by_rule(model: bl.Model) -> None:
    truth = reference(model).objective.item()
    errors = {m: abs(truth - model.solve(method=m, passes=300, tol=0).bound.item()) for m in ("polyak", "supergradient")}
    assert errors["polyak"] < 0.5 * errors["supergradient"], errors


def test_a_warm_start_goes_on_at_its_level() -> None:
    solver = labelling().compile()
    truth = reference(labelling()).objective.item()
    first = solver.solve(method="polyak", passes=300, tol=0)
    again = solver.solve(method="polyak", passes=300, tol=0, warm_start=first.state)
    assert again.bound.item() >= first.bound.item() - 1e-12
    assert truth - again.bound.item() < 0.7 * (truth - first.bound.item())


def test_an_infeasible_instance_is_proved_so_and_agreement_at_the_start_is_optimal() -> None:
    m = bl.Model(2)
    x = m.variable("x", 4, lower=torch.tensor([[0.0, 0, 0, 0], [1.0, 1, 0, 0]]), upper=1)
    m.add(AtMostOne(3), x[torch.tensor([[0, 2, 3], [1, 2, 3]])])
    m.add(AtMostOne(2), x[:2])
    m.minimize(-(x.sum()))
    solved = m.solve(method="polyak", tol=1e-4)
    assert solved.status[1] == bl.Status.INFEASIBLE
    assert solved.bound[0].item() == pytest.approx(reference(m, instance=0).objective.item(), abs=1e-4)
    m.minimize(x.sum())
    solved = m.solve(method="polyak")
    assert solved.status[0] == bl.Status.OPTIMAL
