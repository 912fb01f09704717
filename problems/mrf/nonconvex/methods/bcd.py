r"""Block coordinate descent, Algorithm 1 of Le-Huu & Paragios 2018; and rounding by it.

.. math:: x_i \leftarrow \operatorname{argmin}_{x_i \in \Delta_i} E(x_1, \dots, x_i, \dots, x_n)

E is linear in :math:`x_i`, so that a label is best, and no step rises: after each variable had its turn the point is a labelling, and
at a labelling this is iterated conditional modes.  Variables of one colour have no factor in common and move at the same time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.problems.method_options import check_positive
from blocklp.problems.mrf.nonconvex.multilinear import Multilinear
from blocklp.problems.mrf.nonconvex.run import NonconvexRun
from blocklp.status import Status


def block_coordinate_descent(run: NonconvexRun, *, steps: int = 1000) -> None:
    """Descend to a labelling that no change of one variable improves.

    Parameters
    ----------
    run : NonconvexRun
        The run.
    steps : int
        Most turns of all variables, at least 1.

    Raises
    ------
    OptionError
        If there is no step.
    """
    check_positive(steps=steps)
    for _ in range(steps):
        after = turn(run.energy, run.point)
        fixed = torch.equal(after, run.point)
        if run.step(after, run.energy.value(after)):
            return
        if fixed:
            run.status = Status.STALLED
            return


def turn(energy: Multilinear, x: Tensor) -> Tensor:
    """Give every variable its best label in turn: points and labellings ``(batch, n, most labels)``."""
    x = x.clone()
    for colour, nodes in enumerate(energy.classes):
        costs = energy.gradient(x, colour).masked_fill(~energy.exists[nodes], torch.inf)
        now = x[:, nodes]
        least, label = costs.min(-1)
        gain = (now * costs.nan_to_num(posinf=0.0)).sum(-1) - least
        # Proposition 1: at a labelling only strict descent moves, so that it ends.
        move = (gain > energy.noise[nodes]) | (now.amax(-1) < 1)
        x[:, nodes] = torch.where(move[..., None], energy.one_hot(label), now)
    return x


def rounded(energy: Multilinear, x: Tensor, run: NonconvexRun | None = None, steps: int = 1000) -> Tensor:
    """Labellings ``(batch, n)`` from points ``(batch, n, most labels)``, whose energies are not above those of the points.

    After the first turn, time may be up.

    Parameters
    ----------
    energy : Multilinear
        The energy.
    x : Tensor
        ``(batch, n, most labels)``: points of the simplices.
    run : NonconvexRun, optional
        Says when time is up.
    steps : int
        Turns at most.
    """
    x = turn(energy, x)
    for _ in range(steps):
        if run is not None and run.over():
            break
        after = turn(energy, x)
        if torch.equal(after, x):
            break
        x = after
    return x.argmax(-1)


METHOD = block_coordinate_descent
