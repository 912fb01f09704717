r"""DCneg, 2.1.6.2 and A.1.3 of the thesis: difference-of-convex steps for negative semi-definite compatibilities such as Potts.

For positive semi-definite K and negative semi-definite :math:`\mu` (on differences of distributions, so that constants do not matter)
:math:`\tfrac12 y^\top (K \otimes \mu) y` is concave, and all of the relaxation that is convex is each point's own part, of curvature
:math:`\kappa_a = \sum_m K^m_{aa} \lambda_{\max}(-\mu^m)` at most.  Its tangent elsewhere leaves one problem a point,

.. math:: \min_{y_a} \; y_a^\top g_a + \tfrac12 \kappa_a |y_a - y_{k,a}|^2, \qquad g = \phi + P y_k,

which is a projection on the simplex (exact, where the thesis has Frank-Wolfe steps; for Potts the problems are the same).

A lattice is positive semi-definite only up to its truncation.  So the way to that minimum is searched exactly, at no cost: P at its
end is needed in the next step anyway, and no step rises.  ``search=False`` goes all the way, as printed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.frank_wolfe import Point, concave_cliques, line_search
from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_counts


def dc_neg(run: Run, *, steps: int = 20, search: bool = True) -> None:
    """Look for a local minimum of the quadratic relaxation from ``run.start``, one filter call a step.

    Parameters
    ----------
    run, steps
        As in :func:`blocklp.problems.densecrf.qp_cvx.qp_cvx`.
    search : bool
        Whether the best point on the way to each minimum is taken, not the minimum itself.

    Raises
    ------
    OptionError
        If there is no step.
    ModelError
        If a compatibility is not negative semi-definite on differences of distributions.
    """
    check_counts(steps=steps)
    crf, curvature = run.crf, own_curvature(run.crf)
    phi, now = crf.unary.double(), Point.at(run, run.start)
    for _ in range(steps):
        gradient = phi + now.pairs + concave_cliques(crf.cliques, now.y)
        scores = now.y - gradient / curvature
        other = Point.at(run, project_to_simplex(scores, crf.deadline))
        before = now
        if search:
            now = now.towards(other, line_search(crf, now, other, crf.per_image(gradient * (now.y - other.y))))
        else:
            now = other
        if run.step(now.y.to(run.start), lambda: torch.equal(now.y, before.y)):  # noqa: B023 (asked before the next step)
            return


def own_curvature(crf: DenseCRF) -> Tensor:
    r""":math:`\kappa` ``(points, 1)`` float64, at least a trillionth of the energy's unit.

    Raises
    ------
    ModelError
        If a compatibility is not negative semi-definite on differences of distributions.
    """
    labels = torch.eye(crf.labels, dtype=torch.float64, device=crf.unary.device)
    centred = labels - 1 / crf.labels
    total = 1e-12 * crf.per_point(crf.unit)
    for kernel in crf.kernels:
        compatibility = kernel.compare(labels)
        values = torch.linalg.eigvalsh(-centred @ compatibility @ centred)
        if float(values[0]) < -1e-9 * float(compatibility.abs().max()):
            raise ModelError(
                "dc-neg needs compatibilities that are negative semi-definite on differences of distributions, as Potts and linear "
                "costs are; take dc-gen or qp-cvx, which need nothing of the kind"
            )
        total = total + kernel.diagonal * values[-1].clamp(min=0)
    return total
