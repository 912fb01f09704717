"""Nodes of QUBOs and independent sets: persistency, and the branch and bound of the documentation."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ShapeError
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.relaxation import clique_model
from blocklp.problems.qpbo import Qubo, node_persistency, roof_duality_model

PAGE = Path(__file__).parents[3] / "docs" / "nodes.md"


def random_qubo(n: int, density: float, seed: int) -> Qubo:
    rng = np.random.default_rng(seed)
    edges = np.array([pair for pair in itertools.combinations(range(n), 2) if rng.random() < density]).reshape(-1, 2)
    return Qubo.from_terms(rng.integers(-9, 10, n), edges, rng.integers(-9, 10, len(edges)))


def assignments(n: int) -> np.ndarray:
    return np.array(list(itertools.product((0, 1), repeat=n)))


def least(values: np.ndarray, points: np.ndarray, fixed: np.ndarray) -> float:
    return float(values[((fixed < 0) | (fixed == points)).all(1)].min(initial=np.inf))


def test_persistencies_keep_a_best_completion() -> None:
    gained, points = 0, assignments(9)
    rng = np.random.default_rng(1)
    for seed in range(25):
        qubo = random_qubo(9, 0.4, seed)
        values = qubo.energy(points)
        fixings = np.where(rng.random((12, 9)) < 0.3, rng.integers(0, 2, (12, 9)), -1)
        found = bl.Nodes(roof_duality_model(qubo), "y").solve(fixings, sweeps=40, stall=0.0)
        labels = node_persistency(qubo, fixings, found.x.numpy())
        for before, after in zip(fixings, labels, strict=True):
            assert (after[before >= 0] == before[before >= 0]).all()
            assert least(values, points, after) == least(values, points, before)
        gained += int((labels != fixings).sum())
    assert gained > 200
    with pytest.raises(ShapeError, match="points"):
        node_persistency(qubo, fixings, points[:3])


@pytest.fixture(scope="module")
def search() -> Callable[[Qubo], tuple[float, list[int], int]]:
    """The branch and bound of the documentation."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.S | re.M)
    names: dict[str, Any] = {}
    exec(compile(code[0] + code[1].split("\n\n\nenergy, label")[0], str(PAGE), "exec"), names)
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 40
    found: Callable[[Qubo], tuple[float, list[int], int]] = names["branch_and_bound"]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_search_of_the_documentation_finds_optima(search: Callable[[Qubo], tuple[float, list[int], int]], seed: int) -> None:
    n = 12
    qubo = random_qubo(n, (0.3, 0.6, 1.0)[seed % 3], seed)
    energy, label, bounded = search(qubo)
    assert energy == qubo.energy(assignments(n)).min() == qubo.energy(label)
    assert bounded < 2**n / 4


def test_nodes_of_independent_sets_are_valid() -> None:
    rng, points = np.random.default_rng(0), assignments(12)
    for _ in range(6):
        edges = np.array([pair for pair in itertools.combinations(range(12), 2) if rng.random() < 0.3])
        graph = WeightedGraph.from_edges(rng.integers(1, 9, 12), edges)
        values = np.where(graph.independent(points), graph.weight(points), -np.inf)
        fixings = np.where(rng.random((200, 12)) < 0.25, rng.random((200, 12)) < 0.3, -1).astype(np.int8)
        best = torch.tensor([-least(-values, points, fixed) for fixed in fixings])
        for model in (clique_model(graph), clique_model(graph, "edges")):
            found = bl.Nodes(model, "y").solve(fixings, cutoff=float(values.max()) - 3)
            assert bool((found.bound >= best).all())
            assert bool((best[~found.open] <= values.max() - 3).all())
