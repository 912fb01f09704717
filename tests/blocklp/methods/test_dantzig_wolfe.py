"""Column generation: any oracle gets a primal point, prices and a bound, with rows and without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array
from scipy.sparse.csgraph import csgraph_from_dense, dijkstra

import blocklp as bl
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne, Knapsack


class Silent(bl.BlockType):
    """A polytope known by its oracle alone: the hull of a few points, different ones in every block."""

    block_data = ("table",)

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table  # (batch or 1, blocks, points, dim)
        self.dim = table.shape[-1]

    def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        table = self.table.expand(*cost.shape[:2], -1, -1).to(cost)
        best = (table * cost[:, :, None]).sum(-1).argmin(-1)
        point = table.gather(2, best[..., None, None].expand(-1, -1, 1, table.shape[-1]))[:, :, 0]
        return point, (point * cost).sum(-1)


def stated(seed: int, batch: int = 1, rows: bool = True, shared: bool = True) -> tuple[bl.Model, bl.Model]:
    """A random model of silent blocks, and, of its first instance, the LP with a weight for every point, which HiGHS solves."""
    draw = np.random.default_rng(seed)
    blocks, dim, points, width = int(draw.integers(1, 6)), int(draw.integers(1, 5)), int(draw.integers(2, 6)), 8
    width = max(width, dim) if shared else blocks * dim
    unit = float(10.0 ** draw.integers(-3, 4))
    inside = draw.uniform(-1, 1, (batch, width))
    if shared:
        scope = np.stack([draw.choice(width, dim, replace=False) for _ in range(blocks)])
    else:
        scope = np.arange(width).reshape(blocks, dim)
    # Every hull holds the same point, so that the LP is feasible.
    table = draw.uniform(-2, 2, (batch, blocks, points, dim))
    table += (inside[:, scope] - table.mean(2))[:, :, None]
    table *= unit
    cost, inside = draw.normal(size=(batch, width)), unit * inside
    low, high = (inside + side * unit * draw.uniform(0, 3, (batch, width)) for side in (-1, 1))
    models = []
    matrix = random_array((int(draw.integers(1, 5)), width), density=0.6, rng=draw, data_sampler=draw.standard_normal)
    activity = inside @ matrix.toarray().T
    kinds = draw.integers(0, 3, matrix.shape[0])
    lower = np.where(kinds == 0, -np.inf, activity - (kinds > 1) * unit * 0.1)
    upper = np.where(kinds == 1, np.inf, activity + (kinds < 1) * unit * 0.1)
    for silent in (True, False):
        m = bl.Model(batch if silent else 1)
        own = slice(batch if silent else 1)
        x = m.variable("x", width, lower=low[own], upper=high[own])
        if silent:
            m.add(Silent(torch.from_numpy(table)), scope=x[torch.from_numpy(scope)])
        else:
            w = m.variable("w", (blocks, points), lower=0, upper=1)
            for b in range(blocks):
                m.add(w[b].sum() == 1)
                m.add(x[torch.from_numpy(scope[b])] - csr_array(table[0, b].T) @ w[b] == 0)
        if rows:
            m.add_rows(matrix, x, lower[own], upper[own])
        m.minimize((cost[own] * x).sum())
        models.append(m)
    return models[0], models[1]


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_it_meets_highs_from_below_and_above(rows: bool, shared: bool, dtype: torch.dtype) -> None:
    for seed in range(25):
        silent, known = stated(seed, rows=rows, shared=shared)
        truth = float(reference(known).objective[0])
        found = bl.compile(silent, dtype=dtype).solve(method="dantzig-wolfe", tol=1e-5)
        size = max(float(found.floor[0]), abs(truth))
        assert float(found.bound[0]) <= truth + 1e-9 * size, seed
        assert found.status[0] is bl.Status.OPTIMAL, (seed, found)
        assert abs(float(found.primal[0]) - truth) <= 3e-5 * size, (seed, truth, found)


def test_auto_takes_it_where_types_state_no_constraints() -> None:
    silent, known = stated(3)
    found, truth = silent.solve(tol=1e-6), float(reference(known).objective[0])
    assert found.status[0] is bl.Status.OPTIMAL
    assert abs(float(found.primal[0]) - truth) <= 1e-5 * max(1.0, abs(truth))


def test_a_batch_is_solved_as_its_instances_are_alone() -> None:
    m, _ = stated(1, batch=3, rows=False)
    together = m.solve(method="dantzig-wolfe", tol=1e-8)
    x = m.variables["x"]
    (blocks,) = m.blocks
    assert all(s is bl.Status.OPTIMAL for s in together.status)
    for i in range(3):
        alone = bl.Model()
        y = alone.variable("x", x.shape, lower=x.lower[i], upper=x.upper[i])
        alone.add(Silent(blocks.type.table[i : i + 1]), scope=y[blocks.scope])
        assert m.objective is not None
        alone.minimize((m.objective.evaluate()[0][i] * y).sum())
        assert float(alone.solve(method="dantzig-wolfe", tol=1e-8).bound[0]) == pytest.approx(float(together.bound[i]), rel=1e-7)


class Shortest(bl.BlockType):
    """Shortest paths by Dijkstra's algorithm, which takes no negative costs, in a small network."""

    tail, head, nodes, dim = [0, 0, 1, 2, 1, 2, 3], [1, 2, 2, 1, 3, 3, 0], 4, 7
    nonnegative_costs = True

    def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if bool((cost < 0).any()):
            raise AssertionError("a negative cost")
        point = torch.zeros_like(cost)
        for i, b in np.ndindex(*cost.shape[:2]):
            matrix = np.full((self.nodes, self.nodes), np.inf)
            matrix[self.tail, self.head] = cost[i, b].numpy()
            _, before = dijkstra(csgraph_from_dense(matrix, null_value=np.inf), indices=0, return_predecessors=True)
            node = 3
            while node:
                arc = next(a for a in range(7) if (self.tail[a], self.head[a]) == (before[node], node))
                point[i, b, arc], node = 1.0, before[node]
        return point, (point * cost).sum(-1)


@pytest.mark.parametrize("method", ["dantzig-wolfe", "admm"])
def test_oracles_that_take_no_negative_costs_get_none(method: str) -> None:
    """A flow of five commodities within capacities, as HiGHS solves it on the network."""
    for seed in range(10):
        draw = np.random.default_rng(seed)
        cost, room, few = draw.uniform(0.1, 1, 7), draw.uniform(1.5, 4, 7), 4
        room[[0, 1]] = 2.5  # so that there is a flow
        room[[4, 5]] = 2.5
        flow, arcs = bl.Model(), bl.Model()
        x = flow.variable("x", (few, 7), lower=0, upper=1)
        flow.add(Shortest(), scope=x)
        y = arcs.variable("y", (few, 7), lower=0, upper=1)
        incidence = np.zeros((4, 7))
        np.add.at(incidence, (Shortest.tail, range(7)), 1)
        np.add.at(incidence, (Shortest.head, range(7)), -1)
        for k in range(few):
            arcs.add(incidence @ y[k] == np.array([1.0, 0, 0, -1]))
        for m, z in ((flow, x), (arcs, y)):
            if method == "dantzig-wolfe":
                m.add(sum(z[k] for k in range(few)) <= room)
            m.minimize((cost * z).sum())
        truth = float(reference(arcs).objective[0])
        found = flow.solve(method=method, tol=1e-6)
        assert float(found.bound[0]) <= truth * (1 + 1e-9)
        assert found.status[0] is bl.Status.OPTIMAL, (seed, found)
        assert float(found.primal[0]) == pytest.approx(truth, rel=1e-5)


def test_an_infeasible_model_is_proved_to_be() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    m.add(Silent(torch.tensor([[[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]], dtype=torch.float64)), scope=x)
    m.add(x.sum() >= 1.5)
    m.minimize(x.sum())
    assert m.solve().status[0] is bl.Status.INFEASIBLE


def choices(silent: bool) -> bl.Model:
    """Two choices of at most one of three, and two that weigh five together where there is room for four."""
    corners = torch.cat([torch.zeros(1, 3), torch.eye(3)]).double()[None, None]
    m = bl.Model()
    x = m.variable("x", (2, 3), lower=0, upper=1)
    m.add(Silent(corners.expand(1, 2, 4, 3)) if silent else AtMostOne(3), scope=x)
    m.add(Knapsack([2.0, 3.0], 4.0), scope=x.T)
    m.minimize((torch.tensor([[-7.0, -8, 0], [-4, 6, 1]]).double() * x).sum())
    return m


@pytest.mark.parametrize("silent", [True, False])
def test_constraints_that_contradict_bounds_prove_infeasibility(silent: bool) -> None:
    """They are in the master as they are, and leave it without a point."""
    m = choices(silent)
    x = m.variables["x"]
    found = m.solve(bounds={x[:, 0]: 1}, method="dantzig-wolfe", passes=50)
    assert found.status[0] == bl.Status.INFEASIBLE
    assert m.solve(bounds={x[0, 0]: 1}, method="dantzig-wolfe", passes=50).status[0] == bl.Status.OPTIMAL


def test_where_all_variables_are_fixed_at_zero_gaps_are_relative_to_copies() -> None:
    m = choices(silent=True)
    found = m.solve(bounds={m.variables["x"]: 0}, method="dantzig-wolfe", passes=50, tol=1e-4)
    assert found.status[0] == bl.Status.OPTIMAL and found.primal.item() == 0 >= found.bound.item()


def test_a_time_limit_and_a_warm_start_keep_the_bound() -> None:
    m, known = stated(5)
    truth = float(reference(known).objective[0])
    first = m.solve(method="dantzig-wolfe", tol=1e-9, passes=8)
    later = m.solve(method="dantzig-wolfe", tol=1e-6, warm_start=first)
    size = max(1.0, abs(truth))
    assert float(first.bound[0]) - 1e-9 * size <= float(later.bound[0]) <= truth + 1e-9 * size
    assert later.status[0] is bl.Status.OPTIMAL
    assert m.solve(method="dantzig-wolfe", time_limit=1e-9).status[0] is bl.Status.TIME_LIMIT


def test_prices_of_rows_are_those_of_highs() -> None:
    for seed in range(10):
        m, _ = stated(seed, shared=False)
        found = m.solve(method="dantzig-wolfe", tol=1e-9)
        row, price = m.rows[-1], found.duals["rows"][0].flatten()
        activity = torch.from_numpy(csr_array(row.constraint.matrix) @ found.raw_x[0].numpy())
        unit = float(found.raw_x.abs().max())
        loose = (activity > row.constraint.lower[0] + 1e-4 * unit) & (activity < row.constraint.upper[0] - 1e-4 * unit)
        assert float((price.abs() * loose).max()) <= 1e-7, seed  # complementary slackness
        assert float((price * (row.constraint.lower[0] == -torch.inf)).max()) <= 0
        assert float((price * (row.constraint.upper[0] == torch.inf)).min()) >= 0


def test_points_known_from_the_ranges_of_blocks_are_in_the_first_master() -> None:
    silent, stated_lp = stated(3, batch=3)
    problem = silent.compile().decomposition()
    (group,) = (g for g in problem.groups if g.known is not None)
    table = group.type.tensors()["table"]
    assert group.known is not None
    distance = (group.known[:, :, :, None] - table[:, None]).abs().amax(-1).amin(-1)
    assert float(distance.max()) == 0  # they are points of their own blocks
    torch.testing.assert_close(group.known.amax(1), table.amax(2), rtol=0, atol=0)
    torch.testing.assert_close(group.known.amin(1), table.amin(2), rtol=0, atol=0)
    one = problem.select(torch.tensor([2])).groups[problem.groups.index(group)].known
    assert one is not None
    assert torch.equal(one, group.known[2:])
    # Were points of other blocks in the master, its value would be below the optimum.
    found, truth = silent.solve(method="dantzig-wolfe", tol=1e-9), float(reference(stated_lp).objective[0])
    assert abs(float(found.primal[0]) - truth) <= 1e-7 * max(abs(truth), float(found.floor[0]))
