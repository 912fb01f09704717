"""One search tree over workers: nodes, answers, and CPU time of the busiest process."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

import blocklp as bl
from bench.registry import Record, case, threads
from bench.search_tasks import TimedExecutor
from blocklp.campaigns import Executor
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.mrf import Mrf, solve_mrf_exactly
from blocklp.problems.verification import Property, VerifySettings, verify
from blocklp.problems.verification.network import Builder

Found = tuple[int, Any]
Search = Callable[[int, Executor | None], Found]
WORKERS = None, 1, 2


def field(variables: int, executor: Executor | None) -> Found:
    """The least energy of a field of three labels whose root bound is weak: nodes, and energy."""
    draw = np.random.default_rng(0)
    pairs = itertools.combinations(range(variables), 2)
    mrf = Mrf(np.full(variables, 3), [(pair, draw.integers(-20, 21, (3, 3))) for pair in pairs])
    found = solve_mrf_exactly(mrf, executor=executor, settings=ExactSettings(energy_tables=0, root_passes=60, shrunk=0.0))
    return found.nodes, (found.energy, found.proven)


def network(width: int, executor: Executor | None) -> Found:
    """Whether an output of a random network comes above a level, by splits of signs: nodes, and the verdict."""
    draw = torch.Generator().manual_seed(2)
    builder, at, sizes = Builder((4,)), 0, (4, width, width, 2)
    for layer, (before, after) in enumerate(itertools.pairwise(sizes)):
        at = builder.relu(at) if layer else at
        weight = torch.randn(after, before, generator=draw, dtype=torch.float64) / math.sqrt(before)
        at = builder.linear(at, weight, torch.randn(after, generator=draw, dtype=torch.float64))
    made = builder.build()
    values = made(2 * torch.rand(4000, 4, generator=draw, dtype=torch.float64) - 1)[:, 0]
    level, ends = float(values.max() + 0.35 * values.std()), np.ones(4)
    prop = Property.of(-ends, ends, np.array([[-1.0, 0.0]]), [-level])
    found = verify(made, prop, timeout=600, attack=False, executor=executor, settings=VerifySettings(few_inputs=0))
    return found.nodes, found.status


def integers(variables: int, executor: Executor | None) -> Found:
    """The most that numbers 0 or 1 in four packing rows are worth: nodes, and the value."""
    draw, model = np.random.default_rng(1), bl.Model()
    x = model.variable("x", variables, lower=0, upper=1, integer=True)
    weights = draw.integers(10, 100, (4, variables)).astype(float)
    model.add_rows(weights, x, None, weights.sum(1) / 3)
    model.maximize(torch.from_numpy(draw.integers(20, 80, variables).astype(float)) @ x)
    found = bl.solve_exact(model, executor=executor, batch=8)
    return int(found.nodes.sum()), round(float(found.primal[0]), 6)


SEARCHES: dict[str, tuple[Search, int, int]] = {
    "field of three labels, all pairs": (field, 9, 17),
    "network, splits of signs": (network, 8, 72),
    "integers in four rows": (integers, 8, 20),
}
"""Names to searches, with a small size, which loads what workers need, and that which is measured."""


@case(
    "searches",
    "One search tree over workers: nodes and CPU time of the busiest process",
    "Three searches without workers, over one and over two, which have one thread each and have searched a small tree before. "
    "`busiest` is the CPU time, in seconds, of the process that took most, this one included; `here` is that of this process, "
    "which holds the open nodes. `gain` is the busiest process of one worker over that of two. With workers nodes do not depend on "
    "their number; without them others are expanded. Two cores, which other programs kept busy (a load of 3 to 4), lengthen CPU "
    "times too: compare the rows of one search alone.",
)
def run(quick: bool) -> Iterator[Record]:
    for name, (search, small, large) in SEARCHES.items():
        known: dict[int | None, tuple[Found, float]] = {}
        for workers in WORKERS:
            with threads(1), nullcontext() if workers is None else TimedExecutor(workers) as executor:
                search(small, executor)
                before = {} if executor is None else dict(executor.used)
                began = time.process_time()
                found = search(small + 1 if quick else large, executor)
                here = time.process_time() - began
                busiest = max(here, 0.0 if executor is None else executor.busiest(before))
            known[workers] = found, busiest
            alone, one = known[None][0], known.get(1)
            equal = found[1] == alone[1] and (workers is None or one is None or one[0] == found)
            record = {"search": name, "workers": workers or 0, "nodes": found[0], "answer": str(found[1])}
            record |= {"here": here, "busiest": busiest, "gain": None if workers != 2 or one is None else one[1] / busiest}
            print(record, file=sys.stderr, flush=True)
            yield record | {"equal answers": "yes" if equal else "no", "findings": int(not equal)}
