"""What a check tells the host: a few numbers of every instance, in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.decomposition.valid_bounds import floor
from blocklp.engine.records import relative_gap
from blocklp.kernels.operations import operation
from blocklp.kernels.plan import Plan

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class StatusRecord:
    """The state of instances at a check, on the host: arrays, where instances are few several times as quick.

    Attributes
    ----------
    bound, primal : array
        ``(k,)`` float64: the best so far, in the sense of minimisation; ``primal`` is infinite
        without a point.
    value : array
        ``(k,)``: the dual value of the present multipliers.
    floor : array
        ``(k,)``: what gaps are relative to at least.
    worst : array
        ``(k,)``: relative violation of the point that might be projected; infinite where none might.
    eta : array
        ``(k,)``: the proximal weight.
    """

    bound: Numbers
    primal: Numbers
    value: Numbers
    floor: Numbers
    worst: Numbers
    eta: Numbers

    @classmethod
    def of(cls, packed: Tensor, positions: Tensor) -> StatusRecord:
        """Unpack the record ``(6, batch)`` of instances at some positions ``(k,)`` int64."""
        values = packed.numpy()
        return cls(*(values if len(positions) == values.shape[1] else values[:, positions.numpy()]))

    @cached_property
    def gap(self) -> Numbers:
        """Relative gaps ``(k,)``."""
        return relative_gap(self.primal, self.bound, self.floor)


@operation
def status_record(
    plan: Plan, bound: Tensor, value: Tensor, primal: Tensor, x: Tensor, worst: Tensor | None, eta: Tensor
) -> Tensor:
    """Pack the status of all instances into one tensor.

    Parameters
    ----------
    plan : Plan
        The problem in float64, and how it is executed.
    bound, value, primal : Tensor
        ``(batch,)``: as in :class:`StatusRecord`; the value in any precision.
    x : Tensor
        ``(batch, variables)`` float64: the points of the best values, from which ``floor`` is made.
    worst : Tensor or None
        ``(batch,)`` float64; None where no point might be projected.
    eta : Tensor
        ``(batch,)``, of any precision.

    Returns
    -------
    Tensor
        ``(6, batch)`` float64, in the order of :class:`StatusRecord`.
    """
    worst = torch.full_like(bound, torch.inf) if worst is None else worst
    return torch.stack([bound, primal, value.double(), floor(plan.problem, x), worst, eta.double()])


class Readout:
    """Numbers that are copied to the host while the device goes on.

    Parameters
    ----------
    values : Tensor
        The numbers; on a CPU they are there at once.
    """

    def __init__(self, values: Tensor) -> None:
        device = values.device
        self._values, self._copied = values.to("cpu", non_blocking=True), None  # into pinned memory
        if device.type != "cpu":
            module = getattr(torch, device.type)
            self._copied = module.Event()
            self._copied.record(module.current_stream(device))

    def read(self) -> Tensor:
        """Wait for the copy, and return it."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._values
