"""Records of a solve: its limits, the events at its checks, and its results."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.methods.base import Memory
from blocklp.options import per_instance, real, whole

Record = TypeVar("Record", "Event", "Limits", "Results")


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
class Limits:
    """Settings of the stop rules; ``tol`` and ``cutoff`` are ``(batch,)`` float64 on the problem's device."""

    tol: Tensor
    cutoff: Tensor
    passes: int
    deadline: Deadline
    check_every: int | None
    feasibility_tol: float
    patience: int
    mend: bool = True

    @classmethod
    def of(cls, like: Tensor, *, tol: object, cutoff: object, **others: Any) -> Limits:
        """Check options and lay ``tol`` and ``cutoff`` out.

        Parameters
        ----------
        like : Tensor
            ``(batch,)``: their shape and device.
        tol, cutoff : object
            A number, or ``(batch,)`` numbers.
        **others : object
            The other attributes.

        Returns
        -------
        Limits
            ``tol`` and ``cutoff`` are ``(batch,)`` float64.

        Raises
        ------
        OptionError
            If one is out of range.
        """
        for name in ("passes", "check_every", "patience"):
            if name != "check_every" or others[name] is not None:
                whole(others[name], name)
        real(others["feasibility_tol"], "feasibility_tol")
        limit, goal = per_instance(tol, "tol", like, 0.0), per_instance(cutoff, "cutoff", like)
        if bool(limit.isinf().any()):
            need = "it must be a finite gap, at which an instance counts as optimal"
            raise OptionError(f"tol is infinite; {need}")
        return cls(limit, goal, **others)


@dataclass
class Results:
    """The best so far of every instance, ``(batch, ...)``, in the sense of minimisation.

    ``floor`` is that of :func:`relative_gap`.
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
    backend: str = "torch"

    def gap(self) -> Tensor:
        """Relative gap, see :func:`relative_gap`."""
        return relative_gap(self.primal, self.bound, self.floor)


def relative_gap(primal: Tensor, bound: Tensor, floor: Tensor | float = 0.0) -> Tensor:
    r"""Return :math:`|primal - bound| / \max(|primal|, |bound|, floor)`.

    Parameters
    ----------
    primal, bound : Tensor
        ``(batch,)`` float64.
    floor : Tensor or float
        In the units of the costs (:func:`blocklp.checks.floor`), so that no scale of a model is better than
        another.

    Returns
    -------
    Tensor
        ``(batch,)``: zero where both agree, infinite where one of them is.
    """
    scale = torch.maximum(primal.abs(), bound.abs()).clamp(min=torch.as_tensor(floor).to(bound))
    gap = torch.where(primal == bound, 0.0, (primal - bound).abs() / scale)
    return torch.where(torch.isfinite(primal) & torch.isfinite(bound), gap, torch.inf)


def picked(record: Record, rows: Tensor) -> Record:
    """A record of some instances, or of all in another order: ``rows`` ``(k,)`` int64."""
    return replace(record, **{f.name: reordered(getattr(record, f.name), rows) for f in fields(record)})


def reordered(value: Any, rows: Tensor) -> Any:
    """Pick instances ``rows`` ``(k,)`` of a tensor or of a tuple of tensors; keep other values."""
    if isinstance(value, tuple):
        return tuple(reordered(v, rows) for v in value)
    return value[rows] if isinstance(value, Tensor) else value
