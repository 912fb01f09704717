"""A device to measure on: a real one, or the simulated one, whose seconds are predictions of a model."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

        if importlib.util.find_spec("triton") is not None:
            os.environ["TRITON_INTERPRET"] = "1"
            from tests.triton_interpreter import patch_once

            patch_once()
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
        found, trace = self.counted(work)
        return found, self.predicted(trace, scale)

    def counted(self, work: Callable[[], Result]) -> tuple[Result, Any]:
        """Run some work on the simulated device; return its result and the trace of what ran."""
        from tests import simulated_device

        with simulated_device.watch("blocklp") as trace:
            return work(), trace

    def predicted(self, trace: Any, scale: float) -> dict[str, Any]:
        """What :meth:`measured` says of a trace with so many times as many bytes."""
        from tests import simulated_device

        parts = ("read", "written", "sectors", "moved", "blocks")
        events = [replace_event(e, parts, scale) for e in trace.events]
        scaled = simulated_device.Trace(trace.prefix, events=events)
        predicted = scaled.estimate(simulated_device.H100).total
        counts = {"launches": trace.launches, "waits": trace.syncs, "GB": scaled.bytes / 1e9}
        return {"seconds": None, "predicted": predicted, **counts}

    @contextmanager
    def with_triton(self) -> Iterator[None]:
        """Let ``"auto"`` take Triton's kernels where they are interpreted, too, as it does on a real device."""
        if self.real or os.environ.get("TRITON_INTERPRET") != "1":
            yield
            return
        before = os.environ.get("BLOCKLP_BACKEND")
        os.environ["BLOCKLP_BACKEND"] = "triton"
        try:
            yield
        finally:
            os.environ.pop("BLOCKLP_BACKEND")
            if before is not None:
                os.environ["BLOCKLP_BACKEND"] = before

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
