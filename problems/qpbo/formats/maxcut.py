"""Max-cut graphs of rudy and the G-set, ``.mc``, ``.maxcut``, ``.rud`` and ``.rudy``.

A header ``n m`` (a trailing word such as ``J`` is ignored), then m lines ``i j w`` or ``i j`` (weight 1).  The objective is to
maximise the weight of the cut; the ``Qubo`` minimises its negative.
"""

from __future__ import annotations

from blocklp.problems.formats import InputFile
from blocklp.problems.qpbo.arrays import first_true
from blocklp.problems.qpbo.entries import read_entries
from blocklp.problems.qpbo.instance import Qubo

SUFFIXES = (".mc", ".maxcut", ".rud", ".rudy")


def read(file: InputFile) -> Qubo:
    """Read a graph below a header."""
    n, pairs, values, body = read_entries(file.lines, graph=True)
    if (row := first_true(pairs[:, 0] == pairs[:, 1])) is not None:
        raise body.error(row, "a max-cut graph has no self-loops; for a QUBO matrix pass format='sparse'")
    return Qubo.max_cut(n, pairs, values, name=file.name)
