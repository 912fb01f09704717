"""The LP of a dense CRF, written out by other code than the package's."""

from __future__ import annotations

import itertools

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import linprog
from torch import Tensor

from blocklp.problems.densecrf import Cliques, DenseCRF, Kernel


def dense(kernel: Kernel) -> np.ndarray:
    return kernel(torch.eye(kernel.filter.points, dtype=torch.float64)).numpy()


def clique_points(cliques: Cliques, clique: int) -> Tensor:
    """Whether each point is in a clique: ``(points,)`` bool."""
    return (cliques.member.reshape(len(cliques.member), -1) == clique).any(1)


def explicit_lp(field: DenseCRF, fixed: Tensor | None = None) -> float:
    """The LP with a column for every pair and cut, every clique and label; some y ``(points, labels)`` fixed where not NaN."""
    n, m = field.unary.shape
    cost, rows, cols, data = [field.unary.double().numpy().reshape(-1)], [], [], []
    columns, row = n * m, 0

    def add(entries: list[tuple[int, float]]) -> None:
        nonlocal row
        for col, value in entries:
            rows.append(row)
            cols.append(col)
            data.append(value)
        row += 1

    for kernel in field.kernels:
        matrix, (members, lengths) = dense(kernel), kernel.cuts(m)
        for (a, b), s in itertools.product(itertools.combinations(range(n), 2), range(len(lengths))):
            inside = members[:, s].nonzero()[:, 0].tolist()
            for sign in (1, -1):
                add([(a * m + i, sign) for i in inside] + [(b * m + i, -sign) for i in inside] + [(columns, -1)])
            cost.append(np.array([matrix[a, b] * float(lengths[s])]))
            columns += 1
    constant = 0.0
    if field.cliques is not None:
        for c, price in enumerate(field.cliques.cost.tolist()):
            constant += price
            for i in range(m):
                for a in clique_points(field.cliques, c).nonzero()[:, 0].tolist():
                    add([(columns, 1), (a * m + i, -1)])
                cost.append(np.array([-price]))
                columns += 1
    above = sp.csr_array((data, (rows, cols)), (row, columns))
    sums = sp.csr_array((np.ones(n * m), (np.repeat(np.arange(n), m), np.arange(n * m))), (n, columns))
    bounds = np.tile([0.0, np.inf], (columns, 1))
    if fixed is not None:
        known = ~torch.isnan(fixed).reshape(-1).numpy()
        bounds[: n * m][known] = fixed.reshape(-1).numpy()[known, None]
    answer = linprog(np.concatenate(cost), above, np.zeros(row), sums, np.ones(n), bounds=bounds, method="highs")
    return float(answer.fun) + constant
