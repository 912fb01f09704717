r"""Gaussian kernels of which rows alone, or columns alone, are normalised, as pydensecrf offers them for mean field.

With :math:`n_a = \sum_b k_{ab}` what a point hears of others is :math:`\sum_b k_{ab} q_b / n_b` where values are normalised before
the filter, and :math:`\sum_b k_{ab} q_b / n_a` where they are after it.  Neither matrix is symmetric, so that no energy has such a
kernel; updates of mean field take it all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blocklp.problems.densecrf.kernel import Kernel

TINY = 1e-20
"""What is added to sums that are divided by."""


@dataclass(frozen=True, eq=False)
class OneSidedKernel:
    """A kernel that is normalised on one side.

    Attributes
    ----------
    kernel : Kernel
        The kernel without normalisation.
    before : bool
        Whether values are normalised before the filter, or after it.
    """

    kernel: Kernel
    before: bool

    @cached_property
    def shares(self) -> Tensor:
        """One over the sums of the rows, the weight apart: ``(points, 1)`` float64."""
        ones = torch.ones(self.kernel.filter.points, 1, dtype=torch.float64, device=self.kernel.filter.device)
        result: Tensor = 1 / (self.kernel.filter.filter(ones) + TINY)
        return result

    def message(self, q: Tensor) -> Tensor:
        """Costs of each label against the others' distributions, a point's own included.

        Parameters
        ----------
        q : Tensor
            ``(points, labels)`` floating point: marginals.

        Returns
        -------
        Tensor
            ``(points, labels)``.
        """
        shares = self.shares.to(q)
        heard = self.kernel(q * shares) if self.before else self.kernel(q) * shares
        return self.kernel.compare(heard)
