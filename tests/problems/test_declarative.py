"""The fifth source's examples: placing maxima on the circle, and the command that draws all figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from blocklp.problems.declarative import place_maxima
from blocklp.problems.declarative.bilevel import targets_on_the_circle

pytest.importorskip("matplotlib", reason="pictures need matplotlib")


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "rate"), [(1, 0.5), (0, None), (2, None)])
def test_maxima_are_placed_on_the_circle_to_1e_9_in_under_100_iterations(seed: int, rate: float | None) -> None:
    """Section 5: with a constant step size as printed, and with Polyak's from two random classifiers."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(size, dtype=torch.float64, generator=generator) for size in ((3, 2), (3,)))
    targets = targets_on_the_circle(3)
    found = place_maxima(a, b, targets, rate)
    assert len(found.objectives) <= 100 and found.objectives[0] > 0.1 and found.objectives[-1] <= 1e-9
    assert max(found.objectives) == found.objectives[0]
    # The maxima are where the likelihoods on the circle are largest, by looking at all of it.
    angles = torch.linspace(0, 2 * torch.pi, 100_001, dtype=torch.float64)
    circle = torch.stack([angles.cos(), angles.sin()], 1)
    likelihoods = torch.log_softmax(circle @ found.a.T + found.b, 1)
    torch.testing.assert_close(circle[likelihoods.argmax(0)], targets, rtol=0, atol=2e-4)


@pytest.mark.slow
def test_one_command_draws_all_figures_and_prints_how_exact_they_are(tmp_path: Path) -> None:
    from matplotlib.image import imread

    command = [sys.executable, "-m", "blocklp.problems.declarative.figures", "--output", str(tmp_path / "new")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment).stdout
    for k in range(1, 7):
        picture = imread(tmp_path / "new" / f"figure_{k}.png")
        assert picture.shape[:2] == (550, 1200) and picture.std() > 0.05
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in printed.splitlines() if line.startswith("│")]
    errors = [(what, float(value)) for _, what, value in rows if "against" in what]
    assert len(errors) == 14 and all(value < 1e-9 for _, value in errors), errors
    iterations = next(float(value) for _, what, value in rows if what == "iterations")
    assert iterations < 100
