r"""The face of pydensecrf over our energy: ``import blocklp.problems.densecrf.pydensecrf as dcrf`` and code for it runs.

Classes, functions (those of ``pydensecrf.utils`` too), names, orders of axes and results are pydensecrf's: unaries and marginals are
``(labels, points)`` float32, points row by row.  Arrays may have any layout and any real type, and may be read-only.

An infinite unary, ``-log(0)``, forbids its label at its point, as there: the marginal is 0.  In :attr:`DenseCRF.crf`, whose costs are
finite, it costs more than all that such a choice could gain, so that the energies of labellings without it, and their bound, stay.

What differs:

- The kernel is the symmetric mean of both orders of the lattice's blur, pydensecrf's the one order; marginals differ by that.
- ``NORMALIZE_BEFORE`` and ``NORMALIZE_AFTER`` scale rows and columns differently, and no energy has such a kernel: with one of them
  there are marginals and labels, but neither :attr:`DenseCRF.crf` nor :meth:`DenseCRF.klDivergence`.
- NaN, minus infinity, and a point whose labels are all forbidden are refused; there they become marginals that are NaN.
- :meth:`DenseCRF.klDivergence` counts every pair once, and no point as its own neighbour.
- :attr:`DenseCRF.crf` is the energy, for every method of :func:`~blocklp.problems.densecrf.solve_densecrf`, its bound and gap.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import energy
from blocklp.problems.densecrf.kernel import Kernel
from blocklp.problems.densecrf.mean_field import mean_field_update
from blocklp.problems.densecrf.one_sided import OneSidedKernel
from blocklp.problems.densecrf.pydensecrf_utils import Array, feature_widths, real_numbers
from blocklp.problems.densecrf.pydensecrf_utils import compute_unary as compute_unary
from blocklp.problems.densecrf.pydensecrf_utils import create_pairwise_bilateral as create_pairwise_bilateral
from blocklp.problems.densecrf.pydensecrf_utils import create_pairwise_gaussian as create_pairwise_gaussian
from blocklp.problems.densecrf.pydensecrf_utils import softmax_to_unary as softmax_to_unary
from blocklp.problems.densecrf.pydensecrf_utils import unary_from_labels as unary_from_labels
from blocklp.problems.densecrf.pydensecrf_utils import unary_from_softmax as unary_from_softmax

UNDERFLOW = 120.0
"""Nats by which an impossible label is dearer than any other: the exponential of minus that is 0 in float32."""


class KernelType(IntEnum):
    """What pydensecrf's learning may change of a kernel's widths; inference is the same for all."""

    CONST_KERNEL = 0
    DIAG_KERNEL = 1
    FULL_KERNEL = 2


class NormalizationType(IntEnum):
    """How a kernel is normalised."""

    NO_NORMALIZATION = 0
    NORMALIZE_BEFORE = 1
    NORMALIZE_AFTER = 2
    NORMALIZE_SYMMETRIC = 3


CONST_KERNEL, DIAG_KERNEL, FULL_KERNEL = KernelType
NO_NORMALIZATION, NORMALIZE_BEFORE, NORMALIZE_AFTER, NORMALIZE_SYMMETRIC = NormalizationType


class Unary:
    """Costs of the labels; :meth:`DenseCRF.setUnary` takes it."""

    def costs(self) -> ArrayLike:
        """Return the costs ``(labels, points)``."""
        raise NotImplementedError


class ConstUnary(Unary):
    """Costs that are given.

    Parameters
    ----------
    u : array_like
        ``(labels, points)``.
    """

    def __init__(self, u: ArrayLike) -> None:
        self._costs = u

    def costs(self) -> ArrayLike:
        """Return the costs that were given."""
        return self._costs


class LogisticUnary(Unary):
    """Costs that are linear in features of the points.

    Parameters
    ----------
    L : array_like
        ``(labels, features)``: weights.
    f : array_like
        ``(features, points)``.

    Raises
    ------
    ShapeError, NonFiniteError
        If the two are no matrices that go together, or hold numbers that are not finite.
    """

    def __init__(self, L: ArrayLike, f: ArrayLike) -> None:
        weights, features = real_numbers(L, "weights of the features"), real_numbers(f, "features")
        if weights.ndim != 2 or features.ndim != 2 or weights.shape[1] != len(features):
            need = "give (labels, features) and (features, points)"
            raise ShapeError(f"weights have the shape {weights.shape} and features {features.shape}; {need}")
        self._costs = weights @ features

    def costs(self) -> ArrayLike:
        """Return the weights times the features."""
        return self._costs


class DenseCRF:
    """A dense CRF over any points.

    Parameters
    ----------
    n : int
        Number of points.
    labels : int
        Number of labels.

    Raises
    ------
    OptionError
        If a number is not positive.
    """

    def __init__(self, n: int, labels: int) -> None:
        if n < 1 or labels < 1:
            raise OptionError(f"there are {n} points and {labels} labels; give at least one of each")
        self._points, self._labels = n, labels
        self._unary: Tensor | None = None
        self._kernels: list[Kernel] = []
        self._one_sided: list[OneSidedKernel] = []
        self._crf: energy.DenseCRF | None = None

    @property
    def crf(self) -> energy.DenseCRF:
        """The energy; what is forbidden costs more than any choice of a point's label can gain.

        Raises
        ------
        ModelError
            If no unaries were set, or a kernel is normalised on one side.
        """
        if self._one_sided:
            raise ModelError("a kernel with NORMALIZE_BEFORE or NORMALIZE_AFTER belongs to no energy; give NORMALIZE_SYMMETRIC")
        return self._symmetric

    @property
    def _symmetric(self) -> energy.DenseCRF:
        """The energy of all kernels but those that are normalised on one side."""
        if self._unary is None:
            raise ModelError("there are no unaries; call setUnaryEnergy first")
        if self._crf is None:
            forbidden = torch.isinf(self._unary)
            dearest = self._unary.masked_fill(forbidden, -torch.inf).amax(1, keepdim=True)
            self._crf = energy.DenseCRF(torch.where(forbidden, dearest, self._unary), tuple(self._kernels))
            if bool(forbidden.any()):
                cost = dearest + float(self._crf.barrier) + UNDERFLOW
                self._crf = energy.DenseCRF(torch.where(forbidden, cost, self._unary), tuple(self._kernels))
        return self._crf

    def setUnary(self, u: Unary) -> None:
        """Set the costs of :class:`ConstUnary` or :class:`LogisticUnary`; see :meth:`setUnaryEnergy`."""
        self.setUnaryEnergy(u.costs())

    def setUnaryEnergy(self, u: ArrayLike, f: ArrayLike | None = None) -> None:
        """Set the costs, minus log-probabilities as a rule; an infinite one forbids its label at its point.

        Parameters
        ----------
        u : array_like
            ``(labels, points)``; with features, ``(labels, features)``: their weights (:class:`LogisticUnary`).
        f : array_like, optional
            ``(features, points)``.

        Raises
        ------
        ShapeError, NonFiniteError
            If they have another shape, are NaN or minus infinity, or forbid all labels of a point.
        """
        if f is not None:
            u = LogisticUnary(u, f).costs()
        unary, wanted = real_numbers(u, "unaries", np.inf), (self._labels, self._points)
        if unary.shape != wanted:
            mend = f"give {wanted}"
            if unary.shape == wanted[::-1]:
                mend = "points come first; give u.T"
            elif unary.size == self._labels * self._points and unary.shape[0] == self._labels:
                mend = f"give u.reshape({self._labels}, -1)"
            elif unary.size == self._labels * self._points and unary.shape[-1] == self._labels:
                mend = f"labels come last; give u.reshape(-1, {self._labels}).T"
            raise ShapeError(f"unaries have the shape {unary.shape}; {mend}")
        if not (none := np.isfinite(unary).any(0)).all():
            raise NonFiniteError(f"all labels of point {none.argmin()} have infinite costs; one at least must be possible")
        if np.abs(unary[np.isfinite(unary)]).max() > energy.WIDEST * np.finfo(np.float32).max:
            raise NonFiniteError("unaries: costs too large for float32; give infinity where a label is impossible")
        self._unary, self._crf = torch.from_numpy(unary.T.copy()).float(), None

    def addPairwiseEnergy(
        self,
        features: ArrayLike,
        compat: ArrayLike,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a Gaussian kernel.

        Parameters
        ----------
        features : array
            ``(features, points)``: positions in units of the kernel's widths.
        compat : float, or array (labels,) or (labels, labels)
            A number: what two different labels cost.  A matrix: what every pair costs, symmetrised.  A vector: the diagonal of such
            a matrix, so that negative numbers are gains of equal labels.
        kernel : KernelType
            Of no effect, as it is in pydensecrf's inference.
        normalization : NormalizationType
            How the kernel is normalised.

        Raises
        ------
        ShapeError, NonFiniteError
            If features or compatibility have another shape or are not finite.
        OptionError
            If there is no such normalisation, or no such kernel.
        """
        found = real_numbers(features, "features")
        if found.ndim != 2 or found.shape[1] != self._points or found.shape[0] == 0:
            mend = "points come first; give features.T" if found.shape[:1] == (self._points,) and found.ndim == 2 else "give"
            raise ShapeError(f"features have the shape {found.shape}; {mend} (features, {self._points})")
        self._add(torch.from_numpy(found.T.copy()), compat, kernel, normalization)

    def _add(self, features: Tensor, compat: ArrayLike, kernel: int, normalization: int) -> None:
        """Add a kernel over features ``(points, d)``."""
        if kernel not in list(KernelType):
            raise OptionError(f"there is no kernel {kernel}; give CONST_KERNEL, DIAG_KERNEL or FULL_KERNEL")
        if normalization not in list(NormalizationType):
            names = ", ".join(NormalizationType.__members__)
            raise OptionError(f"there is no normalization {normalization}; give one of {names}")
        weight, matrix = self._compatibility(real_numbers(compat, "compat"))
        found = Kernel(Lattice.build(features), weight, normalization == NORMALIZE_SYMMETRIC, matrix)
        if normalization in (NORMALIZE_BEFORE, NORMALIZE_AFTER):
            self._one_sided.append(OneSidedKernel(found, normalization == NORMALIZE_BEFORE))
        else:
            self._kernels.append(found)
        self._crf = None

    def _compatibility(self, costs: NDArray[np.float64]) -> tuple[float, Tensor | None]:
        """Weight and matrix of a kernel."""
        if costs.ndim == 0 and costs >= 0:
            return float(costs), None
        if costs.ndim == 0:  # a weight is not negative
            return 1.0, torch.from_numpy(costs * (1 - np.eye(self._labels)))
        if costs.shape == (self._labels,):
            return 1.0, torch.from_numpy(np.diag(costs))
        if costs.shape == (self._labels, self._labels):
            return 1.0, torch.from_numpy((costs + costs.T) / 2)
        raise ShapeError(f"compat has the shape {costs.shape}; give a number, ({self._labels},) or ({self._labels}, {self._labels})")

    def startInference(self) -> tuple[Array, Array, Array]:
        """Return the marginals that mean field starts at, ``(labels, points)``, and two empty arrays in place of buffers."""
        nothing = np.empty((0, 0), np.float32)
        return _outside((-self._symmetric.unary).softmax(1)), nothing, nothing

    def stepInference(self, Q: Array, tmp1: Any = None, tmp2: Any = None) -> None:
        """Do a step of mean field.

        Parameters
        ----------
        Q : ndarray
            ``(labels, points)``: the marginals, changed in place.
        tmp1, tmp2
            As pydensecrf has them; not used.

        Raises
        ------
        ShapeError, NonFiniteError
            If the marginals have another shape or are not finite.
        """
        Q[:] = _outside(self._updated(self._inside(Q)))

    def inference(self, n_iterations: int) -> Array:
        """Return the marginals after steps of mean field (Kraehenbuehl & Koltun 2011): ``(labels, points)``.

        Raises
        ------
        OptionError
            If the number of steps is negative.
        """
        if n_iterations < 0:
            raise OptionError(f"the number of steps is {n_iterations}; give 0 or more")
        q = (-self._symmetric.unary).softmax(1)
        for _ in range(n_iterations):
            q = self._updated(q)
        return _outside(q)

    def _updated(self, q: Tensor) -> Tensor:
        """Marginals ``(points, labels)`` after a step of mean field."""
        crf = self._symmetric
        if not self._one_sided or self._unary is None:
            return mean_field_update(crf, q)
        costs = crf.message(q) + sum(kernel.message(q) for kernel in self._one_sided)
        return (-costs - self._unary).softmax(1)

    def map(self, n_iterations: int) -> NDArray[np.int64]:
        """Return the labels of the largest marginals after steps of mean field: ``(points,)``."""
        return np.asarray(self.inference(n_iterations).argmax(0))

    def klDivergence(self, Q: ArrayLike) -> float:
        r"""The divergence of marginals ``(labels, points)`` from the field, up to the constant :math:`\log Z`.

        Raises
        ------
        ShapeError, NonFiniteError
            If they have another shape or are not finite.
        """
        q = self._inside(Q).double()
        return float(torch.special.xlogy(q, q).sum() + self.crf.energy(q).sum())

    def _inside(self, marginals: ArrayLike) -> Tensor:
        """Marginals ``(labels, points)`` as ours, ``(points, labels)``."""
        found = real_numbers(marginals, "marginals")
        if found.shape != (self._labels, self._points):
            raise ShapeError(f"marginals have the shape {found.shape}; give {(self._labels, self._points)}")
        return torch.from_numpy(found.T.copy()).float()


class DenseCRF2D(DenseCRF):
    """A dense CRF over the pixels of an image.

    Parameters
    ----------
    w, h, labels : int
        Width, height, and number of labels.

    Raises
    ------
    OptionError
        If a number is not positive.
    """

    def __init__(self, w: int, h: int, labels: int) -> None:
        if w < 1 or h < 1:
            raise OptionError(f"the image is {w} x {h}; give at least one pixel each way")
        super().__init__(w * h, labels)
        self._width, self._height = w, h

    def addPairwiseGaussian(
        self,
        sxy: ArrayLike,
        compat: ArrayLike,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a smoothness kernel.

        Parameters
        ----------
        sxy : array_like
            Widths in pixels: one number, or one for x and one for y.
        compat, kernel, normalization
            As in :meth:`addPairwiseEnergy`.

        Raises
        ------
        OptionError, ShapeError, NonFiniteError
            If a width is not positive, or the compatibility does not fit.
        """
        self._add(torch.from_numpy(self._positions(sxy)), compat, kernel, normalization)

    def addPairwiseBilateral(
        self,
        sxy: ArrayLike,
        srgb: ArrayLike,
        rgbim: ArrayLike,
        compat: ArrayLike,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a kernel of positions and colours; see :meth:`addPairwiseEnergy`.

        Parameters
        ----------
        sxy : float or pair
            Width in pixels.
        srgb : float or one for every channel
            Width in units of the colours.
        rgbim : array
            ``(height, width, channels)``: colours from 0 to 255, of any number of channels.
        compat, kernel, normalization
            As above.

        Raises
        ------
        OptionError, ShapeError, NonFiniteError
            If a width is not positive, the image has another size or colours from 0 to 1, or the compatibility does not fit.
        """
        image = real_numbers(rgbim, "the image")
        size = (self._height, self._width)
        if image.ndim != 3 or image.shape[:2] != size:
            mend = f"give {size} and channels"
            if image.ndim == 3 and image.shape[1:] == size:
                mend = "channels come first; give numpy.moveaxis(image, 0, 2)"
            elif image.shape == size:
                mend = "give image[:, :, None]"
            elif image.ndim == 3 and image.shape[:2] == size[::-1]:
                mend = "it has the width first, or DenseCRF2D(w, h, labels) was given the height first"
            raise ShapeError(f"the image has the shape {image.shape}; {mend}")
        widths = feature_widths(srgb, "srgb", image.shape[2])
        if np.asarray(rgbim).dtype.kind == "f" and image.max() <= 1 < widths.min():
            raise OptionError("the image has colours from 0 to 1, where srgb counts from 0 to 255; give 255 * image")
        colours = (image / widths).reshape(self._points, -1)
        self._add(torch.from_numpy(np.concatenate([self._positions(sxy), colours], 1)), compat, kernel, normalization)

    def _positions(self, sxy: ArrayLike) -> NDArray[np.float64]:
        """Positions of the pixels in units of the widths, x and y: ``(points, 2)``."""
        y, x = np.indices((self._height, self._width)).reshape(2, -1)
        positions: NDArray[np.float64] = np.stack([x, y], 1) / feature_widths(sxy, "sxy", 2)
        return positions


def _outside(q: Tensor) -> Array:
    """Marginals ``(points, labels)`` as pydensecrf's, ``(labels, points)``."""
    return np.ascontiguousarray(q.numpy().T)
