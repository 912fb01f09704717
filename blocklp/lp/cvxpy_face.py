"""CVXPY's face of the solver of linear programs."""

from __future__ import annotations

from typing import Any

from blocklp.errors import MissingDependencyError, install


def CVXPY() -> Any:
    """Return a solver for CVXPY: ``problem.solve(solver=blocklp.CVXPY(), tol=1e-6)``.

    It solves linear programs.  Options are those of :func:`blocklp.solve_linear_program`, with a ``tol`` of 1e-6.
    ``problem.solver_stats.extra_stats`` is the :class:`blocklp.LinearSolution`, with the bound that is proved.  Duals have
    CVXPY's signs.

    Raises
    ------
    MissingDependencyError
        If cvxpy is not installed.
    """
    try:
        from blocklp.lp.cvxpy_solver import LinearProgramSolver
    except ImportError as error:
        raise MissingDependencyError(f"blocklp.CVXPY needs the package cvxpy: {install('cvxpy')}") from error
    return LinearProgramSolver()
