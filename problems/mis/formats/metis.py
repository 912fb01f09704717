"""Graphs of METIS and KaMIS, ``.graph``.

A header ``n m``, then a line for each of n nodes that lists its neighbours, numbered from 1; so each of m edges stands in two lines,
and the line of a node without neighbours is empty.  A header ``n m 10`` says that lines begin with the weight of the node.  Lines
that begin with ``%`` are comments.
"""

from __future__ import annotations

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.formats import InputFile
from blocklp.problems.lines import NODE, Lines
from blocklp.problems.mis.instance import Objective, WeightedGraph
from blocklp.problems.qpbo.arrays import FloatArray, IntArray, first_true

SUFFIXES: dict[str, Objective] = {".graph": "independent-set"}
"""Suffixes, and what they ask for."""


def read(file: InputFile) -> WeightedGraph:
    """Read a graph: see :func:`blocklp.problems.mis.formats.dimacs.read`.

    Weights of edges and sizes of nodes, which mean nothing for independent sets, are refused.
    """
    lines = file.lines
    comment = [fields[0].startswith("%") for fields in lines.fields]
    kept = [row for row, own in enumerate(comment) if not own]
    if not kept:
        raise FormatError(f"{lines.path}: no header; write 'n m' before the nodes")
    header = lines.select(kept[:1])
    n, m, weighted = _header(header)
    lines.allowance.take(NODE * n, f"{n} nodes")
    # Empty lines are nodes too: the number of a line, less the header and comments before it, is that of its node.
    before = np.cumsum(comment)[kept[1:]] - sum(comment[: kept[0]])
    node = np.array([lines.numbers[row] for row in kept[1:]], dtype=np.int64) - header.numbers[0] - before
    body = lines.select(kept[1:])
    if (row := first_true(node > n)) is not None:
        raise body.error(row, f"line of node {node[row]}, but the header announces {n}")
    weights = _weights(body, node, n) if weighted else np.ones(n)
    first = 1 if weighted else 0
    sizes = np.array([len(fields) - first for fields in body.fields], dtype=np.int64)
    numbers = np.repeat(np.array(body.numbers, dtype=np.int64), sizes).tolist()
    entries = Lines(lines.allowance, numbers, [[word] for fields in body.fields for word in fields[first:]])
    pairs = np.stack([np.repeat(node - 1, sizes), entries.nodes(0, n)], axis=1)
    lines.allowance.check()
    if len(pairs) != 2 * m:
        raise header.error(
            0, f"{m} edges are announced, so {2 * m} neighbours, but {len(pairs)} follow; the file is cut off or miscounted"
        )
    _check_neighbours(entries, pairs, n)
    return WeightedGraph.from_edges(weights, pairs[pairs[:, 0] < pairs[:, 1]], name=file.name)


def _header(header: Lines) -> tuple[int, int, bool]:
    """Numbers of nodes and edges, and whether nodes have weights."""
    given = header.fields[0]
    if not 2 <= len(given) <= 4:
        raise header.error(0, "not a header of a graph; write 'n m', or 'n m 10' for weights of nodes")
    kind = given[2].zfill(3) if len(given) > 2 else "000"
    if kind not in ("000", "010") or given[3:] not in ([], ["1"]):
        raise header.error(0, "only nodes may have weights, one each; write 'n m', or 'n m 10', and leave out those of edges")
    n, m = int(header.ints(0)[0]), int(header.ints(1)[0])
    if n == 0:
        raise header.error(0, "no node; a graph needs at least one")
    return n, m, kind == "010"


def _weights(body: Lines, node: IntArray, n: int) -> FloatArray:
    """Weights of all nodes."""
    if len(node) < n:
        missing = np.setdiff1d(np.arange(1, n + 1), node)[0]
        raise FormatError(f"{body.path}: node {missing} has no line, which should begin with its weight; the file is cut off")
    values = body.floats(0)
    if (row := first_true(values < 0)) is not None:
        raise body.error(row, "a negative weight; such a node is in no best set, so drop it")
    return values


def _check_neighbours(entries: Lines, pairs: IntArray, n: int) -> None:
    """Refuse self-loops, neighbours that are listed twice, and edges that stand in one line alone."""
    if (row := first_true(pairs[:, 0] == pairs[:, 1])) is not None:
        raise entries.error(row, "a self-loop, which would forbid its node; drop it")
    key, back = pairs[:, 0] * n + pairs[:, 1], pairs[:, 1] * n + pairs[:, 0]
    found, first = np.unique(key, return_index=True)
    if len(found) < len(key):
        once = np.zeros(len(key), dtype=np.bool_)
        once[first] = True
        raise entries.error(int(np.flatnonzero(~once)[0]), "this neighbour is listed twice; list it once")
    if (row := first_true(~np.isin(back, found))) is not None:
        u, v = pairs[row] + 1
        raise entries.error(row, f"node {u} has node {v} for a neighbour, but not the other way round; list each edge in both lines")
