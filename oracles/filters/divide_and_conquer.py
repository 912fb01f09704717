r"""The ordered filter by divide and conquer (thesis, 2.1.7 and A.1.5): the exact order, without levels.

.. math:: g_{a:i} = \sum_b k(f_a, f_b) \, \mathrm{sign}(y_{a:i} - y_{b:i}) \, v_{b:i}

The points are split into those of lower and of higher scores.  Between the halves the order is known, and one
filter of each half's values gives what it counts for the other; within the halves it is the same problem
again.

The thesis builds a lattice for every half anew.  That lattice lacks vertices through which the whole one
blurs, so its kernel is another one; here every half keeps the vertices on the paths between its points, and
all filters are blocks of one kernel matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.oracles.filters.ordered import check_scores
from blocklp.oracles.filters.permutohedral import Lattice

LEAF = 256
"""Points that are not divided further: their block of the matrix is formed."""


def divide_and_conquer(
    lattice: Lattice,
    scores: Tensor,
    values: Tensor | None = None,
    leaf: int = LEAF,
) -> Tensor:
    """Points below less points above: the exact :func:`~blocklp.oracles.filters.ordered_filter`.

    Parameters
    ----------
    lattice, scores, values
        As there; ties count nothing.
    leaf : int
        Points that are not divided further, at least 1.

    Returns
    -------
    Tensor
        ``(points, labels)``.

    Raises
    ------
    ShapeError, ModelError
        If scores or values do not fit, or the lattice is not symmetric.
    """
    check_scores(lattice, scores, values)
    values = torch.ones_like(scores) if values is None else values
    images, first = [], 0
    for part in lattice.images:
        here = slice(first, first + part.points)
        ranks = [score.unique(return_inverse=True)[1] for score in scores[here].T]
        columns = zip(ranks, values[here].T, strict=True)
        images.append(torch.stack([_within(part, rank, value, leaf) for rank, value in columns], 1))
        first += part.points
    return torch.cat(images)


def _within(lattice: Lattice, rank: Tensor, value: Tensor, leaf: int) -> Tensor:
    """Points of lower rank less points of higher rank: ``(points,)``."""
    lowest, highest = int(rank.min()), int(rank.max())
    if lowest == highest:
        return torch.zeros_like(value)
    if len(rank) <= leaf:
        return (lattice.filter(value.diag()) * (rank[:, None] - rank).sign()).sum(1)
    middle = rank.median()
    upper = rank > middle if middle < highest else rank == highest
    from_lower, from_upper = lattice.filter(torch.stack([value * ~upper, value * upper], 1)).T
    result = torch.where(upper, from_lower, -from_upper)
    for half in (~upper, upper):
        points = half.nonzero()[:, 0]
        result[points] += _within(lattice.restrict(points), rank[points], value[points], leaf)
    return result
