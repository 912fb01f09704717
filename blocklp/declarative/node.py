r"""Minimisers as differentiable functions: the forward pass solves, the backward pass is a lemma.

For z = (y, multipliers) with :math:`F(x, z) = 0` and a gradient v of what follows by z, the gradient by x is

.. math:: -F_X^T w, \qquad F_Z^T w = v,

one system for all parameters, however many (equation 14).  It is differentiable in turn where f has three
derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blocklp.declarative.degenerate import balanced, consistent_solution
from blocklp.declarative.derivatives import Function, checked, gradient, jacobian
from blocklp.declarative.newton import minimise_conditions
from blocklp.declarative.optimality import Conditions
from blocklp.errors import ModelError, NonFiniteError, ShapeError

Equality = tuple[Tensor, Tensor]
"""A and b of ``A y = b``: ``(k, n)`` and ``(k,)``, each also ``(batch, ...)``; both may require gradients."""


class Minimum(NamedTuple):
    """A minimiser with its multipliers; all of it has gradients."""

    y: Tensor
    """``(batch, n)`` float64."""
    inequality_multipliers: Tensor
    r"""``(batch, m)``: :math:`\lambda \ge 0`, the gain by a unit of room."""
    equality_multipliers: Tensor
    r"""``(batch, k)``: :math:`\nu`, minus the derivative of the minimum by b."""


class Root(torch.autograd.Function):
    """z with F(x, z) = 0 as a function of x."""

    @staticmethod
    def forward(ctx: Any, conditions: Conditions, n: int, z: Tensor, *tensors: Tensor) -> Tensor:
        """Return z, which was found outside.

        Parameters
        ----------
        ctx : context
            Of torch; keeps what :meth:`backward` needs.
        conditions : Conditions
            F of the problem.
        n : int
            Number of variables.
        z : Tensor
            ``(batch, n + m + k)``: the root.
        *tensors : Tensor
            The tensors that F depends on, which get gradients.

        Returns
        -------
        Tensor
            ``(batch, n + m + k)``: a copy of the root.
        """
        ctx.conditions, ctx.n = conditions, n
        z = z.clone()
        ctx.save_for_backward(z, *tensors)
        return z

    @staticmethod
    def backward(ctx: Any, *by_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by the tensors."""
        z, *tensors = ctx.saved_tensors
        wanted, again = ctx.needs_input_grad[3:], torch.is_grad_enabled()
        with torch.enable_grad():
            # F is differentiated by x with z fixed, although z is a function of x: aliases keep the two
            # apart.
            z = alias(z, again)
            tensors = [
                alias(x, again) if needed else x.detach() for x, needed in zip(tensors, wanted, strict=True)
            ]
            residual, matrix = balanced(*ctx.conditions.linearise(z, tensors, ctx.n, again))
            adjoint = consistent_solution(matrix.mT, by_output[0][:, :, None])[:, :, 0]
            inputs = [x for x, needed in zip(tensors, wanted, strict=True) if needed]
            found = iter(
                torch.autograd.grad(residual, inputs, -adjoint, create_graph=again, materialize_grads=True)
            )
        return (None, None, None, *(next(found) if needed else None for needed in wanted))


def alias(tensor: Tensor, differentiable: bool) -> Tensor:
    """Return a tensor that requires gradients, with the history of the other or without."""
    return (
        tensor.view_as(tensor)
        if differentiable and tensor.requires_grad
        else tensor.detach().requires_grad_()
    )


def argmin(
    f: Function,
    *parameters: Tensor,
    start: Tensor,
    equality: Equality | None = None,
    inequality: Function | None = None,
    t: float = math.inf,
) -> Tensor:
    r"""A local minimiser of f over y, differentiable by the parameters.

    .. math:: g(x) = \arg\min_y \; f(x, y) \quad \text{subject to} \quad c(x, y) \le 0, \; A y = b

    Parameters
    ----------
    f : callable
        ``f(*parameters, y) -> (batch,)``, twice differentiable in y, where y is ``(batch, n)``; the value of
        an instance depends on that instance alone.  Of a ``torch.nn.Module`` the parameters get gradients
        too.
    *parameters : Tensor
        x: what f depends on, ``(batch, *shape)`` each or of any other shape that f takes; computed in
        float64.
    start : Tensor
        ``(batch, n)``: where Newton's method starts.  Inequalities have to hold strictly there.
    equality : pair of Tensor, optional
        A of full rank ``(k, n)`` or ``(batch, k, n)``, and b ``(k,)`` or ``(batch, k)``.
    inequality : callable, optional
        ``c(*parameters, y) -> (batch, m)``, at most zero where y is allowed: :func:`box`, :func:`ball` or any
        other.
    t : float
        Infinite for the minimiser itself; finite for that of :math:`t f - \sum_i \log(-c_i)`, which is smooth
        in x.

    Returns
    -------
    Tensor
        ``(batch, n)`` float64.  At a kink (a constraint is active and its multiplier zero) the gradient is
        the limit along the barrier's path, between those on the two sides.

    Raises
    ------
    ModelError
        If no minimum is found, or the start does not hold inequalities; in the backward pass, if the
        minimiser is not isolated.
    ShapeError
        If shapes do not fit.
    NonFiniteError
        If f is not finite at the start.

    Examples
    --------
    >>> x = torch.tensor([[3.0, -1.0]], requires_grad=True)
    >>> f, c = lambda x, y: (y - x).square().sum(1), lambda x, y: -y
    >>> y = argmin(f, x, start=torch.ones(1, 2), inequality=c)
    >>> y.sum().backward()
    >>> y.round(decimals=6).tolist(), x.grad.round(decimals=6).tolist()
    ([[3.0, 0.0]], [[1.0, 0.0]])
    """
    return minimise(f, *parameters, start=start, equality=equality, inequality=inequality, t=t).y


def argmax(
    f: Function,
    *parameters: Tensor,
    start: Tensor,
    equality: Equality | None = None,
    inequality: Function | None = None,
    t: float = math.inf,
) -> Tensor:
    """A local maximiser of f over y (Lemma 3.3): :func:`argmin` of -f, with the same arguments.

    Parameters
    ----------
    f, *parameters, start, equality, inequality, t
        As in :func:`argmin`, and so are errors.
    """
    return minimise(Negative(f), *parameters, start=start, equality=equality, inequality=inequality, t=t).y


class Negative(torch.nn.Module):
    """-f; a module, so that the parameters of a module f are its own."""

    def __init__(self, f: Function) -> None:
        super().__init__()
        self.f = f

    def forward(self, *arguments: Tensor) -> Tensor:
        """Return the negative value."""
        return -self.f(*arguments)


def minimise(
    f: Function,
    *parameters: Tensor,
    start: Tensor,
    equality: Equality | None = None,
    inequality: Function | None = None,
    t: float = math.inf,
) -> Minimum:
    """As :func:`argmin`, with the multipliers of the constraints.

    Parameters
    ----------
    f, *parameters, start, equality, inequality, t
        As in :func:`argmin`, and so are errors.
    """
    if not t > 0:
        raise ModelError(f"t is {t}; it must be positive, infinite for the minimiser itself")
    conditions, tensors, y = stated(f, parameters, start, equality, inequality, t)
    with torch.no_grad():
        z, m = minimise_conditions(conditions, [x.detach() for x in tensors], y)
    return rooted(conditions, z, tensors, y.shape[1], m)


def implicit(
    f: Function,
    *parameters: Tensor,
    y: Tensor,
    equality: Equality | None = None,
    inequality: Function | None = None,
    tolerance: float = 1e-6,
) -> Minimum:
    r"""Give the minimiser that another solver found its derivatives by the parameters.

    Multipliers are those that bring :math:`f_Y + c_Y^T \lambda + A^T \nu` nearest to zero, over constraints
    within ``tolerance`` of being active; one whose multiplier would be negative is left out, and counts as
    inactive.

    Parameters
    ----------
    f, *parameters, equality, inequality
        As in :func:`argmin`.
    y : Tensor
        ``(batch, n)``: minimisers, maximisers or other stationary points.
    tolerance : float
        How far below zero an active constraint may be; a multiplier below it, relative to the gradient, is
        none.

    Returns
    -------
    Minimum
        y as it was given and the multipliers, with gradients.

    Raises
    ------
    ModelError
        If y is not stationary; in the backward pass, if it is not isolated.
    ShapeError
        If shapes do not fit.
    NonFiniteError
        If f is not finite at y.
    """
    conditions, tensors, y = stated(f, parameters, y, equality, inequality, math.inf)
    plain = [x.detach() for x in tensors]
    arguments = plain[:-2] if equality is not None else plain
    at = y.detach().requires_grad_()
    with torch.enable_grad():
        slope = gradient(conditions.f(*arguments, at).sum(), [at])[0].detach()
        c = (
            at.new_zeros(len(at), 0)
            if conditions.inequality is None
            else conditions.inequality(*arguments, at)
        )
        [c_y] = jacobian(c, [at])
    active, m = c.detach() >= -tolerance, c.shape[1]
    a = plain[-2] if equality is not None else at.new_zeros(len(at), 0, at.shape[1])
    floor = tolerance * (1 + slope.abs().amax(1, keepdim=True))
    while True:
        rows = torch.cat([torch.where(active[:, :, None], c_y, 0.0), a], 1)
        duals = -(torch.linalg.pinv(rows.mT) @ slope[:, :, None])[:, :, 0]
        pulling = torch.where(active, duals[:, :m], math.inf)
        if not bool((pulling < floor).any()):
            break
        active = active & ~((pulling < floor) & (pulling == pulling.amin(1, keepdim=True)))
    duals = torch.cat([torch.where(active, duals[:, :m], 0.0), duals[:, m:]], 1)
    left = (slope + (rows.mT @ duals[:, :, None])[:, :, 0]).abs().amax(1)
    if bool((wrong := left[:, None] > 1e3 * floor).any()):
        k = int(wrong.nonzero()[0, 0])
        raise ModelError(f"y of instance {k} is not stationary: {float(left[k]):.2g} of its gradient is left")
    return rooted(conditions, torch.cat([y, duals], 1), tensors, y.shape[1], m)


def stated(
    f: Function,
    parameters: Sequence[Tensor],
    y: Tensor,
    equality: Equality | None,
    inequality: Function | None,
    t: float,
) -> tuple[Conditions, list[Tensor], Tensor]:
    """Check a problem once.

    Parameters
    ----------
    f : callable or Module
        The objective: parameters and y to ``(batch,)``.
    parameters : sequence of Tensor
        Its parameters, the batch first.
    y : Tensor
        ``(batch, n)``: a start or a solution.
    equality : tuple of Tensor or None
        A ``(k, n)`` and b ``(k,)``, or one for each instance.
    inequality : callable or None
        Parameters and y to ``(batch, m)``, at most 0 where y is allowed.
    t : float
        Weight of the objective beside the barrier, infinite for none.

    Returns
    -------
    conditions : Conditions
        F of the problem.
    tensors : list of Tensor
        Parameters in float64, weights of a module, then A and b if there are any.
    y : Tensor
        ``(batch, n)`` float64, without gradients.

    Raises
    ------
    ShapeError
        If y, A, b or an answer of a function has the wrong shape.
    ModelError
        If a function uses a tensor that requires gradients and is no parameter.
    NonFiniteError
        If a function is not finite at y.
    """
    if y.dim() != 2 or not len(y):
        raise ShapeError(
            f"a start or solution of shape {tuple(y.shape)} was given; it has to be (batch, n), not empty"
        )
    y, tensors = y.detach().double(), [x.double() if x.is_floating_point() else x for x in parameters]
    count, objective = len(tensors), f
    if isinstance(f, torch.nn.Module):  # its parameters become arguments, so that F is a function of them
        module, names = f, [name for name, _ in f.named_parameters()]
        tensors += [weight for _, weight in f.named_parameters()]

        def objective(*arguments: Tensor) -> Tensor:
            weights = dict(zip(names, arguments[count:-1], strict=True))
            value: Tensor = torch.func.functional_call(module, weights, (*arguments[:count], arguments[-1]))
            return value

    within = None
    if inequality is not None:  # which does not depend on the module's parameters

        def within(*arguments: Tensor) -> Tensor:
            return inequality(*arguments[:count], arguments[-1])

    plain = [x.detach() for x in tensors]
    with torch.enable_grad():
        values = [checked(objective(*plain, y), (len(y),), "f")]
        if within is not None:
            values.append(within(*plain, y))
            if values[1].dim() != 2 or len(values[1]) != len(y):
                raise ShapeError(
                    f"inequality returned {tuple(values[1].shape)}; it has to return ({len(y)}, m)"
                )
    for name, value in zip(("f", "inequality"), values, strict=False):
        if value.requires_grad:
            raise ModelError(
                f"{name} uses a tensor that requires gradients and would get none; pass it as a parameter"
            )
        if not bool(value.isfinite().all()):
            raise NonFiniteError(f"{name} is not finite at the start of an instance; start where it is")
    if equality is not None:
        a, b = (x.double() for x in equality)
        if a.dim() < 2 or a.shape[-1] != y.shape[1] or b.shape[-1:] != a.shape[-2:-1]:
            raise ShapeError(
                f"A is {tuple(a.shape)}, b {tuple(b.shape)}; n is {y.shape[1]}: give (k, n) and (k,)"
            )
        tensors += [a.expand(len(y), *a.shape[-2:]), b.expand(len(y), b.shape[-1])]
    return Conditions(objective, within, equality is not None, 1 / t), tensors, y


def rooted(conditions: Conditions, z: Tensor, tensors: Sequence[Tensor], n: int, m: int) -> Minimum:
    """Return the parts of z with their gradients by the tensors.

    Parameters
    ----------
    conditions, z, tensors, n
        As in :func:`blocklp.declarative.newton.linearised`.
    m : int
        Number of inequalities.

    Returns
    -------
    Minimum
        y ``(batch, n)`` and the multipliers, with gradients.
    """
    z = Root.apply(conditions, n, z, *tensors)  # type: ignore[no-untyped-call]
    return Minimum(z[:, :n], z[:, n : n + m], z[:, n + m :])
