r"""Minimisers by damped Newton steps: free, on an affine set, and along the path of the barrier (61).

Three stages, each for all instances at a time:

1. :func:`descend`: Newton steps within ``A y = b``, with the absolute values of the curvatures and a line
   search, so that they descend where f is not convex too; with inequalities on :math:`t f - \phi` for t = 1,
   30, 900, ...
2. :func:`follow`: primal-dual steps on :math:`F(x, z) = 0` of :mod:`blocklp.declarative.optimality`, a tenth
   of 1/t each; they keep their digits where the barrier alone loses them.
3. :func:`finish`: full Newton steps on F at the t asked for, kept while they bring F nearer to zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blocklp.declarative.barrier import barrier_objective
from blocklp.declarative.derivatives import Function, second_derivatives
from blocklp.declarative.equality import affine_point, null_space
from blocklp.declarative.optimality import Conditions
from blocklp.errors import ModelError

STEPS, HALVINGS = 200, 50
PATH = ((1.0, 1e-2), (30.0, 1e-2), (900.0, 1e-2), (27000.0, 1e-16))
"""t of the barrier alone, in units of the gradient at the start, and what decrease ends the steps of each."""
SMALLEST = 1e-11
"""How much smaller primal-dual steps make 1/t at last."""


def minimise_conditions(
    conditions: Conditions, tensors: Sequence[Tensor], start: Tensor
) -> tuple[Tensor, int]:
    """Return z = (y, multipliers) with F(x, z) = 0 at a local minimum, and the number of inequalities.

    Parameters
    ----------
    conditions : Conditions
        The problem.
    tensors : sequence of Tensor
        Parameters, A and b, without gradients.
    start : Tensor
        ``(batch, n)``; inequalities have to hold strictly at the point of the affine set next to it.

    Returns
    -------
    z : Tensor
        ``(batch, n + m + k)``.
    inequalities : int
        m.

    Raises
    ------
    ModelError
        If the start does not hold inequalities strictly, no minimum was found, or a maximum or saddle point.
    """
    y, n = start, start.shape[1]
    a = tensors[-2] if conditions.has_equality else y.new_zeros(len(y), 0, n)
    basis = null_space(a)
    if conditions.has_equality:
        y = affine_point(a, tensors[-1], y)
    arguments = tensors[:-2] if conditions.has_equality else tensors

    def f(y: Tensor) -> Tensor:
        return conditions.f(*arguments, y)

    inequality, c, t = conditions.inequality, y.new_zeros(len(y), 0), torch.ones_like(y[:, 0])
    if inequality is None:
        y = descend(f, y, basis)
    else:
        within = inequality
        outside = ~(inequality(*arguments, y) < 0).all(1)
        if bool(outside.any()):
            where = "the point of A y = b next to start" if conditions.has_equality else "start"
            raise ModelError(
                f"an inequality does not hold strictly at {where} of instance {int(outside.nonzero()[0])}; "
                "give a start where all constraints are below zero"
            )
        unit = second_derivatives(f, (), y).f_y.abs().amax(1).clamp(min=1e-9)
        for growth, enough in PATH:
            t = (growth / unit).clamp(max=1 / conditions.gap if conditions.gap else math.inf)
            y = descend(barrier_objective(f, lambda y: within(*arguments, y), t), y, basis, enough)
        c = inequality(*arguments, y)
    z = torch.cat([y, -1 / (t[:, None] * c), y.new_zeros(len(y), a.shape[1])], 1)
    if conditions.has_equality:  # the multipliers of equations that bring F nearest to zero
        residual, _ = linearised(conditions, z, tensors, n)
        equal = torch.linalg.lstsq(a.mT, -residual[:, :n, None]).solution[:, :, 0]
        z = torch.cat([z[:, : n + c.shape[1]], equal], 1)
    z = finish(conditions, follow(conditions, z, tensors, (n, c.shape[1]), 1 / t[:, None]), tensors, n)
    residual, matrix = linearised(conditions, z, tensors, n)
    off = torch.maximum(residual.abs().amax(1), wrong_side(conditions, z, tensors, n))
    failed = ~(off <= 1e-8 * (1 + matrix.abs().amax((1, 2)) * (1 + z.abs().amax(1))))
    if bool(failed.any()):
        raise ModelError(
            f"no minimum was found for instance {int(failed.nonzero()[0])}: f may be unbounded below or not "
            "smooth, or the start too far away; bound y by inequalities, or give another start"
        )
    return z, c.shape[1]


def descend(objective: Function, y: Tensor, basis: Tensor, enough: float = 1e-16) -> Tensor:
    """Return local minima of ``objective(y)`` on ``y + span(basis)``.

    Parameters
    ----------
    objective : callable
        ``(batch, n) -> (batch,)``, finite at y.
    y : Tensor
        ``(batch, n)``.
    basis : Tensor
        ``(batch, n, free)``, orthonormal.
    enough : float
        A decrease of the objective, relative to its value, that is not worth another step.

    Returns
    -------
    Tensor
        ``(batch, n)``.

    Raises
    ------
    ModelError
        If steps end where curvatures are negative, as they do at once where the slope vanishes at y.
    """
    value = objective(y)
    active = torch.ones_like(value, dtype=torch.bool)
    eye = torch.eye(basis.shape[2], dtype=y.dtype, device=y.device)
    for _ in range(STEPS):
        found = second_derivatives(objective, (), y)
        slope = (basis.mT @ found.f_y[:, :, None])[:, :, 0]
        curve = basis.mT @ found.f_yy @ basis
        active = active & curve.isfinite().all(-1).all(-1) & slope.isfinite().all(-1)
        step = -descent(torch.where(active[:, None, None], curve, eye), slope)
        decrease = -(slope * step).sum(1)
        active = active & (decrease > enough * (1 + value.abs()))
        if not bool(active.any()):
            break
        y, value, moved = search(
            objective, y, value, (basis @ step[:, :, None])[:, :, 0], torch.where(active, decrease, 0.0)
        )
        active = active & moved
    rounding = (1e-7 * curve.abs().amax((1, 2), keepdim=True) + 1e-100) * eye if len(eye) else eye
    _, info = torch.linalg.cholesky_ex(torch.where(curve.isfinite(), curve + rounding, 0.0))
    if bool((info > 0).any()):
        k = int(info.nonzero()[0])
        raise ModelError(f"steps ended in a maximum or saddle point of instance {k}; give another start")
    return y


def descent(curve: Tensor, slope: Tensor) -> Tensor:
    """Return the inverse of ``(batch, n, n)``, curvatures made positive, times ``(batch, n)``.

    Along negative curvature a step of Newton would climb, and along flat directions it would have no end.
    """
    factor, info = torch.linalg.cholesky_ex(curve)
    step: Tensor = torch.cholesky_solve(slope[:, :, None], factor)[:, :, 0]
    rest = info > 0
    if bool(rest.any()):
        size, axes = torch.linalg.eigh(curve[rest])
        size = size.abs()
        size = size.clamp(min=1e-9 * size.amax(1, keepdim=True).clamp(min=1e-9))
        step[rest] = (axes @ ((axes.mT @ slope[rest][:, :, None]) / size[:, :, None]))[:, :, 0]
    return step


def search(
    objective: Function, y: Tensor, value: Tensor, direction: Tensor, decrease: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve steps until they descend by a part of what their slopes say (Armijo's rule).

    Parameters
    ----------
    objective : callable
        ``(batch, n) -> (batch,)``.
    y, direction : Tensor
        ``(batch, n)``.
    value, decrease : Tensor
        ``(batch,)``: at y, and minus the slope along the direction; instances with no decrease stay where
        they are.

    Returns
    -------
    y, value, moved : Tensor
        The points, their values, and which instances have moved.
    """
    length = (decrease > 0).to(y.dtype)
    for _ in range(HALVINGS):
        trial = y + length[:, None] * direction
        new = objective(trial)
        good = (new <= value - 1e-4 * length * decrease) & (length > 0)
        waiting = ~good & (length > 0)
        if not bool(waiting.any()):
            break
        length = torch.where(waiting, length / 2, length)
    return torch.where(good[:, None], trial, y), torch.where(good, new, value), good


def linearised(conditions: Conditions, z: Tensor, tensors: Sequence[Tensor], n: int) -> tuple[Tensor, Tensor]:
    """Return F and its derivative by z as plain numbers.

    Parameters
    ----------
    conditions : Conditions
        F of the problem.
    z, tensors, n
        As in :meth:`blocklp.declarative.optimality.Conditions.parts`.

    Returns
    -------
    residual, matrix : Tensor
        ``(batch, n + m + k)`` and ``(batch, n + m + k, n + m + k)``, without gradients.
    """
    with torch.enable_grad():
        residual, matrix = conditions.linearise(z.detach().requires_grad_(), tensors, n)
    return residual.detach(), matrix


def newton_step(residual: Tensor, matrix: Tensor) -> Tensor:
    """Return the step that makes the linearised F zero; none where the matrix is singular."""
    step, _ = torch.linalg.solve_ex(matrix, -residual[:, :, None])
    return torch.where(step.isfinite().all(1, keepdim=True), step, 0.0)[:, :, 0]


def follow(
    conditions: Conditions, z: Tensor, tensors: Sequence[Tensor], sizes: tuple[int, int], gap: Tensor
) -> Tensor:
    """Follow the barrier's path to the t asked for, with multipliers as variables of their own.

    Parameters
    ----------
    conditions : Conditions
        The problem.
    z : Tensor
        ``(batch, n + m + k)``, on the path.
    tensors : sequence of Tensor
        Parameters, A and b.
    sizes : pair of int
        n and m.
    gap : Tensor
        ``(batch, 1)``: 1/t at z.

    Returns
    -------
    Tensor
        ``(batch, n + m + k)``.
    """
    n, m = sizes
    end = (SMALLEST * gap).clamp(min=conditions.gap)
    while m and bool((gap > end).any()):
        gap = torch.maximum(0.1 * gap, end)
        step = newton_step(*linearised(replace(conditions, gap=gap), z, tensors, n))
        _, c, duals, _, _ = conditions.parts(z, tensors, n)
        length = shortened(duals[:, :m], step[:, n : n + m])
        for _ in range(HALVINGS):
            _, trial, _, _, _ = conditions.parts(z + length[:, None] * step, tensors, n)
            outside = ~(trial <= 0.005 * c).all(1)
            if not bool(outside.any()):
                break
            length = torch.where(outside, 0.5 * length, length)
        z = torch.where(outside[:, None], z, z + length[:, None] * step)
    return z


def shortened(multipliers: Tensor, step: Tensor) -> Tensor:
    """Return how much of a step ``(batch,)`` leaves a two-hundredth of each multiplier, at most all of it."""
    limit = torch.where(step < 0, -0.995 * multipliers / step, math.inf)
    return limit.amin(1).clamp(max=1.0)


def wrong_side(conditions: Conditions, z: Tensor, tensors: Sequence[Tensor], n: int) -> Tensor:
    """Return by how much an inequality or the sign of a multiplier is violated, 0 if by nothing.

    Parameters
    ----------
    conditions, z, tensors, n
        As in :func:`linearised`.

    Returns
    -------
    Tensor
        ``(batch,)``, not negative.
    """
    _, c, duals, _, _ = conditions.parts(z, tensors, n)
    return torch.cat([c, -duals[:, : c.shape[1]], z.new_zeros(len(z), 1)], 1).amax(1)


def finish(conditions: Conditions, z: Tensor, tensors: Sequence[Tensor], n: int) -> Tensor:
    """Take full Newton steps on F while they bring it nearer to zero and respect inequalities and signs.

    Where multipliers are not unique, full steps may lead far away from those that are positive.

    Parameters
    ----------
    conditions : Conditions
        The problem.
    z : Tensor
        ``(batch, n + m + k)``, near a solution.
    tensors : sequence of Tensor
        Parameters, A and b.
    n : int
        Number of variables.

    Returns
    -------
    Tensor
        ``(batch, n + m + k)``.
    """
    residual, matrix = linearised(conditions, z, tensors, n)
    for _ in range(20):
        trial = z + newton_step(residual, matrix)
        new, changed = linearised(conditions, trial, tensors, n)
        better = new.norm(dim=1) < residual.norm(dim=1)
        better = better & (wrong_side(conditions, trial, tensors, n) <= 1e-12 * (1 + trial.abs().amax(1)))
        if not bool(better.any()):
            break
        z = torch.where(better[:, None], trial, z)
        residual = torch.where(better[:, None], new, residual)
        matrix = torch.where(better[:, None, None], changed, matrix)
    return z
