"""Reader of QUBO and max-cut files, of any compression: the modules of :mod:`blocklp.problems.qpbo.formats`."""

from __future__ import annotations

import math
import os
from pathlib import Path

import blocklp as bl
from blocklp.errors import FormatError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.formats import Formats
from blocklp.problems.lines import Lines
from blocklp.problems.qpbo.instance import Qubo

FORMATS = Formats("blocklp.problems.qpbo.formats")


def read_qubo(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | bl.Deadline = math.inf,
) -> Qubo:
    """Read a matrix of Biq Mac, or a max-cut graph of rudy, G-set or ``.csv``, of any compression.

    Parameters
    ----------
    path : path-like
        The file.
    format : {"sparse", "maxcut", "edges"}, optional
        By default told by the suffix, in any case and below that of a compression: ``.sparse`` is a QUBO; ``.mc``, ``.maxcut``,
        ``.rud`` and ``.rudy`` are max-cut graphs, ``.csv`` lists their edges.  Under a suffix that says nothing, lines without
        weights or a trailing word in the header tell a max-cut graph; triples alone may be either, and are refused.
    max_bytes : int
        Most bytes that the file may hold once decompressed; the instance may take four times as much memory.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    Qubo
        Named after the file.

    Raises
    ------
    FormatError
        The file is truncated, malformed or too large, repeats a pair, numbers a node outside 1 .. n, or holds a coefficient
        that is not finite, or that sums in float64 cannot bear beside the others; or its format is not certain.
    OptionError
        ``format`` is unknown.
    TimeLimitError
        The time is over.
    """
    file = Path(path)
    chosen = FORMATS.chosen(file, format)
    opened = FORMATS.opened(file, max_bytes, bl.Deadline.of(time_limit))
    qubo: Qubo = FORMATS.read(opened, chosen or _told_by_content(opened.lines))
    return qubo


def _told_by_content(lines: Lines) -> str:
    """The format of a file whose suffix says nothing."""
    width = len(lines.fields[0])
    if width != 3 and (width != 2 or len(lines) == 1 or len(lines.fields[1]) != 2):
        raise FormatError(
            f"{lines.path}: neither suffix nor content tells a matrix from a max-cut graph; pass format='sparse' or 'maxcut' "
            "(--format)"
        )
    return "maxcut"
