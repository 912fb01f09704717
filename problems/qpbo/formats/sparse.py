"""Matrices of the Biq Mac Library, ``.sparse``.

A header ``n m``, then m lines ``i j q`` (numbered from 1) with one triangle of a symmetric matrix Q.  The objective is to minimise
``y' Q y``, so an off-diagonal entry counts twice.  A pair that is repeated, in either order, is refused.
"""

from __future__ import annotations

import numpy as np

from blocklp.problems.formats import InputFile
from blocklp.problems.qpbo.entries import read_entries
from blocklp.problems.qpbo.instance import Qubo

SUFFIXES = (".sparse",)


def read(file: InputFile) -> Qubo:
    """Read a matrix that is summed over ordered pairs."""
    n, pairs, values, _ = read_entries(file.lines, graph=False)
    doubled = np.where(pairs[:, 0] == pairs[:, 1], values, 2 * values)
    return Qubo.from_terms(np.zeros(n), pairs, doubled, name=file.name)
