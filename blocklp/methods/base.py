"""Methods: a pass over all blocks moves the multipliers.

A method is a frozen object of settings with two verbs. ``start`` asks every oracle once at the first
multipliers; ``step`` asks every oracle once more. All that changes lives in a state, a record of tensors
whose first dimension is the instance.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from blocklp.kernels.plan import Plan

Memory = tuple[Tensor, Tensor, Tensor]
"""Primal-dual warm start: point ``(batch, variables)``, duals of all stated rows ``(batch, rows)``, group by
group and each as ``(rows, blocks)``, and weight ``(batch,)``."""


class StateParts(NamedTuple):
    """What passes go on from, by what its tensors have an entry of.

    Attributes
    ----------
    copies, variables : dict of str to Tensor
        ``(batch, copies)`` of blocks, ``(batch, variables)``.
    rows : dict of str to list of Tensor
        One a group: ``(batch, rows of a block, blocks)``.
    numbers : dict
        All else, tensors or numbers, which do not depend on how blocks are divided.
    """

    copies: dict[str, Tensor]
    variables: dict[str, Tensor]
    rows: dict[str, list[Tensor]]
    numbers: dict[str, Any]


@dataclass(frozen=True)
class MethodState:
    """State of a method: the part that all methods have.

    Attributes
    ----------
    duals : Tensor
        ``(batch, copies)``: the multipliers at which the oracles were last asked.
    value : Tensor
        ``(batch,)``: the dual value there, in the working precision and without corrections.
    points : Tensor
        ``(batch, copies)``: points of the blocks, the method's best guess of a primal solution.
    eta : Tensor
        ``(batch,)``: the proximal weight (a step length, for methods without a proximal term).
    """

    duals: Tensor
    value: Tensor
    points: Tensor
    eta: Tensor

    def changed(self, **values: Any) -> Self:
        """Return the state with other values of some attributes, in a tenth of what ``replace`` takes."""
        other = object.__new__(type(self))
        vars(other).update(vars(self), **values)
        return other

    def select(self, rows: Tensor) -> Self:
        """Return the state of some instances."""
        names = (field.name for field in dataclasses.fields(self))
        return dataclasses.replace(self, **{name: _select(getattr(self, name), rows) for name in names})


class Method:
    """An ascent method on the dual.

    Attributes
    ----------
    uses_tables : bool
        Whether its operations use what the backend lays out for blocks (:meth:`Plan.laid_out`).
    usual : int
        Passes of a solve as a rule, from which the backend is chosen.
    proximal : bool
        Whether the ``eta`` of its state is a proximal weight, from which any such method may start.
    evaluates : bool
        Whether the value in its state is that of the multipliers there, so that in double precision every
        pass gives a bound.
    advised : bool
        Whether :meth:`checked` is called after checks, for which the host waits.
    knows_rows : bool
        Whether it takes rows beside the blocks.
    by_index : bool
        Whether scopes must be given by index.
    cadence : int
        Passes between checks, unless the user says otherwise, without the one that a check takes to evaluate:
        a check costs as much as some passes.
    regular : int
        Checks at the cadence before they become rarer: from then on passes between two of them are one in so
        many of all passes.
    snapshots : tuple of tuple of str
        Attributes of a finished state that :meth:`saved` takes: those with an entry a copy, those with one a
        variable, and all others.
    """

    uses_tables: ClassVar[bool] = False
    usual: ClassVar[int] = 300
    proximal: ClassVar[bool] = False
    evaluates: ClassVar[bool] = True
    advised: ClassVar[bool] = False
    knows_rows: ClassVar[bool] = False
    by_index: ClassVar[bool] = False
    cadence: ClassVar[int] = 9
    regular: ClassVar[int] = 11
    snapshots: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> Any:
        """State after one pass at the first multipliers.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        duals : Tensor
            ``(batch, copies)``: the first multipliers, which the state may keep.
        eta : Tensor or None
            ``(batch,)``: the weight or step length of a warm start, positive; None without one.

        Returns
        -------
        MethodState
            The state.
        """
        raise NotImplementedError

    def step(self, plan: Plan, state: Any) -> Any:
        """State after one more pass; the state given may be used up."""
        raise NotImplementedError

    def run(self, plan: Plan, state: Any, most: int) -> tuple[Any, int]:
        """Make several passes where that is quicker than one after the other.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        state : MethodState
            The state before, which may be used up.
        most : int
            Number of passes at most, at least 1.

        Returns
        -------
        state, passes : MethodState, int
            The state, which :meth:`finish` completes, and the number of passes made.
        """
        return self.step(plan, state), 1

    def weights(self, batch: int) -> Tensor | None:
        """Proximal weights ``(batch,)`` that the settings fix, also in warm starts; ``None`` for none."""
        return None

    def in_loops(self, plan: Plan) -> bool:
        """Whether its passes over this problem run in loops that deal work out to threads themselves."""
        return False

    def remember(self, plan: Plan, state: Any) -> Memory | None:
        """Primal-dual warm start (:data:`Memory`) for a later solve; ``None`` where multipliers tell all."""
        return None

    def resume(self, plan: Plan, state: Any, memory: Memory) -> Any:
        """Put a primal-dual warm start into the first state.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        state : MethodState
            The state of :meth:`start`.
        memory : tuple of Tensor
            The answer of :meth:`remember` in an earlier solve (:data:`Memory`).

        Returns
        -------
        MethodState
            The state at the warm start.
        """
        return state

    def opened(self, plan: Plan, state: Any) -> Any:
        """State before the first check of a solve without a warm start; by default that of :meth:`start`."""
        return state

    def saved(self, plan: Plan, state: Any) -> StateParts:
        """Take from a state all that passes go on from as they would have, in methods that processes share.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        state : MethodState
            A finished state, whose tensors may be returned.
        """
        copies, variables, numbers = ({n: getattr(state, n) for n in names} for names in self.snapshots)
        return StateParts({n: own for n, own in copies.items() if own.shape[1]}, variables, {}, numbers)

    def restored(self, plan: Plan, state: Any, kept: StateParts) -> Any:
        """The state from which passes go on.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        state : MethodState
            That of :meth:`start`.
        kept : StateParts
            The answer of :meth:`saved`, of these blocks; all numbers are tensors.

        Returns
        -------
        MethodState
            The state, which :meth:`finish` completes.
        """
        numbers = {name: own if own.dim() else own.item() for name, own in kept.numbers.items()}
        return state.changed(**kept.copies, **kept.variables, **numbers, finished=False)

    def checked(self, plan: Plan, state: Any, gap: Tensor) -> Any:
        """State after a check, of methods that are :attr:`advised`.

        Parameters
        ----------
        plan : Plan
            The problem in the working precision, and how it is executed.
        state : MethodState
            The finished state that was checked.
        gap : Tensor
            ``(batch,)`` float64: relative gaps, infinite where no primal point is known yet.

        Returns
        -------
        MethodState
            The state from which passes go on.
        """
        return state

    def due(self, state: Any) -> bool:
        """Whether the state holds what a check should see before any other pass."""
        return False

    def mean(self, plan: Plan, state: Any) -> Tensor:
        """Mean of the points of a finished state: ``(batch, variables)`` float64, for primal points."""
        problem = plan.problem
        return problem.mean(state.points.double())

    def finish(self, plan: Plan, state: Any) -> Any:
        """Complete a state that :meth:`run` returned: its multipliers and points."""
        return state


def _select(value: Any, rows: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, rows)
    if isinstance(value, tuple):
        return tuple(_select(v, rows) for v in value)
    return value.select(rows) if hasattr(value, "select") else value


def put(mask: Tensor, source: Tensor, target: Tensor) -> None:
    """Write some rows of one tensor over those of another.

    Parameters
    ----------
    mask : Tensor
        ``(batch,)`` bool: the rows.
    source, target : Tensor
        ``(batch, ...)``; ``target`` is written.
    """
    rows = _rows(mask)
    if rows is None:
        target.copy_(torch.where(mask.view(-1, *[1] * (source.dim() - 1)), source, target))
    elif len(rows) == len(mask):
        target.copy_(source)
    elif len(rows):
        target.index_copy_(0, rows, source.index_select(0, rows))


def where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``torch.where`` over instances.

    Parameters
    ----------
    mask : Tensor
        ``(batch,)`` bool: instances that take their entries from ``a``.
    a, b : Tensor
        ``(batch, ...)``.

    Returns
    -------
    Tensor
        ``(batch, ...)``.
    """
    rows = _rows(mask)
    if rows is None:
        return torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)
    # Copying the rows beats a broadcast select several times over.
    return b.index_copy(0, rows, a.index_select(0, rows)) if len(rows) else b


def _rows(mask: Tensor) -> Tensor | None:
    """Numbers of the instances in a mask; None on a device, for which the host would have to wait."""
    return mask.nonzero()[:, 0] if mask.device.type == "cpu" else None
