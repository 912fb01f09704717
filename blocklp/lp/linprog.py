"""SciPy's ``linprog``, with a bound that is proved."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, OptimizeWarning
from scipy.sparse import coo_array, csr_array, issparse, vstack

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.general_solvers.linear_program import Array, LinearProgram
from blocklp.lp.batch import solve_linear_programs
from blocklp.lp.solve import LinearSolution
from blocklp.options import flag, of_type, shown, whole
from blocklp.status import Status

NAMED = {
    "tol": 1e-6,
    "time_limit": math.inf,
    "maxiter": 10_000_000,
    "presolve": True,
    "simplex": True,
    "disp": False,
}
"""Options and their defaults."""

STATUSES = {
    Status.OPTIMAL: (0, "Optimization terminated successfully. (value and bound agree within the tolerance)"),
    Status.PASS_LIMIT: (1, "Iteration limit reached. (the bound is valid)"),
    Status.TIME_LIMIT: (1, "Time limit reached. (the bound is valid)"),
    Status.INFEASIBLE: (2, "The problem is infeasible. (rows, bounds or a ray prove it)"),
    Status.UNBOUNDED: (3, "The problem is unbounded. (the value falls along a ray from a feasible point)"),
}
"""SciPy's numbers, and messages that begin like SciPy's."""


def linprog(
    c: object,
    A_ub: object = None,
    b_ub: object = None,
    A_eq: object = None,
    b_eq: object = None,
    bounds: object = (0, None),
    method: str = "auto",
    callback: None = None,
    options: Mapping[str, Any] | None = None,
    x0: object = None,
    integrality: object = None,
) -> OptimizeResult:
    r"""Solve a linear program, or a batch of them, with the signature of :func:`scipy.optimize.linprog`.

    .. math:: \min \; c^\top x \quad \text{s.t.} \quad
              A_{ub} x \le b_{ub}, \; A_{eq} x = b_{eq}, \; lo \le x \le hi

    Signature, conventions and result are those of :func:`scipy.optimize.linprog`; see there.  In addition,
    ``c``, ``b_ub``, ``b_eq`` and ``bounds`` may have a leading batch dimension, or not: the LPs are solved
    together, and all fields of the result have it too, NaN where one LP has no point.  A batch of one is one
    LP, as SciPy reads it.

    Parameters
    ----------
    c : array_like
        ``(n,)`` or ``(batch, n)``.
    A_ub, A_eq : array_like or sparse matrix, optional
        ``(rows, n)``.
    b_ub, b_eq : array_like, optional
        ``(rows,)`` or ``(batch, rows)``.
    bounds : sequence, optional
        ``(lower, upper)`` for all variables, or one pair for each, or ``(batch, n, 2)``; None or NaN for no
        bound.  By default ``(0, None)``.
    method : str
        ``"auto"``.
    options : dict, optional
        ``tol`` (relative gap, 1e-6), ``time_limit`` (seconds), ``maxiter`` (passes, Newton steps and
        simplex iterations), ``presolve`` (by HiGHS), ``simplex`` (whether HiGHS's simplex method takes turns)
        and ``disp`` (whether the message is printed).
    x0 : array_like, optional
        Not used, which a warning says.
    callback, integrality
        Must be None, and zero: there are no callbacks or integers here.

    Returns
    -------
    OptimizeResult
        SciPy's fields, ``marginals`` included; ``bound``, below which no feasible value lies, ``gap``,
        relative, and ``declared``, the numbers of the variables for which the bound assumes that they are
        within ``reach`` of zero.

    Raises
    ------
    ModelError, ShapeError, NonFiniteError
        If the data are no real numbers, do not fit together or hold NaN; all are ``ValueError``.
    OptionError
        If an option is unknown or of another kind; also a ``ValueError``.
    """
    if method != "auto":
        others = "scipy.optimize.linprog has HiGHS's methods"
        raise OptionError(f"method is {shown(method)}; blocklp.linprog has 'auto', {others}")
    for name, value in (("callback", callback), ("integrality", integrality)):
        if value is not None and not (name == "integrality" and not np.any(np.asarray(value))):
            raise OptionError(f"{name} is {shown(value)}; LPs are solved without callbacks and integers")
    if x0 is not None:
        warnings.warn("x0 is not used: LPs are solved from the start", OptimizeWarning, stacklevel=2)
    of_type(options, Mapping | None, "options", "a dict")
    chosen = NAMED | dict(options or {})
    if unknown := set(chosen) - set(NAMED):
        names = ", ".join(map(repr, sorted(map(str, unknown))))
        raise OptionError(f"unknown options {names}; there are {', '.join(NAMED)}")
    disp = flag(chosen.pop("disp"), "disp")
    passes = whole(chosen.pop("maxiter"), "maxiter", 0)
    cost = _vectors(c, "c", _columns(A_ub, A_eq) if np.squeeze(_numbers(c, "c")).ndim != 1 else None)
    n = cost.shape[1]
    above, most = _rows(A_ub, b_ub, n, "ub")
    equal, right = _rows(A_eq, b_eq, n, "eq")
    lower, upper = _bounds(bounds, n)
    parts = cost, most, right, lower, upper
    batch = max(map(len, parts))
    if any(len(part) not in (1, batch) for part in parts):
        sizes = ", ".join(str(len(part)) for part in parts[:4])
        raise ShapeError(f"c, b_ub, b_eq and bounds are of {sizes} instances; they must agree, or be of one")
    matrix, none = csr_array(vstack([above, equal], format="csr")), np.full(most.shape[1], -np.inf)
    instances = zip(*(np.broadcast_to(part, (batch, part.shape[1])) for part in parts), strict=True)
    programs = [
        LinearProgram(costs, matrix, np.concatenate([none, same]), np.concatenate([side, same]), low, high)
        for costs, side, same, low, high in instances
    ]
    deadline = Deadline.of(chosen.pop("time_limit"))
    solutions = solve_linear_programs(programs, time_limit=deadline, passes=max(1, passes), **chosen)
    results = [_result(lp, solution, most.shape[1]) for lp, solution in zip(programs, solutions, strict=True)]
    if disp:
        for result in results:
            print(result.message)
    return _stacked(results) if batch > 1 else results[0]


def _stacked(results: list[OptimizeResult]) -> OptimizeResult:
    """The results of a batch as one, NaN for missing values; ``message`` and ``declared`` are lists."""
    stacked = OptimizeResult()
    for key, value in results[0].items():
        values = [result[key] for result in results]
        if isinstance(value, OptimizeResult):
            stacked[key] = _stacked(values)
        elif key in ("message", "declared"):
            stacked[key] = values
        else:
            missing = np.full(np.shape(next((v for v in values if v is not None), np.nan)), np.nan)
            stacked[key] = np.stack([missing if v is None else np.asarray(v) for v in values])
    return stacked


def _result(program: LinearProgram, solution: LinearSolution, above: int) -> OptimizeResult:
    """SciPy's result of a solution, the first ``above`` of whose rows are inequalities."""
    message = f"Numerical difficulties encountered: {solution.status.message}"
    status, message = STATUSES.get(solution.status, (4, message))
    has_point = bool(np.isfinite(solution.primal))
    x = solution.x if has_point else None
    rest = program.row_upper - program.A @ x if x is not None else None
    price = solution.row_price
    reduced = program.c - program.A.T @ price
    at_lower = np.where(np.isfinite(program.lower), np.maximum(reduced, 0), 0.0)
    at_upper = np.where(np.isfinite(program.upper), np.minimum(reduced, 0), 0.0)

    def part(residual: Array | None, marginals: Array) -> OptimizeResult:
        return OptimizeResult(residual=residual, marginals=marginals if has_point else None)

    return OptimizeResult(
        x=x,
        fun=solution.primal if has_point else None,
        slack=rest[:above] if rest is not None else None,
        con=rest[above:] if rest is not None else None,
        ineqlin=part(rest[:above] if rest is not None else None, price[:above]),
        eqlin=part(rest[above:] if rest is not None else None, price[above:]),
        lower=part(x - program.lower if x is not None else None, at_lower),
        upper=part(program.upper - x if x is not None else None, at_upper),
        success=status == 0,
        status=status,
        message=message,
        nit=solution.passes,
        crossover_nit=0,
        bound=solution.bound,
        gap=solution.gap,
        declared=solution.declared,
        reach=solution.reach,
    )


def _columns(*matrices: Any) -> int | None:
    """Number of columns of the first given matrix, which tells a batch of costs from a column of them."""
    shapes = (m.shape if issparse(m) else np.shape(m) for m in matrices if m is not None)
    return next((shape[1] for shape in shapes if len(shape) == 2), None)


def _numbers(value: object, name: str) -> Array:
    """Finite real numbers."""
    try:
        data = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name} is {shown(value)}; it must hold real numbers") from error
    if not np.isfinite(data).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(data))[0])
        entry = f"{data[where]} at {', '.join(map(str, where))}"
        raise NonFiniteError(f"{name} holds NaN or infinities: {entry}; give finite numbers")
    return data


def _vectors(value: object, name: str, length: int | None) -> Array:
    """Numbers ``(batch or 1, length)``: as SciPy reads a vector where it can, otherwise one a row."""
    data = _numbers(value, name)
    flat = np.atleast_1d(np.squeeze(data))
    if flat.ndim == 1 and (flat.size or length == 0) and length in (None, len(flat)):
        return flat[None]
    if data.ndim == 2 and data.size and length in (None, data.shape[1]):
        return data
    need = "(n,) or (batch, n)" if length is None else f"({length},) or (batch, {length})"
    raise ShapeError(f"{name} has shape {data.shape}; it must have shape {need}")


def _rows(matrix: Any, right: object, n: int, name: str) -> tuple[csr_array, Array]:
    """A matrix ``(rows, n)`` with its right-hand sides ``(batch or 1, rows)``."""
    if matrix is None and (right is None or np.size(np.asarray(right)) == 0):
        return csr_array((0, n)), np.zeros((1, 0))
    if matrix is None or right is None:
        raise ShapeError(f"A_{name} and b_{name} go together; give both or neither")
    try:
        rows = matrix if issparse(matrix) else np.asarray(matrix, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != n:
            need = f"(rows, {n}), a column for each entry of c"
            raise ShapeError(f"A_{name} has shape {rows.shape}; it must be {need}")
        rows = csr_array(coo_array(rows), dtype=np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, ShapeError):
            raise
        raise ModelError(f"A_{name} is {shown(matrix)}; it must be a matrix of real numbers") from error
    if not np.isfinite(rows.data).all():
        where = tuple(int(part[~np.isfinite(rows.data)][0]) for part in rows.tocoo().coords)
        raise NonFiniteError(f"A_{name} holds NaN or infinities: the first at {where}; give finite numbers")
    return rows, _vectors(right, f"b_{name}", rows.shape[0])


def _bounds(bounds: Any, n: int) -> tuple[Array, Array]:
    """Lower and upper bounds ``(batch or 1, n)``; None and NaN mean none."""
    need = f"give one pair (lower, upper), one for each of {n} variables, or (batch, {n}, 2)"
    if not isinstance(bounds, Sequence | np.ndarray | None) or isinstance(bounds, str):
        raise ShapeError(f"bounds is {shown(bounds)}; {need}")
    try:
        given = (0, None) if bounds is None or len(bounds) == 0 else bounds
        pairs = np.array(given, dtype=object).astype(np.float64)  # None becomes NaN
    except (TypeError, ValueError) as error:
        raise ShapeError(f"bounds is {shown(bounds)}; {need}") from error
    if pairs.shape in ((2,), (2, 1), (1, 2)):
        pairs = np.broadcast_to(pairs.reshape(1, 2), (n, 2))
    pairs = pairs[None] if pairs.ndim == 2 else pairs
    if pairs.ndim != 3 or pairs.shape[1:] != (n, 2) or not len(pairs):
        raise ShapeError(f"bounds has shape {pairs.shape[pairs.shape[0] == 1 :]}; {need}")
    lower = np.where(np.isnan(pairs[..., 0]), -np.inf, pairs[..., 0])
    upper = np.where(np.isnan(pairs[..., 1]), np.inf, pairs[..., 1])
    if (none := (lower == np.inf) | (upper == -np.inf)).any():
        raise ModelError(f"bounds leave no value for variable {np.argwhere(none)[0, 1]}")
    return lower, upper
