r"""The Gaussian kernel by its definition, in chunks: a reference for lattices, up to some 10^4 points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import NonFiniteError, ShapeError


@dataclass(frozen=True)
class Gaussian:
    r""":math:`k(f, g) = e^{-|f - g|^2 / 2}` between all points of an image, times a factor of each point.

    Attributes
    ----------
    features : Tensor
        ``(points, d)`` floating point, finite: positions in units of the kernel's standard deviations.
    image : Tensor or None
        ``(points,)`` int64: the kernel is zero between points of different images.
    factors : Tensor or None
        ``(points, 1)`` floating point: factors of rows and columns.
    chunk : int
        Entries of the matrix formed at a time on a CPU, which stay in its cache; elsewhere 100 times as many.

    Raises
    ------
    ShapeError, NonFiniteError
        If features do not have this shape or hold NaN or infinities.
    """

    features: Tensor
    image: Tensor | None = None
    factors: Tensor | None = None
    chunk: int = 500_000

    def __post_init__(self) -> None:
        check_features(self.features, self.image)

    @property
    def points(self) -> int:
        """Number of points."""
        return self.features.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the features are."""
        return self.features.device

    @property
    def diagonal(self) -> Tensor:
        """Diagonal of the kernel matrix: ``(points,)`` float64."""
        ones = torch.ones(self.points, dtype=torch.float64, device=self.device)
        return ones if self.factors is None else self.factors[:, 0].square()

    def restrict(self, points: Tensor) -> Gaussian:
        """The kernel between some points ``(count,)`` int64."""
        image, factors = (None if part is None else part[points] for part in (self.image, self.factors))
        return Gaussian(self.features[points], image, factors, self.chunk)

    def scaled(self, factors: Tensor) -> Gaussian:
        """The kernel with its rows and columns multiplied by factors ``(points, 1)``."""
        return replace(self, factors=factors if self.factors is None else self.factors * factors)

    def rows(self, dtype: torch.dtype, deadline: Deadline | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Chunks of the matrix without factors: where they start and end, and ``(rows, points)``.

        Raises
        ------
        TimeLimitError
            If a deadline is given and passes.
        """
        f = self.features.double()  # squared distances are differences of large numbers
        size = (f * f).sum(1)
        step = max(1, self.chunk * (1 if f.device.type == "cpu" else 100) // self.points)
        for start in range(0, self.points, step):
            if deadline is not None:
                deadline.check("filtering")
            here = slice(start, start + step)
            matrix = (f[here] @ f.T - (size[here, None] + size) / 2).clamp_(max=0).to(dtype).exp_()
            if self.image is not None:
                matrix = matrix * (self.image[here, None] == self.image)
            yield here, matrix

    def filter(self, values: Tensor, deadline: Deadline | None = None) -> Tensor:
        """Apply the kernel to values ``(points, channels)``, until the deadline; see :meth:`rows`."""
        factors = self.factors.to(values) if self.factors is not None else 1
        chunks = self.rows(values.dtype, deadline)
        return factors * torch.cat([matrix @ (factors * values) for _, matrix in chunks])

    def ordered(self, scores: Tensor, deadline: Deadline | None = None) -> Tensor:
        r"""Points below less points above, by label: :math:`\sum_b k(f_a, f_b) \, \mathrm{sign}(y_a - y_b)`.

        Parameters
        ----------
        scores : Tensor
            ``(points, labels)``; ties count nothing.
        deadline : Deadline, optional
            When to give up; see :meth:`rows`.
        """
        factors = torch.ones_like(scores[:, :1]) if self.factors is None else self.factors.to(scores)
        chunks = []
        for here, matrix in self.rows(scores.dtype, deadline):
            columns = [(matrix * (s[here, None] - s).sign()) @ factors for s in scores.T]
            chunks.append(factors[here] * torch.cat(columns, 1))
        return torch.cat(chunks)


def check_features(features: Tensor, image: Tensor | None) -> None:
    """Check features ``(points, d)``, floating point, and their images ``(points,)``.

    Raises
    ------
    ShapeError
        If they have other shapes, or features are no floating-point numbers.
    NonFiniteError
        If features hold NaN or infinities.
    """
    check_shapes(features, image)
    if not all_finite(features):
        raise NonFiniteError("features hold NaN or infinite numbers; a kernel width of zero makes them")


def check_shapes(features: Tensor, image: Tensor | None) -> None:
    """Check features and images as :func:`check_features` does, but for numbers that are not finite.

    Raises
    ------
    ShapeError
        If they have other shapes, or features are no floating-point numbers.
    """
    shape = tuple(features.shape)
    if features.dim() != 2 or 0 in shape or not features.is_floating_point():
        raise ShapeError(f"features are {features.dtype} {shape}; give floating-point numbers (points, d)")
    if image is not None and image.shape != features.shape[:1]:
        raise ShapeError(f"image has shape {tuple(image.shape)}; {shape[0]} points need one number each")


def all_finite(values: Tensor) -> bool:
    """Whether there is no NaN and no infinity, in a tenth of the time of ``torch.isfinite(values).all()``."""
    return bool(torch.isfinite(torch.stack(torch.aminmax(values.detach()))).all())
