"""Blocks in which at most one, or exactly one, variable is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.block_data import as_block_data
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.finite import soft, struck_out
from blocklp.blocks.ragged import Ragged, of_blocks
from blocklp.errors import ModelError
from blocklp.rounding import roundoff


class Choice(BlockType):
    """The common part of :class:`Simplex` and :class:`AtMostOne`: a size, a mass, and masked choices.

    Parameters
    ----------
    size, mass
        As in :class:`Simplex`.
    """

    by_rows = True
    block_data = ("excluded", "mass")
    #: ``(batch or 1, blocks, choices)`` bool, or None: mask of the choices that violate bounds.
    excluded: Tensor | None = None
    #: ``(batch or 1, blocks or 1)``, or None where it is 1.
    mass: Tensor | None

    def __init__(self, size: int, mass: object = 1.0) -> None:
        self.dim: int = positive(size, f"{self.name} size")
        masses = as_block_data(mass, 0, f"{self.name} mass", gradients=True)
        if bool((masses <= 0).any()):
            i, b = (masses <= 0).nonzero()[0].tolist()
            mass_of = f"the mass of block {b} of instance {i}"
            raise ModelError(f"{self.name}: {mass_of} is {float(masses[i, b]):g}; it must be positive")
        self.mass = None if bool((masses == 1).all()) and not masses.requires_grad else masses

    @classmethod
    def ragged(cls, sizes: object, mass: object = 1.0) -> Ragged:
        """Blocks of different sizes, which lie one after the other in the scope; see :class:`blocklp.Ragged`.

        Parameters
        ----------
        sizes : array_like
            ``(blocks,)`` integers, at least 1.
        mass : array_like
            A number, ``(blocks,)`` or ``(batch, blocks)``, positive, finite.
        """
        masses = as_block_data(mass, 0, f"{cls.__name__} mass", gradients=True)

        def of_one_size(blocks: Tensor, places: Tensor) -> Choice:
            return cls(places.shape[1], of_blocks(masses, blocks))

        return Ragged.of(sizes, cls.__name__, of_one_size)

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of the product with the mass; zero where the mass is 1: the value is a cost or 0."""
        if self.mass is None:
            return torch.zeros_like(cost[..., 0])
        return roundoff(3, cost.abs().amax(-1) * self.mass)

    def overlap(self, shared: Tensor) -> int:
        """At most two, since two unit vectors differ in two coordinates."""
        return max(1, min(2, int(shared.sum())))

    @classmethod
    def alike(cls, kinds: Sequence[Self]) -> list[Self]:
        """Make types stackable: where some have masses, all get them."""
        if all(kind.mass is None for kind in kinds):
            return list(kinds)
        one = torch.ones(1, 1, dtype=torch.float64)
        return [kind if kind.mass is not None else kind.with_data(mass=one) for kind in kinds]

    def __repr__(self) -> str:
        if self.mass is None:
            return f"{self.name}(size={self.dim})"
        mass = f"{float(self.mass[0, 0]):g}" if self.mass.numel() == 1 else f"{tuple(self.mass.shape)}"
        return f"{self.name}(size={self.dim}, mass={mass})"


class Simplex(Choice):
    r"""One-hot vectors, or a mass to share: :math:`\{x \ge 0 : \sum_i x_i = mass\}`.

    Minimum: :math:`mass \cdot \min_i c_i`, the first one on ties.  Fixings to 0 or to the mass are kept as a
    mask of choices.  A block all of whose choices are masked gets a value above any real one, which proves
    its instance infeasible.

    Parameters
    ----------
    size : int
        Number of variables of a block, at least 1.
    mass : array_like
        A number, ``(blocks,)`` or ``(batch, blocks)``, positive, finite.

    Raises
    ------
    ModelError
        If the size is not a positive integer, or a mass not positive.
    ShapeError
        If the masses have another shape.
    """

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Give all to the cheapest variable."""
        value, best = mask_costs(cost, self.excluded).min(-1, keepdim=True)
        point = torch.zeros_like(cost).scatter_(-1, best, 1.0)
        return weighed(point, self.mass), times_mass(value[..., 0], self.mass)

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        """Project ``centre - step * cost`` onto the simplex (Held, Wolfe and Crowder 1974).

        Parameters
        ----------
        cost, centre, step, shared
            As in :meth:`blocklp.blocks.HasProx.prox`.

        Returns
        -------
        Tensor or None
            None unless all coordinates are coupled.
        """
        if not bool(shared.all()):
            return None
        point = mask_costs(step * cost - centre, self.excluded).neg_()
        largest, down = threshold(point, self.mass)
        return (point - largest - down).clamp_(min=0)

    @staticmethod
    def prox_block(cost: Any, centre: Any, step: float, point: Any, excluded: Any, mass: Any) -> None:
        """Project one point by raising a threshold until what is above it has the mass (Michelot 1986).

        Parameters
        ----------
        cost, centre, step, point
            As in :meth:`blocklp.blocks.HasProxBlock.prox_block`.
        excluded : array or None
            ``(size,)`` bool: masked choices.
        mass : float or None
            None for 1.
        """
        total, level, last = 1.0 if mass is None else mass, -np.inf, np.inf
        for i in range(len(point)):
            masked = excluded is not None and excluded[i]
            point[i] = -np.inf if masked else centre[i] - step * cost[i]
        while level != last:
            above, count, last = 0.0, 0, level
            for i in range(len(point)):
                if point[i] > level:
                    above, count = above + point[i], count + 1
            if count > 0:
                level = max(level, (above - total) / count)
        for i in range(len(point)):
            point[i] = max(point[i] - level, 0.0) if level > -np.inf else total / len(point)

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        """The cost of each choice less that of the cheapest other one; None where the mass is not 1."""
        if self.mass is not None:
            return None
        return against_others(cost if self.excluded is None else cost.masked_fill(self.excluded, torch.inf))

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all choices."""
        weights, value, excess = soft(mask_costs(weighed(cost, self.mass), self.excluded), temperature)
        return weighed(weights, self.mass), value, excess

    def vertex_table(self) -> Tensor | None:
        """The multiples of the unit vectors, where none is masked and all blocks have one mass."""
        return table_of_all(torch.eye(self.dim, dtype=torch.float64), self.excluded, self.mass)

    def constraints(self) -> Constraints:
        """The sum and the signs."""
        return sum_rows(self.dim, self.mass, exact=True)

    def restrict(self, lower: Tensor, upper: Tensor) -> Simplex | None:
        """Mask choices by fixings to 0 or to the mass; None for bounds that are no fixings."""
        lower, upper = shares(lower, self.mass), shares(upper, self.mass)
        if not fixings_only(lower, upper):
            return None
        return self.with_data(excluded=merge_masks(self.excluded, masked_choices(lower, upper)[0]))


class AtMostOne(Choice):
    r"""At most one of the variables, as in a clique, or a mass: :math:`\{x \ge 0 : \sum_i x_i \le mass\}`.

    Minimum: :math:`mass \cdot \min(0, \min_i c_i)`; no variable is chosen on a tie with 0, else the first
    one. Fixings as in :class:`Simplex`.

    Parameters
    ----------
    size, mass
        As in :class:`Simplex`, and so are errors.
    """

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the cheapest variable, if it is cheaper than none."""
        allowed = mask_costs(torch.nn.functional.pad(cost, (1, 0)), self.excluded)
        value, best = allowed.min(-1, keepdim=True)
        point = torch.zeros_like(allowed).scatter_(-1, best, 1.0)[..., 1:]
        return weighed(point, self.mass), times_mass(value[..., 0], self.mass)

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        """Clip ``centre - step * cost`` at zero, or project it onto the simplex if the sum exceeds the mass.

        Parameters
        ----------
        cost, centre, step, shared
            As in :meth:`Simplex.prox`.
        """
        if not bool(shared.all()):
            return None
        mask = None if self.excluded is None else self.excluded[..., 1:]
        point = mask_costs(step * cost - centre, mask).neg_()
        largest, down = threshold(point, self.mass)
        tight = largest + down > 0
        if self.excluded is not None:
            tight = tight | self.excluded[..., :1]
        return torch.where(tight, point - largest - down, point).clamp_(min=0)

    @staticmethod
    def prox_block(cost: Any, centre: Any, step: float, point: Any, excluded: Any, mass: Any) -> None:
        """Project one point as in :meth:`Simplex.prox_block`, from a threshold of zero on.

        Parameters
        ----------
        cost, centre, point, step, mass
            As in :meth:`Simplex.prox_block`.
        excluded : array or None
            ``(size + 1,)`` bool: whether none may be chosen, and masked choices.
        """
        total, level, last = 1.0 if mass is None else mass, 0.0, np.inf
        if excluded is not None and excluded[0]:  # one must be chosen
            level = -np.inf
        for i in range(len(point)):
            masked = excluded is not None and excluded[i + 1]
            point[i] = -np.inf if masked else centre[i] - step * cost[i]
        while level != last:
            above, count, last = 0.0, 0, level
            for i in range(len(point)):
                if point[i] > level:
                    above, count = above + point[i], count + 1
            if count > 0:
                level = max(level, (above - total) / count)
        for i in range(len(point)):
            point[i] = max(point[i] - level, 0.0) if level > -np.inf else total / len(point)

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        """The cost of each choice less that of the cheapest alternative, which may be none.

        No answer, None, where the mass is not 1.
        """
        if self.mass is not None:
            return None
        allowed = torch.nn.functional.pad(cost, (1, 0))
        if self.excluded is not None:
            allowed = allowed.masked_fill(self.excluded, torch.inf)
        return against_others(allowed)[..., 1:]

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all choices and of none."""
        allowed = mask_costs(torch.nn.functional.pad(weighed(cost, self.mass), (1, 0)), self.excluded)
        weights, value, excess = soft(allowed, temperature)
        return weighed(weights[..., 1:], self.mass), value, excess

    def vertex_table(self) -> Tensor | None:
        """Zero and the multiples of the unit vectors, where none is masked and all blocks have one mass."""
        return table_of_all(torch.eye(self.dim + 1, dtype=torch.float64)[:, 1:], self.excluded, self.mass)

    def constraints(self) -> Constraints:
        """The sum and the signs."""
        return sum_rows(self.dim, self.mass, exact=False)

    def restrict(self, lower: Tensor, upper: Tensor) -> AtMostOne | None:
        """Mask choices by fixings to 0 or to the mass; None for bounds that are no fixings."""
        lower, upper = shares(lower, self.mass), shares(upper, self.mass)
        if not fixings_only(lower, upper):
            return None
        one, none = masked_choices(lower, upper)
        return self.with_data(excluded=merge_masks(self.excluded, torch.cat([none, one], -1)))


def threshold(point: Tensor, mass: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Threshold of the projection onto a simplex, in two parts: :math:`\sum_i \max(x_i - s - t, 0) = mass`.

    By sorting (Held, Wolfe and Crowder 1974).  Points are ``(..., size)``, masses ``(...)`` or None for 1; s,
    which is the largest entry, and t are ``(..., 1)``.
    """
    # Relative to the largest: far from the simplex the mass would be rounded away.
    largest = point.amax(-1, keepdim=True)
    falling = (point - largest).sort(dim=-1, descending=True).values
    excess = falling.cumsum(-1) - (1 if mass is None else mass[..., None])
    count = torch.arange(1, point.shape[-1] + 1, device=point.device, dtype=point.dtype)
    used = (falling * count > excess).sum(-1, keepdim=True).clamp_(min=1)
    return largest, excess.gather(-1, used - 1) / used


def against_others(values: Tensor) -> Tensor:
    """Each entry minus the least of the other ones in its row, which is infinite if there is none."""
    value, best = values.min(-1, keepdim=True)
    first = torch.zeros_like(values, dtype=torch.bool).scatter_(-1, best, True)
    second = values.masked_fill(first, torch.inf).amin(-1, keepdim=True)
    return values - torch.where(first, second, value)


def positive(value: object, what: str) -> int:
    """Return a positive integer or refuse it by name."""
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{what} is {value!r}; it must be a positive integer")
    return value


def mask_costs(values: Tensor, excluded: Tensor | None) -> Tensor:
    """Costs ``(..., choices)``, of masked choices a value above any real one."""
    return values if excluded is None else values.masked_fill(excluded, struck_out(values.dtype))


def merge_masks(one: Tensor | None, other: Tensor) -> Tensor:
    """The union of two masks, of which the first may be None for an empty one."""
    return other if one is None else other | one


def fixings_only(lower: Tensor, upper: Tensor) -> bool:
    """Whether no bound is strictly between 0 and 1, so that the box leaves a face of the 0/1 polytope."""
    return not bool((((lower > 0) & (lower < 1)) | ((upper > 0) & (upper < 1))).any())


def masked_choices(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the unit vectors ``(..., size)`` and of the zero vector ``(..., 1)`` outside a box."""
    no_zero, no_one = (lower > 0) | (upper < 0), (lower > 1) | (upper < 1)
    refusals = no_zero.sum(-1, keepdim=True)
    return no_one | (refusals - no_zero.long() > 0), refusals > 0


def sum_rows(size: int, mass: Tensor | None, *, exact: bool) -> Constraints:
    """The constraints ``sum x == mass`` or ``sum x <= mass``, and ``x >= 0``.

    Parameters
    ----------
    size : int
        Number of variables of a block.
    mass : Tensor or None
        ``(batch or 1, blocks or 1)``; None for 1.
    exact : bool
        Whether the sum is equal to the mass.

    Returns
    -------
    Constraints
        One row and the lower bounds zero.
    """
    most = torch.ones(1, 1, 1, dtype=torch.float64) if mass is None else mass[..., None]
    below = most.new_zeros(1, 1, size)
    least = most if exact else torch.full_like(most, -torch.inf)
    return Constraints(most.new_ones(1, 1, 1, size), least, most, below, torch.full_like(below, torch.inf))


def weighed(values: Tensor, mass: Tensor | None) -> Tensor:
    """Values ``(batch, blocks, size)`` of a share of 1 for a share of the mass."""
    return values if mass is None else values * mass[..., None]


def times_mass(value: Tensor, mass: Tensor | None) -> Tensor:
    """Values ``(batch, blocks)`` of a share of 1 for all of the mass; those above any real one stay."""
    return value if mass is None else torch.where(value < struck_out(value.dtype), value * mass, value)


def table_of_all(table: Tensor, excluded: Tensor | None, mass: Tensor | None) -> Tensor | None:
    """The vertex table of all blocks, if they have one in common.

    Parameters
    ----------
    table : Tensor
        ``(choices, size)`` float64: the vertices for the mass 1.
    excluded : Tensor or None
        ``(batch or 1, blocks, choices)`` bool: masked choices.
    mass : Tensor or None
        ``(batch or 1, blocks or 1)``; None for 1.

    Returns
    -------
    Tensor or None
        ``(choices, size)`` float64; None where choices are masked or masses may differ.
    """
    if excluded is not None or (mass is not None and mass.numel() > 1):
        return None
    return table if mass is None else table * mass[0, 0].double()


def shares(bounds: Tensor, mass: Tensor | None) -> Tensor:
    """Bounds of variables as parts of the mass."""
    return bounds if mass is None else bounds / mass[..., None]
