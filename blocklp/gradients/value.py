"""The optimal value of a model as a differentiable function of its data."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blocklp.model import Model, ModelBatch
from blocklp.options import of_type
from blocklp.solver import Solver


def value(of: Model | ModelBatch | Solver, **options: Any) -> Tensor:
    r"""The certified bound of the optimal value, with gradients in all data that require them.

    It is ``of.solve(**options).bound``. Tensors that require gradients may be given wherever numbers are:
    costs and parameters, bounds of variables, sides of rows, and data of blocks (:class:`Knapsack(weights)
    <blocklp.oracles.Knapsack>`, vertices, or the tensors of a type of your own). By the envelope theorem
    (Danskin 1967) their gradients are those of the Lagrangian at the point and the multipliers that the solve
    found:

    .. math:: \nabla_c V = \hat x, \qquad \partial V / \partial b_i = y_i, \qquad
              \partial V / \partial A_{ij} = -y_i \hat x_j

    In costs that is a subgradient, in sides and data of blocks a one-sided derivative where the value has a
    kink, both up to the gap: V is within ``gap`` of the plane that they span. Where it matters, ask for more
    than the defaults of ``tol`` and ``feasibility_tol``.

    At a kink the point and the multipliers are those that the method ends at, the same in every run. A bound
    of a variable that its blocks imply has no gradient, and a bound given in ``bounds=`` that agrees with the
    variable's own has that of both.

    Parameters
    ----------
    of : Model, ModelBatch or Solver
        What to solve.
    **options
        As :meth:`blocklp.Solver.solve` takes them, ``values`` and ``bounds`` among them.

    Returns
    -------
    Tensor
        ``(batch,)`` float64, on the device of the solver.

    Raises
    ------
    OptionError
        If it is nothing that can be solved.
    ModelError
        If data of a type require gradients that neither its constraints nor its oracle carry, as soon as its
        blocks are added; if second derivatives are asked for, which are not given:
        :func:`blocklp.soft_bound` is smooth.

    Examples
    --------
    >>> import torch
    >>> import blocklp as bl
    >>> from blocklp.oracles import Knapsack
    >>> price = torch.tensor([3.0, 2.0, 2.0], requires_grad=True)
    >>> weight = torch.tensor([2.0, 1.0, 4.0], requires_grad=True)
    >>> m = bl.Model()
    >>> x = m.variable("x", 3, lower=0, upper=1)
    >>> pack = m.add(Knapsack(weight, 5.0), x)
    >>> m.maximize(price @ x)
    >>> worth = bl.value(m, tol=1e-9)
    >>> worth.sum().backward()
    >>> round(worth.item(), 6), price.grad.tolist(), weight.grad.tolist()
    (6.0, [1.0, 1.0, 0.5], [-0.5, -0.5, -0.25])
    """
    of_type(of, Model | ModelBatch | Solver, "what is given to value()", "a model or a compiled solver")
    return of.solve(**options).bound
