"""Records of a solve: start, hooks, events at checks, and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.engine.limits import Limits
from blocklp.methods.base import Memory
from blocklp.status import Status

Record = TypeVar("Record", "Event", Limits, "Start", "Results")
Values = TypeVar("Values", Tensor, NDArray[np.float64])

Repair = Callable[[Tensor, Tensor], Tensor]
"""Takes points ``(k, variables)`` and numbers of their instances ``(k,)`` to points that may be feasible."""


@dataclass(frozen=True)
class Event:
    """The state of a solve at a check; tensors have one entry an instance, finished ones included.

    Attributes
    ----------
    passes : int
        Oracle passes so far, bound evaluations included.
    seconds : float
        Time since the start.
    bound, primal, gap : Tensor
        ``(batch,)`` float64: best bound, best primal value (in the sense of the model), relative gap.
    status : Tensor
        ``(batch,)`` int64: :class:`Status`.
    """

    passes: int
    seconds: float
    bound: Tensor
    primal: Tensor
    gap: Tensor
    status: Tensor


@dataclass(frozen=True)
class Snapshot:
    """All that a solve goes on from after a check, with the same bits as if it had not been cut off.

    Attributes
    ----------
    copies, variables : dict of str to Tensor
        ``(batch, copies)`` and ``(batch, variables)``: iterates, multipliers of the best bounds, best points.
    rows : dict of str to list of Tensor
        One a group, ``(batch, rows of a block, blocks)``: iterates.
    numbers : dict of str to Tensor
        All else; instances first where it is of instances.
    resumed : callable
        Called once passes are about to go on from it.
    """

    copies: dict[str, Tensor]
    variables: dict[str, Tensor]
    rows: dict[str, list[Tensor]]
    numbers: dict[str, Tensor]
    resumed: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Start:
    """Where a solve starts; None where the method decides.

    Attributes
    ----------
    duals : Tensor or None
        ``(batch, copies)``: the first multipliers, zero by default.
    eta : Tensor or None
        ``(batch,)``: proximal weights or step lengths.
    warm : tuple of Tensor or None
        Primal-dual warm start (:data:`Memory`).
    snapshot : Snapshot or None
        What an earlier solve of the same problem had come to, which counts for more than all else.
    """

    duals: Tensor | None = None
    eta: Tensor | None = None
    warm: Memory | None = None
    snapshot: Snapshot | None = None


@dataclass(frozen=True)
class Hooks:
    """Functions of the caller that a solve calls at its checks.

    Attributes
    ----------
    repair : callable or None
        Makes points feasible (:data:`Repair`).
    callback : callable or None
        Takes an :class:`Event`; returns True or a mask ``(batch,)`` of instances to stop, else None or False.
    record : callable or None
        Takes an :class:`Event`, before ``callback`` does.
    save : callable or None
        Takes the number of passes and a function that makes a :class:`Snapshot`, after every check after
        which passes go on.
    """

    repair: Repair | None = None
    callback: Callable[[Event], Any] | None = None
    record: Callable[[Event], None] | None = None
    save: Callable[[int, Callable[[], Snapshot]], None] | None = None


HOSTED = ("bound", "eta", "status", "passes", "seconds", "floor")
"""Fields of :class:`Results` that stop rules read and write."""


@dataclass
class Results:
    """The best so far of every instance, ``(batch, ...)``, in the sense of minimisation.

    ``floor`` is that of :func:`relative_gap`; ``remembered`` are primal-dual warm starts of chunks, by the
    number of their first instance.  Until :meth:`on` moves them, what stop rules read and write is on the CPU
    (:data:`HOSTED`), and all else on the problem's device.
    """

    bound: Tensor
    safe_bound: Tensor
    primal: Tensor
    x: Tensor
    duals: Tensor
    eta: Tensor
    status: Tensor
    passes: Tensor
    seconds: Tensor
    floor: Tensor
    repaired: Tensor
    history: list[Event] = field(default_factory=list)
    memory: Memory | None = None
    remembered: dict[int, Memory] = field(default_factory=dict)
    backend: str = "torch"

    @classmethod
    def unsolved(cls, problem: Decomposition, least: Tensor, status: Status = Status.RUNNING) -> Results:
        """Return results before the first pass.

        Parameters
        ----------
        problem : Decomposition
            Any with as many variables and copies.
        least : Tensor
            ``(batch,)`` float64: what the bounds of the variables alone prove.
        status : Status
            Of all instances.
        """
        here = least.to("cpu", copy=True)
        number = torch.zeros(len(least), dtype=torch.long)
        return cls(
            bound=here,
            safe_bound=least.clone(),
            primal=torch.full_like(least, torch.inf),
            x=zeros(least, problem.cost.shape[1]),
            duals=zeros(least, problem.copies),
            eta=torch.full_like(here, torch.nan),
            status=torch.full_like(number, int(status)),
            passes=number,
            seconds=torch.zeros_like(here),
            floor=torch.zeros_like(here),
            repaired=torch.zeros_like(least, dtype=torch.bool),
        )

    def on(self, device: torch.device) -> Results:
        """Return results with all tensors on the problem's device: what is on the CPU goes in one copy."""
        if device.type == "cpu":
            return self
        kinds = [(name, getattr(self, name).dtype) for name in HOSTED]
        packed = torch.stack([getattr(self, name).double() for name in HOSTED]).to(device, non_blocking=True)
        return replace(self, **{name: own.to(kind) for (name, kind), own in zip(kinds, packed, strict=True)})

    def note(self, rows: Tensor, values: Mapping[str, Any]) -> None:
        """Write arrays ``(k,)`` or numbers over attributes of instances ``rows`` ``(k,)``, all on the CPU."""
        at = rows.numpy()
        for name, own in values.items():
            getattr(self, name).numpy()[at] = own

    def gap(self) -> Tensor:
        """Relative gap, see :func:`relative_gap`."""
        return relative_gap(self.primal, self.bound, self.floor)


def relative_gap(primal: Values, bound: Values, floor: Values | float = 0.0) -> Values:
    r"""Return :math:`|primal - bound| / \max(|primal|, |bound|, floor)`.

    Parameters
    ----------
    primal, bound : Tensor or array
        ``(batch,)`` float64.
    floor : Tensor, array or float
        In the units of the costs (:func:`blocklp.decomposition.valid_bounds.floor`), so that no scale of a
        model is better than another.

    Returns
    -------
    Tensor or array
        ``(batch,)``: zero where both agree, infinite where one of them is.
    """
    of: Any = np
    if isinstance(bound, Tensor):
        of, floor = torch, torch.as_tensor(floor).to(bound)
    scale = of.maximum(of.maximum(abs(primal), abs(bound)), floor)
    away = abs(primal - bound)  # NaN where both are infinite
    gap: Values = of.where(away == 0, 0.0, away / scale)
    return of.where(gap == gap, gap, of.inf)  # type: ignore[no-any-return]


def picked(record: Record, rows: Tensor | slice) -> Record:
    """A record of some instances, or of all in another order: ``rows`` ``(k,)`` int64, or a slice."""
    return replace(record, **{f.name: reordered(getattr(record, f.name), rows) for f in fields(record)})


def reordered(value: Any, rows: Tensor | slice) -> Any:
    """Pick instances ``rows`` ``(k,)`` of a tensor or of a tuple of tensors; keep other values."""
    if isinstance(value, tuple):
        return tuple(reordered(v, rows) for v in value)
    if not isinstance(value, Tensor):
        return value
    return value[rows.to(value.device) if isinstance(rows, Tensor) else rows]


def zeros(like: Tensor, columns: int, kind: torch.dtype = torch.float64) -> Tensor:
    """Zeros; on a CPU memory is taken where threads write to it, not before.

    Parameters
    ----------
    like : Tensor
        ``(batch, ...)``: length and device of the result.
    columns : int
        Columns of the result.
    kind : torch.dtype
        Its precision, float32 or float64.

    Returns
    -------
    Tensor
        ``(batch, columns)``.
    """
    shape = (len(like), columns)
    if like.device.type != "cpu":
        return like.new_zeros(shape, dtype=kind)
    return torch.from_numpy(np.zeros(shape, np.float32 if kind == torch.float32 else np.float64))
