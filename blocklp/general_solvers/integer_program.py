"""Integer programs that are written out as rows, solved by HiGHS."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from blocklp.general_solvers.linear_program import Array, LinearProgram, loaded_highs
from blocklp.general_solvers.small_lp import run_interruptibly

TOLERANCE = 1e-7
"""HiGHS's own for rows and reduced costs; trees take longer with tighter ones."""


@dataclass(frozen=True)
class IntegerResult:
    """What HiGHS has found, in the sense of minimisation.

    Attributes
    ----------
    x : ndarray or None
        ``(variables,)``: the best point, with integers to HiGHS's tolerance.
    bound : float
        No point below the cutoff is better, by HiGHS's own account; infinite where it says that there is
        none.
    ended : bool
        Whether that is all: the point is optimal, or reaches the target, or there is none.
    nodes : int
        Nodes of its tree.
    """

    x: Array | None
    bound: float
    ended: bool
    nodes: int


def solved_by_highs(
    program: LinearProgram,
    integer: NDArray[np.bool_],
    *,
    cutoff: float = math.inf,
    target: float = -math.inf,
    nodes: int | None = None,
    seconds: float = math.inf,
) -> IntegerResult:
    """Minimise over the points of a program with some variables integer.

    Parameters
    ----------
    program : LinearProgram
        To be minimised.
    integer : ndarray
        ``(variables,)`` bool.
    cutoff : float
        Value, without the offset, that no point of interest exceeds.
    target : float
        Value, without the offset, at which the first point will do.
    nodes : int, optional
        Most nodes.
    seconds : float
        Time limit.

    Returns
    -------
    IntegerResult
        Values are without the offset.

    Raises
    ------
    KeyboardInterrupt
        By Ctrl-C, once HiGHS has ended.
    """
    import highspy

    if math.isfinite(cutoff):
        row = csr_array(program.c[None])
        program = replace(
            program,
            A=csr_array(vstack([program.A, row], format="csr")),
            row_lower=np.append(program.row_lower, -np.inf),
            row_upper=np.append(program.row_upper, cutoff),
        )
    tolerances = {f"{kind}_feasibility_tolerance": TOLERANCE for kind in ("primal", "dual")}
    highs = loaded_highs(program, mip_rel_gap=0.0, **tolerances)
    marks = np.flatnonzero(integer).astype(np.int32)
    highs.changeColsIntegrality(len(marks), marks, np.full(len(marks), highspy.HighsVarType.kInteger))
    limits = {"objective_target": target, "time_limit": min(seconds, 1e9)}
    for name, value in limits.items() if nodes is None else {**limits, "mip_max_nodes": nodes}.items():
        highs.setOptionValue(name, value)
    run_interruptibly(highs)
    status, info, known = highs.getModelStatus(), highs.getInfo(), highspy.HighsModelStatus
    if status in (known.kInfeasible, known.kUnboundedOrInfeasible):
        return IntegerResult(None, math.inf, True, max(0, info.mip_node_count))
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    x = np.array(highs.getSolution().col_value) if found else None
    ended = status in (known.kOptimal, known.kObjectiveTarget)
    return IntegerResult(x, float(info.mip_dual_bound), ended, max(0, info.mip_node_count))
