"""Root bounds: roof duality, tightening, cuts of a MIP solver, semidefinite."""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.contest import Answer, Ours, rival, slack, together, write
from bench.qpbo_data import known, read
from bench.registry import Record, case
from bench.rivals import max_flow
from blocklp.deadline import Deadline
from blocklp.problems.mrf import Mrf
from blocklp.problems.qpbo import Qubo, solve_qpbo
from blocklp.problems.qpbo.convexify import Spins, convexified

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIMIT, SEMIDEFINITE_ROUNDS = 15.0, 20
QUICK = ("qubo/bqp50-1.sparse", "qubo/bqp100-5.sparse", "maxcut/g05_60.0")
ALL = (
    "qubo/bqp50-1.sparse",
    *(f"qubo/bqp100-{k}.sparse" for k in range(1, 6)),
    *(f"qubo/gka{k}d.sparse" for k in (1, 3, 5)),
    "qubo/be120.3.1.sparse",
    "qubo/be100.1.sparse",
    "qubo/bqp250-1.sparse",
    *(f"mrf/{name}.uai" for name in ("Grids_11", "Grids_14", "grids_wrap20/Grids_26")),
    *(f"maxcut/{name}" for name in ("t2g10_5555", "G11.txt", "pm1s_80.0", "ising2.5-100_5555", "g05_60.0", "pm1d_80.0")),
)
BOUNDS = {"max-flow": "roof duality", "tightened": "tightened", "HiGHS root": "HiGHS, cuts", "semidefinite": "semidefinite"}
"""Methods that are drawn, and their names in the picture."""


def draw(records: list[Record], figure: Figure) -> None:
    """Gaps of the instances, those of one method joined."""
    axes = figure.subplots()
    for method, label in BOUNDS.items():
        # A logarithm has no zero: what is closer than 0.001 % is drawn there.
        gaps = [np.nan if r[f"{method} %"] is None else max(r[f"{method} %"], 1e-3) for r in records]
        axes.plot(gaps, "o--", label=label, linewidth=0.5)
    axes.set(yscale="log", ylabel="root gap, % (at least 0.001)")
    axes.set_xticks(range(len(records)), [f"{r['instance']} ({r['density %']:.0f} %)" for r in records], rotation=60, ha="right")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


@case(
    "tightening",
    "Root bounds of QUBOs, grids and max-cut: tightening, cuts, semidefinite",
    "Gaps `%` are distances of bounds from `best`, the best value known (proved but for grids_wrap20 and G11), relative to "
    "it. `max-flow` is the exact roof dual; `HiGHS LP` the LP of the same value (interior points without crossover; `LP "
    "error` is its relative difference to max-flow). `tightened` adds triangles, cycles and cliques, `blocks` in `rounds`, "
    "until its bound meets its own labelling to 1e-4; `HiGHS root` is the bound of HiGHS's cuts at its root node, on the "
    f"linearised mixed-integer program. `semidefinite` is the bound with triangle inequalities, {SEMIDEFINITE_ROUNDS} rounds at "
    f"most, that our exact search starts from. Seconds are `s`: one thread each, two at a time, {LIMIT:.0f} at most unless "
    "`--limit` says otherwise (then bounds are those so far, and an LP has none; the first semidefinite round is not "
    "interrupted). `density %` is the share of pairs that are coupled. **On dense functions and dense max-cut (g05, pm1d, "
    "ising, be100.1) semidefinite bounds are the right tool:** blocks of a few variables do not compete with them there. "
    "`faults` names bounds above the best value, and methods that are missing or crashed.",
    draw,
    limit=LIMIT,
)
def run(quick: bool, limit: float = LIMIT) -> Iterator[Record]:
    names = QUICK if quick else ALL
    most = len(names) * 3 * limit / 2
    print(f"{len(names)} instances, some {most / 1.6:.0f} s, at most {most:.0f} s", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder, Ours() as one, Ours() as other:
        file = Path(folder) / "instance.npz"
        for name in names:
            instance = read(name)
            qubo = instance.to_qubo() if isinstance(instance, Mrf) else instance
            best = known(name)
            assert isinstance(qubo, Qubo) and best is not None, f"{name} is no instance of this case"
            write(qubo, file)
            value, build, flow = max_flow(qubo)
            jobs = {"tightened": partial(one, tightened, qubo, limit), "semidefinite": partial(other, semidefinite, qubo, limit)}
            jobs |= {solver: partial(rival, solver, file, limit) for solver in ("HiGHS root", "HiGHS LP")}
            answers = {"max-flow": {"bound": value, "seconds": build + flow}} | together(jobs)
            record = _record(name, qubo, best, answers)
            print(record, file=sys.stderr, flush=True)
            yield record


def _record(name: str, qubo: Qubo, best: float, answers: dict[str, Answer]) -> Record:
    mine, lp = answers["tightened"], answers["HiGHS LP"]
    # The manifest's energies of Markov random fields have four decimals.
    off = slack(qubo, best) + (1e-4 if name.startswith("mrf/") else 0.0)
    energy = mine.get("energy", np.inf)
    faults = [f"{method}: {answer['fault']}" for method, answer in answers.items() if "fault" in answer]
    faults += [f"{method}: above best" for method, answer in answers.items() if answer.get("bound", -np.inf) > best + off]
    faults += [f"tightened: labels {energy} better than best"] if energy < best - off else []
    record: Record = {
        "instance": Path(name).name.removesuffix(".sparse").removesuffix(".uai").removesuffix(".txt"),
        "n": qubo.n,
        "pairs": len(qubo.edges),
        "density %": 100 * len(qubo.edges) / (qubo.n * (qubo.n - 1) / 2),
        "best": {"shown": f"{best:.7g}", "value": best},
    }
    for method in BOUNDS:
        answer = answers[method]
        bound = answer.get("bound", -np.inf)
        record[f"{method} %"] = max(0.0, 100 * (best - bound) / abs(best)) if np.isfinite(bound) else None
        record[f"{method} s"] = answer.get("seconds")
    record |= {"blocks": mine.get("blocks"), "rounds": mine.get("rounds")}
    done = bool(lp.get("done"))
    return record | {
        "HiGHS LP s": lp["seconds"] if done else None,
        "LP error": abs(lp["bound"] - answers["max-flow"]["bound"]) / abs(best) if done else None,
        "faults": "; ".join(faults) or None,
    }


def tightened(qubo: Qubo, limit: float) -> Answer:
    """Roof duality with blocks that join it; in a process of :class:`bench.contest.Ours`, as the next."""
    compile_all()
    began = time.perf_counter()
    found = solve_qpbo(qubo, tighten=True, time_limit=limit)
    return {
        "bound": found.relaxation.bound.item(),
        "seconds": time.perf_counter() - began,
        "energy": found.energy,
        "blocks": found.rounds[-1].blocks if found.rounds else 0,
        "rounds": len(found.rounds) - 1 if found.rounds else 0,
    }


def semidefinite(qubo: Qubo, limit: float) -> Answer:
    """The semidefinite bound with triangle inequalities."""
    began = time.perf_counter()
    found = convexified(Spins.of(qubo), SEMIDEFINITE_ROUNDS, deadline=Deadline(limit))
    return {"bound": found.bound, "seconds": time.perf_counter() - began}


@functools.cache
def compile_all() -> None:
    """Run the loops once, so that compiling is not timed."""
    draw = np.random.default_rng(0)
    solve_qpbo(Qubo.from_matrix(np.triu(draw.integers(-9, 10, (20, 20)))), tighten=True, time_limit=5)
