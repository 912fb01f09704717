r"""P^n-Potts cliques (Kohli, Kumar & Torr 2007) over sets of points, superpixels as a rule; they may overlap.

A clique costs :math:`\Gamma_c` unless all its points have one label.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from blocklp.errors import ModelError, OptionError, ShapeError


@dataclass(frozen=True, eq=False, repr=False)
class Cliques:
    r"""Cliques of points.

    Attributes
    ----------
    member : Tensor
        ``(points,)`` int64: the clique of every point, -1 for none; or ``(points, most)``: all cliques of every point in any order,
        filled up with -1.
    cost : Tensor
        ``(cliques,)`` floating point, finite and not negative: :math:`\Gamma`.
    agree : Tensor or None
        ``(cliques, labels)`` bool: the labels on which a clique can agree; it pays with all points at any other one, too.  None for
        all labels.

    Raises
    ------
    ShapeError, OptionError, ModelError
        If members, costs or labels are not of this form, a clique has no point, or a point is twice in one.
    """

    member: Tensor
    cost: Tensor
    agree: Tensor | None = None

    def __repr__(self) -> str:
        some = "" if self.agree is None else ", some labels only"
        return f"Cliques({len(self.cost)} cliques of {len(self.points)} members, {len(self.member)} points{some})"

    def __post_init__(self) -> None:
        if self.member.dim() not in (1, 2) or self.member.dtype != torch.int64 or self.cost.dim() != 1:
            raise ShapeError(
                f"members are {self.member.dtype} {tuple(self.member.shape)} and costs {tuple(self.cost.shape)}; "
                "give int64 (points,) or (points, most) and floating point (cliques,)"
            )
        if not bool((torch.isfinite(self.cost) & (self.cost >= 0)).all()):
            raise OptionError("a clique's cost is negative or not finite; a P^n-Potts clique can only favour one label")
        count = len(self.cost)
        if bool(((self.member < -1) | (self.member >= count)).any()):
            raise ModelError(f"members must be -1 or a clique from 0 to {count - 1}")
        if bool((torch.bincount(self.member[self.member >= 0], minlength=count) == 0).any()):
            raise ModelError("a clique has no point; number the cliques without holes")
        if bool(((self.owner.diff() == 0) & (self.points.diff() == 0)).any()):
            raise ModelError("a point is twice in one clique; name every clique of a point once")
        if self.agree is not None and (self.agree.dim() != 2 or len(self.agree) != count or self.agree.dtype != torch.bool):
            raise ShapeError(f"agree is {self.agree.dtype} {tuple(self.agree.shape)}; give bool ({count}, labels)")

    @property
    def table(self) -> Tensor:
        """The cliques of every point, filled up with -1: ``(points, most)``."""
        return self.member if self.member.dim() == 2 else self.member[:, None]

    @cached_property
    def places(self) -> Tensor:
        """Where the table names cliques, clique by clique, as places of the flattened table: ``(entries,)``."""
        order = self.member.flatten().argsort(stable=True)
        return order[int((self.member < 0).sum()) :]

    @cached_property
    def points(self) -> Tensor:
        """The points of all cliques, clique by clique: ``(entries,)``."""
        return self.places // self.table.shape[1]

    @cached_property
    def owner(self) -> Tensor:
        """The clique of every entry: ``(entries,)``, ascending."""
        return self.member.flatten()[self.places]

    @cached_property
    def sizes(self) -> Tensor:
        """Number of points of every clique: ``(cliques,)``."""
        return torch.bincount(self.owner, minlength=len(self.cost))

    @cached_property
    def first(self) -> Tensor:
        """A point of every clique: ``(cliques,)``."""
        return self.points[self.sizes.cumsum(0) - self.sizes]

    @cached_property
    def kept(self) -> Tensor:
        """Whether a clique can agree on a label, ``(cliques, labels)`` float64, or ``(cliques, 1)`` where all can."""
        found = torch.ones(len(self.cost), 1, device=self.cost.device) if self.agree is None else self.agree
        return found.double()

    def reduce(self, values: Tensor, how: str) -> Tensor:
        """Reduce values ``(points, labels)`` over every clique by "min", "max", "sum" or "prod": ``(cliques, labels)``."""
        result: Tensor = torch.segment_reduce(values[self.points].contiguous(), how, lengths=self.sizes, axis=0)
        return result

    def spread(self, values: Tensor) -> Tensor:
        """Add up what the cliques say to their points, ``(entries, labels)``: ``(points, labels)``, in the order of the table."""
        # By places and not by points: sums in a fixed order repeat bit for bit on any device.
        count, most = self.table.shape
        placed = values.new_zeros(count * most, values.shape[1])
        placed[self.places] = values
        return placed.view(count, most, -1).sum(1)

    def __add__(self, other: Cliques) -> Cliques:
        """These cliques and others over the same points.

        Raises
        ------
        ModelError
            If the others are over another number of points, or some agree on some labels only.
        """
        if len(other.member) != len(self.member):
            raise ModelError(f"cliques over {len(self.member)} and {len(other.member)} points cannot be added; give the same points")
        if self.agree is not None or other.agree is not None:
            raise ModelError("cliques that agree on some labels only cannot be added; state them together")
        later = torch.where(other.table < 0, -1, other.table + len(self.cost))
        return Cliques(torch.cat([self.table, later], 1), torch.cat([self.cost, other.cost]))

    def restrict(self, fixed: Tensor, points: Tensor) -> Cliques | None:
        """Restrict the cliques to some points, where all others are fixed to labels; None if nothing is left.

        A clique whose fixed points have different labels pays whatever the others do.  If they have one, only that is left.

        Parameters
        ----------
        fixed : Tensor
            ``(points, labels)``: a labelling's ones and zeros.
        points : Tensor
            ``(count,)`` int64: those that are not fixed.

        Returns
        -------
        Cliques or None
            Over these points.
        """
        agree = (self.reduce(fixed.index_fill(0, points, 1), "min") * self.kept.to(fixed)) > 0
        free = torch.zeros_like(fixed[:, :1]).index_fill(0, points, 1)
        left = agree.any(1) & (self.reduce(free, "max")[:, 0] > 0)
        if not bool(left.any()):
            return None
        number = torch.where(left, left.cumsum(0) - 1, -1)
        member = self.table[points]
        return Cliques(torch.where(member < 0, -1, number[member]), self.cost[left], agree[left])

    def merged(self, members: Tensor) -> Cliques:
        """The cliques where labels are clusters ``(labels, clusters)`` bool: they agree on one if they can on a label of it."""
        if self.agree is None:
            return self
        return replace(self, agree=(self.agree[:, :, None] & members).any(1))

    def mean(self, y: Tensor) -> Tensor:
        r"""Mean cost of independent draws from y, :math:`\Gamma_c (1 - \sum_i \prod_a y_{a:i})` ``(cliques,)`` float64."""
        return self.cost.double() * (1 - (self.kept * self.reduce(y.double(), "prod")).sum(1))

    def message(self, q: Tensor) -> Tensor:
        r"""Costs of each label of a point against its clique's distributions: ``(points, labels)`` (Vineet, Warrell & Torr 2012).

        The clique costs nothing with the probability that all others have the label, :math:`\prod_{b \ne a} q_{b:i}`.
        """
        owner = self.owner
        # Products without one factor, by logarithms: exact zeros are raised to the smallest normal number.
        logs = q.clamp(min=torch.finfo(q.dtype).tiny).log()
        others = (self.reduce(logs, "sum")[owner] - logs[self.points]).exp()
        return self.spread(self.cost.to(q)[owner, None] * (1 - self.kept.to(q)[owner] * others))

    def relaxed(self, y: Tensor) -> Tensor:
        r"""The tightest convex function below, :math:`\Gamma_c (1 - \sum_i \min_a y_{a:i})` ``(cliques,)`` float64.

        The higher-order text's relaxation is :math:`\Gamma_c \max_i (\max_a y_{a:i} - \min_a y_{a:i})`, which is never more.
        """
        return self.cost.double() * (1 - (self.kept * self.reduce(y.double(), "min")).sum(1))

    def subgradient(self, y: Tensor) -> Tensor:
        r"""The g with :math:`\sum_c` :meth:`relaxed` :math:`= \sum_c \Gamma_c + y^\top g`, below elsewhere: ``(points, labels)``.

        The points of a clique that hold the least of a label share :math:`-\Gamma_c`.
        """
        owner = self.owner
        least = (y[self.points] == self.reduce(y, "min")[owner]).to(y)
        count = torch.segment_reduce(least, "sum", lengths=self.sizes, axis=0)
        return self.spread(-(self.cost.to(y)[:, None] * self.kept.to(y) / count)[owner] * least)
