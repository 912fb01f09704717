"""Time limits of calls, in this process: seconds beyond the limit are a finding where they are many."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import blocklp as bl
from bench.cases.general import cover, unit_commitment
from bench.families import grid, polytopes, triangles
from bench.instances import ba, er
from bench.soak.trial import Draw, Finding, trial
from blocklp.errors import TimeLimitError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.problems.densecrf import DenseCRF, Kernel, solve_densecrf
from blocklp.problems.mis import WeightedGraph, solve_mis, solve_mis_exactly
from blocklp.problems.mrf import Mrf, solve_mrf, solve_mrf_exactly
from blocklp.problems.qpbo import roof_duality_model, solve_qpbo, solve_qpbo_exactly

SHARE, SECONDS = 0.05, 0.3
"""What a call may be late by: a share of its limit, or so many seconds."""

BUSY = 3.0
"""How much later a call may be in a soak, which runs beside others."""

lateness: list[tuple[str, float, float]] = []
"""What was called, its limit, and seconds beyond it, of all calls of this process."""


def field(draw: Draw) -> Mrf:
    """A dense field of many labels."""
    n, labels = draw.count(10, 60), draw.count(3, 20)
    pairs = [(i, j) for i in range(n) for j in range(i) if draw.chance(min(1.0, 6 / n))]
    return Mrf([labels] * n, [(list(p), draw.random.normal(size=(labels, labels))) for p in pairs])


def graph(draw: Draw) -> WeightedGraph:
    """A random graph."""
    n = draw.count(50, 400)
    pairs = np.argwhere(np.triu(draw.random.random((n, n)) < 0.2, 1))
    return WeightedGraph(draw.random.integers(1, 99, n).astype(float), pairs)


def crf(draw: Draw) -> DenseCRF:
    """Points with an exact kernel."""
    n = draw.count(100, 1500)
    kernel = Kernel(Gaussian(torch.as_tensor(draw.random.normal(size=(n, 5)))), 5.0, False)
    return DenseCRF(torch.as_tensor(draw.random.random((n, 8))), (kernel,))


CALLS: dict[str, Callable[[Draw], Callable[[float], Any]]] = {
    "solve, edges": lambda draw: _solve(roof_duality_model(ba(draw.count(1000, 20000), 0))),
    "solve, polytopes": lambda draw: _solve(polytopes(0, draw.count(3, 8), draw.count(50, 400), 600)),
    "solve, field": lambda draw: _solve(grid(0, draw.count(10, 60), 4)),
    "solve, triangles": lambda draw: _solve(triangles(0, draw.count(20, 45))),
    "solve, rows": lambda draw: _solve(unit_commitment(draw.count(50, 1500), 24)),
    "linprog": lambda draw: _linprog(cover(draw.count(300, 30_000), 1e6)),
    "qpbo": lambda draw: (lambda q: lambda s: solve_qpbo(q, time_limit=s, tol=1e-9))(er(draw.count(100, 1500), 0.05, 0)),
    "qpbo, tightened": lambda draw: (lambda q: lambda s: solve_qpbo(q, True, time_limit=s))(er(draw.count(40, 200), 0.2, 0)),
    "qpbo, exactly": lambda draw: (lambda q: lambda s: solve_qpbo_exactly(q, time_limit=s))(er(draw.count(60, 300), 0.2, 0)),
    "mis": lambda draw: (lambda g: lambda s: solve_mis(g, time_limit=s, tol=1e-9))(graph(draw)),
    "mis, exactly": lambda draw: (lambda g: lambda s: solve_mis_exactly(g, time_limit=s))(graph(draw)),
    "mrf": lambda draw: (lambda m: lambda s: solve_mrf(m, time_limit=s, tol=1e-9))(field(draw)),
    "mrf, tightened": lambda draw: (lambda m: lambda s: solve_mrf(m, tighten=True, time_limit=s))(field(draw)),
    "mrf, exactly": lambda draw: (lambda m: lambda s: solve_mrf_exactly(m, time_limit=s))(field(draw)),
    "dense CRF": lambda draw: (lambda c, m: lambda s: solve_densecrf(c, m, time_limit=s))(
        crf(draw), draw.pick("mean-field", "prox-lp", "dc-neg", "qp-cvx", "sg-lp")
    ),
}
"""What is called: each takes a draw to a call that takes its limit."""


def _solve(model: bl.Model) -> Callable[[float], Any]:
    return lambda seconds: model.solve(time_limit=seconds, tol=1e-12, passes=10**6, patience=10**6)


def _linprog(model: bl.Model) -> Callable[[float], Any]:
    program = model.linear_program()
    equal, above, below = program.sides()
    assert not len(equal) and not len(above)
    sides = {"A_ub": -program.A[below], "b_ub": -program.row_lower[below], "bounds": np.stack([program.lower, program.upper], 1)}
    return lambda seconds: bl.linprog(program.c, **sides, options={"time_limit": seconds, "tol": 1e-12, "maxiter": 10**9})


@trial("time limits", "A call comes back by its time limit, wherever it is.", seconds=300)
def limits(draw: Draw) -> None:
    name = draw.pick(*CALLS)
    call, limit = CALLS[name](draw), float(np.exp(draw.random.uniform(np.log(0.05), np.log(1.0))))
    late(name, lambda: call(limit), limit, BUSY)


def late(name: str, call: Callable[[], Any], limit: float, factor: float = 1.0) -> float:
    """Seconds beyond the limit; raises a finding where they are more than a factor times what is allowed."""
    began = time.perf_counter()
    try:
        call()
    except TimeLimitError:
        pass  # it had nothing to return yet
    over = time.perf_counter() - began - limit
    lateness.append((name, limit, over))
    if over > factor * max(SHARE * limit, SECONDS):
        raise Finding(f"{name} with a limit of {limit:.3g} s came back after {limit + over:.3g} s")
    return over
