r"""Regularised Frank-Wolfe, Algorithm 1 of Le-Huu & Alahari (2021): l2FW (11) and eFW (12).

.. math:: \min_y E(y) + r(y), \qquad
          p = \arg\min_p \langle \nabla E(y), p \rangle + r(p), \qquad y \leftarrow y + \alpha (p - y)

over the simplices, with :math:`r = \frac{\lambda}{2} |y|^2` or minus :math:`\lambda` times the entropy.  E is the quadratic energy

.. math:: E(y) = \phi^\top y + \tfrac{1}{2} \sum_m y^\top K^m y \mu^m + \text{cliques}

with the kernels' diagonals, as published: for the Potts model it is then concave, up to what a lattice lacks of being positive
semi-definite, and eFW with :math:`\lambda = 1` and steps of 1 is parallel mean field.  At labellings it is the energy of the CRF:
where labels cost something against themselves, :math:`\phi` is less what a point would pay to itself.

Messages are linear, so that that of :math:`y + \alpha (p - y)` follows from those of y and p: every step filters once, with a line
search as without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_positive

STEPS = ("line-search", "adaptive", "constant", "length", "decreasing", "root")
"""Step rules."""

HALVINGS = 40
"""Most halvings of a step for the sake of cliques."""


class Regulariser(Protocol):
    """A convex function r over the simplices, by the points that it chooses; a layer takes any, also with parameters of its own."""

    def minimise(self, gradient: Tensor) -> Tensor:
        """Return the p on the simplices of the least ``<gradient, p> + r(p)``, ``(points, labels)``; differentiable in a layer."""


@dataclass(frozen=True)
class NoRegulariser:
    """No regulariser: vanilla Frank-Wolfe (7), whose p is a labelling and has no gradient."""

    def minimise(self, gradient: Tensor) -> Tensor:
        """The labels of least gradient."""
        return torch.nn.functional.one_hot(gradient.argmin(1), gradient.shape[1]).to(gradient)

    def value(self, y: Tensor) -> Tensor:
        """Summands of r, all 0: ``(points, labels)``."""
        return torch.zeros_like(y)


@dataclass(frozen=True)
class Euclidean:
    r""":math:`r(y) = \frac{\lambda}{2} |y|^2`."""

    weight: float | Tensor

    def minimise(self, gradient: Tensor) -> Tensor:
        """The p of (11)."""
        # Shifting a row changes nothing; differences of small numbers stay exact where the weight is small.
        return project_to_simplex((gradient.amin(1, keepdim=True) - gradient) / self.weight)

    def value(self, y: Tensor) -> Tensor:
        """Summands of r: ``(points, labels)``."""
        return self.weight / 2 * y.square()


@dataclass(frozen=True)
class Entropy:
    r""":math:`r(y) = \lambda \sum y \log y`."""

    weight: float | Tensor

    def minimise(self, gradient: Tensor) -> Tensor:
        """The p of (12)."""
        return ((gradient.amin(1, keepdim=True) - gradient) / self.weight).softmax(1)

    def value(self, y: Tensor) -> Tensor:
        """Summands of r: ``(points, labels)``."""
        return self.weight * torch.xlogy(y, y)


def l2fw(
    run: Run, *, weight: float = 1.0, step: str = "line-search", size: float = 1.0, steps: int = 10, tolerance: float = 0.0
) -> None:
    r"""Euclidean Frank-Wolfe.

    It starts at ``run.start``; the text starts at ``(-unary).softmax(1)``.

    Parameters
    ----------
    run : Run
        The run.
    weight : float
        The regulariser's :math:`\lambda`; the smaller, the nearer to labellings p is.
    step : str
        How :math:`\alpha` is chosen, for every image by itself and at most 1:

        - "line-search": least regularised energy on the way to p (14); with the entropy, least bound by its strong convexity; with
          cliques, halved until it descends enough.  The regularised energy never rises.
        - "adaptive": that of (14) with a bound on the largest curvature of E; shorter as a rule.
        - "constant": ``size``.
        - "length": ``size`` over the length of p - y.
        - "decreasing": 2 / (k + 2) for k = 0, 1, ...
        - "root": 1 / sqrt(k + 1).
    size : float
        Constant or length of steps, positive.
    steps : int
        Most steps, at least 1.
    tolerance : float
        An image counts as stationary, and stays, once its conditional gradient norm (13) is at most this.

    Raises
    ------
    OptionError
        If a number is out of range or the rule unknown.
    """
    check_positive(weight=weight)
    _frank_wolfe(run, Euclidean(weight), weight, step, size, steps, tolerance)


def efw(
    run: Run, *, weight: float = 0.3, step: str = "line-search", size: float = 1.0, steps: int = 10, tolerance: float = 0.0
) -> None:
    """Entropic Frank-Wolfe; with weight 1 and constant steps of 1 parallel mean field.

    Parameters
    ----------
    run, weight, step, size, steps, tolerance
        As in :func:`l2fw`; the weight is that of the entropy.
    """
    check_positive(weight=weight)
    _frank_wolfe(run, Entropy(weight), weight, step, size, steps, tolerance)


def fw(run: Run, *, step: str = "line-search", size: float = 1.0, steps: int = 10, tolerance: float = 0.0) -> None:
    """Vanilla Frank-Wolfe (7), towards labellings.

    Parameters
    ----------
    run, step, size, steps, tolerance
        As in :func:`l2fw`.
    """
    _frank_wolfe(run, NoRegulariser(), 0.0, step, size, steps, tolerance)


def _frank_wolfe(
    run: Run, regulariser: NoRegulariser | Euclidean | Entropy, weight: float, step: str, size: float, steps: int, tolerance: float
) -> None:
    check_positive(size=size, steps=steps)
    if step not in STEPS or (step == "constant" and size > 1) or not tolerance >= 0:
        raise OptionError(
            f"step is {step!r}, size {size}, tolerance {tolerance}; choose a rule of {', '.join(STEPS)}, constant steps up to 1 and "
            "a tolerance of 0 or more"
        )
    crf = run.crf

    def length(k: int, slope: Tensor, y: Tensor, p: Tensor, bend: Tensor) -> Tensor:
        norm = crf.per_image(slope * (y - p) + regulariser.value(y) - regulariser.value(p))
        square = crf.per_image((p - y).square())
        # r(y + alpha (p - y)) is at most the chord less weight / 2 alpha (1 - alpha) |p - y|^2; for l2 it is that.
        gain = norm + weight / 2 * square
        if step == "line-search":
            alpha = line_search(crf, y, p, gain, crf.per_image((p - y) * bend) + weight * square)
        elif step == "adaptive":
            alpha = best_step(gain, (largest_curvature(crf) + weight) * square)
        elif step == "length":
            alpha = size / square.sqrt()
        else:
            alpha = torch.full_like(norm, {"constant": size, "decreasing": 2 / (k + 2), "root": 1 / math.sqrt(k + 1)}[step])
        return torch.where(norm > tolerance, alpha.clamp(max=1), 0.0)

    walk(run, steps, lambda y, slope: regulariser.minimise(slope), length)


def walk(
    run: Run, steps: int, target: Callable[[Tensor, Tensor], Tensor], length: Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]
) -> None:
    """Go part of the way towards one point after another; a step takes one message.

    Parameters
    ----------
    run : Run
        The run, from its start on; it ends where no image moves.
    steps : int
        Most steps.
    target : callable
        Takes the point and the gradient there, ``(points, labels)``, to a point to go towards.
    length : callable
        Takes the number of the step, from 0, the gradient, the point, the one to go towards, and the message of the latter less that
        of the former to the part of the way, ``(images,)``.
    """
    crf, y = run.crf, run.start
    phi, field = linear_costs(crf), crf.message(y)
    run.filter_calls += 1
    for k in range(steps):
        slope = gradient(crf, phi, field, y)
        p = target(y, slope)
        towards = crf.message(p)
        run.filter_calls += 1
        alpha = length(k, slope, y, p, towards - field)
        share = crf.per_point(alpha).to(y)
        y, field = y.lerp(p, share), field.lerp(towards, share)
        if run.step(y, lambda: not bool(alpha.any())):  # noqa: B023 (asked before the next step)
            return


def linear_costs(crf: DenseCRF) -> Tensor:
    r"""The linear part :math:`\phi` of E, ``(points, labels)``: the unaries, less what labels cost against themselves at a point."""
    phi = crf.unary
    for kernel in crf.kernels:
        if kernel.compatibility is not None and bool(kernel.compatibility.diagonal().any()):
            phi = phi - kernel.diagonal.to(phi) * kernel.compatibility.diagonal().to(phi) / 2
    return phi


def gradient(crf: DenseCRF, phi: Tensor, field: Tensor, y: Tensor) -> Tensor:
    """The gradient of E at y with the message ``field``, up to a number for every point: ``(points, labels)``.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    phi, field, y : Tensor
        ``(points, labels)``: unaries, the message at y, and the point.
    """
    slope = phi + field
    return slope if crf.cliques is None else slope + crf.cliques.message(y)


def best_step(gain: Tensor, curvature: Tensor) -> Tensor:
    r"""The :math:`\alpha` in [0, 1] of the least :math:`\frac{1}{2} c \alpha^2 - g \alpha`, for gains g > 0: ``(images,)``."""
    return torch.where(curvature > gain, gain / curvature, 1.0)


def line_search(crf: DenseCRF, y: Tensor, p: Tensor, gain: Tensor, curvature: Tensor) -> Tensor:
    """Steps from y to p ``(images,)``: the best for the quadratic part, halved until the cliques take at most half of the descent.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    y, p : Tensor
        ``(points, labels)``.
    gain, curvature : Tensor
        ``(images,)`` float64: along the way the objective without cliques falls by ``gain * alpha - curvature * alpha ** 2 / 2``,
        the cliques taken as linear in the gain.
    """
    alpha = best_step(gain, curvature)
    if crf.cliques is None:
        return alpha
    start, slope = crf.per_clique(crf.cliques.mean(y)), crf.per_image(crf.cliques.message(y) * (p - y))
    for _ in range(HALVINGS):
        there = y.lerp(p, crf.per_point(alpha).to(y))
        # The quadratic part falls by half of alpha * gain or more.
        above = crf.per_clique(crf.cliques.mean(there)) - start - alpha * slope > alpha * gain / 4
        if not bool(above.any()):
            return alpha
        alpha = torch.where(above, alpha / 2, alpha)
    return torch.where(above, 0.0, alpha)


def largest_curvature(crf: DenseCRF) -> Tensor:
    r"""A bound on the curvature of E along the simplices, :math:`L_f` of the text: ``(images,)`` float64.

    A non-negative symmetric matrix has no eigenvalue above its largest sum of a row; along a simplex only the centred compatibility
    counts.  The second derivatives of a clique's mean cost are 0 on the diagonal and between :math:`-\Gamma` and 0 elsewhere.
    """
    total = torch.zeros(crf.images, dtype=torch.float64, device=crf.unary.device)
    for kernel in crf.kernels:
        rows = torch.stack([part.max() for part in torch.split(kernel.sums, crf.sizes)])
        if kernel.compatibility is not None:
            centred = kernel.compatibility - kernel.compatibility.mean(0) - kernel.compatibility.mean(1, keepdim=True)
            rows = rows * torch.linalg.eigvalsh(centred + kernel.compatibility.mean()).abs().max().to(rows)
        total += rows
    if crf.cliques is None:
        return total
    curved = crf.cliques.spread((crf.cliques.cost.double() * (crf.cliques.sizes - 1))[crf.cliques.owner, None])
    return total + torch.stack([part.max() for part in torch.split(curved, crf.sizes)])
