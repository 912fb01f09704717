"""The generic polytope: both of its ways against HiGHS, degenerate systems, and what is refused."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError, OracleError, ShapeError
from blocklp.general_solvers.small_lp import exact_minimum, minimum
from blocklp.oracles import Polytope
from blocklp.oracles.lp import dual_simplex
from blocklp.oracles.lp.dual_simplex import SimplexSettings, System
from blocklp.oracles.polytope import dependent
from blocklp.rounding import roundoff
from blocklp.testing.check import check


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_listed_vertices_against_lps(dim: int) -> None:
    draw = np.random.default_rng(dim)
    for trial in range(12):
        rows = int(draw.integers(1, 5))
        # Integer rows make degenerate vertices; every other system has an equality through an interior point.
        matrix = draw.integers(-2, 3, size=(rows, dim)).astype(float)
        inside = draw.uniform(-0.5, 0.5, size=dim)
        lower, upper = matrix @ inside - draw.uniform(0, 1, rows), matrix @ inside + draw.uniform(0, 1, rows)
        if trial % 2:
            lower[0] = upper[0] = matrix[0] @ inside
        else:
            lower[0] = -np.inf
        x_lower, x_upper = -np.ones(dim), np.ones(dim)
        kind = Polytope(matrix, lower, upper, x_lower, x_upper)
        assert kind.vertices is not None
        cost = draw.normal(size=(30, dim))
        value = kind.min_oracle(torch.tensor(cost)[:, None])[1][:, 0]
        for c, v in zip(cost, value.tolist(), strict=True):
            best = minimum(c, matrix, lower, upper, x_lower, x_upper)
            assert best is not None and abs(c @ best - v) < 1e-7


class Unlisted(Polytope):
    """Without lists of vertices."""

    most_systems = 0


def test_both_ways_agree() -> None:
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(2, 3, 2, 4))
    data = (matrix, [-1.0, -np.inf], [0.5, 0.5], -np.ones(4), np.ones(4))
    cost = torch.tensor(draw.normal(size=(2, 3, 4)))
    listed = Polytope(*data)
    solved = Unlisted(*data)
    assert listed.vertices is not None and solved.vertices is None
    assert torch.allclose(listed.min_oracle(cost)[1], solved.min_oracle(cost)[1], atol=1e-8)
    low = solved.to(torch.float32, cost.device).min_oracle(cost.float())
    assert low[0].dtype == low[1].dtype == torch.float32
    assert torch.allclose(low[1].double(), listed.min_oracle(cost)[1], atol=1e-5)
    assert torch.equal(solved.min_oracle(cost)[0], solved.min_oracle(cost)[0])


def systems(seed: int, blocks: int, rows: int, dim: int) -> tuple[np.ndarray, ...]:
    """Blocks with a common point: every third row an equality, every third two-sided."""
    draw = np.random.default_rng(seed)
    matrix, inside = draw.normal(size=(blocks, rows, dim)), draw.random((blocks, dim))
    at = np.einsum("brd,bd->br", matrix, inside)
    lower, upper = np.full_like(at, -np.inf), at + 0.3 * draw.random(at.shape)
    lower[:, ::3], upper[:, ::3], lower[:, 1::3] = at[:, ::3], at[:, ::3], at[:, 1::3] - 0.3
    return matrix, lower, upper, np.zeros((blocks, dim)), np.ones((blocks, dim))


@pytest.mark.parametrize(("dim", "rows"), [(7, 0), (8, 8), (16, 4), (16, 20)])
def test_solved_blocks_are_feasible_and_proven(dim: int, rows: int) -> None:
    data = systems(dim, 12, rows, dim)
    kind = Polytope(*data)
    cost = torch.randn(2, 12, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))
    point, value = kind.min_oracle(cost)
    error = kind.value_error(cost)
    assert bool((error < 1e-10).all()) and bool(((cost * point).sum(-1) - value).abs().max() < 1e-12)
    assert bool(((torch.tensor(data[3]) <= point) & (point <= torch.tensor(data[4]))).all())
    activity = (kind.matrix * point[:, :, None]).sum(-1)
    assert bool(((activity > kind.lower - 1e-12) & (activity < kind.upper + 1e-12)).all())
    for b in range(12):
        best = minimum(cost[1, b].numpy(), *(t[b] for t in data))
        assert best is not None and abs(cost[1, b].numpy() @ best - float(value[1, b])) < 1e-7


def test_any_duals_prove_a_bound() -> None:
    """Also wrong ones, in exact arithmetic: here against the optimum with room for its own rounding."""
    data = systems(3, 20, 6, 7)
    system = System(*map(torch.tensor, data))
    draw = torch.Generator().manual_seed(0)
    cost = torch.randn(20, 7, dtype=torch.float64, generator=draw)
    point, duals, empty = dual_simplex.minimum(system, cost)
    best = (cost * point).sum(-1)
    assert not bool(empty.any())
    for size in (0.0, 1e-3, 1.0, 1e6):
        other = duals + size * torch.randn(duals.shape, dtype=torch.float64, generator=draw)
        other = torch.where(torch.where(other > 0, system.lower, system.upper).isinf(), 0.0, other)
        value, magnitude = system.proven(cost, other)
        doubt = roundoff(system.terms, magnitude)
        assert bool((value - doubt <= best + 1e-12).all())
        assert size or bool((value + doubt >= best - 1e-12).all())


def test_many_ties_end() -> None:
    """Integer data, and costs of zero and one: every basis is degenerate, in rows and in costs."""
    draw = np.random.default_rng(5)
    matrix = draw.integers(-1, 2, size=(300, 12, 10)).astype(float)
    at = np.einsum("brd,bd->br", matrix, draw.integers(0, 2, size=(300, 10)))
    below, zero = np.where(draw.random(at.shape) < 0.3, at, -np.inf), np.zeros((300, 10))
    system = System(*map(torch.tensor, (matrix, below, at, zero, zero + 1)))
    cost = torch.tensor(draw.integers(-1, 2, size=(300, 10)).astype(float))
    point, duals, empty = dual_simplex.minimum(system, cost)
    assert not bool(empty.any())
    assert float(system.violation(point).max()) < 1e-12
    assert bool(((cost * point).sum(-1) - system.proven(cost, duals)[0]).abs().max() < 1e-12)


def test_blocks_without_a_point_are_told() -> None:
    data = systems(1, 40, 9, 7)
    data[2][::2, 4] = data[1][::2, 4] = 20.0
    empty = dual_simplex.minimum(System(*map(torch.tensor, data)), torch.zeros(40, 7, dtype=torch.float64))[2]
    for b in range(40):
        assert bool(empty[b]) == (minimum(np.zeros(7), *(t[b] for t in data)) is None)
    assert bool(empty[::2].all())


def test_blocks_do_not_change_with_their_neighbours() -> None:
    system = System(*map(torch.tensor, systems(2, 30, 10, 9)))
    cost = torch.randn(30, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    together = dual_simplex.minimum(system, cost)
    for one, other in zip(together, dual_simplex.minimum(system, cost, SimplexSettings(cached=0)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("rows", [0, 3, 12])
def test_loops_and_tensor_operations_agree(rows: int, use_backend: Callable[[str], None]) -> None:
    data = systems(9, 40, rows, 9)
    if rows == 12:
        data[2][::4, 4] = data[1][::4, 4] = 20.0  # some without a point
    system = System(*map(torch.tensor, data))
    cost = torch.randn(40, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    cost[1::2] = cost[1::2].round()
    compiled = dual_simplex.minimum(system, cost)
    use_backend("torch")
    plain = dual_simplex.minimum(system, cost)
    assert torch.equal(compiled[2], plain[2]) and bool(plain[2].any()) == (rows == 12)
    full = ~plain[2]
    for point, duals, _ in (compiled, plain):
        assert float(system.violation(point)[full].max() if rows else 0) < 1e-12
        assert bool(((cost * point).sum(-1) - system.proven(cost, duals)[0])[full].abs().max() < 1e-12)


class Impatient(Polytope):
    """Whose simplex method makes no pivot."""

    simplex = SimplexSettings(patience=0)


def test_where_the_method_does_not_end_highs_does() -> None:
    data = systems(6, 8, 6, 7)
    cost = torch.randn(1, 8, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kind = Polytope(*data)
    value = kind.min_oracle(cost)[1]
    kind = Impatient(*data)
    point, other = kind.min_oracle(cost)
    assert torch.allclose(other, value, atol=1e-7) and torch.allclose((cost * point).sum(-1), other)
    # Only the row duals at hand prove something then.
    assert bool((other - kind.value_error(cost) <= value).all()) and bool(kind.value_error(cost).max() > 1e-3)


def wide(draw: np.random.Generator, reach: float) -> tuple[np.ndarray, ...]:
    """A system with a point near the origin, in a box of which some sides are wide."""
    dim, rows = int(draw.integers(2, 4)), int(draw.integers(1, 4))
    matrix = draw.integers(-3, 4, (rows, dim)).astype(float) if draw.random() < 0.5 else draw.normal(size=(rows, dim))
    x_upper = reach * (draw.random(dim) < 0.7) + draw.integers(1, 5, dim)
    at = matrix @ (draw.random(dim) * np.minimum(x_upper, 10))
    lower = np.where(draw.random(rows) < 0.5, -np.inf, at - draw.random(rows))
    return matrix, lower, at + 5 * draw.random(rows), np.zeros(dim), x_upper


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("reach", [1e4, 1e7, 1e8, 1e10, 1e13])
def test_wide_boxes(reach: float, listed: bool) -> None:
    """Values are those of exact arithmetic to some roundings of costs times box, and above them to fewer still."""
    draw = np.random.default_rng(int(np.log10(reach)))
    for _ in range(12):
        data = wide(draw, reach)
        matrix, lower, upper, x_lower, x_upper = data
        kind = (Polytope if listed else Unlisted)(*data)
        assert (kind.vertices is not None) == listed
        rows = np.vstack([matrix, np.eye(len(x_lower))]).tolist(), [*lower, *x_lower], [*upper, *x_upper]
        for cost in draw.normal(size=(2, len(x_lower))):
            c = torch.tensor(cost)[None, None]
            value, error = kind.min_oracle(c)[1].item(), kind.value_error(c).item()
            truth = exact_minimum(cost.tolist(), *rows)
            assert truth is not None
            size = np.abs(cost) @ x_upper
            above = float(Fraction(value) - truth)
            assert above <= 2 * 2.0**-52 * size and above <= error
            assert above >= (-1e-14 * size if listed else -1e-12 * size)


def test_bounds_in_wide_boxes() -> None:
    """Bounds are at most the optimum, up to what they charge, with blocks that share variables."""
    draw = np.random.default_rng(1)
    for _ in range(10):
        first = wide(draw, 1e8)
        dim = len(first[3])
        second = (draw.normal(size=(1, dim)), [-np.inf], [50.0], np.zeros(dim), np.full(dim, 1e8))
        m = bl.Model()
        x = m.variable("x", dim, lower=0, upper=1e8)
        m.add(Polytope(*first), x)
        m.add(Polytope(*second), x)
        cost = draw.normal(size=dim)
        m.minimize(cost @ x)
        rows = np.vstack([first[0], second[0], np.eye(dim)]).tolist()
        truth = exact_minimum(cost.tolist(), rows, [*first[1], -np.inf, *[0.0] * dim], [*first[2], 50.0, *first[4]])
        solution = m.solve(tol=1e-9, passes=300)
        if truth is not None:
            assert Fraction(solution.bound.item()) <= truth and Fraction(solution.safe_bound.item()) <= truth


def test_a_missing_vertex_is_noticed() -> None:
    """Far from the origin too, where the value is a small difference of large terms."""
    right = Polytope([[1.0, -1.0]], [0.0], [25.0], [5e7, 5e7], [1e8, 1e8])
    assert right.vertices is not None
    wrong = right.with_data(vertices=right.vertices[:, :, 1:])
    for kind in (right, wrong):
        m = bl.Model()
        x = m.variable("x", 2, lower=5e7, upper=1e8)
        m.add(kind, x)
        m.minimize(x.sum())
        if kind is right:
            assert check(m).tested
        else:
            with pytest.raises(OracleError, match="an LP over its constraints"):
                check(m)


def test_dependent_rows() -> None:
    assert dependent([[2, 4], [1, 2]]) and dependent([[0, 0, 1], [0, 3, 0], [0, 3, 7]]) and dependent([[0]])
    assert not dependent([[0, 1], [1, 0]]) and not dependent([[10**40, 1], [10**40 + 1, 1]])


def test_simple_vertices() -> None:
    square = Polytope(np.zeros((0, 2)), [], [], [0, 0], [1, 1])
    assert square.vertices is not None and square.vertices[0, 0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    triangle = Polytope([[1.0, 1.0]], [-np.inf], [1.0], [0, 0], [1, 1])
    assert triangle.vertices is not None and triangle.vertices[0, 0].tolist() == [[0, 0], [0, 1], [1, 0]]
    point = Polytope([[1.0, 1.0]], [2.0], [2.0], [0, 0], [1, 1])
    assert point.vertices is not None and point.vertices[0, 0].tolist() == [[1, 1]]
    useless_row = Polytope([[0.0, 0.0]], [-1.0], [1.0], [0, 0], [1, 1])
    assert useless_row.vertices is not None and useless_row.vertices.shape[2] == 4


def test_blocks_with_different_numbers_of_vertices() -> None:
    kind = Polytope([[1.0, 1.0]], [[-np.inf], [2.0]], [[1.5], [2.0]], [0, 0], [1, 1])
    point, value = kind.min_oracle(-torch.ones(1, 2, 2, dtype=torch.float64))
    assert value.tolist() == [[-1.5, -2.0]] and point[0, 1].tolist() == [1, 1]


def test_nearly_parallel_rows_go_to_the_lp() -> None:
    """Intersections of rows at an angle of 1e-8 are not trusted."""
    kind = Polytope([[1.0, 0.0], [1.0, 1e-8]], [-np.inf] * 2, [0.5, 0.5], [0, 0], [1, 1])
    assert kind.vertices is None
    assert abs(kind.min_oracle(torch.tensor([[[-1.0, 0.0]]], dtype=torch.float64))[1].item() + 0.5) < 1e-8


def test_without_points_or_bounds() -> None:
    with pytest.raises(ModelError, match="block 1 of instance 0 is infeasible"):
        Polytope([[1.0, 1.0]], [[0.0], [3.0]], [4.0], [0, 0], [1, 1])
    with pytest.raises(ModelError, match="block 0 of instance 0 is infeasible"):
        Polytope(np.ones((1, 9)), [10.0], [11.0], np.zeros(9), np.ones(9))
    with pytest.raises(ModelError, match="is infeasible"):
        Polytope([[1.0, 1.0]], [0.0], [1.0], [0, 1], [1, 0])
    with pytest.raises(ModelError, match="x_upper holds NaN or infinite"):
        Polytope([[1.0, 1.0]], [0.0], [1.0], [0, 0], [1, np.inf])
    with pytest.raises(ModelError, match="NaN"):
        Polytope([[1.0, 1.0]], [np.nan], [1.0], [0, 0], [1, 1])
    with pytest.raises(ShapeError, match="1 rows of 2 variables"):
        Polytope([[1.0, 1.0]], [0.0, 0.0], [1.0], [0, 0], [1, 1])
    empty = torch.ones(1, 1, 2, dtype=torch.float64)
    assert Polytope([[1.0, 1.0]], [-np.inf], [1.0], [0, 0], [1, 1]).restrict(empty, empty) is None
