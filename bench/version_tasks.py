"""Tasks that two versions of blocklp are compared by: ``python bench/version_tasks.py NAME`` prints one as JSON.

It is run with the interpreter of either version, in the folder of either checkout, and keeps to names that both have.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.getcwd())

import numpy as np
import torch

import blocklp as bl
import blocklp.solver
from bench.families import assignment, cliques, grid, polytopes, triangles
from bench.instances import ba, er
from blocklp.problems.densecrf import DenseCRF, Kernel, solve_densecrf
from blocklp.problems.densecrf.energy import Gaussian  # where all versions have it
from blocklp.problems.mrf import Mrf, solve_mrf
from blocklp.problems.qpbo import roof_duality_model, solve_qpbo, solve_qpbo_exactly

Run = Callable[[], Any]


def solves(make: Callable[[], bl.Model], **options: Any) -> Callable[[], Run]:
    """Build a model; then compile and solve it."""

    def prepared() -> Run:
        model = make()
        return lambda: model.compile().solve(**options)

    return prepared


def batch() -> Run:
    """Three hundred graphs of 200 nodes."""
    models = [roof_duality_model(ba(200, seed)) for seed in range(300)]
    return lambda: bl.compile(models).solve(tol=1e-3, passes=5000)


def field() -> Run:
    """A grid of 20 x 20 variables with three labels and random pairs."""
    draw, number = np.random.default_rng(0), np.arange(400).reshape(20, 20)
    across, down = (np.stack([a.ravel(), b.ravel()], 1) for a, b in ((number[:, :-1], number[:, 1:]), (number[:-1], number[1:])))
    edges = np.concatenate([across, down])
    mrf = Mrf.from_arrays(draw.random((400, 3)), edges, draw.random((len(edges), 3, 3)))
    return lambda: solve_mrf(mrf, tol=1e-3)


def crf(method: str) -> Callable[[], Run]:
    """A dense CRF of 3,000 points and eight labels."""

    def prepared() -> Run:
        draw = np.random.default_rng(0)
        kernel = Kernel(Gaussian(torch.as_tensor(draw.normal(size=(3000, 5)))), 5.0, False)
        field = DenseCRF(torch.as_tensor(draw.random((3000, 8))), (kernel,))
        return lambda: solve_densecrf(field, method)

    return prepared


def nodes() -> Run:
    """Five hundred nodes of a branch and bound."""
    model = roof_duality_model(ba(200, 0))
    search, draw = bl.Nodes(model, model.variables["y"]), np.random.default_rng(0)
    fixings = [{int(i): int(draw.integers(2)) for i in draw.choice(200, 10, replace=False)} for _ in range(500)]
    return lambda: search.solve(fixings)


def roof(n: int, **options: Any) -> Callable[[], Run]:
    """Roof duality on a preferential-attachment graph."""
    return solves(lambda: roof_duality_model(ba(n, 0)), **options)


def searched() -> Run:
    """An exact search."""
    qubo = er(70, 0.15, 0)
    return lambda: solve_qpbo_exactly(qubo, time_limit=60)


def labelled() -> Run:
    """Roof duality with labelling and persistencies."""
    qubo = ba(1000, 0)
    return lambda: solve_qpbo(qubo, tol=1e-4)


LONG = {"tol": 1e-12, "passes": 300, "patience": 10**6}

TASKS: dict[str, Callable[[], Run]] = {
    "BA-1000 to 1e-4": roof(1000, tol=1e-4, passes=20_000),
    "BA-30000 to 1e-3": roof(30_000, tol=1e-3, passes=20_000),
    "300 BA-200 to 1e-3": batch,
    "cliques to 1e-4": solves(lambda: cliques(0), tol=1e-4, passes=5000),
    "assignment to 1e-5": solves(lambda: assignment(0), tol=1e-5, passes=20_000),
    "grid to 1e-4": solves(lambda: grid(0), tol=1e-4, passes=5000),
    "triangles, 300 passes": solves(lambda: triangles(0), **LONG),
    "polytopes, 300 passes": solves(lambda: polytopes(0), **LONG),
    "BA-1000, 300 passes of prox": roof(1000, method="prox", **LONG),
    "BA-1000 to 1e-4 by pdhg": roof(1000, method="pdhg", tol=1e-4, passes=20_000),
    "BA-30000, 300 passes of pdhg": roof(30_000, method="pdhg", **LONG),
    "exact, ER-70": searched,
    "solve_mrf, grid of 20 x 20": field,
    "solve_qpbo, BA-1000": labelled,
    "dense CRF, mean field": crf("mean-field"),
    "dense CRF, prox-lp": crf("prox-lp"),
    "500 nodes of BA-200": nodes,
}

FIRST = {"first of a process, BA-100": 100, "first of a process, BA-1000": 1000, "first of a process, BA-30000": 30_000}
"""Solves in a new process with loops as the version chooses, on a machine where they have been compiled."""


def main(name: str) -> None:
    """Print seconds of the processor, passes and the bound."""
    torch.set_num_threads(1)
    first = name in FIRST
    if not first:
        os.environ["BLOCKLP_BACKEND"] = "numba"
        if importlib.util.find_spec("blocklp.compiled"):  # 0.1.0, which measures when loops pay
            compiled = importlib.import_module("blocklp.compiled")
            compiled.LOADING = compiled.COMPILING = 0.0
    prepared = roof(FIRST[name], tol=1e-3, passes=20_000) if first else TASKS[name]
    seconds, found = float("inf"), None
    for turn in range(1 if first else 4):
        run = prepared()
        gc.collect()  # what building left behind is not the solve's
        began = time.process_time()
        found = run()
        if turn or first:
            seconds = min(seconds, time.process_time() - began)
    passes, bound = getattr(found, "passes", None), getattr(found, "bound", None)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "passes": int(passes.max()) if isinstance(passes, torch.Tensor) else None,
                "bound": float(bound.flatten()[0]) if isinstance(bound, torch.Tensor) else None,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
