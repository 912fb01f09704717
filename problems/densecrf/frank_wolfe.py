r"""What the quadratic relaxations share: points with their pairs, the convex relaxation's Frank-Wolfe steps, and its lower bound.

On the simplices the pairwise energy is :math:`\tfrac12 y^\top P y` with :math:`P = \sum_m (K^m - \mathrm{diag} K^m) \otimes \mu^m`
(the thesis's :math:`\Psi` is half of it, as it counts every pair twice).  P is indefinite; with a diagonal D,

.. math:: (\phi - d)^\top y + y^\top (\tfrac12 P + D) y, \qquad d_{a:i} = \tfrac12 \sum_{b \ne a, j} |P_{a:i, b:j}|

is convex and equals the energy at labellings, where :math:`y^2 = y` (2.1.5.4).  A constant in :math:`\mu` changes nothing on the
simplices but d: here it is the median, which makes d least.  For the Potts model that is :math:`M - 1` times less than printed, and
the relaxation is :math:`\phi^\top y + \tfrac12 \sum_{a<b} K_{ab} |y_a - y_b|^2`.

Cliques enter by functions that equal them at labellings: the convex relaxation takes the tightest convex one, which is linear on the
segments that a conditional gradient needs; the others the concave one of the higher-order text (20), its z minimised out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.problems.densecrf.cliques import Cliques
from blocklp.problems.densecrf.energy import ROUNDINGS, DenseCRF
from blocklp.problems.densecrf.run import Run


class Point(NamedTuple):
    """A point and what it costs its pairs: both follow a segment, so that a line search needs no filter call (A.1.2.7).

    Attributes
    ----------
    y, pairs : Tensor
        ``(points, labels)`` float64: on the simplices, and P y.  P y is filtered in the precision of the unaries.
    """

    y: Tensor
    pairs: Tensor

    @classmethod
    def at(cls, run: Run, y: Tensor) -> Point:
        """The point y ``(points, labels)``: one filter call."""
        run.filter_calls += 1
        y = y.double()
        y = y / y.sum(1, keepdim=True)  # a start of single precision
        return cls(y, run.crf.message(y.to(run.crf.unary)).double() - run.crf.own(y))

    @classmethod
    def centre(cls, crf: DenseCRF) -> Point:
        """All labels alike, which takes no filter call."""
        y = torch.full_like(crf.unary, 1 / crf.labels, dtype=torch.float64)
        pairs = torch.zeros_like(y)
        for kernel in crf.kernels:
            pairs += (kernel.sums - kernel.diagonal) * kernel.compare(y)
        return cls(y, pairs)

    def towards(self, other: Point, size: Tensor) -> Point:
        """Go a share of the way, ``(points, 1)``."""
        return Point(self.y.lerp(other.y, size), self.pairs.lerp(other.pairs, size))


def line_search(crf: DenseCRF, now: Point, other: Point, decrease: Tensor, diagonal: Tensor | float = 0.0) -> Tensor:
    r"""Shares of the way ``(points, 1)``, one for each image, that minimise a quadratic with the matrix :math:`P + 2D` (A.1.2.4).

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    now, other : Point
        The ends.
    decrease : Tensor
        ``(images,)`` float64, not negative but for rounding: how fast it falls at the first end.
    diagonal : Tensor or 0
        D, ``(points, labels)``.
    """
    way = other.y - now.y
    curvature = crf.per_image(way * (other.pairs - now.pairs + 2 * diagonal * way))
    # Without curvature it falls all the way.
    share = torch.where(curvature > 0, decrease / curvature, torch.inf)
    return crf.per_point(torch.where(decrease > 0, share, 0.0).clamp(max=1))


def dominant_diagonal(crf: DenseCRF, centred: bool = True) -> Tensor:
    """The d that makes the relaxation convex: ``(points, labels)`` float64 (2.1.5.5).

    Kernels with different compatibilities are bounded one by one.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    centred : bool
        Whether compatibilities count less their medians, which makes d least and changes no energy; as printed they do not.
    """
    total = torch.zeros_like(crf.unary, dtype=torch.float64)
    labels = torch.eye(crf.labels, dtype=torch.float64, device=crf.unary.device)
    for kernel in crf.kernels:
        compatibility = kernel.compare(labels)
        middle = compatibility.median() if centred else 0.0
        spread = (compatibility - middle).abs().sum(1)
        total += (kernel.sums - kernel.diagonal).clamp(min=0) / 2 * spread
    return total


class Linearised(NamedTuple):
    """A convex relaxation, linear but for the cliques, at a point.

    Attributes
    ----------
    vertex : Tensor
        ``(points, labels)`` float64: a labelling that minimises it.
    decrease : Tensor
        ``(images,)`` float64: how fast the relaxation falls towards it at least; the Frank-Wolfe gap.
    least : Tensor
        ``(images,)`` float64: its minimum, below that of the relaxation.
    """

    vertex: Tensor
    decrease: Tensor
    least: Tensor


def linearise(crf: DenseCRF, now: Point, linear: Tensor, diagonal: Tensor, cliques: Cliques | None) -> Linearised:
    r"""The conditional gradient of :math:`c^\top y + y^\top (\tfrac12 P + D) y` and cliques, in closed form (2.1.5.8).

    A clique's convex function is the convex hull of its costs, so with unaries its minimum is at a labelling: all points have their
    own best labels and it is paid, or all have the best common label.  Where cliques overlap they share their points' gradients
    evenly, so that the minima of all cliques are a bound below, and the vertex, whose labels are those of the cliques that gain most,
    need not be the best one.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    now : Point
        Where.
    linear, diagonal : Tensor
        ``(points, labels)`` float64: c and D.
    cliques : Cliques or None
        The cliques that are part of the objective.
    """
    curved = now.pairs + 2 * diagonal * now.y
    gradient = linear + curved
    least, label = gradient.min(1)
    here, bound = crf.per_image(gradient * now.y), crf.per_image(least)
    if cliques is not None:
        cost, shares = cliques.cost.double(), (cliques.table >= 0).sum(1, keepdim=True).clamp(min=1)
        joint = cliques.reduce(gradient / shares, "sum") + cost[:, None] * (1 - cliques.kept)
        together, common = joint.min(1)
        alone = cliques.reduce(least[:, None] / shares, "sum")[:, 0] + cost
        gain = torch.full_like(cliques.table, -torch.inf, dtype=torch.float64)
        gain.view(-1)[cliques.places] = (alone - together)[cliques.owner]
        wanted = torch.zeros_like(cliques.table)
        wanted.view(-1)[cliques.places] = common[cliques.owner]
        most, place = gain.max(1, keepdim=True)
        label = torch.where(most >= 0, wanted.gather(1, place), label[:, None])[:, 0]
        bound = crf.per_image(least * (most[:, 0] == -torch.inf)) + crf.per_clique(torch.minimum(together, alone))
    vertex = torch.nn.functional.one_hot(label, crf.labels).double()
    there = crf.per_image(gradient * vertex)
    if cliques is not None:
        here, there = here + crf.per_clique(cliques.relaxed(now.y)), there + crf.per_clique(cliques.relaxed(vertex))
    return Linearised(vertex, here - there, bound - crf.per_image(now.y * curved) / 2)


def frank_wolfe(
    run: Run, now: Point, linear: Tensor, diagonal: Tensor, cliques: Cliques | None = None
) -> Iterator[tuple[Point, Tensor]]:
    """Minimise a convex relaxation (Algorithm 1, A.1.2): one filter call from each point to the next.

    Parameters
    ----------
    run : Run
        The run.
    now : Point
        The start.
    linear, diagonal, cliques
        The objective; see :func:`linearise`.

    Yields
    ------
    tuple of Point and Tensor
        A point, the start first, and a lower bound ``(images,)`` float64 of the minimum but for rounding.
    """
    while True:
        model = linearise(run.crf, now, linear, diagonal, cliques)
        yield now, model.least
        other = Point.at(run, model.vertex)
        # Of the cliques the line search knows a chord, which is above: still no step rises.
        now = now.towards(other, line_search(run.crf, now, other, model.decrease, diagonal))


class ConvexBound:
    r"""Lower bounds on all labellings from any point: that of the convex relaxation's tangent there, less its rounding.

    Convexity gives :math:`\tfrac12 x^\top H x \ge x^\top H y - \tfrac12 y^\top H y` with :math:`H = P + 2D` for every labelling x,
    so :math:`\sum_a \min_i (\phi - d + H y)_{a:i} - \tfrac12 y^\top H y`, and the cliques' costs, is at most the energy of x.

    Parameters
    ----------
    crf, centred
        As for :func:`dominant_diagonal`.
    """

    def __init__(self, crf: DenseCRF, centred: bool = True) -> None:
        self.crf, self.diagonal = crf, dominant_diagonal(crf, centred)
        self.linear = crf.unary.double() - self.diagonal
        # P y is of the filter's precision, and enters once against x and half against y; all else is of double precision.
        reach = torch.zeros_like(self.linear[:, :1])
        for kernel in crf.kernels:
            costs = kernel.compare(torch.eye(crf.labels, dtype=torch.float64, device=crf.unary.device))
            reach += kernel.sums * costs.abs().max()
        narrow, wide = torch.finfo(crf.unary.dtype).eps, torch.finfo(torch.float64).eps
        error = 2 * narrow * reach[:, 0] + wide * (self.linear.abs() + 4 * self.diagonal).amax(1)
        self.rounding = ROUNDINGS * (crf.per_image(error) + wide * crf.constant)

    def anywhere(self) -> Tensor:
        r"""The bound from the centre, ``(images,)`` float64, without a filter call: :math:`\sum_a \min_i \phi_{a:i}` for Potts."""
        centre = Point.centre(self.crf)
        return linearise(self.crf, centre, self.linear, self.diagonal, self.crf.cliques).least - self.rounding


def concave_cliques(cliques: Cliques | None, y: Tensor) -> Tensor | float:
    r"""A supergradient ``(points, labels)`` float64 of the cliques' concave function, 0 without any.

    .. math:: \sum_c \Gamma_c \Bigl(1 - \sum_i \max\bigl(0, 1 - \sum_{a \in c} (1 - y_{a:i})\bigr)\Bigr)

    That is (20) of the higher-order text with its best z, less a constant: concave, and the cliques' costs at labellings.  Only a
    label from which a clique is at most one point away is favoured; at just one point the supergradient that favours it is taken.
    """
    if cliques is None:
        return 0.0
    near = (cliques.reduce(1 - y, "sum") <= 1) * cliques.kept.to(y)
    return cliques.spread(-(cliques.cost.to(y)[:, None] * near)[cliques.owner])
