"""Energies of the nonconvex methods and expansion moves beside the LP bound, as in Tables 4 to 15 of Le-Huu & Paragios 2018."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from bench.registry import Record, case
from blocklp.problems.mrf.heuristics import expand
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.nonconvex import METHODS, minimise
from blocklp.problems.mrf.readers import read_mrf
from blocklp.problems.mrf.relaxation import relax

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "qpbo" / "mrf"
QUICK = ("tiny/example_1.uai", "Grids_11.uai", "ObjectDetection_11.uai")
OTHERS = (
    "CSP_11.uai",
    "DBN_11.uai",
    "DBN_13.uai",
    "DBN_15.uai",
    "Grids_13.uai",
    "Grids_14.uai",
    "ObjectDetection_14.uai",
    "ObjectDetection_28.uai",
    "ObjectDetection_34.uai",
    "Segmentation_11.uai",
    "Segmentation_13.uai",
    "Segmentation_15.uai",
    "deer_rescaled_0034.K10.F100.model.uai",
    "grids_wrap20/Grids_26.uai",
    "grids_wrap20/Grids_28.uai",
    "grids_wrap20/Grids_29.uai",
    "multilabel/Segmentation_11.uai",
    "multilabel/wcsp_15.uai",
)
STARTS = 10
TIME_LIMIT = 60.0
"""Seconds of a method on an instance."""
SPLITS = ("cyclic", "star", "symmetric")


@case(
    "mrf_methods",
    "MRFs: energies of the nonconvex methods, and the LP bound",
    f"All shared UAI instances. `energy` is the least of {STARTS} starts (all labels alike, then random points), `mean` that of "
    "those that keep the hard constraints, `kept` how many do, `above best` how far the energy is above the least of all methods in "
    "percent, `seconds` for all starts together; default settings, on one thread, "
    f"at most {TIME_LIMIT:.0f} s. `expansion` makes expansion moves from the best labels of the unary terms (pairwise models only). "
    "`bound`, in the first row of an instance, is that of the local polytope at a tolerance of 1e-5, and `gap` the distance of the "
    "energy to it in percent.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for name in QUICK if quick else QUICK + OTHERS:
        path = FOLDER / name
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: this case needs the data set shared/data/qpbo")
        mrf = read_mrf(path, log=name.startswith("tiny/"))
        began = time.perf_counter()
        bound = relax(mrf).model.solve(tol=1e-5, time_limit=TIME_LIMIT).bound.item()
        rows = [_row(name, mrf, "LP") | {"bound": bound, "seconds": time.perf_counter() - began}]
        rows += [_minimised(name, mrf, method) for method in METHODS if method not in ("admm", "cqp")]
        rows += [_minimised(name, mrf, "admm", split) for split in SPLITS]
        if mrf.order <= 2:
            rows += [_minimised(name, mrf, "cqp"), _expansion(name, mrf)]
        best = min(row["energy"] for row in rows[1:])
        for row in rows[1:]:
            if np.isfinite(row["energy"]):
                row["above best"] = 100 * (row["energy"] - best) / max(abs(best), 1e-12)
                row["gap"] = 100 * (row["energy"] - bound) / max(abs(bound), 1e-12)
            print(row, file=sys.stderr, flush=True)
        records += rows
    return records


def _row(name: str, mrf: Mrf, method: str) -> Record:
    figures = dict.fromkeys(("energy", "mean", "kept", "above best", "bound", "gap", "seconds"))
    return {"instance": Path(name).with_suffix("").as_posix(), "n": mrf.n, "order": mrf.order, "method": method} | figures


def _minimised(name: str, mrf: Mrf, method: str, split: str | None = None) -> Record:
    options = {} if split is None else {"decomposition": split}
    found = minimise(mrf, method, STARTS, time_limit=TIME_LIMIT, **options)
    kept = found.energy[found.energy.isfinite()]
    return _row(name, mrf, method if split is None else f"{method}, {split}") | {
        "energy": found.energy.min().item(),
        "mean": kept.mean().item() if len(kept) else None,
        "kept": len(kept),
        "seconds": found.seconds,
    }


def _expansion(name: str, mrf: Mrf) -> Record:
    costs = np.zeros((mrf.n, int(mrf.counts.max())))
    costs[np.arange(costs.shape[1]) >= mrf.counts[:, None]] = np.inf
    for scope, table in mrf.factors:
        if len(scope) == 1:
            costs[scope[0], : len(table)] += table
    began = time.perf_counter()
    energy = float(mrf.energy(expand(mrf, costs.argmin(1), TIME_LIMIT)))
    return _row(name, mrf, "expansion") | {"energy": energy, "kept": int(np.isfinite(energy)), "seconds": time.perf_counter() - began}
