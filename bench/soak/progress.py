"""Methods that freeze: progress of every default on families of ordinary problems."""

from __future__ import annotations

import numpy as np
import torch

import blocklp as bl
from bench.families import assignment, cliques, grid, polytopes, triangles
from bench.instances import ba
from bench.soak.trial import Draw, claim, trial
from blocklp.problems.qpbo import roof_duality_model

LONG, SHORT = 600, 300
"""Passes after which errors are compared."""

CLOSED = 1e-4
"""A relative error at which a method may rest."""

BESIDE = 4.0
"""Errors of the proximal methods, in those of Polyak's after as many passes: the bar on the large families is 2."""


def family(draw: Draw) -> bl.Model:
    """A small instance of a family of the benchmarks."""
    seed = int(draw.random.integers(10**6))
    return draw.pick(
        lambda: roof_duality_model(ba(draw.count(20, 60), seed)),
        lambda: cliques(seed, draw.count(12, 40)),
        lambda: assignment(seed, 4, draw.count(5, 20)),
        lambda: grid(seed, draw.count(3, 8), 3),
        lambda: triangles(seed, draw.count(12, 18)),
        lambda: polytopes(seed, 4, draw.count(10, 40), 2 * draw.count(10, 40)),
    )()


@trial("progress", "ProxBC and ProxFW with their defaults move until they are done, and keep up with Polyak's step.", seconds=120)
def proximal_methods_move(draw: Draw) -> None:
    model = family(draw)
    truth = float(bl.reference(model).objective)
    method = draw.pick("proxbc", "proxfw")
    solver = model.compile()

    def error(name: str, passes: int) -> float:
        bound = float(solver.solve(method=name, passes=passes, tol=1e-9, project=False).bound)
        return (truth - bound) / max(abs(truth), 1e-9)

    middle, late, polyak = error(method, SHORT), error(method, LONG), error("polyak", SHORT)
    sizes = f"{model.size} variables, {', '.join(map(str, model.blocks))}"
    claim(
        late <= max(CLOSED, 0.97 * middle),
        f"{method} has {middle:.3g} of the optimum left after {SHORT} passes and {late:.3g} after {LONG}: {sizes}",
    )
    claim(
        middle <= max(CLOSED * 10, BESIDE * polyak),
        f"{method} has {middle:.3g} of the optimum left after {SHORT} passes, polyak {polyak:.3g}: {sizes}",
    )


@trial("progress", "Patience ends no run that still moves.", seconds=120)
def patience_waits_for_what_moves(draw: Draw) -> None:
    model = family(draw)
    solver = model.compile()
    method, patience = draw.pick("auto", "prox", "proxbc", "admm", "polyak", "pdhg", "adam"), draw.count(20, 300)
    found = solver.solve(method=method, patience=patience, passes=1500, tol=1e-7)
    if found.status[0] is not bl.Status.STALLED:
        return
    further = solver.solve(method=method, passes=2 * int(found.passes), tol=1e-7, patience=10**9)
    size = max(abs(float(found.bound)), float(np.abs(_costs(solver)).max()))
    gained = float(further.bound) - float(found.bound)
    claim(
        gained <= 1e-3 * size,
        f"{method} is called stalled after {int(found.passes)} passes (patience {patience}), and twice as many raise the bound by "
        f"{gained / size:.3g} of it, to {float(further.bound):.6g}",
    )


def _costs(solver: bl.Solver) -> torch.Tensor:
    objective = solver.models[0].objective
    assert objective is not None
    return objective.evaluate()[0]
