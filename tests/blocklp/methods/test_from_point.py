from dataclasses import replace

import pytest
import torch

import blocklp as bl
from blocklp.problems.learnt.families import independent_set
from blocklp.problems.qpbo.relaxation import roof_duality_model
from blocklp.results import Saddle


def solved(solver, state, tol):
    return solver.solve(method="admm", warm_start=state, tol=tol, check_every=2)


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_a_point_and_multipliers_are_all_that_a_warm_start_needs(backend):
    solver = bl.compile([roof_duality_model(independent_set(60, seed)) for seed in range(2)], backend=backend)
    best = solver.solve(method="admm", tol=1e-10)
    none = torch.full_like(best.state.eta, torch.nan)
    without = replace(best.state, eta=torch.ones_like(none))
    state = replace(without, saddle=Saddle(best.raw_x, {}, none))
    assert int(solved(solver, state, 1e-6).passes.max()) <= 4
    assert int(solved(solver, without, 1e-6).passes.max()) > 8


def test_where_a_point_is_not_known_the_answers_of_the_oracles_begin():
    solver = bl.compile([roof_duality_model(independent_set(40, seed)) for seed in range(2)])
    state = solver.solve(method="admm", passes=20).state
    x = torch.full((2, solver.decomposition().cost.shape[1]), torch.nan, dtype=torch.float64)
    known = x.clone()
    known[0] = 0.5
    partly = replace(state, saddle=Saddle(known, {}, torch.full_like(state.eta, torch.nan)))
    first, second = solved(solver, partly, 1e-6), solved(solver, replace(partly, saddle=replace(partly.saddle, x=x)), 1e-6)
    assert torch.equal(first.bound[1], second.bound[1]) and first.passes[1] == second.passes[1]
    assert first.passes[0] != second.passes[0] or not torch.equal(first.bound[0], second.bound[0])
    reference = [float(bl.reference(m, "highs").objective) for m in solver.models]
    torch.testing.assert_close(first.bound, torch.tensor(reference, dtype=torch.float64), rtol=2e-6, atol=0.0)
