r"""The energy of a dense conditional random field: one object for every method, report and bound.

.. math:: E(x) = \sum_a \phi_{a:x_a} + \sum_{a < b} K_{ab} \, [x_a \ne x_b], \qquad K = \sum_m w_m \, D_m K_m D_m

Every pair counts once.  The normalisation :math:`D_m` is part of the kernel: changing it changes the energy for all.  (The thesis
counts every pair twice; its weights are half of these.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.oracles.gaussian import Gaussian
from blocklp.oracles.ordered import LEVELS, ordered_filter
from blocklp.oracles.permutohedral import Lattice


@dataclass(frozen=True)
class Kernel:
    r"""One Gaussian of the pairwise term.

    Attributes
    ----------
    filter : Lattice or Gaussian
        The kernel matrix, approximate or exact.
    weight : float
        Its weight w, not negative.
    normalise : bool
        Whether rows and columns are divided by the square roots of their sums (symmetric normalisation).

    Raises
    ------
    OptionError
        If the weight is negative or not finite.
    """

    filter: Lattice | Gaussian
    weight: float = 1.0
    normalise: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise OptionError(f"a kernel has the weight {self.weight}; it must be finite and not negative")

    @cached_property
    def scale(self) -> Tensor:
        r""":math:`\sqrt{w} D`, ``(points, 1)`` float64."""
        ones = torch.ones(self.filter.points, 1, dtype=torch.float64, device=self._device)
        scale: Tensor = self.filter.filter(ones).rsqrt() if self.normalise else ones
        return scale * math.sqrt(self.weight)

    @property
    def _device(self) -> torch.device:
        return self.filter.weights.device if isinstance(self.filter, Lattice) else self.filter.features.device

    def __call__(self, values: Tensor) -> Tensor:
        """Multiply values ``(points, channels)`` by the weighted kernel."""
        scale = self.scale.to(values)
        return scale * self.filter.filter(scale * values)

    def ordered(self, scores: Tensor, levels: int) -> Tensor:
        r""":math:`\sum_b K_{ab} \, \mathrm{sign}(y_a - y_b)` for scores ``(points, labels)``; see :func:`ordered_filter`."""
        scale = self.scale.to(scores)
        values = scale.expand_as(scores)
        if isinstance(self.filter, Gaussian):
            return scale * self.filter.ordered(scores, values)
        return scale * ordered_filter(self.filter, scores, values, levels)


@dataclass(frozen=True)
class DenseCRF:
    """Unaries and kernels of one or several images.

    Attributes
    ----------
    unary : Tensor
        ``(points, labels)`` floating point, finite: costs, minus log-probabilities as a rule.
    kernels : tuple of Kernel
        The pairwise term, over the same points.
    image : Tensor or None
        ``(points,)`` int64: which image a point belongs to, 0 and so on; the kernels' filters must keep images apart.

    Raises
    ------
    ShapeError, NonFiniteError, ModelError
        If unaries are not of this form, or kernels have other points.
    """

    unary: Tensor
    kernels: tuple[Kernel, ...]
    image: Tensor | None = None

    def __post_init__(self) -> None:
        if self.unary.dim() != 2 or 0 in self.unary.shape or not self.unary.is_floating_point():
            raise ShapeError(
                f"the unaries are {self.unary.dtype} {tuple(self.unary.shape)}; give floating-point costs (points, labels), "
                "labels last: u.reshape(labels, -1).T turns what pydensecrf takes into this"
            )
        if not bool(torch.isfinite(self.unary).all()):
            raise NonFiniteError("the unaries hold NaN or infinite costs; clip probabilities before taking -log")
        if any(k.filter.points != self.points for k in self.kernels):
            raise ModelError(f"a kernel is over {[k.filter.points for k in self.kernels]} points, the unaries are of {self.points}")
        if self.image is not None and self.image.shape != self.unary.shape[:1]:
            raise ShapeError(f"image has shape {tuple(self.image.shape)}; {self.points} points need one number each")

    @property
    def points(self) -> int:
        """Number of points of all images."""
        return self.unary.shape[0]

    @property
    def labels(self) -> int:
        """Number of labels."""
        return self.unary.shape[1]

    @cached_property
    def images(self) -> int:
        """Number of images."""
        return 1 if self.image is None else int(self.image.max()) + 1

    def per_image(self, values: Tensor) -> Tensor:
        """Sum values ``(points, ...)`` of every image in float64: ``(images,)``."""
        totals = values.double().flatten(1).sum(1) if values.dim() > 1 else values.double()
        if self.image is None:
            return totals.sum()[None]
        return torch.stack([totals[self.image == k].sum() for k in range(self.images)])

    def pairwise(self, values: Tensor) -> Tensor:
        """Multiply values ``(points, channels)`` by all kernels."""
        total = torch.zeros_like(values)
        for kernel in self.kernels:
            total += kernel(values)
        return total

    def energy(self, labelling: Tensor) -> Tensor:
        """Energy of a labelling ``(points,)`` int64: ``(images,)`` float64."""
        return self.quadratic(torch.nn.functional.one_hot(labelling, self.labels).double())

    def quadratic(self, y: Tensor) -> Tensor:
        r"""The relaxed energy :math:`\phi^\top y + \frac12 \sum_i y_i^\top K (1 - y_i)` ``(images,)`` of ``(points, labels)``."""
        y = y.double()
        return self.per_image(y * (self.unary.double() + self.pairwise(1 - y) / 2))

    def ordered(self, scores: Tensor, levels: int = LEVELS) -> Tensor:
        r"""The subgradient of the LP's pairwise term, :math:`\frac12 \sum_b K_{ab} \, \mathrm{sign}(y_a - y_b)`."""
        total = torch.zeros_like(scores)
        for kernel in self.kernels:
            total += kernel.ordered(scores, levels)
        return total / 2

    def linear(self, y: Tensor, levels: int | None = None) -> Tensor:
        r"""The LP's energy :math:`\phi^\top y + \frac12 \sum_i \sum_{a<b} K_{ab} |y_{a:i} - y_{b:i}|` ``(images,)``.

        With fewer levels than distinct scores it is a bound from below.
        """
        y = y.double()
        return self.per_image(y * (self.unary.double() + self.ordered(y, self.points if levels is None else levels)))

    def lower_bound(self, direction: Tensor) -> Tensor:
        r"""A lower bound on the LP, and so on every labelling: :math:`\sum_a \min_i (\phi + g)_{a:i}` ``(images,)``.

        Parameters
        ----------
        direction : Tensor
            g, ``(points, labels)``: a convex combination of answers of :meth:`ordered`.  Then
            :math:`g_a = \frac12 \sum_b K_{ab} s_{ab}` with antisymmetric s in [-1, 1], so that g is a subgradient of a function
            below the pairwise term; rounding of its computation is charged.
        """
        least = (self.unary.double() + direction.double()).amin(1)
        # An answer of the filter is a sum of products of magnitudes K: some tens of roundings of its size, in its precision.
        size = self.pairwise(torch.ones(self.points, 1, dtype=torch.float64, device=self.unary.device))[:, 0] + least.abs()
        error = ROUNDINGS * torch.finfo(direction.dtype).eps * size
        return self.per_image(least - error)

    def best_constant(self) -> Tensor:
        """Label of the best constant labelling of each point's image: ``(points,)``."""
        if self.image is None:
            return self.unary.double().sum(0).argmin().expand(self.points)
        best = torch.stack([self.unary[self.image == k].double().sum(0).argmin() for k in range(self.images)])
        return best[self.image]


ROUNDINGS = 200
"""Roundings charged to a bound: splat, two blurs along at most 20 axes, prefix sums, slice and the combination."""


def image_features(height: int, width: int, sxy: float, image: Tensor | None = None, srgb: float | None = None) -> Tensor:
    """Positions, and colours if given, in units of the kernel's widths (the parameters of pydensecrf).

    Parameters
    ----------
    height, width : int
        Size of the image.
    sxy : float
        Width in pixels.
    image : Tensor, optional
        ``(height, width, channels)``: colours from 0 to 255.
    srgb : float, optional
        Width in units of the colours.

    Returns
    -------
    Tensor
        ``(height * width, features)`` float64, row by row.

    Raises
    ------
    OptionError, ShapeError
        If a width is not positive, or the image has another size.
    """
    for name, value in (("sxy", sxy), ("srgb", srgb)):
        if value is not None and not 0 < value < float("inf"):
            raise OptionError(f"{name} is {value}; a kernel's width must be positive and finite")
    if (image is None) != (srgb is None):
        raise OptionError("give image and srgb together: colours need a width")
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    features = torch.stack([x, y], 2).double() / sxy
    if image is not None and srgb is not None:
        if image.dim() != 3 or tuple(image.shape[:2]) != (height, width):
            raise ShapeError(f"the image has shape {tuple(image.shape)}; give ({height}, {width}, channels)")
        features = torch.cat([features, image.double() / srgb], 2)
    return features.flatten(0, 1)
