"""Mean field (Kraehenbuehl & Koltun 2011), with damping."""

from __future__ import annotations

import time

from blocklp.errors import OptionError
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.result import Result


def mean_field(crf: DenseCRF, steps: int = 5, damping: float = 0.0) -> Result:
    """Minimise the Kullback-Leibler divergence to the field over products of marginals, all points at once.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    steps : int
        Updates, at least 1.
    damping : float
        Share of the old marginals that stays, from 0 to below 1; the parallel updates need some to be sure to converge.

    Raises
    ------
    OptionError
        If steps or damping are out of range.
    """
    if steps < 1 or not 0 <= damping < 1:
        raise OptionError(f"steps is {steps} and damping {damping}; give at least 1 step and a damping from 0 to below 1")
    began = time.perf_counter()
    q = (-crf.unary).softmax(1)
    for _ in range(steps):
        q = q.lerp((crf.pairwise(q) - crf.unary).softmax(1), 1 - damping)
    return Result.of(crf, "mean field", q, None, steps, time.perf_counter() - began)
