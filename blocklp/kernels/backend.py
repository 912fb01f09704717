"""The backend of a solve: plain torch operations, or loops that numba compiles for the CPU.

Both do what the methods say; sums are added in another order, so that iterates differ in their last digits,
and bounds hold in either.  Loops alone find the vertices of small LPs (:mod:`blocklp.kernels.vertices`),
which saves passes.  Within a backend an instance has the same bits whatever is beside it in its batch, and
whatever the number of threads; but whether ``race`` begins at a vertex goes by the largest instance of the
batch.

``"auto"`` decides before the first pass, by what is counted and by what is installed, never by a clock: loops
serve where tensor operations would take longer than it takes to load the loops, or to compile them where no
process has on this machine.  A solve of a few milliseconds that is repeated thousands of times is better off
with ``backend="numba"``.  The environment variable ``BLOCKLP_BACKEND`` says what ``"auto"`` means where a
model is compiled by a function that has no such option.
"""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from types import ModuleType

import torch

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.kernels import compiled
from blocklp.kernels.compiled import BUSY, COMPILING, LOADING, VARIABLE

NAMES = ("auto", "torch", "numba")

ENGINE = (
    "blocklp.kernels.fused_kernels",
    "blocklp.kernels.row_kernels",
    "blocklp.kernels.program_kernels",
    "blocklp.kernels.batch_kernels",
    "blocklp.kernels.projection_kernels",
    "blocklp.kernels.tableau_kernels",
)
"""Modules of loops that belong to no block type, and serve without others."""

PER_PASS, PER_COPY = 3.5e-4, 3.3e-8
"""Seconds that a pass by tensor operations takes, and what it takes more for a copy of a variable, about."""


@dataclass(frozen=True)
class Backend:
    """What runs the operations of a solve.

    Attributes
    ----------
    name : str
        ``"torch"`` or ``"numba"``; ``"auto"`` before it was chosen, when tensor operations serve.
    modules : frozenset of str
        The modules of compiled loops that serve.
    """

    name: str = "auto"
    modules: frozenset[str] = frozenset()

    def loops(self, module: str) -> ModuleType | None:
        """Return a module of compiled loops; None where tensor operations serve in its place."""
        return compiled.loops(module) if module in self.modules else None


AUTO = Backend()
_said: list[str] = []


def choose(
    asked: str,
    device: torch.device,
    copies: int,
    passes: int,
    kernels: frozenset[str],
    kind: torch.dtype,
    deadline: Deadline,
) -> Backend:
    """Choose the backend of a solve.

    Parameters
    ----------
    asked : str
        ``"auto"``, ``"torch"`` or ``"numba"``.
    device : torch.device
        Where tensors are; loops are for the CPU.
    copies : int
        Copies of variables, of all instances together.
    passes : int
        Passes that the method takes, as a rule.
    kernels : frozenset of str
        Modules of compiled loops of the block types, beside those of the engine.
    kind : dtype
        Precision of the iterates.
    deadline : Deadline
        Loops that would not be ready in time do not serve.

    Raises
    ------
    OptionError
        If the environment variable names no backend.
    """
    if asked == "auto" and (asked := os.environ.get(VARIABLE, "auto")) not in NAMES:
        raise OptionError(f"{VARIABLE} is {asked!r}; choose one of {', '.join(map(repr, NAMES))}")
    seconds = passes * (PER_PASS + PER_COPY * copies) if asked == "auto" else float("inf")
    if asked == "torch" or device.type != "cpu" or seconds < LOADING:
        return Backend("torch")
    kinds = {torch.float64, kind}
    ready = frozenset(m for m in kernels.union(ENGINE) if _ready(m, kinds, seconds, deadline))
    found = Backend("numba" if ready else "torch", ready)
    logging.getLogger("blocklp").info("backend %s for %d copies of variables", found.name, copies)
    return found


def _ready(module: str, kinds: set[torch.dtype], seconds: float, deadline: Deadline) -> bool:
    """Whether the loops of a module pay, and are there in time."""
    if module not in sys.modules and not deadline.affords(BUSY * LOADING):
        return False
    found = compiled.wanted(module)
    if found is None or all(compiled.cached(found, kind) for kind in kinds):
        return found is not None
    if not _said:
        _said.append(module)
        message = "loops are not compiled on this machine, and serve only where that pays at once: %s"
        logging.getLogger("blocklp").info(message, "run `blocklp warm-up`, which takes a minute or two")
    return seconds >= COMPILING and deadline.affords(BUSY * COMPILING)
