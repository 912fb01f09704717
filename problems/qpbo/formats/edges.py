"""Max-cut graphs as comma-separated values, ``.csv``.

Lines ``i,j,w`` or ``i,j`` (weight 1) with nodes numbered from 0, below lines ``# ...`` and a line of names, if any: a graph on the
nodes up to the largest.
"""

from __future__ import annotations

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.formats import InputFile
from blocklp.problems.lines import NODE, Lines
from blocklp.problems.qpbo.arrays import first_true
from blocklp.problems.qpbo.entries import refuse_repeated
from blocklp.problems.qpbo.instance import Qubo

SUFFIXES = (".csv",)


def read(file: InputFile) -> Qubo:
    """Read a graph whose edges are lines of comma-separated values."""
    lines = file.lines
    rows = [row for row, fields in enumerate(lines.fields) if not fields[0].startswith("#")]
    table = [[field.strip() for field in " ".join(lines.fields[row]).split(",")] for row in rows]
    body = Lines(lines.allowance, [lines.numbers[row] for row in rows], table)
    if table and table[0][0][:1].isalpha():
        body = body.select(list(range(1, len(body))))
    if not len(body):
        raise FormatError(f"{lines.path}: no edge; write lines 'i,j,weight'")
    unweighted = all(len(fields) == 2 for fields in body.fields)
    if not unweighted:
        body.require_width(3, "'i,j,weight'")
    pairs = np.stack([body.ints(0), body.ints(1)], axis=1)
    n = int(pairs.max()) + 1
    body.allowance.take(NODE * n, f"{n} variables")
    if (row := first_true(pairs[:, 0] == pairs[:, 1])) is not None:
        raise body.error(row, "a max-cut graph has no self-loops")
    values = np.ones(len(pairs)) if unweighted else body.floats(2)
    body.allowance.check()
    refuse_repeated(body, pairs, n)
    return Qubo.max_cut(n, pairs, values, name=file.name)
