"""A Gaussian kernel of the pairwise term of a dense CRF: its filter, weight, normalisation and compatibility."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError, ShapeError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.ordered import ordered_filter
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf.compatibility import Cuts, check_compatibility, metric_cuts, potts_cuts

PRODUCTS = 2**22
"""Products of points, corners and channels between two looks at the deadline: some hundredths of a second."""
FILTERING, DIAGONAL = 5e-9, 20.0
"""Seconds an entry of a lattice takes to filter one channel, and by how much the diagonal takes longer."""


@dataclass(frozen=True, eq=False)
class Kernel:
    r"""One Gaussian of the pairwise term.

    Attributes
    ----------
    filter : Lattice or Gaussian
        The kernel matrix, approximate or exact.
    weight : float
        Its weight w, not negative; a tensor of one number may be given, which :attr:`stated_weight` then is.
    normalise : bool
        Whether rows and columns are divided by the square roots of their sums (symmetric normalisation).
    compatibility : Tensor or None
        What a pair of labels costs, :math:`\mu` ``(labels, labels)``, symmetric; None is the Potts model :math:`[i \ne j]`.

    Raises
    ------
    OptionError, ShapeError, NonFiniteError
        If the weight is negative or not finite, or the compatibility is not a symmetric, finite matrix.
    """

    filter: Lattice | Gaussian
    weight: float = 1.0
    normalise: bool = True
    compatibility: Tensor | None = None
    stated_weight: Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.weight, Tensor):
            if self.weight.numel() != 1:
                raise ShapeError(f"a kernel has weights {tuple(self.weight.shape)}; give one number, or one kernel for each")
            object.__setattr__(self, "stated_weight", self.weight)
            object.__setattr__(self, "weight", float(self.weight.detach()))
        if not 0 <= self.weight < float("inf"):
            raise OptionError(f"a kernel has the weight {self.weight}; it must be finite and not negative")
        if self.compatibility is not None:
            object.__setattr__(self, "compatibility", check_compatibility(self.compatibility))

    @cached_property
    def scale(self) -> Tensor:
        r""":math:`\sqrt{w} D`, ``(points, 1)`` float64."""
        ones = torch.ones(self.filter.points, 1, dtype=torch.float64, device=self.filter.device)
        scale: Tensor = self.filter.filter(ones).rsqrt() if self.normalise else ones
        return scale * math.sqrt(self.weight)

    @cached_property
    def weighted(self) -> Lattice | Gaussian:
        """The filter with weight and normalisation in it."""
        return self.filter.scaled(self.scale)

    @cached_property
    def diagonal(self) -> Tensor:
        """The diagonal of the kernel matrix, ``(points, 1)`` float64: no part of the energy."""
        return self.weighted.diagonal[:, None]

    @cached_property
    def sums(self) -> Tensor:
        """Sums of the rows, ``(points, 1)`` float64."""
        return self(torch.ones_like(self.scale))

    def cuts(self, labels: int, deadline: Deadline | None = None) -> Cuts:
        r"""The compatibility, or a metric below it, as a sum of cuts of the label set; see :class:`Cuts`."""
        if self.compatibility is None:
            return potts_cuts(labels)
        if "_metric" not in vars(self):
            vars(self)["_metric"] = metric_cuts(self.compatibility, deadline)
        cuts: Cuts = vars(self)["_metric"]
        return cuts

    @property
    def spread(self) -> float:
        """By how much what pairs of labels cost differs at most."""
        return 1.0 if self.compatibility is None else float(self.compatibility.max() - self.compatibility.min())

    def mass(self, sizes: Tensor) -> Tensor:
        """A bound on the sum of all entries between as many points as every image has, ``(images,)``, without a filter call.

        A normalised kernel has no eigenvalue above its weight.  A lattice doubles values along each axis at most.
        """
        if self.normalise:
            return self.weight * sizes
        largest = 1.0 if isinstance(self.filter, Gaussian) else 2.0 ** (self.filter.features + 1)
        return self.weight * largest * sizes.square()

    def restrict(self, points: Tensor) -> Kernel:
        """The kernel between some points ``(count,)`` int64, ascending: a block of the matrix, normalised by whole rows."""
        result = Kernel(self.filter.restrict(points), self.weight, self.normalise, self.compatibility)
        vars(result)["scale"] = self.scale[points]
        return result

    def prepare(self, deadline: Deadline) -> None:
        """Find the normalisation and the diagonal.

        Raises
        ------
        TimeLimitError
            If that would end after the deadline.
        """
        if isinstance(self.filter, Gaussian):
            if self.normalise and "scale" not in vars(self):
                ones = torch.ones(self.filter.points, 1, dtype=torch.float64, device=self.filter.device)
                vars(self)["scale"] = self.filter.filter(ones, deadline).rsqrt() * math.sqrt(self.weight)
        elif "diagonal" not in vars(self):
            entries = self.filter.vertices.numel()
            deadline.check("normalising a kernel", entries * FILTERING)
            began = time.perf_counter()
            _ = self.scale
            seconds = max(time.perf_counter() - began, entries * FILTERING)
            deadline.check("finding a kernel's diagonal", DIAGONAL * seconds)
            _ = self.diagonal

    def __call__(self, values: Tensor, deadline: Deadline | None = None) -> Tensor:
        """Multiply values ``(points, channels)`` by the weighted kernel, diagonal included.

        Raises
        ------
        TimeLimitError
            If a deadline is given and passes.
        """
        if deadline is None or deadline.seconds == math.inf:
            return self.weighted.filter(values)
        if isinstance(self.weighted, Gaussian):
            return self.weighted.filter(values, deadline)
        width = max(1, PRODUCTS // self.weighted.vertices.numel())
        found, seconds = list[Tensor](), 0.0
        for part in torch.split(values, width, 1):
            deadline.check("filtering", seconds)  # as long as the part before
            began = time.perf_counter()
            found.append(self.weighted.filter(part))
            seconds = time.perf_counter() - began
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def table(self, labels: int) -> Tensor:
        """Costs of pairs of labels, ``(labels, labels)`` float64, where the filter is."""
        if "_table" not in vars(self):
            costs = 1 - torch.eye(labels, dtype=torch.float64) if self.compatibility is None else self.compatibility
            vars(self)["_table"] = costs.to(self.filter.device).contiguous()
        table: Tensor = vars(self)["_table"]
        return table

    @cached_property
    def costs_itself(self) -> bool:
        """Whether some label costs something against itself."""
        return self.compatibility is not None and bool(self.compatibility.diagonal().any())

    def compare(self, y: Tensor) -> Tensor:
        r""":math:`y \mu`: what each label costs against a point's distribution, ``(points, labels)``."""
        if self.compatibility is None:
            return y.sum(1, keepdim=True) - y
        return y @ self.compatibility.to(y)

    def ordered(self, scores: Tensor, levels: int | None, deadline: Deadline | None = None) -> Tensor:
        r""":math:`\sum_b K_{ab} \, \mathrm{sign}(t_a - t_b)` for scores ``(points, cuts)``; see :func:`ordered_filter`.

        Parameters
        ----------
        scores : Tensor
            ``(points, cuts)`` floating point.
        levels : int or None
            Levels of a cut, as in :func:`ordered_filter`; a Gaussian takes none.
        deadline : Deadline, optional
            When to give up.

        Raises
        ------
        TimeLimitError
            If a deadline is given and passes.
        """
        if isinstance(self.weighted, Gaussian):
            return self.weighted.ordered(scores, deadline)
        return ordered_filter(self.weighted, scores, levels=levels, deadline=deadline)
