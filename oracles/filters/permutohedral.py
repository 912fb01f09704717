r"""Gaussian filtering on the permutohedral lattice (Adams, Baek & Davis, 2010).

.. math:: (K v)_a = \sum_b k(f_a, f_b) \, v_b, \qquad k(f, g) \approx e^{-|f - g|^2 / 2}

Points are embedded in the hyperplane of the lattice :math:`A_d^*`; every point splats its values to the d + 1
vertices of its simplex, the vertices are blurred along the d + 1 axes, and the points slice their values
back.  Only vertices that some point touches exist; they are found by sorting packed keys, on a CPU with numba
by hashing them, so that building and filtering are deterministic on every device.

The blurs along different axes do not commute on such a truncated lattice, and one order gives a kernel that
is not symmetric (by 2 % to 10 % in practice).  The kernel here is the mean of both orders, :math:`S^\top (B +
B^\top) S / 2`: symmetric by construction, and positive semi-definite up to the truncation.  The published
filter, one order only, is there for comparison with others' results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.oracles.filters import lattice_geometry, lattice_operations
from blocklp.oracles.filters.gaussian import check_features, check_shapes
from blocklp.oracles.filters.lattice_operations import BOTH, FORWARD


@dataclass(frozen=True)
class Lattice:
    """The lattice of some points, built once and used for any number of values.

    Attributes
    ----------
    weights : Tensor
        ``(points, d + 1)`` floating point: barycentric coordinates of the points, a differentiable function
        of the features.
    vertices : Tensor
        ``(points, d + 1)`` int64: the vertices that they belong to.
    neighbours : Tensor
        ``(d + 1, 2, size)`` int64: the next vertex on each side along every axis, ``size`` where it does not
        exist.
    sizes : tuple of int
        Numbers of points of the images, which come one after another; empty for one image.
    symmetric : bool
        Whether the blur is the mean of both orders of the axes, or the first order only.
    """

    weights: Tensor
    vertices: Tensor
    neighbours: Tensor
    sizes: tuple[int, ...] = ()
    symmetric: bool = True

    @property
    def points(self) -> int:
        """Number of points."""
        return self.weights.shape[0]

    @property
    def features(self) -> int:
        """Number of features d."""
        return self.weights.shape[1] - 1

    @property
    def size(self) -> int:
        """Number of vertices."""
        return self.neighbours.shape[2]

    @cached_property
    def entries(self) -> lattice_operations.Entries:
        """As :func:`~blocklp.oracles.filters.lattice_operations.entries_of`."""
        return lattice_operations.entries_of(self.vertices, self.size)

    @cached_property
    def _narrow(self) -> Tensor:
        """The weights in single precision."""
        return self.weights.float()

    def weights_as(self, values: Tensor) -> Tensor:
        """The weights in the precision of some values."""
        kept = values.dtype == torch.float32 and not self.weights.requires_grad
        return self._narrow if kept else self.weights.to(values)

    @property
    def scale(self) -> float:
        """Factor that makes values those of the Gaussian (Kraehenbuehl and Koltun's constant)."""
        return 1 / (1 + 2.0**-self.features)

    @property
    def device(self) -> torch.device:
        """The device of the lattice."""
        return self.vertices.device

    @cached_property
    def images(self) -> list[Lattice]:
        """The lattices of the single images."""
        if len(self.sizes) < 2:
            return [self]
        points = torch.arange(self.points, device=self.device)
        return [self.restrict(part) for part in torch.split(points, list(self.sizes))]

    def restrict(self, points: Tensor) -> Lattice:
        """The lattice of some points ``(count,)`` int64, ascending, with the kernel between them unchanged.

        It has the vertices on the paths of the blur from one of the points to another.
        """
        vertices = self.vertices[points]
        # The last entry stands for missing neighbours.
        here = torch.zeros(self.size + 1, dtype=torch.bool, device=self.device)
        here[vertices] = True
        # Vertices that a blur along the first k axes reaches, and those from which the other axes lead back.
        ahead, back = [here], [here]
        for axis in range(len(self.neighbours)):
            ahead.append(_grow(ahead[-1], self.neighbours[axis]))
            back.append(_grow(back[-1], self.neighbours[-1 - axis]))
        passed = torch.stack([a & b for a, b in zip(ahead, reversed(back), strict=True)]).any(0)
        kept = passed[:-1].nonzero()[:, 0]
        number = torch.full((self.size + 1,), len(kept), device=self.device)
        number[kept] = torch.arange(len(kept), device=self.device)
        sizes = ()
        if self.sizes:
            image = torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes)).to(self.device)
            sizes = tuple(n for n in torch.bincount(image[points]).tolist() if n)
        neighbours = number[self.neighbours[:, :, kept]]
        return Lattice(self.weights[points], number[vertices], neighbours, sizes, self.symmetric)

    @cached_property
    def seen(self) -> float:
        r"""Effective number of neighbours of a point, from one random probe.

        That is the mean of :math:`(\sum_b K_{ab})^2 / \sum_b K_{ab}^2`.
        """
        draw = torch.rand(self.points, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        sign = (draw - 0.5).sign().to(self.device)
        sums, noise = self.filter(torch.stack([torch.ones_like(sign), sign], 1)).detach().square().sum(0)
        return float(sums / noise) if noise > 0 else float(self.points)

    @cached_property
    def stencil(self) -> tuple[Tensor, Tensor, Tensor]:
        """The blur as a sparse matrix; see :func:`blocklp.oracles.filters.lattice_geometry.stencil`."""
        found = lattice_operations.kernels(self.neighbours) or lattice_geometry
        rows: tuple[Tensor, Tensor, Tensor] = found.stencil(self.neighbours)
        return rows

    @cached_property
    def diagonal(self) -> Tensor:
        r"""Diagonal of the kernel matrix: ``(points,)`` float64.

        Of all blurs, only two paths lead from a vertex of a simplex to another: along the axes J between
        them, or back along all others, since the steps along all d + 1 axes add up to nothing.  A path is
        lost where a vertex on it does not exist.

        Raises
        ------
        ModelError
            If the lattice is not symmetric.
        """
        if not self.symmetric:
            raise ModelError("the diagonal needs a symmetric kernel; build the lattice with symmetric=True")
        d, size, vertices = self.features, self.size, self.vertices
        weights = self.weights.detach().double()
        if found := lattice_operations.kernels(weights):
            entries: Tensor = found.diagonal(weights, vertices, self.neighbours, self.scale)
            return entries
        # Missing vertices have missing neighbours.
        steps = torch.cat([self.neighbours, self.neighbours.new_full((d + 1, 2, 1), size)], 2)
        # The axis between consecutive corners; from corner to corner a point goes down it.
        down = [steps[:, 1][:, vertices[:, k]] == vertices[:, k + 1] for k in range(d)]
        axis = torch.stack([there.long().argmax(0) for there in down])
        total = torch.zeros(self.points, dtype=torch.float64, device=self.device)
        for first in range(d + 1):
            for last in range(d + 1):
                low, high = min(first, last), max(first, last)
                between = torch.zeros(d + 1, self.points, dtype=torch.bool, device=self.device)
                between.scatter_(0, axis[low:high], True)
                forward = 1 if first < last else 0
                ways = [(forward, between), (1 - forward, ~between)]
                if first == last:
                    ways.append((forward, ~between))
                for side, walked in ways:
                    at = vertices[:, first]
                    for along in range(d + 1):
                        at = torch.where(walked[along], steps[along, side][at], at)
                    share = 0.5 ** walked.sum(0) * (at == vertices[:, last])
                    total += weights[:, first] * weights[:, last] * share
        return total * self.scale

    @classmethod
    def build(cls, features: Tensor, image: Tensor | None = None, symmetric: bool = True) -> Lattice:
        """Embed points and find the vertices that they touch.

        Parameters
        ----------
        features : Tensor
            ``(points, d)`` floating point, finite: positions in units of the kernel's standard deviations.
        image : Tensor, optional
            ``(points,)`` int64, from 0, never falling: the kernel is zero between different images.
        symmetric : bool
            Whether to blur by the mean of both orders of the axes.  The first order only is the filter as
            published (Kraehenbuehl & Koltun 2011) in half the time, but no energy's: the ordered filter and
            the diagonal need the symmetric one.

        Returns
        -------
        Lattice
            The vertices, and the weights of the points on them.

        Raises
        ------
        ShapeError, NonFiniteError
            If features do not have this shape or hold NaN or infinities.
        ModelError
            If the features or their range are too large for the packed keys, or the images are not in order.
        """
        check_shapes(features, image)
        if image is not None and (bool((image.diff() < 0).any()) or int(image[0]) < 0):
            raise ModelError("image must hold numbers from 0 that never fall; sort the points by their image")
        sizes: tuple[int, ...] = ()
        if image is not None:
            sizes = tuple(torch.unique_consecutive(image, return_counts=True)[1].tolist())
        build = found.build if (found := lattice_operations.kernels(features)) else _by_tensors
        weights, vertices, neighbours = build(features, image)
        return cls(weights, vertices, neighbours, sizes, symmetric)

    def splat(self, values: Tensor) -> Tensor:
        """Sum values ``(points, channels)`` at the vertices: ``(size, channels)``.

        Raises
        ------
        ShapeError
            If values have another shape; :meth:`slice`, :meth:`blur` and :meth:`filter` raise it too.
        """
        _check_rows(values, self.points, "points")
        return lattice_operations.splat(
            values, self.weights_as(values), self.vertices, self.size, self.entries
        )

    def slice(self, values: Tensor) -> Tensor:
        """Interpolate values of points ``(points, channels)`` from those of vertices ``(size, channels)``."""
        _check_rows(values, self.size, "vertices")
        return lattice_operations.slice_(values, self.weights_as(values), self.vertices, self.entries)

    def blur(self, values: Tensor) -> Tensor:
        """Blur values ``(size, channels)`` along all axes."""
        _check_rows(values, self.size, "vertices")
        return lattice_operations.blur(values, self.neighbours, BOTH if self.symmetric else FORWARD)

    def filter(self, values: Tensor) -> Tensor:
        """Apply the kernel to values ``(points, channels)``."""
        return self.slice(self.blur(self.splat(values)) * self.scale)

    def scaled(self, factors: Tensor) -> Lattice:
        """The kernel with its rows and columns multiplied by factors ``(points, 1)``."""
        result = replace(self, weights=self.weights * factors.to(self.weights))
        # What does not depend on the weights is not found again.
        vars(result).update({name: vars(self)[name] for name in ("entries", "stencil") if name in vars(self)})
        return result


def _by_tensors(features: Tensor, image: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, vertices, in the order of their keys, and neighbours, by tensor operations."""
    check_features(features, image)
    points, d = features.shape
    steps, start, offsets = lattice_geometry.vertex_keys(features.detach(), image)
    weights, coordinates = lattice_geometry.embed(features)
    along = (coordinates[..., :d] - coordinates[..., d:]) // (d + 1)
    keys = ((along * steps[:d]).sum(-1) + start + offsets[:, None]).flatten()
    unique, vertices = torch.unique(keys, return_inverse=True)
    return weights, vertices.view(points, d + 1), lattice_geometry.neighbours_by_keys(unique, steps)


def _grow(marked: Tensor, neighbours: Tensor) -> Tensor:
    """The marked vertices and their neighbours along one axis: ``(size + 1,)``."""
    grown = marked.clone()
    grown[:-1] |= marked[neighbours[0]] | marked[neighbours[1]]
    return grown


def _check_rows(values: Tensor, count: int, what: str) -> None:
    if values.dim() != 2 or values.shape[0] != count or not values.is_floating_point():
        raise ShapeError(
            f"values are {values.dtype} {tuple(values.shape)}; give floating-point numbers "
            f"({count}, channels), a row for each of the {what}"
        )
