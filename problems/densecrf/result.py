"""What every method for dense CRFs returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.status import Status


@dataclass(frozen=True, eq=False)
class History:
    """What was known after every step.

    Attributes
    ----------
    energy, bound : Tensor
        ``(steps, images)`` float64: of the method's own labelling at that step, and the best bound so far.
    seconds : Tensor
        ``(steps,)`` float64: since the start.
    filter_calls : Tensor
        ``(steps,)`` int64: the method's so far, those for energies not counted.
    """

    energy: Tensor
    bound: Tensor
    seconds: Tensor
    filter_calls: Tensor


@dataclass(frozen=True, eq=False)
class Result:
    """A labelling, its energy and a bound.

    Attributes
    ----------
    method : str
        How it was computed.
    labelling : Tensor
        ``(points,)`` int64: the best one seen, the simple ones included.
    source : tuple of str
        Where each image's labelling is from: the method, its start, "unary", "constant" or "mean-field".
    y : Tensor
        ``(points, labels)``: the method's own last point.
    energy, bound : Tensor
        ``(images,)`` float64: energy of the labelling, and a lower bound on that of every labelling.
    history : History
        Energies and bounds by step.
    filter_calls : int
        Applications of all kernels by the method, those for energies not counted.
    seconds : float
        Time spent, simple labellings and energies included.
    status : Status
        PASS_LIMIT after all steps, OPTIMAL if the gap closed, STALLED at a fixed point, TIME_LIMIT, or INTERRUPTED.
    """

    method: str
    labelling: Tensor
    source: tuple[str, ...]
    y: Tensor
    energy: Tensor
    bound: Tensor
    history: History
    filter_calls: int
    seconds: float
    status: Status

    @property
    def gap(self) -> Tensor:
        """Distance of energy and bound, relative to the energy: ``(images,)``."""
        return torch.where(self.energy <= self.bound, 0.0, (self.energy - self.bound) / self.energy.abs().clamp(min=1e-12))
