"""Reader of DIMACS graph files: ``.clq``, ``.wclq``, ``.col``, ``.mis``, ``.mwis`` and ``.mwvc``.

Lines are ``c ...`` (comment), ``p edge n m`` (also ``edges``, ``col`` or ``clq``), ``n i w`` (node weight) and ``e i j``, nodes
numbered from 1.  What the file asks for goes by its suffix: ``.clq`` and ``.wclq`` the heaviest clique; all others the heaviest
independent set (for ``.mwvc`` its complement, the lightest vertex cover).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import get_args

import numpy as np

import blocklp as bl
from blocklp.errors import FormatError, OptionError
from blocklp.problems.files import MAX_BYTES, format_suffix
from blocklp.problems.mis.instance import Objective, WeightedGraph
from blocklp.problems.qpbo.arrays import FloatArray, first_true
from blocklp.problems.qpbo.readers import DIMACS, NODE, Lines, instance_name

PROBLEM_NAMES = ("edge", "edges", "col", "clq")

SUFFIXES: dict[str, Objective] = {suffix: "clique" if "clq" in suffix else "independent-set" for suffix in DIMACS}
"""What the suffix of a file asks for."""


def read_graph(
    path: str | os.PathLike[str],
    format: Objective | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | bl.Deadline = math.inf,
) -> WeightedGraph:
    """Read a DIMACS graph (see the module's text), of any compression.

    Parameters
    ----------
    path : path-like
        The file.
    format : {"clique", "independent-set"}, optional
        What the file asks for; by default told by its suffix, in any case and below that of a compression.
    max_bytes : int
        Most bytes that the file may hold once decompressed; the graph may take four times as much memory.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    WeightedGraph
        Named after the file, with what it asks for as ``objective``.  Nodes weigh 1 if the file has no ``n``
        lines.  Edges listed in both directions are merged.

    Raises
    ------
    FormatError
        The file is truncated, malformed or too large, holds a self-loop, numbers a node outside 1 .. n, weighs only some nodes,
        or holds a weight that is negative, not finite, or such that sums in float64 lose it or
        the others; or its suffix does not tell what it asks for.
    OptionError
        ``format`` is unknown.
    TimeLimitError
        The time is over.
    """
    file = Path(path)
    if format is None:
        format = SUFFIXES.get(format_suffix(file))
        if format is None:
            known = ", ".join(SUFFIXES)
            raise FormatError(
                f"{file}: the suffix does not tell cliques from independent sets ({known} do); "
                "pass format='clique' or 'independent-set' (--format)"
            )
    elif format not in get_args(Objective):
        raise OptionError(f"format is {format!r}; give 'clique', 'independent-set' or None")
    lines = Lines.read(file, max_bytes, time_limit)
    rows: dict[str, list[int]] = {"c": [], "p": [], "n": [], "e": []}
    for row, fields in enumerate(lines.fields):
        if fields[0] not in rows:
            # Comments may lack the blank after their "c".
            if not fields[0].startswith("c"):
                raise lines.error(row, "unknown kind of line; DIMACS graphs have lines 'c', 'p', 'n' and 'e'")
            continue
        rows[fields[0]].append(row)
    if not rows["p"]:
        raise FormatError(f"{file}: no problem line; add 'p edge n m' before the edges")
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
    graph = WeightedGraph.from_edges(
        _node_weights(lines.select(rows["n"]), n),
        pairs,
        name=instance_name(file, SUFFIXES),
        objective=format,
    )
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
