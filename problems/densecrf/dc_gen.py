r"""DCgen, 2.1.6.1 of the thesis: difference-of-convex steps on the quadratic relaxation, for any compatibility.

.. math:: \min_{y \in M} \; \phi^\top y + \tfrac12 y^\top P y \; = \; [\phi^\top y + y^\top (\tfrac12 P + D) y] - y^\top D y

The relaxation is tight (Ravikumar & Lafferty 2006).  The concave-convex procedure (Algorithm 2) replaces the last term by its
tangent, :math:`g = 2 D y_k`, which adds :math:`\sum d \, (y - y_k)^2` to the objective, and minimises that by Frank-Wolfe steps.
"""

from __future__ import annotations

from itertools import islice

import torch

from blocklp.problems.densecrf.frank_wolfe import ConvexBound, Point, concave_cliques, frank_wolfe
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_counts


def dc_gen(run: Run, *, outer: int = 50, inner: int = 1) -> None:
    """Look for a local minimum of the quadratic relaxation from ``run.start``; no step raises it, and rounding is its argmax.

    Parameters
    ----------
    run : Run
        The run.
    outer, inner : int
        Convex problems, and Frank-Wolfe steps on each, a filter call a step; at least 1.  To lower a convex problem is enough
        (A.1.3), and for equally many filter calls one step on each goes furthest.

    Raises
    ------
    OptionError
        If there is no step.
    """
    check_counts(outer=outer, inner=inner)
    crf, convex = run.crf, ConvexBound(run.crf)
    phi, now = crf.unary.double(), Point.at(run, run.start)
    for _ in range(outer):
        # Concave terms by their tangents.
        linear = phi - 2 * convex.diagonal * now.y + concave_cliques(crf.cliques, now.y)
        before = now.y
        *_, (now, _) = islice(frank_wolfe(run, now, linear, convex.diagonal), inner + 1)
        if run.step(now.y.to(run.start), lambda: torch.equal(now.y, before)):  # noqa: B023 (asked before the next step)
            return
