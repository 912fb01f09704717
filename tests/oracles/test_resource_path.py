"""Walks within resources against all walks, listed one by one, with and without compiled loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blocklp.errors import ModelError, ShapeError
from blocklp.oracles import Path, ResourcePath

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
        """All walks as lists of arcs; a node is not returned to while all others in between have it near."""
        stack: list[tuple[int, tuple[int, ...], frozenset[int], list[int]]] = []
        if (self.lower[:, source] <= self.upper[:, source]).all():
            stack.append((source, tuple(self.lower[:, source].tolist()), frozenset([source]), []))
        while stack:
            v, spent, memory, path = stack.pop()
            if v == target:
                yield path
                continue
            for a in np.flatnonzero(self.ends[0] == v).tolist():
                h = int(self.ends[1, a])
                now = np.maximum(self.lower[:, h], np.array(spent) + self.consumption[:, a])
                if (now <= self.upper[:, h]).all() and (h not in memory or not near.any()):
                    kept = frozenset(u for u in memory if near[h, u]) | {h}
                    stack.append((h, tuple(now.tolist()), kept, [*path, a]))


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
        assert float(error[i, b]) <= (1e-5 if dtype == torch.float32 else 1e-12)
        used = point[i, b].double().numpy() / demand[b]
        assert (np.abs(table - used).max(1) < 1e-6).any()
        assert demand[b] * float(used @ c) == pytest.approx(truth, abs=1e-5 if dtype == torch.float32 else 1e-12)
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
