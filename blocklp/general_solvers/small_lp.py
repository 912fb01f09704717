"""Reference solutions of one small dense LP, in floating point and in rationals.

Both solve ``min <cost, x>`` subject to ``lower <= matrix @ x <= upper`` and know nothing of blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import numpy as np

from blocklp.errors import BlocklpError

TOLERANCE = 1e-9
"""Feasibility and optimality tolerance asked of HiGHS."""

POLL = 0.1
"""Seconds between two looks for Ctrl-C while HiGHS runs."""

DUAL_SIMPLEX, PRIMAL_SIMPLEX, EQUILIBRATED = 1, 4, 3
"""HiGHS's numbers of its simplex methods, and of scaling rows and columns whatever their entries."""


@functools.cache
def available() -> bool:
    """Whether highspy is installed."""
    return find_spec("highspy") is not None


def minimum(
    cost: np.ndarray,
    matrix: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    x_lower: np.ndarray | float = -np.inf,
    x_upper: np.ndarray | float = np.inf,
) -> np.ndarray | None:
    """A minimiser by HiGHS (:func:`optimum`).

    Parameters
    ----------
    cost, matrix, lower, upper, x_lower, x_upper
        As in :func:`optimum`, and so are errors.

    Returns
    -------
    ndarray or None
        ``(dim,)`` minimiser, or ``None`` if there is no feasible point.
    """
    found = optimum(cost, matrix, lower, upper, x_lower, x_upper)
    return None if found is None else found[0]


def optimum(
    cost: np.ndarray,
    matrix: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    x_lower: np.ndarray | float = -np.inf,
    x_upper: np.ndarray | float = np.inf,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Minimise by HiGHS: through ``highspy`` where it is installed, else through SciPy, which is slower.

    Every call starts from nothing, so that equal problems get equal answers.

    Parameters
    ----------
    cost : ndarray
        ``(dim,)`` float64.
    matrix : ndarray
        ``(rows, dim)`` float64.
    lower, upper : ndarray
        ``(rows,)`` float64, may be infinite.
    x_lower, x_upper : ndarray or float
        ``(dim,)`` bounds of the variables, may be infinite.

    Returns
    -------
    tuple or None
        ``(dim,)`` minimiser and ``(rows,)`` row duals, positive for lower sides and negative for upper ones,
        zero where the row has no such side; or ``None`` if there is no feasible point.

    Raises
    ------
    BlocklpError
        If the LP is unbounded or HiGHS gives up.
    """
    bounds = tuple(np.broadcast_to(np.asarray(v, dtype=np.float64), cost.shape) for v in (x_lower, x_upper))
    if bool((lower > upper).any()) or bool((bounds[0] > bounds[1]).any()):
        return None
    try:
        import highspy
    except ImportError:
        return _scipy(cost, matrix, lower, upper, *bounds)
    solver, lp = quiet_highs(), highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, *bounds
    lp.row_lower_, lp.row_upper_ = lower, upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.arange(0, matrix.size + 1, matrix.shape[1], dtype=np.int32)
    lp.a_matrix_.index_ = np.tile(np.arange(matrix.shape[1], dtype=np.int32), matrix.shape[0])
    lp.a_matrix_.value_ = matrix.reshape(-1)
    solver.setOptionValue("primal_feasibility_tolerance", TOLERANCE)
    solver.setOptionValue("dual_feasibility_tolerance", TOLERANCE)
    solver.passModel(lp)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kUnknown:
        # The dual simplex method may end with reduced costs beyond the tolerance, and stays there.
        solver.clearSolver()
        solver.setOptionValue("simplex_strategy", PRIMAL_SIMPLEX)
        solver.run()
        status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kOptimal:
        found = solver.getSolution()
        duals = np.array(found.row_dual).reshape(len(lower))
        return np.array(found.col_value), np.where(np.isfinite(np.where(duals > 0, lower, upper)), duals, 0.0)
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    reason = solver.modelStatusToString(status)
    raise BlocklpError(f"HiGHS ended with {reason!r} on an LP of {matrix.shape} rows and variables")


def quiet_highs() -> Any:
    """Return a ``highspy.Highs`` that prints nothing; highspy must be installed."""
    made = _quiet()()
    made.setOptionValue("output_flag", False)
    return made


def run_interruptibly(highs: Any) -> None:
    """Run HiGHS in a thread of its own, so that Ctrl-C comes while it runs; that takes a millisecond more."""
    highs.HandleUserInterrupt = True
    highs.startSolve()
    try:
        while not highs.wait(POLL)[0]:
            pass
    except KeyboardInterrupt:
        highs.cancelSolve()
        while not highs.wait(POLL)[0]:
            pass
        raise


@functools.cache
def _quiet() -> Any:
    import highspy

    class Quiet(highspy.Highs):
        """Quiet from the first: later versions print a line where they enable callbacks."""

        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    return Quiet


def _scipy(
    cost: np.ndarray,
    matrix: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    x_lower: np.ndarray,
    x_upper: np.ndarray,
) -> tuple[np.ndarray, np.ndarray] | None:
    from scipy.optimize import linprog

    above, below = np.isfinite(upper), np.isfinite(lower)
    answer = linprog(
        cost,
        A_ub=np.vstack([matrix[above], -matrix[below]]),
        b_ub=np.concatenate([upper[above], -lower[below]]),
        bounds=np.stack([x_lower, x_upper], 1),
        method="highs",
        options={"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE},
    )
    if answer.status == 0:
        duals = np.zeros(len(lower))
        duals[above] += answer.ineqlin.marginals[: above.sum()]
        duals[below] -= answer.ineqlin.marginals[above.sum() :]
        return np.asarray(answer.x), np.where(np.isfinite(np.where(duals > 0, lower, upper)), duals, 0.0)
    if answer.status == 2:
        return None
    raise BlocklpError(f"HiGHS ended with {answer.message!r} on an LP of {matrix.shape} rows and variables")


Row = list[Fraction]


def exact_minimum(
    cost: Sequence[float],
    matrix: Sequence[Sequence[float]],
    lower: Sequence[float],
    upper: Sequence[float],
) -> Fraction | None:
    """Minimum in exact arithmetic by the two-phase simplex method with Bland's rule, for a few variables.

    Parameters
    ----------
    cost : sequence of float
        ``(dim,)``.
    matrix : sequence of sequence of float
        ``(rows, dim)``.
    lower, upper : sequence of float
        ``(rows,)``, may be infinite.

    Returns
    -------
    Fraction or None
        The optimal value of the LP whose data are exactly these floats, or ``None`` if there is no feasible
        point.

    Raises
    ------
    BlocklpError
        If the LP is unbounded.
    """
    dim = len(cost)
    # One-sided rows are (coefficients, right-hand side, coefficient of the slack); equalities have no slack.
    sides: list[tuple[Row, Fraction, int]] = []
    for row, low, high in zip(matrix, lower, upper, strict=True):
        entries = [Fraction(v) for v in row]
        if low == high:
            sides.append((entries, Fraction(high), 0))
            continue
        if high < float("inf"):
            sides.append((entries, Fraction(high), 1))
        if low > -float("inf"):
            sides.append(([-v for v in entries], -Fraction(low), 1))
    # Columns: x = p - q (2 dim), slacks, artificials, all of them nonnegative, and the right-hand side.
    count, width = len(sides), 2 * dim + len(sides)
    table: list[Row] = []
    for k, (entries, right, slack) in enumerate(sides):
        sign = -1 if right < 0 else 1
        unit = [Fraction(int(i == k)) for i in range(count)]
        line = entries + [-v for v in entries] + [slack * v for v in unit] + [right]
        table.append([sign * v for v in line[:-1]] + unit + [sign * right])
    basis = [width + k for k in range(count)]
    first = [-sum((line[j] for line in table), Fraction(0)) for j in range(width)] + [Fraction(0)] * count
    first.append(-sum((line[-1] for line in table), Fraction(0)))
    exact_cost = [Fraction(v) for v in cost]
    second = exact_cost + [-v for v in exact_cost] + [Fraction(0)] * (2 * count + 1)
    _simplex(table, basis, [first, second], width)
    if first[-1] != 0:
        return None
    # Artificials still in the basis are zero: exchange them for real variables, or drop their redundant rows.
    for k in range(count - 1, -1, -1):
        if basis[k] >= width:
            real = next((j for j in range(width) if table[k][j] != 0), None)
            if real is None:
                del table[k], basis[k]
            else:
                _pivot(table, basis, [second], k, real)
    _simplex(table, basis, [second], width)
    return -second[-1]


def _simplex(table: list[Row], basis: list[int], objectives: list[Row], width: int) -> None:
    """Pivot in place until the first objective row has no negative entry in the first ``width`` columns."""
    while (entering := next((j for j in range(width) if objectives[0][j] < 0), None)) is not None:
        rows = [(k, line) for k, line in enumerate(table) if line[entering] > 0]
        ratios = [(line[-1] / line[entering], basis[k], k) for k, line in rows]
        if not ratios:
            raise BlocklpError("the LP is unbounded; state constraints that bound every variable")
        _pivot(table, basis, objectives, min(ratios)[2], entering)


def _pivot(table: list[Row], basis: list[int], objectives: list[Row], leaving: int, entering: int) -> None:
    """Make a column the unit vector of a row."""
    scale = table[leaving][entering]
    table[leaving] = pivot = [v / scale if v else v for v in table[leaving]]
    basis[leaving] = entering
    for line in (*table, *objectives):
        factor = line[entering]
        if line is not pivot and factor:
            line[:] = [v - factor * p if p else v for v, p in zip(line, pivot, strict=True)]
