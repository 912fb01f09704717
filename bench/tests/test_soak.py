"""The soak finds what is wrong, and what it takes for the truth is true."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_spec("highspy") is None, reason="highspy, which finds the bases, is not installed")


def found(trial: str, seeds: int = 20) -> list[str]:
    """What some seeds of a trial say."""
    from bench.soak.trial import Skipped, load

    messages = []
    for seed in range(seeds):
        try:
            messages.append(load()[trial].run(seed))
        except Skipped:
            continue
    return [m for m in messages if m is not None]


def test_optima_are_those_of_all_vertices() -> None:
    """Programs with two variables, whose vertices are intersections of pairs of lines."""
    from bench.soak.exact_lp import Program, solve

    draw = np.random.default_rng(0)
    for _ in range(30):
        program = Program()
        for cost in draw.integers(-9, 10, 2).tolist():
            program.column(Fraction(cost), Fraction(0), Fraction(1))
        lines = [((1, 0), 0), ((1, 0), 1), ((0, 1), 0), ((0, 1), 1)]
        for _ in range(2):
            a, b = draw.integers(-5, 6, 2).tolist()
            side = int(draw.integers(0, 6))
            program.row({0: Fraction(a, 3), 1: Fraction(b, 3)}, None, Fraction(side, 7))
            lines.append(((Fraction(a, 3), Fraction(b, 3)), Fraction(side, 7)))
        values = []
        for ((a, b), e), ((c, d), f) in itertools.combinations(lines, 2):
            det = a * d - b * c
            if det:
                x = [Fraction(e * d - b * f) / det, Fraction(a * f - e * c) / det]
                values += [program.value(x)] if program.feasible(x) else []
        truth = solve(program)
        assert truth is not None and truth.least == truth.most == min(values)


def test_known_points_satisfy_their_programs() -> None:
    from bench.soak.instances import LAYOUTS
    from bench.soak.trial import Draw, Skipped

    for layout, seed in itertools.product(LAYOUTS.values(), range(6)):
        sketch = layout(Draw(np.random.default_rng(seed), 1.0), 1)
        try:
            below, above = sketch.truths[0]
        except Skipped:
            continue
        assert below <= above <= sketch.known(0)


def test_a_bound_that_is_too_high_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a billionth of its value."""
    from bench.soak import engine

    solved = engine.solved

    def wrong(*given: Any) -> Any:
        model, solution = solved(*given)
        return model, solution and replace(solution, bound=solution.bound + 1e-9 * solution.bound.abs())

    monkeypatch.setattr(engine, "solved", wrong)
    assert any("above the optimum" in message for message in found("knapsacks-with-lower-bounds"))


def test_a_wrong_minimum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact search that forgets the largest coefficient."""
    from bench.soak import discrete

    solve = discrete.solve_qpbo_exactly

    def wrong(qubo: Any) -> Any:
        linear = np.where(np.abs(qubo.linear) == np.abs(qubo.linear).max(), 0.0, qubo.linear)
        return solve(discrete.Qubo(linear, qubo.edges, qubo.quadratic, qubo.offset))

    monkeypatch.setattr(discrete, "solve_qpbo_exactly", wrong)
    assert found("qpbo-exactly", 5)


def test_failures_are_made_small() -> None:
    from bench.soak.trial import Draw, Finding, Trial

    def fails(draw: Draw) -> None:
        if draw.count(1, 100) > 8:
            raise Finding("too large")

    trial = Trial("fails", "none", "Counts are small.", fails, 1.0, 60.0)
    seed, size, message = trial.smallest(0, "too large")
    assert size < 1 and message == "too large" and trial.run(seed, size) == "too large"
    assert trial.command(seed, size).endswith(f"fails {seed} --size {size:g}")


def test_one_trial_is_repeated_by_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.soak.__main__ import main

    monkeypatch.setattr(sys, "argv", ["bench.soak", "qpbo-exactly", "3"])
    assert main() == 0 and "seed 3: holds" in capsys.readouterr().out


def test_what_takes_too_much_in_a_child_is_a_finding() -> None:
    from bench.soak import child
    from bench.soak.trial import Finding

    assert child.ask("math:sqrt", 4.0) == 2.0
    with pytest.raises(Finding, match="MemoryError"):
        child.ask("builtins:bytearray", 2 * child.MEMORY)
    with pytest.raises(Finding, match=r"no answer within 0\.2 s"):
        child.ask("time:sleep", 60, seconds=0.2)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_page_counts_trials(tmp_path: Path) -> None:
    from bench import registry, report

    case = registry.load("soak")
    row = {"family": "bounds", "trial": "a", "runs": 3, "findings": 0}
    report.write(case, [row], "python -m bench run soak", tmp_path)
    page = (tmp_path / "soak.md").read_text()
    assert "| bounds | a | 3 | 0 |" in page and page.rstrip().endswith(case.appendix.strip()[-20:])
    assert json.loads((tmp_path / "soak.json").read_text())["records"] == [row]
