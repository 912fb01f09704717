"""Capabilities of block types beside the min-oracle, one protocol for each.

A type has a capability if its class has the methods of the protocol, whatever it derives from;
:func:`supports` says so. A method set to None counts as absent; one that returns None has no formula for the
case it was asked about. All protocols stand together here because most of them serve several methods, the
self-check and the conformance tests, none of which may import another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

from torch import Tensor

from blocklp.blocks.contract import BlockType, Constraints, ExtendedFormulation


@runtime_checkable
class HasConstraints(Protocol):
    """An H-representation: for reference solvers, methods on rows, self-checks and tests of primal points."""

    def constraints(self) -> Constraints | None:
        """The rows and bounds of the polytope, float64, or None where they are not known or too many."""


@runtime_checkable
class HasExtendedFormulation(Protocol):
    """Rows with auxiliary variables, for :func:`blocklp.reference` and files of LPs alone.

    For types whose own facets are too many to state as :meth:`HasConstraints.constraints`.
    """

    def extended_formulation(self, instance: int, block: int) -> ExtendedFormulation | None:
        """The rows of one block of one instance, by their numbers, or None where they are not known."""


@runtime_checkable
class HasIntegerConstraints(Protocol):
    """Rows of whose integer points the polytope is the hull, for solvers of integer programs.

    Types whose points are integral state these in place of :meth:`HasConstraints.constraints`: their own
    facets are many and unknown. Bounds of models with such blocks are Lagrangean ones, at least as good as
    those of the LP of the rows.
    """

    def integer_constraints(self) -> Constraints | None:
        """The rows and integer bounds, float64, or None where they are not known or too many."""


@runtime_checkable
class HasValueError(Protocol):
    """A bound on rounding: for :attr:`blocklp.Solution.safe_bound`."""

    def value_error(self, cost: Tensor) -> Tensor | None:
        """Bound on the rounding error of the oracle's value in the dtype of its cost.

        Parameters
        ----------
        cost : Tensor
            ``(batch, blocks, dim)``.

        Returns
        -------
        Tensor or None
            ``(batch, blocks)``, not negative; None where no bound is known.
        """


@runtime_checkable
class HasRestriction(Protocol):
    """Fixings and tighter bounds within the type: no further block is needed for them."""

    def restrict(self, lower: Tensor, upper: Tensor) -> BlockType | None:
        """The type of the polytope intersected with a box.

        Parameters
        ----------
        lower, upper : Tensor
            ``(batch or 1, blocks, dim)`` float64.

        Returns
        -------
        BlockType or None
            None where the intersection is not of this kind.
        """


@runtime_checkable
class HasProx(Protocol):
    """Proximal points: :class:`blocklp.methods.Admm` solves the type in a fraction of the time with them."""

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        r"""Proximal point of a linear cost over every block (Parikh and Boyd 2014, Proximal algorithms).

        .. math:: \arg\min_{x \in X_b} \; \langle c_b, x \rangle + \frac{1}{2 t} \sum_i s_i (x_i - z_{b,i})^2

        Parameters
        ----------
        cost, centre : Tensor
            ``(batch, blocks, dim)``: c and z, in the dtype and on the device of the solver.
        step : Tensor
            ``(batch, 1, 1)``: t, positive.
        shared : Tensor
            ``(dim,)`` float64 on the CPU: s, 1 for coordinates that other blocks share and 0 for those that
            only this block has.

        Returns
        -------
        Tensor or None
            ``(batch, blocks, dim)``; None where there is no formula for these shared coordinates.
        """


@runtime_checkable
class HasProxBlock(Protocol):
    """The proximal point of one block, which numba compiles for the passes of ADMM on a CPU.

    The functions of one block, this and the next two, may use ``np`` and ``math`` and nothing else of their
    module. They serve where all coordinates are coupled but the last :attr:`BlockType.private_coordinates`.
    """

    @staticmethod
    def prox_block(cost: Any, centre: Any, step: float, point: Any, *data: Any) -> None:
        """Write the proximal point (:meth:`HasProx.prox`) of one block.

        Parameters
        ----------
        cost, centre : numpy.ndarray
            ``(dim,)``.
        step : float
            Proximal step length, positive.
        point : numpy.ndarray
            ``(dim,)``, written.
        *data : number, numpy.ndarray or None
            Parameters named after the ``block_data`` that the function reads; each is that of the block.
        """


@runtime_checkable
class HasMinBlock(Protocol):
    """The least value of one block, compiled for checks of whole instances."""

    @staticmethod
    def min_block(cost: Any, *data: Any) -> float:
        """Return the least value (:meth:`BlockType.min_value`) of one block, with the same rounding error.

        Parameters
        ----------
        cost : numpy.ndarray
            ``(dim,)`` float64.
        *data : number, numpy.ndarray or None
            As in :meth:`HasProxBlock.prox_block`.
        """


@runtime_checkable
class HasCompleteBlock(Protocol):
    """The best values of what no other block shares, of one block, compiled for checks of whole instances."""

    @staticmethod
    def complete_block(cost: Any, point: Any, *data: Any) -> float:
        """Complete a point (:meth:`HasCompletion.complete`) and return how far it leaves the block.

        A type should have it where points are often feasible as they are: they are not projected then.

        Parameters
        ----------
        cost : numpy.ndarray
            ``(dim,)`` float64, read where no other block shares the coordinate.
        point : numpy.ndarray
            ``(dim,)`` float64: shared coordinates are read, the others written.
        *data : number, numpy.ndarray or None
            As in :meth:`HasProxBlock.prox_block`.

        Returns
        -------
        float
            Largest relative violation of a constraint, not negative: see :meth:`Constraints.violation`.
        """


@runtime_checkable
class HasCompletion(Protocol):
    """Best values of what no other block shares: for primal points at every check."""

    def complete(self, cost: Tensor, point: Tensor, shared: Tensor) -> Tensor | None:
        """The cheapest values of the coordinates that only this block has, with the shared ones as they are.

        Where no values fit the shared ones, any will do.

        Parameters
        ----------
        cost, point : Tensor
            ``(batch, blocks, dim)`` float64; costs of the coordinates to choose and values of the shared
            ones; all else is undefined.
        shared : Tensor
            ``(dim,)`` float64 on the CPU: 1 for coordinates that other blocks share, 0 for those to choose.

        Returns
        -------
        Tensor or None
            ``(batch, blocks, k)``: the k coordinates to choose; None without a formula for these.
        """


@runtime_checkable
class HasMinMarginals(Protocol):
    """Min-marginals: for ``"min-marginals"``, and to fix variables in :class:`blocklp.Nodes`."""

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        r"""Min-marginals of the coordinates that are 0 or 1 (Werner, PAMI 2007).

        .. math:: m_{b,i} = \min_{x \in X_b, \, x_i = 1} \langle c_b, x \rangle
                  - \min_{x \in X_b, \, x_i = 0} \langle c_b, x \rangle

        Parameters
        ----------
        cost
            As in :meth:`blocklp.BlockType.min_oracle`.

        Returns
        -------
        Tensor or None
            ``(batch, blocks, dim)``: positive where every minimiser has 0, negative where every one has 1;
            infinity where no vertex has 1, minus infinity where none has 0, NaN where some vertex has another
            value, or there is none. None without a formula.
        """


@runtime_checkable
class HasOverlap(Protocol):
    """How far apart vertices are: for steps of ``"min-marginals"`` and ``"smooth"``."""

    def overlap(self, shared: Tensor) -> int:
        r"""A divisor k: min-marginals over k may all be subtracted at once, and no block's value falls.

        .. math:: \min_{x \in X_b} \langle c_b - s \odot m_b / k, x \rangle
                  \ge \min_{x \in X_b} \langle c_b, x \rangle + \sum_i s_i \max(0, -m_{b,i}) / k

        The number of shared coordinates is always one, and serves types without this method; the largest
        number of them in which two vertices differ is another.

        Parameters
        ----------
        shared : Tensor
            ``(dim,)`` float64 on the CPU: s, 1 for coordinates that other blocks share and 0 for those that
            only this block has.
        """


@runtime_checkable
class HasSoftMin(Protocol):
    """Soft minima: for :class:`blocklp.methods.Smooth` and :func:`blocklp.soft_bound`."""

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        r"""Soft minimum of a linear cost over every block's vertices (Jojic, Gould and Koller, ICML 2010).

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
            vertices; the minimum; and the minimum less s, not negative. None without a formula.
        """


@runtime_checkable
class HasVertices(Protocol):
    """All vertices, where every block has the same: for sweeps of :class:`blocklp.Nodes`."""

    def vertex_table(self) -> Tensor | None:
        """The vertices ``(vertices, dim)`` float64; None where they are many or differ between blocks."""


@runtime_checkable
class HasMaskedTable(Protocol):
    """One table of vertices for all blocks, some of which are masked in some blocks.

    Methods with active sets put weights on the rows of a short table, and exact certificates go through all.
    """

    def masked_table(self, most: float = math.inf) -> tuple[Tensor, Tensor | None] | None:
        """The table and the mask.

        Parameters
        ----------
        most : float
            Number of vertices up to which the table is wanted; a longer one need not be written out.

        Returns
        -------
        tuple or None
            ``(vertices, dim)`` float64, and ``(batch or 1, blocks, vertices)`` bool, or None where nothing is
            masked. None where there are more than ``most`` vertices.
        """

    def vertex_values(self, cost: Tensor) -> Tensor:
        """Cost of every vertex: ``(batch, blocks, dim) -> (batch, blocks, vertices)``; huge where masked."""


@runtime_checkable
class HasIntervals(Protocol):
    """A product of intervals, one for each coordinate: nothing but bounds of variables."""

    def intervals(self) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, ``(batch or 1, blocks or 1, dim)`` in the dtype of the type, finite."""


@runtime_checkable
class HasParts(Protocol):
    r"""A block :math:`x = A v + b` of independent parts :math:`v_j`, each in the hull of a few vertices.

    :class:`blocklp.methods.Prox` moves every part by a step of its own. ``A`` and ``b`` are shared by all
    blocks and instances; the vertices are not.
    """

    def vertices(self) -> Tensor:
        """Vertices of the parts: ``(batch or 1, blocks or 1, vertices, size, parts)``; some may repeat."""

    def apply(self, parts: Tensor) -> Tensor:
        """Map ``(batch, blocks, size, parts)`` to ``A v + b``, ``(batch, blocks, dim)``."""

    def adjoint(self, cost: Tensor) -> Tensor:
        r"""Map a cost ``(batch, blocks, dim)`` to :math:`A^\top c`, ``(batch, blocks, size, parts)``."""

    def shift(self) -> Tensor:
        """The constant b, ``(dim,)``."""

    def curvature(self, shared: Tensor) -> Tensor:
        r"""A diagonal ``D``, ``(size, parts)``, with :math:`|C A v|^2 \le \langle v, D v \rangle`.

        C keeps the coordinates that are ``shared`` with other blocks, ``(dim,)``. Too small a D costs speed,
        never validity.
        """


@runtime_checkable
class HasValueAt(Protocol):
    """A formula for gradients in data of blocks: see :mod:`blocklp.gradients.block_values`."""

    def value_at(self, cost: Tensor, point: Tensor) -> Tensor:
        r"""The value of blocks as a function of the data that require gradients.

        Parameters
        ----------
        cost, point : Tensor
            ``(batch, blocks, dim)`` float64 on the CPU, without gradients: multipliers of the blocks, and
            minimisers of these costs over the blocks.

        Returns
        -------
        Tensor
            ``(batch, blocks)``. Its gradient is that of :math:`\min_{x \in X_b} \langle c_b, x \rangle` with
            the point as the minimiser.
        """


Capability = TypeVar("Capability")


def supports(kind: object, capability: Callable[..., Capability]) -> TypeGuard[Capability]:
    """Whether the class of an object has the methods of a protocol.

    As ``isinstance``, which takes 6 to 20 microseconds to tell in Python 3.11, but for classes, whose answers
    are kept.

    Parameters
    ----------
    kind : object
        A block type, as a rule.
    capability : type
        One of the protocols.
    """
    return isinstance(capability, type) and issubclass(type(kind), capability)


def constraints_of(kind: BlockType) -> Constraints | None:
    """The constraints that a type states, or None."""
    return kind.constraints() if supports(kind, HasConstraints) else None


def integer_constraints_of(kind: BlockType) -> Constraints | None:
    """The rows that a type of integral points states, or None."""
    return kind.integer_constraints() if supports(kind, HasIntegerConstraints) else None


def stated_rows_of(kind: BlockType) -> Constraints | None:
    """The constraints that a type states, or else the rows of its integer points, or None."""
    return constraints_of(kind) or integer_constraints_of(kind)


def value_error_of(kind: BlockType, cost: Tensor) -> Tensor | None:
    """The bound ``(batch, blocks)`` that a type states for the rounding error of its value, or None."""
    return kind.value_error(cost) if supports(kind, HasValueError) else None


def vertices_of(kind: BlockType) -> Tensor | None:
    """All vertices ``(vertices, dim)`` float64 of a type, where it lists them, or None."""
    return kind.vertex_table() if supports(kind, HasVertices) else None


def overlap_of(kind: BlockType, shared: Tensor) -> int:
    """The divisor of :meth:`HasOverlap.overlap`; without it the number of shared coordinates."""
    return kind.overlap(shared) if supports(kind, HasOverlap) else max(1, int(shared.sum()))
