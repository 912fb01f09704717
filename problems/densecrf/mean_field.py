"""Mean field (Kraehenbuehl & Koltun 2011), with damping."""

from __future__ import annotations

from torch import Tensor

from blocklp.errors import OptionError
from blocklp.kernels.operations import operation
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.run import Run


def mean_field(run: Run, *, steps: int = 5, damping: float = 0.0, tolerance: float = 0.0) -> None:
    """Minimise the Kullback-Leibler divergence to the field over products of marginals, all points at once.

    As published, a point's own marginals are part of what its neighbours say.  It starts at the softmax of the unaries.  Costs count
    in nats: the field is the exponential of minus the energy.

    Parameters
    ----------
    run : Run
        The run.
    steps : int
        Most updates, at least 1.
    damping : float
        Share of the old marginals that stays, from 0 to below 1; the parallel updates need some to be sure to converge.
    tolerance : float
        Largest change of a marginal that counts as converged.

    Raises
    ------
    OptionError
        If a number is out of range.
    """
    if steps < 1 or not 0 <= damping < 1 or not tolerance >= 0:
        raise OptionError(
            f"steps is {steps}, damping {damping}, tolerance {tolerance}; give at least 1 step, a damping from 0 to below 1 and a "
            "tolerance of 0 or more"
        )
    settle(run, 1.0, steps, damping, tolerance)


def settle(run: Run, unit: Tensor | float, steps: int, damping: float = 0.0, tolerance: float = 0.0) -> None:
    """Do updates of the marginals with costs divided by a unit, as many as asked for or until they settle.

    Parameters
    ----------
    run : Run
        Gets the marginals of every step.
    unit : Tensor or float
        ``(points, 1)``: what costs are divided by.
    steps, damping, tolerance
        As in :func:`mean_field`.
    """
    crf = run.crf
    q = (-crf.unary / unit).softmax(1)
    for _ in range(steps):
        run.filter_calls += 1
        old, found = q, mean_field_update(crf, q, unit)
        q = q.lerp(found, 1 - damping) if damping else found
        if run.step(q, lambda: (q - old).abs().max() <= tolerance):  # noqa: B023 (asked before the next step)
            return


@operation
def mean_field_update(crf: DenseCRF, q: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """The marginals that fit what the others' marginals say.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    q : Tensor
        ``(points, labels)`` floating point: marginals.
    unit : Tensor or float
        ``(points, 1)``: what costs are divided by.

    Returns
    -------
    Tensor
        ``(points, labels)``.
    """
    costs = crf.message(q).add_(crf.unary)
    if crf.cliques is not None:
        costs += crf.cliques.message(q)
    costs = costs / unit
    if crf.labels >= 8:
        return (-costs).softmax(1)
    shares = (costs.amin(1, keepdim=True) - costs).exp()  # the same: softmax takes four times as long on short rows
    return shares / shares.sum(1, keepdim=True)
