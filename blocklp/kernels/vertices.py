"""Optimal vertices of small LPs by the dual simplex method, in compiled loops."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.program import Program

LOOPS = "blocklp.kernels.tableau_kernels"

PATIENCE, STALL = 10.0, 4.0
"""Most pivots, and pivots after which rows are preferred in turn, over the number of rows and one more."""

PIVOT, VIOLATED = 1e-9, 1e-11
"""Entries of a scaled tableau that count as rounding, and relative violation from which on rows leave."""

TYPICAL = 1.5
"""Pivots for each row, as a rule."""

PASSES, CACHED = 1500, 100_000
"""Passes of PDHG that must read more numbers than these pivots, and entries of a tableau in the cache."""


def small(program: Program) -> bool:
    """Whether a vertex of an instance takes less work than passes, where there are loops for it."""
    rows, variables = program.row.shape[1], program.column.shape[1]
    pivots = TYPICAL * rows * rows * variables
    if pivots > PASSES * program.work or rows * variables > CACHED:
        return False
    return program.loops(LOOPS) is not None


def vertices(program: Program, problem: Decomposition) -> tuple[Tensor, Tensor, Tensor]:
    """Solve the LPs of a program that is :func:`small`.

    Returns
    -------
    x, y, ended : Tensor
        ``(batch, variables)`` and ``(batch, rows)``, in the precision of the program: optimal vertices, and
        duals of rows in their units; zero where the method did not end, ``(batch,)`` bool.
    """
    assert program.layout is not None
    loops, layout = program.loops(LOOPS), program.layout
    assert loops is not None
    x, y = (torch.zeros_like(t, dtype=torch.float64) for t in (program.column, program.row))
    ended = torch.zeros(len(x), dtype=torch.bool)
    limits = torch.tensor([PATIENCE, STALL, PIVOT, VIOLATED], dtype=torch.float64)
    given = problem.cost, program.box.lower, program.box.upper, program.reach
    loops.vertices(
        len(x),
        limits,
        (layout.groups, layout.sparse),
        problem.coupling.places,
        program.entries.double(),
        tuple(t.double() for t in given),
        (program.lower.double(), program.upper.double()),
        (x, y),
        ended,
    )
    return x.to(program.column), y.to(program.row), ended
