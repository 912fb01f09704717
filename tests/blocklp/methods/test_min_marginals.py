"""Min-marginals against lists of vertices, and what their averaging promises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.blocks.capabilities import HasMinMarginals, overlap_of, supports
from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.methods.min_marginals import MinMarginalState
from blocklp.oracles import AtMostOne, Edge, Knapsack, Pairwise, Polytope, Simplex, Triangle

from ..random_models import pair_vertices, random_model

METHOD = bl.methods.MinMarginals()


class Rate(bl.FiniteVertices):
    """One coordinate takes a third value."""

    vertices = ((0.0, 1, 0), (0.5, 0, 0), (1.0, 0, 1))


TYPES: list[tuple[Callable[[], bl.BlockType], list[list[float]]]] = [
    (Edge, Edge().table.tolist()),
    (Triangle, Triangle().table.tolist()),
    (Rate, Rate().table.tolist()),
    (lambda: Simplex(3), np.eye(3).tolist()),
    (lambda: Simplex(1), [[1.0]]),
    (lambda: AtMostOne(3), [[0.0] * 3, *np.eye(3).tolist()]),
    (lambda: Pairwise(2, 3), pair_vertices(2, 3)),
    (lambda: Pairwise(1, 2), pair_vertices(1, 2)),
    (lambda: bl.Box([0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.5, 1.0]), [[a, 0, b, 1] for a in (0.0, 1) for b in (0.0, 0.5)]),
]


def brute_force(vertices: Tensor, cost: Tensor) -> Tensor:
    """Min-marginals of one block from its vertices: ``(dim,)``."""
    values, found = vertices @ cost, []
    for column in vertices.T:
        best = [min(values[column == v].tolist(), default=torch.inf) for v in (1, 0)]
        clear = bool(((column == 0) | (column == 1)).all()) and len(column)
        found.append(best[0] - best[1] if clear else torch.nan)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize(("build", "vertices"), TYPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_they_are_those_of_the_vertices_also_under_fixings(
    build: Callable[[], bl.BlockType], vertices: list[list[float]], dtype: torch.dtype
) -> None:
    rng, table = np.random.default_rng(0), torch.tensor(vertices, dtype=torch.float64)
    dim, blocks = table.shape[1], 40
    for share in (0.0, 0.2):
        fixed = torch.tensor(rng.random((1, blocks, dim)) < share)
        # Fixed to the value of some vertex, so that blocks are seldom empty.
        at = table[torch.tensor(rng.integers(len(table), size=(1, blocks)))].round()
        lower, upper = (torch.where(fixed, at, torch.full_like(at, side)) for side in (0.0, 1.0))
        kind = build().restrict(lower, upper)
        assert kind is not None
        cost = torch.tensor(rng.normal(size=(1, blocks, dim)).round(2), dtype=dtype)
        found = kind.to(dtype, torch.device("cpu")).min_marginals(cost)
        assert found is not None and found.dtype == dtype
        for b in range(blocks):
            left = table[((table >= lower[0, b]) & (table <= upper[0, b])).all(1)]
            if isinstance(kind, bl.FiniteVertices):  # a column is judged by the whole table
                whole = brute_force(table, cost[0, b].double())
                expected = torch.where(whole.isnan(), whole, brute_force(left, cost[0, b].double()))
            else:
                expected = brute_force(left, cost[0, b].double())
            torch.testing.assert_close(found[0, b].double(), expected, equal_nan=True, rtol=0, atol=1e-6, msg=f"block {b}")


def test_a_type_without_them_keeps_its_multipliers_and_may_differ_in_all_that_it_shares() -> None:
    class Own(bl.BlockType):
        dim = 6

        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            return Triangle().min_oracle(cost)

    assert supports(Triangle(), HasMinMarginals) and not supports(Own(), HasMinMarginals)
    for shared, expected in ((torch.ones(6), [2, 6]), (torch.tensor([1, 0, 0, 0, 0, 0]), [1, 1]), (torch.zeros(6), [1, 1])):
        assert [overlap_of(kind, shared) for kind in (Simplex(6), Own())] == expected
    m = bl.Model()
    x = m.variable("x", 9, lower=0, upper=1)
    m.add(Own(), x[[[0, 1, 2, 3, 4, 5], [0, 1, 6, 3, 7, 8]]])
    m.minimize(x.sum())
    with pytest.raises(OptionError, match="none of Own states min_marginals"):
        m.solve(method="min-marginals")


def chain(seed: int, length: int = 8, labels: int = 3) -> bl.Model:
    rng = np.random.default_rng(seed)
    m = bl.Model()
    x = m.variable("x", (length, labels), lower=0, upper=1)
    z = m.variable("z", (length - 1, labels**2), lower=0, upper=1)
    ends = [x[np.arange(length - 1) + e, k] for e in (0, 1) for k in range(labels)]
    m.add(Pairwise(labels, labels), [*ends, *(z[:, k] for k in range(labels**2))])
    m.minimize(rng.normal(size=(length, labels)).ravel() @ x.reshape(-1) + rng.normal(size=z.shape).ravel() @ z.reshape(-1))
    return m


@pytest.mark.parametrize("seed", range(5))
def test_trees_are_solved(seed: int) -> None:
    """On a tree min-marginals that agree leave no gap (Werner 2007)."""
    model = chain(seed)
    optimum = reference(model).objective.item()
    assert model.solve(method="min-marginals", passes=400, tol=0).bound.item() == pytest.approx(optimum, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bounds_never_fall_and_multipliers_stay_feasible(dtype: torch.dtype) -> None:
    tried, slack = 0, 1e-12 if dtype == torch.float64 else 1e-5
    for seed in range(60):
        problem = random_model(np.random.default_rng(seed)).compile().decomposition()
        rough = problem.to(dtype)
        draw = torch.Generator().manual_seed(seed)
        duals = problem.recentred(torch.randn(problem.batch, problem.copies, generator=draw, dtype=torch.float64))
        try:
            state: MinMarginalState = METHOD.start(Plan(rough), duals.to(dtype), None)
        except OptionError:
            continue
        tried += 1
        before = problem.value(problem.recentred(state.duals.double()))
        for _ in range(25):
            state = METHOD.step(Plan(rough), state)
            value = problem.value(problem.recentred(state.duals.double()))
            # Values of infeasible blocks are huge.
            scale = 1 + before.abs() + problem.cost.abs().sum(1) + duals.abs().sum(1)
            assert bool((value >= before - slack * scale).all()), seed
            assert bool(((problem.collect(state.duals) - problem.cost).abs().amax(1) <= 10 * slack * scale).all()), seed
            assert bool(((state.points >= rough.spread(rough.lower).clamp(max=0)) & (state.points <= 1)).all()), seed
            before = value
    assert tried > 30


def test_multipliers_of_one_block_alone_are_the_cost() -> None:
    problem = chain(0).compile().decomposition()
    state = METHOD.start(Plan(problem), problem.to_dual(problem.cost), None)
    for _ in range(10):
        state = METHOD.step(Plan(problem), state)
    (group,) = problem.groups
    private = group.coupled == 0
    assert int(private.sum()) == 9
    assert torch.equal(group.rows(state.duals)[:, private], group.rows(problem.spread(problem.cost))[:, private])


def test_copies_with_one_value_take_all() -> None:
    """A variable that a box fixes: the pairs need not pay for it."""
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(AtMostOne(2), [x[[0, 1]], x[[1, 2]]])
    m.add(bl.Box([0.0], [0.0]), [x[[1]]])
    m.minimize(np.array([-1.0, -5.0, -2.0]) @ x)
    assert m.solve(method="min-marginals", passes=60, tol=0).bound.item() == pytest.approx(-3.0, abs=1e-9)


def test_types_without_them_keep_their_multipliers_and_are_refused_alone() -> None:
    def model(pairs: bool) -> bl.Model:
        m = bl.Model()
        x = m.variable("x", 4, lower=0, upper=1)
        m.add(Knapsack([1.0, 2.0, 1.0], 1.5), x[[[0, 1, 2], [1, 2, 3]]], name="sack")
        if pairs:
            m.add(AtMostOne(2), x[[[0, 1], [1, 3], [0, 3]]], name="pairs")
        m.minimize(np.array([-1.0, -2.0, 0.5, -1.5]) @ x)
        return m

    with pytest.raises(OptionError, match="none of Knapsack states min_marginals"):
        model(False).solve(method="min-marginals")
    problem = model(True).compile().decomposition()
    start = METHOD.start(Plan(problem), problem.to_dual(problem.cost), None)
    later = METHOD.step(Plan(problem), METHOD.step(Plan(problem), start))
    sack, clique = problem.groups
    assert torch.equal(sack.rows(later.duals), sack.rows(start.duals))
    assert not torch.equal(clique.rows(later.duals), clique.rows(start.duals))


def test_polytopes_alone_are_refused() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Polytope([[1.0, 1.0]], [-np.inf], [1.0], [0.0, 0.0], [1.0, 1.0]), x[[[0, 1], [1, 2]]])
    m.minimize(-(x.sum()))
    with pytest.raises(OptionError, match="choose another method"):
        m.solve(method="min-marginals")
