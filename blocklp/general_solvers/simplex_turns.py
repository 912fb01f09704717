"""Turns of HiGHS's simplex method beside passes over the rows: their limits, and what they cost.

Times are of one core at some three gigahertz, in microseconds, and only their ratio counts: how many
iterations take as long as so many passes is a count, the same on every machine.
"""

from __future__ import annotations

from typing import Any

from blocklp.general_solvers.small_lp import run_interruptibly

LONG = 1e5
"""Microseconds from which on a call is made so that Ctrl-C ends it."""


def pass_time(numbers: int) -> float:
    """Microseconds of a pass over the rows in compiled loops that reads and writes so many numbers."""
    return 10.0 + 7e-4 * numbers


def iteration_time(rows: int, nonzeros: int) -> float:
    """Microseconds of an iteration of the simplex method where the matrix has structure.

    The longer rows are, the more its factors fill up.  Those of random matrices fill up altogether: an
    iteration takes ten times as long and more.
    """
    return min(100.0, 20.0 + 1e-4 * nonzeros**2 / max(1, rows))


def typical_iterations(rows: int, nonzeros: int) -> float:
    """Iterations that the simplex method takes as a rule: two for each row, fewer where rows are short."""
    return min(2.0 * rows, 0.2 * nonzeros)


def affordable(time: float, rows: int, nonzeros: int) -> tuple[int, bool]:
    """Iterations of the simplex method within some time, and whether that is enough as a rule.

    Parameters
    ----------
    time : float
        Microseconds.
    rows, nonzeros : int
        Of the LP.
    """
    iterations = int(time / iteration_time(rows, nonzeros))
    return iterations, iterations >= typical_iterations(rows, nonzeros)


def run_within(highs: Any, seconds: float, iterations: int) -> Any:
    """Let HiGHS go on from where it is, for so long at most.

    Parameters
    ----------
    highs : highspy.Highs
        With an LP, whose basis is kept from one call to the next.
    seconds : float
        Most time of this call.
    iterations : int
        Most iterations of this call.

    Returns
    -------
    HighsModelStatus
        ``kOptimal``, or why there is no optimum.

    Raises
    ------
    KeyboardInterrupt
        By Ctrl-C, once HiGHS has ended.
    """
    highs.setOptionValue("simplex_iteration_limit", iterations)
    # The clock of HiGHS runs on from one call to the next.
    highs.setOptionValue("time_limit", highs.getRunTime() + max(0.0, min(seconds, 1e9)))
    rows, nonzeros = highs.getNumRow(), highs.getNumNz()
    expected = min(iterations, typical_iterations(rows, nonzeros)) * iteration_time(rows, nonzeros)
    if expected > LONG:
        run_interruptibly(highs)
    else:
        highs.run()
    return highs.getModelStatus()
