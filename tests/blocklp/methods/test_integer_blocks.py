"""Bounds of models whose blocks are hulls of integer points: Lagrangean ones."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import eye_array, kron

import blocklp as bl
from blocklp.kernels.plan import Plan
from blocklp.methods import DantzigWolfe
from blocklp.oracles import Knapsack, Simplex

pytest.importorskip("highspy")


def assignment(loads, costs, capacity, *, integer=True, as_rows=True, lower=0):
    """Jobs to agents of limited capacity, agent after agent; each job is done once."""
    agents, jobs = loads.shape
    m = bl.Model()
    x = m.variable("x", agents * jobs, lower=lower, upper=1, integer=integer)
    scope = x[np.arange(agents * jobs).reshape(agents, jobs)]
    m.add(Knapsack(loads, capacity, integer=integer), scope=scope)
    if as_rows:
        m.add(kron(np.ones((1, agents)), eye_array(jobs)).tocsr() @ x == 1)
    else:
        m.add(Simplex(agents), scope=x[np.arange(agents * jobs).reshape(agents, jobs).T])
    m.minimize(torch.from_numpy(costs.ravel()) @ x)
    return m


def by_all_points(loads, costs, capacity):
    """Dantzig and Wolfe's reformulation with a column for every point of every knapsack."""
    agents, jobs = loads.shape
    subsets = np.array(list(itertools.product((0.0, 1.0), repeat=jobs)))
    cost, columns = [], []
    for i in range(agents):
        own = subsets[subsets @ loads[i] <= capacity[i]]
        cost += list(own @ costs[i])
        columns.append(np.concatenate([own.T, np.repeat(np.eye(agents)[:, [i]], len(own), 1)]))
    found = linprog(cost, A_eq=np.concatenate(columns, 1), b_eq=np.ones(jobs + agents))
    return found.fun if found.status == 0 else np.inf


@st.composite
def instances(draw):
    agents, jobs, seed = draw(st.integers(2, 3)), draw(st.integers(2, 6)), draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    loads, costs = rng.integers(1, 10, (agents, jobs)).astype(float), rng.integers(-9, 10, (agents, jobs)).astype(float)
    return loads, costs, np.floor(draw(st.sampled_from([0.5, 0.8, 1.2])) * loads.sum(1) / agents) + rng.integers(0, 5)


@settings(max_examples=40, deadline=None)
@given(instances(), st.booleans())
def test_bound_is_that_of_the_reformulation(made, as_rows):
    truth = by_all_points(*made)
    model = assignment(*made, as_rows=as_rows)
    if np.isinf(truth):
        found = model.solve(tol=1e-7, passes=300)
        assert found.status[0] is not bl.Status.OPTIMAL and torch.isinf(found.primal).item()
        return
    found = model.solve(tol=1e-7, passes=1000)
    assert found.status == (bl.Status.OPTIMAL,)
    assert truth - 1e-6 * (1 + abs(truth)) <= found.bound.item() <= truth + 1e-7 * (1 + abs(truth))
    assert abs(found.primal.item() - truth) <= 1e-5 * (1 + abs(truth))
    # Between the LP and the integer optimum.
    relaxed = bl.reference(assignment(*made, integer=False, as_rows=as_rows)).objective.item()
    assert found.bound.item() >= relaxed - 1e-6 * (1 + abs(relaxed))
    loads, costs, capacity = made
    rows = np.kron(np.ones((1, len(loads))), np.eye(loads.shape[1]))
    bins = np.kron(np.eye(len(loads)), np.ones((1, loads.shape[1]))) * loads.ravel()
    sides = [LinearConstraint(rows, 1, 1), LinearConstraint(bins, -np.inf, capacity)]
    best = milp(costs.ravel(), integrality=np.ones(costs.size), bounds=Bounds(0, 1), constraints=sides)
    assert best.x is None or found.bound.item() <= best.fun + 1e-7 * (1 + abs(best.fun))


def test_first_bound_is_that_of_the_linear_program():
    rng = np.random.default_rng(0)
    loads, costs = rng.integers(5, 26, (4, 40)).astype(float), rng.integers(10, 51, (4, 40)).astype(float)
    made = loads, costs, np.floor(0.8 * loads.sum(1) / 4)
    relaxed = bl.reference(assignment(*made, integer=False)).objective.item()
    first = assignment(*made).solve(passes=1, method="dantzig-wolfe").bound.item()
    assert first >= relaxed - 1e-7 * abs(relaxed)
    found = assignment(*made).solve(tol=1e-7)
    assert found.status == (bl.Status.OPTIMAL,) and found.bound.item() > relaxed + 0.5
    assert int(found.passes) < 100
    assert found.relaxation == "Lagrangean" and "Lagrangean" in repr(found) and "solve_exact" in found.message
    plain = assignment(*made, integer=False).solve(passes=1)
    assert plain.relaxation == "linear" and "Lagrangean" not in repr(plain) + plain.message
    state = bl.verify_certificate(assignment(*made), found.state)
    assert state.proves(found.bound - 1e-9 * abs(found.bound)).item() and not state.independent


def test_warm_start_goes_on_from_its_multipliers():
    rng = np.random.default_rng(1)
    loads, costs = rng.integers(5, 26, (3, 20)).astype(float), rng.integers(10, 51, (3, 20)).astype(float)
    made = loads, costs, np.floor(0.8 * loads.sum(1) / 3)
    found = assignment(*made).solve(tol=1e-7)
    again = assignment(*made).solve(tol=1e-7, warm_start=found.state)
    assert abs(again.bound.item() - found.bound.item()) <= 1e-6 and int(again.passes) < int(found.passes)


@pytest.mark.parametrize("seed", range(3))
def test_fixed_variables_pay_their_part_of_the_dual(seed):
    """The blocks leave the prices of fixings to the bounds of variables; the centre of the box counts them."""
    rng = np.random.default_rng(seed)
    loads = rng.integers(1, 101, (5, 60)).astype(float)
    made = loads, 111 - loads + rng.integers(-10, 11, (5, 60)), np.floor(0.8 * loads.sum(1) / 5)
    x = assignment(*made).solve(tol=1e-4).x["x"][0]
    model = assignment(*made, lower=(x > 1 - 1e-6).double())
    truth = model.solve(tol=1e-7).bound.item()
    problem = model.compile().decomposition()
    assert int((problem.lower == 1).sum()) >= 10
    method, plan = DantzigWolfe(), Plan(problem)
    state = method.start(plan, problem.to_dual(problem.cost), None)
    for _ in range(150):
        state = method.step(plan, state)
        (own,) = state.columns.own
        assert own.centre_value <= truth + 1e-6 * truth
        if own.ended:
            break
    assert own.ended and own.solution.value == pytest.approx(truth)
    assert method.due(state) and not method.due(method.finish(plan, state))  # once, or checks would follow on checks
