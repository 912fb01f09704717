"""Optimal vertices of small LPs, where a backend has loops of the dual simplex method."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.operations import operation
from blocklp.kernels.program import Program

TYPICAL = 1.5
"""Pivots for each row, as a rule."""

PASSES, CACHED = 1500, 100_000
"""Passes of PDHG that must read more numbers than these pivots, and entries of a tableau in the cache."""


def small(program: Program, problem: Decomposition) -> bool:
    """Whether a vertex of an instance takes less work than passes, where there are loops for it."""
    rows, variables = program.lower.shape[1], program.reach.shape[1]
    pivots = TYPICAL * rows * rows * variables
    if pivots > PASSES * program.work or rows * variables > CACHED:
        return False
    return vertices.implementation(program, problem) is not None


@operation
def vertices(program: Program, problem: Decomposition) -> tuple[Tensor, Tensor, Tensor]:
    """Solve the LPs of a program that is :func:`small`; the definition leaves all of them to passes.

    Returns
    -------
    x, y, ended : Tensor
        ``(batch, variables)`` and ``(batch, rows)``, in the precision of the program: optimal vertices, and
        duals of rows in their units; zero where the method did not end, ``(batch,)`` bool.
    """
    ended = torch.zeros(len(program.lower), dtype=torch.bool, device=program.lower.device)
    return torch.zeros_like(program.reach), torch.zeros_like(program.lower), ended
