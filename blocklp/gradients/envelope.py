r"""Gradients of a bound: the Lagrangian at the point and the multipliers of a solve (envelope theorem).

.. math:: \frac{dV}{d\theta} = \frac{\partial}{\partial \theta} \Big[ \langle c, \hat x \rangle
          + \sum_b \big( h_b(\lambda_b) - \langle \lambda_b, \hat x_b \rangle \big) + \dots \Big]

with the point and all multipliers as they are (Danskin 1967). So costs have the gradient :math:`\hat x`,
sides of rows their prices, bounds of variables the multipliers of their boxes, and data of blocks what
:mod:`blocklp.gradients.block_values` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError
from blocklp.gradients.block_values import chosen_sides, value_at
from blocklp.language.handles import ROWS, Rows
from blocklp.language.statement import Statement
from blocklp.results.state import State


@dataclass(frozen=True)
class LagrangianPart:
    """A part of the Lagrangian that depends on some tensors.

    Attributes
    ----------
    data : list of Tensor
        The tensors, of which some require gradients.
    value : callable
        Takes tensors in their places, and returns the part ``(batch,)``.
    """

    data: list[Tensor]
    value: Callable[..., Tensor]


def differentiable(bound: Tensor, parts: Sequence[LagrangianPart]) -> Tensor:
    """A bound ``(batch,)`` whose gradients are those of the parts of a Lagrangian.

    Parameters
    ----------
    bound : Tensor
        ``(batch,)`` float64.
    parts : sequence of LagrangianPart
        What may change; without any the bound is returned as it is.

    Returns
    -------
    Tensor
        The same numbers.
    """
    if not parts:
        return bound
    data = [tensor for part in parts for tensor in part.data]
    return _Envelope.apply(bound, parts, *data)  # type: ignore[no-untyped-call, no-any-return]


class _Envelope(torch.autograd.Function):
    """A number with the gradients of something else."""

    @staticmethod
    def forward(ctx: Any, bound: Tensor, parts: Sequence[LagrangianPart], *data: Tensor) -> Tensor:
        ctx.parts = parts
        ctx.save_for_backward(*data)
        return bound.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        found = _Slopes.apply(ctx.parts, slopes[0], *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return None, None, *found


class _Slopes(torch.autograd.Function):
    """The gradients, which have none themselves."""

    @staticmethod
    def forward(
        ctx: Any, parts: Sequence[LagrangianPart], slope: Tensor, *data: Tensor
    ) -> tuple[Tensor, ...]:
        left, found = list(data), []
        for part in parts:
            own, left = left[: len(part.data)], left[len(part.data) :]
            leaves = [given.detach().requires_grad_() for given in own]
            with torch.enable_grad():
                total = (part.value(*leaves) * slope.to(leaves[0].device)).sum()
            slopes = torch.autograd.grad(total, leaves, allow_unused=True)
            found += [torch.zeros_like(t) if g is None else g for g, t in zip(slopes, own, strict=True)]
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        raise ModelError(
            "the optimal value of an LP is piecewise linear, and its second derivatives are not given; "
            "blocklp.soft_bound is smooth, and blocklp.Layer(mode='prox') has points with derivatives"
        )


def of_objective(cost: Tensor, offset: Tensor, x: Tensor) -> Iterator[LagrangianPart]:
    """The part of costs and constants in the optimal value.

    Parameters
    ----------
    cost, offset : Tensor
        ``(batch, variables)`` and ``(batch,)`` float64.
    x : Tensor
        ``(batch, variables)`` float64: optimal points.

    Returns
    -------
    iterator of LagrangianPart
        One part if something requires gradients, or none.
    """
    if cost.requires_grad or offset.requires_grad:
        yield LagrangianPart([cost, offset], lambda cost, offset: (cost * x).sum(1) + offset)


def of_bounds(lower: Tensor, upper: Tensor, state: State) -> Iterator[LagrangianPart]:
    """The part of bounds of variables, by the multipliers of their boxes.

    Parameters
    ----------
    lower, upper : Tensor
        ``(batch or 1, variables)`` float64.
    state : State
        Optimal multipliers.

    Returns
    -------
    iterator of LagrangianPart
        One part if there are boxes, or none.
    """
    if BOX in state.duals:
        prices = state.duals[BOX][..., 0]
        yield LagrangianPart([lower, upper], partial(chosen_sides, prices))


def of_rows(rows: Sequence[Rows], state: State) -> Iterator[LagrangianPart]:
    """Sides of rows, by their prices."""
    first = 0
    for handle in rows:
        prices = state.duals[ROWS][:, first : first + handle.count, 0]
        first += handle.count
        if handle.given is not None:
            given = [handle.given.lower, handle.given.upper]
            yield LagrangianPart(given, partial(chosen_sides, prices))


def of_blocks(
    model: Statement, state: State, x: Tensor, place: slice, batch: int
) -> Iterator[LagrangianPart]:
    """Data of the blocks of a model.

    Parameters
    ----------
    model : Statement
        The model.
    state : State
        Multipliers of its instances, in the sense of minimisation.
    x : Tensor
        ``(instances, variables)``: points of its instances.
    place : slice
        Where these are in the batch.
    batch : int
        The instances of all models.

    Yields
    ------
    LagrangianPart
        One for all blocks of a name.
    """
    for blocks in model.blocks:
        kind, duals = blocks.given, state.duals.get(blocks.name)
        if kind is None or duals is None:  # without time to build blocks, the bound is that of the box
            continue
        carried, point = kind.carried(), x.cpu()[:, blocks.scope]
        others = (place.start, batch - place.stop)
        value = partial(_block_values, kind, list(carried), duals.cpu(), point, others)
        yield LagrangianPart(list(carried.values()), value)


def _block_values(
    kind: BlockType,
    names: Sequence[str],
    duals: Tensor,
    point: Tensor,
    others: tuple[int, int],
    *data: Tensor,
) -> Tensor:
    """Sums of the values of the blocks of each instance, as a function of data by names; 0 for ``others``."""
    values = value_at(kind.with_data(**dict(zip(names, data, strict=True))), duals, point)
    return torch.nn.functional.pad(values.sum(1), others)
