"""Entries of a matrix or a graph as the formats of quadratic functions list them."""

from __future__ import annotations

import numpy as np

from blocklp.problems.lines import NODE, Lines
from blocklp.problems.qpbo.arrays import FloatArray, IntArray, merge_pairs


def read_entries(lines: Lines, graph: bool) -> tuple[int, IntArray, FloatArray, Lines]:
    """Read a header ``n m`` and as many entries.

    Parameters
    ----------
    lines : Lines
        Those of the file.
    graph : bool
        Whether a word may follow in the header, and all weights may be left out, as in files of graphs.

    Returns
    -------
    n, pairs, values, body : int, array, array, Lines
        The number of nodes, pairs from 0 on ``(m, 2)``, their values ``(m,)``, and the lines that they stand in.
    """
    header, body = lines.select([0]), lines.select(list(range(1, len(lines))))
    if len(header.fields[0]) not in ((2, 3) if graph else (2,)):
        raise header.error(0, f"not a header of a {'max-cut graph' if graph else 'matrix'}; write 'n m'")
    n, m = int(header.ints(0)[0]), int(header.ints(1)[0])
    if n == 0:
        raise header.error(0, "no variable; an instance needs at least one")
    if len(body) != m:
        raise header.error(0, f"{m} entries are announced but {len(body)} follow; the file is cut off or miscounted")
    body.allowance.take(NODE * n, f"{n} variables")
    unweighted = graph and all(len(fields) == 2 for fields in body.fields)
    if not unweighted:
        body.require_width(3, "'i j value'")
    pairs = np.stack([body.nodes(0, n), body.nodes(1, n)], axis=1)
    values = np.ones(m) if unweighted else body.floats(2)
    body.allowance.check()
    refuse_repeated(body, pairs, n)
    return n, pairs, values, body


def refuse_repeated(body: Lines, pairs: IntArray, n: int) -> None:
    """Refuse a pair that is listed twice: whether it should count once or twice is not for a reader to guess.

    Parameters
    ----------
    body : Lines
        The lines, one a pair.
    pairs : array
        ``(m, 2)`` int64: the pairs.
    n : int
        Number of nodes.

    Raises
    ------
    FormatError
        A pair is listed twice, in whatever order; the error names the second line.
    """
    merged, position = merge_pairs(pairs, n)
    if len(merged) == len(pairs):
        return
    first_row: dict[int, int] = {}
    for row, place in enumerate(position.tolist()):
        if place in first_row:
            raise body.error(row, f"repeats the pair of line {body.numbers[first_row[place]]}; list each pair once")
        first_row[place] = row
