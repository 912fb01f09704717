"""LPs that users of general solvers state, from flows to production plans, against HiGHS and column generation."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, eye_array, hstack, kron, random_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

import blocklp as bl
from bench.registry import Record, case
from blocklp.general_solvers.linear_program import export, loaded_highs
from blocklp.general_solvers.small_lp import quiet_highs
from blocklp.oracles import Knapsack, Simplex, Transport
from blocklp.problems.warm_up import warm_up

Array = NDArray[np.float64]

LIMIT = 60.0
# Medians are of so many runs in turn, unless those that there were took so many seconds.
ROUNDS, ENOUGH = 7, 5.0


class ShortestPaths(bl.BlockType):
    """A commodity's flow on its cheapest path, by Dijkstra's algorithm as SciPy has it: an oracle as a user would write it."""

    nonnegative_costs = True

    def __init__(self, nodes: int, arcs: NDArray[np.int64], ends: NDArray[np.int64], demand: Array) -> None:
        self.nodes, self.arcs, self.ends, self.demand, self.dim = nodes, arcs, ends, demand, len(arcs)
        self.number = np.zeros((nodes, nodes), dtype=np.int64)
        self.number[arcs[:, 0], arcs[:, 1]] = np.arange(len(arcs))
        self.starts = np.searchsorted(arcs[:, 0], np.arange(nodes + 1))  # arcs are sorted

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """The cheapest path of every commodity."""
        point = torch.zeros_like(cost)
        for i, k in np.ndindex(*cost.shape[:2]):
            (source, sink), at = self.ends[k % len(self.ends)], k % len(self.ends)
            network = csr_array((cost[i, k].double().numpy(), self.arcs[:, 1], self.starts), shape=(self.nodes, self.nodes))
            before = dijkstra(network, indices=source, return_predecessors=True)[1]
            while sink != source:
                point[i, k, self.number[before[sink], sink]] = self.demand[at]
                sink = before[sink]
        return point, (point * cost).sum(-1)


def flow(nodes: int, commodities: int) -> bl.Model:
    """Commodities between random nodes of a planar network, three fifths of whose busiest arcs' loads fit."""
    draw = np.random.default_rng(0)
    place = draw.random((nodes, 2))
    distance = np.linalg.norm(place[:, None] - place, axis=2)
    near = np.argsort(distance, 1)[:, 1:5]
    pairs = np.stack([np.repeat(np.arange(nodes), 4), near.ravel()], 1)
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes], 1)
    arcs = np.unique(np.concatenate([pairs, pairs[:, ::-1], ring]), axis=0)
    cost = distance[arcs[:, 0], arcs[:, 1]] + 0.01
    source = draw.integers(nodes, size=commodities)
    ends = np.stack([source, (source + 1 + draw.integers(nodes - 1, size=commodities)) % nodes], 1)
    demand = draw.uniform(0.5, 2, commodities)
    kind = ShortestPaths(nodes, arcs, ends, demand)
    load = kind.min_oracle(torch.from_numpy(cost).expand(1, commodities, -1))[0][0].sum(0).numpy()
    m = bl.Model()
    x = m.variable("x", (commodities, len(arcs)), lower=0, upper=np.repeat(demand[:, None], len(arcs), 1))
    m.add(kind, x, name="paths")
    sums = hstack([eye_array(len(arcs))] * commodities, format="csr")
    m.add_rows(sums, x.reshape(-1), upper=np.maximum(0.6 * load, np.median(load[load > 0])), name="capacity")
    m.minimize((torch.from_numpy(cost) * x).sum())
    return m


class Patterns(bl.BlockType):
    """Up to so many rolls cut by one pattern, the best one by dynamic programming over the width of a roll."""

    def __init__(self, width: NDArray[np.int64], roll: int, most: int) -> None:
        self.width, self.roll, self.most, self.dim = width, roll, most, len(width) + 1

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """All rolls by the best pattern, or none."""
        point = torch.zeros_like(cost)
        for i, k in np.ndindex(*cost.shape[:2]):
            worth = -cost[i, k, :-1].double().numpy()
            best, choice = np.zeros(self.roll + 1), np.full(self.roll + 1, -1)
            for room in range(1, self.roll + 1):
                best[room] = best[room - 1]
                fit = np.flatnonzero(self.width <= room)
                if len(fit):
                    value = best[room - self.width[fit]] + worth[fit]
                    if value.max() > best[room]:
                        best[room], choice[room] = value.max(), fit[value.argmax()]
            pattern, room = np.zeros(len(worth)), self.roll
            while room:
                item = choice[room]
                pattern[item] += item >= 0
                room -= self.width[item] if item >= 0 else 1
            if float(cost[i, k, -1]) < pattern @ worth:
                point[i, k] = torch.from_numpy(np.append(pattern, 1.0) * self.most).to(cost)
        return point, (point * cost).sum(-1)


def cutting(items: int) -> bl.Model:
    """Fewest rolls of width 100 from which a demand for pieces is cut."""
    draw = np.random.default_rng(0)
    width, demand = draw.integers(8, 50, items), draw.integers(10, 60, items)
    most = int(demand.sum())
    m = bl.Model()
    x = m.variable("x", items + 1, lower=0, upper=most * 12.0)
    m.add(Patterns(width, 100, most), x[None], name="patterns")
    m.add(x[:items] >= demand, name="demand")
    m.minimize(x[items])
    return m


class Loads(bl.BlockType):
    """Sets of items that a machine has room for, by dynamic programming: the hull of integer points."""

    def __init__(self, weight: NDArray[np.int64], room: NDArray[np.int64]) -> None:
        self.weight, self.room, self.dim = weight, room, weight.shape[1]

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """The best load of every machine."""
        point = torch.zeros_like(cost)
        for i, k in np.ndindex(*cost.shape[:2]):
            own, weight, room = cost[i, k].double().numpy(), self.weight[k % len(self.weight)], int(self.room[k % len(self.room)])
            best = np.zeros((self.dim + 1, room + 1))
            for item in range(self.dim):
                best[item + 1] = best[item]
                if own[item] < 0 and weight[item] <= room:
                    other = best[item, : room + 1 - weight[item]] + own[item]
                    best[item + 1, weight[item] :] = np.minimum(best[item, weight[item] :], other)
            for item in range(self.dim - 1, -1, -1):
                if best[item + 1, room] != best[item, room]:
                    point[i, k, item] = 1.0
                    room -= weight[item]
        return point, (point * cost).sum(-1)


def generalised_assignment(items: int, machines: int) -> bl.Model:
    """Every item on one machine, every machine within its room."""
    draw = np.random.default_rng(0)
    cost, weight = draw.integers(10, 50, (machines, items)), draw.integers(5, 25, (machines, items))
    m = bl.Model()
    x = m.variable("x", (machines, items), lower=0, upper=1)
    m.add(Loads(weight, (0.8 * weight.sum(1) / machines).astype(np.int64)), x, name="machines")
    m.add(x.sum(0) == 1, name="items")
    m.minimize((cost * x).sum())
    return m


def assignments(batch: int, size: int) -> bl.Model:
    """Assignments of one size, choices by rows and by columns."""
    cost = torch.rand(batch, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    m = bl.Model(batch)
    x = m.variable("x", (size, size), lower=0, upper=1)
    m.add(Simplex(size), x)
    m.add(Simplex(size), x.T)
    m.minimize((cost * x).sum())
    return m


def transports(batch: int, size: int, unit: bool) -> bl.Model:
    """Optimal transport between random masses, or ones, which makes assignments: a block an instance."""
    draw = torch.Generator().manual_seed(0)
    cost = torch.rand(batch, size, size, generator=draw, dtype=torch.float64)
    masses = torch.rand(2, batch, 1, size, generator=draw, dtype=torch.float64)
    supply, demand = torch.ones(2, size) if unit else masses / masses.sum(3, keepdim=True)
    m = bl.Model(batch)
    x = m.variable("x", (size, size), lower=0, upper=1)
    m.add(Transport(supply, demand), x.reshape(1, size * size))
    m.minimize((cost * x).sum())
    return m


def unit_commitment(units: int, hours: int) -> bl.Model:
    """Power plants with fixed costs, starts, least loads and ramps."""
    draw = np.random.default_rng(0)
    most, price, fixed, start = (draw.uniform(low, high, units) for low, high in ((50, 200), (10, 40), (100, 500), (200, 1000)))
    demand = 0.6 * most.sum() * (1 + 0.3 * np.sin(np.arange(hours) / hours * 4 * np.pi))
    m, shape = bl.Model(), (units, hours)
    p = m.variable("p", shape, lower=0, upper=np.repeat(most[:, None], hours, 1))
    on, started = (m.variable(name, shape, lower=0, upper=1) for name in ("on", "started"))
    every, (power, running, begun) = eye_array(units * hours, format="csr"), (v.reshape(-1) for v in (p, on, started))
    m.add(every @ power - diags_array(np.repeat(most, hours)) @ running <= 0, name="most")
    m.add(every @ power - diags_array(np.repeat(0.3 * most, hours)) @ running >= 0, name="least")
    ahead = diags_array([-np.ones(hours - 1), np.ones(hours - 1)], offsets=[0, 1], shape=(hours - 1, hours))
    step, later = kron(eye_array(units), ahead), kron(eye_array(units), eye_array(hours).tocsr()[1:])
    ramp = np.repeat(0.4 * most, hours - 1)
    m.add_rows(step, power, -ramp, ramp, name="ramps")
    m.add(step @ running - later @ begun <= 0, name="starts")
    m.add(p.sum(0) >= demand, name="demand")
    m.add_rows(kron(most[None], eye_array(hours)), running, 1.1 * demand, name="reserve")
    m.minimize((price[:, None] * p).sum() + (fixed[:, None] * on).sum() + (start[:, None] * started).sum())
    return m


def bins(items: int) -> bl.Model:
    """README's first example: items in five bins."""
    draw = torch.Generator().manual_seed(0)
    cost = torch.randint(10, 50, (items, 5), generator=draw).double()
    size = torch.randint(5, 25, (5, items), generator=draw).double()
    m = bl.Model()
    x = m.variable("x", (items, 5), lower=0, upper=1)
    m.add(Simplex(5), x)
    m.add(Knapsack(size, size.sum(1) / 5), x.T)
    m.minimize((cost * x).sum())
    return m


def cover(size: int, upper: float) -> bl.Model:
    """Covering, with variables bounded far beyond what rows ask for."""
    draw = np.random.default_rng(0)
    matrix = random_array((size * 2 // 3, size), density=min(0.1, 30 / size), rng=draw, format="csr")
    m = bl.Model()
    x = m.variable("x", size, lower=0, upper=upper)
    m.add(matrix @ x >= draw.uniform(1, 5, matrix.shape[0]) * (np.diff(matrix.indptr) > 0))
    m.minimize((draw.uniform(1, 3, size) * x).sum())
    return m


def by_highs(model: bl.Model, _: float) -> tuple[float, float]:
    """Seconds and value of HiGHS, from arrays to answers, one instance after the other."""
    seconds, value = 0.0, np.nan
    for i in range(model.batch):
        program = export(model, i)
        began = time.perf_counter()
        highs = loaded_highs(program, time_limit=LIMIT)
        highs.run()
        seconds += time.perf_counter() - began
        if i == 0 and highs.modelStatusToString(highs.getModelStatus()) == "Optimal":
            value = highs.getInfo().objective_function_value + program.offset
    return seconds, value


def by_columns(model: bl.Model, tol: float) -> tuple[float, float]:
    """Textbook column generation with the model's own oracle: HiGHS solves the master, every block gives its best point a round."""
    problem = model.compile().decomposition()
    group, rows = problem.groups[0], problem.rows
    assert rows is not None
    began = time.perf_counter()
    matrix = csr_array((rows.entry.numpy(), (rows.row.numpy(), rows.column.numpy())), shape=(rows.count, model.size))
    scope, cost = model.blocks[0].scope.numpy(), problem.cost[0].numpy()
    none = np.zeros(0, dtype=np.int32)
    highs, blocks = quiet_highs(), len(scope)
    for low, high in ((rows.lower[0].numpy(), rows.upper[0].numpy()), (np.ones(blocks), np.ones(blocks))):
        highs.addRows(len(low), low, high, 0, np.zeros(len(low), dtype=np.int32), none, np.zeros(0))
    penalty = 100 * np.abs(cost).max()
    for row in range(rows.count):
        side = 1.0 if np.isfinite(rows.lower[0, row]) else -1.0
        highs.addCol(penalty, 0.0, np.inf, 1, np.array([row], dtype=np.int32), np.array([side]))
        if float(rows.lower[0, row]) == float(rows.upper[0, row]):
            highs.addCol(penalty, 0.0, np.inf, 1, np.array([row], dtype=np.int32), np.array([-side]))
    price, worth, bound, value = np.zeros(rows.count), np.full(blocks, 1e30), -np.inf, np.inf
    while time.perf_counter() - began < LIMIT:
        reduced = (cost - matrix.T @ price)[scope]
        point, found = (t[0].numpy() for t in group.type.min_oracle(torch.from_numpy(reduced)[None]))
        side = np.where(price > 0, rows.lower[0], rows.upper[0])
        bound = max(bound, found.sum() + price @ np.where(price != 0, side, 0.0))
        if np.isfinite(value) and value - bound <= tol * abs(value):
            break
        for k in np.flatnonzero(found < worth - 1e-9 * (1 + np.abs(worth))):
            used = np.flatnonzero(point[k])
            entries = matrix[:, scope[k, used]] @ point[k, used]
            row = np.flatnonzero(entries)
            index = np.append(row, rows.count + k).astype(np.int32)
            highs.addCol(cost[scope[k]] @ point[k], 0.0, np.inf, len(index), index, np.append(entries[row], 1.0))
        highs.run()
        dual, value = np.array(highs.getSolution().row_dual), highs.getInfo().objective_function_value
        price, worth = dual[: rows.count], dual[rows.count :]
    return time.perf_counter() - began, value


Rival = Callable[[bl.Model, float], tuple[float, float]]


@dataclass(frozen=True)
class Task:
    """A model, what it is solved to, and with what it is compared."""

    name: str
    model: Callable[[], bl.Model]
    rival: Rival
    tol: float = 1e-4


TASKS = (
    Task("multi-commodity flow, 50 x 20", lambda: flow(50, 20), by_columns),
    Task("multi-commodity flow, 100 x 50", lambda: flow(100, 50), by_columns),
    Task("multi-commodity flow, 400 x 500", lambda: flow(400, 500), by_columns),
    Task("cutting stock, 30 items", lambda: cutting(30), by_columns),
    Task("generalised assignment, 100 x 10, integer loads", lambda: generalised_assignment(100, 10), by_columns),
    Task("1000 assignments, 10 x 10, choices by rows and columns", lambda: assignments(1000, 10), by_highs, 1e-3),
    Task("1000 assignments, 30 x 30, a block each", lambda: transports(1000, 30, True), by_highs, 1e-3),
    Task("1000 transports, 30 x 30, a block each", lambda: transports(1000, 30, False), by_highs, 1e-3),
    Task("unit commitment, 50 x 24", lambda: unit_commitment(50, 24), by_highs),
    Task("unit commitment, 400 x 24", lambda: unit_commitment(400, 24), by_highs),
    Task("5,000 items in five bins", lambda: bins(5_000), by_highs),
    Task("20,000 items in five bins", lambda: bins(20_000), by_highs),
    Task("cover, 300 variables up to 1e9", lambda: cover(300, 1e9), by_highs),
    Task("cover, 20,000 variables up to 1e6", lambda: cover(20_000, 1e6), by_highs),
)

QUICK = (0, 3, 8, 12)


def record(task: Task) -> Record:
    """One task by ours, in a process that has solved another instance of it, and by the rival: medians of runs in turn."""
    task.model().solve(tol=task.tol, passes=20)
    building, ours, rivals = [], [], []
    while len(ours) < ROUNDS and sum(ours) + sum(rivals) < ENOUGH:
        began = time.perf_counter()
        model = task.model()
        built = time.perf_counter()
        found = model.solve(tol=task.tol, passes=1_000_000, time_limit=LIMIT)
        ours.append(time.perf_counter() - built)
        building.append(built - began)
        seconds, value = task.rival(model, task.tol)
        rivals.append(seconds)
    sign = -1.0 if model.maximizing else 1.0
    above = sign * (float(found.bound[0]) - value)
    return {
        "task": task.name,
        "tol": task.tol,
        "runs": len(ours),
        "building": statistics.median(building),
        "seconds": statistics.median(ours),
        "passes": int(found.passes.max()),
        "done": sum(s is bl.Status.OPTIMAL for s in found.status),
        "gap": float(found.gap.max()),
        "bound": float(found.bound[0]),
        "rival": "column generation" if task.rival is by_columns else "HiGHS",
        "rival's seconds": statistics.median(rivals),
        "rival's value": value,
        "ratio": statistics.median(ours) / statistics.median(rivals),
        "findings": int(above > 1e-7 * abs(value)),
    }


@case(
    "general",
    "LPs of users, against HiGHS and column generation",
    "One thread; loops were compiled by `blocklp warm-up`. "
    "`seconds` of ours: compile and solve by `auto` to a certified gap, all instances of a batch together, in a process "
    "that has solved for twenty passes before; `building` states the model. Medians of `runs` in turn. HiGHS solves one instance "
    "after the other to 1e-9, from arrays; column generation is the textbook's, with the same oracle, to the same gap. "
    "`done`: instances certified. `findings`: bounds above the rival's value.",
)
def run(quick: bool) -> list[Record]:
    torch.set_num_threads(1)
    for _ in () if quick else warm_up():  # loops that are not compiled yet are left alone where they would not pay at once
        pass
    made = []
    for task in [TASKS[i] for i in QUICK] if quick else TASKS:
        made.append(record(task))
        print(made[-1], file=sys.stderr, flush=True)
    return made
