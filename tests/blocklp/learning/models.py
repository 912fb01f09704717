"""Small models of many structures, with all their vertices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import cvxpy
import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.general_solvers.linear_program import export
from blocklp.oracles import Edge, Knapsack, Path, Simplex


class Octagon(bl.BlockType):
    """A user's own polytope, by its oracle alone: no constraints, no table."""

    dim = 3

    def __init__(self) -> None:
        corners = np.random.default_rng(5).normal(size=(9, 3))
        self.corners = torch.from_numpy(corners)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        value, row = (cost @ self.corners.T.to(cost)).min(-1)
        return self.corners.to(cost)[row], value


@dataclass
class Task:
    """A model, its predicted parameter and variables."""

    model: bl.Model
    price: bl.Parameter
    x: bl.Variable


def stated(n: int, lower: float = 0.0, upper: float = 1.0) -> Task:
    m = bl.Model()
    x = m.variable("x", n, lower=lower, upper=upper)
    return Task(m, m.parameter("price", n), x)


def objective(task: Task, maximize: bool = False) -> Task:
    total = (task.price * task.x).sum()
    (task.model.maximize if maximize else task.model.minimize)(total)
    return task


def scope(x: bl.Variable, columns: list[int]) -> list[bl.language.View]:
    return [x[[j]] for j in columns]


def simplex() -> Task:
    task = stated(5)
    task.model.add(Simplex(5), scope=scope(task.x, list(range(5))))
    return objective(task)


def knapsack() -> Task:
    task = stated(5)
    task.model.add(Knapsack([[3.0, 2.0, 2.0, 4.0, 1.0]], [5.0]), scope=scope(task.x, list(range(5))))
    return objective(task, maximize=True)


def path() -> Task:
    tails, heads = [0, 0, 1, 1, 2, 3, 4], [1, 2, 3, 4, 4, 5, 5]
    task = stated(7)
    task.model.add(Path(tails, heads, source=0, target=5), scope=scope(task.x, list(range(7))))
    return objective(task)


def rows() -> Task:
    task = stated(6)
    matrix = np.random.default_rng(1).uniform(0, 1, (2, 6))
    task.model.add(matrix @ task.x <= 0.4 * matrix.sum(1))
    return objective(task, maximize=True)


def matching() -> Task:
    """Simplices by rows and columns, whose variables are shared."""
    m = bl.Model()
    x = m.variable("x", (3, 3), lower=0, upper=1)
    price = m.parameter("price", (3, 3))
    m.add(Simplex(3), scope=[x[:, j] for j in range(3)], name="by_row")
    m.add(Simplex(3), scope=[x[j, :] for j in range(3)], name="by_column")
    return objective(Task(m, price, x))


def edges() -> Task:
    """Edges of a graph, which share the variables of nodes; products have fixed costs and are not returned."""
    m, ends = bl.Model(), np.array([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])
    y = m.variable("y", 4, lower=0, upper=1)
    z = m.variable("z", 5, lower=0, upper=1)
    price = m.parameter("price", 4)
    m.add(Edge(), scope=[y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((price * y).sum() + np.array([1.0, -1.0, 2.0, 0.5, -0.5]) @ z)
    return Task(m, price, y)


def own() -> Task:
    """Two polytopes of a user that share a variable, and one variable in no block."""
    task = stated(6, -4.0, 4.0)
    task.model.add(Octagon(), scope=[task.x[[0, 2]], task.x[[1, 3]], task.x[[2, 4]]])
    return objective(task)


def own_apart() -> Task:
    """Two polytopes of a user that share nothing."""
    task = stated(6, -4.0, 4.0)
    task.model.add(Octagon(), scope=[task.x[[0, 3]], task.x[[1, 4]], task.x[[2, 5]]])
    return objective(task)


TASKS: dict[str, Callable[[], Task]] = {
    kind.__name__: kind for kind in (simplex, knapsack, path, rows, matching, edges, own, own_apart)
}


def costs(task: Task, batch: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *task.price.shape, generator=generator, dtype=torch.float64)


def vertices(name: str) -> Tensor:
    """All vertices ``(vertices, variables)`` of the models whose vertices are few."""
    if name == "simplex":
        return torch.eye(5, dtype=torch.float64)
    if name == "matching":
        places = itertools.permutations(range(3))
        return torch.stack([torch.eye(3, dtype=torch.float64)[list(p)].flatten() for p in places])
    if name == "path":
        routes = [[0, 2, 5], [0, 3, 6], [1, 4, 6]]
        return torch.stack([torch.zeros(7, dtype=torch.float64).index_fill(0, torch.tensor(r), 1.0) for r in routes])
    assert name == "own_apart"
    corners = Octagon().corners
    pairs = itertools.product(corners, corners)
    return torch.stack([torch.cat([a, b]) for a, b in pairs])


def by_cvxpy(task: Task, cost: Tensor, rho: float, centre: Tensor) -> np.ndarray:
    """The layer's point by a quadratic program on the rows that the model states."""
    program = export(task.model, values={task.price: cost})
    problem = program.to_cvxpy()
    [x] = problem.variables()
    sign = -1.0 if program.maximize else 1.0
    value = sign * program.c @ x + rho / 2 * cvxpy.sum_squares(x - centre.numpy())
    tight = {name: 1e-12 for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas")}
    cvxpy.Problem(cvxpy.Minimize(value), problem.constraints).solve("CLARABEL", **tight)
    return x.value
