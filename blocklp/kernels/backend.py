"""The backend of a solve: torch operations, loops that numba compiles for the CPU, Triton, or one added.

A backend is a name under which implementations of operations are registered
(:mod:`blocklp.kernels.operations`).  All do what the methods say; sums are added in another order, so
that iterates differ in their last digits, and bounds hold in any.  Only the backend ``"numba"`` finds
the vertices of small LPs (:mod:`blocklp.kernels.vertices`), which saves passes of ``race``.  Within a
backend an instance has the same bits whatever is beside it in its batch, and whatever the number of
threads; but whether ``race`` begins at a vertex goes by the largest instance of the batch.

``"auto"`` decides before the first pass, by the number of copies and passes, by what is installed and
already compiled, and by the time limit; nothing is measured.  Loops serve where tensor operations would
take longer than it takes to load the loops, or to compile them where no process has on this machine.  A
solve of a few milliseconds that is repeated thousands of times is better off with ``backend="numba"``.
The environment variable ``BLOCKLP_BACKEND`` says what ``"auto"`` means.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.kernels import compiled
from blocklp.kernels.compiled import BUSY, COMPILING, LOADING, VARIABLE

BY_BLOCKS = (
    "blocklp.kernels.fused_kernels",
    "blocklp.kernels.row_kernels",
    "blocklp.kernels.projection_kernels",
)
"""Modules of loops for all methods that belong to no block type, those of checks and projections included."""

ENGINE = (
    *BY_BLOCKS,
    "blocklp.kernels.program_kernels",
    "blocklp.kernels.batch_kernels",
    "blocklp.kernels.tableau_kernels",
    "blocklp.kernels.newton_kernels",
)
"""Those, and the modules for methods that take rows beside the blocks; to load them takes a first solve some
hundredths of a second."""

PER_PASS, PER_COPY = 3.5e-4, 3.3e-8
"""Seconds that a pass by tensor operations takes, and what it takes more for a copy of a variable, about."""


@dataclass(frozen=True)
class Registered:
    """A backend that there is.

    Attributes
    ----------
    builds_on : tuple of str
        The backends whose implementations serve, its own name first; definitions come after all of them.
    device : str or None
        The type of device that it is for; None for any.
    modules : tuple of str
        Modules that register its implementations, imported when it is first chosen.
    """

    builds_on: tuple[str, ...]
    device: str | None = None
    modules: tuple[str, ...] = ()


_NUMBA = ("blocklp.kernels.numba_instances", "blocklp.kernels.numba_rows")
_TRITON = (
    "blocklp.kernels.triton_admm",
    "blocklp.kernels.triton_check_operations",
    "blocklp.kernels.triton_rows",
    "blocklp.kernels.triton_projection",
    "blocklp.methods.triton_vertices",
    "blocklp.methods.triton_prox",
)
BACKENDS = {
    "torch": Registered(()),
    "numba": Registered(("numba",), "cpu", _NUMBA),
    "triton": Registered(("triton",), "cuda", _TRITON),
}
"""All backends, by name."""

AUTOMATIC = {kind.device: name for name, kind in BACKENDS.items()}
"""What ``"auto"`` means on each type of device; on others the definitions run."""


ACCELERATORS = tuple(sorted({kind.device for kind in BACKENDS.values()} - {None, "cpu"}, key=str))
"""Types of devices, beside the CPU, that have backends of their own."""

DEVICES = ", ".join(["cpu", *(f"{kind} or {kind}:N" for kind in ACCELERATORS)])
"""Names of devices, for messages."""


def accelerators() -> dict[str, str]:
    """Devices of these types that are there: names, and what they are, as ``{"cuda:0": "NVIDIA H100"}``."""
    found: dict[str, str] = {}
    for kind in ACCELERATORS:
        module = getattr(torch, str(kind))
        found |= {f"{kind}:{i}": module.get_device_name(i) for i in range(module.device_count())}
    return found


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the one on which kernels start that are not told where."""
    return getattr(torch, device.type).device(device) if device.type in ACCELERATORS else nullcontext()


def add_backend(name: str, builds_on: str = "torch", device: str | None = None) -> None:
    """Add a backend, under whose name implementations can then be registered.

    Parameters
    ----------
    name : str
        Its name, for ``compile(model, backend=name)``.
    builds_on : str
        The backend that serves whatever it does not implement.
    device : str, optional
        The type of device that it is for, such as ``"cuda"``; by default that of ``builds_on``.

    Raises
    ------
    OptionError
        If there is another backend of this name, or none to build on.
    """
    base = known(builds_on)
    made = Registered((name, *base.builds_on), device or base.device, base.modules)
    if name == "auto" or BACKENDS.get(name, made) != made:
        raise OptionError(f"there is a backend {name!r} already; choose another name")
    BACKENDS[name] = made


def known(name: object, option: str = "backend") -> Registered:
    """Return the backend of a name, which the caller gave for an option.

    Raises
    ------
    OptionError
        If there is none.
    """
    if not isinstance(name, str) or name not in BACKENDS:
        names = ", ".join(map(repr, ("auto", *BACKENDS)))
        raise OptionError(f"{option} is {name!r}; choose one of {names}")
    return BACKENDS[name]


@dataclass(frozen=True)
class Backend:
    """What runs the operations of a solve.

    Attributes
    ----------
    name : str
        Its name; ``"auto"`` before it was chosen, when tensor operations serve.
    modules : frozenset of str
        The modules of compiled loops that serve.
    """

    name: str = "auto"
    modules: frozenset[str] = frozenset()

    @functools.cached_property
    def builds_on(self) -> tuple[str, ...]:
        """The backends whose implementations serve, one after the other."""
        return () if self.name == "auto" else known(self.name).builds_on

    def loops(self, module: str) -> ModuleType | None:
        """Return a module of compiled loops; None where tensor operations serve in its place."""
        return compiled.loops(module) if module in self.modules else None


AUTO = Backend()


def automatic(device: torch.device) -> str:
    """Return the name of the backend that ``"auto"`` stands for on a device; "torch" where that cannot run.

    Raises
    ------
    OptionError
        If the environment variable names no backend.
    """
    if (name := os.environ.get(VARIABLE, "auto")) == "auto":
        name = AUTOMATIC.get(device.type, "torch")
    return name if runs_on(known(name, VARIABLE), device) else "torch"


_said: list[str] = []


def choose(
    asked: str,
    device: torch.device,
    copies: int,
    passes: int,
    kernels: frozenset[str],
    dtype: torch.dtype,
    deadline: Deadline,
    engine: tuple[str, ...] = ENGINE,
) -> Backend:
    """Choose the backend of a solve.

    Parameters
    ----------
    asked : str
        ``"auto"``, or the name of a backend.
    device : torch.device
        Where tensors are; loops are for the CPU.
    copies : int
        Copies of variables, of all instances together.
    passes : int
        Passes that the method takes, as a rule.
    kernels : frozenset of str
        Modules of compiled loops of the block types, beside those of the engine.
    dtype : dtype
        Precision of the iterates.
    deadline : Deadline
        Loops that would not be ready in time do not serve.
    engine : tuple of str
        The modules of the engine that the method may take.

    Raises
    ------
    OptionError
        If the environment variable names no backend.
    """
    if asked == "auto" and (asked := os.environ.get(VARIABLE, "auto")) != "auto":
        known(asked, VARIABLE)
    seconds = passes * (PER_PASS + PER_COPY * copies) if asked == "auto" else float("inf")
    name = AUTOMATIC.get(device.type, "torch") if asked == "auto" else asked
    kind = known(name)
    if seconds < LOADING or not runs_on(kind, device):
        return Backend("torch")
    if "numba" not in kind.builds_on:
        for module in kind.modules:
            importlib.import_module(module)
        return Backend(name)
    precisions = {torch.float64, dtype}
    ready = frozenset(m for m in kernels.union(engine) if _ready(m, precisions, seconds, deadline))
    found = Backend("torch") if name == "numba" and not ready else Backend(name, ready)
    for module in kind.modules if ready else ():
        importlib.import_module(module)
    logging.getLogger("blocklp").info("backend %s for %d copies of variables", found.name, copies)
    return found


def runs_on(kind: Registered, device: torch.device) -> bool:
    """Whether a backend's implementations take tensors of a device; Triton's interpreter takes all."""
    if "triton" not in kind.builds_on:
        return kind.device in (None, device.type)
    there = importlib.util.find_spec("triton") is not None
    return there and (device.type == kind.device or os.environ.get("TRITON_INTERPRET") == "1")


def _ready(module: str, precisions: set[torch.dtype], seconds: float, deadline: Deadline) -> bool:
    """Whether the loops of a module pay, and are there in time."""
    if module not in sys.modules and not deadline.affords(BUSY * LOADING):
        return False
    found = compiled.wanted(module)
    if found is None or all(compiled.cached(found, kind) for kind in precisions):
        return found is not None
    if not _said:
        _said.append(module)
        message = "loops are not compiled on this machine, and serve only where that pays at once: %s"
        logging.getLogger("blocklp").info(message, "run `blocklp warm-up`, which takes a few minutes")
    return seconds >= COMPILING and deadline.affords(BUSY * COMPILING)
