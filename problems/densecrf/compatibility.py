r"""What pairs of labels cost, and metrics as sums of cuts.

The LP relaxation needs the compatibility as :math:`\mu(i, j) = \sum_S c_S \, |1_S(i) - 1_S(j)|`, a sum of cuts of the label set.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from scipy.cluster.hierarchy import linkage
from scipy.optimize import linprog
from scipy.spatial.distance import squareform
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, ShapeError

Sets = npt.NDArray[np.bool_]
"""Sets of labels, ``(labels, sets)``."""

Matrix = npt.NDArray[np.float64]

WORK, GAIN = 2**15, 0.005
"""Most rounds of new cuts times labels squared, and the share of the sum of distances that a round must gain for another one."""


class Cuts(NamedTuple):
    """A sum of cuts of the label set.

    Attributes
    ----------
    members : Tensor
        ``(labels, cuts)`` float64, 0 or 1: the labels of each set S.
    lengths : Tensor
        ``(cuts,)`` float64, not negative: c.
    """

    members: Tensor
    lengths: Tensor

    def distances(self) -> Tensor:
        """The metric ``(labels, labels)``."""
        steps = self.members * self.lengths
        return torch.cdist(steps, steps, p=1.0)


def check_compatibility(matrix: Tensor) -> Tensor:
    """A compatibility in float64.

    Raises
    ------
    ShapeError, NonFiniteError, ModelError
        If it is not square, finite and symmetric.
    """
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"a compatibility has shape {tuple(matrix.shape)}; give (labels, labels)")
    matrix = matrix.double()
    if not bool(torch.isfinite(matrix).all()):
        raise NonFiniteError("a compatibility holds NaN or infinities; forbid pairs by a large cost instead")
    if not torch.equal(matrix, matrix.T):
        raise ModelError("a compatibility is not symmetric; a pair has no order: give (matrix + matrix.T) / 2")
    return matrix


def potts_cuts(labels: int) -> Cuts:
    """The Potts model: every label alone, half each."""
    return Cuts(torch.eye(labels, dtype=torch.float64), torch.full((labels,), 0.5, dtype=torch.float64))


def metric_cuts(matrix: Tensor, deadline: Deadline | None = None) -> Cuts:
    r"""A sum of cuts that is nowhere above a compatibility and, in sum over the pairs of labels, near to it.

    Ultrametrics (r-HST trees, Potts) and concave functions of the labels' distance with at most four bends (linear, truncated
    linear) come out exactly.  For others, column generation: the best lengths of some cuts are a linear program, its prices make
    the search for a better cut a maximum cut of the labels, and a local search finds some.  A filter costs as much as there are
    cuts, so this ends before there are more than two for every label, and 16.  No sum of cuts is above the shortest paths in a
    compatibility: below a truncated quadratic cost it is linear.

    Parameters
    ----------
    matrix : Tensor
        ``(labels, labels)`` float64, finite and symmetric.
    deadline : Deadline, optional
        When to give up.

    Returns
    -------
    Cuts
        At least one.

    Raises
    ------
    ModelError
        If the compatibility is negative somewhere, or costs something on its diagonal.
    TimeLimitError
        If the deadline passes.
    """
    deadline = Deadline() if deadline is None else deadline
    if bool((matrix < 0).any()) or bool(matrix.diagonal().any()):
        raise ModelError(
            "a compatibility is negative or has costs on its diagonal; the LP relaxation needs a semi-metric: take mean-field or "
            "qp-cvx, or shift the compatibility (under a normalised kernel a constant changes little)"
        )
    costs = matrix.cpu().numpy()
    if not costs.any():
        return Cuts(torch.ones(len(costs), 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    for sets, lengths in (clusters := _clusters(costs), windows := _windows(costs, deadline)):
        if np.abs(_distances(sets, lengths) - costs).max() <= 1e-9 * costs.max():
            return _below(sets, lengths, costs)
    most, binding = max(2 * len(costs), 16), np.zeros_like(costs, dtype=bool)
    # Of few labels all sets.
    other = np.arange(2 ** len(costs)) >> np.arange(len(costs))[:, None] & 1 == 1 if len(costs) <= 8 else windows[0]
    sets = _distinct(np.concatenate([clusters[0], other], 1))[0]
    lengths, prices = _longest(sets, costs, binding, deadline)
    if np.count_nonzero(lengths) > most:
        sets = sets[:, np.sort(_sums(sets, lengths).argsort()[-most:])]
        lengths, prices = _longest(sets, costs, binding, deadline)
    for _ in range(WORK // len(costs) ** 2):
        used = sets[:, lengths > 0]
        wider = _distinct(np.concatenate([used, _maximum_cuts(1 - prices, used)], 1))[0]
        longer, prices = _longest(wider, costs, binding, deadline)
        if np.count_nonzero(longer) > most:
            break
        before, sets, lengths = _sums(sets, lengths).sum(), wider, longer
        if _sums(sets, lengths).sum() <= (1 + GAIN) * before:
            break
    return _below(sets, lengths, costs)


def _clusters(costs: Matrix) -> tuple[Sets, Matrix]:
    """The clusters of an average-linkage tree, single labels included, and their lengths in the tree."""
    labels = len(costs)
    tree = linkage(squareform(costs, checks=False), "average")
    sets, height, above = list(np.eye(labels, dtype=bool)), np.zeros(2 * labels - 1), np.zeros(2 * labels - 1)
    for k, (one, two, far, _) in enumerate(tree):
        sets.append(sets[int(one)] | sets[int(two)])
        height[labels + k] = above[[int(one), int(two)]] = far
    above[-1] = height[-1]
    return _distinct(np.stack(sets, 1), (above - height) / 2)


def _windows(costs: Matrix, deadline: Deadline) -> tuple[Sets, Matrix]:
    r"""All intervals of some lengths T in the labels' order, those over its ends included: halves cost :math:`\min(|i-j|, T)`.

    Their lengths are the at most four most important of the best sum of truncated linear costs below all pairs.
    """
    labels = len(costs)
    step = np.arange(1, labels)
    ramps = np.minimum(step[:, None], step)
    reach = (labels - step) @ ramps
    answer = _linear_program(
        -reach.astype(float), ramps, np.array([costs.diagonal(k).min() for k in step]), np.array([[0, np.inf]]), deadline
    )
    weights = np.where(answer.x > 1e-9 * answer.x.max(), answer.x, 0.0)
    widths = step[np.argsort(reach * weights)[-4:]]
    first = np.concatenate([np.arange(1 - k, labels) for k in widths])
    width = np.repeat(widths, widths + labels - 1)
    at = np.arange(labels)[:, None]
    return _distinct((at >= first) & (at < first + width), weights[width - 1] / 2)


def _distinct(sets: Sets, lengths: Matrix | None = None) -> tuple[Sets, Matrix]:
    """Each set once up to its complement, without the trivial ones, and their lengths added."""
    sides, which = np.unique(np.where(sets[0], ~sets, sets), axis=1, return_inverse=True)
    kept = sides.any(0)
    return sides[:, kept], np.bincount(which.ravel(), lengths, sides.shape[1]).astype(float)[kept]


def _sums(sets: Sets, lengths: Matrix) -> Matrix:
    """What each set adds to the sum of the distances of all pairs."""
    inside = sets.sum(0)
    sums: Matrix = lengths * inside * (len(sets) - inside)
    return sums


def _distances(sets: Sets, lengths: Matrix) -> Matrix:
    """The metric ``(labels, labels)``, up to rounding."""
    common = (sets * lengths) @ sets.T
    distances: Matrix = common.diagonal()[:, None] + common.diagonal() - 2 * common
    return distances


def _below(sets: Sets, lengths: Matrix, costs: Matrix) -> Cuts:
    """The cuts of positive length; each is shortened as the worst pair that it parts needs, since solvers are not exact."""
    sets, lengths = sets[:, lengths > 0], lengths[lengths > 0]
    over = np.full_like(costs, np.inf)
    np.divide(_distances(sets, lengths), costs, out=over, where=costs > 0)
    over = np.maximum(over, 1)
    worst = np.array([over[np.ix_(s, ~s)].max() for s in sets.T])
    # As many roundings as there are summands.
    lengths = lengths / worst * (1 - 4e-16 * (len(lengths) + 4))
    if not lengths.any():
        sets, lengths = sets[:, :1] if sets.size else np.ones_like(costs[:, :1]), np.zeros(1)
    return Cuts(torch.from_numpy(sets.astype(float)), torch.from_numpy(lengths))


def _linear_program(cost: Matrix, rows: Any, limits: Matrix, bounds: Matrix, deadline: Deadline) -> Any:
    """Minimise ``cost @ x`` for ``rows @ x <= limits`` within the bounds: the answer of :func:`scipy.optimize.linprog`."""
    deadline.check("looking for cuts below a compatibility")
    options = {} if deadline.left() == np.inf else {"time_limit": deadline.left()}
    answer = linprog(cost, rows, limits, bounds=bounds, method="highs", options=options)
    if answer.x is None or answer.status == 1:
        deadline.check("looking for cuts below a compatibility")
        raise ModelError(f"no cuts below a compatibility were found: {answer.message}")
    return answer


def _longest(sets: Sets, costs: Matrix, binding: Sets, deadline: Deadline) -> tuple[Matrix, Matrix]:
    """The lengths of largest sum of distances, nowhere above the costs, and the prices of the pairs ``(labels, labels)``.

    Few pairs bind: the nearest ones of every label to begin with, then those that the answer violates most; ``binding`` keeps them.
    """
    gain = _sums(sets, np.ones(sets.shape[1]))
    low, high = np.nonzero(np.triu(costs == 0, 1))
    free = (sets[low] == sets[high]).all(0)
    bounds = np.stack([np.zeros_like(gain), np.where(free, 2 * costs.max(), 0)], 1)
    # Equal excesses are taken from anywhere: four neighbours by number would bind few labels.
    mix = np.random.default_rng(0).uniform(1, 1.01, costs.shape)
    excess = costs.max() * 1.1 - costs
    while True:
        np.fill_diagonal(excess, 0)
        worst = np.argsort(-excess * mix, axis=1)[:, :4]
        binding[np.arange(len(costs))[:, None], worst] |= np.take_along_axis(excess, worst, 1) > 0
        binding |= binding.T
        low, high = np.nonzero(np.triu(binding, 1))
        parted = sp.csr_array((sets[low] != sets[high]).astype(float))
        answer = _linear_program(-gain, parted, costs[low, high], bounds, deadline)
        lengths = np.where(answer.x > 1e-9 * answer.x.max(), answer.x, 0.0)
        excess = np.where(binding, 0, _distances(sets, lengths) - (1 + 3e-3) * costs).clip(min=0)
        if not excess.any():
            prices = np.zeros_like(costs)
            prices[low, high] = -answer.ineqlin.marginals
            return lengths, prices + prices.T


def _maximum_cuts(weights: Matrix, starts: Sets) -> Sets:
    """Cuts of large weight: from some sets and random ones, single labels change sides while that pays."""
    labels = len(weights)
    weights = weights - np.diag(weights.diagonal())
    random = np.random.default_rng(0).random((labels, max(labels, 32))) < 0.5
    side = np.where(np.concatenate([starts, random], 1), 1.0, -1.0)
    pull = weights @ side
    column = np.arange(side.shape[1])
    for _ in range(4 * labels):
        gain = side * pull
        label = gain.argmax(0)
        moving = column[gain[label, column] > 1e-9]
        if not moving.size:
            break
        label = label[moving]
        pull[:, moving] -= 2 * side[label, moving] * weights[:, label]
        side[label, moving] *= -1
    return side > 0
