r"""The alternating direction method of multipliers, B.3 of Le-Huu & Paragios 2018.

A copy of x for each position in the factors makes the energy linear in each of them, and they must agree:

.. math:: \min F(x^1, \dots, x^D) \quad \text{s.t.} \quad \sum_d A^d x^d = 0, \quad x^d \in X

with rows :math:`x^{d-1} - x^d` (cyclic, 103), :math:`x^1 - x^d` (star, 104) or :math:`x^d - \tfrac1D \sum_e x^e` (symmetric, 105).
With :math:`G_{de} = {A^d}^\top A^e`, scalars here, and :math:`w^d = {A^d}^\top y`, minimising the augmented Lagrangian by one copy is
a projection,

.. math:: x^d \leftarrow \Pi_X \! \left( -\tfrac{1}{\rho G_{dd}} \Bigl( \tfrac{\partial F}{\partial x^d} + w^d
          + \rho \sum_{e \ne d} G_{de} x^e \Bigr) \right), \qquad w^d \leftarrow w^d + \rho \sum_e G_{de} x^e,

of which (109) to (111) are the cyclic case.  The supplement gives no schedule of the penalty :math:`\rho`; here it rises by a factor
whenever the residual (30) has not fallen for some steps.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.problems.method_options import check_positive
from blocklp.problems.mrf.nonconvex.methods.pgd import project
from blocklp.problems.mrf.nonconvex.run import NonconvexRun
from blocklp.status import Status

Split = Literal["cyclic", "star", "symmetric"]

PATIENCE = 5
"""Steps without a smaller residual after which the penalty rises."""


def admm(
    run: NonconvexRun,
    *,
    decomposition: Split = "cyclic",
    penalty: float = 0.1,
    growth: float = 1.2,
    steps: int = 500,
    tolerance: float = 1e-5,
) -> None:
    r"""Look for a stationary point of E over the simplices; neither E nor the residual need fall in a step.

    Parameters
    ----------
    run : NonconvexRun
        The run.
    decomposition : {"cyclic", "star", "symmetric"}
        Which copies are compared.
    penalty : float
        The first :math:`\rho`, relative to how much the finite costs of a variable differ, in the mean.
    growth : float
        What :math:`\rho` is multiplied by, above 1.
    steps : int
        Most updates of all copies, at least 1.
    tolerance : float
        A start is done, and stays, once its residual is at most this, squares a variable.

    Raises
    ------
    OptionError
        If ``decomposition`` is unknown or a number is out of range.
    """
    check_positive(penalty=penalty, steps=steps)
    if not growth > 1 or not tolerance >= 0:
        raise OptionError(f"growth is {growth} and tolerance {tolerance}; give more than 1, and 0 or more")
    energy = run.energy
    gram = agreement(decomposition, energy.degree).to(energy.device)
    copies = [run.point] * energy.degree
    multipliers = [torch.zeros_like(run.point) for _ in copies]
    rho = torch.full_like(run.point[:, :1, :1], penalty * energy.scale)
    least = torch.full_like(rho[:, 0, 0], torch.inf)
    waited = torch.zeros_like(least)
    done = torch.zeros_like(least, dtype=torch.bool)
    for _ in range(steps):
        before = list(copies)
        for d in range(energy.degree):
            pull = sum((gram[d, e] * copies[e] for e in range(energy.degree) if e != d), start=torch.zeros_like(run.point))
            given = -(energy.costs(copies, d) + multipliers[d] + rho * pull) / (rho * gram[d, d])
            copies[d] = torch.where(done[:, None, None], copies[d], project(given, energy.exists))
        apart = [
            sum((gram[d, e] * copies[e] for e in range(energy.degree)), start=torch.zeros_like(run.point))
            for d in range(energy.degree)
        ]
        multipliers = [w + rho * a for w, a in zip(multipliers, apart, strict=True)]
        residual = _squares(apart) + _squares([a - b for a, b in zip(copies, before, strict=True)])
        waited = torch.where(residual < least, 0, waited + 1)
        least = torch.minimum(least, residual)
        rho = torch.where((waited >= PATIENCE)[:, None, None], rho * growth, rho)
        waited = torch.where(waited >= PATIENCE, 0, waited)
        done = done | (residual <= tolerance * energy.mrf.n)
        mean = torch.stack(copies).mean(0)
        if run.step(mean, energy.value(mean)):
            return
        if bool(done.all()):
            run.status = Status.STALLED
            return


def agreement(decomposition: Split, copies: int) -> Tensor:
    """G of two or more copies: ``(copies, copies)`` float64.

    Raises
    ------
    OptionError
        If there is no such decomposition.
    """
    one = torch.eye(copies, dtype=torch.float64)
    rows = {"cyclic": one[:-1] - one[1:], "star": one[:1] - one[1:], "symmetric": one - 1 / copies}
    if decomposition not in get_args(Split):
        raise OptionError(f"decomposition is {decomposition!r}; give one of {', '.join(rows)}")
    return rows[decomposition].T @ rows[decomposition]


def _squares(parts: list[Tensor]) -> Tensor:
    return torch.stack([(part * part).sum((1, 2)) for part in parts]).sum(0)


METHOD = admm
