"""Energies against the weight of the regulariser, as in Figure 1b of the regularised Frank-Wolfe text."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from bench.densecrf_data import reference_energy
from bench.registry import Record, case
from blocklp.problems.densecrf import solve_densecrf

STEPS = 10
METHODS = ("efw", "l2fw")
RIVALS = ("mean-field", "fw", "pgd", "prox-grad", "admm")
"""Methods without such a weight."""
WEIGHTS = [10 ** (k / 4) for k in range(-8, 9)]


def draw(records: list[Record], figure: Figure) -> None:
    """Energies by weight, and those of the rivals as horizontal lines."""
    axes = figure.subplots()
    for method in METHODS:
        rows = [r for r in records if r["method"] == method]
        axes.semilogx([r["weight"] for r in rows], [r["energy"] for r in rows], "o-", label=method)
    for k, r in enumerate((r for r in records if r["method"] in RIVALS), len(METHODS)):
        axes.axhline(r["energy"], color=f"C{k}", linestyle="--", label=r["method"])
    axes.set_xlabel("weight of the regulariser")
    axes.set_ylabel(f"energy of the rounded point after {STEPS} iterations")
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


@case(
    "densecrf_regularisation",
    "Dense CRFs: energies by weight of the regulariser (Figure 1b of Le-Huu & Alahari)",
    "MSRC image 2_14 with released unaries and the reference kernels; energy of each method's rounded point after ten iterations, "
    "all from the softmax of the unaries, with line search and defaults. `efw` and `l2fw` are regularised by the entropy and the "
    "Euclidean norm of this weight; `efw` at 1 is mean field as long as the line search takes whole steps. `rivals above`: how many "
    "of the five methods without such a weight have more energy. Print averages 1,449 images of PASCAL VOC with unaries of a "
    "network, and finds less energy than that of all others over a large range of weights.",
    draw,
)
def run(quick: bool) -> Iterator[Record]:
    crf, start = reference_energy(quick)
    rivals = {method: solve_densecrf(crf, method, start=start, steps=STEPS, bound_steps=0) for method in RIVALS}
    energies = {method: found.energy.item() for method, found in rivals.items()}
    for method, energy in energies.items():
        above = sum(other > energy for other in energies.values())
        yield {"method": method, "weight": None, "energy": energy, "rivals above": above, "seconds": rivals[method].seconds}
    for method in METHODS:
        for weight in WEIGHTS[::4] if quick else WEIGHTS:
            found = solve_densecrf(crf, method, start=start, steps=STEPS, weight=weight, bound_steps=0)
            energy = found.energy.item()
            above = sum(other > energy for other in energies.values())
            yield {"method": method, "weight": weight, "energy": energy, "rivals above": above, "seconds": found.seconds}
