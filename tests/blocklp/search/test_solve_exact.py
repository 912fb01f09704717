"""Exact optima of models with integer variables, against HiGHS and enumeration."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

import blocklp as bl
from blocklp.campaigns import InProcess, LocalExecutor
from blocklp.errors import BlocklpError, ModelError, OptionError
from blocklp.general_solvers.linear_program import export
from blocklp.oracles import AtMostOne, Knapsack, Simplex
from blocklp.search.best_first import SearchEvent
from blocklp.search.integer_relaxations import UNCOMPILED, bounds
from blocklp.search.integer_search import IntegerProgram


def truth(m: bl.Model, instance: int = 0) -> tuple[float, bool]:
    """The optimum by HiGHS, and whether there is one."""
    p = export(m, instance)
    whole = np.concatenate([np.full(v.index.numel(), int(v.integer)) for v in m.variables.values()])
    sign = -1 if p.maximize else 1
    rows = LinearConstraint(p.A, p.row_lower, p.row_upper)
    found = milp(sign * p.c, constraints=rows, bounds=Bounds(p.lower, p.upper), integrality=whole, options={"mip_rel_gap": 0})
    return (sign * found.fun + p.offset, True) if found.status == 0 else (sign * np.inf, False)


def assignment(seed: int, batch: int = 1) -> bl.Model:
    """Items in bins with capacities, as blocks or as rows, some with continuous variables beside."""
    rng = np.random.default_rng(seed)
    items, bins = int(rng.integers(4, 8)), int(rng.integers(2, 4))
    m = bl.Model(batch)
    x = m.variable("x", (items, bins), lower=0, upper=1, integer=True)
    size = rng.integers(3, 15, (bins, items)).astype(float)
    room = np.floor(size.sum(1) / bins * rng.uniform(0.9, 1.3))
    m.add(Simplex(bins), x)
    if seed % 2:
        m.add(Knapsack(torch.as_tensor(size), torch.as_tensor(room)), x.T)
    else:
        for b in range(bins):
            m.add((size[b] * x[:, b]).sum() <= room[b], name=f"bin {b}")
    shape = (batch, items, bins)
    cost = rng.integers(5, 40, shape).astype(float) if seed % 3 else rng.uniform(5, 40, shape)
    value = (torch.as_tensor(cost) * x).sum()
    if seed % 4 == 3:
        y = m.variable("y", 2, lower=0, upper=3)
        m.add(y.sum() + (size[0] * x[:, 0]).sum() / 4 >= 3.3)
        value = value + (np.array([2.5, 1.3]) * y).sum()
    (m.minimize if seed % 5 else m.maximize)(value + 7)
    return m


def covering(seed: int) -> bl.Model:
    """Integers between bounds of either sign, in rows of two sides and equations, and in the objective with decimals."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 8))
    m = bl.Model()
    x = m.variable("x", n, lower=-2.5, upper=3.5, integer=True)
    y = m.variable("y", 2, lower=-1, upper=1)
    matrix = rng.integers(-3, 4, (3, n)).astype(float)
    inside = rng.integers(-2, 4, n)
    m.add_rows(matrix[:2], x, matrix[:2] @ inside - 1, matrix[:2] @ inside + 2)
    m.add((matrix[2] * x).sum() + 2 * y.sum() == float(matrix[2] @ inside))
    (m.minimize if seed % 2 else m.maximize)(torch.as_tensor(rng.normal(size=n).round(2)) @ x + y[0] * 0.3)
    return m


def matching(seed: int) -> bl.Model:
    """Pairs of two sides, each at most once, with one row beside."""
    rng, n = np.random.default_rng(seed), 5
    m = bl.Model()
    x = m.variable("x", (n, n), lower=0, upper=1, integer=True)
    m.add(Simplex(n) if seed % 2 else AtMostOne(n), x)
    m.add(AtMostOne(n), x.T)
    weight = rng.integers(0, 9, (n, n)).astype(float)
    m.add((torch.as_tensor(weight) * x).sum() <= float(np.floor(0.7 * n * weight.mean())))
    (m.minimize if seed % 2 else m.maximize)((torch.as_tensor(rng.uniform(1, 10, (n, n))) * x).sum())
    return m


@pytest.mark.parametrize(
    ("build", "seeds"),
    # 153: pivots from a parent's basis end without a proof, so that the node is solved again from another one
    [(assignment, (0, 2, 3, 4, 5, 7, 9)), (covering, (0, 2, 3, 4, 5, 7, 9, 153)), (matching, range(6))],
)
def test_optima_are_those_of_highs(build: Any, seeds: Sequence[int]) -> None:
    kinds = set()
    for seed in seeds:
        m = build(seed)
        (value, any_), found = truth(m), bl.solve_exact(m)
        kinds.add(found.status[0])
        if not any_:
            assert found.status == (bl.Status.INFEASIBLE,) and found.primal.item() == found.bound.item() == value, seed
            continue
        assert found.status == (bl.Status.OPTIMAL,), seed
        assert found.primal.item() == pytest.approx(value, rel=2e-6, abs=1e-6) and found.gap.item() <= 1e-6, seed
        sign = -1.0 if m.maximizing else 1.0
        assert sign * found.bound.item() <= sign * value + 2e-9 * max(1.0, abs(value)), seed
        x = found.raw_x[0].numpy()
        p = export(m)
        room = 2e-6 * np.maximum(abs(p.A) @ np.abs(x), 1)
        assert (p.A @ x <= p.row_upper + room).all() and (p.A @ x >= p.row_lower - room).all(), seed
        assert float(p.c @ x) + p.offset == pytest.approx(found.primal.item(), abs=1e-9)
        assert all(torch.equal(found[v], found[v].round()) for v in m.variables.values() if v.integer)
    assert bl.Status.OPTIMAL in kinds


@pytest.mark.parametrize("seed", [4, 10, 27])
def test_the_bound_holds_at_any_time_and_rises(seed: int) -> None:
    m = assignment(seed)
    (value, _), sign = truth(m), -1.0 if m.maximizing else 1.0
    seen: list[SearchEvent] = []
    for most in (1, 2, 8):
        found = bl.solve_exact(m, max_nodes=most, batch=2, callback=seen.append)
        assert sign * found.bound.item() <= sign * value + 1e-9 * abs(value)
        assert sign * found.primal.item() >= sign * value - 1e-6 * abs(value)
        assert found.status[0] in (bl.Status.PASS_LIMIT, bl.Status.OPTIMAL)
    assert all(sign * e.bound <= sign * value + 1e-9 * abs(value) <= sign * e.incumbent + 1e-5 for e in seen) and seen
    short = bl.solve_exact(m, time_limit=1e-3)
    assert np.isfinite(short.bound.item())  # that of the box at least
    assert sign * short.bound.item() <= sign * value and short.status[0] in (bl.Status.TIME_LIMIT, bl.Status.OPTIMAL)
    stopped = bl.solve_exact(m, callback=lambda event: True)
    assert stopped.status[0] in (bl.Status.INTERRUPTED, bl.Status.OPTIMAL) and sign * stopped.bound.item() <= sign * value + 1e-6


def test_instances_are_solved_one_by_one() -> None:
    m = assignment(4, batch=3)
    found = bl.solve_exact(m)
    assert found.primal.tolist() == pytest.approx([truth(m, i)[0] for i in range(3)])
    assert found["x"].shape[0] == 3 and found.nodes.shape == (3,) and "ExactSolution of 3 instances" in repr(found)
    load = found.value((torch.ones(found["x"].shape[1:]).double() * m.variables["x"]).sum())
    assert load.tolist() == [found["x"].shape[1]] * 3 and "<table>" in found._repr_html_()


class WholeKnapsack(bl.BlockType):
    """Subsets within a capacity, which are known by their oracle alone."""

    def __init__(self, size: list[float], room: float) -> None:
        points = [p for p in product((0.0, 1.0), repeat=len(size)) if np.dot(p, size) <= room]
        self.points, self.dim = torch.tensor(points, dtype=torch.float64), len(size)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Try all."""
        best = (cost @ self.points.to(cost).T).argmin(-1)
        point = self.points.to(cost)[best]
        return point, (cost * point).sum(-1)


def test_blocks_that_are_known_by_their_oracle_alone() -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        items, bins = 6, 2
        size, cost = rng.integers(3, 9, items).astype(float), rng.uniform(1, 9, (items, bins))
        room = float(np.floor(size.sum() * 0.6))
        m = bl.Model()
        x = m.variable("x", (items, bins), lower=0, upper=1, integer=True)
        m.add(Simplex(bins), x)
        m.add(WholeKnapsack(size.tolist(), room), x.T)
        m.minimize((cost * x).sum())
        choices = [np.eye(bins)[list(c)] for c in product(range(bins), repeat=items)]
        value = min(float((cost * c).sum()) for c in choices if (size @ c <= room).all())
        found = bl.solve_exact(m, time_limit=20)
        assert found.primal.item() == pytest.approx(value) and found.status == (bl.Status.OPTIMAL,)


class Interval(bl.BlockType):
    """Zeros and ones of which the ones are consecutive."""

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.nn.functional.pad(cost.cumsum(-1), (1, 0))
        highest, start = total.cummax(-1)
        stop = (total - highest).argmin(-1, keepdim=True)
        place = torch.arange(cost.shape[-1])
        point = ((place >= start.gather(-1, stop)) & (place < stop)).to(cost)
        return point, (cost * point).sum(-1)


def test_gaps_at_an_optimum_of_zero_are_relative_to_what_costs_allow() -> None:
    """Every weight is above the capacity, so that zero is the only point; relaxations come near it from below."""
    cost = torch.tensor([[-7.9, 2.2, -0.58, -8.5], [-8.1, -0.68, 4.0, 4.8], [-5.9, -6.9, -4.0, -1.2]]).double()
    m = bl.Model()
    x = m.variable("x", (3, 4), lower=0, upper=1, integer=True)
    m.add(Interval(), scope=x)
    m.add(Knapsack([3.0, 2, 3], 1.0, integer=True), scope=x.T)
    m.minimize((cost * x).sum())
    found = bl.solve_exact(m, max_nodes=1)
    assert found.status[0] == bl.Status.OPTIMAL and found.primal.item() == 0
    assert found.bound.item() <= 0 and found.gap.item() <= 1e-6


class Interrupted(WholeKnapsack):
    """Ctrl-C at some call of the oracle."""

    left = 400

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Count down."""
        Interrupted.left -= 1
        if Interrupted.left == 0:
            raise KeyboardInterrupt
        return super().min_oracle(cost)


@pytest.mark.parametrize("calls", [1, 8, 14, 20, 35])
def test_an_interrupt_ends_the_search_with_what_is_known(calls: int) -> None:
    rng = np.random.default_rng(0)
    m = bl.Model(batch=2)
    x = m.variable("x", (8, 2), lower=0, upper=1, integer=True)
    m.add(Simplex(2), x)
    size, cost = rng.integers(3, 9, 8).astype(float), rng.uniform(1, 9, (2, 8, 2))
    m.add(Interrupted(size.tolist(), float(np.floor(size.sum() * 0.53))), x.T)
    m.minimize((cost * x).sum())
    choices = [np.eye(2)[list(c)] for c in product(range(2), repeat=8)]
    fitting = [c for c in choices if (size @ c <= np.floor(size.sum() * 0.53)).all()]
    values = [min(float((own * c).sum()) for c in fitting) for own in cost]
    Interrupted.left = calls
    found = bl.solve_exact(m)
    assert Interrupted.left <= 0 and bl.Status.INTERRUPTED in found.status and found.status[1] is bl.Status.INTERRUPTED
    assert all(b <= v + 1e-9 and p >= v - 1e-9 for b, p, v in zip(found.bound.tolist(), found.primal.tolist(), values, strict=True))


def test_wrong_input_is_refused_by_name() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    with pytest.raises(ModelError, match="no objective"):
        bl.solve_exact(m)
    m.minimize(x.sum())
    with pytest.raises(ModelError, match=r"integer=True"):
        bl.solve_exact(m)
    with pytest.raises(OptionError, match="integer of variable 'y' is 3"):
        m.variable("y", lower=0, upper=1, integer=3)  # type: ignore[arg-type]
    m.variable("y", lower=0, upper=1, integer=True)
    for wrong in ({"tol": -1}, {"batch": 0}, {"time_limit": -1}, {"max_nodes": 0}, {"callback": 3}, {"verbose": 3}, {"method": "x"}):
        with pytest.raises(BlocklpError):
            bl.solve_exact(m, **wrong)  # type: ignore[arg-type]
    narrow = bl.Model()
    z = narrow.variable("z", lower=0.2, upper=0.8, integer=True)
    narrow.maximize(z + 0)
    assert bl.solve_exact(narrow).status == (bl.Status.INFEASIBLE,)


def test_verbose_prints_the_solution_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    bl.solve_exact(assignment(4), verbose=True)
    shown = capsys.readouterr()
    assert shown.out == "" and "ExactSolution of 1 instance" in shown.err


def test_relaxations_by_pivots_bound_as_those_by_passes_do() -> None:
    m = matching(2)
    program = IntegerProgram(m, 0, "auto", bl.Deadline(), 1e-6, task=UNCOMPILED)
    assert program.simplex is not None and IntegerProgram(m, 0, bl.methods.Admm(), bl.Deadline(), 1e-6).simplex is None
    low, high = program.low.repeat(6, 1), program.high.repeat(6, 1)
    high[range(6), range(6)] = 0.0
    low[1, 7] = low[5, 11] = 1.0
    pivoted, passed = program.relaxed(low, high, None, 1e-7, 5000), program.solve(low, high, None, 1e-7, 5000)
    assert torch.allclose(pivoted.bound, bounds(passed, program.sense), rtol=1e-5)
    # Every point of a node is above its bound by the prices of how far it is from where they have it.
    near = torch.where(pivoted.price < 0, high - passed.raw_x, passed.raw_x - low)
    value = passed.raw_x @ program.cost + program.constant
    assert bool((value >= pivoted.bound + (near * pivoted.price.abs()).sum(1) - 1e-4).all())


@pytest.mark.parametrize("seed", [2, 15])
def test_processes_solve_the_same_nodes(seed: int, two_workers: LocalExecutor) -> None:
    m, found = covering(seed), []
    (value, _), events = truth(m), list[SearchEvent]()
    for where in (InProcess(), two_workers):
        found.append(bl.solve_exact(m, batch=2, executor=where, callback=events.append))
        assert found[-1].status == (bl.Status.OPTIMAL,) and found[-1].primal.item() == pytest.approx(value, rel=2e-6)
    assert torch.equal(found[0].nodes, found[1].nodes) and found[0].nodes.item() > 8
    assert torch.equal(found[0].bound, found[1].bound) and torch.equal(found[0].raw_x, found[1].raw_x)
    sign = -1.0 if m.maximizing else 1.0
    assert all(sign * e.bound <= sign * value + 1e-6 * abs(value) for e in events)
