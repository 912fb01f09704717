"""Linear programs that share a matrix: one call of the engine where that pays, then one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from blocklp.deadline import Deadline
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.general_solvers.small_lp import available
from blocklp.lp import passes as passing
from blocklp.lp.best import Best
from blocklp.lp.rounds import simplex_turn
from blocklp.lp.scaling import Scaled
from blocklp.lp.solve import LinearSolution, solve_linear_program
from blocklp.status import Status

PASSES = 2000
"""Most passes of PDHG for all LPs together; those still open are left to :func:`solve_linear_program`."""


def solve_linear_programs(
    programs: Sequence[LinearProgram],
    *,
    tol: float,
    time_limit: float | Deadline = math.inf,
    passes: int,
    presolve: bool,
    simplex: bool,
) -> list[LinearSolution]:
    """Solve LPs of minimisation that share a matrix.

    Parameters
    ----------
    programs : sequence of LinearProgram
        LPs of minimisation, at least one, with equal ``A``.
    tol : float
        Relative gap to be certified.
    time_limit : float or Deadline
        Seconds for all.
    passes : int
        Most passes over the rows, Newton steps and simplex iterations of each LP.
    presolve : bool
        Whether HiGHS reduces LPs that are solved one by one, where highspy is installed.
    simplex : bool
        Whether HiGHS's simplex method has turns on these.

    Returns
    -------
    list of LinearSolution
        One a program.

    Raises
    ------
    OptionError, NonFiniteError
        Those of :func:`blocklp.lp.solve_linear_program`.
    """
    deadline, matrix = Deadline.of(time_limit), programs[0].A
    bests = [Best(program, tol, deadline) for program in programs]
    counts = np.zeros(len(programs), dtype=np.int64)
    # Where the simplex method is enough as a rule, each is solved sooner alone.
    together = len(programs) > 1 and not (simplex and available() and simplex_turn(programs[0], PASSES)[1])
    if together and matrix.nnz and all(map(_consistent, programs)):
        scaled = [Scaled.of(program) for program in programs]
        boxes = [best.box(program, None) for best, program in zip(bests, programs, strict=True)]
        units = [scaling.column * scaling.sides for scaling in scaled]
        low = np.stack([box[0] / unit for box, unit in zip(boxes, units, strict=True)])
        high = np.stack([box[1] / unit for box, unit in zip(boxes, units, strict=True)])
        sides = (
            np.stack([scaling.program.row_lower for scaling in scaled]),
            np.stack([scaling.program.row_upper for scaling in scaled]),
        )
        cost, count = np.stack([scaling.program.c for scaling in scaled]), min(passes, PASSES)
        matrix = scaled[0].program.A
        solution = passing.solved(matrix, cost, sides, (low, high), tol, deadline, count, None)
        counts = solution.passes.numpy()
        for best, scaling, x, price in zip(bests, scaled, *passing.points(solution), strict=True):
            best.offer(*scaling.restore(x, price))
    results = []
    for best, count in zip(bests, counts.tolist(), strict=True):
        if best.gap() > tol:
            result = solve_linear_program(
                best.program,
                tol=tol,
                time_limit=deadline,
                passes=max(1, passes - count),
                presolve=presolve,
                simplex=simplex,
            )
        else:
            result = _optimal(best, count, deadline)
        results.append(result)
    return results


def _consistent(program: LinearProgram) -> bool:
    """Whether no lower side or bound is above its upper one, and costs are finite."""
    sides = (program.row_lower <= program.row_upper).all() and (program.lower <= program.upper).all()
    return bool(sides and np.isfinite(program.c).all())


def _optimal(best: Best, passes: int, deadline: Deadline) -> LinearSolution:
    """The answer for an LP whose gap is within the tolerance."""
    proof = best.proof
    return LinearSolution(
        Status.OPTIMAL,
        bound=proof.value,
        primal=best.primal,
        gap=best.gap(),
        x=best.x,
        row_price=proof.price,
        declared=proof.declared,
        reach=proof.reach,
        passes=passes,
        seconds=deadline.elapsed(),
    )
