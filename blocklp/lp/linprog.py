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
from blocklp.linear_program import Array, LinearProgram
from blocklp.lp.batch import solve_linear_programs
from blocklp.lp.solve import LinearSolution
from blocklp.options import flag, of_type, shown, whole
from blocklp.status import Status

NAMED = {"tol": 1e-6, "time_limit": math.inf, "maxiter": 10_000_000, "presolve": True, "disp": False}
"""Options and their defaults."""

STATUSES = {
    Status.OPTIMAL: (0, "Optimization terminated successfully. (value and proved bound agree within the tolerance)"),
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
    r"""Minimise :math:`c^\top x` subject to :math:`A_{ub} x \le b_{ub}`, :math:`A_{eq} x = b_{eq}` and bounds.

    Signature, conventions and result are those of :func:`scipy.optimize.linprog`; see there.  In addition, ``c``, ``b_ub``, ``b_eq``
    and ``bounds`` may have a leading batch dimension, or not: the LPs are solved together, and all fields of the result have it too,
    NaN where one LP has no point.  A batch of one is one LP, as SciPy reads it.

    Parameters
    ----------
    c : array_like
        ``(n,)`` or ``(batch, n)``.
    A_ub, A_eq : array_like or sparse matrix, optional
        ``(rows, n)``.
    b_ub, b_eq : array_like, optional
        ``(rows,)`` or ``(batch, rows)``.
    bounds : sequence, optional
        ``(lower, upper)`` for all variables, or one pair for each, or ``(batch, n, 2)``; None or NaN for no bound.  By default
        ``(0, None)``.
    method : str
        ``"auto"``.
    options : dict, optional
        ``tol`` (relative gap, 1e-6), ``time_limit`` (seconds), ``maxiter`` (passes and Newton steps), ``presolve`` (by HiGHS) and
        ``disp`` (whether the message is printed).
    x0 : array_like, optional
        Not used, which a warning says.
    callback, integrality
        Must be None, and zero: there are no callbacks or integers here.

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
    if method != "auto":
        raise OptionError(f"method is {shown(method)}; blocklp.linprog has 'auto', scipy.optimize.linprog has HiGHS's methods")
    for name, value in (("callback", callback), ("integrality", integrality)):
        if value is not None and not (name == "integrality" and not np.any(np.asarray(value))):
            raise OptionError(f"{name} is {shown(value)}; linear programs are solved without callbacks and integers")
    if x0 is not None:
        warnings.warn("x0 is not used: linear programs are solved from the start", OptimizeWarning, stacklevel=2)
    of_type(options, Mapping | None, "options", "a dict")
    chosen = NAMED | dict(options or {})
    if unknown := set(chosen) - set(NAMED):
        raise OptionError(f"unknown options {', '.join(map(repr, sorted(map(str, unknown))))}; there are {', '.join(NAMED)}")
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
    programs = [
        LinearProgram(own, matrix, np.concatenate([none, same]), np.concatenate([side, same]), low, high)
        for own, side, same, low, high in zip(*(np.broadcast_to(part, (batch, part.shape[1])) for part in parts), strict=True)
    ]
    deadline = Deadline.of(chosen.pop("time_limit"))
    found = solve_linear_programs(programs, time_limit=deadline, passes=max(1, passes), **chosen)
    results = [_result(program, own, most.shape[1]) for program, own in zip(programs, found, strict=True)]
    if disp:
        for result in results:
            print(result.message)
    return _stacked(results) if batch > 1 else results[0]


def _stacked(results: list[OptimizeResult]) -> OptimizeResult:
    """The results of a batch as one, NaN for what there is not; ``message`` and ``declared`` are lists."""
    made = OptimizeResult()
    for key, value in results[0].items():
        own = [result[key] for result in results]
        if isinstance(value, OptimizeResult):
            made[key] = _stacked(own)
        elif key in ("message", "declared"):
            made[key] = own
        else:
            unknown = np.full(np.shape(next((v for v in own if v is not None), np.nan)), np.nan)
            made[key] = np.stack([unknown if v is None else np.asarray(v) for v in own])
    return made


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


def _columns(*matrices: Any) -> int | None:
    """Columns of the first matrix that there is, which tell a batch of costs from a column of them."""
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
        raise NonFiniteError(f"{name} holds NaN or infinities: {data[where]} at {', '.join(map(str, where))}; give finite numbers")
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
            raise ShapeError(f"A_{name} has shape {rows.shape}; it must be (rows, {n}), a column for each entry of c")
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
        pairs = np.array((0, None) if bounds is None or len(bounds) == 0 else bounds, dtype=object).astype(np.float64)  # None: NaN
    except (TypeError, ValueError) as error:
        raise ShapeError(f"bounds is {shown(bounds)}; {need}") from error
    if pairs.shape in ((2,), (2, 1), (1, 2)):
        pairs = np.broadcast_to(pairs.reshape(1, 2), (n, 2))
    pairs = pairs[None] if pairs.ndim == 2 else pairs
    if pairs.ndim != 3 or pairs.shape[1:] != (n, 2) or not len(pairs):
        raise ShapeError(f"bounds has shape {pairs.shape[pairs.shape[0] == 1 :]}; {need}")
    lower, upper = (np.where(np.isnan(side), none, side) for side, none in ((pairs[..., 0], -np.inf), (pairs[..., 1], np.inf)))
    if (none := (lower == np.inf) | (upper == -np.inf)).any():
        raise ModelError(f"bounds leave no value for variable {np.argwhere(none)[0, 1]}")
    return lower, upper
