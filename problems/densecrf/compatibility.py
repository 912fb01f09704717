r"""What pairs of labels cost, and metrics as sums of cuts.

The LP relaxation needs the compatibility as :math:`\mu(i, j) = \sum_S c_S \, |1_S(i) - 1_S(j)|`, a sum of cuts of the label set.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from scipy.cluster.hierarchy import linkage
from scipy.optimize import linprog
from scipy.spatial.distance import squareform
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, ShapeError


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
        return ((self.members[:, None] - self.members[None]).abs() * self.lengths).sum(2)


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


def metric_cuts(matrix: Tensor) -> Cuts:
    r"""A sum of cuts that is nowhere above a compatibility, and in sum as near to it as cuts of a family come.

    The family: intervals of the labels' order, which give linear and truncated linear costs exactly, and the clusters of an
    average-linkage tree, which give tree metrics (r-HST) exactly.

    Raises
    ------
    ModelError
        If the compatibility is negative somewhere, or costs something on its diagonal.
    """
    if bool((matrix < 0).any()) or bool(matrix.diagonal().any()):
        raise ModelError(
            "a compatibility is negative or has costs on its diagonal; the LP relaxation needs a semi-metric: take mean-field or "
            "qp-cvx, or shift the compatibility (under a normalised kernel a constant changes little)"
        )
    labels = len(matrix)
    family = _family(matrix)
    low, high = np.triu_indices(labels, 1)
    parted = (family[low] != family[high]).astype(float)
    answer = linprog(-parted.sum(0), sp.csr_array(parted), matrix.cpu().numpy()[low, high], bounds=(0, None), method="highs")
    if answer.x is None:
        raise ModelError(f"no cuts below a compatibility were found: {answer.message}")
    used = answer.x > 1e-9 * max(answer.x.max(), 1e-300)
    cuts = Cuts(torch.from_numpy(family[:, used].astype(float)), torch.from_numpy(answer.x[used]))
    # The solver's tolerance: nowhere above.
    over = (cuts.distances() / matrix.cpu()).nan_to_num(0.0).max().clamp(min=1)
    return Cuts(cuts.members, cuts.lengths / over * (1 - 1e-15))


def _family(matrix: Tensor) -> npt.NDArray[np.bool_]:
    """Sets of labels, ``(labels, sets)``, each once up to its complement."""
    labels = len(matrix)
    at = np.arange(labels)
    sets = [(at >= first) & (at < last) for first in range(labels) for last in range(first + 1, labels + 1)]
    if labels > 2:
        clusters = [at == k for k in at]
        for one, two, *_ in linkage(squareform(matrix.cpu().numpy(), checks=False), "average"):
            clusters.append(clusters[int(one)] | clusters[int(two)])
        sets += clusters
    # A set and its complement cut alike: the side without label 0 stands for both.
    unique = np.unique(np.array([~s if s[0] else s for s in sets]), axis=0)
    return unique[unique.any(1)].T
