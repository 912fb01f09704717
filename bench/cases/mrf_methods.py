"""Energies and bounds on Markov random fields, in the form of Tables 4 to 15 of Le-Huu & Paragios 2018."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.qpbo_data import read
from bench.registry import Record, case
from blocklp.problems.mrf import Mrf, expand, solve_mrf
from blocklp.problems.mrf.nonconvex import METHODS, minimise
from blocklp.problems.qpbo.arrays import IntArray
from blocklp.search.tightening import Budget

QUICK = ("tiny/example_1", "Grids_11", "ObjectDetection_11")
OTHERS = (
    "CSP_11",
    "DBN_11",
    "DBN_13",
    "DBN_15",
    "Grids_13",
    "Grids_14",
    "ObjectDetection_14",
    "ObjectDetection_28",
    "ObjectDetection_34",
    "Segmentation_11",
    "Segmentation_13",
    "Segmentation_15",
    "deer_rescaled_0034.K10.F100.model",
    "grids_wrap20/Grids_26",
    "grids_wrap20/Grids_28",
    "grids_wrap20/Grids_29",
    "multilabel/Segmentation_11",
    "multilabel/wcsp_15",
)
STARTS, ROUNDS = 10, 12
LIMIT = 10.0
SPLITS = ("cyclic", "star", "symmetric")
NONCONVEX = {name: {} for name in METHODS if name != "admm"} | {f"admm, {split}": {"decomposition": split} for split in SPLITS}
NAMES = ("LP", "tightened", "expansion", *NONCONVEX)


@case(
    "mrf_methods",
    "MRFs: energies and bounds",
    f"All shared UAI instances. Cells are energies (and seconds, {LIMIT:.0f} at most unless `--limit` says otherwise), "
    "the least of a row in bold; `hard` are labels that violate a hard constraint. The nonconvex methods (`bcd` to `admm`, "
    f"default settings) show the best of {STARTS} starts, all labels alike, then random points, in one run. `expansion` makes "
    "expansion moves from the best labels of the unary terms. `LP` solves the local polytope to 1e-5, `tightened` adds clusters of "
    f"cycles in {ROUNDS} rounds at most; both end with rounding, descent and expansion moves, and they alone prove a `bound`. "
    "`gap %` is the distance of the row's least energy to its largest bound, relative to the larger of the two. `cqp` and "
    "`expansion` are for pairwise models. The last row counts the instances on which a method's energy is the least (to 1e-6).",
    limit=LIMIT,
)
def run(quick: bool, limit: float = LIMIT) -> Iterator[Record]:
    names = QUICK if quick else QUICK + OTHERS
    most = len(names) * len(NAMES) * limit
    print(f"{len(names)} instances, some {most / 10:.0f} s, at most {most:.0f} s", file=sys.stderr, flush=True)
    records = []
    for name in names:
        mrf = read(f"mrf/{name}.uai")
        assert isinstance(mrf, Mrf)
        record, _ = compared(name, mrf, limit)
        records.append(record)
        yield record
    yield counted(records)


def counted(records: list[Record]) -> Record:
    """The last row of a table: on how many instances a method's energy is the least."""
    counts = {name: {"shown": str(sum(r[name] is not None and r[name]["least"] for r in records))} for name in NAMES}
    return dict.fromkeys(records[0]) | {"instance": f"least, of {len(records)}"} | counts


def compared(name: str, mrf: Mrf, limit: float) -> tuple[Record, dict[str, IntArray]]:
    """A row of the table, and the labellings ``(n,)`` of the methods.

    Parameters
    ----------
    name : str
        What the row says.
    mrf : Mrf
        The model.
    limit : float
        Seconds of each method.
    """
    labels: dict[str, IntArray] = {}
    cells: dict[str, Any] = dict.fromkeys(NAMES)
    for method, budget in (("LP", None), ("tightened", Budget(rounds=ROUNDS))):
        began = time.perf_counter()
        found = solve_mrf(mrf, tighten=budget or False, tol=1e-5, time_limit=limit)
        cells[method] = {"energy": found.energy, "bound": found.bound, "seconds": time.perf_counter() - began}
        labels[method] = found.labels.numpy()
    if mrf.order <= 2:
        cells["expansion"], labels["expansion"] = _expansion(mrf, limit)
    for method, options in NONCONVEX.items():
        if method != "cqp" or mrf.order <= 2:
            least = minimise(mrf, method.partition(",")[0], STARTS, time_limit=limit, **options)
            kept = least.energy[least.energy.isfinite()]
            mean = kept.mean().item() if len(kept) else None
            cells[method] = {"energy": least.energy.min().item(), "mean": mean, "kept": len(kept), "seconds": least.seconds}
            labels[method] = least.labels[least.best].numpy()
    best = min(cell["energy"] for cell in cells.values() if cell is not None)
    bounds = {f"{method} bound": cells[method]["bound"] for method in ("LP", "tightened")}
    bound = max(bounds.values())
    for cell in filter(None, cells.values()):
        cell["least"] = bool(np.isfinite(cell["energy"]) and cell["energy"] <= best + 1e-6 * max(1.0, abs(best)))
        shown = f"{cell['energy']:.6g}" if np.isfinite(cell["energy"]) else "hard"
        cell["shown"] = f"**{shown}**" if cell["least"] else shown
        cell["shown"] += f" ({cell['seconds']:.2g} s)"
    record = {
        "instance": name,
        "n": mrf.n,
        "labels": int(mrf.counts.max()),
        "order": mrf.order,
        **{name: {"shown": f"{value:.6g}", "value": value} for name, value in bounds.items()},
        "gap %": 100 * max(0.0, best - bound) / max(1.0, abs(best), abs(bound)) if np.isfinite(best) else None,
        **cells,
    }
    print({k: v["shown"] if isinstance(v, dict) else v for k, v in record.items()}, file=sys.stderr, flush=True)
    return record, labels


def _expansion(mrf: Mrf, limit: float) -> tuple[dict[str, Any], IntArray]:
    costs = np.zeros((mrf.n, int(mrf.counts.max())))
    costs[np.arange(costs.shape[1]) >= mrf.counts[:, None]] = np.inf
    for scope, table in mrf.factors:
        if len(scope) == 1:
            costs[scope[0], : len(table)] += table
    began = time.perf_counter()
    labels = expand(mrf, costs.argmin(1), limit)
    return {"energy": float(mrf.energy(labels)), "seconds": time.perf_counter() - began}, labels
