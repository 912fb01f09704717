"""A deadline that comes at the same time in all processes."""

from __future__ import annotations

import math

import torch

from blocklp.deadline import Deadline
from blocklp.distributed.processes import Processes


class AgreedDeadline(Deadline):
    """A deadline whose clock is that of the process in which most time has passed.

    Whoever reads it reads it in all processes at the same time.  Without a limit clocks decide nothing, and
    every process reads its own.

    Parameters
    ----------
    given : Deadline
        That of this process.
    processes : Processes
        All of them.
    """

    def __init__(self, given: Deadline, processes: Processes) -> None:
        least = -float(processes.greatest(torch.tensor([-given.seconds], dtype=torch.float64)))
        super().__init__(least, began=given.began)
        self._processes = processes

    def elapsed(self) -> float:
        """Seconds since it began, at most over all processes."""
        own = super().elapsed()
        if self.seconds == math.inf:
            return own
        return float(self._processes.greatest(torch.tensor([own], dtype=torch.float64)))

    def affords(self, seconds: float) -> bool:
        """Whether a phase would end in time in the process where it takes longest."""
        if self.seconds == math.inf:
            return True
        most = self._processes.greatest(torch.tensor([seconds], dtype=torch.float64))
        return self.left() >= float(most)
