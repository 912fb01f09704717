"""Products of every block's matrix with its variables, by tensor operations.

Matrices are by groups, ``(batch or 1, rows, dim, blocks or 1)``: a product goes through rows or columns from
first to last, over all blocks at once, so that the bits of an instance do not depend on its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition, Group

LONG, FEW = 32, 1024
"""Columns from which on one operation adds them up, not one for each, and the most numbers of a column."""


def by_groups(problem: Decomposition, y: Tensor, rows: list[int]) -> list[tuple[Group, Tensor]]:
    """Views of numbers of all rows, group by group.

    Parameters
    ----------
    problem : Decomposition
        The problem with the groups.
    y : Tensor
        ``(batch, rows of all groups)``.
    rows : list of int
        Rows of one block, for each group.

    Returns
    -------
    list of (Group, Tensor)
        Every group with ``(batch, rows, blocks)``.
    """
    parts = torch.split(y, [n * g.blocks for n, g in zip(rows, problem.groups, strict=True)], 1)
    each = zip(problem.groups, rows, parts, strict=True)
    return [(g, part.view(len(y), n, g.blocks)) for g, n, part in each]


def stated_rows(group: Group) -> int:
    """Rows that the type of a group states for each block, without bounds."""
    stated = group.constraints
    return 0 if stated is None else stated.matrix.shape[2]


def times(group: Group, matrix: Tensor, copies: Tensor) -> Tensor:
    """Every block's matrix times its copies.

    Parameters
    ----------
    group : Group
        The blocks.
    matrix : Tensor
        ``(batch or 1, rows, dim, blocks or 1)``.
    copies : Tensor
        ``(batch, copies)`` of all groups.

    Returns
    -------
    Tensor
        ``(batch, rows, blocks)``.
    """
    return _combined(matrix.transpose(1, 2), group.rows(copies))


def transposed(matrix: Tensor, y: Tensor) -> Tensor:
    """Every block's transposed matrix times ``(batch, rows, blocks)``: ``(batch, dim, blocks)``."""
    return _combined(matrix, y)


def _combined(columns: Tensor, factors: Tensor) -> Tensor:
    """Sum of columns ``(n, k, rows, blocks or 1)`` times factors ``(batch, k, blocks)``.

    From first to last on a CPU; on a GPU in whatever order is quickest.
    """
    if factors.device.type != "cpu":
        if columns.shape[::3] == (1, 1):
            return torch.matmul(columns[0, :, :, 0].T, factors)
        return (columns * factors[:, :, None]).sum(1)
    out = factors.new_zeros(max(len(columns), len(factors)), columns.shape[2], factors.shape[2])
    if columns.shape[1] > LONG and out[0].numel() <= FEW:
        terms = columns * factors[:, :, None]
        index = terms.new_zeros((), dtype=torch.long).expand_as(terms)
        return out[:, None].scatter_add_(1, index, terms)[:, 0]
    for column, factor in zip(columns.unbind(1), factors[:, :, None].unbind(1), strict=True):
        out += column * factor
    return out
