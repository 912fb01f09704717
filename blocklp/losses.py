"""Losses of predicted costs, by the decisions to which they lead (:class:`blocklp.Layer`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blocklp.errors import OptionError, ShapeError
from blocklp.learning.layer import Layer, check_finite
from blocklp.learning.modes import Perturbed, ProximalTerm
from blocklp.learning.untraced import untraced
from blocklp.options import of_type, shown

REDUCTIONS = "mean", "sum", "none"


@untraced
def spo_plus(
    layer: Layer,
    predicted: Tensor,
    true: Tensor,
    solution: Tensor | None = None,
    value: Tensor | None = None,
    *,
    index: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The SPO+ loss (Elmachtoub and Grigas, Management Science 2022), an upper bound of the regret.

    .. math:: \ell(\hat c, c) = -\min_{x \in X} \langle 2 \hat c - c, x \rangle
              + 2 \langle \hat c, x^*(c) \rangle - z^*(c), \qquad
              2 \, (x^*(c) - x^*(2 \hat c - c)) \in \partial_{\hat c} \ell

    where the model minimises; of a maximisation, with all costs negated.

    Parameters
    ----------
    layer : Layer
        Of any mode: only its model counts.
    predicted, true : Tensor
        ``(batch, *shape of the parameter)``: costs; gradients are those in the predicted ones.
    solution : Tensor, optional
        ``(batch, *shape of the variables)``: optima of the true costs; without, they are computed.
    value : Tensor, optional
        ``(batch,)``: values of these, all parts of the objective included; without, they are computed, by
        another solve where variables that the layer does not return have costs.
    index : Tensor, optional
        ``(batch,)`` integers: rows of the data set, whose last solve is the start of this one.
    reduction : str
        ``"mean"``, ``"sum"`` or ``"none"`` for one value each.

    Returns
    -------
    Tensor
        ``()`` or ``(batch,)``, in the dtype of the predicted costs.

    Raises
    ------
    ShapeError, NonFiniteError, OptionError
        If tensors do not fit, hold NaN or infinities, or the layer does not return all variables that the
        parameter multiplies.
    """
    own, costs, rows = _given(layer, predicted, true, index, reduction)
    with torch.no_grad():
        best, least = _optimum(layer, costs, solution, value, rows)
    loss: Tensor = _SpoPlus.apply(own, costs, best, least, layer, rows)  # type: ignore[no-untyped-call]
    return _reduced(loss.to(predicted.device, predicted.dtype), reduction)


@untraced
def fenchel_young(
    layer: Layer,
    predicted: Tensor,
    solution: Tensor,
    *,
    index: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The Fenchel-Young loss of a regularised minimiser (Blondel, Martins and Niculae, JMLR 2020).

    Its gradient in the costs of a minimisation is :math:`y - x(c)`, with the label y and the layer's point:
    it is convex, and least where they agree.  Of a maximisation it is :math:`x(c) - y`.

    - Mode ``prox``: :math:`f(y) - \min_{x \in X} f(x)` with :math:`f(x) = \langle c, x \rangle +
      \frac{\rho}{2} |x|^2`, zero where the label is the layer's point.
    - Mode ``perturbed`` (Berthet et al. 2020): :math:`\langle c, y \rangle - E \min_{x \in X} \langle c +
      \sigma Z, x \rangle`, by the samples of the mode; its least value is unknown, and need not be zero.

    Parameters
    ----------
    layer : Layer
        Of mode ``prox`` or ``perturbed``, which returns all variables of the model.
    predicted : Tensor
        ``(batch, *shape of the parameter)``.
    solution : Tensor
        ``(batch, *shape of the variables)``: labels, such as optima of true costs.
    index, reduction
        As in :func:`spo_plus`, and so is what is returned.

    Raises
    ------
    OptionError
        If the layer has another mode, or does not return all variables that the parameter multiplies.
    ShapeError, NonFiniteError
        If tensors do not fit, or hold NaN or infinities.
    """
    of_type(layer, Layer, "layer", "a blocklp.Layer")
    if not isinstance(layer.mode, ProximalTerm | Perturbed):
        need = "Fenchel-Young losses are of mode 'prox' or 'perturbed'"
        raise OptionError(f"the layer has mode {layer.mode}; {need}")
    own, label, rows = _given(layer, predicted, None, index, reduction, solution)
    loss: Tensor = _FenchelYoung.apply(own, label, layer, rows)  # type: ignore[no-untyped-call]
    return _reduced(loss.to(predicted.device, predicted.dtype), reduction)


@untraced
def imitation(
    layer: Layer,
    predicted: Tensor,
    solution: Tensor,
    *,
    index: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Squared distance of the layer's point to a label, by the gradients of the layer's mode.

    Parameters
    ----------
    layer : Layer
        Of any mode.
    predicted, solution, index, reduction
        As in :func:`fenchel_young`, and so is what is returned.

    Raises
    ------
    OptionError, ShapeError, NonFiniteError
        If an option is out of range, or tensors do not fit, or hold NaN or infinities.
    """
    _, label, _ = _given(layer, predicted, None, index, reduction, solution)
    apart = layer.map.points(layer(predicted, index), "points") - label.to(predicted)
    return _reduced((apart * apart).sum(1), reduction)


@untraced
@torch.no_grad()
def regret(
    layer: Layer,
    predicted: Tensor,
    true: Tensor,
    value: Tensor | None = None,
    *,
    index: Tensor | None = None,
    normalised: bool = True,
    reduction: str = "mean",
) -> Tensor:
    r"""How much worse decisions by predicted costs are than the best ones; without gradients.

    .. math:: \langle c, x^*(\hat c) \rangle - z^*(c)

    with the other sign where the model maximises, so that it is not negative.

    Parameters
    ----------
    layer : Layer
        Of any mode: only its model counts.
    predicted, true : Tensor
        ``(batch, *shape of the parameter)``.
    value : Tensor, optional
        ``(batch,)``: optimal values of the true costs, all parts of the objective included; without, they are
        computed.
    index, reduction
        As in :func:`spo_plus`, and so is what is returned.
    normalised : bool
        Whether regrets are divided by the mean magnitude of the optimal values, so that their mean is the
        ratio of both sums.

    Raises
    ------
    ShapeError, NonFiniteError, OptionError
        If tensors do not fit, or hold NaN or infinities, or an option is out of range.
    """
    own, costs, rows = _given(layer, predicted, true, index, reduction)
    structure = layer.structure
    _, least = _optimum(layer, costs, None, value, rows)
    chosen = structure.minimise(structure.costs(own), rows, "regret")
    lost = (structure.costs(costs) * chosen).sum(1) + structure.offset - least
    if normalised:
        size = least.abs().mean()
        lost = lost / torch.where(size > 0, size, 1.0)
    return _reduced(lost.to(predicted.device, predicted.dtype), reduction)


def _given(
    layer: Layer,
    predicted: Tensor,
    true: Tensor | None,
    index: Tensor | None,
    reduction: str,
    solution: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Predicted costs, true costs or labels, and rows, checked and in the layout of the layer."""
    of_type(layer, Layer, "layer", "a blocklp.Layer")
    if reduction not in REDUCTIONS:
        raise OptionError(f"reduction is {shown(reduction)}; give one of {', '.join(map(repr, REDUCTIONS))}")
    own = layer.values(predicted, "predicted costs")
    check_finite(own.detach(), layer.map)
    if true is not None:
        other = layer.values(true, "true costs").detach()
        check_finite(other, layer.map)
    else:
        other = layer.labels(solution, "solutions").detach()  # type: ignore[arg-type]
    if len(other) != len(own):
        what = "true costs" if true is not None else "solutions"
        raise ShapeError(f"{what} have {len(other)} instances, predicted costs {len(own)}; they must agree")
    layer.structure.refreshed()
    return own, other, layer.rows(index, len(own))


def _optimum(
    layer: Layer, costs: Tensor, solution: Tensor | None, value: Tensor | None, rows: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Optima ``(batch, outputs)`` of true costs and their values ``(batch,)``, for minimisation."""
    structure, map = layer.structure, layer.map
    given = None if solution is None else layer.labels(solution, "solutions").detach()
    if value is not None:
        of_type(value, Tensor, "value", f"a tensor ({len(costs)},)", ShapeError)
        if value.shape != (len(costs),):
            raise ShapeError(f"value has shape {tuple(value.shape)}; give ({len(costs)},) optimal values")
        least = map.sense.turn(value.detach().to(costs))
        if given is not None:
            return given, least
    elif given is not None and not bool((structure.fixed - map.placed(map.taken(structure.fixed))).any()):
        known = map.sense.turn(map.products(costs, given)) + (structure.fixed * map.placed(given)).sum(1)
        return given, known + structure.offset
    full = structure.costs(costs)
    x = structure.minimise(full, rows, "true costs")
    if value is None:
        least = (full * x).sum(1) + structure.offset
    return map.taken(x) if given is None else given, least


def _reduced(values: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


class _SpoPlus(torch.autograd.Function):
    """The loss and its subgradient, from one solve at twice the predicted less the true costs."""

    @staticmethod
    def forward(
        ctx: Any,
        predicted: Tensor,
        true: Tensor,
        best: Tensor,
        least: Tensor,
        layer: Layer,
        rows: Tensor | None,
    ) -> Tensor:
        structure, map = layer.structure, layer.map
        turned = 2 * predicted - true
        cost = structure.costs(turned)
        x = structure.minimise(cost, rows, "spo+")
        # The objective at labels is known but for costs that are not predicted; these cancel where the label
        # and the value belong together: <2 c' - c, x> + k(x) against 2 <c', x*> - z*, with z* = <c, x*> + k.
        other = least - map.sense.turn(map.products(true, best))
        value = map.sense.turn(map.products(turned, best)) + other
        loss = value - ((cost * x).sum(1) + structure.offset)
        ctx.gradient = map.adjoint(map.placed(best) - x) * 2
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient[:, None] * ctx.gradient, None, None, None, None, None


class _FenchelYoung(torch.autograd.Function):
    """The loss, and the difference of label and point as its gradient."""

    @staticmethod
    def forward(ctx: Any, predicted: Tensor, label: Tensor, layer: Layer, rows: Tensor | None) -> Tensor:
        structure, map, mode = layer.structure, layer.map, layer.mode
        x, record = mode.forward(structure, predicted, predicted.new_zeros(1, map.size), rows)
        at_label = map.sense.turn(map.products(predicted, label))
        if isinstance(mode, ProximalTerm):
            rest = structure.fixed
            whole = map.placed(label)
            square = mode.rho / 2
            loss = at_label + (rest * whole).sum(1) + square * (whole * whole).sum(1)
            loss = loss - (structure.costs(predicted) * x).sum(1) - square * (x * x).sum(1)
        else:
            assert isinstance(mode, Perturbed)
            noise, each = record
            moved = structure.costs((predicted + mode.sigma * noise).flatten(0, 1))
            least = (moved * each.flatten(0, 1)).sum(1).view(len(noise), -1).mean(0)
            loss = at_label + (structure.fixed * map.placed(label)).sum(1) - least
        ctx.gradient = map.adjoint(map.placed(label) - x)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient[:, None] * ctx.gradient, None, None, None
