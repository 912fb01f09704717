"""Matching of sources to destinations with capacities, by the law of DuaLip's generator, against general LP solvers."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

import blocklp as bl
from bench.registry import Record, case
from bench.rivals import or_tools_pdlp_on
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

SIZES = ((1_000, 50, 0.1), (10_000, 100, 0.05), (100_000, 1_000, 0.01))
TOLERANCE = 1e-4
LIMIT = 100.0
SMALL = 200_000
"""Edges up to which HiGHS is asked."""


@dataclass(frozen=True)
class Matching:
    r"""Maximise :math:`\sum_e v_e x_e`, each source at most once, with loads :math:`\sum_{e \to d} l_e x_e \le capacity_d`."""

    source: NDArray[np.int64]
    destination: NDArray[np.int64]
    value: Array
    load: Array
    capacity: Array

    @classmethod
    def random(cls, sources: int, destinations: int, sparsity: float, seed: int = 42) -> Matching:
        """Lognormal breadth, scale and worth of destinations and affinity of edges; half to all of the greedy loads as capacity."""
        draw = np.random.default_rng(seed)
        breadth, scale, worth = (draw.lognormal(0, size, destinations) for size in (1.0, 1.0, 0.5))
        degrees = np.minimum(draw.poisson(sparsity * destinations, sources), destinations)
        ends = draw.choice(destinations, int(degrees.sum()), p=breadth / breadth.sum())
        pairs = np.unique(np.repeat(np.arange(sources), degrees) * destinations + ends)
        source, destination = pairs // destinations, pairs % destinations
        value = worth[destination] * draw.lognormal(0, 0.5, len(pairs))
        load = scale[destination] * value * draw.lognormal(0, 0.25, len(pairs))
        best = np.zeros(sources)
        np.maximum.at(best, source, value)
        greedy = np.bincount(destination, load * (value == best[source]), destinations)
        capacity = draw.uniform(0.5, 1, destinations) * np.maximum(greedy, load.max())
        return cls(source, destination, value, load, capacity)

    def model(self) -> bl.Model:
        """A block for each source, and a row for each destination."""
        m, n = bl.Model(), len(self.value)
        x = m.variable("x", n, lower=0, upper=1)
        degrees = np.bincount(self.source)
        first = np.cumsum(degrees) - degrees
        for k in np.unique(degrees[degrees > 0]).tolist():
            m.add(AtMostOne(k), x[first[degrees == k][:, None] + np.arange(k)], name=f"sources of {k}")
        rows = csr_array((self.load, (self.destination, np.arange(n))), shape=(len(self.capacity), n))
        m.add(rows @ x <= self.capacity, name="capacity")
        m.maximize(self.value @ x)
        return m

    def bound(self, price: Array) -> float:
        """What prices ``(destinations,)`` prove: no matching is worth more."""
        price, best = np.maximum(price, 0), np.zeros(int(self.source.max()) + 1)
        np.maximum.at(best, self.source, self.value - self.load * price[self.destination])
        return float(best.sum() + self.capacity @ price)

    def repaired(self, x: Array) -> float:
        """The value of a point after sources, then destinations, that have too much are scaled down."""
        x = np.clip(x, 0, 1)
        x = x / np.maximum(np.bincount(self.source, x), 1)[self.source]
        over = np.bincount(self.destination, self.load * x, len(self.capacity)) / self.capacity
        return float(self.value @ (x / np.maximum(over, 1)[self.destination]))


def records(size: tuple[int, int, float]) -> list[Record]:
    """One row a solver."""
    data = Matching.random(*size)
    common = {"sources": size[0], "destinations": size[1], "edges": len(data.value)}
    made: list[Record] = []

    def record(solver: str, seconds: float | None, passes: int | None, bound: float | None, value: float | None) -> None:
        gap = None if bound is None or value is None else (bound - value) / abs(bound)
        made.append({**common, "solver": solver, "seconds": seconds, "passes": passes, "gap": gap, "bound": bound, "value": value})
        print(made[-1], file=sys.stderr, flush=True)

    for what in ("blocklp, first of the process", "blocklp"):
        began = time.perf_counter()
        m = data.model()
        found = m.solve(tol=TOLERANCE, passes=100_000, time_limit=LIMIT)
        seconds = time.perf_counter() - began
        price = found.duals["rows"][0].flatten().numpy()
        x = found.x["x"][0].numpy()
        done = found.status[0] is bl.Status.OPTIMAL
        record(what, seconds if done else None, int(found.passes), data.bound(price), data.repaired(x))
    for tolerance in (TOLERANCE, TOLERANCE / 10):
        pdlp = or_tools_pdlp_on(data.model(), tolerance, LIMIT)
        record(f"OR-tools PDLP, {tolerance:.0e}", pdlp["seconds"], pdlp["iterations"], pdlp["bound"], pdlp["value"])
    if len(data.value) <= SMALL:
        for rival in ("highs-ipm", "highs-simplex"):
            answer = reference(data.model(), rival)
            record(rival, answer.seconds, None, answer.objective.item(), data.repaired(answer.x["x"][0].numpy()))
    return made


def draw_picture(records: list[Record], figure: Figure) -> None:
    """Seconds against edges."""
    axes = figure.subplots()
    for solver in dict.fromkeys(r["solver"] for r in records):
        own = [r for r in records if r["solver"] == solver and r["seconds"] is not None]
        axes.plot([r["edges"] for r in own], [r["seconds"] for r in own], "o-", label=solver)
    axes.set(xscale="log", yscale="log", xlabel="edges", ylabel="seconds")
    axes.legend()


@case(
    "matching",
    "Matching with capacities, against general LP solvers",
    "Random matchings by the law of DuaLip's generator: lognormal breadth, scale and worth of destinations, lognormal affinities, "
    "capacities of half to all of what the greedy choice loads. A block for each source, a row with one price for each destination. "
    "One thread; `seconds` of ours are those to state, compile and solve the model to a certified gap of 1e-4, of the others those "
    "in the solver. `bound` and `value` of ours are what a judge of a few lines makes of the prices and of the point scaled into the "
    "capacities; those of PDLP what its duals prove and what its point is worth, feasible or not; HiGHS is exact.",
    draw=draw_picture,
)
def run(quick: bool) -> list[Record]:
    torch.set_num_threads(1)
    return [row for size in (SIZES[:1] if quick else SIZES) for row in records(size)]
