"""Single differentiable steps of the methods that layers unroll: each is the step of the solver of that name.

A state is a tuple whose first entry is y ``(points, labels)``.  Every step filters once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blocklp.problems.densecrf.admm import half_step
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.projected_gradient import projected
from blocklp.problems.densecrf.proximal_gradient import Momentum, fast_step
from blocklp.problems.densecrf.regularized_fw import Entropy, Euclidean, NoRegulariser, Regulariser, gradient

State = tuple[Any, ...]


class StepNumbers(NamedTuple):
    """The numbers of one step, tensors ``()`` in the precision of y."""

    turn: int
    """Which step it is, from 0."""
    step: Tensor | None
    r"""The step size :math:`\alpha`."""
    weight: Tensor | None
    r"""The weight :math:`\lambda` of the quadratic or entropic term."""


Step = Callable[[DenseCRF, State, StepNumbers], State]


def slope(crf: DenseCRF, y: Tensor) -> Tensor:
    """The gradient of the energy with the kernels' diagonals, as published: ``(points, labels)``."""
    return gradient(crf, crf.unary, crf.message(y), y)


def mean_field_step(crf: DenseCRF, state: State, numbers: StepNumbers) -> State:
    """The marginals that fit what the others' marginals say.

    Parameters
    ----------
    crf, state
        As in :func:`frank_wolfe_step`.
    numbers : StepNumbers
        Those of the step, of which it needs none.
    """
    return ((-slope(crf, state[0])).softmax(1),)


def frank_wolfe_step(crf: DenseCRF, state: State, numbers: StepNumbers, regulariser: Regulariser) -> State:
    """A step of Frank-Wolfe towards what the regulariser chooses.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    state : tuple
        ``(y,)``.
    numbers : StepNumbers
        With a step size.
    regulariser : Regulariser
        Any.

    Returns
    -------
    tuple
        ``(y,)``.
    """
    assert numbers.step is not None
    return (state[0].lerp(regulariser.minimise(slope(crf, state[0])), numbers.step),)


def vanilla_step(crf: DenseCRF, state: State, numbers: StepNumbers) -> State:
    """Frank-Wolfe (7), through whose labellings no gradient passes.

    Parameters
    ----------
    crf, state
        As in :func:`frank_wolfe_step`.
    numbers : StepNumbers
        With a step size.
    """
    return frank_wolfe_step(crf, state, numbers, NoRegulariser())


def entropic_step(crf: DenseCRF, state: State, numbers: StepNumbers) -> State:
    """Frank-Wolfe with the entropy (12).

    Parameters
    ----------
    crf, state
        As in :func:`frank_wolfe_step`.
    numbers : StepNumbers
        With a step size and the weight of the entropy.
    """
    assert numbers.weight is not None
    return frank_wolfe_step(crf, state, numbers, Entropy(numbers.weight))


def euclidean_step(crf: DenseCRF, state: State, numbers: StepNumbers) -> State:
    """Frank-Wolfe with the Euclidean norm (11).

    Parameters
    ----------
    crf, state
        As in :func:`frank_wolfe_step`.
    numbers : StepNumbers
        With a step size and the weight of the squared norm.
    """
    assert numbers.weight is not None
    return frank_wolfe_step(crf, state, numbers, Euclidean(numbers.weight))


def projected_step(crf: DenseCRF, state: State, numbers: StepNumbers) -> State:
    r"""Projected gradients with the rate :math:`1 / \lambda`.

    Parameters
    ----------
    crf, state
        As in :func:`frank_wolfe_step`.
    numbers : StepNumbers
        With a step size and the weight :math:`\lambda`.
    """
    assert numbers.step is not None and numbers.weight is not None
    y = state[0]
    return (y.lerp(projected(y, slope(crf, y), 1 / numbers.weight), numbers.step),)


def proximal_step(crf: DenseCRF, state: State, numbers: StepNumbers) -> State:
    r"""Fast proximal gradients with the rate :math:`1 / \lambda`.

    Parameters
    ----------
    crf, state
        As in :func:`admm_step`.
    numbers : StepNumbers
        With the weight :math:`\lambda`.

    Returns
    -------
    tuple
        A :class:`Momentum`, whose first entry is y.
    """
    assert numbers.weight is not None
    return fast_step(crf, crf.unary, Momentum(*state), 1 / numbers.weight)


def admm_step(crf: DenseCRF, state: State, numbers: StepNumbers) -> State:
    r"""One of ADMM's two projections with the penalty :math:`\lambda`.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    state : tuple
        ``(y,)`` at first, then what the step before returned.
    numbers : StepNumbers
        With the weight :math:`\lambda`; ``turn`` says which projection it is.

    Returns
    -------
    tuple
        y and the multipliers, ``(points, labels)`` each.
    """
    assert numbers.weight is not None
    y, multipliers = state if len(state) == 2 else (state[0], torch.zeros_like(state[0]))
    return half_step(crf, crf.unary, (y, multipliers), numbers.weight, numbers.turn)


STEPS: dict[str, Step] = {
    "mean-field": mean_field_step,
    "efw": entropic_step,
    "l2fw": euclidean_step,
    "fw": vanilla_step,
    "pgd": projected_step,
    "prox-grad": proximal_step,
    "admm": admm_step,
}
"""The methods of layers."""
STEPPED = ("efw", "l2fw", "fw", "pgd")
"""Those with step sizes."""
WEIGHED = ("efw", "l2fw", "pgd", "prox-grad", "admm")
"""Those with a weight."""
