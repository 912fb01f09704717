"""Rows beside the blocks: what they state, bounds from their prices, certificates, warm starts, wrong input."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import blocklp as bl
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne, Knapsack, Simplex

from ... import simulated_device


def random_model(seed: int) -> tuple[bl.Model, float]:
    """A model with rows of either kind through a feasible point, with or without blocks, and the size of its costs."""
    rng = np.random.default_rng(seed)
    n, batch = int(rng.integers(2, 6)) * 4, int(rng.integers(1, 3))
    shape = int(rng.integers(1, 7)), n
    matrix = sp.random_array(shape, density=0.4, rng=rng, format="csr", data_sampler=lambda size: rng.normal(size=size))
    m = bl.Model(batch)
    x = m.variable("x", n, lower=0, upper=1 if seed % 3 else 2.0)
    inside = rng.random(n)
    if seed % 4 == 0:
        m.add(Simplex(4), x.reshape(n // 4, 4))
        inside = np.tile([1.0, 0, 0, 0], n // 4)
    elif seed % 4 == 1:
        m.add(AtMostOne(4), x.reshape(n // 4, 4))
        inside = np.full(n, 0.2)
    elif seed % 4 == 2:
        m.add(Knapsack(rng.random((n // 4, 4)), 0.9, 0, 1), x.reshape(n // 4, 4))
        inside = np.full(n, 0.1)
    at, room = matrix @ inside, rng.random((batch, matrix.shape[0])) * 0.3
    kind = int(rng.integers(3))
    if kind == 0:
        m.add(matrix @ x <= torch.as_tensor(at + room))
    elif kind == 1:
        m.add(matrix @ x == torch.as_tensor(at))
    else:
        m.add_rows(matrix, x, torch.as_tensor(at - room), torch.as_tensor(at + room))
    size = 10.0 ** rng.integers(-6, 7)
    objective = size * (torch.as_tensor(rng.normal(size=n)) @ x)
    (m.minimize if rng.random() < 0.5 else m.maximize)(objective)
    return m, float(size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shard", range(4))
def test_bounds_and_certificates_hold_and_optimal_means_equal(shard: int, dtype: torch.dtype) -> None:
    optimal = 0
    for seed in range(20 * shard, 20 * shard + 20):
        m, size = random_model(seed)
        truth, sign = reference(m).objective, -1.0 if m.maximizing else 1.0
        found = m.solve(tol=1e-4, dtype=dtype, passes=(1, 20, 3000)[seed % 3])
        proved = bl.verify_certificate(m, found.state).bound
        for bound in (found.bound, found.safe_bound, proved):
            assert (sign * (bound - truth) <= 1e-9 * truth.abs() + 1e-12 * size).all(), seed
        assert torch.allclose(proved, found.bound, rtol=1e-6, atol=1e-6 * size), seed
        for i, status in enumerate(found.status):
            if status is bl.Status.OPTIMAL:
                optimal += 1
                assert abs(found.bound[i] - truth[i]) <= 2e-4 * max(abs(truth[i]), found.floor[i]), seed
    assert optimal >= 5


def test_forms_of_rows_state_the_same() -> None:
    dense = np.array([[1.0, 2, 0], [0, 0, 3], [1, 1, 1]])
    values = []
    for form in range(6):
        m = bl.Model()
        x = m.variable("x", 3, lower=0, upper=1)
        forms = [sp.csr_array(dense), sp.coo_matrix(dense), torch.as_tensor(dense), torch.as_tensor(dense).to_sparse(), dense]
        if form < 5:
            m.add(forms[form] @ x <= [1.0, 1, 2])
        else:
            m.add(x[0] + 2 * x[1] <= 1)
            m.add(1 >= 3 * x[2])
            m.add(x.sum() - 2 <= 0 * x[0])
        m.maximize(x.sum())
        values.append(m.solve(tol=1e-8).bound.item())
    assert values == pytest.approx([4 / 3] * 6, rel=1e-6)


def test_prices_are_those_of_the_rows_and_warm_starts_keep_them() -> None:
    m = bl.Model()
    x = m.variable("x", 4, lower=0, upper=1)
    m.add(Simplex(2), x.reshape(2, 2))
    load = m.add(sp.csr_array([[1.0, 0, 1, 0]]) @ x <= 1.5, name="load")
    m.maximize(torch.tensor([3.0, 1, 2, 1]) @ x)
    found = m.solve(tol=1e-8)
    # Half a unit of the second choice is pushed out, at a loss of 1 a unit.
    assert found.bound.item() == pytest.approx(4.5) and load.count == 1
    assert found.duals["rows"].flatten().tolist() == pytest.approx([1.0], abs=1e-4)
    again = m.solve(tol=1e-7, warm_start=found)
    assert again.status == (bl.Status.OPTIMAL,) and int(again.passes) <= 2


def test_wrong_rows_are_refused_by_name() -> None:
    m = bl.Model(batch=2)
    x = m.variable("x", 3, lower=0, upper=1)
    other = bl.Model().variable("x", 3, lower=0, upper=1)
    eye = sp.eye_array(3)
    with pytest.raises(ShapeError, match="takes 4 variables"):
        sp.eye_array(4) @ x
    with pytest.raises(NonFiniteError, match=r"holds nan in row 0 at x\[0\]"):
        sp.csr_array([[np.nan, 1, 1], [1, 1, 1], [1, 1, 1]]) @ x
    with pytest.raises(ModelError, match="another model"):
        m.add(eye @ other <= 1)
    with pytest.raises(ModelError, match="two models"):
        m.add(eye @ x <= other)
    with pytest.raises(ModelError, match=r"row rows_1\[1\] leaves no value between 2 and 1$"):
        m.add_rows(eye, x, [0.0, 2, 0], 1.0)
    with pytest.raises(NonFiniteError, match="upper side of rows holds NaN"):
        m.add_rows(eye, x, upper=np.nan)
    with pytest.raises(ShapeError, match=r"lower side of rows has shape \(2,\); it must broadcast to \(3,\)"):
        m.add_rows(eye, x, lower=[0.0, 1.0])
    with pytest.raises(ModelError, match="leave the scope"):
        m.add(eye @ x <= 1, x)
    with pytest.raises(ModelError, match="neither true nor false"):
        bool(eye @ x <= 1)
    price = m.parameter("price", 3)
    with pytest.raises(ModelError, match="rows take numbers"):
        m.add(price * x <= 1)
    m.add(eye @ x <= 1, name="caps")
    with pytest.raises(ModelError, match="rows or blocks named 'caps'"):
        m.add(eye @ x <= 1, name="caps")
    m.minimize(x.sum())
    with pytest.raises(OptionError, match="the model has rows"):
        m.solve(method="admm")


def test_rows_that_take_too_long_to_build_have_prices_of_zero() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=2)
    rows = m.add(x.sum() >= 1, name="cover")
    m.minimize((torch.tensor([1.0, 2.0, -3.0]) * x).sum())
    found = m.solve(time_limit=1e-9)
    assert found.status[0] is bl.Status.TIME_LIMIT and -6 - 1e-12 <= float(found.bound[0]) <= -6
    assert found.price(rows).tolist() == [[0.0]] and found.slack(rows).shape == (1, 1)
    assert float(m.solve(warm_start=found).bound[0]) == pytest.approx(-6, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_a_device_adds_up_in_a_fixed_order(seed: int, device: torch.device) -> None:
    """Products with rows and their transpose take no atomics, and are those of the CPU."""
    here, there = (random_model(seed)[0].compile(device=where).decomposition() for where in ("cpu", device))
    assert here.rows is not None and there.rows is not None
    x, y = torch.randn_like(here.cost), torch.randn_like(here.rows.lower)
    with simulated_device.watch() as trace:
        found = there.rows.activity(x.to(device)), there.rows.adjoint(y.to(device), x.shape[1])
        again = there.to(torch.float32).select(slice(0, 1)).rows
    known = here.rows.activity(x), here.rows.adjoint(y, x.shape[1])
    torch.testing.assert_close([t.cpu() for t in found], list(known), rtol=1e-12, atol=1e-12)
    assert not any(event.atomic for event in trace.events)
    assert again is not None and again.sorted is there.rows.sorted
