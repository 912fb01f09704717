"""Integer knapsacks against the enumeration of their points."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blocklp as bl
from blocklp.errors import ModelError
from blocklp.oracles import IntegerKnapsack, Knapsack


@st.composite
def knapsacks(draw: st.DrawFn) -> tuple[dict[str, object], list[tuple[int, ...]]]:
    """Data of one block, and its integer points."""
    dim, unit = draw(st.integers(1, 5)), draw(st.sampled_from([1, 10, 1000]))
    weights = draw(st.lists(st.integers(-4, 7), min_size=dim, max_size=dim))
    lower = draw(st.lists(st.integers(-2, 1), min_size=dim, max_size=dim))
    upper = [lo + draw(st.integers(0, 3)) for lo in lower]
    most, width = draw(st.integers(-8, 25)), draw(st.sampled_from([0, 0, 1, 3, 10]))
    sides = draw(st.sampled_from([("capacity",), ("least",), ("capacity", "least")]))
    box = itertools.product(*(range(lo, hi + 1) for lo, hi in zip(lower, upper, strict=True)))
    least = most - width if "least" in sides else -(10**6)
    above = most if "capacity" in sides else 10**6
    points = [x for x in box if least <= sum(w * v for w, v in zip(weights, x, strict=True)) <= above]
    values = {"capacity": most / unit, "least": (most - width) / unit}
    data = {"weights": np.array(weights) / unit, "lower": np.array(lower), "upper": np.array(upper)}
    return data | {side: values[side] for side in sides}, points


costs = st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, width=32)), min_size=5, max_size=5)


@settings(max_examples=300, deadline=None)
@given(knapsacks(), costs, st.sampled_from([torch.float32, torch.float64]))
def test_minimum_is_that_of_all_points(made, numbers, dtype):
    data, points = made
    if not points:
        with pytest.raises(ModelError, match="no integer point"):
            Knapsack(**data, integer=True)
        return
    kind = Knapsack(**data, integer=True).to(dtype, torch.device("cpu"))
    cost = torch.tensor(numbers[: len(data["weights"])], dtype=dtype)[None, None]
    point, value = kind.min_oracle(cost)
    assert tuple(point[0, 0].int().tolist()) in points and torch.equal(point, point.round())
    exact = min(sum(Fraction(c) * v for c, v in zip(cost[0, 0].tolist(), x, strict=True)) for x in points)
    below = exact - Fraction(value.item())
    assert 0 <= below <= Fraction(kind.value_error(cost).item())


@settings(max_examples=100, deadline=None)
@given(knapsacks(), costs, st.lists(st.integers(-1, 3), min_size=5, max_size=5), st.integers(0, 31))
def test_restriction_is_to_the_points_in_the_box(made, numbers, values, fixed):
    data, points = made
    if not points:
        return
    kind, dim = Knapsack(**data, integer=True), len(data["weights"])
    fixings = [(values[i], values[i]) if fixed >> i & 1 else (-3, 4.5) for i in range(dim)]
    lower, upper = (torch.tensor(side, dtype=torch.float64)[None, None] for side in zip(*fixings, strict=True))
    cost = torch.tensor(numbers[:dim], dtype=torch.float64)[None, None]
    _, value = kind.restrict(lower, upper).min_oracle(cost)
    inside = [x for x in points if all(lo <= v <= hi for v, (lo, hi) in zip(x, fixings, strict=True))]
    if inside:
        best = min(sum(c * v for c, v in zip(numbers, x, strict=False)) for x in inside)
        assert abs(value.item() - best) <= 1e-9 * (1 + abs(best))
    else:
        assert value.item() > 1e100


@pytest.mark.parametrize("shape", [(7, 40), (2, 3, 30)])
def test_larger_blocks_against_tables_of_loads(shape):
    """Least costs of all loads by the plain recursion over capacities."""
    draw = np.random.default_rng(5)
    weights = draw.integers(1, 60, size=shape).astype(float)
    capacity = np.floor(0.4 * weights.sum(-1))
    upper = draw.integers(1, 4, size=shape)
    kind = Knapsack(weights, capacity, upper=upper, integer=True)
    cost = torch.from_numpy(np.round(draw.normal(size=shape) * 20 - 0.3 * weights, 1)).reshape(-1, *shape[-2:])
    point, value = kind.min_oracle(cost)
    for i, b in itertools.product(*map(range, cost.shape[:2])):
        w, c, m = (np.broadcast_to(t, cost.shape)[i, b] for t in (weights, cost.numpy(), upper))
        room = int(np.broadcast_to(capacity, cost.shape[:2])[i, b])
        least = np.zeros(room + 1)
        for j in range(len(w)):
            for _ in range(m[j]):
                shifted = np.concatenate([np.full(int(w[j]), np.inf), least + c[j]])[: room + 1]
                least = np.minimum(least, shifted)
        assert abs(value[i, b].item() - least[room]) < 1e-8
        assert (point[i, b].numpy() @ w) <= room


def test_plain_and_compiled_tables_agree(monkeypatch):
    draw = np.random.default_rng(6)
    kind = Knapsack(draw.integers(1, 9, size=(4, 12)).astype(float), 20.0, least=[0.0, 15, 19, 20], integer=True)
    cost = torch.from_numpy(draw.normal(size=(3, 4, 12)))
    compiled = kind.min_oracle(cost)
    monkeypatch.setenv("BLOCKLP_BACKEND", "torch")
    plain = kind.with_data(need=kind.need.clone()).min_oracle(cost)
    assert torch.equal(compiled[0], plain[0]) and torch.equal(compiled[1], plain[1])


def test_integer_is_a_choice_of_the_class():
    assert type(Knapsack([1.0, 2.0], 2.0)) is Knapsack
    assert type(Knapsack([1.0, 2.0], 2.0, integer=True)) is IntegerKnapsack
    parts = Knapsack.ragged([1.0, 2.0, 3.0], [2, 1], capacity=2.0, lower=[-1.0, 0, 0], integer=True).parts
    assert {type(kind) for kind, _, _ in parts} == {IntegerKnapsack}
    with pytest.raises(bl.errors.OptionError, match="integer"):
        Knapsack([1.0], 1.0, integer=2)


def test_refusals():
    with pytest.raises(ModelError, match=r"block 1 of instance 0 have no common unit.*round them"):
        Knapsack([[0.5, 1.0], [1 / 3, 1.0]], 1.0, integer=True)
    with pytest.raises(ModelError, match="neither a capacity nor a least load"):
        Knapsack([1.0], integer=True)
    weights = 1e8 + np.arange(9.0)
    with pytest.raises(ModelError, match=r"table of block 0 of instance 1 would have 3.6e\+08 entries.*coarser unit"):
        Knapsack(weights, [[2.0], [4e7]], integer=True)
    Knapsack(np.full(9, 1e8), [[2e8], [4e8]], integer=True)  # in units of 1e8 there is room for four


def test_wrong_integer_constraints_are_refused():
    class Wrong(bl.BlockType):
        def min_oracle(self, cost):
            point = torch.where(cost < 0, 0.5, 0.0).to(cost)
            return point, (cost * point).sum(-1)

        def integer_constraints(self):
            return bl.Constraints.rows([[1.0, 1.0]], [-1.0], [1.0], nonnegative=True)

    m = bl.Model()
    with pytest.raises(bl.errors.OracleError, match="not integral"):
        m.add(Wrong(), scope=m.variable("x", 2, lower=0, upper=1))
