"""Blocks in which at most one, or exactly one, variable is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from blocklp.block import BlockType, Constraints, as_block_data
from blocklp.bounds import roundoff
from blocklp.errors import ModelError
from blocklp.finite import soft, struck_out
from blocklp.ragged import Ragged, of_blocks


class Choice(BlockType):
    """What :class:`Simplex` and :class:`AtMostOne` have in common: a size, a mass, and choices that are ruled out.

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

    by_rows = True
    block_data = ("excluded", "mass")
    #: ``(batch or 1, blocks, choices)`` bool, or None: choices that the bounds of the variables rule out.
    excluded: Tensor | None = None
    #: ``(batch or 1, blocks or 1)``, or None where it is 1.
    mass: Tensor | None

    def __init__(self, size: int, mass: object = 1.0) -> None:
        self.dim: int = positive(size, f"{self.name} size")
        found = as_block_data(mass, 0, f"{self.name} mass")
        if bool((found <= 0).any()):
            i, b = (found <= 0).nonzero()[0].tolist()
            raise ModelError(f"{self.name}: the mass of block {b} of instance {i} is {float(found[i, b]):g}; it must be positive")
        self.mass = None if bool((found == 1).all()) else found

    @classmethod
    def ragged(cls, sizes: object, mass: object = 1.0) -> Ragged:
        """Blocks of different sizes, which lie one after the other in the scope; see :class:`blocklp.Ragged`.

        Parameters
        ----------
        sizes : array_like
            ``(blocks,)`` integers, at least 1.
        mass : array_like
            As for blocks of one size.
        """
        own = as_block_data(mass, 0, f"{cls.__name__} mass")
        return Ragged.of(sizes, cls.__name__, lambda blocks, places: cls(places.shape[1], of_blocks(own, blocks)))

    def value_error(self, cost: Tensor) -> Tensor:
        """That of the product with the mass: where it is 1, the value is a cost or 0."""
        return torch.zeros_like(cost[..., 0]) if self.mass is None else roundoff(3, cost.abs().amax(-1) * self.mass)

    @classmethod
    def alike(cls, kinds: Sequence[Self]) -> list[Self]:
        """Where some have masses, all get them."""
        if all(kind.mass is None for kind in kinds):
            return list(kinds)
        one = torch.ones(1, 1, dtype=torch.float64)
        return [kind if kind.mass is not None else kind.with_data(mass=one) for kind in kinds]

    def __repr__(self) -> str:
        mass = self.mass
        own = "" if mass is None else f", mass={float(mass[0, 0]):g}" if mass.numel() == 1 else f", mass={tuple(mass.shape)}"
        return f"{self.name}(size={self.dim}{own})"


class Simplex(Choice):
    r"""One-hot vectors, or a mass to share: :math:`\{x \ge 0 : \sum_i x_i = mass\}`.

    Minimum: :math:`mass \cdot \min_i c_i`, the first one on ties.  Fixings to 0 or to the mass are kept as a mask of the choices that
    they rule out.  A block that is left without a choice gets a value above any real one, which proves its instance infeasible.

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
        value, best = strike(cost, self.excluded).min(-1, keepdim=True)
        return weighed(torch.zeros_like(cost).scatter_(-1, best, 1.0), self.mass), times_mass(value[..., 0], self.mass)

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        """Project onto the simplex."""
        if not bool(shared.all()):
            return None
        point = strike(step * cost - centre, self.excluded).neg_()
        largest, down = threshold(point, self.mass)
        return (point - largest - down).clamp_(min=0)

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        """The cost of each choice against the cheapest other one; none where the mass is not 1."""
        if self.mass is not None:
            return None
        return against_others(cost if self.excluded is None else cost.masked_fill(self.excluded, torch.inf))

    def overlap(self, shared: Tensor) -> int:
        """Two choices differ in two coordinates."""
        return min(2, super().overlap(shared))

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all choices."""
        weights, value, excess = soft(strike(weighed(cost, self.mass), self.excluded), temperature)
        return weighed(weights, self.mass), value, excess

    def vertex_table(self) -> Tensor | None:
        """The multiples of the unit vectors, where none is ruled out and the mass is that of all blocks."""
        return listed(torch.eye(self.dim, dtype=torch.float64), self.excluded, self.mass)

    def constraints(self) -> Constraints:
        """The sum and the signs."""
        return sum_rows(self.dim, self.mass, exact=True)

    def restrict(self, lower: Tensor, upper: Tensor) -> Simplex | None:
        """Rule out choices by fixings to 0 or the mass; other bounds are not of this kind."""
        lower, upper = shares(lower, self.mass), shares(upper, self.mass)
        if not fixings_only(lower, upper):
            return None
        return self.with_data(excluded=join(self.excluded, struck_choices(lower, upper)[0]))


class AtMostOne(Choice):
    r"""At most one of the variables, as in a clique, or at most a mass: :math:`\{x \ge 0 : \sum_i x_i \le mass\}`.

    Minimum: :math:`mass \cdot \min(0, \min_i c_i)`; no variable is chosen on a tie with 0, else the first one.  Fixings as in
    :class:`Simplex`.

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
        """Choose the cheapest variable, if it is cheaper than none."""
        allowed = strike(torch.nn.functional.pad(cost, (1, 0)), self.excluded)
        value, best = allowed.min(-1, keepdim=True)
        point = torch.zeros_like(allowed).scatter_(-1, best, 1.0)[..., 1:]
        return weighed(point, self.mass), times_mass(value[..., 0], self.mass)

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        """Project onto the simplex if the sum would be above the mass, or must be that."""
        if not bool(shared.all()):
            return None
        point = strike(step * cost - centre, None if self.excluded is None else self.excluded[..., 1:]).neg_()
        largest, down = threshold(point, self.mass)
        tight = largest + down > 0
        if self.excluded is not None:
            tight = tight | self.excluded[..., :1]
        return torch.where(tight, point - largest - down, point).clamp_(min=0)

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        """The cost of each choice against the cheapest other one, or none; no answer where the mass is not 1."""
        if self.mass is not None:
            return None
        allowed = torch.nn.functional.pad(cost, (1, 0))
        return against_others(allowed if self.excluded is None else allowed.masked_fill(self.excluded, torch.inf))[..., 1:]

    def overlap(self, shared: Tensor) -> int:
        """Two choices differ in two coordinates."""
        return min(2, super().overlap(shared))

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all choices and of none."""
        allowed = strike(torch.nn.functional.pad(weighed(cost, self.mass), (1, 0)), self.excluded)
        weights, value, excess = soft(allowed, temperature)
        return weighed(weights[..., 1:], self.mass), value, excess

    def vertex_table(self) -> Tensor | None:
        """Zero and the multiples of the unit vectors, where none is ruled out and the mass is that of all blocks."""
        return listed(torch.eye(self.dim + 1, dtype=torch.float64)[:, 1:], self.excluded, self.mass)

    def constraints(self) -> Constraints:
        """The sum and the signs."""
        return sum_rows(self.dim, self.mass, exact=False)

    def restrict(self, lower: Tensor, upper: Tensor) -> AtMostOne | None:
        """Rule out choices by fixings to 0 or the mass; other bounds are not of this kind."""
        lower, upper = shares(lower, self.mass), shares(upper, self.mass)
        if not fixings_only(lower, upper):
            return None
        one, none = struck_choices(lower, upper)
        return self.with_data(excluded=join(self.excluded, torch.cat([none, one], -1)))


def threshold(point: Tensor, mass: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""What makes :math:`\sum_i \max(x_i - s - t, 0) = mass`, in two parts: ``(..., size) -> (..., 1)`` (Held et al. 1974)."""
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


def strike(values: Tensor, excluded: Tensor | None) -> Tensor:
    """Give choices that are ruled out a value above any real one."""
    return values if excluded is None else values.masked_fill(excluded, struck_out(values.dtype))


def join(earlier: Tensor | None, struck: Tensor) -> Tensor:
    """Rule out what either mask rules out."""
    return struck if earlier is None else struck | earlier


def fixings_only(lower: Tensor, upper: Tensor) -> bool:
    """Whether no bound falls strictly between 0 and 1, so that the box cuts faces off the 0/1 points and nothing else."""
    return not bool((((lower > 0) & (lower < 1)) | ((upper > 0) & (upper < 1))).any())


def struck_choices(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors ``(..., size)`` and zero vector ``(..., 1)`` that lie outside a box."""
    no_zero, no_one = (lower > 0) | (upper < 0), (lower > 1) | (upper < 1)
    refusals = no_zero.sum(-1, keepdim=True)
    return no_one | (refusals - no_zero.long() > 0), refusals > 0


def sum_rows(size: int, mass: Tensor | None, *, exact: bool) -> Constraints:
    """The row ``sum x == mass`` or ``sum x <= mass``, and ``x >= 0``."""
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


def listed(table: Tensor, excluded: Tensor | None, mass: Tensor | None) -> Tensor | None:
    """A table of choices times the mass, if that is one table for all blocks."""
    if excluded is not None or (mass is not None and mass.numel() > 1):
        return None
    return table if mass is None else table * mass[0, 0].double()


def shares(bounds: Tensor, mass: Tensor | None) -> Tensor:
    """Bounds of variables as parts of the mass."""
    return bounds if mass is None else bounds / mass[..., None]
