"""Energies by iteration, as in Figure 1 of the regularised Frank-Wolfe text."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from bench.densecrf_data import reference_energy
from bench.registry import Record, case
from blocklp.problems.densecrf import solve_densecrf

STEPS = 20
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean-field": ("mean-field", {}),
    "mean-field, damping 0.5": ("mean-field", {"damping": 0.5}),
    "efw": ("efw", {}),
    "efw, weight 1, constant": ("efw", {"weight": 1.0, "step": "constant"}),
    "l2fw": ("l2fw", {}),
    "l2fw, constant": ("l2fw", {"step": "constant"}),
    "fw": ("fw", {}),
    "pgd": ("pgd", {}),
    "prox-grad": ("prox-grad", {}),
    "admm": ("admm", {}),
    "dc-neg": ("dc-neg", {}),
    "qp-cvx": ("qp-cvx", {}),
}


def draw(records: list[Record], figure: Figure) -> None:
    """Energies of rounded points by iteration."""
    axes = figure.subplots()
    for k, r in enumerate(records):
        style = "-" if k < 10 else "--"
        axes.plot(range(1, STEPS + 1), [r[f"energy {i}"] for i in range(1, STEPS + 1)], style, label=r["method"])
    axes.set_xlabel("iteration")
    axes.set_ylabel("energy of the rounded point")
    axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


@case(
    "densecrf_iterations",
    "Dense CRFs: energies by iteration (Figure 1 of Le-Huu & Alahari)",
    "MSRC image 2_14 with released unaries and the reference kernels; energy of each method's rounded point after k iterations, all "
    "from the softmax of the unaries; one filter call an iteration (admm and prox-grad too). `seconds` are those of the whole run "
    "with the energies of its trace.",
    draw,
)
def run(quick: bool) -> list[Record]:
    crf, start = reference_energy(quick)
    records: list[Record] = []
    for label, (method, options) in RUNS.items():
        found = solve_densecrf(crf, method, start=start, steps=STEPS, **options)
        energies = found.history.energy[:, 0].tolist()
        energies += [energies[-1]] * (STEPS - len(energies))
        records.append({"method": label, "seconds": found.seconds} | {f"energy {k}": e for k, e in enumerate(energies, 1)})
    return records
