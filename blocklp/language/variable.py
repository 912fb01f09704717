"""Named arrays of variables, which lie in successive columns of a model."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from blocklp.language.expression import View
from blocklp.language.space import Space


class Variable(View):
    """A named array of variables with finite bounds.

    Attributes
    ----------
    columns : slice
        Where the variable lies in an instance's row of variables.
    lower, upper : Tensor
        ``(batch or 1, *shape)`` float64.
    grid : float
        Primal points are also tried with these variables rounded to multiples of it; 0 for none.
    integer : bool
        Whether only integers count in :func:`blocklp.solve_exact`.
    given : tuple of Tensor or None
        Both bounds as they were given where one requires gradients; ``lower`` and ``upper`` never do.
    """

    def __init__(
        self,
        model: Space,
        name: str,
        columns: slice,
        lower: Tensor,
        upper: Tensor,
        grid: float = 0.0,
        integer: bool = False,
    ) -> None:
        self.model, self.name = model, name
        self.columns, self.grid, self.integer = columns, grid, integer
        self.given = (lower, upper) if lower.requires_grad or upper.requires_grad else None
        self._lower, self._upper = lower.detach(), upper.detach()

    @cached_property
    def index(self) -> Tensor:  # type: ignore[override]
        """Columns of the entries, made when they are first asked for."""
        return torch.arange(self.columns.start, self.columns.stop).reshape(self.shape)

    def forget_index(self) -> None:
        """Free :attr:`index`, until it is asked for again."""
        vars(self).pop("index", None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the entries."""
        return tuple(self._lower.shape[1:])

    @property
    def _columns(self) -> Tensor | range:
        one = len(self.shape) == 1
        return range(self.columns.start, self.columns.stop) if one else self.index

    @property
    def lower(self) -> Tensor:
        """Lower bounds."""
        return self._lower

    @property
    def upper(self) -> Tensor:
        """Upper bounds."""
        return self._upper
