"""Random small models over all block types, for property tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

import blocklp as bl
from blocklp.oracles import AtMostOne, Edge, FourCycle, Knapsack, Pairwise, Polytope, Simplex, Triangle


def block_types(rng: np.random.Generator) -> list[Callable[[], bl.BlockType]]:
    return [
        Edge,
        Triangle,
        FourCycle,
        lambda: AtMostOne(3),
        lambda: AtMostOne(5),
        lambda: Simplex(3),
        lambda: Pairwise(1, 2),
        lambda: Pairwise(2, 2),
        lambda: Knapsack(rng.integers(0, 4, 4).astype(float), float(rng.integers(0, 5))),
        lambda: bl.Box(np.zeros(2), np.array([0.5, 1.0])),
        lambda: bl.FiniteVertices(np.unique(rng.random((5, 3)).round(2), axis=0)),
        lambda: Polytope([[1.0, 2.0, -1.0]], [-np.inf], [float(rng.integers(0, 3))], np.zeros(3), np.ones(3)),
    ]


def random_model(rng: np.random.Generator) -> bl.Model:
    """One to three instances of 8 to 12 variables, one to three kinds of blocks, costs of any scale, often fixings.

    A good part of them is infeasible.
    """
    n, batch = int(rng.integers(8, 13)), int(rng.choice([1, 1, 3]))
    model = bl.Model(batch)
    low, high = np.zeros(n), np.ones(n)
    if rng.random() < 0.4:
        low = np.where(rng.random(n) < 0.2, rng.choice([0.0, 0.3, 1.0], n), low)
        high = np.maximum(low, np.where(rng.random(n) < 0.2, rng.choice([0.0, 0.6, 1.0], n), high))
    x = model.variable("x", n, lower=low, upper=high)
    kinds = block_types(rng)
    for _ in range(int(rng.integers(1, 4))):
        kind = kinds[rng.integers(len(kinds))]()
        assert kind.dim is not None
        scopes = np.stack([rng.choice(n, kind.dim, replace=False) for _ in range(int(rng.integers(1, 4)))])
        model.add(kind, x[scopes])
    cost = rng.standard_normal((batch, n)) * 10.0 ** rng.integers(-3, 4)
    if rng.random() < 0.3:
        cost = cost.round()
    objective = (cost if batch > 1 else cost[0]) @ x + float(rng.standard_normal())
    (model.minimize if rng.random() < 0.7 else model.maximize)(objective)
    return model


def polytopes(seed: int) -> bl.Model:
    """Polytopes without a formula for proximal points."""
    draw = np.random.default_rng(seed)
    matrix, inside = draw.normal(size=(20, 3, 4)), draw.random(30)
    scope = np.stack([draw.permutation(30)[:4] for _ in range(20)])
    above = np.einsum("brd,bd->br", matrix, inside[scope]) + 0.3
    m = bl.Model()
    x = m.variable("x", 30, lower=0, upper=1)
    m.add(Polytope(matrix, np.full((20, 3), -np.inf), above, np.zeros((20, 4)), np.ones((20, 4))), x[scope])
    m.minimize(draw.normal(size=30) @ x)
    return m


def pair_vertices(first: int, second: int) -> list[list[float]]:
    """The vertices of a pairwise block."""
    ends = itertools.product(np.eye(first), np.eye(second))
    return [[*a, *b, *np.outer(a, b).ravel()] for a, b in ends]
