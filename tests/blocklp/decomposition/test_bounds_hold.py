"""The promise of the package: no bound is ever above the optimum, whatever the method, precision and weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne, Edge

from ..random_models import random_model

MODELS, SHARDS = 1500, 10

PASSES, SHARES = (1, 7, 30, 100), (0.3, 0.3, 0.3, 0.1)
"""Passes of a solve, and the shares of the models that are given so many."""


def methods(eta: float | None) -> list[object]:
    return [
        bl.methods.Admm(eta),
        bl.methods.Admm(eta),
        bl.methods.Admm(eta),
        bl.methods.Prox(eta),
        bl.methods.Prox(eta),
        bl.methods.ProxBC(eta),
        bl.methods.ProxFW(eta),
        bl.methods.Pdhg(),
        bl.methods.Race(),
        bl.methods.DantzigWolfe(),
        bl.methods.Polyak(),
        bl.methods.Supergradient(),
        bl.methods.Bundle(eta, inner=3),
        bl.methods.Adam(),
        bl.methods.MinMarginals(),
        bl.methods.Smooth(),
    ]


@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_bound_exceeds_the_optimum_and_optimal_means_equal(shard: int) -> None:
    for seed in range(shard, MODELS, SHARDS):
        rng = np.random.default_rng(seed)
        model = random_model(rng)
        eta = 10.0 ** rng.uniform(-12, 12) if rng.random() < 0.4 else None
        choice = methods(eta)
        method, dtype = choice[rng.integers(len(choice))], (torch.float64, torch.float32)[rng.integers(2)]
        passes = int(rng.choice(PASSES, p=SHARES))
        if isinstance(method, bl.methods.Bundle):  # whose passes take ten times as long
            passes = min(passes, 7)
        try:
            solution = model.solve(method=method, dtype=dtype, tol=1e-6, passes=passes)
        except OptionError:
            assert isinstance(method, (bl.methods.MinMarginals, bl.methods.Smooth)), f"model {seed}, {method}"
            continue
        truth = reference(model)
        sign = -1.0 if model.maximizing else 1.0
        for i in range(model.batch):
            who = f"model {seed}, instance {i}, {method}, {dtype}"
            bound, safe = sign * float(solution.bound[i]), sign * float(solution.safe_bound[i])
            status = solution.status[i]
            if truth.status[i] == "infeasible":
                assert status != bl.Status.OPTIMAL, who
                continue
            assert truth.status[i] == "optimal", who
            assert status != bl.Status.INFEASIBLE, who
            optimum = sign * float(truth.objective[i])
            scale = max(1.0, abs(optimum))
            # The reference is exact to 1e-9 itself.
            assert bound <= optimum + 1e-8 * scale, who
            assert safe <= optimum + 1e-8 * scale, who
            if status == bl.Status.OPTIMAL:
                # A gap of 1e-6, and points that may violate a block by 1e-6 of their size.
                cost = float(model.compile().decomposition().cost[i].abs().sum())
                assert optimum - bound <= 2e-6 * (scale + (1 + float(solution.raw_x[i].abs().max())) * cost), who


def test_the_default_method_proves_optimality_or_infeasibility_of_nearly_all() -> None:
    open_cases = []
    for seed in range(100):
        model = random_model(np.random.default_rng(10_000 + seed))
        truth = reference(model)
        solution = model.solve(tol=1e-5, passes=3000)
        wanted = {"optimal": bl.Status.OPTIMAL, "infeasible": bl.Status.INFEASIBLE}
        open_cases += [(seed, s) for s, t in zip(solution.status, truth.status, strict=True) if s != wanted[t]]
    assert len(open_cases) <= 2, open_cases


@pytest.mark.parametrize("method", ["auto", "prox", "polyak"])
def test_a_warm_start_beyond_single_precision_spoils_no_bound(method: str) -> None:
    m = bl.Model()
    x, y, z = (m.variable(name, 1, lower=0, upper=1) for name in "xyz")
    m.add(Edge(), [x, y, z])
    m.add(AtMostOne(2), [x, y])
    m.minimize(-x.sum() - y.sum() + 0.5 * z.sum())
    truth = reference(m).objective
    state = m.solve(method=method, passes=20).state
    huge = replace(state, duals={name: own * 1e200 for name, own in state.duals.items()})
    found = m.solve(method=method, dtype=torch.float32, passes=20, warm_start=huge)
    for bound in (found.bound, found.safe_bound):
        assert bool((bound <= truth + 1e-9 * truth.abs()).all()) and not bool(bound.isnan().any())
    assert bool(torch.isfinite(found.bound).all())
