"""Blocks that are added few at a time, as in a loop: solved as if added together, and known by their names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.blocks.type_difference import one_for_both
from blocklp.errors import ModelError, ScopeError, ShapeError
from blocklp.general_solvers.solvers import reference
from blocklp.language.small_groups import SMALL
from blocklp.language.taken_names import TakenNames
from blocklp.oracles import AtMostOne, Edge, Knapsack, Path, Polytope, Simplex
from blocklp.oracles.relu import ReluAffine, ReluHull
from blocklp.problems.verification import Builder
from blocklp.problems.verification.planet import Segment

PAIRS = np.array([(i, j) for i, j in itertools.combinations(range(12), 2) if (3 * i + j) % 4 == 0])


def graph(step: int, seed: int = 0, batch: int = 1) -> bl.Model:
    """Edges, so many in a call."""
    draw = np.random.default_rng(seed)
    m = bl.Model(batch=batch)
    y, z = m.variable("y", 12, lower=0, upper=1), m.variable("z", len(PAIRS), lower=0, upper=1)
    for first in range(0, len(PAIRS), step):
        i, j = PAIRS[first : first + step].T
        m.add(Edge(), [y[i], y[j], z[first : first + step]])
    m.minimize((draw.normal(size=(batch, 12)) * y).sum() + (draw.normal(size=(batch, len(PAIRS))) * z).sum())
    return m


def groups(model: bl.Model) -> list[int]:
    return [group.blocks for group in model.compile().decomposition().groups]


@pytest.mark.parametrize("method", ["auto", "proxbc", "admm", "pdhg", "min-marginals"])
@pytest.mark.parametrize("step", [1, 5])
def test_a_loop_is_solved_as_one_call_to_the_last_bit(method: str, step: int) -> None:
    """Cold and warm; multipliers and the state are by names."""
    loop, call = graph(step, batch=3), graph(len(PAIRS), batch=3)
    assert groups(loop) == groups(call) == [len(PAIRS)]
    found, expected = loop.solve(method=method, passes=80), call.solve(method=method, passes=80)
    assert torch.equal(found.bound, expected.bound) and torch.equal(found.x["z"], expected.x["z"])
    names = [b.name for b in loop.blocks]
    assert list(found.duals) == names == ["Edge", *(f"Edge_{k + 1}" for k in range(1, len(names)))]
    assert torch.equal(torch.cat([found.duals[b] for b in loop.blocks], 1), expected.duals["Edge"])
    again = loop.solve(method=method, passes=20, warm_start=found)
    assert torch.equal(again.bound, call.solve(method=method, passes=20, warm_start=expected).bound)
    assert bool((again.bound >= found.bound - 1e-9).all())


@pytest.mark.parametrize("method", ["auto", "proxbc", "admm", "pdhg"])
def test_bounds_of_variables_cut_blocks_of_a_loop(method: str) -> None:
    """As those of one call, to the last bit; names and states stay."""
    loop, call = graph(1, seed=2), graph(len(PAIRS), seed=2)
    bounds = {"y": (torch.arange(12.0).remainder(4).sub(2).clamp(min=0) / 2, torch.arange(12.0).remainder(3).add(0.5).clamp(max=1))}
    found, expected = (m.solve(method=method, tol=1e-7, passes=2000, bounds=bounds) for m in (loop, call))
    assert torch.equal(found.bound, expected.bound) and torch.equal(found.raw_x, expected.raw_x)
    call.add(call.variables["y"] >= bounds["y"][0])
    call.add(call.variables["y"] <= bounds["y"][1])
    best = float(reference(call).objective[0])
    assert best - 1e-4 <= found.bound.item() <= best + 1e-9
    assert {b.name for b in loop.blocks} <= set(found.duals) and all(found.duals[b].shape == (1, 1, 3) for b in loop.blocks)
    again = loop.solve(method=method, passes=1, bounds=bounds, warm_start=found)
    assert again.bound.item() >= found.bound.item() - 1e-7


def test_a_state_starts_the_model_with_more_and_without_some() -> None:
    """Names are found again wherever their blocks are in the group now."""
    m = graph(1)
    found = m.solve(tol=1e-9)
    m.remove("Edge_3")
    fewer = m.solve(passes=1, warm_start=found)
    kept = [b.name for b in m.blocks]
    assert fewer.state.duals["Edge_4"].shape == (1, 1, 3)
    assert list(fewer.duals)[: len(kept)] == kept and fewer.bound.item() <= float(reference(m).objective[0]) + 1e-9
    y, z = m.variables["y"], m.variables["z"]
    m.add(Edge(), [y[0], y[11], z[2]])
    more = m.solve(passes=1, warm_start=fewer)
    assert more.bound.item() >= fewer.bound.item() - 1e-9 and groups(m)[0] == len(PAIRS)
    with pytest.raises(bl.errors.ShapeError, match="multipliers for 'Edge_2', the model has \\(1, 3\\)"):
        m.solve(warm_start=bl.State({"Edge_2": torch.zeros(1, 2, 3, dtype=torch.float64)}, torch.full((1,), torch.nan).double()))
    with pytest.raises(bl.errors.NonFiniteError, match="'Edge_5'"):
        m.solve(warm_start=bl.State({"Edge_5": torch.full((1, 1, 3), torch.nan).double()}, torch.full((1,), torch.nan).double()))


def test_data_of_single_blocks_are_joined() -> None:
    """Capacities and matrices, shared or of their own: optima are those of HiGHS."""
    for seed in range(20):
        draw = np.random.default_rng(seed)
        m = bl.Model()
        x = m.variable("x", (12, 4), lower=0, upper=1)
        for i in range(6):
            m.add(Knapsack(draw.random(4) + 0.1, float(draw.random() + 0.3)), x[i])
        for i in range(6, 10):
            m.add(Polytope(draw.random((2, 4)), [-np.inf] * 2, draw.random(2) + 0.2, np.zeros(4), np.ones(4)), x[i])
        for i in range(10, 12):
            m.add(Simplex(4), x[i])
        m.add(x[:, 0].sum() <= 3.0)
        m.maximize((draw.random((12, 4)) * x).sum())
        assert groups(m) == [6, 4, 2]
        found, best = m.solve(tol=1e-7), float(reference(m).objective[0])
        assert best - 1e-7 <= found.bound.item() <= best + 1e-4


class Weighted(bl.BlockType):
    """The least of some points, which an attribute holds that is not named as block data."""

    def __init__(self, points: object, hidden: bool) -> None:
        self.dim = 2
        setattr(self, "_points" if hidden else "points", torch.as_tensor(points, dtype=torch.float64))

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        points = vars(self).get("_points", vars(self).get("points")).to(cost)
        values = cost @ points.T
        least = values.argmin(-1)
        return points[least], values.gather(-1, least[..., None])[..., 0]


class Slotted(Weighted):
    __slots__ = ("more",)


@pytest.mark.parametrize("hidden", [False, True])
def test_types_that_may_differ_stay_apart(hidden: bool) -> None:
    """Whatever attribute it is in which they do: one type for both would prove a wrong bound."""
    corners = [[[0, 0], [1, 0]], [[0, 0], [0, 1]], [[1, 1], [0, 1]], [[0, 0], [1, 0]]]
    m = bl.Model()
    x = m.variable("x", (4, 2), lower=0, upper=1)
    for own, points in zip(x, corners, strict=True):
        m.add(Weighted(points, hidden), own)
    cost = np.array([[1.0, -2.0], [-1.0, 3.0], [2.0, 5.0], [-4.0, 1.0]])
    m.minimize((cost * x).sum())
    best = sum(min(float(c @ p) for p in np.array(points)) for c, points in zip(cost, corners, strict=True))
    assert sorted(groups(m)) == [1, 1, 2]
    assert m.solve(method="proxbc", passes=50).bound.item() == pytest.approx(best)


class Kept(bl.BlockType):
    """Two points, 0 and that of the block, whose largest entry is kept."""

    block_data = ("point",)

    def __init__(self, point: object) -> None:
        self.dim, self.point = 2, torch.as_tensor(point, dtype=torch.float64).reshape(1, 1, 2)

    @cached_property
    def largest(self) -> Tensor:
        return self.point.amax(-1)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        value = (cost * self.point / self.largest[..., None]).sum(-1).clamp(max=0)
        return torch.where(value[..., None] < 0, self.point / self.largest[..., None], 0.0), value


def test_kept_properties_are_those_of_all_blocks() -> None:
    m, points = bl.Model(), [[1.0, 2.0], [8.0, 4.0], [1.0, 1.0]]
    x = m.variable("x", (3, 2), lower=0, upper=1)
    for own, point in zip(x, points, strict=True):
        m.add(Kept(point), own)
    m.minimize((np.array([[-1.0, 0.0], [0.0, -1.0], [-1.0, 3.0]]) * x).sum())
    assert groups(m) == [3] and m.solve(method="proxbc", passes=20).bound.item() == pytest.approx(-0.5 - 0.5)


class First(Weighted):
    """An oracle that reads the first block alone."""

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point, value = super().min_oracle(cost[:, :1])
        return point, value


class Hidden(bl.BlockType):
    """The least of zero and an amount of each block, by its place, which it does not say are data of blocks."""

    def __init__(self, amounts: list[float]) -> None:
        self.dim, self.amounts = 1, torch.tensor(amounts, dtype=torch.float64)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        amounts = self.amounts if len(self.amounts) == cost.shape[1] else self.amounts[:1].expand(cost.shape[1])
        point = torch.where(cost < 0, amounts[:, None], 0.0).to(cost)
        return point, (cost * point).sum(-1)


class Refusing(Hidden):
    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        if cost.shape[1] > len(self.amounts):
            raise IndexError("one amount a block")
        return super().min_oracle(cost)


def test_types_that_break_the_contract_are_solved_as_they_were_added() -> None:
    """Together they would prove what is false, or fail."""
    m = bl.Model()
    x, y, z = (m.variable(name, size, lower=0, upper=4) for name, size in (("x", (3, 2)), ("y", 4), ("z", 4)))
    for own in x:
        m.add(First([[0, 0], [1, 0]], False), own)
    for kind, own in ((Hidden, y), (Refusing, z)):
        for first in (0, 2):
            m.add(kind([1.0, 3.0]), own[first : first + 2].reshape(2, 1))
    m.minimize(-x.sum() - y.sum() - z.sum())
    assert groups(m) == [1, 1, 1, 2, 2, 2, 2]
    assert m.solve(method="proxbc", passes=10).bound.item() == pytest.approx(-3 - 8 - 8)


class Boxes(bl.BlockType):
    """{0 <= x <= u}, as written for one block: the rest of it takes the first one's data."""

    dim = 2
    block_data = ("u",)

    def __init__(self, u: float) -> None:
        self.u = torch.full((1, 1), u, dtype=torch.float64)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point = (cost < 0).to(cost) * self.u.to(cost)[..., None]
        return point, (point * cost).sum(-1)


class FirstRows(Boxes):
    def constraints(self) -> bl.Constraints:
        return bl.Constraints.box(torch.zeros(1, 1, 2).double(), self.u[:, :1, None].expand(-1, -1, 2))


class FirstFixed(Boxes):
    def restrict(self, lower: Tensor, upper: Tensor) -> Boxes | None:
        return None if bool((lower > 0).any()) else self.with_data(u=torch.minimum(self.u, upper[:, :1].amin(-1)))


class Remembering(Boxes):
    _kept = ("_own",)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        own = vars(self).setdefault("_own", self.u)
        point = (cost < 0).to(cost) * own.to(cost)[..., None]
        return point, (point * cost).sum(-1)


@dataclass
class Named:
    """Equal by its name alone."""

    name: str
    size: float = field(compare=False)


class Sized(Boxes):
    def __init__(self, size: float) -> None:
        super().__init__(1.0)
        self.named = Named("all alike", size)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point = (cost < 0).to(cost) * self.named.size
        return point, (point * cost).sum(-1)


class Sparse(Boxes):
    def __init__(self, u: float) -> None:
        super().__init__(u)
        self.matrix = torch.eye(2, dtype=torch.float64).to_sparse()


class Alone(Boxes):
    @classmethod
    def alike(cls, kinds: Sequence[Boxes]) -> list[Boxes]:
        raise ValueError("one of its own for each")


@pytest.mark.parametrize("kind", [FirstRows, FirstFixed, Remembering, Sized, Sparse, Alone])
def test_types_written_for_one_block_prove_what_they_did(kind: type[Boxes]) -> None:
    """With sizes that differ in the middle only."""
    sizes = [0.5] * 9
    sizes[4] = 1.0
    m = bl.Model()
    x = m.variable("x", (9, 2), lower=0, upper=1)
    for size, own in zip(sizes, x, strict=True):
        m.add(kind(size), own)
    m.minimize(-x.sum())
    bounds = {"x": (torch.zeros(9, 2), torch.where(torch.arange(9)[:, None] == 0, 0.1, 1.0).expand(9, 2))}
    assert m.solve(method="proxbc", passes=20).bound.item() == pytest.approx(-2 * 5.0)
    assert m.solve(method="proxbc", passes=50, bounds=bounds).bound.item() == pytest.approx(-2 * 4.6)


def test_oracles_on_graphs_and_maps_in_loops() -> None:
    """Remembered answers do not keep them apart; affine maps of one block each stay alone."""
    for dtype in (torch.float64, torch.float32):
        draw, m = np.random.default_rng(0), bl.Model()
        x = m.variable("x", (6, 4), lower=0, upper=1)
        for demand, own in zip(np.linspace(0.4, 0.9, 6), x, strict=True):
            m.add(Path([0, 0, 1, 2], [1, 2, 3, 3], [0], [3], [demand]), own)
        m.add(x[:, 0].sum() <= 1.0)
        m.minimize((draw.normal(size=(6, 4)) * x).sum())
        assert groups(m) == [6]
        found, best = m.solve(tol=1e-5, dtype=dtype), float(reference(m).objective[0])
        assert best - 1e-3 <= found.bound.item() <= best + 1e-9
    m, hull = bl.Model(), ReluHull([-1.0], [2.0])
    x, y = (m.variable(name, 3, lower=-3, upper=3) for name in "xy")
    for k in range(3):
        m.add(hull, [x[k], y[k]])
    m.minimize((y - x).sum())
    assert groups(m) == [3] and m.solve(tol=1e-6).bound.item() == pytest.approx(float(reference(m).objective[0]), abs=1e-5)
    builder = Builder((3,))
    node = builder.linear(0, torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.0, -1.0]]))
    segment, m = Segment.of(builder.build(), node), bl.Model()
    v, z = m.variable("v", (4, 3), lower=-2, upper=2), m.variable("z", (4, 2), lower=-20, upper=20)
    for k in range(4):
        m.add(ReluAffine(segment, ["relu"], [3], np.full(3, -0.5 * k - 0.1), np.full(3, 1.0)), [v[k][None], z[k][None]])
    m.minimize(v.sum() - z.sum())
    assert groups(m)[:4] == [1] * 4
    assert m.solve(passes=1000).bound.item() == pytest.approx(float(reference(m).objective[0]), abs=1e-3)


def test_models_with_other_names_say_where() -> None:
    several = []
    for n in (3, 4):
        m = bl.Model()
        x = m.variable("x", n, lower=0, upper=1)
        for i in range(n - 1):
            m.add(AtMostOne(2), [x[i], x[i + 1]])
        m.maximize(x.sum())
        several.append(m)
    with pytest.raises(ModelError, match="the first has none where another has 'AtMostOne_3'; add blocks whose number differs"):
        bl.compile(several)


def test_lists_of_rows_and_data_without_leading_dimensions_are_told() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    with pytest.raises(ModelError, match="one constraint at a time; call it for each"):
        m.add([x[0] <= 0.5, x[1] <= 0.5])
    flat = Kept([1.0, 1.0])
    flat.point = flat.point[0, 0]
    with pytest.raises(ShapeError, match=r"point has leading dimensions \(2,\); .* as data\[None, None\] of one block"):
        m.add(flat, x)


def test_what_cannot_be_compared_differs() -> None:
    one = Weighted([[0, 0], [1, 0]], False)
    assert one_for_both(one, one) and one_for_both(one, Weighted([[0, 0], [1, 0]], False))
    assert not one_for_both(one, Weighted([[0, 0], [1, 0]], True))
    assert not one_for_both(Slotted([[0, 0]], False), Slotted([[0, 0]], False))
    other = Weighted([[0, 0], [1, 0]], False)
    other.rule = lambda cost: cost
    assert not one_for_both(one, other) and not one_for_both(other, one)


def test_large_groups_stay_as_they_are() -> None:
    m, count = bl.Model(), SMALL // 2 + 1
    x = m.variable("x", (3, count, 2), lower=0, upper=1)
    for own in (x[0], x[1], x[2][: count - 1]):
        m.add(Simplex(2), own)
    m.add(Simplex(2), x[2][count - 1 :])
    m.minimize(x.sum())
    assert groups(m) == [count, count, count]
    assert m.solve(tol=1e-9).bound.item() == pytest.approx(3 * count)


@pytest.mark.parametrize("method", ["proxbc", "admm"])
def test_models_with_loops_are_solved_together_as_alone(method: str) -> None:
    several = [graph(1, seed) for seed in range(4)]
    found = bl.compile(several).solve(method=method, passes=60)
    for i, m in enumerate(several):
        alone, own = m.solve(method=method, passes=60), found.instance(i)
        assert torch.equal(alone.bound, own.bound) and torch.equal(alone.duals["Edge_7"], own.duals["Edge_7"])


def test_single_variables_make_a_block() -> None:
    m = bl.Model()
    x, y = m.variable("x", 3, lower=0, upper=1), m.variable("y", (), lower=0, upper=1)
    handle = m.add(Edge(), [x[0], x[2], y])
    assert handle.scope.tolist() == [[0, 2, 3]] and m.add(Simplex(1), x[1]).scope.tolist() == [[1]]
    with pytest.raises(ScopeError, match="first axis of each is that of blocks, and single variables are those of one"):
        m.add(Edge(), [x[:2], x[1:], y])


def test_names_are_free_or_taken_however_a_model_changes() -> None:
    def named(*names: str) -> list[object]:
        return [bl.language.handles.Blocks(name, Edge(), torch.zeros(1, 3)) for name in names]

    names, blocks, rows = TakenNames(), named("Edge", "Edge_2", "Edge_4"), named("rows_1")
    assert names.free("Edge", blocks, rows) == "Edge_3" and names.free("Simplex", blocks, rows) == "Simplex"
    blocks += named("Edge_3")
    assert names.free("Edge", blocks, rows) == "Edge_5" and names.free("rows_1", blocks, rows) == "rows_1_2"
    del blocks[1]
    assert names.free("Edge", blocks, rows) == "Edge_2" and names.among(blocks, rows) == {"Edge", "Edge_4", "Edge_3", "rows_1"}
    blocks += named("Edge_2", "Edge_5")
    rows.clear()
    assert names.free("Edge", blocks, rows) == "Edge_6" and "rows_1" not in names.among(blocks, rows)


class OwnEdge(bl.FiniteVertices):
    vertices = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1))


@pytest.mark.parametrize("make", [lambda: Edge(), lambda: OwnEdge(), lambda: Simplex(3), lambda: Knapsack([1.0, 2.0, 3.0], 2.0)])
def test_thousands_of_blocks_in_a_loop_are_one_group(make: Callable[[], bl.BlockType]) -> None:
    """Their number of names grows, and the number of oracle calls of a pass does not."""
    m, count = bl.Model(), 600
    x = m.variable("x", (count, 3), lower=0, upper=1)
    for own in x:
        m.add(make(), own)
    m.minimize(np.linspace(-1, 1, count * 3).reshape(count, 3).ravel() @ x.reshape(-1))
    assert groups(m) == [count] and m.solve(tol=1e-6).bound.item() == pytest.approx(float(reference(m).objective[0]), abs=1e-3)
