"""A batch stated from concatenated arrays is the list of its models, stated at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError, NonFiniteError, ScopeError, ShapeError, UnknownNameError
from blocklp.oracles import AtMostOne, Edge, Simplex

from ... import simulated_device

SIZES = {"one size": [6, 6, 6], "ragged": [5, 9, 2, 7], "one": [8]}


def graphs(sizes: list[int], pairs: int | None = None) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Costs of nodes, ends and costs of pairs; as many pairs in every graph where a number is given."""
    found = []
    for seed, n in enumerate(sizes):
        draw = np.random.default_rng(seed)
        ends = np.array([(i, j) for j in range(n) for i in range(j)])
        ends = ends[draw.permutation(len(ends))[: pairs or max(1, int(0.6 * len(ends)))]]
        found.append((draw.normal(size=n), ends, draw.normal(size=len(ends))))
    return found


def offsets(parts: list[np.ndarray]) -> torch.Tensor:
    return torch.tensor([0, *map(len, parts)]).cumsum(0)


def one_by_one(data: list[tuple[np.ndarray, ...]], upper: float = 1.0) -> list[bl.Model]:
    models = []
    for number, (a, ends, p) in enumerate(data):
        m = bl.Model()
        y = m.variable("y", len(a), lower=0, upper=upper, grid=0.5)
        z = m.variable("z", len(p), lower=0, upper=1)
        m.add(Edge(), [y[ends], z])
        m.minimize(y @ a + z @ p + 0.5 * number)
        models.append(m)
    return models


def together(data: list[tuple[np.ndarray, ...]], upper: float = 1.0, device: torch.device | str = "cpu") -> bl.ModelBatch:
    nodes, ends, costs = (list(part) for part in zip(*data, strict=True))
    m = bl.ModelBatch()
    y = m.variable("y", offsets(nodes).to(device), lower=0, upper=upper, grid=0.5)
    z = m.variable("z", offsets(costs).to(device), lower=0, upper=1)
    m.add(Edge(), [y[torch.from_numpy(np.concatenate(ends)).to(device)], z])
    values = {y: np.concatenate(nodes), z: np.concatenate(costs)}
    given = {v: torch.from_numpy(own).to(device) for v, own in values.items()}
    m.minimize(given, 0.5 * torch.arange(len(data), device=device))
    return m


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("upper", [1.0, 0.25], ids=["whole blocks", "bounds cut blocks"])
@pytest.mark.parametrize("sizes", SIZES)
def test_answers_are_those_of_the_models_bit_for_bit(sizes: str, upper: float, dtype: torch.dtype) -> None:
    data = graphs(SIZES[sizes], 12 if sizes == "one size" else None)
    here = bl.compile(one_by_one(data, upper), dtype=dtype).solve(passes=80, tol=1e-7)
    batch = together(data, upper)
    there = batch.solve(dtype=dtype, passes=80, tol=1e-7)
    for name in ("bound", "safe_bound", "primal", "gap", "raw_x", "passes", "cost"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name
    assert here.state.duals.keys() == there.state.duals.keys()
    assert all(torch.equal(own, there.state.duals[name]) for name, own in here.state.duals.items())
    last = len(data) - 1
    assert torch.equal(here.instance(last).x["y"], there.instance(last).x[batch.variables["y"]])
    if sizes != "one":
        values = torch.cat([there.instance(i).x["z"][0] for i in range(len(data))])
        assert torch.equal(there.x["z"], values) and there.x.variables["z"].shape == values.shape


def test_types_with_data_of_single_blocks_and_variables_without_blocks() -> None:
    """Choices with a mass of their own; one variable of each instance is in no block."""
    draw, counts = np.random.default_rng(0), [2, 4, 3]
    masses = draw.uniform(0.5, 1.0, sum(counts))
    m, first = bl.ModelBatch(), torch.tensor([0, *counts]).cumsum(0)
    x = m.variable("x", 3 * first + torch.arange(4), lower=0, upper=1)
    rows = [np.arange(3 * n).reshape(n, 3) for n in counts]
    m.add(Simplex(3, mass=masses), [x[np.concatenate(rows)]], offsets=first)
    m.add(AtMostOne(2), [x[np.concatenate([own[:, :2] for own in rows])]], offsets=first, name="few")
    cost = draw.normal(size=3 * sum(counts) + 3)
    m.maximize({"x": cost})
    models = []
    for i, n in enumerate(counts):
        own, begin = bl.Model(), 3 * int(first[i]) + i
        v = own.variable("x", 3 * n + 1, lower=0, upper=1)
        own.add(Simplex(3, mass=masses[first[i] : first[i + 1]]), v[rows[i]])
        own.add(AtMostOne(2), v[rows[i][:, :2]], name="few")
        own.maximize(v @ cost[begin : begin + 3 * n + 1])
        models.append(own)
    here, there = bl.compile(models).solve(tol=1e-8), m.solve(tol=1e-8)
    assert torch.equal(here.bound, there.bound) and torch.equal(here.raw_x, there.raw_x)
    assert torch.equal(here.bound, bl.compile(list(m)).solve(tol=1e-8).bound)


def test_an_instance_may_be_without_blocks() -> None:
    m = bl.ModelBatch()
    y = m.variable("y", [0, 2, 3, 6], lower=0, upper=1)
    z = m.variable("z", [0, 1, 1, 4], lower=0, upper=1)
    m.add(Edge(), [y[[0, 0, 0, 1]], y[[1, 1, 2, 2]], z])
    m.minimize({y: -1.0, z: 2.0}, [0.0, 7.0, 0.0])
    found = m.solve(tol=1e-6)
    assert found.bound.tolist() == pytest.approx([-1.0, 6.0, -1.5], abs=1e-4)
    assert list(found.instance(1).x) == ["y"] and m[1].size == 1


def test_a_batch_goes_on_from_a_state_takes_new_costs_and_is_certified(tmp_path: Path) -> None:
    data = graphs([4, 6, 5])
    batch = together(data)
    solver = batch.compile()
    first = solver.solve(passes=40, tol=1e-12)
    again = solver.solve(passes=1, warm_start=first)
    assert bool((again.bound >= first.bound - 1e-9).all())
    checked = bl.verify_certificate(batch[1], first.instance(1).state)
    assert float(checked.bound) == pytest.approx(float(first.bound[1]), abs=1e-7)
    first.save(tmp_path / "batch")
    assert torch.equal(bl.Solution.load(tmp_path / "batch", solver).bound, first.bound)
    batch.minimize({"y": 1.0})
    assert solver.solve().bound.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    batch.variable("more", [0, 1, 2, 3], lower=0, upper=1)
    with pytest.raises(ModelError, match="was changed since it was compiled"):
        solver.solve()


def test_what_is_wrong_is_named() -> None:
    def stated() -> tuple[bl.ModelBatch, object, object]:
        m = bl.ModelBatch()
        y, z = (m.variable(name, first, lower=0, upper=1) for name, first in (("y", [0, 2, 5]), ("z", [0, 1, 3])))
        return m, y, z

    m, y, z = stated()
    wrong: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ModelError, "begin with 0", lambda: m.variable("a", [1, 2], lower=0, upper=1)),
        (ModelError, "not fall", lambda: m.variable("a", [0, 2, 1], lower=0, upper=1)),
        (ShapeError, "3 instances", lambda: m.variable("a", [0, 2, 3, 4], lower=0, upper=1)),
        (ShapeError, r"\(3,\)", lambda: m.variable("a", [0, 2, 3], lower=[0, 0], upper=1)),
        (NonFiniteError, "finite", lambda: m.variable("a", [0, 2, 3], lower=-np.inf, upper=1)),
        (ModelError, "above", lambda: m.variable("a", [0, 2, 3], lower=[0, 2, 0], upper=1)),
        (ModelError, "already", lambda: m.variable("y", [0, 2, 3], lower=0, upper=1)),
        (ModelError, "integers", lambda: y[[0.5]]),  # type: ignore[index]
        (ScopeError, "out of range", lambda: m.add(Edge(), [y[[0, 0, 3]], y[[1, 1, 2]], z])),  # type: ignore[index,list-item]
        (ScopeError, "out of range", lambda: m.add(Edge(), [y[[2, 0, 0]], y[[1, 1, 2]], z])),  # type: ignore[index,list-item]
        (ScopeError, "block 1 of Edge in instance 1", lambda: m.add(Edge(), [y[[0, 0, 2]], y[[1, 1, 2]], z])),  # type: ignore[index,list-item]
        (ScopeError, "3 variables", lambda: m.add(Edge(), [y[[0, 0, 2]], z])),  # type: ignore[index,list-item]
        (ScopeError, "3 blocks", lambda: m.add(Edge(), [y[[0, 0]], y[[1, 1]], z])),  # type: ignore[index,list-item]
        (ModelError, "offsets=", lambda: m.add(Edge(), [y[[[0, 1]]], z[[0]]])),  # type: ignore[index,list-item]
        (UnknownNameError, "no variable", lambda: m.minimize({"x": 1.0})),
        (NonFiniteError, "cost of 'z'", lambda: m.minimize({z: [0.0, np.nan, 1.0]})),
        (ModelError, "no objective", m.compile),
    ]
    for kind, message, call in wrong:
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("sizes", ["one size", "ragged"])
def test_a_device_builds_in_few_operations_whatever_the_batch(sizes: str, device: torch.device) -> None:
    """Arrays stay on the device, and the host waits for checks of the statement alone."""
    data = graphs(SIZES[sizes] * 1, 12 if sizes == "one size" else None)
    there = together(data, device=device).solve(tol=1e-6)
    here = together(data).solve(tol=1e-6)
    assert there.bound.device.type == device.type
    assert torch.allclose(there.bound.cpu(), here.bound, atol=1e-5)
    if device.type != simulated_device.NAME:
        pytest.skip("only the simulated device counts")
    counts = []
    for times in (1, 8):
        given = together(data * times, device=device)
        with simulated_device.watch("blocklp") as trace:
            nodes, pairs = (given.variables[name].offsets.first for name in "yz")
            m = bl.ModelBatch()
            y = m.variable("y", nodes, lower=0, upper=1)
            z = m.variable("z", pairs, lower=0, upper=1)
            ends = torch.cat([torch.from_numpy(own[1]) for own in data * times]).to(device)
            m.add(Edge(), [y[ends], z])
            m.minimize({y: -1.0, z: 2.0})
            m.compile().decomposition()
        counts.append((trace.launches, trace.syncs))
    assert counts[0] == counts[1] and counts[0][0] <= 150 and counts[0][1] <= 16
