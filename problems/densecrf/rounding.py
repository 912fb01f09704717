r"""From points of the LP to labellings: the rounding of Kleinberg & Tardos (2002).

Draw a label i and a threshold :math:`\theta \in (0, 1]`, give the label to all points without one where :math:`y_{a:i} \ge \theta`,
and repeat until all have one.  A point gets label i with probability :math:`y_{a:i}`, and two points get different ones with
probability at most :math:`|y_a - y_b|_1`.  So the mean energy under the Potts model is at most twice that of the LP, unaries as they
are (thesis, 2.1.7).
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.errors import OptionError, ShapeError
from blocklp.problems.densecrf.energy import DenseCRF


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
    if y.shape != crf.unary.shape:
        raise ShapeError(f"y has shape {tuple(y.shape)}; give {tuple(crf.unary.shape)}, one row a point")
    if draws < 0:
        raise OptionError(f"draws is {draws}; give 0 or more")
    if not bool(((y.double().sum(1) - 1).abs() < 1e-3).all() and (y >= 0).all()):
        raise OptionError("y is not on the simplices; every row must hold numbers from 0 to 1 that add up to 1")
    best = y.argmax(1)
    least = crf.energy(best)
    # One stream for each draw: how much of it is used depends on the points.
    for stream in torch.randint(2**62, (draws,), generator=torch.Generator().manual_seed(seed)).tolist():
        labelling = draw_labelling(y, torch.Generator().manual_seed(stream))
        energy = crf.energy(labelling)
        best = torch.where(crf.per_point(energy < least)[:, 0], labelling, best)
        least = torch.minimum(energy, least)
    return best


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
