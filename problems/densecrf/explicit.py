r"""The LP of a dense CRF written out, for small images: a truth for bounds, by any solver of LPs.

.. math:: \min_{y, t, w} \; \sum_a \phi_a^\top y_a + \sum_m \sum_S c^m_S \sum_{a < b} K^m_{ab} \, t^m_{ab,S}
          + \sum_c \Gamma_c (1 - \sum_i w_{c,i}) \quad \text{s.t.} \quad
          t^m_{ab,S} \ge |y_a(S) - y_b(S)|, \quad w_{c,i} \le y_{a,i} \; (a \in c), \quad y_a \in \Delta

It is the LP that ``prox-lp`` solves without writing it out; its number of columns grows with the square of the points.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array, kron, vstack
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError
from blocklp.language.expression import Expression, View
from blocklp.oracles import Simplex
from blocklp.problems.densecrf.compatibility import Cuts
from blocklp.problems.densecrf.energy import DenseCRF

LARGEST = 1_000_000
"""Columns of pairs that are written out at most; 50,000 took HiGHS 38 s."""


def explicit_model(crf: DenseCRF) -> bl.Model:
    """State the LP of a dense CRF with a column for each pair of points and cut of the labels.

    Parameters
    ----------
    crf : DenseCRF
        Of one image.

    Returns
    -------
    Model
        With the variables ``y`` ``(points, labels)``; :func:`blocklp.reference` solves it.

    Raises
    ------
    ModelError
        If there are several images, more columns than a million, or a compatibility with no metric below it.
    TimeLimitError
        If the deadline of the energy passes.

    Examples
    --------
    >>> import torch, blocklp as bl
    >>> from blocklp.problems.densecrf import explicit_model, image_crf
    >>> crf = image_crf(torch.zeros(2, 2, 3), torch.tensor([[[0.0, 1], [0, 1]], [[0, 1], [0, 1]]]))
    >>> round(bl.reference(explicit_model(crf)).objective.item(), 6)
    0.0
    """
    if crf.images > 1:
        raise ModelError(f"the energy is of {crf.images} images; write out the LP of each alone")
    n, pairs = crf.points, crf.points * (crf.points - 1) // 2
    potts = [k for k in crf.kernels if k.compatibility is None]
    # Kernels of the same cuts need only one column for a pair.
    groups = [potts] * bool(potts) + [[k] for k in crf.kernels if k.compatibility is not None]
    cuts = [group[0].cuts(crf.labels, crf.deadline) for group in groups]
    if (columns := pairs * sum(len(c.lengths) for c in cuts)) > LARGEST:
        raise ModelError(
            f"the LP of {n} points and {crf.labels} labels has {columns} columns for pairs, and at most {LARGEST} are written out; "
            "take a smaller picture"
        )
    model = bl.Model()
    y = model.variable("y", (n, crf.labels), lower=0, upper=1)
    model.add(Simplex(crf.labels), scope=y, name="labels")
    cost = (crf.unary.detach().double().cpu() * y).sum()
    for number, (group, cut) in enumerate(zip(groups, cuts, strict=True)):
        ones = torch.eye(n, dtype=torch.float64, device=crf.unary.device)
        matrix = sum((kernel(ones, crf.deadline) for kernel in group), torch.zeros_like(ones)).detach().cpu()
        cost = cost + _pairs(model, f"pairs {number}", y, (matrix + matrix.T) / 2, cut)
    if crf.cliques is not None:
        owner, price = crf.cliques.owner.cpu().numpy(), crf.cliques.cost.detach().double().cpu()
        w = model.variable("w", (len(price), crf.labels), lower=0, upper=1)
        one = eye_array(crf.labels)
        inside, whole = (kron(_rows(at, count), one) for at, count in ((owner, len(price)), (crf.cliques.points.cpu().numpy(), n)))
        model.add(inside @ w.reshape(-1) - whole @ y.reshape(-1) <= 0, name="cliques")
        cost = cost + price.sum() - (price[:, None] * crf.cliques.kept.expand(-1, crf.labels).cpu() * w).sum()
    model.minimize(cost)
    return model


def _pairs(model: bl.Model, name: str, y: View, matrix: Tensor, cuts: Cuts) -> Expression:
    """Add columns and rows of the pairs of a kernel matrix ``(points, points)``; return what they cost."""
    n = len(matrix)
    low, high = np.triu_indices(n, 1)
    weight = matrix.numpy()[low, high]
    there = weight > 0  # entries of a lattice may be below 0 by roundings
    low, high, weight = low[there], high[there], weight[there]
    if not len(low):
        return 0.0 * y.sum()
    t = model.variable(name, (len(cuts.lengths), len(low)), lower=0, upper=1)
    apart = _rows(low, n) - _rows(high, n)
    difference = vstack([kron(apart, member[None]) for member in cuts.members.T.cpu().numpy()])
    own = eye_array(difference.shape[0])
    for sign in (1, -1):
        model.add(sign * difference @ y.reshape(-1) - own @ t.reshape(-1) <= 0, name=f"{name}, {'above' if sign > 0 else 'below'}")
    return ((cuts.lengths.cpu()[:, None] * torch.from_numpy(weight)) * t).sum()


def _rows(index: np.ndarray, count: int) -> csr_array:
    """A row for every index, with a one in that column."""
    return csr_array((np.ones(len(index)), (np.arange(len(index)), index)), shape=(len(index), count))
