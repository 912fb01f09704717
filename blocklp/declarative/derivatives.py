r"""First and second derivatives of f(x, y), instance by instance, by automatic differentiation.

Gould et al. (2016) write :math:`f_Y` for the gradient by y, :math:`f_{YY}` for the Hessian and :math:`f_{XY}
= \partial f_Y / \partial x`.  Each row of the two matrices is one product of a Hessian and a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.errors import ModelError, ShapeError

Function = Callable[..., Tensor]
"""``f(*parameters, y)``: ``(batch,)`` of an objective, ``(batch, m)`` of constraints; y is ``(batch, n)``."""

SINGULAR = (
    "second derivatives at the solution of instance {} form a singular matrix, so that it has no derivative; "
    "add a strictly convex term, or constraints that single one solution out"
)
"""A message for the number of an instance."""


class Derivatives(NamedTuple):
    """Derivatives at one point of every instance."""

    f_y: Tensor
    """``(batch, n)``."""
    f_yy: Tensor
    """``(batch, n, n)``."""
    f_xy: tuple[Tensor, ...]
    """``(batch, n, *shape)`` for a parameter ``(batch, *shape)``."""


def second_derivatives(f: Function, parameters: Sequence[Tensor], y: Tensor) -> Derivatives:
    """Return the derivatives on which all lemmas rest.

    Parameters
    ----------
    f : callable
        ``f(*parameters, y) -> (batch,)``, twice differentiable; an instance's value depends on that instance
        alone.
    parameters : sequence of Tensor
        ``(batch, *shape)`` float64 each.
    y : Tensor
        ``(batch, n)`` float64.

    Returns
    -------
    Derivatives
        Without gradients of their own.

    Raises
    ------
    ShapeError
        If f does not return ``(batch,)``.
    """
    parameters, y = [p.detach().requires_grad_() for p in parameters], y.detach().requires_grad_()
    with torch.enable_grad():
        [f_y] = gradient(checked(f(*parameters, y), (len(y),), "f").sum(), [y])
        f_yy, *f_xy = jacobian(f_y, [y, *parameters])
    return Derivatives(f_y.detach(), f_yy, tuple(f_xy))


def gradient(value: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return differentiable gradients of a number by each input, zero where it does not depend on it."""
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    return list(torch.autograd.grad(value, inputs, create_graph=True, materialize_grads=True))


def jacobian(outputs: Tensor, inputs: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    """Return the derivatives of outputs by inputs, one row of all of them at a time.

    Parameters
    ----------
    outputs : Tensor
        ``(batch, k)``; those of an instance depend on that instance alone.
    inputs : sequence of Tensor
        ``(batch, *shape)`` each.
    create_graph : bool
        Whether the result is differentiable.

    Returns
    -------
    list of Tensor
        ``(batch, k, *shape)`` each; zero where outputs do not depend on an input.
    """
    if not (outputs.requires_grad and outputs.shape[1]):
        return [x.new_zeros(len(x), outputs.shape[1], *x.shape[1:]) for x in inputs]
    rows = [
        torch.autograd.grad(row, inputs, torch.ones_like(row), True, create_graph, materialize_grads=True)
        for row in outputs.unbind(1)
    ]
    return [torch.stack(column, 1) for column in zip(*rows, strict=True)]


def checked(value: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """Return what a user's function gave, if it has the right shape.

    Parameters
    ----------
    value : Tensor
        The answer of the function.
    shape : tuple of int
        The shape that it must have, the batch first.
    name : str
        Name of the function, for the message.

    Returns
    -------
    Tensor
        ``value``.

    Raises
    ------
    ShapeError
        If it has another shape.
    """
    if value.shape != shape:
        raise ShapeError(
            f"{name} returned {tuple(value.shape)}; with y of {shape[0]} instances it has to return {shape}"
        )
    return value


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve one system for every instance, with all right-hand sides by one factorisation.

    Parameters
    ----------
    matrix : Tensor
        ``(batch, n, n)``.
    right : Tensor
        ``(batch, n, *shape)``.

    Returns
    -------
    Tensor
        ``(batch, n, *shape)``.

    Raises
    ------
    ModelError
        If a matrix is singular: the minimiser is not isolated, and has no derivative.
    """
    found, info = torch.linalg.solve_ex(matrix, right.flatten(2) if right.dim() > 2 else right[:, :, None])
    if bool(info.any()):
        raise ModelError(SINGULAR.format(int(info.nonzero()[0])))
    solution: Tensor = found.reshape(right.shape)
    return solution
