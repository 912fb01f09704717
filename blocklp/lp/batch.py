"""Linear programs that share a matrix, together: one call of the engine, and what is then still open one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from blocklp.deadline import Deadline
from blocklp.linear_program import LinearProgram
from blocklp.lp import passes as passing
from blocklp.lp.best import Best
from blocklp.lp.scaling import Scaled
from blocklp.lp.solve import LinearSolution, solve_linear_program
from blocklp.status import Status

PASSES = 2000
"""Most passes of PDHG for all: what is open then needs another method more than passes."""


def solve_linear_programs(
    programs: Sequence[LinearProgram], *, tol: float, time_limit: float | Deadline = math.inf, passes: int, presolve: bool
) -> list[LinearSolution]:
    """Solve LPs of minimisation with one matrix; parameters and answers are those of :func:`solve_linear_program`."""
    deadline, first = Deadline.of(time_limit), programs[0]
    bests = [Best(program, tol, deadline) for program in programs]
    made = np.zeros(len(programs), dtype=np.int64)
    sound = all((p.lower <= p.upper).all() and (p.row_lower <= p.row_upper).all() and np.isfinite(p.c).all() for p in programs)
    if first.A.nnz and sound and len(programs) > 1:
        scaled = [Scaled.of(program) for program in programs]
        boxes = [best.box(program, None) for best, program in zip(bests, programs, strict=True)]
        units = [own.column * own.sides for own in scaled]
        low, high = (np.stack([box[k] / unit for box, unit in zip(boxes, units, strict=True)]) for k in (0, 1))
        least, most = (np.stack([getattr(own.program, name) for own in scaled]) for name in ("row_lower", "row_upper"))
        cost = np.stack([own.program.c for own in scaled])
        found = passing.solved(scaled[0].program.A, cost, (least, most), (low, high), tol, deadline, min(passes, PASSES), None)
        made = found.passes.numpy()
        for best, own, x, price in zip(bests, scaled, *passing.points(found), strict=True):
            best.offer(*own.restore(x, price))
    return [_rest(best, int(count), tol, deadline, passes, presolve) for best, count in zip(bests, made, strict=True)]


def _rest(best: Best, made: int, tol: float, deadline: Deadline, passes: int, presolve: bool) -> LinearSolution:
    """The answer of an LP after so many passes; where it is not near enough, the method for one goes on."""
    if best.gap() > tol:
        return solve_linear_program(best.program, tol=tol, time_limit=deadline, passes=max(1, passes - made), presolve=presolve)
    proof = best.proof
    values = proof.value, best.primal, best.gap(), best.x, proof.price, proof.declared, proof.reach, made, deadline.elapsed()
    return LinearSolution(Status.OPTIMAL, *values)
