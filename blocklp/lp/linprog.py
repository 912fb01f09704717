"""SciPy's ``linprog``, with a bound that is proved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult
from scipy.sparse import coo_array, csr_array, issparse, vstack

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.linear_program import Array, LinearProgram
from blocklp.lp.solve import LinearSolution, solve_linear_program
from blocklp.options import of_type, shown
from blocklp.status import Status

NAMED = {"tol": 1e-6, "time_limit": math.inf, "maxiter": 10_000_000, "presolve": True}
"""Options and their defaults."""

STATUSES = {
    Status.OPTIMAL: (0, "Optimization terminated successfully: value and proved bound agree within the tolerance."),
    Status.PASS_LIMIT: (1, "Iteration limit reached; the bound is valid."),
    Status.TIME_LIMIT: (1, "Time limit reached; the bound is valid."),
    Status.INFEASIBLE: (2, "The problem is infeasible: rows or a ray prove it."),
    Status.UNBOUNDED: (3, "The problem is unbounded: the value falls along a ray from a feasible point."),
}
"""SciPy's numbers."""


def linprog(
    c: object,
    A_ub: object = None,
    b_ub: object = None,
    A_eq: object = None,
    b_eq: object = None,
    bounds: object = (0, None),
    method: str = "pdhg",
    callback: None = None,
    options: Mapping[str, Any] | None = None,
    x0: object = None,
    integrality: object = None,
) -> OptimizeResult:
    r"""Minimise :math:`c^\top x` subject to :math:`A_{ub} x \le b_{ub}`, :math:`A_{eq} x = b_{eq}` and bounds.

    Signature, conventions and result are those of :func:`scipy.optimize.linprog`; see there.

    Parameters
    ----------
    c : array_like
        ``(n,)``.
    A_ub, A_eq : array_like or sparse matrix, optional
        ``(rows, n)``.
    b_ub, b_eq : array_like, optional
        ``(rows,)``.
    bounds : sequence, optional
        ``(lower, upper)`` for all variables, or one pair for each; None for no bound.  By default ``(0, None)``.
    method : str
        ``"pdhg"``.
    options : dict, optional
        ``tol`` (relative gap, 1e-6), ``time_limit`` (seconds), ``maxiter`` (passes) and ``presolve`` (by HiGHS).
    callback, x0, integrality
        Must be None: there are no callbacks, starts from a point or integers here.

    Returns
    -------
    OptimizeResult
        SciPy's fields, ``marginals`` included; ``bound``, below which no feasible value lies, ``gap``, relative, and ``declared``,
        the numbers of the variables for which the bound assumes that they are within ``reach`` of zero.

    Raises
    ------
    ModelError, ShapeError, NonFiniteError
        If the data are no real numbers, do not fit together or hold NaN; all are ``ValueError``.
    OptionError
        If an option is unknown or of another kind; also a ``ValueError``.
    """
    if method != "pdhg":
        raise OptionError(f"method is {shown(method)}; blocklp.linprog has 'pdhg', scipy.optimize.linprog has HiGHS's methods")
    for name, value in (("callback", callback), ("x0", x0), ("integrality", integrality)):
        if value is not None and not (name == "integrality" and not np.any(np.asarray(value))):
            raise OptionError(f"{name} is {shown(value)}; linear programs are solved from the start, without callbacks and integers")
    of_type(options, Mapping | None, "options", "a dict")
    chosen = NAMED | dict(options or {})
    if unknown := set(chosen) - set(NAMED):
        raise OptionError(f"unknown options {', '.join(map(repr, sorted(map(str, unknown))))}; there are {', '.join(NAMED)}")
    cost = _vector(c, "c", None)
    n = len(cost)
    above, most = _rows(A_ub, b_ub, n, "ub")
    equal, right = _rows(A_eq, b_eq, n, "eq")
    lower, upper = _bounds(bounds, n)
    sides = np.concatenate([np.full(len(most), -np.inf), right]), np.concatenate([most, right])
    program = LinearProgram(cost, csr_array(vstack([above, equal], format="csr")), *sides, lower, upper)
    found = solve_linear_program(
        program, tol=chosen["tol"], time_limit=chosen["time_limit"], passes=chosen["maxiter"], presolve=chosen["presolve"]
    )
    return _result(program, found, len(most))


def _result(program: LinearProgram, found: LinearSolution, above: int) -> OptimizeResult:
    status, message = STATUSES.get(found.status, (4, f"Numerical difficulties encountered: {found.status.message}"))
    known = bool(np.isfinite(found.primal))
    x = found.x if known else None
    rest = program.row_upper - program.A @ x if x is not None else None
    price = found.row_price
    reduced = program.c - program.A.T @ price

    def part(residual: Array | None, marginals: Array) -> OptimizeResult:
        return OptimizeResult(residual=residual, marginals=marginals if known else None)

    return OptimizeResult(
        x=x,
        fun=found.primal if known else None,
        slack=rest[:above] if rest is not None else None,
        con=rest[above:] if rest is not None else None,
        ineqlin=part(rest[:above] if rest is not None else None, price[:above]),
        eqlin=part(rest[above:] if rest is not None else None, price[above:]),
        lower=part(x - program.lower if x is not None else None, np.where(np.isfinite(program.lower), np.maximum(reduced, 0), 0.0)),
        upper=part(program.upper - x if x is not None else None, np.where(np.isfinite(program.upper), np.minimum(reduced, 0), 0.0)),
        success=status == 0,
        status=status,
        message=message,
        nit=found.passes,
        crossover_nit=0,
        bound=found.bound,
        gap=found.gap,
        declared=found.declared,
        reach=found.reach,
    )


def _vector(value: object, name: str, length: int | None) -> Array:
    """Numbers ``(length,)``, without NaN."""
    try:
        data = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name} is {shown(value)}; it must hold real numbers") from error
    data = np.atleast_1d(np.squeeze(data))
    if data.ndim != 1 or (length is not None and len(data) != length):
        need = "one dimension" if length is None else f"shape ({length},)"
        raise ShapeError(f"{name} has shape {np.asarray(value).shape}; it must have {need}")
    if np.isnan(data).any() or (name == "c" and np.isinf(data).any()):
        bad = int(np.flatnonzero(~np.isfinite(data) if name == "c" else np.isnan(data))[0])
        raise NonFiniteError(f"{name} holds NaN or infinities: {data[bad]} at {bad}; give finite numbers")
    return data


def _rows(matrix: Any, right: object, n: int, name: str) -> tuple[csr_array, Array]:
    """A matrix ``(rows, n)`` with its right-hand sides."""
    if matrix is None and right is None:
        return csr_array((0, n)), np.zeros(0)
    if matrix is None or right is None:
        raise ShapeError(f"A_{name} and b_{name} go together; give both or neither")
    try:
        rows = csr_array(
            coo_array(matrix if issparse(matrix) else np.atleast_2d(np.asarray(matrix, dtype=np.float64))), dtype=np.float64
        )
    except (TypeError, ValueError) as error:
        raise ModelError(f"A_{name} is {shown(matrix)}; it must be a matrix of real numbers") from error
    if rows.shape[1] != n:
        raise ShapeError(f"A_{name} has shape {rows.shape}; it must have {n} columns, one for each entry of c")
    if not np.isfinite(rows.data).all():
        where = tuple(int(part[~np.isfinite(rows.data)][0]) for part in rows.tocoo().coords)
        raise NonFiniteError(f"A_{name} holds NaN or infinities: the first at {where}; give finite numbers")
    return rows, _vector(right, f"b_{name}", rows.shape[0])


def _bounds(bounds: Any, n: int) -> tuple[Array, Array]:
    """Lower and upper bounds ``(n,)``; None means none."""
    given = (0, None) if bounds is None else bounds
    if not isinstance(given, Sequence | np.ndarray):
        raise ShapeError(f"bounds is {shown(bounds)}; give one pair (lower, upper), or one for each variable")
    try:
        pairs = np.array([[np.nan if v is None else v for v in np.ravel(np.array(p, dtype=object))] for p in given], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"bounds is {shown(bounds)}; give one pair (lower, upper), or one for each variable") from error
    if pairs.shape in ((2, 1), (1, 2)):
        pairs = np.broadcast_to(pairs.reshape(1, 2), (n, 2))
    if pairs.shape != (n, 2):
        raise ShapeError(f"bounds has shape {pairs.shape}; give one pair (lower, upper), or one for each of {n} variables")
    lower, upper = (np.where(np.isnan(side), none, side) for side, none in zip(pairs.T, (-np.inf, np.inf), strict=True))
    if (lower > upper).any() or (lower == np.inf).any() or (upper == -np.inf).any():
        raise ModelError(f"bounds leave no value for variable {int(np.flatnonzero(~(lower <= upper) | np.isinf(lower - upper))[0])}")
    return lower, upper
