"""Graphs of DIMACS, ``.clq``, ``.wclq``, ``.col``, ``.mis``, ``.mwis`` and ``.mwvc``.

Lines are ``c ...`` (comment), ``p edge n m`` (also ``edges``, ``col`` or ``clq``), ``n i w`` (node weight) and ``e i j``, nodes
numbered from 1.  What the file asks for goes by its suffix: ``.clq`` and ``.wclq`` the heaviest clique; all others the heaviest
independent set (for ``.mwvc`` its complement, the lightest vertex cover).
"""

from __future__ import annotations

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.formats import InputFile
from blocklp.problems.lines import NODE, Lines
from blocklp.problems.mis.instance import Objective, WeightedGraph
from blocklp.problems.qpbo.arrays import FloatArray, first_true

SUFFIXES: dict[str, Objective] = {
    ".clq": "clique",
    ".wclq": "clique",
    ".col": "independent-set",
    ".mis": "independent-set",
    ".mwis": "independent-set",
    ".mwvc": "independent-set",
}
"""Suffixes, and what they ask for."""

PROBLEM_NAMES = ("edge", "edges", "col", "clq")


def read(file: InputFile) -> WeightedGraph:
    """Read a graph.

    Parameters
    ----------
    file : InputFile
        The file.

    Returns
    -------
    WeightedGraph
        Nodes weigh 1 if the file has no ``n`` lines.  Edges that are listed again, in either direction, are merged.

    Raises
    ------
    FormatError
        The file is not of this form, or its graph would take more memory than allowed.
    """
    lines = file.lines
    rows: dict[str, list[int]] = {"c": [], "p": [], "n": [], "e": []}
    for row, fields in enumerate(lines.fields):
        if fields[0] not in rows:
            # Comments may lack the blank after their "c".
            if not fields[0].startswith("c"):
                raise lines.error(row, "unknown kind of line; DIMACS graphs have lines 'c', 'p', 'n' and 'e'")
            continue
        rows[fields[0]].append(row)
    if not rows["p"]:
        raise FormatError(f"{lines.path}: no problem line; add 'p edge n m' before the edges")
    if len(rows["p"]) > 1:
        raise lines.error(rows["p"][1], "a second problem line; keep one")
    header = lines.select(rows["p"])
    if len(header.fields[0]) != 4 or header.fields[0][1] not in PROBLEM_NAMES:
        raise header.error(0, "not a problem line of a graph; write 'p edge n m'")
    n, m = int(header.ints(2)[0]), int(header.ints(3)[0])
    if n == 0:
        raise header.error(0, "no node; a graph needs at least one")
    lines.allowance.take(NODE * n, f"{n} nodes")

    edges = lines.select(rows["e"])
    edges.require_width(3, "'e i j'")
    pairs = np.stack([edges.nodes(1, n), edges.nodes(2, n)], axis=1)
    if (loop := first_true(pairs[:, 0] == pairs[:, 1])) is not None:
        raise edges.error(loop, "a self-loop, which would forbid its node; drop the line")
    lines.allowance.check()
    graph = WeightedGraph.from_edges(_node_weights(lines.select(rows["n"]), n), pairs, name=file.name)
    # Colouring files list edges once or twice, and their headers count lines or edges.
    if m not in (len(pairs), len(graph.edges)):
        raise header.error(
            0,
            f"{m} edges are announced but {len(pairs)} lines with {len(graph.edges)} different edges follow; "
            "the file is cut off or miscounted",
        )
    return graph


def _node_weights(lines: Lines, n: int) -> FloatArray:
    if not len(lines):
        return np.ones(n)
    lines.require_width(3, "'n i w'")
    nodes, values = lines.nodes(1, n), lines.floats(2)
    if (negative := first_true(values < 0)) is not None:
        raise lines.error(negative, "a negative weight; such a node is in no best set, so drop it")
    weights = np.full(n, np.nan)
    weights[nodes] = values
    if (missing := first_true(np.isnan(weights))) is not None:
        raise FormatError(f"{lines.path}: node {missing + 1} has no 'n' line although others have; add its weight")
    if len(nodes) > n:
        counts = np.bincount(nodes, minlength=n)
        row = int(np.flatnonzero(counts[nodes] > 1)[-1])
        raise lines.error(row, "this node already has a weight; keep one 'n' line for each node")
    return weights
