r"""The energy of a dense conditional random field: one object for every method, report and bound.

.. math::

   E(x) = \sum_a \phi_{a:x_a} + \sum_m \sum_{a < b} K^m_{ab} \, \mu^m(x_a, x_b) + \sum_c \Gamma_c \, [x_c \text{ not constant}],
   \qquad K^m = w_m \, D_m k_m D_m

Every pair counts once.  The normalisation :math:`D_m` is part of the kernel: changing it changes the energy for all.  (The thesis
counts every pair twice; its weights are half of these.)
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.kernels.backend import Backend, automatic
from blocklp.kernels.operations import operation
from blocklp.options import as_tensor
from blocklp.oracles.filters.gaussian import Gaussian, all_finite
from blocklp.oracles.filters.ordered import LEVELS
from blocklp.problems.densecrf.cliques import Cliques
from blocklp.problems.densecrf.kernel import Kernel

ROUNDINGS = 200
"""Roundings charged to a bound: splat, two blurs along at most 20 axes, prefix sums, slice and the combination."""
WIDEST = 1e-12
"""Largest share of a floating-point type's range that unaries may take, so that their sums stay finite."""
UNIT = 20.0
"""What a point's unaries and pairs can cost together in nats, as a rule: 6.9 for a probability of 0.001, 13 for its pairs."""


@dataclass(frozen=True, eq=False)
class DenseCRF:
    """Unaries, kernels and cliques of one or several images.

    Attributes
    ----------
    unary : Tensor
        ``(points, labels)`` floating point, finite: costs, minus log-probabilities as a rule.
    kernels : tuple of Kernel
        The pairwise term, over the same points.
    image : Tensor or None
        ``(points,)`` int64: which image a point belongs to: 0, then 1 and so on, the points of an image together; the kernels'
        filters must keep images apart.
    cliques : Cliques or None
        P^n-Potts cliques over the same points, none across images.
    deadline : Deadline
        When its filters and projections give up; :func:`solve_densecrf` sets it.

    Raises
    ------
    ShapeError, NonFiniteError, ModelError
        If unaries are not of this form or so large that their sums overflow, or kernels or cliques have other points or labels.
    """

    unary: Tensor
    kernels: tuple[Kernel, ...]
    image: Tensor | None = None
    cliques: Cliques | None = None
    deadline: Deadline = field(default_factory=Deadline)

    def __repr__(self) -> str:
        points, labels = self.unary.shape
        more = "" if self.cliques is None else f", {len(self.cliques.cost)} cliques"
        return f"DenseCRF({points} points, {labels} labels, {len(self.kernels)} kernels{more})"

    def __post_init__(self) -> None:
        if self.unary.dim() != 2 or 0 in self.unary.shape or not self.unary.is_floating_point():
            raise ShapeError(
                f"the unaries are {self.unary.dtype} {tuple(self.unary.shape)}; give floating-point costs (points, labels), "
                "labels last: u.reshape(labels, -1).T turns what pydensecrf takes into this"
            )
        if not all_finite(self.unary):
            raise NonFiniteError("the unaries hold NaN or infinite costs; clip probabilities before taking -log")
        if float(self.unary.detach().abs().max()) > WIDEST * torch.finfo(self.unary.dtype).max:
            raise NonFiniteError(f"the unaries hold costs so large that their sums overflow {self.unary.dtype}; divide all costs")
        for kernel in self.kernels:
            largest = 1.0 if kernel.compatibility is None else float(kernel.compatibility.detach().abs().max())
            if kernel.weight * largest > WIDEST * torch.finfo(self.unary.dtype).max:
                raise NonFiniteError(
                    f"a kernel has the weight {kernel.weight:g}, with which sums of pairs overflow {self.unary.dtype}; divide costs"
                )
        if any(k.filter.points != self.points for k in self.kernels):
            raise ModelError(f"a kernel is over {[k.filter.points for k in self.kernels]} points, the unaries are of {self.points}")
        if any(k.compatibility is not None and len(k.compatibility) != self.labels for k in self.kernels):
            raise ShapeError(f"a compatibility is not of shape ({self.labels}, {self.labels}), that of the {self.labels} labels")
        if self.cliques is not None and len(self.cliques.member) != self.points:
            raise ModelError(f"the cliques are over {len(self.cliques.member)} points, the unaries are of {self.points}")
        if self.cliques is not None and self.cliques.kept.shape[1] not in (1, self.labels):
            raise ShapeError(
                f"cliques agree on labels {tuple(self.cliques.kept.shape)}; give a column for each of {self.labels} labels"
            )
        if self.image is not None:
            if self.image.shape != self.unary.shape[:1] or self.image.dtype != torch.int64:
                raise ShapeError(
                    f"image is {self.image.dtype} {tuple(self.image.shape)}; {self.points} points need one int64 number each"
                )
            step = self.image.diff()
            if int(self.image[0]) != 0 or bool(((step != 0) & (step != 1)).any()):
                raise ModelError("image must hold 0 first and rise by 1 from image to image; sort the points by their image")

    @property
    def backend(self) -> Backend:
        """The backend of the energy's operations: Triton's kernels on a GPU, tensor operations and filters elsewhere."""
        name = automatic(self.unary.device)
        if name == "triton":
            importlib.import_module("blocklp.problems.densecrf.triton_steps")
        return Backend(name)

    @property
    def points(self) -> int:
        """Number of points of all images."""
        return self.unary.shape[0]

    @property
    def labels(self) -> int:
        """Number of labels."""
        return self.unary.shape[1]

    @cached_property
    def sizes(self) -> list[int]:
        """Number of points of every image."""
        return [self.points] if self.image is None else [int(n) for n in torch.bincount(self.image).tolist()]

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self.sizes)

    def per_image(self, values: Tensor) -> Tensor:
        """Sum values ``(points, ...)`` of every image in float64: ``(images,)``."""
        return torch.stack([part.double().sum() for part in torch.split(values, self.sizes)])

    def per_point(self, values: Tensor) -> Tensor:
        """Hand the values ``(images,)`` to the images' points: ``(points, 1)``."""
        return values.expand(self.points)[:, None] if self.image is None else values[self.image][:, None]

    def message(self, y: Tensor) -> Tensor:
        r"""Costs of each label against the others' distributions, :math:`\sum_m K^m y \mu^m` ``(points, labels)``.

        As published (and unlike the energy) it counts a point's own distribution too; :meth:`own` is that part.
        """
        others = y.sum(1, keepdim=True) - y  # what all Potts kernels see
        total: Tensor | None = None
        for kernel in self.kernels:
            part = kernel(others if kernel.compatibility is None else kernel.compare(y), self.deadline)
            total = part if total is None else total + part
        return torch.zeros_like(y) if total is None else total

    def own(self, y: Tensor) -> Tensor:
        """The part of :meth:`message` that comes from the point itself."""
        total = torch.zeros_like(y)
        for kernel in self.kernels:
            total += kernel.diagonal.to(y) * kernel.compare(y)
        return total

    def energy(self, x: ArrayLike | Tensor) -> Tensor:
        """Energy of a labelling, or its mean over independent draws from scores.

        The second is the multilinear extension: its minimum over the simplices is that over labellings.

        Parameters
        ----------
        x : Tensor or array_like
            Integer labels from 0 on, ``(points,)`` or in the shape of the image; or floating-point scores ``(points, labels)``.

        Returns
        -------
        Tensor
            ``(images,)`` float64.

        Raises
        ------
        ShapeError
            If there are more or fewer labels or scores than points.
        ModelError
            If a label is no integer, or none of those that there are.
        """
        given = x if isinstance(x, Tensor) else as_tensor(np.asarray(x))
        given = given.to(self.unary.device)
        if given.is_floating_point() and given.shape == self.unary.shape:
            return self.mean_energy(given.double(), own=True)
        if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            told = f"labels are {given.dtype} {tuple(given.shape)}; give integers, by .long() or .astype(int)"
            raise ModelError(f"{told}, or floating-point scores {tuple(self.unary.shape)}")
        if given.numel() != self.points:
            raise ShapeError(f"labels have shape {tuple(given.shape)}; give one for each of {self.points} points")
        labelling = given.reshape(-1).long()
        least, most = int(labelling.min()), int(labelling.max())
        if least < 0 or most >= self.labels:
            raise ModelError(f"labels are from {least} to {most}; give 0 to {self.labels - 1} only, and one to unknown points too")
        return labelling_energy(self, labelling)

    def mean_energy(self, y: Tensor, own: bool) -> Tensor:
        """The mean energy of draws from y ``(points, labels)`` float64; with points' costs against themselves unless ``own``."""
        pairs = self.message(y)
        if own:
            pairs -= self.own(y)
        total = self.per_image(y * (self.unary.double() + pairs / 2))
        return total if self.cliques is None else total + self.per_clique(self.cliques.mean(y))

    def per_clique(self, costs: Tensor) -> Tensor:
        """Sum costs ``(cliques,)`` of every image: ``(images,)``."""
        assert self.cliques is not None
        total = torch.zeros(self.images, dtype=torch.float64, device=costs.device)
        home = self.cliques.first if self.image is None else self.image[self.cliques.first]
        return total.index_add(0, torch.zeros_like(home) if self.image is None else home, costs.double())

    def subgradient(self, y: Tensor, levels: int | None = LEVELS) -> Tensor:
        r"""A subgradient g of the LP's pairwise and clique terms at y: ``(points, labels)``.

        For a metric :math:`\mu = \sum_S c_S |1_S(i) - 1_S(j)|` (Potts: the single labels, c = 1/2) it is
        :math:`\sum_S c_S 1_S \sum_b K_{ab} \, \mathrm{sign}(y_a(S) - y_b(S))`; with the exact order where ``levels`` is None.

        Raises
        ------
        ModelError
            If a compatibility has no metric below it: negative, or costs on its diagonal.
        """
        total = torch.zeros_like(y)
        for kernel in self.kernels:
            total += self.subgradient_of(kernel, y, levels)
        return total if self.cliques is None else total + self.cliques.subgradient(y)

    def subgradient_of(self, kernel: Kernel, y: Tensor, levels: int | None) -> Tensor:
        """The part of :meth:`subgradient` that one kernel has.

        Parameters
        ----------
        kernel : Kernel
            One of :attr:`kernels`.
        y : Tensor
            ``(points, labels)`` floating point.
        levels : int or None
            Levels at which the filter orders scores, as in :meth:`Kernel.ordered`; None for the exact order.

        Returns
        -------
        Tensor
            ``(points, labels)`` in the precision of y.

        Raises
        ------
        ModelError
            If its compatibility has no metric below it.
        TimeLimitError
            If the energy's deadline passes.
        """
        if kernel.compatibility is None:
            return kernel.ordered(y, levels, self.deadline) / 2
        members, lengths = (c.to(y) for c in kernel.cuts(self.labels, self.deadline))
        return (kernel.ordered(y @ members, levels, self.deadline) * lengths) @ members.T

    @property
    def level(self) -> Tensor:
        """Equal scores, ``(points, labels)`` float64, so small that those of any set of labels add up without rounding, below 1.

        Where all points are level, subgradients are 0 but for cliques.
        """
        return torch.full_like(self.unary, 0.5 ** self.labels.bit_length(), dtype=torch.float64)

    def linear(self, y: Tensor) -> Tensor:
        r"""The LP's energy ``(images,)``: :math:`\phi^\top y + \sum_S c_S \sum_{a<b} K_{ab} |y_a(S) - y_b(S)|`, and the cliques'."""
        y = y.double()
        return self.per_image(y * (self.unary.double() + self.subgradient(y, None))) + self.constant

    @cached_property
    def constant(self) -> Tensor:
        """The part that cliques add to :math:`y^T g`, ``(images,)``: see :meth:`Cliques.subgradient`."""
        if self.cliques is None:
            return torch.zeros(self.images, dtype=torch.float64, device=self.unary.device)
        return self.per_clique(self.cliques.cost)

    def lower_bound(self, direction: Tensor, precision: torch.dtype) -> Tensor:
        r"""A lower bound on the LP, and so on every labelling: :math:`\sum_a \min_i (\phi + g)_{a:i}` and the cliques' constant.

        Parameters
        ----------
        direction : Tensor
            g, ``(points, labels)``: a convex combination of answers of :meth:`subgradient`.  For the pairwise part
            :math:`g_a = \sum_b K_{ab} s_{ab}` with antisymmetric s in [-1, 1], so that it is a subgradient of a function below the
            energy's; rounding of its computation is charged.
        precision : dtype
            Precision of those answers; the combination must be formed in float64.

        Returns
        -------
        Tensor
            ``(images,)`` float64.
        """
        least = (self.unary.double() + direction.double()).amin(1)
        # An answer of the filter is a sum of products of magnitudes K: some tens of roundings of its size, in its precision.
        error = ROUNDINGS * torch.finfo(precision).eps * (self._reach + least.abs())
        # Of a clique at most its cost for every label is spread over its points, and a point adds up what its cliques say.
        roundings = ROUNDINGS + (0 if self.cliques is None else self.cliques.table.shape[1])
        constant = self.constant * (1 - roundings * torch.finfo(precision).eps * self.labels)
        return self.per_image(least - error) + constant

    @cached_property
    def _reach(self) -> Tensor:
        """How large a point's subgradient can be: ``(points,)`` float64."""
        reach = torch.zeros(self.points, dtype=torch.float64, device=self.unary.device)
        for kernel in self.kernels:
            members, lengths = kernel.cuts(self.labels, self.deadline)
            reach += kernel.sums[:, 0] * float((members * lengths).sum(1).max())
        return reach

    def best_constant(self) -> Tensor:
        """Label of the best constant labelling of each point's image: ``(points,)``."""
        totals = torch.stack([part.double().sum(0) for part in torch.split(self.unary, self.sizes)])
        return self.per_point(totals.argmin(1))[:, 0]

    @cached_property
    def reach(self) -> Tensor:
        """By how much the choice of a point's label can change what its pairs cost: ``(points,)`` float64."""
        total = torch.zeros(self.points, dtype=torch.float64, device=self.unary.device)
        for kernel in self.kernels:
            total += kernel.sums[:, 0] * kernel.spread
        return total

    @cached_property
    def unit(self) -> Tensor:
        """The scale of the costs, ``(images,)`` float64: near 1 for costs in nats and usual weights, and multiplied along with them.

        What has to be compared with costs, such as proximal weights, is in this unit, so that no method that minimises the energy
        depends on how costs are measured.
        """
        spread = (self.unary.amax(1) - self.unary.amin(1)).double() + self.reach
        total = self.per_image(spread)
        if self.cliques is not None:
            total = total + self.per_clique(self.cliques.cost)
        unit = total / (UNIT * torch.tensor(self.sizes, dtype=torch.float64, device=total.device))
        return torch.where(unit > 0, unit, 1.0)

    @property
    def barrier(self) -> Tensor:
        """More than any choice of a point's label can gain: ``(images,)`` float64."""
        parts = zip(torch.split(self.unary.double(), self.sizes), torch.split(self.reach, self.sizes), strict=True)
        most = torch.stack([part.max() - part.min() + reach.max() for part, reach in parts])
        return 2 * (most if self.cliques is None else most + self.per_clique(self.cliques.cost))

    def interval_bound(self) -> Tensor:
        """A lower bound without a filter call, ``(images,)`` float64: the least unaries, and the least that pairs can cost."""
        least = self.unary.amin(1).double()
        wide = torch.finfo(torch.float64).eps
        bound = self.per_image(least) - ROUNDINGS * wide * self.per_image(least.abs())
        sizes = torch.tensor(self.sizes, dtype=torch.float64, device=bound.device)
        for kernel in self.kernels:
            costs = torch.zeros(1) if kernel.compatibility is None else kernel.compatibility
            # Entries of a lattice may be below 0 by roundings.
            below = 0.0 if isinstance(kernel.filter, Gaussian) else ROUNDINGS * torch.finfo(kernel.filter.weights.dtype).eps
            least_pair = 1.01 * min(float(costs.min()), 0.0) - below * max(1.0, float(costs.abs().max()))
            bound = bound + kernel.mass(sizes) / 2 * least_pair
        return bound


@operation
def labelling_energy(crf: DenseCRF, labelling: Tensor) -> Tensor:
    """The energy of a labelling ``(points,)`` int64: ``(images,)`` float64."""
    own = any(kernel.costs_itself for kernel in crf.kernels)
    return crf.mean_energy(torch.nn.functional.one_hot(labelling, crf.labels).double(), own)
