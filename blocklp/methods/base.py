"""What a method is: a pass over all blocks that moves the multipliers.

A method is a frozen object of settings with two verbs.  ``start`` asks every oracle once at the first multipliers; ``step``
asks every oracle once more.  All that changes lives in a state, a record of tensors whose first dimension is the instance.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from blocklp.plan import Plan

Memory = tuple[Tensor, Tensor, Tensor]
"""Where a primal-dual method was: point ``(batch, variables)``, duals of all stated rows ``(batch, rows)``, group after group and
each as ``(rows, blocks)``, and weight ``(batch,)``."""


@dataclass(frozen=True)
class MethodState:
    """What every method's state holds.

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

    def select(self, rows: Tensor) -> Self:
        """Return the state of some instances."""
        return dataclasses.replace(self, **{f.name: _select(getattr(self, f.name), rows) for f in dataclasses.fields(self)})


class Method:
    """An ascent method on the dual.

    Attributes
    ----------
    looped : bool
        Whether its passes run in the loops that :mod:`blocklp.loops` finds.
    proximal : bool
        Whether the ``eta`` of its state is a proximal weight, from which any such method may start.
    evaluates : bool
        Whether the value in its state is that of the multipliers there, so that in double precision every pass gives a bound.
    cadence : int
        Passes between checks, unless the user says otherwise, without the one that a check takes to evaluate: a check costs as much
        as some passes.
    """

    looped: ClassVar[bool] = False
    proximal: ClassVar[bool] = False
    evaluates: ClassVar[bool] = True
    cadence: ClassVar[int] = 9

    def start(self, plan: Plan, duals: Tensor, eta: Tensor | None) -> Any:
        """State after one pass at ``duals`` ``(batch, copies)``, which it may keep; ``eta`` is a warm start's weight, if any."""
        raise NotImplementedError

    def step(self, plan: Plan, state: Any) -> Any:
        """State after one more pass; the state given may be used up."""
        raise NotImplementedError

    def leap(self, plan: Plan, state: Any, most: int) -> tuple[Any, int]:
        """State after at least one and at most so many passes, and their number; more than one where that is quicker.

        Only :meth:`finish` makes it whole.
        """
        return self.step(plan, state), 1

    def weights(self, batch: int) -> Tensor | None:
        """Proximal weights ``(batch,)`` that the settings fix, whatever a warm start says; ``None`` where there are none."""
        return None

    def in_loops(self, plan: Plan) -> bool:
        """Whether its passes over this problem are compiled loops of another kind than ``looped`` says."""
        return False

    def remember(self, plan: Plan, state: Any) -> Memory | None:
        """What multipliers do not tell and a later solve may start from: :data:`Memory`."""
        return None

    def resume(self, plan: Plan, state: Any, memory: Memory) -> Any:
        """The first state with what was remembered."""
        return state

    def checked(self, plan: Plan, state: Any, gap: Tensor) -> Any:
        """The state after a check found relative gaps ``(batch,)``, infinite where no primal point is known yet."""
        return state

    def due(self, state: Any) -> bool:
        """Whether the state holds what a check should see before any other pass."""
        return False

    def mean(self, plan: Plan, state: Any) -> Tensor:
        """The mean of the points of a finished state, ``(batch, variables)`` float64: what primal points are made from."""
        problem = plan.problem
        return problem.mean(state.points.double())

    def finish(self, plan: Plan, state: Any) -> Any:
        """What passes in a leap leave out of the state, for those who want to look at it."""
        return state


def _select(value: Any, rows: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, rows)
    if isinstance(value, tuple):
        return tuple(_select(v, rows) for v in value)
    return value.select(rows) if hasattr(value, "select") else value


def put(mask: Tensor, source: Tensor, target: Tensor) -> None:
    """Write the rows of a mask ``(batch,)`` over those of ``target``, both ``(batch, ...)``."""
    rows = mask.nonzero()[:, 0]
    if len(rows) == len(mask):
        target.copy_(source)
    elif len(rows):
        target.index_copy_(0, rows, source.index_select(0, rows))


def where(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``torch.where`` with a mask ``(batch,)`` over tensors ``(batch, ...)``."""
    if mask.device.type == "cpu":  # copying the rows beats a broadcast select several times over
        rows = mask.nonzero()[:, 0]
        return b.index_copy(0, rows, a.index_select(0, rows)) if len(rows) else b
    return torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b)
