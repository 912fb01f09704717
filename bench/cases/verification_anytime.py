"""Error of the bound against seconds for every method, as in Fig. 4.1 of the thesis."""

from __future__ import annotations

from dataclasses import replace

import torch
from matplotlib.figure import Figure
from torch import Tensor

import blocklp as bl
from bench.cases.verification_output import RATES, exact
from bench.registry import Record, case
from bench.verification_data import error, problem, rival, slopes
from blocklp.problems.verification.planet import Planet
from blocklp.problems.verification.tightener import intervals

STEPS = (1, 3, 10, 30, 100, 300, 1000)
METHODS = {
    "prox": bl.methods.Prox(),
    "prox, weight 30": bl.methods.Prox(30.0),
    "proxbc, weight 100": bl.methods.ProxBC(100.0),
    "supergradient": bl.methods.Supergradient(),
    "adam": bl.methods.Adam(),
}
"""The weight 100 is that of the thesis (4.1.7.2); 30 is what `network_bounds` uses."""


def draw(records: list[Record], figure: Figure) -> None:
    """Error against seconds."""
    axes = figure.subplots()
    names = list(dict.fromkeys(r["method"] for r in records))
    for r in records:
        engine = r["method"] in METHODS
        points = [[r[f"{what} {k}"] for k in STEPS] for what in ("seconds", "error")]
        label = f"{r['method']}, from {r['start']}" if engine else r["method"]
        style = "--" if engine and r["start"] == "zero" else "-"
        axes.loglog(*points, style, marker="." if engine else "o", color=f"C{names.index(r['method'])}", label=label)
    axes.axvline(records[0]["HiGHS"], color="0.3", linestyle=":", label="HiGHS, one LP")
    axes.axvline(records[0]["HiGHS all"], color="0.3", linestyle="-.", label="HiGHS, all LPs")
    axes.axhline(100, color="0.8", linewidth=0.8)
    axes.set_xlabel("seconds")
    axes.set_ylabel("left of (exact - CROWN) in percent")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


@case(
    "verification_anytime",
    "Networks: error of the output bounds against seconds, all methods (shape of Fig. 4.1)",
    "The nine output LPs of the SGD network at 2/255 around image 0, CROWN's intermediate bounds fixed for all. `error k`: what"
    " is left of (exact - CROWN) in percent, mean of the nine, after k steps or passes; CROWN itself is at 100. Slopes and "
    "alpha-CROWN (auto_LiRPA, two learning rates) are run once for each k, and alpha-CROWN ends when ten iterations improve "
    "nothing; the engine's methods run on blocks, in float32, from zero multipliers or from CROWN's. HiGHS is the quicker of "
    "its interior point and simplex methods.",
    draw,
)
def run(quick: bool) -> list[Record]:
    given = problem("base" if quick else "sgd", 2, 0)
    if quick:
        given = replace(given, rows=given.rows[:3])
    relaxation = given.layers(1).relaxation()
    of = relaxation, given.node, given.rows, given.relus
    crown, _, _ = slopes(*of, 1)
    truth, highs = exact(given, relaxation)
    most = 30 if quick else STEPS[-1]
    steps = [k for k in STEPS if k <= most]

    def record(method: str, start: str, found: list[tuple[Tensor, float]]) -> Record:
        found += [found[-1]] * (len(STEPS) - len(found))
        errors = {f"error {k}": float(error(bound, crown, truth).mean()) for k, (bound, _) in zip(STEPS, found, strict=True)}
        seconds = {f"seconds {k}": s for k, (_, s) in zip(STEPS, found, strict=True)}
        return {"method": method, "start": start, **errors, **seconds, "HiGHS": highs / len(truth), "HiGHS all": highs}

    runs = [slopes(*of, k) for k in steps]
    records = [record("slopes", "CROWN", [(bound, seconds) for bound, _, seconds in runs])]
    for rate in RATES:
        answers = [a for a in rival(given, relaxation, steps, lr_alpha=rate) if a is not None]
        if answers:
            found = [(torch.tensor(a["values"], dtype=torch.float64), a["seconds"]) for a in answers]
            records.append(record(f"alpha-CROWN, rate {rate}", "CROWN", found))
    box = intervals(given.network, relaxation.lower, relaxation.upper, relaxation.bounds, given.node)[given.node]
    start = relaxation.start(given.relus, len(given.rows))
    planet = Planet.build(relaxation, given.node, given.rows, box, start)
    solver = planet.model.compile(dtype=torch.float32)
    for method, settings in METHODS.items():
        for name, state in (("zero", None), ("CROWN", planet.start)):
            solution = solver.solve(
                method=settings, warm_start=state, passes=most, tol=0, history=True, patience=10**6, check_every=1 if quick else 10
            )
            assert solution.history is not None
            # A pass that evaluates the first bound comes before the first check.
            events = [[e for e in solution.history if e.passes <= max(k + 2, 2)][-1] for k in steps]
            records.append(record(method, name, [(e.bound, e.seconds) for e in events]))
    return records
