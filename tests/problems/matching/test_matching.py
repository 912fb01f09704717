"""Matchings against HiGHS, what prices prove in exact arithmetic, files, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack
from typer.testing import CliRunner

import blocklp as bl
from blocklp.errors import BlocklpError, FormatError, ModelError, NonFiniteError, OptionError, ScopeError, ShapeError
from blocklp.problems.command_line.app import app
from blocklp.problems.matching import Matching, SourceBudget, matching_model, read_matching, solve_matching, write_matching

from ..command_line import running


def constraints(d: Matching) -> tuple[csr_array, np.ndarray]:
    """All rows as ``A x <= b``."""
    places = np.arange(d.edges)
    by_source = [csr_array((use, (d.source, places)), shape=(d.sources, d.edges)) for use in (d.use, *(b.use for b in d.budgets))]
    loads = csr_array((d.weight, (d.destination, places)), shape=(d.destinations, d.edges))
    rows = [*by_source, loads, -by_source[0], -loads]
    sides = [d.limit, *(b.limit for b in d.budgets), d.capacity, -d.least, -d.floor]
    matrix, side = vstack(rows, format="csr"), np.concatenate(sides)
    known = np.isfinite(side)
    return matrix[known], side[known]


def optimum(d: Matching) -> float | None:
    """By HiGHS; None if there is no point."""
    matrix, side = constraints(d)
    found = linprog(-d.value, matrix, side, bounds=np.stack([np.zeros(d.edges), d.most], 1))
    assert found.status in (0, 2)
    return -float(found.fun) if found.status == 0 else None


def random(seed: int, general: bool) -> Matching:
    """Sources and destinations of any degree, whole numbers that tie, loads of zero, limits of zero."""
    draw = np.random.default_rng(seed)
    sources, destinations, edges = draw.integers(1, 40), draw.integers(1, 12), draw.integers(1, 160)
    source, destination = draw.integers(0, sources, edges), draw.integers(0, destinations, edges)
    source = np.sort(source) if draw.random() < 0.5 else source
    whole, ties = draw.random() < 0.4, draw.random() < 0.4
    value = draw.integers(-2, 6, edges).astype(float) if ties else draw.normal(1, 1, edges)
    weight = draw.integers(0, 4, edges).astype(float) if whole else draw.lognormal(0, 1, edges)
    capacity = draw.integers(0, 8, destinations).astype(float) if whole else draw.lognormal(1, 1, destinations)
    given: dict[str, Any] = {}
    if draw.random() < 0.3:
        given["limit"] = draw.integers(0, 4, sources).astype(float)
    if draw.random() < 0.3:
        given["use"] = draw.uniform(0.5, 2, edges)
    if draw.random() < 0.2:
        capacity[draw.integers(0, destinations)] = np.inf
    if general:
        given["upper"] = draw.uniform(0, 1, edges)
        if draw.random() < 0.5:
            given["floor"] = draw.uniform(0, 0.3, destinations) * np.minimum(capacity, 1e3)
        if draw.random() < 0.5:
            given["budgets"] = (SourceBudget(draw.uniform(0, 2, edges), draw.uniform(0.5, 2)),)
        if draw.random() < 0.3:
            given["limit"] = np.ones(sources)
            given["least"] = np.where(np.bincount(source, minlength=sources) > 0, draw.uniform(0, 0.3), 0)
    return Matching(source, destination, value, weight, capacity, **given)


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_packings_are_solved_to_what_highs_finds(first: int) -> None:
    for seed in range(first, first + 50):
        d = random(seed, general=False)
        truth, found = optimum(d), solve_matching(d, tol=1e-6)
        assert truth is not None and d.packing and found.status is bl.Status.OPTIMAL, seed
        assert found.safe_bound >= truth - 1e-9 * (1 + abs(truth)) and found.safe_bound >= found.bound, seed
        assert found.primal == pytest.approx(truth, rel=1.1e-6, abs=1e-8), seed
        matrix, side = constraints(d)
        assert (found.x >= 0).all() and (matrix @ found.x <= side).all(), seed  # to the last bit
        assert d.worth(found.x) == found.primal


@pytest.mark.parametrize("first", range(20, 65, 15))
def test_other_matchings_are_solved_by_the_engine(first: int) -> None:
    for seed in range(first, first + 15):
        d = random(seed, general=True)
        truth, found = optimum(d), solve_matching(d, tol=1e-5)
        if truth is None:
            assert found.status is bl.Status.INFEASIBLE, seed
            continue
        assert found.status is bl.Status.OPTIMAL and found.safe_bound >= truth - 1e-8 * (1 + abs(truth)), seed
        assert found.primal == pytest.approx(truth, rel=2e-5, abs=1e-6), seed


def test_any_prices_prove_their_bound_in_exact_arithmetic() -> None:
    for seed in range(60):
        d, draw = random(seed, general=False), np.random.default_rng(seed)
        price = draw.normal(0.5, 1, d.destinations) * 10.0 ** draw.integers(-8, 8)
        paid = [Fraction(max(p, 0.0)) if np.isfinite(c) else Fraction(0) for p, c in zip(price, d.capacity, strict=True)]
        best = [Fraction(0)] * d.sources
        for e in range(d.edges):
            worth = (Fraction(d.value[e]) - Fraction(d.weight[e]) * paid[d.destination[e]]) / Fraction(d.use[e])
            best[d.source[e]] = max(best[d.source[e]], worth)
        exact = sum(Fraction(a) * b for a, b in zip(d.limit, best, strict=True))
        exact += sum(Fraction(c) * p for c, p in zip(d.capacity, paid, strict=True) if p)
        bound, safe = d.bound(price)
        assert Fraction(safe) >= exact, seed
        assert bound == pytest.approx(float(exact), rel=1e-12, abs=1e-300)


def test_the_law_gives_skewed_degrees_and_capacities_below_what_is_wanted() -> None:
    d = Matching.random(2000, 50, 0.1, seed=1)
    degrees = np.bincount(d.destination, minlength=50)
    assert degrees.max() > 4 * np.median(degrees) and 0.7 * 10_000 < d.edges <= 10_000
    greedy = float(np.maximum.reduceat(d.value, np.flatnonzero(np.diff(d.source, prepend=-1))).sum())
    assert 0.5 * greedy < solve_matching(d, tol=1e-3).primal < greedy


def test_the_model_has_the_same_optimum_and_its_certificate_verifies() -> None:
    d = Matching.random(300, 12, 0.3, seed=3)
    m = matching_model(d)
    found = m.solve(tol=1e-6)
    assert float(found.primal) == pytest.approx(solve_matching(d, tol=1e-6).primal, rel=3e-6)
    assert float(bl.verify_certificate(m, found.duals).bound) == pytest.approx(float(found.bound), rel=1e-9)


def test_a_price_is_the_slope_of_the_value_in_a_capacity() -> None:
    d = Matching.random(400, 8, 0.4, seed=4)
    price, step = solve_matching(d, tol=1e-10).price, 1e-4
    for k in range(8):
        more, less = (d.capacity + sign * step * (np.arange(8) == k) for sign in (1, -1))
        up, down = (optimum(Matching(d.source, d.destination, d.value, d.weight, c)) for c in (more, less))
        assert up is not None and down is not None
        assert price[k] == pytest.approx((up - down) / (2 * step), abs=2e-5)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"source": [0, 1]}, ShapeError, "source is an array"),
        ({"source": [0.0, 1, 1]}, ShapeError, "integers"),
        ({"source": [0, -1, 1]}, ScopeError, r"source\[1\] is -1"),
        ({"destination": [0, 1, 2]}, ScopeError, r"destination\[2\] is 2, and capacity has 2"),
        ({"value": [1, np.nan, 1]}, NonFiniteError, "value holds nan at 1"),
        ({"weight": [1, -2, 1]}, ModelError, "weight holds -2.0 at 1"),
        ({"weight": [1, 1]}, ShapeError, "weight has 2 entries for 3 edges"),
        ({"capacity": [1, np.nan]}, NonFiniteError, "capacity holds nan"),
        ({"limit": [1.0]}, ShapeError, "limit has 1 entries for 2 sources"),
        ({"least": 2.0}, ModelError, "least of source 0 is 2.0, above its limit"),
        ({"use": [1.0, 0.0, 1.0]}, ModelError, "edge 1 may carry any amount"),
        ({"budgets": [SourceBudget(np.ones(2), np.ones(2))]}, ShapeError, r"budgets\[0\] has 2 uses"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], error: type[BlocklpError], says: str) -> None:
    given: dict[str, Any] = {
        "source": [0, 0, 1],
        "destination": [0, 1, 0],
        "value": [3, 1, 2],
        "weight": [1, 1, 1],
        "capacity": [1, 1],
    }
    with pytest.raises(error, match=says):
        Matching(**(given | change))


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="matching"):
        solve_matching(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="tol"):
        solve_matching(random(0, general=False), tol=-1)


def test_a_time_limit_returns_the_best_so_far() -> None:
    d = Matching.random(20_000, 200, 0.05)
    found = solve_matching(d, tol=0, time_limit=0.05)
    assert found.status is bl.Status.TIME_LIMIT and found.safe_bound >= found.primal >= 0


def test_files_hold_what_was_written(tmp_path: Path) -> None:
    d = random(7, general=False)
    write_matching(tmp_path / "a.npz", d)
    other = read_matching(tmp_path / "a.npz")
    for name in ("source", "destination", "value", "weight", "capacity", "use", "upper"):
        np.testing.assert_array_equal(getattr(other, name), getattr(d, name))
    np.savez(tmp_path / "b.npz", source=d.source)
    with pytest.raises(FormatError, match="lacks destination, value, weight, capacity"):
        read_matching(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(b"no numbers")
    with pytest.raises(FormatError, match="no file of numpy arrays"):
        read_matching(tmp_path / "c.npz")
    with pytest.raises(FormatError, match="above the limit of 100"):
        read_matching(tmp_path / "a.npz", max_bytes=100)


def test_the_command_prints_one_object(tmp_path: Path) -> None:
    d = Matching.random(200, 10, 0.3)
    write_matching(tmp_path / "a.npz", d)
    command = [sys.executable, "-m", "blocklp", "matching", str(tmp_path / "a.npz"), "--tol", "1e-5", "--json"]
    done = subprocess.run([*command, "--reference", "highs", "--output", str(tmp_path / "x.npz")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    truth = optimum(d)
    assert truth is not None and told["status"] == "optimal" and told["safe_bound"] >= truth * (1 - 1e-12)
    assert told["reference"]["solver"] == "highs" and told["reference"]["value"] == pytest.approx(truth, rel=1e-7)
    assert told["gap"] <= 1e-5 and {"bound", "primal", "seconds", "passes", "edges"} <= told.keys()
    with np.load(tmp_path / "x.npz") as shares:
        assert d.worth(shares["x"]) == pytest.approx(told["primal"], rel=1e-12) and shares["price"].shape == (10,)
    stopped = CliRunner().invoke(app, [*command[3:-2], "0", "--time-limit", "8", "--json"])  # in this process, which has started
    assert stopped.exit_code in (0, 1) and json.loads(stopped.stdout)["status"] in ("optimal", "stalled", "time_limit")
    assert "none.npz" in running.refused("matching", tmp_path / "none.npz")
