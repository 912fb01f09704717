"""The solver of layers of cvxpylayers; :func:`blocklp.learning.cvxpylayers_solver` returns it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cvxpylayers.interfaces.base import SolverInterface
from scipy.sparse import csc_array, csr_array
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.learning.layer import Layer
from blocklp.lp.block_rows import finite_bounds
from blocklp.lp.implied_bounds import bounds_of_single_rows
from blocklp.model import Model

PARAMETRIC = "parameters in constraints, or in the quadratic part of the objective"
"""What the interface does not take."""


class LinearProgramLayers(SolverInterface):  # type: ignore[misc]
    r"""Linear programs, and those with :math:`\rho/2 \, |x|^2`, whose costs alone hold parameters.

    The canonical form of SCS has bounds of variables as rows: from one that takes bounds they would be lost,
    since cvxpylayers hands none over.

    Parameters
    ----------
    mode : str or None
        The mode of :class:`blocklp.Layer` for linear programs.
    reach : float or None
        Bound for the magnitudes of variables that neither bounds nor rows bound.
    settings : dict
        Further options of the layer.
    """

    canon_solver = "SCS"
    supports_quad_obj = True

    def __init__(self, mode: str, reach: float | None, settings: dict[str, Any]) -> None:
        self.mode, self.reach, self.settings = mode, reach, settings
        self.layer: Layer | None = None

    def setup(self, ctx: Any) -> None:
        """State the LP once the problem is in canonical form.

        Raises
        ------
        ModelError
            If it has other cones, duals among its variables, or parameters where costs are not, or a variable
            has no bounds and there is no ``reach``.
        """
        dims = ctx.cone_dims
        if dims.exp or dims.soc or dims.psd or dims.p3d or dims.pnd:
            need = "state it by linear rows, and (rho / 2) * cvxpy.sum_squares(x) where it is proximal"
            raise ModelError(f"the problem of the layer has cones beside linear rows ({dims}); {need}")
        if any(recovered.source != "primal" for recovered in ctx.var_recover):
            raise ModelError("the layer returns dual variables, which have no gradients; leave them out")
        entries = _constant(ctx.reduced_A.reduced_mat)
        indices, indptr, shape = ctx.reduced_A.problem_data_index
        rows = csc_array((entries, indices, indptr), shape=shape)
        matrix, right = csr_array(-rows[:, :-1]), rows[:, [-1]].toarray().ravel()
        matrix.eliminate_zeros()
        count = shape[1] - 1
        least = np.where(np.arange(len(right)) < dims.zero, right, -np.inf)
        free = np.full(count, np.inf)
        lower, upper = bounds_of_single_rows(matrix, (least, right), (-free, free))
        program = LinearProgram(np.zeros(count), matrix, least, right, lower, upper)
        low, high = finite_bounds(program, self.reach, lambda j: f"{_name(ctx, j)}")
        self.sizes = (
            len(entries),
            None if ctx.reduced_P.reduced_mat is None else ctx.reduced_P.reduced_mat.shape[0],
        )
        model = Model()
        x = model.variable("x", count, lower=low, upper=high)
        kept = np.flatnonzero(np.diff(matrix.indptr) != 1)
        if len(kept):
            model.add_rows(matrix[kept], x, least[kept], right[kept], name="rows")
        cost = model.parameter("cost", count)
        model.minimize(cost @ x)
        rho, settings = _curvature(ctx.reduced_P, count), self.settings
        mode = self.mode if rho is None else "prox"
        settings = settings if rho is None else settings | {"rho": rho}
        self.layer = Layer(model, cost=cost, variables=x, mode=mode, **settings)

    def solve_torch_batch(
        self,
        P: Tensor | None,
        q: Tensor,
        A: Tensor,
        dims: Any,
        solver_args: dict[str, Any],
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor, Any]:
        """Solve a batch; the state is the costs and the points, with their graph.

        Parameters
        ----------
        P, A : Tensor or None, Tensor
            The same in all calls.
        q : Tensor
            ``(batch, variables + 1)``: costs, and the constant of the objective.
        dims, solver_args : object
            Not read.
        needs_grad : bool
            Whether :meth:`derivative_torch_batch` follows.
        """
        assert self.layer is not None
        with torch.set_grad_enabled(needs_grad):
            costs = q[:, :-1].detach().requires_grad_(needs_grad)
            x = self.layer(costs)
        return x.detach(), x.new_zeros(len(x), 0), (costs, x)

    def derivative_torch_batch(
        self, dprimal: Tensor, ddual: Tensor, saved_state: Any
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Gradients in costs; those of what does not change are zero.

        Parameters
        ----------
        dprimal : Tensor
            ``(batch, variables)``: gradients in the points.
        ddual : Tensor
            Gradients in the duals, which are not given: not read.
        saved_state : tuple
            The state of the solve, costs and points with their graph.

        Returns
        -------
        quadratic : Tensor or None
            ``(batch, entries of P)``, zero; None without P.
        linear, matrix : Tensor
            ``(batch, variables + 1)`` and ``(batch, entries of A)``, the latter zero.
        """
        costs, x = saved_state
        (slope,) = torch.autograd.grad(x, costs, dprimal, retain_graph=True)
        entries, curved = self.sizes
        batch = len(slope)
        quadratic = None if curved is None else slope.new_zeros(batch, curved)
        return quadratic, torch.nn.functional.pad(slope, (0, 1)), slope.new_zeros(batch, entries)


def _constant(reduced: Any) -> np.ndarray:
    """Numbers that hold no parameters, from the map of parameters and a one to them.

    Raises
    ------
    ModelError
        If one holds any.
    """
    dense = csr_array(reduced)
    if dense[:, :-1].count_nonzero():
        raise ModelError(f"the problem of the layer has {PARAMETRIC}; only costs may hold any")
    found: np.ndarray = dense[:, [-1]].toarray().ravel()
    return found


def _curvature(quadratic: Any, count: int) -> float | None:
    """The number rho of an objective with ``rho / 2 * |x|^2``; None for a linear one.

    Raises
    ------
    ModelError
        If it has another quadratic part.
    """
    if quadratic.reduced_mat is None:
        return None
    entries, (indices, indptr, shape) = _constant(quadratic.reduced_mat), quadratic.problem_data_index
    matrix = csc_array((entries, indices, indptr), shape=shape)[:, :count].toarray()[:count]
    rho = float(matrix[0, 0])
    if rho <= 0 or not np.array_equal(matrix, rho * np.eye(count)):
        need = "write (rho / 2) * cvxpy.sum_squares(x) of all variables, and what is linear beside it"
        raise ModelError(f"the quadratic part of the objective is no multiple of |x|^2; {need}")
    return rho


def _name(ctx: Any, column: int) -> str:
    """The variable that a column of the canonical form belongs to, as far as the layer returns it."""
    for variable, recovered in zip(ctx.variables, ctx.var_recover, strict=True):
        if recovered.primal is not None and recovered.primal.start <= column < recovered.primal.stop:
            return str(variable.name())
    return f"column {column}"
