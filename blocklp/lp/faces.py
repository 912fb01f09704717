"""The solver of linear programs as CVXPY and PuLP want it."""

from __future__ import annotations

from typing import Any

from blocklp.errors import needed


def CVXPY() -> Any:
    """Return a solver for CVXPY: ``problem.solve(solver=blocklp.CVXPY(), tol=1e-6)``.

    It solves linear programs.  Options are those of :func:`blocklp.lp.solve_linear_program`, with a ``tol``
    of 1e-6.  ``problem.solver_stats.extra_stats`` is the :class:`blocklp.lp.LinearSolution`, with the bound
    that is proved.  Duals have CVXPY's signs.

    Raises
    ------
    MissingDependencyError
        If cvxpy is not installed.
    """
    with needed("blocklp.CVXPY needs the package cvxpy", "cvxpy"):
        from blocklp.lp.cvxpy_solver import CvxpyLinearProgramSolver
    return CvxpyLinearProgramSolver()


def PuLP(time_limit: float | None = None, **options: Any) -> Any:
    """Return a solver for PuLP: ``problem.solve(blocklp.PuLP())``.

    It solves linear programs.  Values, reduced costs, prices (``pi``) and slacks are written into the
    problem, in PuLP's signs.  What ``solve`` returns has the bound as ``best_bound``, from PuLP 4 on.

    Parameters
    ----------
    time_limit : float, optional
        Seconds for a solve.
    options
        ``tol`` (relative gap, 1e-6), ``passes``, ``presolve`` and ``simplex`` of
        :func:`blocklp.lp.solve_linear_program`.

    Raises
    ------
    MissingDependencyError
        If pulp is not installed.
    OptionError
        If there is no such option.
    """
    with needed("blocklp.PuLP needs the package pulp", "pulp"):
        from blocklp.lp.pulp_solver import PulpLinearProgramSolver
    return PulpLinearProgramSolver(time_limit, **options)
