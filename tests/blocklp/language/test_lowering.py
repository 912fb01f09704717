"""Several models in one batch: bounds that cut blocks, boxes, instances of their own, lengths that differ."""

from __future__ import annotations

import copy
from fractions import Fraction

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.errors import ModelError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne, Knapsack, Pairwise, Polytope


class Segment(BlockType):
    """The points (t, t) with t from 0 to 1, which says nothing about bounds."""

    dim = 2

    def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One end or the other."""
        slope = cost.sum(-1)
        return (slope < 0).to(cost)[..., None].expand(cost.shape), slope.clamp(max=0)

    def constraints(self) -> Constraints:
        """Both coordinates are the same."""
        return Constraints.rows([[1.0, -1.0], [1.0, 0.0]], [0.0, 0.0], [0.0, 1.0])


def model(seed: int) -> bl.Model:
    """Cliques, knapsacks with data of single blocks, segments, variables in no block; some bounds cut blocks, some do not."""
    rng = np.random.default_rng(seed)
    batch, n, cliques, sacks, segments = (int(v) for v in rng.integers([1, 6, 1, 1, 1], [4, 12, 5, 4, 4]))
    lower, upper = np.zeros((batch, n)), np.ones((batch, n))
    if seed % 3:
        lower[rng.random((batch, n)) < 0.1] = rng.choice([0.0, 0.25])
        upper[rng.random((batch, n)) < 0.2] = rng.choice([0.0, 0.5])
        upper = np.maximum(lower, upper)
    m = bl.Model(batch)
    x = m.variable("x", n, lower=lower, upper=upper)
    w = m.variable("w", 2, lower=-1, upper=[1, 2])
    scopes = [
        np.array([rng.choice(n, size=k, replace=False) for _ in range(count)])
        for k, count in ((3, cliques), (4, sacks), (2, segments))
    ]
    m.add(AtMostOne(3), x[scopes[0]])
    m.add(Knapsack(rng.integers(1, 5, (sacks, 4)), rng.integers(4, 9, sacks)), x[scopes[1]])
    m.add(Segment(), x[scopes[2]])
    m.minimize(rng.normal(size=(batch, n)) @ x + rng.normal(size=2) @ w + seed)
    return m


@pytest.mark.parametrize("first", range(0, 60, 6))
def test_models_in_a_batch_keep_their_bounds_and_blocks(first: int) -> None:
    """What one model needs, a box or a type that takes its bounds in, is nothing to the others."""
    models = [model(seed) for seed in range(first, first + 6)]
    truths = torch.cat([reference(m).objective for m in models])
    feasible = torch.isfinite(truths)
    found = bl.compile(models).solve(tol=1e-6, passes=3000)
    assert (found.bound[feasible] <= truths[feasible] + 1e-9).all()
    solved = torch.tensor([s is bl.Status.OPTIMAL for s in found.status])
    assert solved[feasible].double().mean() >= 0.9
    assert torch.allclose(found.bound[feasible & solved], truths[feasible & solved], rtol=3e-6, atol=3e-6)
    problem, start = bl.compile(models).decomposition(), 0
    for m in models:
        alone = m.compile().decomposition()
        rows = slice(start, start + m.batch)
        assert torch.equal(problem.cost[rows, : m.size], alone.cost) and torch.equal(problem.offset[rows], alone.offset)
        assert torch.equal(problem.lower[rows, : m.size], alone.lower) and torch.equal(problem.upper[rows, : m.size], alone.upper)
        assert torch.equal(problem.counts[rows, : m.size], alone.counts.expand(m.batch, -1))
        own = {group.name: group for group in alone.groups}
        for group in problem.groups:
            blocks = own[group.name].blocks if group.name in own else 0
            assert (group.filled.expand(problem.batch)[rows] == blocks).all()
            if blocks:
                mine = problem.coupling.index[rows, group.start : group.stop].view(m.batch, group.dim, -1)[:, :, :blocks]
                his = alone.coupling.index[:, own[group.name].start : own[group.name].stop].view(-1, group.dim, blocks)
                assert torch.equal(mine, his.expand_as(mine))
        start += m.batch


def test_what_users_change_later_changes_no_model() -> None:
    """Bounds and costs are copied, whether they come as tensors or as arrays, read-only or not."""
    low, high, cost, more = np.zeros(3), torch.ones(3, dtype=torch.float64), np.array([-1.0, -2.0, -3.0]), torch.ones(3).double()
    m = bl.Model()
    x = m.variable("x", 3, lower=low, upper=high)
    objective = cost @ x + (x * more).sum() + (x + more).sum()
    m.minimize(objective)
    before = m.solve().bound.item()
    low[:], high[:], cost[:], more[:] = -5, 9, 7, -4
    assert m.solve().bound.item() == before == pytest.approx(2)


def polygon(seed: int) -> bl.Model:
    """Two polytopes in three variables, with as many vertices as it happens, more or fewer once a variable is bounded."""
    rng = np.random.default_rng(seed)
    m = bl.Model()
    x = m.variable("x", 5, lower=-1, upper=rng.choice([0.25, 1.0], 5) if seed else 1.0)
    rows = rng.normal(size=(2, 3, 3))
    m.add(Polytope(rows, -1.0 * np.ones(3), np.ones(3), -np.ones(3), np.ones(3)), x[[[0, 1, 2], [2, 3, 4]]])
    m.minimize(rng.normal(size=5) @ x)
    return m


@pytest.mark.parametrize("listed", [True, False])
def test_polytopes_of_a_batch_may_differ_in_their_vertices(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short lists are filled up; where one model has none, all are solved as LPs, and none has its vertices at zero."""
    models = [polygon(seed) for seed in range(12)]
    kinds = [m.blocks[0].type for m in models]
    assert len({kind.vertices.shape[2] for kind in kinds}) > 1
    if not listed:
        monkeypatch.setattr(kinds[0], "vertices", None)
    truths = torch.cat([reference(m).objective for m in models])
    solver = bl.compile(models)
    assert (solver.decomposition().groups[0].type.vertices is None) == (not listed)
    found = solver.solve(tol=1e-7)
    assert (found.bound <= truths + 1e-9).all()
    assert torch.allclose(found.bound, truths, rtol=1e-6, atol=1e-6)


def test_types_are_asked_without_their_data_being_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """One system for all blocks of a model is one block to ask, however many instances and companions there are."""
    asked = []
    kind = Polytope([[1.0, 1.0]], [0.0], [1.0], [0, 0], [1, 1])
    answer = Polytope.min_oracle
    models = []
    for batch, blocks in ((50, 20), (1, 3)):
        m = bl.Model(batch)
        x = m.variable("x", (blocks, 2), lower=0, upper=1)
        m.add(kind, x)
        m.minimize(x.sum())
        models.append(m)
    monkeypatch.setattr(Polytope, "min_oracle", lambda self, cost: (asked.append(cost.shape[1]), answer(self, cost))[1])
    problem = bl.compile(models).decomposition()
    assert asked and max(asked) == 1
    assert problem.batch == 51 and problem.groups[0].filled.tolist() == [20] * 50 + [3]


def test_types_learn_in_double_precision_what_is_shared() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Segment(), x[[[0, 1], [1, 2]]])
    m.minimize(x.sum())
    for dtype in (torch.float32, torch.float64):
        (group,) = m.compile(dtype=dtype).decomposition().groups
        assert group.coupled.dtype == torch.float64 and group.coupled.tolist() == [1, 1]


def test_gradients_of_many_models_take_time_in_proportion() -> None:
    """Nodes of the graph that copy the costs of all models: one, whatever the number of models."""
    models, values = [], {}
    for _ in range(30):
        m = bl.Model()
        x, p = m.variable("x", 4, lower=0, upper=1), m.parameter("p", 4)
        m.add(Segment(), x.reshape(2, 2))
        m.minimize(p @ x)
        models.append(m)
        values[p] = torch.ones(4, dtype=torch.float64, requires_grad=True)
    solver = bl.compile(models)
    cost = solver.decomposition(values=values).cost
    todo, seen = [cost.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [following for following, _ in node.next_functions]
    assert len(seen) > 30 and sum("CopySlices" in node.name() for node in seen) <= 1
    cost.sum().backward()
    assert all(torch.equal(v.grad, torch.ones(4, dtype=torch.float64)) for v in values.values())


@pytest.mark.parametrize("number", [2**64, -(2**70), 10**300])
def test_large_integers_are_numbers(number: int) -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=min(number, 0), upper=max(number, 0))
    m.minimize((x * number + number).sum())
    assert m.objective.evaluate()[1].item() == 2.0 * number
    with pytest.raises(bl.errors.ModelError, match="cannot read int"):
        x * 10**400


def test_blocks_that_reach_beyond_the_bounds_of_variables_charge_their_own_rounding() -> None:
    """Segments of length 1e11 through a point at which all variables are fixed: their values cancel to a millionth."""
    rng = np.random.default_rng(0)
    way, at = np.array([15.0, 82, 31, 47]), np.array([-2.0, 1, 3, 0])
    kind, models, optima = bl.FiniteVertices(np.stack([at + 2.0**30 * way, at - 2.0**30 * way])), [], []
    for _ in range(40):
        cost = rng.normal(size=4)
        # Across the segment, as far as floats can say it.
        cost[3] = -float(sum(Fraction(c) * Fraction(w) for c, w in zip(cost[:3], way[:3], strict=True)) / Fraction(way[3]))
        m = bl.Model()
        x = m.variable("x", 4, lower=at, upper=at)
        m.add(kind, x)
        m.minimize(cost @ x)
        models.append(m)
        optima.append(sum(Fraction(c) * Fraction(v) for c, v in zip(cost, at, strict=True)))
    alone = torch.cat([m.solve(passes=20).bound for m in models[:20]])
    for found in (alone, bl.compile(models).solve(passes=20).bound):
        assert all(Fraction(bound) <= optimum for bound, optimum in zip(found.tolist(), optima, strict=False))


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (bl.FiniteVertices([[0, 0], [1, 1]]), bl.FiniteVertices([[0, 1], [1, 0]]), "table"),
        (AtMostOne(2), bl.FiniteVertices([[0, 0], [1, 1]]), "class"),
        (Pairwise(1, 5), Pairwise(2, 3), "first"),  # of one size
    ],
)
def test_types_that_differ_beside_their_block_data_do_not_stand_for_each_other(one: BlockType, other: BlockType, what: str) -> None:
    models = []
    for kind in (one, other):
        m = bl.Model()
        x = m.variable("x", kind.dim or 2, lower=0, upper=1)
        m.add(kind, x, name="blocks")
        m.minimize(x.sum())
        models.append(m)
    with pytest.raises(ModelError, match=f"'blocks' differ in {what}"):
        bl.compile(models)
    # A copy of a type is no other type.
    copies = [models[0], bl.Model()]
    x = copies[1].variable("x", one.dim or 2, lower=0, upper=1)
    copies[1].add(copy.deepcopy(one), x, name="blocks")
    copies[1].minimize(x.sum())
    assert bl.compile(copies).batch == 2
