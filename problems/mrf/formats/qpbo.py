"""Files of quadratic functions of binary variables, toulbar2's ``.qpbo``.

``n m``, then m lines ``i j w`` (from 1) of one triangle of a symmetric W.  Minimise ``x' W x``, so an
off-diagonal entry counts twice; over {0, 1}, or over {1, -1} if n is negative (label 0 is then 1, and
diagonal entries are linear terms); maximise if m is negative.
"""

from __future__ import annotations

import numpy as np

from blocklp.problems.formats import InputFile
from blocklp.problems.lines import LARGEST, NODE
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import Words
from blocklp.problems.qpbo.arrays import FloatArray

SUFFIXES = (".qpbo",)


def read(file: InputFile) -> Mrf:
    """Read an energy: see :func:`blocklp.problems.mrf.formats.uai.read`."""
    words = Words.of(file.lines)
    begin = words.at
    n, m = words.integers(2, "the number of variables or of coefficients", least=-(10**9))
    if n == 0:
        raise words.error(begin, "no variable; an instance needs at least one")
    words.allowance.take((NODE + 2 * 8 * 2) * abs(n), f"{abs(n)} variables")
    # Label 0 is x = 0 over {0, 1}, and x = 1 over {1, -1}.
    values, sign = np.array([0.0, 1.0] if n > 0 else [1.0, -1.0]), 1.0 if m >= 0 else -1.0
    factors: list[tuple[list[int], FloatArray]] = []
    for _ in range(abs(m)):
        i, j = (k - 1 for k in words.integers(2, "a variable", least=1, most=abs(n)))
        w = sign * words.numbers(1, "a coefficient")
        if not np.isfinite(w).all() or abs(w[0]) > LARGEST:
            raise words.error(words.at - 1, f"a coefficient must be finite, and at most {LARGEST:g}")
        factors.append(([i], w * values) if i == j else ([i, j], 2 * w * np.outer(values, values)))
    words.end()
    return Mrf(np.full(abs(n), 2), factors, name=file.name)
