"""The fractional knapsack against exact arithmetic, on the data that break greedy rules."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError, ShapeError
from blocklp.general_solvers.small_lp import exact_minimum
from blocklp.oracles import Knapsack
from blocklp.testing.lp_probes import block_rows


def exact(cost: list[float], weights: list[float], capacity: float, lower: list[float], upper: list[float]) -> Fraction:
    """Greedy in rationals, one variable at a time."""
    room = Fraction(capacity) - sum(Fraction(w) * Fraction(lo) for w, lo in zip(weights, lower, strict=True))
    total = sum((Fraction(c) * Fraction(lo) for c, lo in zip(cost, lower, strict=True)), Fraction(0))
    items = [
        (Fraction(c), Fraction(w), Fraction(up) - Fraction(lo)) for c, w, lo, up in zip(cost, weights, lower, upper, strict=True)
    ]
    free = [i for i in items if i[0] < 0 and i[1] == 0]
    total += sum((c * width for c, _, width in free), Fraction(0))
    for c, w, width in sorted((i for i in items if i[0] < 0 and i[1] > 0), key=lambda i: i[0] / i[1]):
        step = min(width, room / w)
        total += c * step
        room -= w * step
    return total


def covered(kind: Knapsack, cost: Tensor, data: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """The value in the dtype of the cost lies within value_error of the exact minimum, in every block."""
    working = kind.to(cost.dtype, cost.device)
    point, value = working.min_oracle(cost)
    error = working.value_error(cost)
    assert torch.isfinite(point).all()
    for b in range(cost.shape[1]):
        truth = exact(cost[0, b].tolist(), *(t[0, b].tolist() for t in data))
        assert abs(truth - Fraction(float(value[0, b]))) <= Fraction(float(error[0, b])), (b, cost[0, b].tolist())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bounded", [False, True])
def test_thousands_of_knapsacks(dtype: torch.dtype, bounded: bool) -> None:
    """Every sixth weight and capacity is zero, costs and weights tie, magnitudes are far apart."""
    blocks, dim = 1000, 7
    draw = torch.Generator().manual_seed(int(bounded))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    def sparse(values: Tensor) -> Tensor:
        return values * (torch.rand(values.shape, generator=draw) > 1 / 6)

    kinds = torch.arange(blocks)[:, None] % 4
    spread = 10.0 ** torch.randint(-6, 7, (blocks, dim), generator=draw)
    weights = sparse(normal(blocks, dim).abs())
    weights = torch.where(kinds == 1, (2 * weights).round(), torch.where(kinds == 2, weights * spread, weights))
    cost = normal(blocks, dim) - 0.5
    # Kind 3: costs proportional to weights, so that all ratios tie up to rounding.
    cost = torch.where(
        kinds == 1, (2 * cost).round(), torch.where(kinds == 2, cost * spread, torch.where(kinds == 3, -weights, cost))
    )
    lower = normal(blocks, dim) if bounded else torch.zeros(blocks, dim, dtype=torch.float64)
    upper = lower + sparse(normal(blocks, dim).abs()) if bounded else torch.ones(blocks, dim, dtype=torch.float64)
    fixed = (weights * lower).sum(1)
    room = sparse(torch.rand(blocks, generator=draw, dtype=torch.float64) * weights.sum(1))
    capacity = fixed + room + (1e-12 * (1 + fixed.abs()) if bounded else 0)
    kind = Knapsack(weights, capacity, lower, upper)
    covered(kind, cost.to(dtype)[None], (kind.weights, kind.capacity, kind.lower, kind.upper))


def two_sided(
    cost: list[float], weights: list[float], lower: list[float], upper: list[float], least: float | None, capacity: float | None
) -> Fraction:
    """The best of all points with at most one variable off its bounds, in rationals, one after the other."""
    c, w, lo, up = ([Fraction(v) for v in values] for values in (cost, weights, lower, upper))
    low, high = (None if side is None else Fraction(side) for side in (least, capacity))
    best = None
    for corner in itertools.product((0, 1), repeat=len(c)):
        x = [up[i] if at else lo[i] for i, at in enumerate(corner)]
        points = [x]
        load = sum(a * b for a, b in zip(w, x, strict=True))
        for side in {low, high} - {None}:
            for i, a in enumerate(w):
                if a:
                    points.append([*x[:i], x[i] + (side - load) / a, *x[i + 1 :]])
        for point in points:
            load = sum(a * b for a, b in zip(w, point, strict=True))
            inside = all(a <= b <= d for a, b, d in zip(lo, point, up, strict=True))
            if inside and (low is None or load >= low) and (high is None or load <= high):
                value = sum(a * b for a, b in zip(c, point, strict=True))
                best = value if best is None else min(best, value)
    assert best is not None
    return best


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sides", ["capacity", "least", "both", "equal"])
def test_weights_of_either_sign_and_two_sides(sides: str, dtype: torch.dtype) -> None:
    """Values are within their stated error of the optimum in rationals, points within the box and the load, proximal points too."""
    draw = np.random.default_rng(["capacity", "least", "both", "equal"].index(sides))

    def normal(*shape: int) -> np.ndarray:
        return (8 * draw.normal(size=shape)).round() / 8  # loads are then exact, and equal sides have a point between them

    for trial in range(12):
        blocks, dim = 8, int(draw.integers(1, 5))
        shape, far = (blocks, dim), 2.0 ** draw.integers(-18, 18, (blocks, dim)) if trial % 3 == 2 else 1.0
        weights = normal(*shape) * far * (draw.random(shape) > 1 / 6)
        lower = normal(*shape)
        upper = lower + np.abs(normal(*shape))
        cost = normal(*shape) if trial % 3 else weights * normal(blocks, 1)
        inside = (weights * (lower + (upper - lower) * draw.integers(0, 5, shape) / 4)).sum(1)
        least = None if sides == "capacity" else inside if sides == "equal" else inside - draw.random(blocks)
        capacity = None if sides == "least" else inside if sides == "equal" else inside + draw.random(blocks)
        kind = Knapsack(weights, capacity, lower, upper, least=least)
        c = torch.tensor(cost)[None].to(dtype)
        working = kind.to(dtype, c.device)
        (point, value), error = working.min_oracle(c), working.value_error(c)
        for b in range(blocks):
            ends = (None if side is None else float(side[b]) for side in (least, capacity))
            truth = two_sided(c[0, b].tolist(), weights[b].tolist(), lower[b].tolist(), upper[b].tolist(), *ends)
            assert abs(truth - Fraction(float(value[0, b]))) <= Fraction(float(error[0, b])), (trial, b)
        rows, tolerance = working.constraints(), 1e-12 if dtype == torch.float64 else 1e-5
        ones = torch.ones(dim, dtype=torch.float64)
        near = working.prox(c, torch.zeros_like(c), torch.ones(1, 1, 1, dtype=dtype), ones)
        reach = torch.maximum(kind.lower.abs(), kind.upper.abs()).amax(-1).to(dtype)
        assert near is not None
        assert float(rows.violation(point, reach).max()) <= tolerance and float(rows.violation(near, reach).max()) <= 100 * tolerance


def test_equal_sides_in_a_model() -> None:
    """Flow conservation in two nodes, stated as knapsacks, against HiGHS."""
    m = bl.Model()
    flow = m.variable("flow", 5, lower=0, upper=[2.0, 1.0, 1.0, 2.0, 2.0])
    m.add(Knapsack([[1.0, -1.0, -1.0], [1.0, 1.0, -1.0]], 0.0, 0.0, 2.0, least=0.0), flow[[[0, 1, 2], [1, 3, 4]]])
    m.add(Knapsack([1.0, 1.0], least=1.5, upper=2.0), flow[[0, 3]])
    m.minimize(flow @ [1.0, 0.3, -0.2, 2.0, 0.1])
    solution, truth = m.solve(tol=1e-8), float(bl.reference(m).objective)
    assert solution.status[0] is bl.Status.OPTIMAL
    assert float(solution.bound) == pytest.approx(truth, rel=1e-7) and float(solution.safe_bound) <= truth
    assert float(bl.verify_certificate(m, solution.state).bound) <= truth


def test_models_of_different_sides_compile_together() -> None:
    """Those without a side get one that does not bind."""
    models = []
    for sides in ({"capacity": 1.2}, {"least": 0.7}, {"capacity": 0.9, "least": 0.9}):
        m = bl.Model()
        x = m.variable("x", 3, lower=0, upper=1)
        m.add(Knapsack([1.0, 2.0, -0.5], **sides), x)
        m.minimize(x @ [-1.0, 1.0, 0.5])
        models.append(m)
    together = bl.compile(models).solve(tol=1e-9)
    for i, m in enumerate(models):
        assert float(together.bound[i]) == pytest.approx(float(bl.reference(m).objective), abs=1e-8)


number = st.floats(-4, 4, width=32).filter(lambda v: v == 0 or abs(v) > 1e-20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(number, number, number, number), min_size=1, max_size=4), st.floats(0, 8, width=32), st.booleans())
def test_greedy_is_the_lp_optimum(items: list[tuple[float, float, float, float]], room: float, restricted: bool) -> None:
    cost, weights = [i[0] for i in items], [abs(i[1]) for i in items]
    lower, upper = [min(i[2:]) for i in items], [max(i[2:]) for i in items]
    capacity = sum(w * lo for w, lo in zip(weights, lower, strict=True)) + room + 1e-6
    low, up = torch.tensor(lower).double()[None, None], torch.tensor(upper).double()[None, None]
    kind: Knapsack | None = Knapsack(weights, capacity, lower, upper)
    if restricted:
        # The same polytope, reached from a box around it.
        kind = Knapsack(weights, capacity, low - 1, up + 1).restrict(low, up)
    assert kind is not None
    c = torch.tensor(cost).double()[None, None]
    value, error, rows = kind.min_oracle(c)[1], kind.value_error(c), kind.constraints()
    truth = exact_minimum(cost, *(t.tolist() for t in block_rows(rows, 0, 0)))
    assert truth == exact(cost, weights, capacity, lower, upper)
    assert abs(truth - Fraction(value.item())) <= Fraction(error.item())


def bound_of(kind: Knapsack, cost: list[float]) -> tuple[float, float]:
    """Bound and safe bound of the model that is one block."""
    m = bl.Model()
    x = m.variable("x", kind.dim, lower=kind.lower[0, 0], upper=kind.upper[0, 0])
    m.add(kind, x)
    m.minimize(torch.tensor(cost, dtype=torch.float64) @ x)
    solution = m.solve(passes=100)
    return solution.bound.item(), solution.safe_bound.item()


@pytest.mark.parametrize(
    ("cost", "weights", "capacity", "lower", "upper"),
    [
        ([0, 0, 0, 0, -1.0], [199.5, 500.9, 198.8, 589.1, 0.001], 1488.3005, [1, 1, 1, 1, 0], [1.0] * 5),
        ([0, -1.0], [1, 1e-16], -1.0, [-1, -1], [1, 1]),
        ([-1.0, -1.0], [1e-310, 1], 0.5, [0, 0], [1, 1]),
        ([-1.0, -1.0], [1e-310, 1], 1e-311, [0, 0], [1, 1]),
        ([-1.0, -3.0], [5e-324, 1e300], 2e299, [0.5, 0.1], [1e10, 1]),
        ([-1e20, -1.0], [1e-12, 1], 0.1 + 1e8, [0, 1e8], [1, 1e8]),
    ],
)
def test_what_cancels_in_the_room_does_not_raise_the_bound(
    cost: list[float], weights: list[float], capacity: float, lower: list[float], upper: list[float]
) -> None:
    """The room that lower bounds leave counts at the largest ratio of cost to weight, here up to 1e310."""
    truth = exact(cost, weights, capacity, lower, upper)
    kind = Knapsack(weights, capacity, lower, upper)
    value = kind.min_oracle(torch.tensor(cost, dtype=torch.float64)[None, None])[1].item()
    assert value == pytest.approx(float(truth), rel=1e-14)
    bound, safe = bound_of(kind, cost)
    assert Fraction(bound) <= truth and Fraction(safe) <= truth
    assert safe == pytest.approx(float(truth), abs=1e-9 * max(map(abs, cost)) * max(map(abs, [*lower, *upper])))


powers = st.integers(-20, 20)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 8), powers, powers, st.floats(0, 1))
def test_values_are_right_to_a_few_roundings_of_the_costs(seed: int, dim: int, small: int, large: int, share: float) -> None:
    """Thousands of blocks, whatever their weights, lower bounds and the room that these leave."""
    draw = np.random.default_rng(seed)
    shape, least, most = (20, dim), min(small, large), max(small, large)
    scale = [10.0 ** draw.integers(least, most + 1, shape) for _ in range(3)]
    weights = np.abs(draw.normal(size=shape)) * scale[0] * (draw.random(shape) > 0.1)
    lower = draw.normal(size=shape) * scale[1] * (draw.random(shape) > 0.3)
    upper = np.where(draw.random(shape) < 0.5, lower, lower + np.abs(draw.normal(size=shape)) * scale[1])
    load, room = weights * lower, (weights * (upper - lower)).sum(1) * share * 10.0 ** -draw.integers(0, 12, 20)
    kind = Knapsack(weights, load.sum(1) + room + 1e-15 * np.abs(load).sum(1), lower, upper)
    cost = torch.tensor(draw.normal(size=shape) * scale[2])
    point, value = kind.min_oracle(cost[None])
    error = kind.value_error(cost[None])
    assert bool(((kind.lower <= point) & (point <= kind.upper)).all())
    for b, c in enumerate(cost.tolist()):
        truth = exact(c, *(t[0, b].tolist() for t in (kind.weights, kind.capacity, kind.lower, kind.upper)))
        size = float((cost[b].abs() * torch.maximum(kind.lower.abs(), kind.upper.abs())[0, b]).sum())
        off = Fraction(value[0, b].item()) - truth
        assert abs(off) <= Fraction(8 * 2.0**-52 * size) and abs(off) <= Fraction(error[0, b].item())


def test_bounds_of_single_instances() -> None:
    """Upper bounds that differ by instance, a lower bound that does not."""
    m = bl.Model(batch=3)
    x = m.variable("x", 4, lower=0, upper=torch.tensor([[1.0] * 4, [0.5] * 4, [0.25, 1, 1, 0]]))
    m.add(Knapsack([1.0, 2.0, 1.0, 3.0], 2.0), x)
    m.minimize(-(x.sum()))
    solution = m.solve(tol=1e-9)
    truth = [exact([-1.0] * 4, [1.0, 2, 1, 3], 2.0, [0.0] * 4, u) for u in ([1.0] * 4, [0.5] * 4, [0.25, 1, 1, 0])]
    assert solution.bound.tolist() == pytest.approx([float(t) for t in truth], abs=1e-8)


def test_degenerate_data() -> None:
    cost = torch.tensor([[[-3.0, -2.0, 1.0, -1.0]]], dtype=torch.float64)
    nothing = Knapsack([1.0, 1.0, 1.0, 1.0], 0.0)
    assert nothing.min_oracle(cost)[0].tolist() == [[[0.0, 0.0, 0.0, 0.0]]]
    weightless = Knapsack([0.0, 1.0, 0.0, 1.0], 0.0)
    assert weightless.min_oracle(cost)[0].tolist() == [[[1.0, 0.0, 0.0, 0.0]]]
    all_weightless = Knapsack([0.0] * 4, 0.0)
    assert all_weightless.min_oracle(cost)[1].item() == -6.0
    point = Knapsack([1.0] * 4, 10.0, lower=[1, 2, 3, 4], upper=[1, 2, 3, 4])
    assert point.min_oracle(cost)[0].tolist() == [[[1.0, 2.0, 3.0, 4.0]]]
    fractional = Knapsack([2.0, 2.0, 2.0, 2.0], 3.0)
    assert fractional.min_oracle(cost)[0].tolist() == [[[1.0, 0.5, 0.0, 0.0]]]


def test_ties_go_to_the_first() -> None:
    cost = -torch.ones(1, 1, 4, dtype=torch.float64)
    assert Knapsack([1.0, 1.0, 1.0, 1.0], 2.0).min_oracle(cost)[0].tolist() == [[[1.0, 1.0, 0.0, 0.0]]]


def test_empty_intersections_are_refused() -> None:
    kind = Knapsack([1.0, 1.0], 1.0)
    lower, upper = torch.ones(1, 1, 2, dtype=torch.float64), torch.ones(1, 1, 2, dtype=torch.float64)
    assert kind.restrict(lower, upper) is None
    assert kind.restrict(lower + 1, upper + 1) is None


def test_bad_arguments() -> None:
    with pytest.raises(ModelError, match="neither a capacity nor a least load"):
        Knapsack([1.0, -1.0])
    with pytest.raises(ModelError, match=r"no point within the bounds of block 1 of instance 0"):
        Knapsack([1.0, 1.0], [1.0, -1.0])
    with pytest.raises(ModelError, match=r"no point within the bounds of block 0 of instance 0"):
        Knapsack([1.0, -1.0], least=1.5)
    with pytest.raises(ModelError, match=r"least load of \(instance, block\) \(0, 1\) is above its capacity"):
        Knapsack([1.0, -1.0], 0.5, least=[0.5, 0.6])
    with pytest.raises(ModelError, match="above its upper bound"):
        Knapsack([1.0], 1.0, lower=2.0)
    with pytest.raises(ModelError, match="NaN or infinite"):
        Knapsack([1.0], float("inf"))
    with pytest.raises(ShapeError, match="do not fit together"):
        Knapsack([1.0, 1.0], 1.0, lower=[0.0, 0.0, 0.0])


def test_blocks_without_variables_are_refused() -> None:
    with pytest.raises(ShapeError, match="needs at least one variable"):
        Knapsack([], 1)


def test_proximal_points_lose_nothing_where_weights_differ_in_size() -> None:
    """A capacity of zero leaves nothing of a variable, however little it weighs beside the others."""
    kind = Knapsack([3.813, 1.523e-05], 0.0)
    cost = torch.tensor([[[-0.67310244935336405, -1.20953240945564033]]], dtype=torch.float64)
    point = proximal(kind, cost)
    assert float(point.abs().max()) <= 1e-9


def proximal(kind: Knapsack, cost: Tensor) -> Tensor:
    """The proximal point of a cost from the origin with step 0.5."""
    step, shared = torch.full((1, 1, 1), 0.5, dtype=torch.float64), torch.ones(kind.dim or 0, dtype=torch.float64)
    point = kind.prox(cost, torch.zeros_like(cost), step, shared)
    assert point is not None
    return point


def nearest(y: list[float], weights: list[float], capacity: Fraction) -> list[Fraction]:
    """The point of a knapsack in the unit cube that is nearest to y, in rationals: clip(y - t w) for the least t that fits."""
    w, given = list(map(Fraction, weights)), list(map(Fraction, y))

    def at(t: Fraction) -> list[Fraction]:
        return [min(max(v - t * a, Fraction(0)), Fraction(1)) for v, a in zip(given, w, strict=True)]

    def over(t: Fraction) -> Fraction:
        return sum((a * v for a, v in zip(w, at(t), strict=True)), -capacity)

    kinks = sorted({(v - side) / a for v, a in zip(given, w, strict=True) if a for side in (0, 1) if v > side} | {Fraction(0)})
    if over(Fraction(0)) <= 0:
        return at(Fraction(0))
    k = next(k for k, t in enumerate(kinks) if over(t) <= 0)
    start, end = kinks[k - 1], kinks[k]
    return at(start + (end - start) * over(start) / (over(start) - over(end)))


def test_weights_next_to_nothing() -> None:
    """Points of the oracle have their value; proximal points are feasible and as near as can be, up to the rounding of the load."""
    draw = np.random.default_rng(5)
    scales = np.array([0.0, 5e-324, 1e-310, 1e-200, 1e-16, 1e-9, 1e-5, 1.0, 1e3])
    for _ in range(300):
        weights = (draw.choice(scales, draw.integers(1, 6)) * draw.integers(1, 9)).tolist()
        room = float(draw.choice([0.0, 0.3, 1.5]) * draw.choice(weights))
        kind = Knapsack(weights, room)
        cost = torch.tensor(draw.normal(size=(1, 1, len(weights))))
        point, value = kind.min_oracle(cost)
        assert abs(float((cost * point).sum() - value)) <= 1e-12
        y, found = (-0.5 * cost)[0, 0].tolist(), list(map(Fraction, proximal(kind, cost)[0, 0].tolist()))
        assert all(0 <= v <= 1 for v in found)
        load = sum((Fraction(w) * v for w, v in zip(weights, found, strict=True)), Fraction(0))
        rounding = Fraction(1e-15) * sum(map(Fraction, weights))
        assert load <= Fraction(room) + rounding
        best = nearest(y, weights, max(Fraction(room) - rounding, Fraction(0)))
        far, least = (sum((Fraction(a) - v) ** 2 for a, v in zip(y, x, strict=True)) for x in (found, best))
        assert far <= least + Fraction(1e-9)


def test_variables_beyond_the_bounds_that_it_has_by_default_are_refused() -> None:
    for integer in (False, True):
        m = bl.Model()
        x = m.variable("x", (2, 3), lower=[[0, 0, -2], [0, 0, 0]], upper=[[1, 1, 1], [1, 5, 1]])
        with pytest.raises(ModelError, match=r"lower bounds of 0, as it was given none, and x\[0, 2\] has -2; .*lower=-2"):
            m.add(Knapsack([1.0, 2.0, 3.0], 10.0, integer=integer), scope=x)
        with pytest.raises(ModelError, match=r"upper bounds of 1, as it was given none, and x\[1, 1\] has 5; .*upper=5"):
            m.add(Knapsack([1.0, 2.0, 3.0], 10.0, -2.0, integer=integer), scope=x)
        with pytest.raises(ModelError, match="upper=5"):
            m.add(Knapsack.ragged([1.0, 2.0, 3.0], [3], 10.0, -2.0, integer=integer), scope=x[1])
        own = m.add(Knapsack([1.0, 2.0, 3.0], 10.0, -2.0, 5.0, integer=integer), scope=x)
        with pytest.raises(ModelError, match="upper=5"):
            m.replace(own, Knapsack([1.0, 2.0, 3.0], 10.0, -2.0, integer=integer))
        m.maximize(x.sum())
        # 1 + 1 + 1 of the first; of the second x0 = 1 and x2 = 0, x1 = 4.5 or, of integers, 4 and x2 = 1/3 in the box
        assert m.solve(tol=1e-9).bound.item() == pytest.approx(8.5 if not integer else 8.0, abs=1e-6)
    batch = bl.ModelBatch()
    x = batch.variable("x", torch.tensor([0, 2, 5]), lower=0.0, upper=torch.tensor([1.0, 1, 1, 5, 1]))
    with pytest.raises(ModelError, match="upper bounds of 1, as it was given none, and 'x' has 5"):
        batch.add(Knapsack([1.0, 1.0], 1.0), [x[torch.tensor([[0, 1], [0, 1]])]], offsets=[0, 1, 2])
    batch.add(Knapsack([1.0, 1.0], 1.0), [x[torch.tensor([[0, 1], [0, 2]])]], offsets=[0, 1, 2])  # not the one of 5
