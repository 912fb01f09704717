r"""P^n-Potts cliques (Kohli, Kumar & Torr 2007) over disjoint sets of points, superpixels as a rule.

A clique costs :math:`\Gamma_c` unless all its points have one label.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blocklp.errors import ModelError, OptionError, ShapeError


@dataclass(frozen=True, eq=False)
class Cliques:
    r"""Disjoint cliques.

    Attributes
    ----------
    member : Tensor
        ``(points,)`` int64: the clique of every point, -1 for none.
    cost : Tensor
        ``(cliques,)`` floating point, finite and not negative: :math:`\Gamma`.

    Raises
    ------
    ShapeError, OptionError, ModelError
        If members or costs are not of this form, or a clique has no point.
    """

    member: Tensor
    cost: Tensor

    def __post_init__(self) -> None:
        if self.member.dim() != 1 or self.member.dtype != torch.int64 or self.cost.dim() != 1:
            raise ShapeError(
                f"members are {self.member.dtype} {tuple(self.member.shape)} and costs {tuple(self.cost.shape)}; "
                "give int64 (points,) and floating point (cliques,)"
            )
        if not bool((torch.isfinite(self.cost) & (self.cost >= 0)).all()):
            raise OptionError("a clique's cost is negative or not finite; a P^n-Potts clique can only favour one label")
        count = len(self.cost)
        if bool(((self.member < -1) | (self.member >= count)).any()):
            raise ModelError(f"members must be -1 or a clique from 0 to {count - 1}")
        if bool((torch.bincount(self.member[self.member >= 0], minlength=count) == 0).any()):
            raise ModelError("a clique has no point; number the cliques without holes")

    @cached_property
    def points(self) -> Tensor:
        """The points of all cliques, clique by clique: ``(entries,)``."""
        order = self.member.argsort(stable=True)
        return order[int((self.member < 0).sum()) :]

    @cached_property
    def sizes(self) -> Tensor:
        """Number of points of every clique: ``(cliques,)``."""
        return torch.bincount(self.member[self.points], minlength=len(self.cost))

    @cached_property
    def first(self) -> Tensor:
        """A point of every clique: ``(cliques,)``."""
        return self.points[self.sizes.cumsum(0) - self.sizes]

    def reduce(self, values: Tensor, how: str) -> Tensor:
        """Reduce values ``(points, labels)`` over every clique by "min", "max", "sum" or "prod": ``(cliques, labels)``."""
        result: Tensor = torch.segment_reduce(values[self.points].contiguous(), how, lengths=self.sizes, axis=0)
        return result

    def mean(self, y: Tensor) -> Tensor:
        r"""Mean cost of independent draws from y, :math:`\Gamma_c (1 - \sum_i \prod_a y_{a:i})` ``(cliques,)`` float64."""
        return self.cost.double() * (1 - self.reduce(y.double(), "prod").sum(1))

    def message(self, q: Tensor) -> Tensor:
        r"""Costs of each label of a point against its clique's distributions: ``(points, labels)`` (Vineet, Warrell & Torr 2012).

        The clique costs nothing with the probability that all others have the label, :math:`\prod_{b \ne a} q_{b:i}`.
        """
        result = torch.zeros_like(q)
        owner = self.member[self.points]
        # Products without one factor, by logarithms: exact zeros are raised to the smallest normal number.
        logs = q.clamp(min=torch.finfo(q.dtype).tiny).log()
        others = (self.reduce(logs, "sum")[owner] - logs[self.points]).exp()
        result[self.points] = self.cost.to(q)[owner, None] * (1 - others)
        return result

    def relaxed(self, y: Tensor) -> Tensor:
        r"""The tightest convex function below, :math:`\Gamma_c (1 - \sum_i \min_a y_{a:i})` ``(cliques,)`` float64.

        The higher-order text's relaxation is :math:`\Gamma_c \max_i (\max_a y_{a:i} - \min_a y_{a:i})`, which is never more.
        """
        return self.cost.double() * (1 - self.reduce(y.double(), "min").sum(1))

    def subgradient(self, y: Tensor) -> Tensor:
        r"""The g with :math:`\sum_c` :meth:`relaxed` :math:`= \sum_c \Gamma_c + y^\top g`, below elsewhere: ``(points, labels)``.

        The points of a clique that hold the least of a label share :math:`-\Gamma_c`.
        """
        g = torch.zeros_like(y)
        owner = self.member[self.points]
        least = (y[self.points] == self.reduce(y, "min")[owner]).to(y)
        count = torch.segment_reduce(least, "sum", lengths=self.sizes, axis=0)
        g[self.points] = -(self.cost.to(y)[:, None] / count)[owner] * least
        return g
