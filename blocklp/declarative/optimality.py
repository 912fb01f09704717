r"""Derivatives of constrained minimisers from their conditions: the barrier and its limit in one system.

A minimiser of f(x, y) over :math:`c(x, y) \le 0`, :math:`A y = b` and its multipliers :math:`z = (y, \lambda,
\nu)` satisfy

.. math::
    F(x, z) = \begin{pmatrix} f_Y + c_Y^T \lambda + A^T \nu \\ \lambda_i c_i + 1/t \\ A y - b \end{pmatrix}
    = 0, \qquad
    F_Z = \begin{pmatrix} L_{YY} & c_Y^T & A^T \\ \mathrm{diag}(\lambda) \, c_Y & \mathrm{diag}(c) & 0 \\
    A & 0 & 0 \end{pmatrix},

with :math:`L = f + \lambda^T c + \nu^T (A y - b)`, so that :math:`z'(x) = -F_Z^{-1} F_X`.

- Without constraints this is Lemma 3.2, with equations alone Lemmas 4.1 and 4.2.
- For a finite t, eliminating :math:`\lambda_i = -1 / (t c_i)` gives equation 64: the derivative of the
  barrier's minimiser.
- For :math:`t = \infty` it is that of the active set.  Where :math:`\lambda_i > 0`, the second row says that
  :math:`c_i` stays 0; where :math:`c_i < 0`, that :math:`\lambda_i` stays 0.

Where multipliers are not unique, :math:`F_Z` is singular and y has a derivative all the same; see
:mod:`blocklp.declarative.degenerate`.

A constraint with :math:`\lambda_i = c_i = 0` is a kink: the derivatives on its two sides differ.  Multipliers
that :func:`minimise` found are those of the barrier's path, and the derivative is the limit along it, between
both sides.  Multipliers that are exactly zero count as inactive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.declarative.degenerate import balanced, consistent_solution
from blocklp.declarative.derivatives import Function, checked, gradient, jacobian
from blocklp.declarative.unconstrained import apart, together


@dataclass(frozen=True)
class Conditions:
    """F of one kind of problem, of z and of tensors: the parameters, then A and b if there are any."""

    f: Function
    inequality: Function | None = None
    has_equality: bool = False
    gap: float | Tensor = 0.0
    """1/t, one for all or ``(batch, 1)``."""

    def linearise(
        self, z: Tensor, tensors: Sequence[Tensor], n: int, create_graph: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return F and its derivative by z.

        Parameters
        ----------
        z : Tensor
            ``(batch, n + m + k)``, which requires gradients: y and the multipliers of inequalities and
            equations.
        tensors : sequence of Tensor
            Parameters, and with equations A ``(batch, k, n)`` and b ``(batch, k)``.
        n : int
            Number of variables.
        create_graph : bool
            Whether the derivative is differentiable itself.

        Returns
        -------
        residual : Tensor
            ``(batch, n + m + k)``, differentiable by z and tensors.
        matrix : Tensor
            ``(batch, n + m + k, n + m + k)``.
        """
        y, c, duals, a, equations = self.parts(z, tensors, n)
        arguments = (*(tensors[:-2] if self.has_equality else tensors), y)
        value = checked(self.f(*arguments), (len(y),), "f").sum()
        inequal, equal = duals[:, : c.shape[1]], duals[:, c.shape[1] :]
        [stationary] = gradient(value + (inequal * c).sum() + (equal * equations).sum(), [y])
        [curvature], [c_y] = jacobian(stationary, [y], create_graph), jacobian(c, [y], create_graph)
        residual = torch.cat([stationary, inequal * c + self.gap, equations], 1)
        complementary = torch.cat([inequal[:, :, None] * c_y, torch.diag_embed(settled(inequal, c))], 2)
        rows = [
            torch.cat([curvature, c_y.mT, a.mT], 2),
            torch.cat([complementary, c.new_zeros(*c.shape, equal.shape[1])], 2),
            torch.cat([a, a.new_zeros(*a.shape[:2], duals.shape[1])], 2),
        ]
        return residual, torch.cat(rows, 1)

    def parts(
        self, z: Tensor, tensors: Sequence[Tensor], n: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the parts that F is made of; what belongs to absent constraints is empty.

        Parameters
        ----------
        z : Tensor
            ``(batch, n + m + k)`` float64: y and the multipliers of inequalities and equations.
        tensors : sequence of Tensor
            Parameters, and with equations A ``(batch, k, n)`` and b ``(batch, k)``.
        n : int
            Number of variables.

        Returns
        -------
        y, c, duals : Tensor
            ``(batch, n)``, the inequalities ``(batch, m)``, and all multipliers ``(batch, m + k)``.
        a, equations : Tensor
            A ``(batch, k, n)`` and A y - b ``(batch, k)``.

        Raises
        ------
        ShapeError
            If the function of the inequalities returns another shape.
        """
        y, duals = z[:, :n], z[:, n:]
        none = y.new_zeros(len(y), 0)
        a, b = tensors[-2:] if self.has_equality else (y.new_zeros(len(y), 0, n), none)
        arguments = (*(tensors[:-2] if self.has_equality else tensors), y)
        m = duals.shape[1] - a.shape[1]
        c = (
            none
            if self.inequality is None
            else checked(self.inequality(*arguments), (len(y), m), "inequality")
        )
        return y, c, duals, a, (a @ y[:, :, None])[:, :, 0] - b


def settled(multipliers: Tensor, c: Tensor) -> Tensor:
    """Derivative of ``multipliers * c`` by the multipliers; 1 where both vanish, which counts as inactive."""
    return torch.where((multipliers == 0) & (c == 0), 1.0, c)


def kkt_jacobians(
    f: Function,
    inequality: Function,
    parameters: Sequence[Tensor],
    y: Tensor,
    multipliers: Tensor,
    t: float = math.inf,
) -> tuple[Tensor, ...]:
    r"""The first n rows of :math:`-F_Z^{-1} F_X`: equation 64, or the active set for an infinite t.

    Parameters
    ----------
    f, inequality
        As in :func:`blocklp.declarative.barrier.barrier_objective`.
    parameters
        As in :func:`blocklp.declarative.unconstrained.unconstrained_jacobians`, and so is what is returned.
    y : Tensor
        ``(batch, n)`` float64: minimisers.
    multipliers : Tensor
        ``(batch, m)`` float64: :math:`\lambda \ge 0`, :math:`-1 / (t c)` for a finite t.
    t : float
        That of the barrier; infinite for none.

    Raises
    ------
    ModelError
        If the matrix is singular.
    """
    parameters = [p.detach().requires_grad_() for p in parameters]
    z = torch.cat([y, multipliers], 1).detach().requires_grad_()
    with torch.enable_grad():
        residual, matrix = balanced(
            *Conditions(f, inequality, gap=1 / t).linearise(z, parameters, y.shape[1])
        )
        by_parameters = jacobian(residual, parameters)
    return apart(consistent_solution(-matrix, together(by_parameters))[:, : y.shape[1]], by_parameters)
