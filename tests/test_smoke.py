"""The least that an installed blocklp has to do, with its required dependencies alone.

Releases run this file, and the tests of the newest and oldest dependencies do, on a wheel that is installed in an empty environment.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linprog

import blocklp as bl
from blocklp.oracles import Knapsack, Simplex
from blocklp.problems.densecrf import image_crf, solve_densecrf
from blocklp.problems.qpbo import Qubo, solve_qpbo
from blocklp.problems.verification import digits, network_bounds


def test_the_version_is_that_of_the_distribution() -> None:
    assert bl.__version__ == version("blocklp")


def test_an_assignment_is_bounded_as_scipy_says() -> None:
    items, bins = 12, 3
    rng = np.random.default_rng(0)
    cost, size = rng.integers(10, 50, (items, bins)).astype(float), rng.integers(5, 25, (bins, items)).astype(float)
    m = bl.Model()
    x = m.variable("x", (items, bins), lower=0, upper=1)
    m.add(Simplex(bins), scope=x)
    m.add(Knapsack(size, size.sum(1) / bins), scope=x.T)
    m.minimize((torch.from_numpy(cost) * x).sum())
    found = m.solve(tol=1e-4)
    loads = np.zeros((bins, items, bins))
    loads[np.arange(bins), :, np.arange(bins)] = size
    truth = linprog(
        cost.ravel(),
        A_ub=loads.reshape(bins, -1),
        b_ub=size.sum(1) / bins,
        A_eq=np.kron(np.eye(items), np.ones(bins)),
        b_eq=np.ones(items),
        bounds=(0, 1),
    )
    assert truth.status == 0
    assert truth.fun * (1 - 1e-3) < found.bound.item() <= truth.fun + 1e-6


def test_the_network_that_comes_with_the_package_is_bounded() -> None:
    network, images, _ = digits.load()
    low, high = (images[3] - 1 / 16).clamp(0, 1), (images[3] + 1 / 16).clamp(0, 1)
    bounds = network_bounds(network, low, high)
    inside = low + (high - low) * torch.rand(50, *low.shape, generator=torch.Generator().manual_seed(0), dtype=low.dtype)
    answers = network(inside)
    assert (bounds.output.lower <= answers.amin(0)).all() and (answers.amax(0) <= bounds.output.upper).all()


def test_a_dense_crf_has_a_labelling_and_a_bound_on_all() -> None:
    generator = torch.Generator().manual_seed(0)
    image, unary = 255 * torch.rand(6, 8, 3, generator=generator), torch.rand(6, 8, 3, generator=generator)
    crf = image_crf(image, unary)
    found = solve_densecrf(crf, "prox-lp")
    constant = min(crf.energy(torch.full((48,), label)).item() for label in range(3))
    assert found.bound.item() <= min(found.energy.item(), constant)


def test_a_qubo_is_tightened_below_its_minimum() -> None:
    rng = np.random.default_rng(0)
    matrix = np.triu(rng.integers(-9, 10, (12, 12)) * (rng.random((12, 12)) < 0.6)).astype(float)
    labels = (np.arange(2**12)[:, None] >> np.arange(12)) & 1
    minimum = np.einsum("ki,ij,kj->k", labels, matrix, labels).min()
    found = solve_qpbo(Qubo.from_matrix(matrix), tighten=True, time_limit=60)
    assert len(found.rounds) > 1  # triangles and cycles were looked for
    assert found.relaxation.bound.item() <= minimum + 1e-6 <= found.energy + 2e-6


def test_the_command_line_starts_outside_of_a_checkout(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "blocklp", "doctor"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "a small problem: solved" in ran.stdout
