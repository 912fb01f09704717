"""Walks within resources against all walks, listed one by one, with and without compiled loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp

import blocklp as bl
from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import Path, ResourcePath, resource_path

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=[True, False], ids=["loops", "as written"], autouse=True)
def both(request: pytest.FixtureRequest, use_backend: Callable[[str], None]) -> None:
    if not request.param:
        use_backend("torch")


class Instance:
    """A random graph with a path through all nodes, arcs in parallel, resources with windows; what leads back consumes."""

    def __init__(self, seed: int, nodes: int, more: int, resources: int) -> None:
        draw = np.random.default_rng(seed)
        ends = draw.integers(0, nodes, (2, 3 * more + 3))
        ends = ends[:, ends[0] != ends[1]][:, :more]
        self.ends = np.concatenate([np.stack([np.arange(nodes - 1), np.arange(1, nodes)]), ends], 1)
        arcs, self.nodes = self.ends.shape[1], nodes
        self.consumption = draw.integers(0, 4, (resources, arcs))
        self.consumption[0] = np.maximum(self.consumption[0], self.ends[0] > self.ends[1])
        self.consumption[:, : nodes - 1] = np.minimum(self.consumption[:, : nodes - 1], 1)
        self.lower = draw.integers(0, 2, (resources, nodes))
        self.upper = self.lower + draw.integers(-1, 3, (resources, nodes)) + 2 * np.arange(nodes)
        self.upper[:, 0], self.upper[:, -1] = self.lower[:, 0] + 1, 2 * nodes

    def walks(self, source: int, target: int, near: np.ndarray) -> Iterator[list[int]]:
        return all_walks(self.ends, (self.consumption, self.lower, self.upper), source, target, near)


def all_walks(ends: np.ndarray, resources: tuple[np.ndarray, ...], source: int, target: int, near: np.ndarray) -> Iterator[list[int]]:
    """All walks as lists of arcs; a node is not returned to while all others in between have it near."""
    (consumption, lower, upper), remember = resources, near.any()
    stack: list[tuple[int, np.ndarray, frozenset[int], list[int]]] = []
    if (lower[:, source] <= upper[:, source]).all():
        stack.append((source, lower[:, source], frozenset([source]), []))
    while stack:
        v, spent, memory, path = stack.pop()
        if v == target:
            yield path
            continue
        for a in np.flatnonzero(ends[0] == v).tolist():
            h = int(ends[1, a])
            now = np.maximum(lower[:, h], spent + consumption[:, a])
            if (now <= upper[:, h]).all() and not (remember and h in memory):
                stack.append((h, now, frozenset(u for u in memory if near[h, u]) | {h}, [*path, a]))


def counts(walks: list[list[int]], arcs: int) -> np.ndarray:
    """How often each walk uses each arc ``(walks, arcs)``."""
    return np.array([np.bincount(w, minlength=arcs) for w in walks]).reshape(len(walks), arcs)


@SLOW
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(3, 6),
    more=st.integers(0, 9),
    resources=st.integers(1, 3),
    memory=st.sampled_from(["none", "some", "all"]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    whole=st.booleans(),
)
@example(seed=1748, nodes=6, more=3, resources=2, memory="some", dtype=torch.float32, whole=True)  # long walks
def test_cheapest(seed: int, nodes: int, more: int, resources: int, memory: str, dtype: torch.dtype, whole: bool) -> None:
    own, draw = Instance(seed, nodes, more, resources), np.random.default_rng(seed)
    near = np.zeros((nodes, nodes), dtype=bool)
    options: dict[str, object] = {}
    if memory == "some":
        near = draw.random((nodes, nodes)) < 0.5
        near[0, 0] = True  # a memory of nothing stands for none
        options = {"neighbourhoods": near}
    elif memory == "all":
        near[:], options = True, {"elementary": True}
    source, target, demand = np.array([0, 1]), np.array([nodes - 1, nodes - 1]), [1.0, 0.7]
    walks = [list(own.walks(s, t, near)) for s, t in zip(source, target, strict=True)]
    arcs = own.ends.shape[1]
    if min(map(len, walks)) == 0:
        with pytest.raises(ModelError, match="has no walk to its target"):
            ResourcePath(*own.ends, source, target, own.consumption, own.upper, own.lower, demand, **options)  # type: ignore[arg-type]
        return
    kind = ResourcePath(*own.ends, source, target, own.consumption, own.upper, own.lower, demand, **options)  # type: ignore[arg-type]
    cost = torch.from_numpy(draw.normal(size=(2, 2, arcs)) - 0.3).to(dtype)
    cost = (2 * cost).round() if whole else cost  # ties, and zeros
    kind = kind.to(dtype, cost.device)
    (point, value), error = kind.min_oracle(cost), kind.value_error(cost)
    assert point.dtype == value.dtype == dtype
    for i, b in np.ndindex(2, 2):
        table = counts(walks[b], arcs)
        c = cost[i, b].double().numpy()
        truth = demand[b] * (table @ c).min()
        slack = 1e-14 * np.abs(table).max() * np.abs(c).sum()
        assert -slack <= truth - float(value[i, b]) <= float(error[i, b]) + slack
        longest = int(kind.longest.max())  # sums of so many terms are rounded as often
        few = 4 * (8 + longest + arcs) * torch.finfo(dtype).eps * demand[b] * np.abs(c).max() * longest
        assert float(error[i, b]) <= few + 100 * torch.finfo(dtype).tiny
        used = point[i, b].double().numpy() / demand[b]
        assert (np.abs(table - used).max(1) < 1e-6).any()
        assert demand[b] * float(used @ c) == pytest.approx(truth, abs=few, rel=0)
        assert int(kind.longest.expand(1, 2)[0, b]) >= table.sum(1).max()


def test_without_limits_it_is_a_path() -> None:
    """In a graph without cycles and with room for all, the shortest paths."""
    draw = np.random.default_rng(0)
    ends = np.sort(np.array(list(itertools.combinations(range(9), 2))).T, 0)
    cost = torch.from_numpy(draw.normal(size=(2, 3, ends.shape[1])))
    paths = Path(*ends, [0, 1, 2], [8, 8, 7])
    walks = ResourcePath(*ends, [0, 1, 2], [8, 8, 7], [[1]], [[8]])
    assert torch.equal(paths.min_oracle(cost)[0], walks.min_oracle(cost)[0])
    assert walks.longest.tolist() == [[8, 7, 5]]


def test_memory_of_several_words() -> None:
    """Seventy nodes: a cheap cycle at the end is used again and again by q-routes, once by elementary walks."""
    nodes = 70
    tails, heads = np.append(np.arange(nodes - 1), nodes - 2), np.append(np.arange(1, nodes), nodes - 4)
    cost = torch.zeros(1, 1, nodes, dtype=torch.float64)
    cost[..., -1] = -1
    limits = [[1]], [[nodes - 1 + 9]]  # room for three rounds of three arcs
    free, bound = (ResourcePath(tails, heads, 0, nodes - 1, *limits, elementary=e) for e in (False, True))
    near = np.eye(nodes)
    near[nodes - 3 :, nodes - 4] = 1  # two nodes later one remembers where the cycle begins
    ng = ResourcePath(tails, heads, 0, nodes - 1, *limits, neighbourhoods=near)
    found = [float(kind.min_oracle(cost)[1]) for kind in (free, ng, bound)]
    assert found == pytest.approx([-3, 0, 0], abs=1e-10)


def test_equal_blocks_have_equal_walks() -> None:
    """Of blocks with one source, one target and the same limits, each answer is that of the block alone."""
    own, draw = Routes(1), np.random.default_rng(0)
    kind = ResourcePath(*own.ends, 0, own.customers + 1, own.consumption, own.upper, own.lower, [1.0, 1.0, 1.0, 2.0])
    few = torch.from_numpy(draw.normal(size=(2, own.ends.shape[1])) * own.cost)
    cost = few[torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0]])]
    point, value = kind.min_oracle(cost)
    for i, b in np.ndindex(2, 4):
        alone = kind.with_data(demand=kind.demand[:, b : b + 1]).min_oracle(cost[i : i + 1, b : b + 1])
        assert torch.equal(alone[0][0, 0], point[i, b]) and torch.equal(alone[1][0, 0], value[i, b])
    closed = torch.full((1, 4, own.ends.shape[1]), 99.0, dtype=torch.float64)
    closed[0, 2] = torch.where(point[0, 2] > 0, 0.0, 99.0)
    other = kind.restrict(torch.zeros_like(closed), closed)
    assert other is not None
    found = other.min_oracle(cost)[0]
    assert torch.equal(found[0, 0], point[0, 0]) and not bool((found[0, 2] * point[0, 2]).any())


def test_memory_of_nodes_out_of_reach() -> None:
    """To forget them saves time and changes no answer."""
    own, draw = Routes(2), np.random.default_rng(0)
    cost = torch.from_numpy(own.cost - 10 * draw.random((1, 9, len(own.cost))))
    kind = ResourcePath(*own.ends, 0, own.customers + 1, own.consumption, own.upper, own.lower, elementary=True)
    assert bool((kind.reach < resource_path.LARGEST_AMOUNT).any())
    answer = kind.min_oracle(cost)[1]
    kind.reach = torch.full_like(kind.reach, resource_path.LARGEST_AMOUNT)
    assert torch.equal(answer, kind.min_oracle(cost)[1])


def test_large_graphs_remember_all_nodes() -> None:
    """There it would take too long to ask which ones are out of reach; walks of two arcs at most, by enumeration."""
    n = 300
    tails, heads = np.nonzero(~np.eye(n, dtype=bool))
    kind = ResourcePath(tails, heads, 0, n - 1, np.ones((2, len(tails))), np.full((2, n), 2.0), elementary=True)
    assert not bool((kind.reach < resource_path.LARGEST_AMOUNT).any())
    cost = torch.rand(1, 1, len(tails), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = np.full((n, n), np.inf)
    table[tails, heads] = cost[0, 0].numpy()
    assert float(kind.min_oracle(cost)[1]) == pytest.approx(min(table[0, -1], (table[0] + table[:, -1]).min()), rel=1e-12)


def test_fixings() -> None:
    """Closed arcs give detours, or prove that there is no way; other bounds are for others to keep."""
    kind = ResourcePath([0, 0, 1], [1, 2, 2], 0, 2, [[1]], [[2]], demand=2.0)
    cost, high = torch.ones(1, 1, 3, dtype=torch.float64), torch.full((1, 1, 3), 2 * 2.0, dtype=torch.float64)
    high[..., 1] = 0
    detour = kind.restrict(torch.zeros_like(high), high)
    assert detour is not None and float(detour.min_oracle(cost)[1]) == pytest.approx(4, rel=1e-12)
    high[..., 0] = 0
    none = detour.restrict(torch.zeros_like(high), high)
    assert none is not None and float(none.min_oracle(cost)[1]) > 1e100
    assert kind.restrict(torch.zeros_like(high), torch.ones_like(high)) is None
    assert kind.restrict(torch.ones_like(high), 4 * torch.ones_like(high)) is None


def test_bad_arguments() -> None:
    arcs, ends = ([0, 1, 2], [1, 2, 1]), (0, 2)
    with pytest.raises(ModelError, match="source 0 of block 1 of instance 0 has no walk to its target within the resources"):
        ResourcePath(*arcs, *ends, [[1]], [[[2]], [[1]]])
    with pytest.raises(ModelError, match="source 0 of block 0 of instance 0 has no walk"):
        ResourcePath(*arcs, *ends, [[1]], [[9, 9, 1]], [[0, 5, 0]])
    with pytest.raises(ModelError, match="source 2 of block 0 of instance 0 is its target"):
        ResourcePath(*arcs, 2, 2, [[1]], [[2]])
    with pytest.raises(ModelError, match="a cycle of arcs consumes nothing"):
        ResourcePath(*arcs, *ends, [[1, 0, 0]], [[2]])
    with pytest.raises(ModelError, match=r"consumption holds 0\.5; give whole numbers"):
        ResourcePath(*arcs, *ends, [[0.5, 1, 1]], [[2]])
    with pytest.raises(ModelError, match="upper holds -1"):
        ResourcePath(*arcs, *ends, [[1]], [[-1]])
    with pytest.raises(ModelError, match="demands must be positive"):
        ResourcePath(*arcs, *ends, [[1]], [[2]], demand=0)
    with pytest.raises(ModelError, match="not both"):
        ResourcePath(*arcs, *ends, [[1]], [[2]], neighbourhoods=np.eye(3), elementary=True)
    with pytest.raises(ShapeError, match=r"give \(resources, 3\)"):
        ResourcePath(*arcs, *ends, [[1, 1]], [[2]])
    with pytest.raises(ShapeError, match="row for each node"):
        ResourcePath(*arcs, *ends, [[1]], [[2]], neighbourhoods=np.eye(2))
    with pytest.raises(ShapeError, match="do not fit together"):
        ResourcePath(*arcs, *ends, np.ones((2, 3)), np.ones((3, 3)))


class Routes:
    """Vehicles from a depot and back to customers with time windows and loads, as Solomon's instances are made."""

    vehicles = 3

    def __init__(self, seed: int, customers: int = 7) -> None:
        draw, n = np.random.default_rng(seed), customers
        place = draw.integers(0, 30, (n + 2, 2))
        place[[0, n + 1]] = 15
        far = np.ceil(np.linalg.norm(place[:, None] - place, axis=2)).astype(np.int64)
        load = np.concatenate([[0], draw.integers(2, 6, n), [0]])
        early = np.concatenate([[0], draw.integers(15, 60, n), [0]])
        late = np.concatenate([[0], early[1:-1] + draw.integers(10, 50, n), [130]])
        self.lower, self.upper = np.stack([early, 0 * load]), np.stack([late, 0 * load + 14])
        tails, heads = np.nonzero(~np.eye(n + 2, dtype=bool))
        kept = (tails != n + 1) & (heads != 0)
        self.ends, self.customers = np.stack([tails[kept], heads[kept]]), n
        self.stays = (self.ends == [[0], [n + 1]]).all(0)
        self.cost = np.where(self.stays, 0.0, far[tuple(self.ends)])
        self.consumption = np.stack([far[tuple(self.ends)] + 3 + self.stays, load[self.ends[1]]])
        self.near = np.zeros((n + 2, n + 2), dtype=bool)
        np.put_along_axis(self.near, far.argsort(1, kind="stable")[:, :4], True, 1)
        self.visits = (self.ends[1] == np.arange(1, n + 1)[:, None]).astype(float)

    def model(self, blocks: int, integer: bool = False, **options: object) -> bl.Model:
        """A block for every vehicle, or one for the fleet."""
        n, each = self.customers, self.vehicles / blocks
        m = bl.Model()
        x = m.variable("x", (blocks, self.ends.shape[1]), lower=0, upper=each, integer=integer)
        limits = self.consumption, self.upper, self.lower, each
        m.add(ResourcePath(*self.ends, 0, n + 1, *limits, **options), x, name="routes")  # type: ignore[arg-type]
        m.add(np.tile(self.visits, blocks) @ x.reshape(-1) == 1, name="visits")
        m.minimize((torch.from_numpy(self.cost) * x).sum())
        return m

    def routes(self, near: np.ndarray) -> np.ndarray:
        """How often each route uses each arc."""
        resources = self.consumption, self.lower, self.upper
        return counts(list(all_walks(self.ends, resources, 0, self.customers + 1, near)), self.ends.shape[1])

    def master(self, near: np.ndarray, integrality: int = 0) -> float:
        """Cheapest combination of all routes by HiGHS; no arc is used more often than there are vehicles."""
        table = self.routes(near)
        parts = self.visits @ table.T, np.ones((1, len(table)))
        sides = np.append(np.ones(self.customers), self.vehicles)
        rows = LinearConstraint(np.concatenate(parts), sides, sides)
        found = milp(table @ self.cost, constraints=rows, integrality=np.full(len(table), integrality))
        return float(found.fun)


@pytest.mark.parametrize("seed", range(3))
def test_vehicle_routing(seed: int) -> None:
    """The bound is that of Dantzig and Wolfe over all routes, which is better the more walks remember."""
    own, bounds = Routes(seed), []
    n = own.customers
    memories = (
        (np.zeros((n + 2, n + 2), dtype=bool), {}),
        (own.near, {"neighbourhoods": own.near}),
        (np.ones((n + 2, n + 2), dtype=bool), {"elementary": True}),
    )
    for near, options in memories:
        truth = own.master(near)
        for blocks in (1, own.vehicles):
            m = own.model(blocks, **options)
            solution = m.solve(tol=1e-6)
            assert truth * (1 - 2e-6) <= float(solution.bound) <= truth * (1 + 1e-9)
            assert float(solution.safe_bound) <= truth * (1 + 1e-12)
            assert float(solution.primal) == pytest.approx(truth, rel=2e-6)
            certificate = bl.verify_certificate(m, solution.state)
            assert truth * (1 - 2e-6) <= float(certificate.bound) <= truth * (1 + 1e-12) and not certificate.independent
        bounds.append(truth)
    assert bounds == sorted(bounds) and bounds[-1] <= own.master(memories[-1][0], integrality=1)


def test_best_routes() -> None:
    """Branch and bound over a block for each vehicle finds the best elementary routes, where the bound is below them."""
    own = Routes(1)
    every = np.ones((own.customers + 2, own.customers + 2), dtype=bool)
    truth = own.master(every, integrality=1)
    assert own.master(every) < truth - 0.5
    found = bl.solve_exact(own.model(3, integer=True, elementary=True))
    assert float(found.bound) == pytest.approx(truth) and float(found.primal) == pytest.approx(truth)


def test_check_of_a_model() -> None:
    report = bl.check(Routes(0, customers=4).model(3), trials=2)
    assert report.untested == ("routes: optimality, since ResourcePath states no constraints()",)
