"""Layers for cvxpylayers, and models for PyEPO, which their packages import."""

from __future__ import annotations

from typing import Any

from blocklp.errors import needed
from blocklp.language.expression import Parameter, View
from blocklp.model import Model


def cvxpylayers_solver(mode: str = "lpgd", *, reach: float | None = None, **settings: Any) -> Any:
    r"""Return a solver for ``CvxpyLayer(problem, parameters, variables, solver=...)`` of cvxpylayers.

    It takes problems whose costs alone hold parameters: linear programs, whose gradients are those of
    ``mode``, and proximal ones, with :math:`\rho/2 \, |x|^2` of all variables in the objective, whose
    gradients are exact. All instances of a batch are solved in one call.

    Parameters
    ----------
    mode : str
        The mode of :class:`blocklp.Layer` for linear programs.
    reach : float, optional
        Bound for the magnitudes of variables that neither bounds nor rows bound.
    **settings
        Further options of :class:`blocklp.Layer`.

    Returns
    -------
    SolverInterface
        Of one layer: each needs a solver of its own.

    Raises
    ------
    MissingDependencyError
        If cvxpylayers is not installed, from version 1.2 on.
    """
    with needed("blocklp.learning.cvxpylayers_solver needs the package cvxpylayers", "layers"):
        from blocklp.learning.cvxpylayers_solver import LinearProgramLayers
    return LinearProgramLayers(mode, reach, settings)


def pyepo_model(model: Model, cost: Parameter, variables: View | None = None, **settings: Any) -> Any:
    """Return an ``optModel`` for PyEPO, whose data sets and functions then solve a batch in one call.

    Parameters
    ----------
    model : Model
        Of one instance.
    cost : Parameter
        What is predicted, ``(n,)``.
    variables : View, optional
        What PyEPO sees as the solution, ``(n,)``; by default what the parameter multiplies.
    **settings
        ``tol`` and ``passes`` of :class:`blocklp.Layer`.

    Returns
    -------
    optModel
        For ``pyepo.data.dataset.optDataset`` and ``pyepo.func``.

    Raises
    ------
    MissingDependencyError
        If pyepo is not installed.
    ModelError, OptionError
        If it is no model of one instance with one cost a variable.
    """
    with needed("blocklp.learning.pyepo_model needs the package pyepo", "layers"):
        from blocklp.learning.pyepo_model import BatchedModel
    return BatchedModel(model, cost, variables, settings)
