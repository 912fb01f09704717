"""Blocks in which at most one, or exactly one, variable is chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.block import BlockType, Constraints
from blocklp.errors import ModelError
from blocklp.finite import soft, struck_out


class Simplex(BlockType):
    r"""One-hot vectors: :math:`\{x \ge 0 : \sum_i x_i = 1\}`.  Minimum: :math:`\min_i c_i`, the first one on ties.

    Fixings are kept as a mask of the choices that they rule out.  A block that is left without a choice gets a value above
    any real one, which proves its instance infeasible.

    Parameters
    ----------
    size : int
        Number of variables of a block, at least 1.

    Raises
    ------
    ModelError
        If the size is not a positive integer.
    """

    by_rows = True
    block_data = ("excluded",)
    #: ``(batch or 1, blocks, size)`` bool, or None: choices that the bounds of the variables rule out.
    excluded: Tensor | None = None

    def __init__(self, size: int) -> None:
        self.dim: int = positive(size, f"{self.name} size")

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the cheapest variable."""
        value, best = strike(cost, self.excluded).min(-1, keepdim=True)
        return torch.zeros_like(cost).scatter_(-1, best, 1.0), value[..., 0]

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        """Project onto the simplex."""
        if not bool(shared.all()):
            return None
        point = strike(step * cost - centre, self.excluded).neg_()
        largest, down = threshold(point)
        return (point - largest - down).clamp_(min=0)

    def min_marginals(self, cost: Tensor) -> Tensor:
        """The cost of each choice against the cheapest other one."""
        return against_others(cost if self.excluded is None else cost.masked_fill(self.excluded, torch.inf))

    def overlap(self, shared: Tensor) -> int:
        """Two choices differ in two coordinates."""
        return min(2, super().overlap(shared))

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all choices."""
        return soft(strike(cost, self.excluded), temperature)

    def vertex_table(self) -> Tensor | None:
        """The unit vectors, where none is ruled out."""
        return torch.eye(self.dim, dtype=torch.float64) if self.excluded is None else None

    def value_error(self, cost: Tensor) -> Tensor:
        """None: the value is one of the costs."""
        return torch.zeros_like(cost[..., 0])

    def constraints(self) -> Constraints:
        """The sum and the signs."""
        return sum_rows(self.dim, 1.0)

    def restrict(self, lower: Tensor, upper: Tensor) -> Simplex | None:
        """Rule out choices by 0/1 fixings; other bounds are not of this kind."""
        if not fixings_only(lower, upper):
            return None
        return self.with_data(excluded=join(self.excluded, struck_choices(lower, upper)[0]))

    def __repr__(self) -> str:
        return f"{self.name}(size={self.dim})"


class AtMostOne(BlockType):
    r"""At most one of the variables, as in a clique: :math:`\{x \ge 0 : \sum_i x_i \le 1\}`.

    Minimum: :math:`\min(0, \min_i c_i)`; no variable is chosen on a tie with 0, else the first one.  Fixings as in
    :class:`Simplex`.

    Parameters
    ----------
    size : int
        Number of variables of a block, at least 1.

    Raises
    ------
    ModelError
        If the size is not a positive integer.
    """

    by_rows = True
    block_data = ("excluded",)
    #: ``(batch or 1, blocks, size + 1)`` bool, or None: choices ruled out; the first is to choose no variable.
    excluded: Tensor | None = None

    def __init__(self, size: int) -> None:
        self.dim: int = positive(size, f"{self.name} size")

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the cheapest variable, if it is cheaper than none."""
        allowed = strike(torch.nn.functional.pad(cost, (1, 0)), self.excluded)
        value, best = allowed.min(-1, keepdim=True)
        return torch.zeros_like(allowed).scatter_(-1, best, 1.0)[..., 1:], value[..., 0]

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        """Project onto the simplex if the sum would be above 1, or must be 1."""
        if not bool(shared.all()):
            return None
        point = strike(step * cost - centre, None if self.excluded is None else self.excluded[..., 1:]).neg_()
        largest, down = threshold(point)
        tight = largest + down > 0
        if self.excluded is not None:
            tight = tight | self.excluded[..., :1]
        return torch.where(tight, point - largest - down, point).clamp_(min=0)

    def min_marginals(self, cost: Tensor) -> Tensor:
        """The cost of each choice against the cheapest other one, or none."""
        allowed = torch.nn.functional.pad(cost, (1, 0))
        return against_others(allowed if self.excluded is None else allowed.masked_fill(self.excluded, torch.inf))[..., 1:]

    def overlap(self, shared: Tensor) -> int:
        """Two choices differ in two coordinates."""
        return min(2, super().overlap(shared))

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all choices and of none."""
        weights, value, excess = soft(strike(torch.nn.functional.pad(cost, (1, 0)), self.excluded), temperature)
        return weights[..., 1:], value, excess

    def vertex_table(self) -> Tensor | None:
        """Zero and the unit vectors, where none is ruled out."""
        return torch.eye(self.dim + 1, dtype=torch.float64)[:, 1:] if self.excluded is None else None

    def value_error(self, cost: Tensor) -> Tensor:
        """None: the value is 0 or one of the costs."""
        return torch.zeros_like(cost[..., 0])

    def constraints(self) -> Constraints:
        """The sum and the signs."""
        return sum_rows(self.dim, -torch.inf)

    def restrict(self, lower: Tensor, upper: Tensor) -> AtMostOne | None:
        """Rule out choices by 0/1 fixings; other bounds are not of this kind."""
        if not fixings_only(lower, upper):
            return None
        one, none = struck_choices(lower, upper)
        return self.with_data(excluded=join(self.excluded, torch.cat([none, one], -1)))

    def __repr__(self) -> str:
        return f"{self.name}(size={self.dim})"


def threshold(point: Tensor) -> tuple[Tensor, Tensor]:
    r"""What makes :math:`\sum_i \max(x_i - s - t, 0) = 1`, in two parts: ``(..., size) -> (..., 1)`` (Held et al. 1974)."""
    # Relative to the largest: far from the simplex the 1 would be rounded away.
    largest = point.amax(-1, keepdim=True)
    falling = (point - largest).sort(dim=-1, descending=True).values
    excess = falling.cumsum(-1) - 1
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


def sum_rows(size: int, least: float) -> Constraints:
    """The row ``least <= sum x <= 1``, and ``x >= 0``."""
    return Constraints.rows([[1.0] * size], [least], [1.0], nonnegative=True)
