from functools import partial

import numpy as np
import pytest
import torch

import blocklp as bl
from bench import families
from blocklp.errors import FormatError, OptionError
from blocklp.oracles import AtMostOne, Polytope, Simplex, Triangle
from blocklp.problems.learnt import FAMILIES, LearntPasses, LearntStart, train_start
from blocklp.problems.learnt.families import independent_set, ising, matching
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


def random_network(seed, size):
    torch.manual_seed(seed)
    network = LearntPasses(memory=3, hidden=8)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(size * torch.randn_like(parameter))
    return network


def mixed(seed):
    """Types with and without min-marginals, variables of one block and of several, and rows, at the largest value."""
    draw = np.random.default_rng(seed)
    m = bl.Model()
    x = m.variable("x", 12, lower=0, upper=1)
    m.add(Simplex(3), x[draw.permutation(12)[:9].reshape(3, 3)])
    m.add(AtMostOne(4), x[draw.permutation(12)[:8].reshape(2, 4)])
    m.add(Triangle(), x[draw.permutation(12)[:6].reshape(1, 6)])
    box = np.zeros((1, 4)), np.ones((1, 4))
    m.add(
        Polytope(draw.normal(size=(1, 2, 4)), np.full((1, 2), -np.inf), np.full((1, 2), 2.0), *box), x[draw.permutation(12)[:4][None]]
    )
    m.add(torch.from_numpy(draw.random(12)) @ x <= 4.0)
    m.maximize(torch.from_numpy(draw.normal(size=12)) @ x)
    return m


MODELS = {
    "independent set": lambda seed: roof_duality_model(independent_set(30, seed)),
    "spins": lambda seed: roof_duality_model(ising(4, seed)),
    "matching": lambda seed: matching(8, 3, seed),
    "field": partial(families.grid, side=3, labels=3),
    "mixed": mixed,
}


@pytest.mark.parametrize("size", [0.3, 3.0, 1e3])
@pytest.mark.parametrize("name", MODELS)
def test_no_weights_of_the_network_break_a_bound(name, size):
    for seed in range(3):
        m = MODELS[name](seed)
        optimum = float(bl.reference(m, "highs").objective)
        sense = -1 if m.maximizing else 1
        room = 1e-7 * max(1.0, abs(optimum))
        solver = m.compile()
        start = LearntStart(random_network(seed, size), 5, weight=1.0)
        state = start(solver)
        assert all(own.isfinite().all() for own in state.duals.values())
        for passes in (1, 30):
            found = solver.solve(method="race" if name == "mixed" else "auto", warm_start=state, passes=passes)
            assert sense * float(found.bound) <= sense * optimum + room
            assert sense * float(found.safe_bound) <= sense * optimum + room


def test_a_start_is_no_worse_than_the_first_multipliers_even_with_nan_weights():
    solver = roof_duality_model(independent_set(30, 0)).compile()
    cold = float(solver.solve(method="admm", passes=1).bound)
    network = random_network(0, 1.0)
    for value in (np.nan, 1e30):
        torch.nn.init.constant_(network.outer.bias, value)
        state = LearntStart(network, 4)(solver)
        assert float(solver.solve(method="admm", warm_start=state, passes=1).bound) >= cold


def test_variables_and_blocks_in_another_order_and_costs_in_another_unit_give_the_same_start():
    qubo, start = independent_set(25, 3), LearntStart(random_network(1, 0.3), 6)
    order = np.random.default_rng(0).permutation(25)
    place = np.argsort(order)
    other = Qubo.from_terms(1e3 * qubo.linear[order], place[qubo.edges], 1e3 * qubo.quadratic)
    first, second = (start(roof_duality_model(q).compile()) for q in (qubo, other))
    bounds = [
        roof_duality_model(q).compile().solve(method="admm", warm_start=s, passes=1).bound
        for q, s in ((qubo, first), (other, second))
    ]
    assert float(bounds[1]) == pytest.approx(1e3 * float(bounds[0]), rel=1e-5)
    (mine,), (theirs,) = (s.duals.values() for s in (first, second))
    np.testing.assert_allclose(np.sort(theirs.flatten()) / 1e3, np.sort(mine.flatten()), rtol=1e-3, atol=1e-4)


def test_instances_of_a_batch_get_the_starts_that_they_get_alone():
    start = LearntStart(random_network(2, 0.3), 5, weight=2.0)
    models = [roof_duality_model(independent_set(n, n)) for n in (12, 30)]
    together = bl.compile(models)
    state = start(together)
    for k, m in enumerate(models):
        alone, own = start(m.compile()), together.own_state(state.select([k]), k)
        assert float(own.eta) == pytest.approx(float(alone.eta), rel=1e-9)
        for name, duals in alone.duals.items():
            np.testing.assert_allclose(own.duals[name], duals, rtol=1e-4, atol=1e-4)


def test_the_bound_of_a_start_is_the_soft_bound_of_its_state_at_low_temperatures():
    m = matching(6, 3, 0)
    solver = m.compile()
    state = LearntStart(random_network(4, 0.2), 4)(solver)
    hard = float(solver.solve(method="admm", warm_start=state, passes=1).bound)
    assert float(bl.soft_bound(solver, state, 1e-6)) == pytest.approx(hard, abs=1e-4)


def test_training_lowers_the_distance_to_optima_of_other_instances():
    def distance(start):
        total = 0.0
        for seed in range(3):
            solver = roof_duality_model(ising(8, seed)).compile()
            optimum = float(bl.reference(solver.models[0], "highs").objective)
            bound = float(solver.solve(method="admm", warm_start=start(solver), passes=1).bound)
            total += (optimum - bound) / abs(optimum)
        return total

    draw = lambda seed: roof_duality_model(ising(6, seed))  # noqa: E731
    assert distance(train_start(draw, rounds=6, steps=40, seconds=1e4, instances=4)) < 0.5 * distance(LearntStart(LearntPasses(), 6))
    trained = [train_start(draw, rounds=2, steps=2, seconds=1e4, instances=1) for _ in range(2)]
    for first, second in zip(*(start.network.parameters() for start in trained), strict=True):
        assert torch.equal(first, second)  # it repeats itself
    assert trained[0].weight == pytest.approx(trained[1].weight, nan_ok=True)


def test_a_file_holds_the_start(tmp_path):
    start = LearntStart(random_network(5, 0.5), 3, weight=2.5, family="spins")
    start.save(tmp_path / "start.safetensors")
    again = LearntStart.load(tmp_path / "start.safetensors")
    solver = roof_duality_model(ising(4, 0)).compile()
    first, second = start(solver), again(solver)
    assert (again.rounds, again.passes, again.weight, again.family) == (3, 4, 2.5, "spins")
    assert torch.equal(first.eta, second.eta)
    assert all(torch.equal(first.duals[k], second.duals[k]) for k in first.duals)
    first.save(tmp_path / "state.safetensors")
    with pytest.raises(FormatError, match="learnt start"):
        LearntStart.load(tmp_path / "state.safetensors")


def test_what_cannot_be_learnt_is_refused():
    draw = np.random.default_rng(0)
    m = bl.Model()
    x = m.variable("x", 4, lower=0, upper=1)
    box = np.zeros((2, 3)), np.ones((2, 3))
    m.add(Polytope(draw.normal(size=(2, 1, 3)), np.full((2, 1), -np.inf), np.ones((2, 1)), *box), x[[[0, 1, 2], [1, 2, 3]]])
    m.minimize(x.sum())
    with pytest.raises(OptionError, match="min-marginals of blocks that share variables, and Polytope states none"):
        LearntStart(LearntPasses(), 2)(m.compile())
    solved = bl.Model()
    y = solved.variable("y", 3, lower=0, upper=1)
    solved.add(AtMostOne(3), [y[[k]] for k in range(3)])
    solved.add(AtMostOne(3), [y[[k]] for k in range(3)])
    solved.minimize(y.sum())
    with pytest.raises(OptionError, match="solved by their first multipliers"):
        train_start(lambda seed: solved, steps=1, instances=2)
    with pytest.raises(OptionError, match="rounds"):
        LearntStart(LearntPasses(), 0)


def test_the_families_are_bounded_and_differ_by_seed():
    for family in FAMILIES.values():
        a, b = (float(family.training(seed).solve(tol=1e-2).bound) for seed in (0, 1))
        assert np.isfinite([a, b]).all() and a != b
        assert family.target(0).size != family.training(0).size
