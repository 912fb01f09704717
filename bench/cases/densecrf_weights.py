"""PROX-LP with different proximal weights: energies by proximal problem on the tree image of MSRC, as in Figure A.10."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from matplotlib.figure import Figure

from bench.cases.densecrf_segmentation import KERNELS, METHODS
from bench.densecrf_data import accuracy, energy_of, msrc
from bench.registry import Record, case
from blocklp.problems.densecrf import solve_densecrf
from blocklp.problems.densecrf.prox_lp import WEIGHT

LAMBDAS = (10.0, 1.0, 0.1, 0.01, 0.001)
"""In the costs' own unit, as printed."""
PROBLEMS = 10
"""As printed."""


def draw(records: list[Record], figure: Figure) -> None:
    """Energies of the rounded points by proximal problem, one picture an energy."""
    for axes, kernels in zip(figure.subplots(1, len(KERNELS)), KERNELS, strict=True):
        for r in (r for r in records if r["kernels"] == kernels):
            style = "k--" if r["default"] else "-"
            axes.semilogy([r[f"energy {k}"] for k in range(PROBLEMS + 1)], style, label=f"{r['lambda']:.2g}")
        axes.set_title(f"kernels {kernels}")
        axes.set_xlabel("proximal problems")
        axes.grid(alpha=0.3, which="both")
        axes.legend(title="lambda", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.axes[0].set_ylabel("energy of the rounded point")


@case(
    "densecrf_weights",
    "Dense CRFs: PROX-LP with different proximal weights (Figure A.10)",
    "MSRC image 2_14, the tree image, every second row and column, with released unaries and the kernels tuned for DCneg (Table "
    "A.2), every pair twice; without normalisation, as printed, and symmetrically normalised. PROX-LP from the last point of "
    "DCneg, ten problems of five steps, ten levels. Lambda is in the costs' own unit; the row marked as default has the weight "
    "that `prox-lp` takes by itself, relative to the costs. `energy k` is that of the rounded point after k problems, 0 for DCneg, "
    "and `seconds` are those until the last one, on a busy machine (print draws energies against seconds; here all make as many "
    "filter calls). `least` is the energy of the best labelling seen, `from` where it is from, and `gap` its distance to the bound "
    "in percent.",
    draw,
)
def run(quick: bool) -> Iterator[Record]:
    thin = 8 if quick else 2
    image, unary, truth = (part[::thin, ::thin].contiguous() for part in msrc("2_14"))
    method, options = METHODS["PROX-LP"]
    for kernels, normalise in KERNELS.items():
        crf = energy_of(image, unary, "DCneg", 2, normalise)
        start = solve_densecrf(crf, "dc-neg", bound_steps=0)
        unit = crf.unit.item()
        for size in (*LAMBDAS[1:3], WEIGHT / unit) if quick else (*LAMBDAS, WEIGHT / unit):
            found = solve_densecrf(crf, method, start=start.y, weight=size * unit, **options)
            trace = found.history
            row: Record = {"kernels": kernels, "lambda": size, "default": "yes" if size == WEIGHT / unit else None}
            row |= {"bound": found.bound.item(), "least": found.best_energy.item(), "from": found.best_source[0]}
            row |= {"gap": 100 * found.best_gap.item()}
            row |= {"seconds": trace.seconds[-1].item(), "accuracy": accuracy(found.labelling, truth)}
            energies = [start.energy.item(), *trace.energy[:, 0].tolist()]
            row |= {f"energy {k}": energies[min(k, len(energies) - 1)] for k in range(PROBLEMS + 1)}
            yield row
            print(row, file=sys.stderr, flush=True)
