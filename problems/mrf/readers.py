"""Reader of discrete energies by the suffix of a file, of evidence and of labellings, of any compression.

What is read are the modules of :mod:`blocklp.problems.mrf.formats`, each of which describes its own.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np

import blocklp as bl
from blocklp.errors import FormatError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.formats import Formats
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import Words
from blocklp.problems.qpbo.arrays import IntArray

FORMATS = Formats("blocklp.problems.mrf.formats")


def read_mrf(
    path: str | os.PathLike[str],
    format: str | None = None,
    log: bool | None = None,
    evidence: str | os.PathLike[str] | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | bl.Deadline = math.inf,
) -> Mrf:
    """Read the energy that a file states, in one of the formats of :mod:`blocklp.problems.mrf.formats`.

    Parameters
    ----------
    path : path-like
        The file.
    format : {"uai", "wcsp", "qpbo", "cfn", "opb", "cnf", "erg", "bep", "opengm"}, optional
        By default told by the suffix, in any case and below that of a compression.
    log : bool, optional
        Whether the tables of a UAI file are in the log domain; by default if its suffix is ``.LG``.
    evidence : path-like, optional
        A ``.uai.evid`` file: variables whose labels are given.
    max_bytes : int
        Most bytes that a file may hold once decompressed; the tables may take four times as much memory.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    Mrf
        Named after the file.  Functions on many variables may have added auxiliary variables, after those of the file.

    Raises
    ------
    FormatError
        The file is malformed, cut off, too large or of a kind that is not read.
    OptionError
        ``format`` is unknown, or ``log`` is given for a file that is not UAI.
    ScopeError
        The evidence does not fit.
    TimeLimitError
        The time is over.
    MissingDependencyError
        A file of OpenGM is given, and h5py is not installed.
    """
    file, deadline = Path(path), bl.Deadline.of(time_limit)
    chosen = FORMATS.chosen(file, format)
    if chosen is None:
        raise FormatError(f"{file}: the suffix tells no format ({', '.join(FORMATS.suffixes)} do); pass format= (--format)")
    mrf: Mrf = FORMATS.read(FORMATS.opened(file, max_bytes, deadline), chosen, log=log)
    return mrf if evidence is None else mrf.condition(read_evidence(evidence, max_bytes=max_bytes, time_limit=deadline))


def read_evidence(
    path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES, time_limit: float | bl.Deadline = math.inf
) -> dict[int, int]:
    """Read a ``.uai.evid`` file: ``k`` and k pairs ``variable label``, in older files after a ``1``, the number of samples.

    Parameters
    ----------
    path, max_bytes, time_limit
        As in :func:`read_mrf`.

    Returns
    -------
    dict
        Variables and their labels.

    Raises
    ------
    FormatError
        The file is malformed, holds several samples, or gives a variable twice.
    """
    words = Words.read(path, max_bytes, time_limit)
    older = len(words.texts) % 2 == 0
    if older and words.integer("the number of samples", most=1) == 0:
        return {}
    count = words.integer("the number of observed variables")
    pairs = words.integers(2 * count, "a variable or its label")
    words.end()
    found = dict(zip(pairs[::2], pairs[1::2], strict=True))
    if len(found) < count:
        raise words.error(0, "a variable is observed twice; name each once")
    return found


def read_labelling(
    path: str | os.PathLike[str], mrf: Mrf, *, max_bytes: int = MAX_BYTES, time_limit: float | bl.Deadline = math.inf
) -> IntArray:
    """Read a ``.MAP`` file, ``MAP`` and then ``n x_0 .. x_(n-1)``: ``(n,)`` int64.

    Parameters
    ----------
    path, max_bytes, time_limit
        As in :func:`read_mrf`.
    mrf : Mrf
        The instance that it labels.

    Raises
    ------
    FormatError
        The file is malformed or does not fit the instance.
    """
    words = Words.read(path, max_bytes, time_limit)
    if words.word("MAP") not in ("MAP", "MPE"):
        raise words.error(0, "a labelling begins with MAP")
    words.integer("the number of variables", least=mrf.n, most=mrf.n)
    labels = [words.integer("a label", most=int(size) - 1) for size in mrf.counts]
    words.end()
    return np.array(labels, dtype=np.int64)
