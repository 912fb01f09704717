"""Blocks that join a warm problem: the bound never drops, and limits hold."""

import itertools

import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError, OptionError, ScopeError
from blocklp.oracles import AtMostOne, Edge, Knapsack, Triangle
from blocklp.search.tightening import fresh

TRIPLES = torch.tensor(list(itertools.combinations(range(6), 3)))


def packing(batch=1, maximize=True):
    """Heaviest independent sets of the complete graph on six nodes, by its edges: the LP takes half of every node."""
    m = bl.Model(batch)
    y = m.variable("y", 6, lower=0, upper=1)
    m.add(AtMostOne(2), y[torch.combinations(torch.arange(6))], name="edges")
    weight = torch.arange(1.0, 7.0).double() + torch.arange(batch).double()[:, None]
    price = m.parameter("price", 6)
    price.value = weight if maximize else -weight
    (m.maximize if maximize else m.minimize)((price * y).sum())
    return m


def triples(solution):
    """All triples, by how much the point violates them in the mean of the instances."""
    score = solution.x["y"][:, TRIPLES].sum(2).mean(0) - 1
    return [bl.search.Clusters("triples", AtMostOne(3), TRIPLES, score)]


@pytest.mark.parametrize("method", ["auto", "prox", "min-marginals"])
@pytest.mark.parametrize(("dtype", "maximize"), [(torch.float64, True), (torch.float32, False)])
def test_bounds_never_drop_and_end_at_the_optimum_of_the_tightened_lp(method, dtype, maximize):
    model = packing(2, maximize)
    sign = 1 if maximize else -1
    roof = sign * bl.reference(model).objective
    found = bl.tighten(
        model, triples, bl.search.Budget(rounds=8, blocks=4, passes=30), method=method, dtype=dtype, tol=1e-5, passes=2000
    )
    bounds = sign * torch.stack([r.bound for r in found.rounds])
    assert bool((bounds.diff(dim=0) <= 0).all())
    lp = sign * bl.reference(model).objective  # of the model as it has grown
    assert bool((lp < roof - 0.5).all())
    bound = sign * found.solution.bound
    assert bool((bound >= lp - 1e-6).all())
    assert method == "min-marginals" or bool((bound <= lp + 1e-3).all())
    assert bool((sign * bl.verify_certificate(model, found.solution.state).bound <= bound + 1e-4).all())
    assert int(found.solution.passes.max()) <= 2000 + len(found.rounds)


def test_a_bigger_problem_starts_at_the_bound_of_the_smaller_one():
    model = packing()
    before = model.solve(passes=25, tol=0)
    handle = model.add(AtMostOne(3), bl.language.View(model, "triples", TRIPLES[:5]))
    again = model.solve(passes=1, tol=0, warm_start=before.state)
    grown = model.extend(handle, bl.language.View(model, "triples", TRIPLES[5:]))
    assert len(grown.scope) == len(TRIPLES) and model.blocks[-1] is grown
    last = model.solve(passes=1, tol=0, warm_start=again.state)
    assert before.bound.item() >= again.bound.item() - 1e-9 >= last.bound.item() - 2e-9
    whole = packing()
    whole.add(AtMostOne(3), bl.language.View(whole, "triples", TRIPLES))
    assert bl.reference(model).objective.item() == pytest.approx(bl.reference(whole).objective.item())


def test_new_blocks_take_over_variables_from_the_box():
    """Two variables are in no block at first; each has a share only in the box, which is another one afterwards."""
    m = bl.Model()
    x = m.variable("x", 5, lower=0, upper=1)
    m.add(AtMostOne(2), x[[[0, 3]]])
    m.minimize((torch.tensor([-1.0, -2.0, 3.0, -4.0, -5.0]).double() * x).sum())
    before = m.solve(passes=20, tol=0)
    assert before.state.duals["box"].shape == (1, 5, 1)
    m.add(AtMostOne(2), x[[[1, 4]]], name="later")
    after = m.solve(passes=1, tol=0, warm_start=before.state)
    assert after.bound.item() >= before.bound.item() - 1e-9
    assert m.solve(tol=1e-6, warm_start=before.state).bound.item() == pytest.approx(-9.0, abs=1e-4)
    tighter = m.compile()
    fixed = tighter.solve(bounds={x[0]: (0, 0.5)}, tol=1e-6)
    again = tighter.solve(bounds={x[0]: (0, 0.5), x[4]: (0, 0.25)}, passes=1, tol=0, warm_start=fixed.state)
    assert again.bound.item() >= fixed.bound.item() - 1e-9


def path():
    """Four variables in a row, coupled by products."""
    m = bl.Model()
    y = m.variable("y", 4, lower=0, upper=1)
    z = m.variable("z", 3, lower=0, upper=1)
    m.add(Edge(), [y[[0, 1, 2]], y[[1, 2, 3]], z])
    m.minimize(2 * z.sum() - 2 * y.sum() + y[0] + 0.5 * y[3])
    return m


def test_new_variables_are_shared_by_the_clusters_that_name_them():
    model = path()
    seen = []

    def search(solution):
        seen.append(model.size)
        if len(seen) > 1:
            return []
        # Numbers beyond the model: 900 is in both triangles, 77 in one, and 999 in none that is wanted.
        scope = torch.tensor([[0, 1, 2, 4, 900, 5], [0, 2, 3, 900, 77, 6], [0, 1, 3, 4, 77, 999]])
        return [bl.search.Clusters("triangles", Triangle(), scope, torch.tensor([1.0, 0.5, 0.0]))]

    found = bl.tighten(model, search, tol=1e-6)
    assert seen == [7, 9]
    assert model.blocks[-1].scope.tolist() == [[0, 1, 2, 4, 8, 5], [0, 2, 3, 8, 7, 6]]
    assert found.solution.bound.item() == pytest.approx(bl.reference(model).objective.item(), abs=1e-4)


def test_budgets_and_limits():
    rounds = []
    model = packing()
    found = bl.tighten(
        model, triples, bl.search.Budget(rounds=2, blocks=3, passes=20), tol=1e-9, passes=300, told=lambda r, s: rounds.append(r)
    )
    assert [r.added for r in found.rounds] == [0, 3, 3] and tuple(rounds) == found.rounds
    assert found.rounds[-1].blocks == 15 + 6 and found.rounds[-1].copies == 30 + 18
    assert str(rounds[1]).startswith("round 1 | 18 blocks, 3 new | ")
    assert len(bl.tighten(packing(), triples, bl.search.Budget(rounds=0)).rounds) == 1
    cramped = packing()
    bl.tighten(cramped, triples, bl.search.Budget(copies=30 + 7, passes=20), passes=200)
    assert cramped.sizes()["copies"] == 36
    assert len(bl.tighten(packing(), triples, told=lambda *_: True).rounds) == 1
    late = bl.tighten(packing(), triples, time_limit=1e-9)
    assert len(late.rounds) == 1 and late.solution.bound.isfinite().all()
    assert bl.tighten(packing(), triples, cutoff=9.0, tol=0).solution.status == (bl.Status.CUTOFF,)


def test_rounds_go_on_from_what_resume_returns():
    """It gets the multipliers of the round before, and one pass proves what it makes of them."""
    model, seen = packing(maximize=False), []

    def resume(state):
        better = model.solve(warm_start=state, passes=200, tol=1e-7)
        seen.append((dict(state.duals), better))
        return better.state

    found = bl.tighten(model, triples, bl.search.Budget(rounds=3, blocks=10, passes=50), resume=resume, tol=1e-6)
    assert len(seen) == len(found.rounds) - 1 >= 2
    for (given, better), before, after in zip(seen, found.rounds, found.rounds[1:], strict=False):
        assert "edges" in given
        assert float(before.bound) - 1e-9 <= float(better.bound) <= float(after.bound) + 1e-6
    assert float(found.solution.bound) == pytest.approx(float(bl.reference(model).objective[0]), abs=1e-4)


def test_an_interrupt_while_resuming_returns_the_best_so_far():
    model, calls = packing(), itertools.count()

    def resume(state):
        if next(calls):
            raise KeyboardInterrupt
        return state

    found = bl.tighten(model, triples, bl.search.Budget(rounds=8, blocks=4), resume=resume, tol=1e-9)
    assert next(calls) == 2 and found.solution.status == (bl.Status.INTERRUPTED,)
    assert len(found.rounds) == 2 and float(found.solution.bound) == float(found.rounds[-1].bound)


def test_an_interrupted_search_returns_the_best_so_far():
    def search(solution):
        raise KeyboardInterrupt

    found = bl.tighten(packing(), search, tol=1e-6)
    assert found.solution.bound.item() == pytest.approx(10.5, abs=1e-3)
    assert found.solution.status == (bl.Status.INTERRUPTED,)


def test_a_solution_counts_as_the_first_solve():
    model = packing()
    begun = model.solve(method="min-marginals", passes=30, history=True)
    found = bl.tighten(model, triples, bl.search.Budget(rounds=1, passes=20), tol=1e-9, passes=50, warm_start=begun, history=True)
    first, second = found.rounds
    assert (first.bound, first.added) == (begun.bound, 0) and second.added > 0
    assert found.solution.history[: len(begun.history)] == begun.history
    assert found.solution.history[-1].passes > int(begun.passes) and int(found.solution.passes) <= 50 + len(found.rounds)
    assert second.bound.item() <= first.bound.item() + 1e-12


def test_history_goes_on_over_rounds():
    found = bl.tighten(
        packing(), triples, bl.search.Budget(passes=20, blocks=3, rounds=2), history=True, tol=1e-9, passes=100, method="admm"
    )
    passes = [event.passes for event in found.solution.history]
    assert passes == sorted(passes) and passes[-1] > 60


def test_known_blocks_in_any_order_are_not_new():
    model = packing()
    scope = torch.tensor([[1, 0], [0, 6], [6, 0], [0, 7]])
    assert fresh(model, "edges", scope).tolist() == [False, True, False, True]
    assert fresh(model, "others", scope).tolist() == [True, True, False, True]


def test_mistakes_are_named():
    model = packing()
    with pytest.raises(ModelError, match="no blocks named 'triples'"):
        model.extend("triples", bl.language.View(model, "", TRIPLES))
    with pytest.raises(ScopeError, match="2 variables a block"):
        model.extend("edges", bl.language.View(model, "", TRIPLES))
    model.add(
        Knapsack([[1.0, 1.0], [1.0, 2.0]], [1.0, 1.0]), bl.language.View(model, "", torch.tensor([[0, 1], [2, 3]])), name="sacks"
    )
    with pytest.raises(ModelError, match="blocks of another name"):
        model.extend("sacks", bl.language.View(model, "", torch.tensor([[4, 5]])))
    solver = packing().compile()
    solver.models[0].extend("edges", bl.language.View(solver.models[0], "", torch.tensor([[0, 1]])))
    with pytest.raises(ModelError, match="compile it again"):
        solver.solve()
    with pytest.raises(ModelError, match="do not fit"):
        bl.tighten(packing(), lambda s: [bl.search.Clusters("c", AtMostOne(3), TRIPLES, torch.ones(1))])
    with pytest.raises(OptionError, match="blocks of a tightening budget"):
        bl.search.Budget(blocks=0)
