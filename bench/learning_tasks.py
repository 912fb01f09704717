"""Tasks of decision-focused learning: PyEPO's generators re-stated, and models of their decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.oracles import Knapsack, Path, Simplex

FEATURES = 5


@dataclass
class Task:
    """Features, costs and the model whose objective has them.

    Attributes
    ----------
    model, price, x
        The model, the predicted parameter and the variables.
    train, test : tuple of Tensor
        Features ``(n, 5)`` and costs ``(n, *shape)``, float32.
    integer : bool
        Whether the feasible points are the integer ones.
    """

    model: bl.Model
    price: bl.Parameter
    x: bl.Variable
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    integer: bool = False


def powers(draw: np.random.RandomState, count: int, size: int, degree: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Features, and costs that are a power of a linear form in them, with multiplicative noise."""
    matrix = draw.binomial(1, 0.5, (size, FEATURES))
    features = draw.normal(0, 1, (count, FEATURES))
    costs = ((features @ matrix.T / np.sqrt(FEATURES) + 3) ** degree + 1) / 3.5**degree
    return features, costs * draw.uniform(1 - noise, 1 + noise, (count, size))


def split(
    model: bl.Model, x: bl.Variable, price: bl.Parameter, data: tuple[np.ndarray, np.ndarray], count: int, **more: bool
) -> Task:
    features, costs = (torch.from_numpy(part).float() for part in data)
    costs = costs.view(-1, *price.shape)
    return Task(model, price, x, (features[:count], costs[:count]), (features[count:], costs[count:]), **more)


def shortest_path(seed: int, degree: int, train: int, test: int, side: int = 5) -> Task:
    """Paths from corner to corner of a grid, to the east or to the south."""
    nodes = np.arange(side**2).reshape(side, side)
    tails = np.concatenate([np.append(nodes[i, :-1], nodes[i] if i < side - 1 else []) for i in range(side)]).astype(int)
    heads = np.concatenate([np.append(nodes[i, 1:], nodes[i + 1] if i < side - 1 else []) for i in range(side)]).astype(int)
    m = bl.Model()
    x = m.variable("x", len(tails), lower=0, upper=1)
    price = m.parameter("price", len(tails))
    m.add(Path(tails, heads, source=0, target=side**2 - 1), scope=[x[[j]] for j in range(len(tails))])
    m.minimize((price * x).sum())
    data = powers(np.random.RandomState(seed), train + test, len(tails), degree, 0.5)
    return split(m, x, price, data, train)


def knapsack(seed: int, degree: int, train: int, test: int, items: int = 16) -> Task:
    """Integer points within one load, of two fifths of the weight of all items."""
    draw = np.random.RandomState(seed)
    weights = draw.choice(range(300, 800), size=items) / 100
    m = bl.Model()
    x = m.variable("x", items, lower=0, upper=1)
    price = m.parameter("price", items)
    kind = Knapsack(weights, capacity=np.floor(0.4 * weights.sum()), integer=True)
    m.add(kind, scope=[x[[j]] for j in range(items)])
    m.maximize((price * x).sum())
    features, values = powers(draw, train + test, items, degree, 0.5)
    return split(m, x, price, (features, np.ceil(5 * values)), train, integer=True)


def portfolio(seed: int, degree: int, train: int, test: int, assets: int = 50) -> Task:
    """Shares of assets of at most a fifth each; exposures to five factors within the half of what equal shares of the worst have."""
    draw = np.random.RandomState(seed)
    matrix = draw.binomial(1, 0.5, (assets, FEATURES))
    loads = draw.uniform(-2.5e-3, 2.5e-3, (assets, FEATURES))
    features = draw.normal(0, 1, (train + test, FEATURES))
    returns = (0.05 * features @ matrix.T / np.sqrt(FEATURES) + 0.1 ** (1 / degree)) ** degree
    own = draw.randn(train + test, FEATURES + assets)
    returns += own[:, :FEATURES] @ loads.T + 0.01 * own[:, FEATURES:]
    m = bl.Model()
    x = m.variable("x", assets, lower=0, upper=0.2)
    price = m.parameter("price", assets)
    m.add(np.ones((1, assets)) @ x == 1.0)
    m.add_rows(loads.T * 1000, x, -0.25, 0.25)
    m.maximize((price * x).sum())
    return split(m, x, price, (features, returns), train)


def matching(seed: int, degree: int, train: int, test: int, side: int = 6) -> Task:
    """Assignments, as choices by rows and by columns that share all variables."""
    m = bl.Model()
    x = m.variable("x", (side, side), lower=0, upper=1)
    price = m.parameter("price", (side, side))
    m.add(Simplex(side), scope=[x[:, j] for j in range(side)], name="by_row")
    m.add(Simplex(side), scope=[x[j, :] for j in range(side)], name="by_column")
    m.minimize((price * x).sum())
    return split(m, x, price, powers(np.random.RandomState(seed), train + test, side**2, degree, 0.5), train)


TASKS: dict[str, tuple[Callable[..., Task], int]] = {
    "shortest path, degree 4": (shortest_path, 4),
    "shortest path, degree 6": (shortest_path, 6),
    "knapsack": (knapsack, 4),
    "portfolio": (portfolio, 4),
    "matching": (matching, 4),
}
"""Tasks and their degrees."""


def made(name: str, seed: int, train: int, test: int) -> Task:
    """A task by its name."""
    make, degree = TASKS[name]
    return make(seed, degree, train, test)
