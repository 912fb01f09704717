"""Reader of graphs, of any compression: the modules of :mod:`blocklp.problems.mis.formats`."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import blocklp as bl
from blocklp.errors import FormatError, OptionError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.formats import Formats
from blocklp.problems.mis.instance import Objective, WeightedGraph

FORMATS = Formats("blocklp.problems.mis.formats")

USUAL = "dimacs"
"""The format of files whose suffix tells none."""


def read_graph(
    path: str | os.PathLike[str],
    format: str | None = None,
    objective: Objective | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | bl.Deadline = math.inf,
) -> WeightedGraph:
    """Read a graph in one of the formats of :mod:`blocklp.problems.mis.formats`.

    Parameters
    ----------
    path : path-like
        The file.
    format : {"dimacs", "metis"}, optional
        By default told by the suffix, in any case and below that of a compression; ``dimacs`` where that tells nothing.
    objective : {"clique", "independent-set"}, optional
        What the file asks for; by default told by its suffix, or by a format that always asks for one.
    max_bytes : int
        Most bytes that the file may hold once decompressed; the graph may take four times as much memory.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    WeightedGraph
        Named after the file, with what it asks for as ``objective``.

    Raises
    ------
    FormatError
        The file is truncated, malformed or too large, holds a self-loop, numbers a node outside 1 .. n, weighs only some nodes,
        or holds a weight that is negative, not finite, or such that sums in float64 lose it or
        the others; or its suffix does not tell what it asks for.
    OptionError
        ``format`` or ``objective`` is unknown.
    TimeLimitError
        The time is over.
    """
    file = Path(path)
    opened = FORMATS.opened(file, max_bytes, bl.Deadline.of(time_limit))
    chosen = FORMATS.chosen(file, format) or USUAL
    if objective is None:
        asked = FORMATS.modules[chosen].SUFFIXES
        if opened.suffix not in asked and len(set(asked.values())) > 1:
            raise FormatError(
                f"{file}: the suffix does not tell cliques from independent sets ({', '.join(asked)} do); "
                "pass objective='clique' or 'independent-set' (--objective)"
            )
        objective = asked.get(opened.suffix, next(iter(asked.values())))
    elif objective not in get_args(Objective):
        raise OptionError(f"objective is {objective!r}; give 'clique', 'independent-set' or None")
    graph: WeightedGraph = FORMATS.read(opened, chosen)
    return replace(graph, objective=objective)
