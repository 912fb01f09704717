r"""The ordered filter: what lies below each point less what lies above it (thesis, 2.2.5 and A.2.3).

.. math:: g_{a:i} = \sum_b k(f_a, f_b) \, \mathrm{sign}(y_{a:i} - y_{b:i}) \, v_{b:i}

This is the subgradient of the dense CRF's LP and the conditional gradient of its dual.  The scores of a label are sorted into levels;
every point splats to its own level only, and one blur of all levels and a prefix sum over them give both sides at once (the thesis
splats to all levels above, then to all levels below).  Points of one level count nothing for each other, so for :math:`v = 1` the
weights :math:`\alpha_{ab}` that g stands for stay antisymmetric and within :math:`\pm K_{ab}` whatever the levels: bounds that are
built on g hold, and lose only tightness by coarse levels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.errors import OptionError, ShapeError
from blocklp.oracles import permutohedral
from blocklp.oracles.permutohedral import Lattice

LEVELS = 64


def ordered_filter(lattice: Lattice, scores: Tensor, values: Tensor | None = None, levels: int = LEVELS) -> Tensor:
    """Points below less points above, for every label.

    Parameters
    ----------
    lattice : Lattice
        The kernel.
    scores : Tensor
        ``(points, labels)`` floating point.
    values : Tensor, optional
        ``(points, labels)``; 1 by default.
    levels : int
        Most levels of a label, at least 2.  Exact for labels with at most so many distinct scores.

    Returns
    -------
    Tensor
        ``(points, labels)``.

    Raises
    ------
    ShapeError, OptionError
        If scores do not fit, or levels are fewer than 2.
    """
    if scores.dim() != 2 or scores.shape[0] != lattice.points or (values is not None and values.shape != scores.shape):
        raise ShapeError(f"scores have shape {tuple(scores.shape)}; the lattice has {lattice.points} points, give (points, labels)")
    if levels < 2:
        raise OptionError(f"levels is {levels}; an order needs at least 2")
    values = torch.ones_like(scores) if values is None else values
    at, counts = assign_levels(scores, levels)
    weights = lattice.weights.to(values)
    if loops := permutohedral.kernels(values):
        out = torch.empty_like(values, memory_format=torch.contiguous_format)
        loops.run(loops.ordered, at, values.contiguous(), counts, weights, lattice.vertices, lattice.neighbours, lattice.scale, out)
        return out
    columns = []
    for level, value, count in zip(at.T, values.T, counts.tolist(), strict=True):
        own = lattice.blur(lattice.splat(torch.nn.functional.one_hot(level, count) * value[:, None]))
        upto = own.cumsum(1)
        columns.append(lattice.slice(2 * upto - own - upto[:, -1:]).gather(1, level[:, None])[:, 0] * lattice.scale)
    return torch.stack(columns, 1)


def assign_levels(scores: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Sort the scores of every label into at most ``most`` levels: ``(points, labels)`` int64, and their number ``(labels,)``.

    Equal scores share a level.  Where there are more distinct scores than levels, a score that many points have gets a level of its
    own, and the others share the remaining ones by their quantiles.
    """
    at, counts = torch.empty_like(scores, dtype=torch.int64), []
    for label in range(scores.shape[1]):
        distinct, inverse, count = torch.unique(scores[:, label], return_inverse=True, return_counts=True)
        level = torch.arange(len(distinct), device=scores.device)
        if len(distinct) > most:
            heavy = count > 4 * len(scores) // most
            bins = most - 2 * int(heavy.sum())
            quantile = (count.cumsum(0) - count) * bins // len(scores)
            apart = (quantile[1:] != quantile[:-1]) | heavy[1:] | heavy[:-1]
            level[0], level[1:] = 0, apart.cumsum(0)
        at[:, label] = level[inverse]
        counts.append(int(level[-1]) + 1)
    return at, torch.tensor(counts)
