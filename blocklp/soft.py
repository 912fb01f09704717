"""Differentiable bounds: the smoothed dual as a function of costs and multipliers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from blocklp.errors import ModelError, OptionError
from blocklp.language.expression import Parameter
from blocklp.options import of_type, shown, with_gradients
from blocklp.results import warm_start as starts
from blocklp.results.solution import Solution
from blocklp.results.state import State
from blocklp.solver import Solver


def soft_bound(
    solver: Solver,
    state: State | Solution,
    temperature: float | Tensor,
    values: Mapping[Parameter, Tensor] | None = None,
) -> Tensor:
    r"""The smoothed bound, smooth in multipliers and in values of parameters, for training with bounds.

    .. math:: -t \sum_b \log \sum_k \exp(-\langle \lambda_b, a_{b,k} \rangle / t) \le D(\lambda)

    The multipliers are made to sum to the cost first, so that the value is a bound of the optimum whatever
    they are, up to rounding (unlike those of :meth:`Solver.solve` it is not corrected for that).  Its
    gradient by the cost is a mean of points of the blocks.

    Parameters
    ----------
    solver : Solver
        The compiled model.
    state : State or Solution
        Multipliers, as of ``solution.state``; its tensors may require gradients.
    temperature : float or Tensor
        t, positive; ``(batch,)`` for one each.  The bound is looser by at most :math:`t \sum_b \log K_b` for
        :math:`K_b` vertices.
    values : mapping, optional
        Parameters to values ``shape`` or ``(batch, *shape)`` to use instead of those that are set (which have
        no gradients); they may require gradients.

    Returns
    -------
    Tensor
        ``(batch,)`` float64: a lower bound when minimising, an upper bound when maximising.

    Raises
    ------
    OptionError
        If the temperature is not positive, a type has no soft minimum, or ``values`` holds what
        the objective does not.
    ShapeError
        If the state does not fit.

    Examples
    --------
    >>> import blocklp as bl
    >>> from blocklp.oracles import Simplex
    >>> m = bl.Model()
    >>> x = m.variable("x", 3, lower=0, upper=1)
    >>> price = m.parameter("price", 3)
    >>> pick = m.add(Simplex(3), scope=[x[[0]], x[[1]], x[[2]]])
    >>> m.minimize((price * x).sum())
    >>> price.value = torch.tensor([1.0, 2.0, 1.0])
    >>> solver = m.compile()
    >>> prices = price.value.clone().requires_grad_()
    >>> bound = soft_bound(solver, solver.solve().state, 0.01, {price: prices})
    >>> bound.sum().backward()
    >>> round(bound.item(), 4), prices.grad.round(decimals=4).tolist()
    (0.9931, [[0.5, 0.0, 0.5]])
    """
    of_type(solver, Solver, "solver", "a compiled solver, as model.compile() returns")
    of_type(values, Mapping | None, "values", "a mapping of parameters to values, or None")
    state = starts.state_of(state, "state")
    problem = solver.decomposition(values=values)
    need = f"temperature is {shown(temperature)}; give one positive number, or ({problem.batch},) of them"
    try:
        t = with_gradients(temperature, "temperature").to(solver.device)
    except ModelError:
        raise OptionError(need) from None
    if t.shape not in ((), (problem.batch,)) or not bool(((t > 0) & t.isfinite()).all()):
        raise OptionError(need)
    state = state if len(solver.models) > 1 else starts.fitted(state, solver.models[0])
    duals = problem.recentred(starts.fill(problem, state.turned(solver.sense)))
    total = problem.offset
    if problem.rows is not None:
        total = total + problem.rows.value(duals[:, problem.in_blocks :]).sum(1)
    for group in problem.groups:
        temperatures = t.expand(problem.batch)[:, None, None]
        found = None if group.soft_min is None else group.soft_min(group.view(duals), temperatures)
        if found is None:
            raise OptionError(f"{group.type.name} has no soft minimum; state soft_min(cost, temperature)")
        value = found[1] - found[2]
        total = total + (value if group.valid is None else value * group.valid).sum(-1)
    return solver.sense.turn(total)
