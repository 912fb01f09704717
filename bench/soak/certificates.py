"""Certificates: bounds from multipliers by code that shares nothing with the engine."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

import blocklp as bl
from bench.soak.engine import Settings, above_truth, solved
from bench.soak.instances import Sketch, random_sketch, rescaled, table_group
from bench.soak.trial import Draw, claim, trial
from bench.soak.users import Charged, Listed


def check_certificate(sketch: Sketch, found: bl.certify.Certificate, how: str) -> None:
    """Raise unless a certificate is valid for a feasible model."""
    for i in range(sketch.batch):
        claim(not bool(found.infeasible[i]), f"infeasible is said of a model with a feasible point: {sketch}; {how}")
        bound = float(found.bound[i])
        claim(bound == bound, f"the certified bound is NaN: {sketch}; {how}")
        if np.isfinite(bound):
            excess = above_truth(sketch, bound, i)
            claim(excess <= 0, f"the certified bound {bound!r} passes the optimum by {float(excess):.3g}: {sketch}; {how}")
        else:
            claim((bound > 0) == sketch.maximize, f"the certified bound is {bound}: {sketch}; {how}")


@trial("certificates", "Multipliers, good or bad, certify valid bounds, and never that a feasible model is infeasible.", weight=2)
def certificates_are_valid(draw: Draw) -> None:
    sketch = rescaled(draw, random_sketch(draw))
    model, found = solved(sketch, Settings(draw.pick("auto", "prox"), torch.float64, {"passes": draw.pick(1, 50, 500)}))
    assert found is not None
    duals = dict(found.state.duals)
    kind = draw.pick("of a solve", "noise", "huge noise")
    if kind != "of a solve":
        scale = float(np.abs(sketch.cost).max()) * (1e9 if kind == "huge noise" else 1.0)
        duals = {k: v + scale * torch.as_tensor(draw.random.normal(size=tuple(v.shape))) for k, v in duals.items()}
    certificate = bl.verify_certificate(model, duals, bounds=sketch.bounds(model))
    check_certificate(sketch, certificate, f"multipliers: {kind}")


@trial("certificates", "Types with an oracle alone, pinned to a vertex or not: never infeasible, never a bound above the optimum.")
def believed_oracles_prove_no_infeasibility(draw: Draw) -> None:
    n = draw.count(2, 4)
    point = draw.random.integers(-30, 31, n) / 10
    groups = []
    for _ in range(2):
        table = np.unique(np.vstack([point, draw.random.integers(-30, 31, (draw.count(2, 5), n)) / 10]), axis=0)
        groups.append(table_group(draw.pick(Listed, Charged), table, np.arange(n)))
    cost = draw.random.normal(size=(1, n))
    sketch = Sketch(np.full(n, -3.0), np.full(n, 3.0), point, cost, groups)
    if draw.chance(0.6):
        sketch.fixed = {j: (v, v) for j, v in enumerate(point.tolist())}
    model, found = solved(sketch, Settings("prox", torch.float64, {"passes": draw.pick(1, 50)}))
    assert found is not None
    check_certificate(sketch, bl.verify_certificate(model, found.state, bounds=sketch.bounds(model)), "pinned")


@trial("certificates", "A certificate is as good as the bound that it certifies, at costs of any size.")
def certificates_are_tight(draw: Draw) -> None:
    sketch = random_sketch(draw, batch=1)
    sketch.cost = sketch.cost * 10.0 ** draw.pick(-15, -12, -9, -6, 0, 6, 12, 20, 24)
    model, found = solved(sketch, Settings("auto", torch.float64, {"passes": 300}))
    assert found is not None
    certificate = bl.verify_certificate(model, found.state)
    check_certificate(sketch, certificate, "tight")
    lost = float(Fraction(float(found.bound)) - Fraction(float(certificate.bound))) * (-1 if sketch.maximize else 1)
    size = sketch.size(0) + abs(float(found.bound))
    claim(
        lost <= 1e-5 * size,
        lambda: (
            f"bound {float(found.bound):.9g} is certified as {float(certificate.bound):.9g}, costs of "
            f"{float(np.abs(sketch.cost).max()):.3g}: {sketch}"
        ),
    )
