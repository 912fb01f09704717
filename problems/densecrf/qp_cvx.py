r"""QPcvx, 2.1.5 of the thesis: Frank-Wolfe on the convex quadratic relaxation of a dense CRF.

.. math:: \min_{y \in M} \; (\phi - d)^\top y + y^\top (\tfrac12 P + D) y + \text{cliques}

It equals the energy at labellings, so every tangent gives a lower bound, and the best one is the minimum itself.  With cliques the
conditional gradient knows them (generalised Frank-Wolfe: Bredies, Lorenz & Maass 2009), so that the bound has them in full.
"""

from __future__ import annotations

from itertools import islice

from blocklp.problems.densecrf.frank_wolfe import ConvexBound, Point, frank_wolfe
from blocklp.problems.densecrf.run import Run
from blocklp.problems.method_options import check_counts


def qp_cvx(run: Run, *, steps: int = 50, centred: bool = True) -> None:
    """Minimise the convex relaxation from ``run.start``, one filter call a step; round its solution.

    Any compatibility will do, and the bound holds for all of them.

    Parameters
    ----------
    run : Run
        The run.
    steps : int
        Most steps, at least 1.
    centred : bool
        Whether d is that of compatibilities less their medians, which is least; as printed it is not.

    Raises
    ------
    OptionError
        If there is no step.
    """
    check_counts(steps=steps)
    relaxation = ConvexBound(run.crf, centred)
    start = Point.at(run, run.start)
    points = frank_wolfe(run, start, relaxation.linear, relaxation.diagonal, run.crf.cliques)
    for k, (now, least) in enumerate(islice(points, steps + 1)):
        run.bounded(least - relaxation.rounding)
        if k > 0 and run.step(now.y.to(run.start)):
            return
