"""Compiled loops where they can be had in time.

Numba compiles a loop when it is first called, for seconds, unless a cache holds it.  So all loops are called once on a few points
before the work, or tensor operations stand in for them where a deadline leaves no time for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.kernels.backend import automatic
from blocklp.kernels.compiled import in_time, until
from blocklp.oracles.filters.lattice_operations import LOOPS
from blocklp.oracles.filters.ordered import ordered_filter
from blocklp.oracles.filters.permutohedral import Lattice

_called: set[torch.dtype] = set()


@contextmanager
def loops_in_time(deadline: Deadline, unary: Tensor) -> Iterator[None]:
    """Have compiled loops for a precision and float64 ready, or do without those that would not be ready in time.

    On a device other than the CPU no loops are needed.

    Parameters
    ----------
    deadline : Deadline
        When the work is to be done.
    unary : Tensor
        Costs of the precision, on the device.
    """
    with until(deadline):
        looped = unary.device.type == "cpu" and automatic(unary.device) != "triton"
        for kind in {torch.float64, unary.dtype} - _called if looped else ():
            if all(in_time(module, kind) is not None for module in LOOPS.values()):
                _call(kind)
        yield


def _call(kind: torch.dtype) -> None:
    """Call every loop for a precision."""
    # So many points in one place that their scores are more than the levels.
    lattice = Lattice.build(torch.zeros(200, 1, dtype=torch.float64))
    scores = torch.linspace(0, 1, 200)[:, None].to(kind)
    lattice.filter(scores)
    _ = lattice.diagonal
    for levels in (2, None):
        ordered_filter(lattice, scores, levels=levels)
    _called.add(kind)
