"""The proximal methods without settings on all families, after up to 2000 passes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

import blocklp as bl
from bench.cases.anytime import errors, families
from bench.registry import Record, case
from blocklp.kernels.backend import VARIABLE

PASSES = (30, 100, 300, 1000, 2000)
METHODS = {
    "polyak": (None, bl.methods.Polyak()),
    "proxbc": (None, bl.methods.ProxBC()),
    "proxfw": (None, bl.methods.ProxFW()),
    "prox": (None, bl.methods.Prox()),
    "proxbc, weight 1": (1.0, bl.methods.ProxBC(1.0)),
    "proxfw, weight 1": (1.0, bl.methods.ProxFW(1.0)),
    "prox, weight 1": (1.0, bl.methods.Prox(1.0)),
}


def draw(records: list[Record], figure: Figure) -> None:
    """Error against passes, a panel a family."""
    names = list(dict.fromkeys(r["family"] for r in records))
    columns = -(-len(names) // 2)
    figure.set_size_inches(2.6 * max(columns, 3), 5.6)
    panels = np.atleast_1d(figure.subplots(2 if len(names) > 1 else 1, columns, sharex=True)).ravel()
    for axes, name in zip(panels, names, strict=False):
        for k, r in enumerate(r for r in records if r["family"] == name):
            look = {"color": "0.3", "linestyle": "--"} if r["method"] == "polyak" else {"color": f"C{(k - 1) % 3}"}
            look |= {"linestyle": ":"} if "weight" in r["method"] else {}
            axes.loglog(PASSES, [max(r[f"{p} passes"], 1e-8) for p in PASSES], label=r["method"], **look)
        axes.set_title(name, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    figure.supxlabel("passes", fontsize=9)
    figure.supylabel("error of the bound in percent", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)


@case(
    "weights",
    "The default weight of the proximal methods",
    "Mean relative error in percent of the best bound over two instances (BA-10000: one) of every family of `anytime`. `of polyak` "
    "is the error after 300 passes over that of `polyak`, which has no settings. Passes are counted, so that the machine does not "
    "matter; all bounds are in float64, checks come every ten passes.",
    draw,
)
def run(quick: bool) -> Iterator[Record]:
    os.environ[VARIABLE] = "numba"
    for family, solvers, optima in families(2, quick):
        baseline = None
        for name, (eta, method) in METHODS.items():
            found, _ = errors(solvers, optima, method, PASSES, PASSES[-1])
            baseline = baseline or found[300]
            row: Record = {"family": family, "method": name, "eta": eta}
            row |= {f"{p} passes": e for p, e in found.items()}
            row["of polyak"] = found[300] / baseline if baseline else None
            print(row, file=sys.stderr, flush=True)
            yield row
