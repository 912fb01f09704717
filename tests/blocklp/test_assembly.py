"""Several models in one batch: bounds that cut blocks, boxes, instances of their own, lengths that differ."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.block import BlockType, Constraints
from blocklp.oracles import AtMostOne, Knapsack
from blocklp.reference import reference


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
