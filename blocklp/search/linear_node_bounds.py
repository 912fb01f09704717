"""What :class:`blocklp.LinearNodes` says of nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from blocklp.status import Status


@dataclass(frozen=True)
class LinearNodeBounds:
    """Bounds of some nodes; all tensors have the node first.

    Attributes
    ----------
    bound : Tensor
        ``(nodes,)`` float64: no feasible point of the node is better; infinite (minus infinity when
        maximising) where there is none.  All rounding is charged.
    primal : Tensor
        ``(nodes,)`` float64: the value of ``x`` where it is feasible within 1e-6 of the terms of each row,
        otherwise infinite.
    status : Tensor
        ``(nodes,)`` int64: ``Status.OPTIMAL``, ``CUTOFF``, ``INFEASIBLE``, ``PASS_LIMIT`` where pivots did
        not suffice, ``STALLED`` where rounding hides the rest, ``TIME_LIMIT`` or ``INTERRUPTED``.
    x : Tensor
        ``(nodes, variables)`` float64: the last basic point; zero in nodes that are cut off or infeasible.
    row_price : Tensor
        ``(nodes, rows)`` float64: prices that prove the bound.
    basis : Tensor
        ``(nodes, variables + rows)`` int8: where variables and then rows are, in HiGHS's numbers (0 at the
        lower bound, 1 basic, 2 at the upper bound), for children to start from; zero where ``x`` is.
    pivots : Tensor
        ``(nodes,)`` int64.
    cutoff : Tensor
        ``(nodes,)`` float64.
    maximizing : bool
        The sense of the LP, and of all bounds.
    """

    bound: Tensor
    primal: Tensor
    status: Tensor
    x: Tensor
    row_price: Tensor
    basis: Tensor
    pivots: Tensor
    cutoff: Tensor
    maximizing: bool

    @property
    def open(self) -> Tensor:
        """``(nodes,)`` bool: nodes that may have a point better than their cutoff."""
        return (self.status != int(Status.CUTOFF)) & (self.status != int(Status.INFEASIBLE))

    def select(self, nodes: Tensor) -> LinearNodeBounds:
        """Some of the nodes, by number or by a mask."""
        return replace(self, **{name: v[nodes] for name, v in vars(self).items() if name != "maximizing"})


@dataclass(frozen=True)
class StrongBranchingBounds:
    """Bounds of both children of every candidate of a node.

    Attributes
    ----------
    columns : Tensor
        ``(k,)`` int64: the candidates.
    at : Tensor
        ``(k,)`` float64: where they are split; children have ``x <= floor(at)`` or ``x >= floor(at) + 1``.
    down, up : LinearNodeBounds
        Of the k children each.
    """

    columns: Tensor
    at: Tensor
    down: LinearNodeBounds
    up: LinearNodeBounds
