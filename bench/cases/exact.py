"""Time to proof, against other exact solvers."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.contest import Answer, Ours, judged, rival, together, write
from bench.qpbo_data import Instance, known, read
from bench.registry import Record, case
from blocklp.deadline import Deadline
from blocklp.problems.discrete.exact import ExactRun
from blocklp.problems.mis import WeightedGraph, solve_mis_exactly
from blocklp.problems.mrf import Mrf, solve_mrf_exactly
from blocklp.problems.qpbo import Qubo, solve_qpbo_exactly
from blocklp.problems.qpbo.convex_search import search_convex
from blocklp.problems.qpbo.convexify import Spins

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIVALS = ("toulbar2", "CP-SAT", "HiGHS", "Gurobi")
LIMIT = 10.0
QUICK = ("qubo/bqp50-1.sparse", "mis/col/myciel5.col", "mrf/ObjectDetection_11.uai")
QUBOS = (
    *(f"qubo/bqp{n}-{k}.sparse" for n in (50, 100) for k in range(1, 6)),
    *(f"qubo/gka{name}.sparse" for name in ("3a", "5b", "3d", "5d", "1e")),
    *(f"qubo/be{name}.sparse" for name in ("100.1", "120.3.1", "150.3.1")),
    *(f"maxcut/{name}" for name in ("t2g10_5555", "g05_60.0", "g05_80.0", "pm1s_100.0", "pw01_100.0", "pw01_100.1")),
)
GRAPHS = (
    *(f"mis/mwvc/{name}.mwvc" for name in ("Alchemy_11", "DBN_11", "Grids_11", "Segmentation_11", "MMAP_Grids_26", "MMAP_Grids_29")),
    *(f"mis/col/{name}.col" for name in ("1-Insertions_4", "DSJC125.1", "DSJR500.1", "games120", "miles250", "queen8_8", "myciel5")),
)
FIELDS = tuple(
    f"mrf/{name}.uai" for name in ("multilabel/Segmentation_11", "ObjectDetection_11", "Grids_11", "DBN_11", "DBN_15", "CSP_11")
)


def draw(records: list[Record], figure: Figure) -> None:
    """How many instances each solver has proved after so many seconds."""
    axes = figure.subplots()
    for name in ("blocklp", *RIVALS):
        taken = sorted(r[name]["seconds"] for r in records if r[name].get("done"))
        axes.step([1e-3, *taken], range(len(taken) + 1), where="post", label=f"{name} ({len(taken)})")
    axes.set(xscale="log", xlabel="seconds, one thread", ylabel=f"instances proved, of {len(records)}")
    axes.legend(loc="upper left")


@case(
    "exact",
    "Time to proof",
    "Quadratic functions, independent sets and Markov random fields of the shared data set. Seconds to a proved optimum, or"
    " what is left between a solver's own labels and its own bound at the limit, in percent (`no labels` where it has "
    f"none). Each solver has one thread and {LIMIT:.0f} seconds unless `--limit` says otherwise, and two run at a time. "
    "Building models counts, importing, reading and compiling do not. `blocklp` is `qpbo --exact`, `mis --exact` and `mrf "
    "--exact`; `nodes` and `nodes/s` are its own. toulbar2 (pytoulbar2) gets tables of costs; CP-SAT the linearised "
    "problem; HiGHS the linearised mixed-integer program; Gurobi, with the licence that comes with gurobipy, the quadratic "
    "program up to 200 variables, else the linearised one up to 2000 variables and rows (`size` where it is refused). "
    "toulbar2 and CP-SAT work on integers: coefficients that are none are rounded to six decimals, or as many as keep sums "
    "below 2^50; HiGHS and Gurobi stop at a relative gap of 1e-9. Settings are otherwise those that each comes with; "
    "CP-SAT's are made for eight threads or more. `best` is the least energy known or found (of a set or a cut, minus its "
    "weight). Energies are recomputed from labels, and "
    "bounds held against them: `disagrees` names who claims what cannot be (by more than 1e-6 of the value, and 1e-6 for "
    "every rounded term). `missing`, `crashed` and `killed` are solvers that are not installed, died, or did not stop.",
    draw,
    limit=LIMIT,
)
def run(quick: bool, limit: float = LIMIT) -> Iterator[Record]:
    names = QUICK if quick else QUBOS + GRAPHS + FIELDS
    most = len(names) * (1 + len(RIVALS)) * limit / 2
    print(f"{len(names)} instances, some {most / 2.5:.0f} s, at most {most:.0f} s", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder, Ours() as ours:
        file = Path(folder) / "instance.npz"
        for name in names:
            instance = read(name)
            write(instance, file)
            jobs = {"blocklp": partial(ours, solve, instance, limit)}
            jobs |= {solver: partial(rival, solver, file, limit) for solver in RIVALS}
            answers, best, wrong = judged(instance, together(jobs), known(name))
            mine = answers["blocklp"]
            record: Record = {
                "instance": Path(name).stem if name.endswith((".sparse", ".mwvc", ".col", ".uai")) else Path(name).name,
                "kind": {"maxcut": "max-cut", "mis": "set"}.get(name.partition("/")[0], name.partition("/")[0]),
                "n": instance.n,
                "pairs": len(instance.edges),
                "best": {"shown": f"{best:.7g}", "value": best},
                **answers,
                "nodes": mine.get("nodes"),
                "nodes/s": mine["nodes"] / mine["seconds"] if mine.get("nodes") else None,
                "disagrees": "; ".join(wrong) or None,
            }
            print({k: v["shown"] if isinstance(v, dict) else v for k, v in record.items()}, file=sys.stderr, flush=True)
            yield record


def solve(instance: Instance, limit: float) -> Answer:
    """Our search; it runs in a process of :class:`bench.contest.Ours`."""
    compile_all()
    search = {Qubo: solve_qpbo_exactly, WeightedGraph: solve_mis_exactly, Mrf: solve_mrf_exactly}
    found = search[type(instance)](instance, time_limit=limit)
    sign = -1 if isinstance(instance, WeightedGraph) else 1
    return {
        "labels": found.labels.tolist(),
        "bound": sign * found.bound,
        "nodes": found.nodes,
        "seconds": found.seconds,
        "done": found.proven,
    }


@functools.cache
def compile_all() -> None:
    """Run the loops once, with time for them, so that compiling is not timed."""
    draw = np.random.default_rng(0)
    dense = Qubo.from_matrix(np.triu(draw.integers(-50, 51, (40, 40))))
    solve_qpbo_exactly(dense, time_limit=60)
    # From a bad labelling, so that no bound ends the search at its root.
    search_convex(Spins.of(dense), 1.0, np.ones(dense.n, dtype=np.int8), ExactRun(Deadline(), None))
    pairs = np.argwhere(np.triu(draw.random((80, 80)) < 0.15, 1))
    graph = WeightedGraph.from_edges(np.ones(80), pairs)
    solve_mis_exactly(graph, time_limit=60)
    tables = draw.normal(size=(45, 3, 3))
    edges = np.array([(i, j) for i in range(10) for j in range(i + 1, 10)])
    solve_mrf_exactly(Mrf.from_arrays(draw.normal(size=(10, 3)), edges, tables), time_limit=60)
    # A grid that is too wide for elimination, for the loops of tightened searches.
    n = 26
    grid = np.array([(n * i + j, n * i + j + step) for i in range(n) for j in range(n) for step in (1, n) if j + step % n < n])
    grid = grid[grid[:, 1] < n * n]
    solve_qpbo_exactly(Qubo.from_terms(draw.normal(size=n * n), grid, draw.normal(size=len(grid)) * 2), time_limit=60)
