"""Other solvers on the same instance."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import thinqpbo
import torch
from scipy.sparse import save_npz

from blocklp.general_solvers.linear_program import LinearProgram, export
from blocklp.general_solvers.solvers import reference
from blocklp.model import Model
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


def flow_graph(qubo: Qubo) -> Any:
    """State a quadratic function for Kolmogorov's QPBO: a ``thinqpbo.QPBODouble`` that is not solved yet."""
    graph = thinqpbo.QPBODouble(qubo.n, len(qubo.edges))
    graph.add_node(qubo.n)
    for i, a in enumerate(qubo.linear.tolist()):
        graph.add_unary_term(i, 0.0, a)
    for (i, j), p in zip(qubo.edges.tolist(), qubo.quadratic.tolist(), strict=True):
        graph.add_pairwise_term(i, j, 0.0, 0.0, 0.0, p)
    return graph


def max_flow(qubo: Qubo) -> tuple[float, float, float]:
    """Exact roof dual by Kolmogorov's QPBO: value, seconds to build, seconds to solve."""
    began = time.perf_counter()
    graph = flow_graph(qubo)
    built = time.perf_counter()
    graph.solve()
    value = graph.compute_twice_lower_bound() / 2 + qubo.offset
    return value, built - began, time.perf_counter() - built


@contextmanager
def on_all_cores(solve: Callable[[Qubo], Any], qubos: Sequence[Qubo]) -> Iterator[Callable[[], tuple[float, list[Any]]]]:
    """Processes of one thread, one a core, that wait to solve all of some instances, a few at a time: seconds, and answers."""
    context = multiprocessing.get_context("spawn")
    cores = os.cpu_count() or 1
    ready = context.Barrier(cores + 1, timeout=300)  # a process that cannot start would be waited for in vain
    with context.Pool(cores, _given, (solve, qubos, ready)) as pool:
        ready.wait()

        def run() -> tuple[float, list[Any]]:
            began = time.perf_counter()
            answers = pool.map(_solved, range(len(qubos)), chunksize=max(1, len(qubos) // (16 * cores)))
            return time.perf_counter() - began, answers

        yield run


_work: list[Any] = []


def _given(solve: Callable[[Qubo], Any], qubos: Sequence[Qubo], ready: Any) -> None:
    torch.set_num_threads(1)
    _work[:] = solve, qubos
    solve(qubos[0])  # imports what it needs
    ready.wait()


def _solved(number: int) -> Any:
    solve, qubos = _work
    return solve(qubos[number])


def highs(qubo: Qubo, algorithm: str) -> tuple[float, float]:
    """The roof-duality LP by HiGHS: value, seconds."""
    found = reference(roof_duality_model(qubo), f"highs-{algorithm}")
    return found.objective.item(), found.seconds


def or_tools_pdlp(qubo: Qubo, tolerance: float, limit: float = 120.0) -> float | None:
    """The roof-duality LP by OR-tools PDLP: seconds, or None if it did not get there in time."""
    return or_tools_pdlp_on(roof_duality_model(qubo), tolerance, limit)["seconds"]


def or_tools_pdlp_on(model: Model, tolerance: float, limit: float = 120.0) -> dict[str, Any]:
    """The LP of a model's first instance by OR-tools PDLP to a relative gap.

    Seconds, or None if it did not get there in time; iterations; and what its answer is worth: the bound that its duals prove by
    the bounds of variables, its value, and the largest violation of a row.

    In a process of its own, because OR-tools and highspy bring HiGHS in two versions that do not load together; reading
    the LP is not timed.  Rows that the bounds of variables imply are left out.
    """
    answer, program, sign = _elsewhere("ortools_process", model, tolerance, limit)
    for key in ("value", "bound"):
        answer[key] = sign * answer[key] + program.offset
    return answer


def mpax(model: Model, tolerance: float, limit: float = 120.0) -> float | None:
    """The LP of a model's first instance by MPAX: seconds without compiling, or None if it did not get there or is not there."""
    try:
        return _elsewhere("mpax_process", model, tolerance, limit)[0]["seconds"]
    except subprocess.CalledProcessError:
        return None


def on_gpu(solver: str, model: Model, tolerance: float, limit: float = 120.0) -> dict[str, Any] | None:
    """The LP of a model's first instance by ``cupdlpx`` or ``cuopt``, as :func:`or_tools_pdlp_on`; None where it is not, or fails."""
    if find_spec(solver) is None:
        return None
    try:
        return _elsewhere("gpu_process", model, tolerance, limit, solver)[0]
    except subprocess.CalledProcessError as error:
        print(f"{solver} failed:", error.stderr[-2000:], file=sys.stderr)
        return None


def _elsewhere(module: str, model: Model, tolerance: float, limit: float, *more: str) -> tuple[dict[str, Any], LinearProgram, int]:
    """What a module of this folder answers for an LP, the LP, and -1 if it is one of maximisation."""
    program = export(model, 0)
    plus, minus = program.A.maximum(0), program.A.minimum(0)
    least, most = plus @ program.lower + minus @ program.upper, plus @ program.upper + minus @ program.lower
    used = np.flatnonzero((least < program.row_lower) | (most > program.row_upper))
    sign = -1 if program.maximize else 1
    vectors = {
        "c": sign * program.c,
        "low": program.lower,
        "high": program.upper,
        "above": program.row_lower[used],
        "below": program.row_upper[used],
    }
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "vectors.npz", **vectors)
        save_npz(Path(folder) / "rows.npz", program.A[used])
        command = [sys.executable, "-m", f"bench.{module}", folder, str(limit), str(tolerance), *more]
        answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    answer["seconds"] = answer["build"] + answer["solve"] if answer["status"] == "optimal" else None
    return answer, program, sign
