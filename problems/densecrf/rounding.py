r"""From points of the LP, or of any relaxation, to labellings.

- "argmax": the largest score of every point.
- "kleinberg-tardos" (2002): draw a label i and a threshold :math:`\theta \in (0, 1]`, give the label to all points without one
  where :math:`y_{a:i} \ge \theta`, and repeat until all have one.  A point gets label i with probability :math:`y_{a:i}`, and two
  points get different ones with probability at most :math:`|y_a - y_b|_1`.  So the mean energy under the Potts model is at most
  twice that of the LP, unaries as they are (thesis, 2.1.7).
- "tree": the same from the root of a random tree of labels to its leaves, for general metrics: what pairs cost is in expectation at
  most O(log labels) times as much as in the LP (Kumar & Koller 2009).  Unaries are as they are in expectation here, too.
- "descent" and "expansion": the largest scores, lowered by :mod:`~blocklp.problems.densecrf.local_search`.

Draws are repeated, and the labelling of least energy of them and of the largest scores is returned.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.problems.densecrf.energy import DenseCRF, labelling_energy
from blocklp.problems.densecrf.hst import LabelTree, compatibility, random_tree
from blocklp.problems.densecrf.local_search import alpha_expansion, block_descent


def kleinberg_tardos(crf: DenseCRF, y: Tensor, draws: int = 10, seed: int = 0) -> Tensor:
    """The best of some draws and of the largest scores, for every image.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    y : Tensor
        ``(points, labels)`` on the simplices, such as that of a result.
    draws : int
        Number of draws.  All images of a batch take the same labels and thresholds, so that a batch is its images one by one.
    seed : int
        Of the draws.

    Returns
    -------
    Tensor
        ``(points,)`` int64.

    Raises
    ------
    ShapeError, OptionError
        If y does not fit or is not on the simplices, or the number of draws is negative.
    """
    return _best_draw(crf, y, draws, seed, lambda generator: draw_labelling(y, generator))


def tree_rounding(crf: DenseCRF, y: Tensor, draws: int = 10, seed: int = 0) -> Tensor:
    """The best of some draws along random trees of the labels and of the largest scores, for every image.

    Parameters
    ----------
    crf, y, draws, seed
        As in :func:`kleinberg_tardos`, and so is what is returned; each draw has a tree of its own.

    Raises
    ------
    ShapeError, OptionError
        As :func:`kleinberg_tardos` does.
    ModelError
        If the compatibilities together are not a semi-metric: negative, or with costs on the diagonal.
    """
    total = torch.zeros(crf.labels, crf.labels, dtype=torch.float64)
    total = sum((kernel.weight * compatibility(kernel, crf.labels) for kernel in crf.kernels), total)
    if bool((total < 0).any()) or bool(total.diagonal().any()):
        raise ModelError("a compatibility is negative or has costs on its diagonal, and no tree is above it; take another rounding")
    return _best_draw(crf, y, draws, seed, lambda generator: draw_along_tree(y, random_tree(total, generator), generator))


def _best_draw(crf: DenseCRF, y: Tensor, draws: int, seed: int, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
    """For every image the best of the draws, each with a generator of its own, and of the largest scores."""
    if y.shape != crf.unary.shape:
        raise ShapeError(f"y has shape {tuple(y.shape)}; give {tuple(crf.unary.shape)}, one row a point")
    if draws < 0:
        raise OptionError(f"draws is {draws}; give 0 or more")
    if not bool(((y.double().sum(1) - 1).abs() < 1e-3).all() and (y >= 0).all()):
        raise OptionError("y is not on the simplices; every row must hold numbers from 0 to 1 that add up to 1")
    best = y.argmax(1)
    least = labelling_energy(crf, best)
    # One stream for each draw: how much of it is used depends on the points.
    for stream in torch.randint(2**62, (draws,), generator=torch.Generator().manual_seed(seed)).tolist():
        labelling = draw(torch.Generator().manual_seed(stream))
        energy = labelling_energy(crf, labelling)
        best = torch.where(crf.per_point(energy < least)[:, 0], labelling, best)
        least = torch.minimum(energy, least)
    return best


def draw_along_tree(y: Tensor, tree: LabelTree, generator: torch.Generator) -> Tensor:
    """Draw a child of each point's cluster, level by level, with the conditional scores: ``(points,)`` int64.

    Parameters
    ----------
    y : Tensor
        ``(points, labels)`` on the simplices.
    tree : LabelTree
        Of the labels.
    generator : Generator
        Where random numbers come from.
    """
    chosen = torch.zeros(len(y), dtype=torch.int64, device=y.device)
    around = torch.zeros(y.shape[1], dtype=torch.int64)
    for level, partition in enumerate(tree.partitions):
        clusters = tree.members(level)
        parent = torch.stack([around[inside][0] for inside in clusters.T.bool()])
        scores, finer = y @ clusters.to(y), torch.zeros_like(chosen)
        for cluster in range(int(around.max()) + 1):
            children = (parent == cluster).nonzero()[:, 0].to(y.device)
            # One stream for each cluster: how much of it is used depends on the points.
            own = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=generator)))
            here = (chosen == cluster).nonzero()[:, 0]
            if len(here):
                part = scores[here[:, None], children]
                finer[here] = children[draw_labelling(part / part.sum(1, keepdim=True), own)]
        chosen, around = finer, partition
    # The leaves are single labels, numbered by the last partition.
    leaf: Tensor = tree.members(len(tree.partitions) - 1).argmax(0).to(y.device)
    return leaf[chosen]


def draw_labelling(y: Tensor, generator: torch.Generator) -> Tensor:
    """One draw for y ``(points, labels)`` on the simplices: ``(points,)`` int64."""
    count = y.shape[1]
    labelling = torch.full((len(y),), -1, device=y.device)
    left = torch.arange(len(y), device=y.device)
    while len(left):
        # Of so many draws a point takes none with probability e^-4.
        label = torch.randint(count, (4 * count,), generator=generator).to(y.device)
        threshold = 1 - torch.rand(4 * count, generator=generator, dtype=torch.float64).to(y.device)
        taken = y[left][:, label] >= threshold
        labelling[left] = torch.where(taken.any(1), label[taken.byte().argmax(1)], -1)
        left = left[labelling[left] < 0]
    return labelling


def largest_scores(crf: DenseCRF, y: Tensor) -> Tensor:
    """The largest score of every point of y ``(points, labels)``: ``(points,)`` int64; the energy has no part in it."""
    return y.argmax(1)


ROUNDINGS: dict[str, Callable[[DenseCRF, Tensor], Tensor]] = {
    "argmax": largest_scores,
    "kleinberg-tardos": kleinberg_tardos,
    "tree": tree_rounding,
    "descent": lambda crf, y: block_descent(crf, y.argmax(1)),
    "expansion": lambda crf, y: alpha_expansion(crf, block_descent(crf, y.argmax(1))),
}
"""Roundings by name: the energy and a point ``(points, labels)`` give a labelling ``(points,)``."""
