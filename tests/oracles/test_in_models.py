"""Models made of the oracles reach the optimum of the LP, with and without fixings."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.blocks.contract import BlockType
from blocklp.general_solvers.small_lp import minimum
from blocklp.oracles import AtMostOne, Cut, Edge, FourCycle, Knapsack, Pairwise, Path, Polytope, Simplex, Transport, Triangle
from blocklp.testing.lp_probes import block_rows

DRAW = np.random.default_rng(0)
WEIGHTS = DRAW.uniform(0, 2, size=(1, 4, 4)).round(2)
KINDS: list[BlockType] = [
    Edge(),
    Triangle(),
    FourCycle(),
    Simplex(3),
    AtMostOne(4),
    Pairwise(2, 2),
    Knapsack(WEIGHTS, 2.0),
    Knapsack(WEIGHTS - 0.7, 1.0, least=0.25),
    Knapsack([1.0, -2.0, 1.5, -0.5], 0.5, least=0.5),
    Simplex(4, 0.75),
    AtMostOne(3, 0.6),
    Transport([0.5, 0.5], [0.75, 0.25]),
    Path([0, 0, 1, 2, 2], [1, 2, 2, 3, 1], 0, 3),
    Cut([0, 1, 2], [1, 2, 0]),
    Polytope(WEIGHTS[0, :2], [-1.0, 0.5], [2.0, 2.0], np.zeros(4), np.ones(4)),
]


def chain(kind: BlockType, seed: int) -> tuple[bl.Model, bl.Variable, np.ndarray]:
    """Four blocks on a row of variables, each sharing two variables with the next."""
    dim = kind.dim
    assert dim is not None
    step = dim - 2
    cost = np.random.default_rng(seed).normal(size=dim + 3 * step)
    model = bl.Model()
    x = model.variable("x", len(cost), lower=0, upper=1)
    model.add(kind, scope=x[torch.arange(4)[:, None] * step + torch.arange(dim)])
    model.minimize(torch.from_numpy(cost) @ x)
    return model, x, cost


def optimum(model: bl.Model, cost: np.ndarray, low: np.ndarray, high: np.ndarray) -> float | None:
    blocks = model.blocks[0]
    rows = blocks.type.constraints()
    assert rows is not None
    parts = []
    for b, scope in enumerate(blocks.scope.numpy()):
        matrix, lower, upper = (t.numpy() for t in block_rows(rows, 0, b))
        wide = np.zeros((len(matrix), len(cost)))
        wide[:, scope] = matrix
        parts.append((wide, lower, upper))
    point = minimum(cost, *(np.concatenate(p) for p in zip(*parts, strict=True)), low, high)
    return None if point is None else float(cost @ point)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_bounds_reach_the_lp(kind: BlockType) -> None:
    for seed in range(2):
        model, x, cost = chain(kind, seed)
        best = optimum(model, cost, np.zeros(len(cost)), np.ones(len(cost)))
        assert best is not None
        bound = model.solve(passes=2000, tol=1e-6, patience=2000).bound.item()
        assert best - 1e-3 * (1 + abs(best)) <= bound <= best + 1e-9
        # Fix the variable that the first two blocks share.
        column = int(model.blocks[0].scope[1, 0])
        for value in (0.0, 1.0):
            low, high = np.zeros(len(cost)), np.ones(len(cost))
            low[column] = high[column] = value
            best = optimum(model, cost, low, high)
            solution = model.solve(passes=2000, tol=1e-6, patience=2000, bounds={x[[column]]: (value, value)})
            if best is not None:
                assert best - 1e-3 * (1 + abs(best)) <= solution.bound.item() <= best + 1e-9


MANY_ITEMS = """
import resource
import time

import torch

import blocklp as bl
from blocklp.oracles import Knapsack, Simplex

draw = torch.Generator().manual_seed(0)
cost, size = torch.randint(10, 50, (20_000, 5), generator=draw).double(), torch.randint(5, 25, (5, 20_000), generator=draw).double()
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
m = bl.Model()
x = m.variable("x", (20_000, 5), lower=0, upper=1)
m.add(Simplex(5), scope=x)
m.add(Knapsack(size, size.sum(1) / 5), scope=x.T)
m.minimize((cost * x).sum())
assert m.solve(tol=1e-4).gap.item() <= 1e-4
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, time.process_time() - began)
"""


@pytest.mark.slow
def test_long_knapsacks_take_memory_and_time_in_proportion() -> None:
    """README's first example with 20,000 items: dense matrices of bounds alone would be 16 GB, a row walked by Python minutes."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    answer = subprocess.run([sys.executable, "-c", MANY_ITEMS], capture_output=True, text=True, check=True, timeout=120, env=alone)
    megabytes, seconds = map(float, answer.stdout.split())
    assert megabytes < 180 and seconds < 10
