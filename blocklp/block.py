"""The contract of a block type: one verb, ``min_oracle``; everything else is optional.

A block type is a polytope shared by many blocks. The engine only ever asks for a minimiser of a linear cost
over it, for all blocks of all instances at once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from blocklp.errors import ShapeError
from blocklp.options import numbers
from blocklp.violation import distance_outside, relative_excess

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

    def within(self, below: Tensor, above: Tensor) -> Constraints:
        """The system with further bounds ``(batch or 1, blocks or 1, dim)``."""
        if self.below is not None and self.above is not None:
            below, above = torch.maximum(self.below, below), torch.minimum(self.above, above)
        return Constraints(self.matrix, self.lower, self.upper, below, above)

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
        activity, terms = (matrix @ point[..., None])[..., 0], matrix.abs().sum(-1) * largest
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
        matrix, lower, upper = (t.to(point) for t in (self.matrix, self.lower, self.upper))
        products = (matrix, point), (matrix.abs(), point.abs()), (matrix.abs(), size)
        activity, terms, reach = ((m @ v[..., None])[..., 0] for m, v in products)
        below = relative_excess(lower - activity, lower.abs(), terms, reach)
        worst = torch.maximum(below, relative_excess(activity - upper, upper.abs(), terms, reach))
        return worst.amax(-1) if worst.shape[-1] else point.new_zeros(point.shape[:2])

    def _violated_by_entries(self, point: Tensor, size: Tensor) -> Tensor:
        """One system for all blocks, entry by entry: most entries are zero and many rows one-sided."""
        worst, x, sizes = point.new_zeros(point.shape[:2]), point.unbind(-1), size.unbind(-1)
        zero = torch.zeros_like(worst)
        rows = (t[0, 0].tolist() for t in (self.matrix, self.lower, self.upper))
        for entries, low, high in zip(*rows, strict=True):
            used = [(entry, i) for i, entry in enumerate(entries) if entry]
            activity = sum((x[i] * entry for entry, i in used), start=zero)
            for side, excess in ((low, low - activity), (high, activity - high)):
                if math.isinf(side) or not bool((excess > 0).any()):
                    continue
                magnitudes = x if side else sizes
                terms = sum((magnitudes[i].abs() * abs(entry) for entry, i in used), start=zero)
                relative = relative_excess(excess, torch.full_like(worst, abs(side)), terms, terms)
                worst = torch.maximum(worst, relative)
        return worst


class BlockType:
    r"""A polytope :math:`X_b` that is easy to minimise over.

    Subclasses implement :meth:`min_oracle`. Optional methods add what the engine can then do:
    :meth:`constraints` (reference solvers, self-check, feasibility of primal points), :meth:`value_error`
    (rigorous bounds), :meth:`restrict` (fixings without an extra block), :meth:`alike` (batches of models
    whose data differ in shape), :meth:`min_value`, :meth:`prox` and :meth:`loops` (speed), :meth:`complete`
    (primal points), :meth:`min_marginals` and :meth:`overlap` (for :class:`blocklp.methods.MinMarginals`),
    :meth:`soft_min` (for :class:`blocklp.methods.Smooth` and :func:`blocklp.soft_bound`), and
    :meth:`vertex_table` (for sweeps of :class:`blocklp.Nodes`). A subclass of another type that overrides
    :meth:`min_oracle` states the last eight anew, or does without.

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
    nonnegative_costs : bool
        Whether :meth:`min_oracle` takes no negative costs, as shortest paths by Dijkstra's algorithm do. It
        is then asked with the nonnegative part of costs; what negative ones could gain is charged by the
        upper bounds of the variables. Bounds stay valid, and lose nothing where multipliers are not negative:
        with costs and rows that only charge for what blocks use.
    stateless : bool
        Whether nothing but ``block_data`` tells its objects apart or can change: without any, what one says
        is asked once for all models that share it, and it must be hashable. Classes state it anew.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """A class with its own min-oracle does not inherit formulas for the polytope of another type."""
        super().__init_subclass__(**options)
        cls.stateless = vars(cls).get("stateless", False)
        if "min_oracle" in vars(cls):
            derived = "min_value", "prox", "prox_block", "complete", "loops", "min_marginals", "overlap", "soft_min"
            for verb in (*derived, "vertex_table"):
                if verb not in vars(cls):
                    setattr(cls, verb, getattr(BlockType, verb))

    #: A static function ``prox_block(cost, centre, step, point, *data)`` for speed, or None: it writes the
    #: proximal point (:meth:`prox`, all coordinates shared) of one block into ``point``.  ``cost``, ``centre`` and
    #: ``point`` are ``(dim,)`` arrays, ``step`` is a number; its further parameters are named after the
    #: ``block_data`` that it reads, each of which is that of the block: a number, an array or None.  It may use
    #: ``np`` and ``math`` and nothing else of its module; numba compiles it for the CPU.
    prox_block: ClassVar[Callable[..., None] | None] = None
    dim: int | None = None
    block_data: tuple[str, ...] = ()
    by_rows: bool = False
    nonnegative_costs: bool = False
    stateless: bool = False

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

    def constraints(self) -> Constraints | None:
        """H-representation of the polytope, or ``None`` if it is not known."""
        return None

    def value_error(self, cost: Tensor) -> Tensor | None:
        """Bound on the rounding error of the oracle's value in the dtype of ``cost``: ``(batch, blocks)``.

        ``None`` (the default) says that no bound is known; the solution then has no ``safe_bound``.
        """
        return None

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        r"""Proximal point of a linear cost over every block, or ``None`` if the type has no formula for it.

        .. math:: \arg\min_{x \in X_b} \; \langle c_b, x \rangle + \frac{1}{2 t} \sum_i s_i (x_i - z_{b,i})^2

        With it a type is solved by :class:`blocklp.methods.Admm`, in a fraction of the time.

        Parameters
        ----------
        cost, centre : Tensor
            ``(batch, blocks, dim)``: c and z, in the dtype and on the device of the solver.
        step : Tensor
            ``(batch, 1, 1)``: t, positive.
        shared : Tensor
            ``(dim,)`` float64: s, 1 for coordinates that other blocks share and 0 for those that only this
            block has.

        Returns
        -------
        Tensor or None
            ``(batch, blocks, dim)``.
        """
        return None

    def loops(self, shared: Tensor) -> str | None:
        """Compiled loops for a CPU, ``"module:name"``, with the bits of tensor operations; ``None`` for none.

        The module has ``name_answers`` and ``name_start``, ``name_pass`` and ``name_passes`` (multipliers and
        :meth:`prox`), ``name_bounds``, ``name_completed`` and ``name_certified`` (with the charges of
        :meth:`value_error`); see ``blocklp/oracles/product_kernels.py``.
        """
        return None

    def complete(self, cost: Tensor, point: Tensor, shared: Tensor) -> Tensor | None:
        """The cheapest values of the coordinates that only this block has, with the shared ones as they are.

        With it primal points are found at every check where blocks meet in shared coordinates only. ``None``
        if the type has no formula for these coordinates; where no values fit the shared ones, any will do.

        Parameters
        ----------
        cost, point : Tensor
            ``(batch, blocks, dim)`` float64; costs of the coordinates to choose and values of the shared
            ones; all else is undefined.
        shared : Tensor
            ``(dim,)``: 1 for coordinates that other blocks share, 0 for those to choose.

        Returns
        -------
        Tensor or None
            ``(batch, blocks, k)``: the k coordinates to choose.
        """
        return None

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        r"""Min-marginals of the coordinates that are 0 or 1, or ``None`` if the type has no formula for them.

        .. math:: m_{b,i} = \min_{x \in X_b, \, x_i = 1} \langle c_b, x \rangle
                  - \min_{x \in X_b, \, x_i = 0} \langle c_b, x \rangle

        With them :class:`blocklp.methods.MinMarginals` moves multipliers of the type.

        Parameters
        ----------
        cost : Tensor
            ``(batch, blocks, dim)``, in the dtype and on the device of the solver.

        Returns
        -------
        Tensor or None
            ``(batch, blocks, dim)``: positive where every minimiser has 0, negative where every one has 1;
            infinity where no vertex has 1, minus infinity where none has 0, NaN where some vertex has another
            value, or there is none.
        """
        return None

    def overlap(self, shared: Tensor) -> int:
        r"""A divisor k: min-marginals over k may all be subtracted at once, and no block's value falls.

        .. math:: \min_{x \in X_b} \langle c_b - s \odot m_b / k, x \rangle
                  \ge \min_{x \in X_b} \langle c_b, x \rangle + \sum_i s_i \max(0, -m_{b,i}) / k

        The number of shared coordinates (the default) is always one, the largest number of them in which two
        vertices differ is another.

        Parameters
        ----------
        shared : Tensor
            ``(dim,)``: s, 1 for coordinates that other blocks share and 0 for those that only this block has.
        """
        return max(1, int(shared.sum()))

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        r"""Soft minimum of a linear cost over every block's vertices, or ``None`` if the type has no formula.

        .. math:: s(c) = -t \log \sum_k \exp(-\langle c, a_k \rangle / t) \le \min_k \langle c, a_k \rangle

        Differentiable by autograd in all arguments.

        Parameters
        ----------
        cost : Tensor
            ``(batch, blocks, dim)``, in the dtype and on the device of the solver.
        temperature : Tensor
            ``(batch, 1, 1)``: t, positive.

        Returns
        -------
        point, value, excess : Tensor or None
            ``(batch, blocks, dim)``, ``(batch, blocks)``, ``(batch, blocks)``: the gradient of s, a mean of
            vertices; the minimum; and the minimum less s, not negative.
        """
        return None

    def vertex_table(self) -> Tensor | None:
        """All vertices of a block, ``(vertices, dim)`` float64, or ``None``.

        ``None`` if they are many, unknown, or differ between blocks.
        """
        return None

    def restrict(self, lower: Tensor, upper: Tensor) -> BlockType | None:
        """Return the type of ``X_b`` intersected with a box, or ``None`` if it is not of this kind.

        Parameters
        ----------
        lower, upper : Tensor
            ``(batch or 1, blocks, dim)``, float64.
        """
        return None

    @property
    def name(self) -> str:
        """The name shown in tables."""
        return type(self).__name__

    def tensors(self) -> dict[str, Tensor]:
        """The tensors listed in ``block_data``, by name (absent ones left out)."""
        return {k: v for k in self.block_data if (v := getattr(self, k, None)) is not None}

    def with_data(self, **data: Tensor | None) -> Self:
        """A copy with some block data replaced."""
        other = copy.copy(self)
        for key, value in data.items():
            setattr(other, key, value)
        return other

    @classmethod
    def alike(cls, kinds: Sequence[Self]) -> list[Self]:
        """Types of several models with block data that can be joined: of one shape, leading dimensions aside.

        Data that a type lacks and others have become zeros. Types whose data may differ in shape, or for
        which zeros are wrong, state this method.
        """
        return list(kinds)

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """A copy with its block data on a device; floating-point data in ``dtype``."""

        def moved(data: Tensor) -> Tensor:
            return data.to(device, dtype if data.is_floating_point() else data.dtype)

        return self.with_data(**{key: moved(data) for key, data in self.tensors().items()})

    def select(self, rows: Rows) -> Self:
        """A copy with the block data of some instances: their numbers ``(k,)`` int64, or a slice of them."""
        return self.with_data(**{k: pick(v, rows) for k, v in self.tensors().items() if v.shape[0] > 1})

    def __repr__(self) -> str:
        return f"{self.name}()"


def pick(values: Tensor, rows: Rows) -> Tensor:
    """Some rows of a tensor; a slice of them is a view."""
    return values[rows] if isinstance(rows, slice) else values.index_select(0, rows)
