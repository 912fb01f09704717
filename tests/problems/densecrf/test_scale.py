"""Relative gaps, statuses and steps are the same whatever the unit that costs are measured in."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from blocklp.engine.records import relative_gap
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import METHODS, Cliques, DenseCRF, Kernel, Result, image_features, solve_densecrf
from blocklp.status import Status

EXACT = (4.0**-13, 4.0**13)
"""Factors that leave every digit, and the square roots of weights, as they are: nothing may change at all."""
FACTORS = (1e-8, 1e8)
"""Factors that round: where scores tie but for rounding their order may change, and so what follows."""


def field(labels: int = 3, seed: int = 0, cliques: bool = False) -> DenseCRF:
    draw = torch.Generator().manual_seed(seed)
    unary = 3 * torch.rand(30, labels, generator=draw, dtype=torch.float64)
    colours = 100 * torch.rand(5, 6, 3, generator=draw, dtype=torch.float64)
    costs = (torch.arange(labels)[:, None] - torch.arange(labels)).abs().clamp(max=2).double()
    smooth = Kernel(Lattice.build(image_features(5, 6, 2.0)), 1.0)
    bilateral = Kernel(Gaussian(image_features(5, 6, 4.0, colours, 40.0)), 2.0, compatibility=costs)
    member = torch.stack([torch.arange(30) // 10, torch.arange(30) // 15 + 2], 1)
    regions = Cliques(member, torch.tensor([0.5, 1.0, 2.0, 1.5], dtype=torch.float64))
    return DenseCRF(unary, (smooth, bilateral), None, regions if cliques else None)


def times(crf: DenseCRF, factor: float) -> DenseCRF:
    """All costs multiplied."""
    kernels = tuple(replace(k, weight=factor * k.weight) for k in crf.kernels)
    cliques = None if crf.cliques is None else Cliques(crf.cliques.member, factor * crf.cliques.cost)
    return DenseCRF(factor * crf.unary, kernels, None, cliques)


def same(one: Result, other: Result, factor: float) -> None:
    assert one.status == other.status
    assert one.filter_calls == other.filter_calls and len(one.history.seconds) == len(other.history.seconds)
    if factor in EXACT:
        assert torch.equal(one.labelling, other.labelling) and torch.equal(one.best_labelling, other.best_labelling)
        assert one.best_source == other.best_source and torch.equal(one.y, other.y)
        assert torch.equal(factor * one.history.energy, other.history.energy)
        assert torch.equal(factor * one.history.bound, other.history.bound)
        assert torch.equal(one.gap, other.gap) and torch.equal(one.best_gap, other.best_gap)
    else:
        torch.testing.assert_close(one.best_gap, other.best_gap, rtol=0, atol=0.02)


@cache
def in_own_unit(method: str) -> Result:
    return solve_densecrf(field(cliques=True), method)


@pytest.mark.parametrize("factor", EXACT + FACTORS)
@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("mean-field", "efw", "l2fw")])
def test_methods_on_the_energy_do_not_depend_on_its_unit(method: str, factor: float) -> None:
    same(in_own_unit(method), solve_densecrf(times(field(cliques=True), factor), method), factor)


@pytest.mark.parametrize("factor", EXACT + FACTORS)
@pytest.mark.parametrize("method", ["efw", "l2fw"])
def test_regularised_methods_take_their_weight_along(method: str, factor: float) -> None:
    crf = field(seed=1)
    scaled = solve_densecrf(times(crf, factor), method, weight=0.7 * factor)
    same(solve_densecrf(crf, method, weight=0.7), scaled, factor)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_tolerance_is_relative(factor: float) -> None:
    """Small costs are not optimal at once: the gap of 1e-8 times an energy is that of the energy."""
    crf = field(seed=2)
    loose, tight = (solve_densecrf(times(crf, factor), "prox-lp", tol=tol, outer=400) for tol in (0.02, 1e-12))
    assert loose.status == Status.OPTIMAL and loose.best_gap.item() <= 0.02
    assert tight.status == Status.PASS_LIMIT and tight.best_gap.item() > 1e-12


def test_relative_gaps_by_hand() -> None:
    energy = torch.tensor([2.0, -1.0, 0.0, 0.0, torch.inf, 3e-9], dtype=torch.float64)
    bound = torch.tensor([1.0, -4.0, 0.0, -5.0, 1.0, 1e-9], dtype=torch.float64)
    truth: Tensor = torch.tensor([0.5, 0.75, 0.0, 1.0, torch.inf, 2 / 3], dtype=torch.float64)
    torch.testing.assert_close(relative_gap(energy, bound), truth)
