"""A device to measure on: a real one, or the simulated one, whose seconds are predictions of a model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from blocklp.kernels.backend import accelerators

Result = TypeVar("Result")


@dataclass(frozen=True)
class Place:
    """A device.

    Attributes
    ----------
    device : torch.device
        For ``device=``.
    name : str
        What it is.
    real : bool
        Whether its seconds are measured.
    """

    device: torch.device
    name: str
    real: bool

    @classmethod
    def of_this_machine(cls) -> Place:
        """The first accelerator, or the simulated device where there is none."""
        for device, what in accelerators().items():
            return cls(torch.device(device), what, True)
        from tests import simulated_device

        if os.environ.get("TRITON_INTERPRET") == "1":
            simulated_device.count_triton()
        return cls(simulated_device.install(), "simulated H100", False)

    def measured(self, work: Callable[[], Result], scale: float = 1.0) -> tuple[Result, dict[str, Any]]:
        """Run some work.

        Parameters
        ----------
        work : callable
            What to measure; on a real device it runs twice, and the second run counts: the first one compiles.
        scale : float
            On the simulated device: how many times as many bytes the work is meant to move.

        Returns
        -------
        result
            What the work returned.
        dict
            ``seconds`` (None on the simulated device), ``predicted`` (None on a real one), ``launches``, ``waits`` and ``GB``
            (of memory traffic; None on a real one).
        """
        if self.real:
            work()
            self._wait()
            began = time.perf_counter()
            found = work()
            self._wait()
            seconds = time.perf_counter() - began
            return found, {"seconds": seconds, "predicted": None, "launches": None, "waits": None, "GB": None}
        from tests import simulated_device

        with simulated_device.watch("blocklp") as trace:
            found = work()
        waits, launches = trace.syncs, trace.launches
        parts = ("read", "written", "sectors", "moved", "blocks")
        trace.events = [replace_event(e, parts, scale) for e in trace.events]
        predicted = trace.estimate(simulated_device.H100).total
        counts = {"launches": launches, "waits": waits, "GB": trace.bytes / 1e9}
        return found, {"seconds": None, "predicted": predicted, **counts}

    def free_bytes(self) -> int:
        """Free memory; that of an H100 where it is simulated."""
        module: Any = getattr(torch, self.device.type)
        return int(module.mem_get_info(self.device)[0])

    def _wait(self) -> None:
        module: Any = getattr(torch, self.device.type)
        module.synchronize(self.device)


def replace_event(event: Any, parts: tuple[str, ...], scale: float) -> Any:
    """An operator of the simulated device on so many times as many numbers; reads of single ones stay."""
    if event.waits and event.moved < 64:
        parts = tuple(part for part in parts if part != "moved")
    return event._replace(**{part: round(getattr(event, part) * scale) for part in parts})
