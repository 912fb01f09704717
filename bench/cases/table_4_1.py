"""The thesis's Table 4.1."""

from __future__ import annotations

from typing import Any

import torch

import blocklp as bl
from bench.instances import ba, er
from bench.registry import Record, case
from bench.rivals import max_flow
from blocklp.problems.qpbo.relaxation import roof_duality_model

PASSES = (30, 250, 2000)
THESIS = {
    ("BA", 100): {"proxbc": (9.41, 0.986, 0.315), "proxfw": (8.24, 1.39, 0.348)},
    ("BA", 200): {"proxbc": (9.85, 1.00, 0.241), "proxfw": (8.22, 1.38, 0.279)},
    ("BA", 1000): {"proxbc": (9.87, 1.05, 0.125), "proxfw": (8.33, 1.42, 0.160)},
    ("ER", 100): {"proxbc": (1.37, 0.335, 0.0481), "proxfw": (0.967, 0.333, 0.0477)},
    ("ER", 200): {"proxbc": (1.02, 0.208, 0.0274), "proxfw": (0.850, 0.200, 0.0273)},
}


@case(
    "table_4_1",
    "Table 4.1 of the thesis: error of the bound",
    "Mean relative error of the best bound in percent after 30, 250 and 2000 passes; `thesis` is the printed figure. ProxBC and "
    "ProxFW make five inner steps, with the weight shown. The thesis's weights (0.33 on BA, 0.735 n - 48.15 on ER with p = 0.4) miss "
    "its figures at 30 passes: its QPBO runs left the inner loop by a gap, not after five steps. On BA a weight of 1 is within the "
    "printed figures everywhere; it was chosen on these graphs. The other two have no setting; ADMM is the default. The truth is "
    "max-flow on BA; on ER (0.4) the optimum is the all-halves point, -sum(w)/2 (checked by max-flow up to n = 200).",
)
def run(quick: bool) -> list[Record]:
    records = []
    for (family, n), printed in THESIS.items():
        if quick and n > 200:
            continue
        seeds = range(1 if quick or (n >= 1000 and family == "ER") else 5)
        qubos = [ba(n, s) if family == "BA" else er(n, 0.4, s) for s in seeds]
        exact = [max_flow(q)[0] if family == "BA" or n <= 200 else float(q.linear.sum()) / 2 for q in qubos]
        truth = torch.tensor(exact, dtype=torch.float64)
        solver = bl.compile([roof_duality_model(q) for q in qubos])
        runs: list[tuple[str, float | None, Any]] = [("admm", None, bl.Admm()), ("prox", None, bl.Prox())]
        for eta in (0.33, 1.0) if family == "BA" else (0.735 * n - 48.15,):
            runs += [("proxbc", eta, bl.ProxBC(eta)), ("proxfw", eta, bl.ProxFW(eta))]
        for name, eta, method in runs:
            solution = solver.solve(method=method, passes=PASSES[-1], tol=1e-9, history=True, check_every=10, patience=10**6)
            row: Record = {"graphs": f"{family}-{n}", "instances": len(qubos), "method": name, "eta": eta}
            for k, passes in enumerate(PASSES):
                bound = [e.bound for e in solution.history if e.passes <= passes][-1]
                row[f"{passes} passes"] = float(((truth - bound) / truth.abs()).mean()) * 100
                row[f"thesis {passes}"] = printed[name][k] if name in printed else None
            row["seconds"] = float(solution.seconds.max())
            records.append(row)
    return records
