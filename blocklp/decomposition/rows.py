r"""Coupling rows: constraints :math:`l \le A x \le u` beside the blocks, with one multiplier a row.

Their part of the dual is that of Dantzig and Wolfe's decomposition.  With a price :math:`y_i` for every row

.. math:: \min_{x \in X} \langle c, x \rangle \; \ge \;
          \sum_b \min_{x_b \in X_b} \langle \lambda_b, x_b \rangle
          + \sum_i \min_{l_i \le s_i \le u_i} y_i s_i, \qquad \sum_b \lambda_b + A^\top y = c

(weak duality, with the activity :math:`s = A x` of the rows).  A side that a row does not have is the
furthest that the bounds of its variables let the activity go, so that prices of the wrong sign are valid, and
cost what they must.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from blocklp.blocks.contract import pick
from blocklp.rounding import rounding
from blocklp.violation import relative_excess


@dataclass(frozen=True)
class CouplingRows:
    """The rows of a batch of instances that share the matrix.

    Attributes
    ----------
    row, column, entry : Tensor
        ``(entries,)`` int64, int64 and float: the matrix, row after row.
    lower, upper : Tensor
        ``(batch, rows)``; infinite where there is no such side.
    least, most : Tensor
        ``(batch, rows)``, finite: the sides, and where there is none what the activity can be by the bounds
        of the variables, rounded outwards.
    sorted : dict
        Entries sorted by variable, and where those of each begin, once a device has asked for it.
    required : dict
        The answers of :meth:`asked`, which depend on the sides too: rows with others begin without any.
    """

    row: Tensor
    column: Tensor
    entry: Tensor
    lower: Tensor
    upper: Tensor
    least: Tensor
    most: Tensor
    sorted: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, kw_only=True, repr=False)
    required: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def build(
        cls,
        row: Tensor,
        column: Tensor,
        entry: Tensor,
        lower: Tensor,
        upper: Tensor,
        low: Tensor,
        high: Tensor,
    ) -> CouplingRows:
        """Complete the sides of rows by the bounds of their variables.

        Parameters
        ----------
        row, column, entry : Tensor
            ``(entries,)`` int64, int64 and float64: the matrix, row after row.
        lower, upper : Tensor
            ``(batch, rows)`` float64: sides, infinite for none.
        low, high : Tensor
            ``(batch, variables)`` float64: finite bounds of the variables.

        Returns
        -------
        CouplingRows
            The rows with their sides ``(batch, rows)``, and the least and most that they can be.
        """
        ends = entry * low[:, column], entry * high[:, column]
        room = torch.zeros_like(lower)
        index = row.expand(len(lower), -1)
        sizes = torch.maximum(ends[0].abs(), ends[1].abs())
        parts = torch.minimum(*ends), torch.maximum(*ends), sizes
        least, most, size = (room.scatter_add(1, index, part) for part in parts)
        terms = torch.bincount(row, minlength=lower.shape[1]).max().item() if len(row) else 0
        error = rounding(int(terms) + 2, torch.float64) * size
        least = torch.where(torch.isfinite(lower), lower, torch.minimum(least - error, upper))
        most = torch.where(torch.isfinite(upper), upper, torch.maximum(most + error, lower))
        return cls(row, column, entry, lower, upper, least, most)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.lower.shape[1]

    @property
    def starts(self) -> Tensor:
        """Where the entries of every row begin: ``(rows + 1,)`` int64."""
        return torch.searchsorted(self.row, torch.arange(self.count + 1, device=self.row.device))

    def largest(self) -> Tensor:
        """The largest magnitude of an entry of every row: ``(rows,)``."""
        return self.entry.new_zeros(self.count).scatter_reduce(0, self.row, self.entry.abs(), "amax")

    def asked(self, variables: int) -> Tensor:
        """Magnitudes that rows require of each variable, the largest of all rows, for the steps of PDHG.

        The variable with the largest entry of a row meets its side alone; others take part in proportion to
        their entries.  The result is ``(batch, variables)``, 0 where no row requires any; it is kept.
        """
        if variables in self.required:
            return self.required[variables]
        size, largest = self.entry.abs(), self.largest()
        finite = (torch.where(torch.isfinite(s), s.abs(), 0.0) for s in (self.lower, self.upper))
        sides = torch.maximum(*finite)
        own = sides[:, self.row] * size / torch.where(largest > 0, largest, 1.0)[self.row] ** 2
        none = own.new_zeros(len(own), variables)
        found = none.scatter_reduce(1, self.column.expand(len(own), -1), own, "amax")
        self.required[variables] = found
        return found

    @property
    def adds_in_order(self) -> bool:
        """Whether a scatter adds in the order of the entries: it does on a CPU."""
        return self.entry.device.type == "cpu"

    def activity(self, x: Tensor) -> Tensor:
        """A x: ``(batch, variables) -> (batch, rows)``, added up in the order of a row's entries."""
        terms = self.entry * x[:, self.column]
        return (
            _products(terms, self.row, self.count) if self.adds_in_order else _in_pieces(terms, self.starts)
        )

    def adjoint(self, y: Tensor, variables: int) -> Tensor:
        """A^T y: ``(batch, rows) -> (batch, variables)``, added up from the first row to the last."""
        terms = self.entry * y[:, self.row]
        if self.adds_in_order:
            return _products(terms, self.column, variables)
        if variables not in self.sorted:
            column, order = self.column.sort(stable=True)
            every = torch.arange(variables + 1, device=column.device)
            self.sorted[variables] = order, torch.searchsorted(column, every)
        order, starts = self.sorted[variables]
        return _in_pieces(terms[:, order], starts)

    def value(self, y: Tensor) -> Tensor:
        """Every row's part of the dual value at prices ``(batch, rows)``: ``(batch, rows)``."""
        return torch.where(y > 0, y * self.least, y * self.most)

    def point(self, y: Tensor) -> Tensor:
        """The activities ``(batch, rows)`` at which prices ``(batch, rows)`` have their :meth:`value`."""
        return torch.where(y > 0, self.least, self.most)

    def reach(self) -> Tensor:
        """The largest magnitude of every row's activity: ``(batch, rows)``."""
        return torch.maximum(self.least.abs(), self.most.abs())

    def violation(self, x: Tensor, size: Tensor) -> Tensor:
        """Largest violation ``(batch,)``, relative as in :meth:`Constraints.relative_violation`."""
        activity, sizes = self.activity(x), self.absolute()
        terms, reach = sizes.activity(x.abs()), sizes.activity(size)
        below = relative_excess(self.lower - activity, self.lower.abs(), terms, reach)
        above = relative_excess(activity - self.upper, self.upper.abs(), terms, reach)
        return torch.maximum(below, above).amax(1)

    def absolute(self) -> CouplingRows:
        """The matrix of absolute values."""
        return replace(self, entry=self.entry.abs())

    def in_own_units(self) -> tuple[CouplingRows, Tensor]:
        """Rows whose largest entry is 1, and what they were multiplied by ``(1, rows)``."""
        largest = self.largest()
        unit = torch.where(largest > 0, 1 / largest, torch.ones_like(largest))
        sides = {name: getattr(self, name) * unit for name in ("lower", "upper", "least", "most")}
        return replace(self, entry=self.entry * unit[self.row], **sides), unit[None]

    def select(self, rows: Tensor | slice) -> CouplingRows:
        """Return the rows of some instances."""
        sides = (pick(t, rows) for t in (self.lower, self.upper, self.least, self.most))
        lower, upper, least, most = sides
        return replace(self, lower=lower, upper=upper, least=least, most=most)

    def to(self, dtype: torch.dtype) -> CouplingRows:
        """Return the rows in another precision."""
        numbers = (t.to(dtype) for t in (self.entry, self.lower, self.upper, self.least, self.most))
        entry, lower, upper, least, most = numbers
        return replace(self, entry=entry, lower=lower, upper=upper, least=least, most=most)


def _products(terms: Tensor, target: Tensor, size: int) -> Tensor:
    """Sums of ``(batch, entries)`` by ``target``: ``(batch, size)``, in order of entries."""
    index = target.expand(len(terms), -1)
    return terms.new_zeros(len(terms), size).scatter_add_(1, index, terms)


def _in_pieces(terms: Tensor, starts: Tensor) -> Tensor:
    """Sums of pieces of ``(batch, entries)``, which begin at ``starts``: ``(batch, pieces)``.

    Where a scatter would take atomics, which add in no fixed order.
    """
    offsets = starts.expand(len(terms), -1).contiguous()
    return torch.segment_reduce(terms, "sum", offsets=offsets, axis=1, unsafe=True, initial=0.0)
