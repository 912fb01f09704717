r"""PROX-LP on the labels and points that matter (thesis, 2.2.7.1): PROX-LP_l and PROX-LP_acc.

Some proximal problems are solved as in PROX-LP.  Then labels without a point of score 0.01 are left out; later, points with a label
of score 0.95 are fixed to it, and a tenth of the points at most stays free.

All bounds are bounds of the whole problem, because g stays a combination of subgradients of the whole :math:`f`:

- A label that is left out has y = 0 everywhere: its points tie, and its filter is nothing.  For the Potts model every label has
  weights :math:`\alpha` of its own, so that its part of g may stay what it was: it was found when the label could still be chosen.
  For other metrics labels share cuts, and all of g moves.
- A fixed point has scores 0 and 1, and :math:`K_{ab} |y_a - y_b|` is linear in the score of a free point between them.  So fixed
  points are a unary :math:`(g_0)_a`, where :math:`g_0` is the subgradient of f with all free points level and between 0 and 1,
  and what remains is a dense CRF of the free points.  Pairs of these have no part in :math:`g_0`: a combination of subgradients of
  the smaller CRF is added to it.
- A clique whose fixed points have different labels costs the same whatever its free points do; if they have one label, the clique of
  its free points can only agree on that (:meth:`Cliques.restrict`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.oracles.filters.ordered import LEVELS
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.prox_lp import WEIGHT, level_bound, proximal_problem
from blocklp.problems.densecrf.run import Run


def prox_lp_l(
    run: Run,
    *,
    weight: float = WEIGHT,
    stages: tuple[int, int] = (5, 20),
    inner: int = 2,
    levels: int = LEVELS,
    least: float = 0.01,
) -> None:
    r"""Minimise the LP relaxation, after some proximal problems on fewer labels; round its solution.

    Parameters
    ----------
    run, weight, levels
        As in :func:`blocklp.problems.densecrf.prox_lp.prox_lp`.
    stages : pair of int
        Proximal problems on all labels, and on those that are left.
    inner : int
        Frank-Wolfe steps on each.
    least : float
        Labels whose scores are below it at all points of an image are left out there.

    Raises
    ------
    OptionError
        If a number is out of range.
    """
    _on_labels(run, weight, stages, inner, levels, least)


def prox_lp_acc(
    run: Run,
    *,
    weight: float = WEIGHT,
    stages: tuple[int, int, int] = (5, 8, 12),
    inner: int = 2,
    levels: int = LEVELS,
    least: float = 0.01,
    sure: float = 0.95,
    share: float = 0.1,
) -> None:
    r"""Minimise the LP relaxation on fewer labels, then on fewer points; round its solution.

    Parameters
    ----------
    run, weight, inner, levels, least
        As in :func:`prox_lp_l`.
    stages : triple of int
        Proximal problems on everything, on the labels that are left, and on the points that are left.
    sure : float
        Points with a score of at least so much are fixed to their label.
    share : float
        Largest share of an image's points that stays free, the least sure ones.

    Raises
    ------
    OptionError
        If a number is out of range.
    """
    if not 0 < share <= 1 or not 0 < sure:
        raise OptionError(f"sure is {sure} and share {share}; give a positive score and a share up to 1")
    crf = run.crf
    y, absent, done = _on_labels(run, weight, stages, inner, levels, least)
    if done:
        return
    points = unsure_points(crf, y, sure, share)
    part, outer_g, y = fix_others(crf, y, points)

    def note(g: Tensor) -> None:
        run.filter_calls += 1
        run.bounded(crf.lower_bound(outer_g.double().index_add(0, points, g), crf.unary.dtype))

    inner_g = part.subgradient(part.level, 2)  # nothing but what cliques say to level points
    note(inner_g)
    for _ in range(stages[2]):
        found = proximal_problem(part, y[points], inner_g, absent[points], weight / run.unit, inner, levels, note)
        y = y.index_copy(0, points, found)
        if run.step(y):
            return


def _on_labels(
    run: Run, weight: float, stages: tuple[int, ...], inner: int, levels: int, least: float
) -> tuple[Tensor, Tensor, bool]:
    """The first two stages: y, the labels left out ``(points, labels)``, and whether the run is over."""
    if not 0 < weight < float("inf") or min(*stages, inner - 1) < 0 or sum(stages) < 1:
        raise OptionError(f"weight is {weight}, stages {stages}, inner {inner}; give a positive weight, problems and steps")
    crf, y = run.crf, run.start
    g, note = level_bound(run)
    absent = torch.zeros_like(y, dtype=torch.bool)
    for problem in range(stages[0] + stages[1]):
        if problem == stages[0]:
            absent = absent_labels(crf, y, least)
        y = proximal_problem(crf, y, g, absent, weight / run.unit, inner, levels, note)
        if run.step(y):
            return y, absent, True
    return y, absent, False


def absent_labels(crf: DenseCRF, y: Tensor, least: float) -> Tensor:
    """Labels with scores below ``least`` at all points of an image, at each of its points: ``(points, labels)`` bool.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    y : Tensor
        ``(points, labels)``: scores from 0 to 1.
    least : float
        The score; the best label of an image is never absent.
    """
    peaks = torch.stack([part.amax(0) for part in torch.split(y, crf.sizes)])
    absent = (peaks < least) & (peaks < peaks.amax(1, keepdim=True))
    return absent.repeat_interleave(torch.tensor(crf.sizes, device=y.device), 0)


def unsure_points(crf: DenseCRF, y: Tensor, sure: float, share: float) -> Tensor:
    """Points without a score of ``sure``, of every image its least sure ones, one at least: ``(count,)`` int64, ascending.

    Parameters
    ----------
    crf, y
        As in :func:`absent_labels`.
    sure, share : float
        The score of a point that is sure, and the part of an image's points that are taken at most.
    """
    chosen, first = [], 0
    for part in torch.split(y.amax(1), crf.sizes):
        count = min(int((part < sure).sum()), int(share * len(part)))
        chosen.append(first + part.argsort(stable=True)[: max(count, 1)].sort().values)
        first += len(part)
    return torch.cat(chosen)


def fix_others(crf: DenseCRF, y: Tensor, points: Tensor) -> tuple[DenseCRF, Tensor, Tensor]:
    r"""The dense CRF of some points, the others fixed to their best labels.

    Parameters
    ----------
    crf, y
        As in :func:`absent_labels`.
    points : Tensor
        ``(count,)`` int64, ascending: the points that stay free.

    Returns
    -------
    DenseCRF
        That of the points, what the fixed ones cost them in its unaries.
    Tensor
        ``(points, labels)``: the :math:`g_0` of the module's text.
    Tensor
        ``(points, labels)``: y with the others fixed.
    """
    fixed = torch.nn.functional.one_hot(y.argmax(1), crf.labels).to(y)
    # Three scores a label at most: 0, that of the free points, and 1.
    g = crf.subgradient(fixed.index_copy(0, points, crf.level[points].to(y)), 3)
    kernels = tuple(kernel.restrict(points) for kernel in crf.kernels)
    image = None if crf.image is None else crf.image[points]
    cliques = None if crf.cliques is None else crf.cliques.restrict(fixed, points)
    if cliques is not None:  # what they say to the free points is part of what remains
        g = g.index_add(0, points, -cliques.subgradient(crf.level[points].to(y)))
    part = DenseCRF((crf.unary + g)[points], kernels, image, cliques, crf.deadline)
    return part, g, fixed.index_copy(0, points, y[points])
