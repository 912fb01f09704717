"""Every oracle passes the exam that ships with the package."""

import itertools
from collections.abc import Iterator

import networkx as nx
import numpy as np
import pytest
import torch

from blocklp.blocks.contract import BlockType
from blocklp.blocks.finite import FiniteVertices
from blocklp.oracles import (
    Arborescence,
    AtMostOne,
    Box,
    Chain,
    Cut,
    Edge,
    FourClique,
    FourCycle,
    IntegerKnapsack,
    Joint,
    Knapsack,
    Pairwise,
    Path,
    Polytope,
    ResourcePath,
    Schedule,
    Simplex,
    Transport,
    Tree,
    Triangle,
)
from blocklp.testing.conformance import BlockTypeConformance

from .. import simulated_device


@pytest.fixture(autouse=True)
def _on_a_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device where there is one, else the simulated one."""
    there = "cuda" if torch.cuda.is_available() else simulated_device.install() if simulated_device.available() else None
    monkeypatch.setattr(BlockTypeConformance, "device", there)


class TestEdge(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Edge()


class TestTriangle(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Triangle()


class TestFourCycle(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return FourCycle()


class TestFourClique(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return FourClique()


class TestTable(BlockTypeConformance):
    """A table in general position, flat in one direction, with facets from Qhull."""

    table = np.hstack([np.random.default_rng(1).normal(size=(9, 3)), np.ones((9, 1))])

    def block_type(self) -> BlockType:
        return FiniteVertices(self.table)


class TestJoint(BlockTypeConformance):
    """A factor of three variables that shares the marginal of a pair with others."""

    def block_type(self) -> BlockType:
        return Joint((2, 3, 2), [(0,), (1,), (2,), (0, 2)])


class TestChain(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Chain((2, 3, 2))

    def vertices(self) -> np.ndarray:
        chains = []
        for a, b, c in itertools.product(range(2), range(3), range(2)):
            x, y, z = np.eye(2)[a], np.eye(3)[b], np.eye(2)[c]
            chains.append(np.concatenate([x, y, z, np.outer(x, y).ravel(), np.outer(y, z).ravel()]))
        return np.array(chains)[None, None]


class TestChainThatReads(BlockTypeConformance):
    """An automaton of two steps, the second of which reads nothing."""

    def block_type(self) -> BlockType:
        return Chain((2, 3, 2), read=(2, 0))

    def vertices(self) -> np.ndarray:
        chains = []
        for a, r, b, c in itertools.product(range(2), range(2), range(3), range(2)):
            x, s, y, z = np.eye(2)[a], np.eye(2)[r], np.eye(3)[b], np.eye(2)[c]
            triple = np.einsum("i,j,k->ijk", x, s, y)
            chains.append(np.concatenate([x, y, z, s, triple.ravel(), np.outer(y, z).ravel()]))
        return np.array(chains)[None, None]


class TestSimplex(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Simplex(4)

    def vertices(self) -> np.ndarray:
        return np.eye(4)[None, None]


class TestSimplexOfOne(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Simplex(1)

    def vertices(self) -> np.ndarray:
        return np.ones((1, 1, 1, 1))


class TestSimplexOfMass(BlockTypeConformance):
    """Masses by instance and block."""

    mass = np.array([[0.3, 1.0, 7.0], [1e-3, 2.5, 1.0]])

    def block_type(self) -> BlockType:
        return Simplex(4, self.mass)

    def vertices(self) -> np.ndarray:
        return self.mass[..., None, None] * np.eye(4)


class TestAtMostOneOfMass(BlockTypeConformance):
    """One mass for all."""

    def block_type(self) -> BlockType:
        return AtMostOne(3, 1.7)

    def vertices(self) -> np.ndarray:
        return 1.7 * np.vstack([np.zeros((1, 3)), np.eye(3)])[None, None]


class TestAtMostOne(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return AtMostOne(4)

    def vertices(self) -> np.ndarray:
        return np.vstack([np.zeros((1, 4)), np.eye(4)])[None, None]


class TestAtMostOneOfOne(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return AtMostOne(1)

    def vertices(self) -> np.ndarray:
        return np.array([[0.0], [1.0]])[None, None]


class TestPairwise(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Pairwise(2, 3)

    def vertices(self) -> np.ndarray:
        rows = []
        for a, b in itertools.product(range(2), range(3)):
            rows.append(np.concatenate([np.eye(2)[a], np.eye(3)[b], np.outer(np.eye(2)[a], np.eye(3)[b]).ravel()]))
        return np.array(rows)[None, None]


class TestPairwiseOneLabel(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Pairwise(1, 2)

    def vertices(self) -> np.ndarray:
        return np.array([[1.0, 1, 0, 1, 0], [1, 0, 1, 0, 1]])[None, None]


class TestBox(BlockTypeConformance):
    lower, upper = np.sort(np.random.default_rng(2).normal(size=(2, 2, 3, 3)), 0)

    def block_type(self) -> BlockType:
        return Box(self.lower, self.upper)

    def vertices(self) -> np.ndarray:
        sides = np.stack([self.lower, self.upper])
        return np.stack([np.stack([sides[s[d], ..., d] for d in range(3)], -1) for s in itertools.product((0, 1), repeat=3)], 2)


def knapsack_vertices(kind: Knapsack) -> np.ndarray:
    """All points with at most one variable off its bounds, where the capacity is used up."""
    lead, dim = kind.weights.shape[:2], kind.dim
    found = np.empty(lead, dtype=object)
    for i, b in itertools.product(*map(range, lead)):
        w, lo, up = (t[i, b].numpy() for t in (kind.weights, kind.lower, kind.upper))
        capacity, least = (
            none if side is None else float(side[i, b]) for side, none in ((kind.capacity, np.inf), (kind.least, -np.inf))
        )
        rows = []
        for s in itertools.product((0, 1), repeat=dim):
            x = np.where(s, up, lo)
            if least - 1e-9 <= w @ x <= capacity + 1e-9:
                rows.append(x)
            for side, k in itertools.product((least, capacity), np.flatnonzero(w)):
                y = x.copy()
                y[k] += (side - w @ x) / w[k]
                if lo[k] <= y[k] <= up[k]:
                    rows.append(y)
        found[i, b] = rows
    longest = max(map(len, found.flat))
    return np.array([[rows + rows[:1] * (longest - len(rows)) for rows in line] for line in found])


class TestKnapsack(BlockTypeConformance):
    weights = np.random.default_rng(3).uniform(0, 2, size=(2, 3, 4)) * np.random.default_rng(4).integers(0, 2, size=(2, 3, 4))

    def block_type(self) -> Knapsack:
        return Knapsack(self.weights, [[0.0, 0.7, 1.5], [9.0, 1.0, 0.3]])

    def vertices(self) -> np.ndarray:
        return knapsack_vertices(self.block_type())


class TestKnapsackBounds(BlockTypeConformance):
    """Bounds of both signs, some of width zero; weights shared, bounds by block."""

    lower = np.random.default_rng(6).uniform(-2, 1, size=(3, 4))
    width = np.random.default_rng(7).uniform(0, 2, size=(3, 4)) * np.array([1, 1, 0, 1])

    def block_type(self) -> Knapsack:
        weights = np.array([0.3, 1.0, 2.0, 1e-3])
        room = np.array([0.0, 0.9, 20.0])
        return Knapsack(weights, (self.lower * weights).sum(1) + room, self.lower, self.lower + self.width)

    def vertices(self) -> np.ndarray:
        return knapsack_vertices(self.block_type())


class TestKnapsackOfSigns(BlockTypeConformance):
    """Weights of either sign, with two sides: far apart, near and equal."""

    weights = np.random.default_rng(13).normal(size=(3, 4)).round(1)

    def block_type(self) -> Knapsack:
        return Knapsack(self.weights, [1.0, 0.2, 0.1], least=[-0.5, 0.1, 0.1])

    def vertices(self) -> np.ndarray:
        return knapsack_vertices(self.block_type())


class TestKnapsackOfLeastLoads(BlockTypeConformance):
    """Cover: a least load alone, by instance, in boxes."""

    lower = np.random.default_rng(14).uniform(-1, 0, size=(2, 1, 4))

    def block_type(self) -> Knapsack:
        return Knapsack([1.0, 2.0, 0.0, 0.5], lower=self.lower, upper=1.5, least=[[1.0], [3.0]])

    def vertices(self) -> np.ndarray:
        return knapsack_vertices(self.block_type())


class TestAssignment(BlockTypeConformance):
    """Three by three: the permutation matrices."""

    def block_type(self) -> BlockType:
        return Transport(np.ones(3), np.ones(3))

    def vertices(self) -> np.ndarray:
        return np.array([np.eye(3)[list(p)].ravel() for p in itertools.permutations(range(3))])[None, None]


class TestTransport(BlockTypeConformance):
    """More is there than asked for in some blocks; masses by instance, one of them zero."""

    def block_type(self) -> BlockType:
        return Transport([[2.0, 1.0], [0.7, 0.8], [3.0, 0.0]], [[[0.75, 0.25, 0.5]], [[0.4, 0.4, 0.6]]])


class TestPath(BlockTypeConformance):
    """An acyclic graph with arcs in parallel and a dead end; ends and demands by block and instance."""

    def block_type(self) -> BlockType:
        return Path([0, 0, 1, 1, 0, 1, 2, 2], [1, 2, 2, 3, 3, 3, 3, 4], [0, 0, 1], [3, 4, 3], [[1.0, 0.3, 2.0], [1.0, 5.0, 1e-3]])


class TestSchedule(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Schedule([2, 1, 3], 5, [0, 1, 0], [5, 4, 5])


class TestPathOfCycles(BlockTypeConformance):
    """Costs of either sign around cycles."""

    def block_type(self) -> BlockType:
        return Path([0, 1, 2, 0, 2, 3, 1], [1, 2, 0, 2, 1, 1, 3], [0, 2, 3], [3, 3, 0], 1.5)


class TestPathOfCyclesByDemand(BlockTypeConformance):
    """Demands that single precision rounds."""

    def block_type(self) -> BlockType:
        return Path([0, 1, 2, 0, 2, 3, 1], [1, 2, 0, 2, 1, 1, 3], [0, 2, 3], [3, 3, 0], [0.3, 0.7, 1.1])


class TestCut(BlockTypeConformance):
    """Four nodes, arcs both ways and in parallel; source and sink by block, one node fixed as well."""

    tails, heads = np.array([0, 1, 1, 2, 0, 3]), np.array([1, 0, 2, 3, 2, 1])
    source, sink = np.array([0, 1, 3]), np.array([3, 3, 0])

    def block_type(self) -> BlockType:
        return Cut(self.tails, self.heads, self.source, self.sink)

    def vertices(self) -> np.ndarray:
        rows = []
        for s, t in zip(self.source, self.sink, strict=True):
            sides = [np.array(z) for z in itertools.product((0, 1), repeat=4) if z[s] == 1 and z[t] == 0]
            least = [np.maximum(z[self.tails] - z[self.heads], 0) for z in sides]
            more = [np.array(w) for w in itertools.product((0, 1), repeat=6)]
            rows.append([np.concatenate([z, np.maximum(y, w)]) for w in more for z, y in zip(sides, least, strict=True)])
        return np.array(rows)[None]


class TestCutWithoutEnds(BlockTypeConformance):
    def block_type(self) -> BlockType:
        return Cut([0, 1, 2], [1, 2, 0])


class TestResourcePath(BlockTypeConformance):
    """Walks around a cycle while a resource lasts; consumption by block, limits by instance, several walks in a block."""

    tails, heads, source = np.array([0, 1, 2, 2, 0, 1]), np.array([1, 2, 1, 3, 2, 3]), np.array([0, 1, 2])
    consumption = np.array([[[1, 1, 1, 1, 2, 0]], [[1, 2, 1, 1, 2, 3]], [[2, 0, 1, 2, 1, 1]]])
    upper, demand = np.array([6, 5]), np.array([1.0, 0.3, 2.0])

    def block_type(self) -> BlockType:
        upper = np.tile(self.upper[:, None, None, None], (1, 3, 1, 4))
        return ResourcePath(self.tails, self.heads, self.source, 3, self.consumption, upper, demand=self.demand)

    def vertices(self) -> np.ndarray:
        found = [[list(self.walks(b, upper)) for b in range(3)] for upper in self.upper]
        most = max(len(w) for row in found for w in row)
        return np.array([[(w + [w[0]] * most)[:most] for w in row] for row in found]) * self.demand[:, None, None]

    def walks(self, block: int, upper: int) -> Iterator[list[int]]:
        stack = [(int(self.source[block]), 0, [0] * 6)]
        while stack:
            v, spent, used = stack.pop()
            if v == 3:
                yield used
                continue
            for a in np.flatnonzero(self.tails == v).tolist():
                now = spent + int(self.consumption[block, 0, a])
                if now <= upper:
                    stack.append((int(self.heads[a]), now, [u + (e == a) for e, u in enumerate(used)]))


class TestTree(BlockTypeConformance):
    """Five nodes, edges in parallel; constraints and vertices are known."""

    ends = np.array([[0, 1, 2, 3, 0, 1, 0, 1], [1, 2, 3, 4, 4, 3, 1, 4]])
    forest = False

    def block_type(self) -> BlockType:
        return Tree(*self.ends, forest=self.forest)

    def vertices(self) -> np.ndarray:
        points = np.array(list(itertools.product((0.0, 1.0), repeat=self.ends.shape[1])))
        kept = [not x.any() or nx.is_forest(nx.MultiGraph(self.ends[:, x > 0].T.tolist())) for x in points]
        return points[[k and (self.forest or x.sum() == 4) for k, x in zip(kept, points, strict=True)]][None, None]


class TestForest(TestTree):
    forest = True


class TestArborescence(BlockTypeConformance):
    """Four nodes, arcs both ways and in parallel; roots by block and instance."""

    ends = np.array([[0, 1, 2, 3, 1, 2, 0, 3, 1], [1, 2, 3, 0, 0, 1, 2, 1, 2]])
    root = np.array([[0, 1, 3], [2, 2, 0]])

    def block_type(self) -> BlockType:
        return Arborescence(*self.ends, self.root)

    def vertices(self) -> np.ndarray:
        points = np.array([x for x in itertools.product((0.0, 1.0), repeat=9) if sum(x) == 3])
        graphs = [nx.MultiDiGraph(self.ends[:, x > 0].T.tolist()) for x in points]
        trees = [len(g) == 4 and nx.is_arborescence(g) for g in graphs]
        kept = [[points[[t and not g.in_degree(r) for g, t in zip(graphs, trees, strict=True)]] for r in row] for row in self.root]
        most = max(len(k) for row in kept for k in row)
        return np.array([[np.resize(k, (most, 9)) for k in row] for row in kept])


class TestPolytopeListed(BlockTypeConformance):
    """Two-sided, one-sided and equality rows, by block; vertices are listed."""

    matrix = np.random.default_rng(8).normal(size=(3, 3, 3)).round(2)

    def block_type(self) -> Polytope:
        return Polytope(self.matrix, [-0.5, -np.inf, 0.1], [0.5, 1.0, 0.1], [-1, -1, -1], [1, 2, 1])


class TestPolytopeSolved(BlockTypeConformance):
    """Seven variables: solved as LPs."""

    trials = 6
    matrix = np.random.default_rng(9).normal(size=(2, 7)).round(2)

    def block_type(self) -> Polytope:
        return Polytope(self.matrix, [-1, -np.inf], [1, 0.5], np.zeros(7), np.ones(7))


class TestPolytopeWithEqualities(BlockTypeConformance):
    """Eight variables: equality, one-sided and idle rows through a common point, by block."""

    trials = 6
    draw = np.random.default_rng(10)
    matrix, inside = draw.normal(size=(3, 4, 8)).round(2), draw.random((3, 8))

    def block_type(self) -> Polytope:
        at = np.einsum("brd,bd->br", self.matrix, self.inside)
        below, above = np.array([0, np.inf, 0.5, np.inf]), np.array([0, 0.2, np.inf, np.inf])
        return Polytope(self.matrix, at - below, at + above, np.full(8, -0.5), np.array([1.0, 1.5, 2.0])[:, None].repeat(8, 1))


class TestPolytopeDegenerate(BlockTypeConformance):
    """Sixteen variables: ten rows of small integers, all tight in one vertex of the box, by instance."""

    trials = 3
    matrix = np.random.default_rng(11).integers(-1, 2, size=(2, 1, 10, 16)).astype(float)

    def block_type(self) -> Polytope:
        return Polytope(self.matrix, np.full(10, -np.inf), np.maximum(self.matrix, 0).sum(-1) - 1, np.zeros(16), np.ones(16))

    test_value_error = None  # exact arithmetic takes too long here; see test_polytope.py


class TestPolytopeOfSizes(BlockTypeConformance):
    """Rows and variables of sizes from 1e-4 to 1e4, one variable fixed."""

    trials = 6
    scale = 10.0 ** np.array([-4, 4, 0, 2, -2, 0, 3])
    matrix = np.random.default_rng(12).normal(size=(3, 7)).round(2) / scale

    def block_type(self) -> Polytope:
        rows = np.array([1e4, 1e-4, 1])
        upper = np.where(np.arange(7) == 2, -1.0, 1.0) * self.scale
        return Polytope(rows[:, None] * self.matrix, [-np.inf, -1e-4, -np.inf], rows, -self.scale, upper)


def test_polytopes_take_the_two_ways() -> None:
    assert TestPolytopeListed().block_type().vertices is not None
    assert TestPolytopeSolved().block_type().vertices is None


class TestRestrictedAgain(BlockTypeConformance):
    """A restricted type is a type: fix the second variable to 0 in some blocks."""

    def block_type(self) -> BlockType:
        upper = torch.ones(1, 3, 5, dtype=torch.float64)
        upper[0, 1:, 1] = 0
        kind = Knapsack([1.0, 2.0, 0.0, 0.5, 1.0], 1.7).restrict(torch.zeros_like(upper), upper)
        assert kind is not None
        return kind


class TestIntegerKnapsack(BlockTypeConformance):
    """Weights of either sign by block, bounds of both signs, both sides, one of which does not bind."""

    weights = np.random.default_rng(21).integers(-3, 6, size=(3, 5)).astype(float)
    lower = np.random.default_rng(22).integers(-2, 1, size=(3, 5))

    def block_type(self) -> BlockType:
        load = (self.weights * self.lower).sum(1)
        capacity = load + np.array([3.0, 8.0, 30.0])
        return Knapsack(self.weights, capacity, self.lower, self.lower + 2, least=load - 2, integer=True)

    def vertices(self) -> np.ndarray:
        return integer_points(self.block_type())


class TestIntegerKnapsackOfBits(BlockTypeConformance):
    """Capacities of decimals, by instance."""

    weights = np.array([0.3, 0.7, 1.1, 0.0, 0.4])

    def block_type(self) -> BlockType:
        return Knapsack(self.weights, [[1.4], [0.8]], integer=True)

    def vertices(self) -> np.ndarray:
        return integer_points(self.block_type())


def integer_points(kind: BlockType) -> np.ndarray:
    """All integer points of integer knapsacks, by their rows."""
    assert isinstance(kind, IntegerKnapsack)
    rows = kind.integer_constraints()
    assert rows.below is not None and rows.above is not None
    lead = kind.weights.shape[:2]
    found = np.empty(lead, dtype=object)
    for i, b in itertools.product(*map(range, lead)):
        ranges = zip(rows.below[i, b].int().tolist(), rows.above[i, b].int().tolist(), strict=True)
        points = np.array(list(itertools.product(*(range(lo, hi + 1) for lo, hi in ranges))), dtype=float)
        load = points @ rows.matrix[i, b, 0].numpy()
        fits = (load <= float(rows.upper[i, b, 0]) + 1e-9) & (load >= float(rows.lower[i, b, 0]) - 1e-9)
        found[i, b] = list(points[fits])
    longest = max(map(len, found.flat))
    return np.array([[rows + rows[:1] * (longest - len(rows)) for rows in line] for line in found])
