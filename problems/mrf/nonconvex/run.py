"""A run of a nonconvex method, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.problems.mrf.nonconvex.multilinear import Multilinear
from blocklp.status import Status


@dataclass(frozen=True)
class NonconvexHistory:
    """What a method had after every step.

    Attributes
    ----------
    value : Tensor, shape (steps, batch), float64
        Its objective; of ``admm`` the energy of the mean of the copies.
    seconds : Tensor, shape (steps,), float64
        Since the start.
    """

    value: Tensor
    seconds: Tensor


@dataclass(frozen=True)
class Minimised:
    """A labelling for each start.

    Attributes
    ----------
    method : str
        How it was computed.
    labels : Tensor, shape (batch, n), int64
    energy : Tensor, shape (batch,), float64
        Their true energies, ``inf`` where a hard constraint is violated.
    point : Tensor, shape (batch, n, most labels), float64
        The method's last point, from which the labels were rounded; 0 where there is no such label.
    value : Tensor, shape (batch,), float64
        The multilinear energy there, infinite entries softened.
    history : NonconvexHistory
    seconds : float
        Time spent.
    status : Status
        STALLED at a point that the method does not leave, PASS_LIMIT after all steps, TIME_LIMIT, or INTERRUPTED.
    """

    method: str
    labels: Tensor
    energy: Tensor
    point: Tensor
    value: Tensor
    history: NonconvexHistory
    seconds: float
    status: Status

    @property
    def best(self) -> int:
        """The start with the least energy."""
        return int(self.energy.argmin())


class NonconvexRun:
    """What methods work on: the energy, their points and the clock.

    Attributes
    ----------
    energy : Multilinear
    point : Tensor, shape (batch, n, most labels)
        Last points; the start at first.
    status : Status
        PASS_LIMIT unless something else ends the run.
    """

    def __init__(self, energy: Multilinear, start: Tensor, deadline: Deadline) -> None:
        self.energy, self.point, self.status = energy, start, Status.PASS_LIMIT
        self._deadline, self._began = deadline, deadline.elapsed()
        self._trace: list[tuple[Tensor, float]] = []

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return self._deadline.elapsed() - self._began

    def step(self, point: Tensor, value: Tensor) -> bool:
        """Note a step's points and the objective there ``(batch,)``; return whether time is up."""
        self.point = point
        self._trace.append((value, self.seconds))
        return self.over()

    def over(self) -> bool:
        """Whether time is up."""
        if self._deadline.over():
            self.status = Status.TIME_LIMIT
        return self.status == Status.TIME_LIMIT

    def history(self) -> NonconvexHistory:
        """Steps so far."""
        none = self.point.new_empty(0, len(self.point))
        values = torch.stack([value for value, _ in self._trace]) if self._trace else none
        return NonconvexHistory(values, torch.tensor([seconds for _, seconds in self._trace], dtype=torch.float64))
