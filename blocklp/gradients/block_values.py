r"""How the optimal value of blocks changes with their data: the envelope theorem, block by block.

At a saddle point the optimal value of an LP changes with a datum as the Lagrangian does, with points and
multipliers as they are (Danskin 1967; Milgrom and Segal 2002). The part of a block is
:math:`\min_{x \in X_b(w)} \langle \lambda_b, x \rangle`, and w enters it in one of two ways:

- through rows that the type states, :math:`l \le A x \le u`: their duals y, which the multipliers
  :math:`\lambda_b` give, make :math:`\langle y, l - A \hat x_b \rangle` at the point :math:`\hat x_b` of the
  LP;
- through vertices: with :math:`\hat x_b = \sum_k \alpha_k v_k(w)` it is
  :math:`\sum_k \alpha_k \langle \lambda_b, v_k(w) \rangle`. The oracle itself finds vertices and weights, by
  projecting :math:`\hat x_b` (fully corrective Frank-Wolfe: Holloway 1974).

A type may have a formula of its own (:class:`blocklp.blocks.capabilities.HasValueAt`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.capabilities import HasValueAt, constraints_of, supports
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.data_gradients import carries
from blocklp.errors import ModelError
from blocklp.general_solvers.small_lp import optimum

FAR = 1e30
"""What stands for a side that a row or a variable does not have, where dual values are compared."""

ROUNDS = 200
"""Vertices of a block that are tried for the weights of its point."""

HEAVY = 1e3
"""How much more the sum of weights counts than a coordinate, where weights of vertices are looked for."""

NEAR = 1e-12
"""Distance from a point at which its projection ends, and reduced costs that are zero, relative to sizes."""


def value_at(kind: BlockType, cost: Tensor, point: Tensor) -> Tensor:
    r"""The value of blocks as a function of the data of their type that require gradients.

    Parameters
    ----------
    kind : BlockType
        The type; attributes that require gradients are the data.
    cost, point
        As in :meth:`blocklp.blocks.HasValueAt.value_at`.

    Returns
    -------
    Tensor
        ``(batch, blocks)`` float64. Its value is that of the blocks up to a constant; its gradient by the
        data is that of the optimal value.

    Raises
    ------
    ModelError
        If the type takes no negative costs and its constraints carry no gradients.
    """
    if supports(kind, HasValueAt):
        return kind.value_at(cost, point)
    rows = constraints_of(kind)
    if rows is not None and carries(rows):
        with torch.no_grad():
            duals = _one_row_duals(rows, cost) if rows.matrix.shape[2] == 1 else _row_duals(rows, cost)
        return value_of_rows(rows, duals, cost, point)
    if kind.nonnegative_costs:
        need = "state constraints() by operations of torch on its data"
        raise ModelError(f"{kind.name} takes no negative costs, which vertices of a point ask for; {need}")
    return _by_vertices(kind, cost, point)


def value_of_rows(rows: Constraints, duals: Tensor, cost: Tensor, point: Tensor) -> Tensor:
    r"""The Lagrangian of blocks of rows, :math:`\langle y, s - A \hat x \rangle + \langle r, t \rangle`.

    s and t are the sides of rows and the bounds that the signs of duals y and of reduced costs
    :math:`r = \lambda - A^\top y` choose.

    Parameters
    ----------
    rows : Constraints
        The blocks, some of whose numbers require gradients.
    duals : Tensor
        ``(batch, blocks, rows)``: optimal duals of the rows for the costs.
    cost, point : Tensor
        As of :func:`value_at`.

    Returns
    -------
    Tensor
        ``(batch, blocks)``.
    """
    reduced = _without_noise(cost, (duals[..., None, :] @ rows.matrix.detach())[..., 0, :])
    activity = (rows.matrix @ point[..., None])[..., 0]
    value = chosen_sides(duals, rows.lower, rows.upper) - (duals * activity).sum(-1)
    if rows.below is not None and rows.above is not None:
        value = value + chosen_sides(reduced, rows.below, rows.above)
    return value


def chosen_sides(prices: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Sum of prices times lower sides where they are positive, and upper sides where they are negative.

    Parameters
    ----------
    prices : Tensor
        ``(..., sides)``.
    lower, upper : Tensor
        ``(..., sides)``; infinite only where there is no price.

    Returns
    -------
    Tensor
        ``(...)``.
    """
    side = torch.where(prices > 0, lower, torch.where(prices < 0, upper, 0.0))
    return (prices * side).sum(-1)


def _without_noise(cost: Tensor, taken: Tensor) -> Tensor:
    """Reduced costs, zero where rounding alone leaves something."""
    left = cost - taken
    return torch.where(left.abs() > NEAR * (cost.abs() + taken.abs()), left, 0.0)


def _one_row_duals(rows: Constraints, cost: Tensor) -> Tensor:
    """Duals of blocks of one row and bounds: the best ratio of a cost to an entry, or zero.

    The dual value is concave in the dual and bends at these ratios: bisection on their order.
    """
    matrix = rows.matrix[:, :, 0].expand_as(cost)
    lower, upper = (side.clamp(-FAR, FAR) for side in (rows.lower, rows.upper))

    def value(dual: Tensor) -> Tensor:
        found = chosen_sides(dual, lower, upper)
        if rows.below is not None and rows.above is not None:
            low, high = (side.clamp(-FAR, FAR) for side in (rows.below, rows.above))
            found = found + chosen_sides(_without_noise(cost, dual * matrix), low, high)
        return found[..., None]

    ratios = torch.where(matrix != 0, cost / matrix, 0.0)
    kinks = torch.nn.functional.pad(ratios, (1, 0)).sort(-1).values
    first = torch.zeros_like(cost[..., :1], dtype=torch.long)
    last = torch.full_like(first, kinks.shape[-1] - 1)
    while bool((first < last).any()):
        middle = (first + last) // 2
        rises = value(kinks.gather(-1, (middle + 1).clamp(max=last))) > value(kinks.gather(-1, middle))
        first, last = torch.where(rises, middle + 1, first), torch.where(rises, last, middle)
    return kinks.gather(-1, first)


def _row_duals(rows: Constraints, cost: Tensor) -> Tensor:
    """Duals of blocks of several rows, by HiGHS."""
    batch, blocks, dim = cost.shape
    found = cost.new_zeros(batch, blocks, rows.matrix.shape[2])
    for i, b in np.ndindex(batch, blocks):
        own = rows.block(i, b)
        free = torch.full((1, 1, dim), torch.inf, dtype=torch.float64)
        low, high = (-free, free) if own.below is None or own.above is None else (own.below, own.above)
        parts = (t[0, 0].detach().numpy() for t in (own.matrix, own.lower, own.upper, low, high))
        if (answer := optimum(cost[i, b].numpy(), *parts)) is not None:
            found[i, b] = torch.from_numpy(answer[1])
    return found


def _by_vertices(kind: BlockType, cost: Tensor, point: Tensor) -> Tensor:
    """Cost of the vertices of points, weighed."""
    with torch.no_grad():
        asked, weights = vertex_weights(kind.detached(), point)
    total = torch.zeros_like(cost[..., 0])
    for k, own in enumerate(asked):
        vertex = kind.min_oracle(own)[0]
        total = total + weights[..., k] * (cost * vertex).sum(-1)
    return total


def vertex_weights(kind: BlockType, point: Tensor) -> tuple[list[Tensor], Tensor]:
    r"""Costs for which the oracle returns vertices of which points are means, and the weights of these.

    Each round asks for the vertex that reduces the distance to the points most, and weighs all of them anew.

    Parameters
    ----------
    kind : BlockType
        The type.
    point : Tensor
        ``(batch, blocks, dim)`` float64 on the CPU: points of the blocks.

    Returns
    -------
    costs, weights : list of Tensor, Tensor
        Costs ``(batch, blocks, dim)`` each, and ``(batch, blocks, costs)`` weights that add up to 1.
    """
    lead, dim = point.shape[:2], point.shape[2]
    asked = [torch.zeros_like(point)]
    vertices = kind.min_oracle(asked[0])[0][..., None, :]
    weights = point.new_ones(*lead, 1)
    size = 1 + point.abs().amax(-1)
    for _ in range(min(ROUNDS, 4 * dim + 4)):
        mean = (weights[..., None] * vertices).sum(-2)
        direction = mean - point
        vertex, value = kind.min_oracle(direction)
        gain = (direction * mean).sum(-1) - value
        # Rounding alone is left where a vertex is nearer than that.
        if bool((gain <= NEAR * size * direction.abs().amax(-1).clamp(min=NEAR * size)).all()):
            break
        asked.append(direction)
        vertices = torch.cat([vertices, vertex[..., None, :]], -2)
        weights = _nearest_mean(vertices, point)
    return asked, weights


def _nearest_mean(vertices: Tensor, point: Tensor) -> Tensor:
    """Weights of the mean of vertices that is nearest to a point.

    Vertices are ``(batch, blocks, k, dim)``, points ``(batch, blocks, dim)``, weights ``(batch, blocks, k)``.
    """
    from scipy.optimize import nnls  # importing it takes as long as solving a small model

    count = vertices.shape[2]
    weights = point.new_zeros(vertices.shape[:3])
    for i, b in np.ndindex(*vertices.shape[:2]):
        own, target = vertices[i, b].numpy(), point[i, b].numpy()
        one = HEAVY * (1 + np.abs(own).max())  # weights add up to 1
        system = np.vstack([own.T, np.full((1, count), one)])
        found = torch.from_numpy(nnls(system, np.append(target, one))[0])
        weights[i, b] = found / found.sum()
    return weights
