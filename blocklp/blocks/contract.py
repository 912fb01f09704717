"""The contract of a block type: ``min_oracle``; more is in :mod:`blocklp.blocks.capabilities`.

A block type is a polytope shared by many blocks. The engine only ever asks for a minimiser of a linear cost
over it, for all blocks of all instances at once.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from blocklp.errors import ShapeError
from blocklp.options import numbers
from blocklp.violation import distance_outside, known_empty, relative_excess

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LARGE = 20_000
"""Numbers of a system of constraints from which on it is looked at whether it is sparse."""

PADDED = 8
"""Times the numbers of a block's point that the entries of a sparse system, zeros behind included, may be."""

Rows = Tensor | slice
"""Some instances: their numbers ``(k,)`` int64, or a slice."""


@dataclass(frozen=True)
class Constraints:
    """The H-representation ``lower <= matrix @ x <= upper``, ``below <= x <= above`` of the block's polytope.

    Bounds of single variables belong in ``below`` and ``above``: rows of a matrix hold ``dim`` numbers each.

    Attributes
    ----------
    matrix : Tensor
        ``(batch or 1, blocks or 1, rows, dim)``, float64; there may be no rows.
    lower, upper : Tensor
        ``(batch or 1, blocks or 1, rows)``, float64; infinities mark one-sided rows.
    below, above : Tensor or None
        ``(batch or 1, blocks or 1, dim)``, float64; both None where the rows say it all.
    """

    matrix: Tensor
    lower: Tensor
    upper: Tensor
    below: Tensor | None = None
    above: Tensor | None = None

    @classmethod
    def rows(cls, matrix: object, lower: object, upper: object, *, nonnegative: bool = False) -> Constraints:
        """One system of rows shared by all blocks.

        Parameters
        ----------
        matrix : array_like
            ``(rows, dim)``; a copy is kept in float64.
        lower, upper : array_like
            ``(rows,)``: sides, which may be infinite.
        nonnegative : bool
            Whether all variables have the lower bound zero.

        Returns
        -------
        Constraints
            With data ``(1, 1, ...)`` float64.

        Raises
        ------
        ShapeError
            If the matrix has not two dimensions, or a side not one entry a row.
        """
        a, lo, up = (numbers(v, "constraints").clone() for v in (matrix, lower, upper))
        if a.dim() != 2 or lo.shape != a.shape[:1] or up.shape != a.shape[:1]:
            need = "needs two dimensions and one lower and one upper entry a row"
            got = f"got {tuple(lo.shape)} and {tuple(up.shape)}"
            raise ShapeError(f"constraints: matrix {tuple(a.shape)} {need}, {got}")
        zero = a.new_zeros(1, 1, a.shape[1])
        bounds = (zero, torch.full_like(zero, torch.inf)) if nonnegative else (None, None)
        return cls(a[None, None], lo[None, None], up[None, None], *bounds)

    @classmethod
    def box(cls, below: Tensor, above: Tensor) -> Constraints:
        """Bounds ``(batch or 1, blocks or 1, dim)`` alone."""
        none = below.new_zeros(1, 1, 0)
        return cls(below.new_zeros(1, 1, 0, below.shape[-1]), none, none, below, above)

    def block(self, instance: int, block: int) -> Constraints:
        """The system of one block alone."""

        def own(data: Tensor) -> Tensor:
            return data[instance % data.shape[0], block % data.shape[1]][None, None]

        below, above = (None if side is None else own(side) for side in (self.below, self.above))
        return Constraints(own(self.matrix), own(self.lower), own(self.upper), below, above)

    def part(self, blocks: slice) -> Constraints:
        """The systems of some blocks."""
        names = ("matrix", "lower", "upper", "below", "above")
        own = {name: side for name in names if (side := getattr(self, name)) is not None}
        several = {name: side[:, blocks] for name, side in own.items() if side.shape[1] > 1}
        return dataclasses.replace(self, **several) if several else self

    def within(self, below: Tensor, above: Tensor) -> Constraints:
        """The system with further bounds ``(batch or 1, blocks or 1, dim)``."""
        if self.below is not None and self.above is not None:
            below, above = torch.maximum(self.below, below), torch.minimum(self.above, above)
        return Constraints(self.matrix, self.lower, self.upper, below, above)

    def bounds_on(self, device: torch.device) -> Constraints:
        """The system with its bounds on a device, for which the host does not wait."""
        if self.below is None or self.above is None:
            return self
        below, above = (side.to(device, non_blocking=True) for side in (self.below, self.above))
        return dataclasses.replace(self, below=below, above=above)

    def bounds_as_rows(self, some: Tensor | None = None) -> Constraints:
        """The system with a row of ``dim`` numbers for each bound, or for ``some`` positions ``(k,)``."""
        if self.below is None or self.above is None:
            return self
        dim = self.below.shape[-1]
        positions = torch.arange(dim) if some is None else some
        leading = (t.shape[:2] for t in (self.matrix, self.lower, self.below))
        lead = [max(sizes) for sizes in zip(*leading, strict=True)]
        unit = torch.zeros(len(positions), dim).to(self.matrix)
        unit[torch.arange(len(positions)), positions] = 1
        sides = ((self.lower, self.below), (self.upper, self.above))
        pairs = ((own, side[..., positions.to(side.device)]) for own, side in sides)
        lower, upper = (torch.cat([t.expand(*lead, -1) for t in pair], -1) for pair in pairs)
        matrix = torch.cat([t.expand(*lead, -1, -1) for t in (self.matrix, unit)], -2)
        return Constraints(matrix, lower, upper)

    def violation(self, point: Tensor, size: Tensor | None = None) -> Tensor:
        """Largest violation of a row or bound at each point: ``(batch, blocks, dim) -> (batch, blocks)``.

        Zero where the point is feasible.
        Relative to the side that is violated or to what the row can be at points with entries of some
        ``size`` ``(batch, blocks)``, by default the point's largest, whichever is more: what oracles err by.
        Units of rows and variables make no difference.
        """
        largest = (point.abs().amax(-1) if size is None else size)[..., None]
        matrix, lower, upper = (t.to(point) for t in (self.matrix, self.lower, self.upper))
        magnitudes = matrix.abs().sum(-1) if self._sparse is None else self._sparse[1].to(point).abs().sum(-1)
        activity, terms = self._products(point), magnitudes * largest
        excess = [distance_outside(activity, lower, upper, terms)]
        if self.below is not None and self.above is not None:
            excess.append(distance_outside(point, self.below.to(point), self.above.to(point), largest))
        worst = torch.cat([torch.broadcast_to(e, (*point.shape[:2], e.shape[-1])) for e in excess], -1)
        return worst.amax(-1) if worst.shape[-1] else point.new_zeros(point.shape[:2])

    def relative_violation(self, point: Tensor, size: Tensor) -> Tensor:
        r"""Largest relative violation of a row or bound: ``(batch, blocks, dim) -> (batch, blocks)``.

        It is relative to the side that is violated or to :math:`\sum_i |a_i x_i|`, whichever is more; to
        :math:`\sum_i |a_i| size_i` where the side is zero. ``size`` ``(batch, blocks, dim)`` are magnitudes
        of the entries, of which errors are small parts.
        """
        worst = self._rows_violated(point, size)
        if self.below is not None and self.above is not None:
            terms = point.abs()
            for side, excess in ((self.below.to(point), -1.0), (self.above.to(point), 1.0)):
                outside = relative_excess(excess * (point - side), side.abs(), terms, size)
                worst = torch.maximum(worst, outside.amax(-1))
        return worst

    def _rows_violated(self, point: Tensor, size: Tensor) -> Tensor:
        """Largest relative violation of a row."""
        if self.matrix.shape[:2] == (1, 1) and self.lower.shape[:2] == (1, 1) and self.matrix.numel() <= 256:
            return self._violated_by_entries(point, size)
        lower, upper = self.lower.to(point), self.upper.to(point)
        activity = self._products(point)
        outside = (activity < lower) | (activity > upper)
        if known_empty(outside):
            return point.new_zeros(point.shape[:2])
        terms = self._products(point.abs(), magnitudes=True)
        # What rows can reach counts where a side is zero.
        none = known_empty((lower == 0) | (upper == 0))
        reach = terms if none else self._products(size, magnitudes=True)
        below = relative_excess(lower - activity, lower.abs(), terms, reach)
        worst = torch.maximum(below, relative_excess(activity - upper, upper.abs(), terms, reach))
        return worst.amax(-1)

    def _products(self, point: Tensor, *, magnitudes: bool = False) -> Tensor:
        """Rows, or the magnitudes of their entries, times points: ``(batch, blocks, rows)``."""
        if (table := self._sparse) is None:
            matrix = self.matrix.to(point)
            return ((matrix.abs() if magnitudes else matrix) @ point[..., None])[..., 0]
        column, entry = table[0].to(point.device), table[1].to(point)
        return (point[..., column] * (entry.abs() if magnitudes else entry)).sum(-1)

    @functools.cached_property
    def _sparse(self) -> tuple[Tensor, Tensor] | None:
        """Columns and entries ``(rows, most)`` of one large sparse system for all blocks, with zeros behind.

        None for other systems: a matrix that all blocks share would be read again for each of them.
        """
        count, dim = self.matrix.shape[2:]
        if self.matrix.shape[:2] != (1, 1) or count * dim < LARGE:
            return None
        matrix = self.matrix[0, 0]
        row, at = matrix.nonzero(as_tuple=True)
        sizes = torch.bincount(row, minlength=count)
        most = int(sizes.max())
        if count * most > PADDED * dim:
            return None
        place = torch.arange(len(row), device=row.device) - (sizes.cumsum(0) - sizes)[row]
        column, entry = row.new_zeros(count, most), matrix.new_zeros(count, most)
        column[row, place], entry[row, place] = at, matrix[row, at]
        return column, entry

    def _violated_by_entries(self, point: Tensor, size: Tensor) -> Tensor:
        """One system for all blocks, entry by entry: most entries are zero and many rows one-sided."""
        worst, x, sizes = point.new_zeros(point.shape[:2]), point.unbind(-1), size.unbind(-1)
        zero = torch.zeros_like(worst)
        rows = (t[0, 0].tolist() for t in (self.matrix, self.lower, self.upper))
        for entries, low, high in zip(*rows, strict=True):
            used = [(entry, i) for i, entry in enumerate(entries) if entry]
            activity = sum((x[i] * entry for entry, i in used), start=zero)
            for side, excess in ((low, low - activity), (high, activity - high)):
                if math.isinf(side) or known_empty(excess > 0):
                    continue
                magnitudes = x if side else sizes
                terms = sum((magnitudes[i].abs() * abs(entry) for entry, i in used), start=zero)
                relative = relative_excess(excess, torch.full_like(worst, abs(side)), terms, terms)
                worst = torch.maximum(worst, relative)
        return worst


@dataclass(frozen=True, eq=False)
class ExtendedFormulation:
    """Rows of one block's variables x and of auxiliary ones w: all x for which some w fits are the block.

    ``lower <= matrix @ (x, w) <= upper``, ``below <= w <= above``.

    Attributes
    ----------
    matrix : csr_array
        ``(rows, dim + auxiliary)`` float64, a sparse array of SciPy.
    lower, upper : Tensor
        ``(rows,)`` float64; infinities mark one-sided rows.
    below, above : Tensor
        ``(auxiliary,)`` float64.
    """

    matrix: csr_array
    lower: Tensor
    upper: Tensor
    below: Tensor
    above: Tensor


class BlockType:
    r"""A polytope :math:`X_b` that is easy to minimise over.

    Subclasses implement :meth:`min_oracle`. Further methods, each a protocol of
    :mod:`blocklp.blocks.capabilities`, add what the engine can then do: ``constraints`` (reference solvers,
    self-check, feasibility of primal points), ``value_error`` (rigorous bounds), ``restrict`` (fixings
    without an extra block), ``prox`` and ``prox_block`` (speed), ``complete`` (primal points),
    ``min_marginals`` and ``overlap`` (for :class:`blocklp.methods.MinMarginals`), ``soft_min`` (for
    :class:`blocklp.methods.Smooth` and :func:`blocklp.soft_bound`), ``vertex_table`` (for sweeps of
    :class:`blocklp.Nodes`). A type that lacks one is dealt with without it. A subclass of another type that
    overrides :meth:`min_oracle` says of each of them whether it still holds.

    Attributes
    ----------
    dim : int or None
        Number of variables of one block; ``None`` if the scope decides.
    block_data : tuple of str
        Names of the tensor attributes that hold data of single blocks.  They have leading dimensions
        ``(batch or 1, blocks or 1)`` and follow the instances when a batch is selected from or stacked.
    by_rows : bool
        Whether its few :meth:`constraints` are the quickest way to deal with it: ``method="auto"`` then works
        on the rows of all blocks, if all types state them.
    by_points : bool
        Whether points that its oracle returns are the quickest way to deal with it where rows couple blocks,
        although it states :meth:`constraints`, as with paths: ``method="auto"`` then takes a restricted
        master over such points, and ``"dantzig-wolfe"`` has points in its master, not the constraints.
    nonnegative_costs : bool
        Whether :meth:`min_oracle` takes no negative costs, as shortest paths by Dijkstra's algorithm do. It
        is then asked with the nonnegative part of costs; what negative ones could gain is charged by the
        upper bounds of the variables. Bounds stay valid, and lose nothing where multipliers are not negative:
        with costs and rows that only charge for what blocks use.
    stateless : bool
        Whether nothing but ``block_data`` tells its objects apart or can change: without any, what one says
        is asked once for all of the class. Classes state it anew.
    private_coordinates : int
        How many coordinates, the last ones, no other block may share where functions of one block serve
        (:class:`HasProxBlock`); all others must be shared.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that derives from one without state may add some."""
        super().__init_subclass__(**options)
        cls.stateless = vars(cls).get("stateless", False)

    dim: int | None = None
    block_data: tuple[str, ...] = ()
    by_rows: bool = False
    by_points: bool = False
    nonnegative_costs: bool = False
    stateless: bool = False
    private_coordinates: int = 0

    #: Attributes of this package's types that keep answers as long as all data are the same objects.
    _kept: tuple[str, ...] = ()

    #: ``"lower"`` and ``"upper"`` where the block's own bounds are 0 and 1 because none were given: variables
    #: that reach beyond these are refused where such blocks are added.
    _default_sides: tuple[str, ...] = ()

    @property
    def default_sides(self) -> tuple[str, ...]:
        """Sides of the unit box, "lower" and "upper", that a block has because it was given none."""
        return self._default_sides

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        r"""Minimise a linear cost over every block: :math:`\min_{x \in X_b} \langle c_b, x \rangle`.

        Must be pure and break ties by a rule, so that results are reproducible.

        Parameters
        ----------
        cost : Tensor
            ``(batch, blocks, dim)``, in the dtype and on the device of the solver.

        Returns
        -------
        point : Tensor
            ``(batch, blocks, dim)``: a minimiser in each block.
        value : Tensor
            ``(batch, blocks)``: its cost, to a few roundings of the terms :math:`|c_i x_i|`. Bounds charge no
            more than these: a type that sums larger terms returns less, by what they may be off.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement min_oracle(cost) -> (point, value)")

    def min_value(self, cost: Tensor) -> Tensor:
        """The value of :meth:`min_oracle` alone: ``(batch, blocks)``; worth stating where it costs less."""
        return self.min_oracle(cost)[1]

    @property
    def name(self) -> str:
        """The name shown in tables."""
        return type(self).__name__

    def tensors(self) -> dict[str, Tensor]:
        """The tensors listed in ``block_data``, by name (absent ones left out)."""
        return {k: v for k in self.block_data if (v := getattr(self, k, None)) is not None}

    def with_data(self, **data: Tensor | None) -> Self:
        """A copy with some block data replaced; without any, stateless types are no others."""
        if self.stateless and not data:
            return self
        other = copy.copy(self)
        for key, value in data.items():
            setattr(other, key, value)
        return other

    @classmethod
    def alike(cls, kinds: Sequence[Self]) -> list[Self]:
        """Types of several models with block data that can be joined: of one shape, leading dimensions aside.

        All types have the method, for it deals with their data: by default as they are, and data that a type
        lacks and others have become zeros. Types whose data may differ in shape, or for which zeros are
        wrong, state it anew.
        """
        return list(kinds)

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """A copy with its block data on a device; floating-point data in ``dtype``."""

        def moved(data: Tensor) -> Tensor:
            return data.to(device, dtype if data.is_floating_point() else data.dtype)

        return self.with_data(**{key: moved(data) for key, data in self.tensors().items()})

    def carried(self) -> dict[str, Tensor]:
        """The tensors among its attributes that require gradients, by name."""
        return {k: v for k, v in vars(self).items() if isinstance(v, Tensor) and v.requires_grad}

    def detached(self) -> Self:
        """A copy whose data carry no gradients: solves see these alone. The type itself where none does."""
        carried = self.carried()
        return self.with_data(**{k: v.detach() for k, v in carried.items()}) if carried else self

    def select(self, rows: Rows) -> Self:
        """A copy with the block data of some instances: their numbers ``(k,)`` int64, or a slice of them."""
        return self.with_data(**{k: pick(v, rows) for k, v in self.tensors().items() if v.shape[0] > 1})

    def part(self, blocks: Rows) -> Self:
        """A copy with the block data of some blocks: their numbers ``(k,)`` int64, or a slice of them."""
        own = {k: v[:, blocks] for k, v in self.tensors().items() if v.shape[1] > 1}
        return self.with_data(**own) if own else self

    def __repr__(self) -> str:
        return f"{self.name}()"


class Stateless:
    """A stateless type without block data as a key: another object of its class says the same."""

    __slots__ = ("kind",)

    def __init__(self, kind: BlockType) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stateless) and type(self.kind) is type(other.kind)

    def __hash__(self) -> int:
        return hash(type(self.kind))


def pick(values: Tensor, rows: Rows) -> Tensor:
    """Some rows of a tensor; a slice of them is a view."""
    return values[rows] if isinstance(rows, slice) else values.index_select(0, rows)
