"""Reader of discrete energies by the suffix of a file, of evidence and of labellings, of any compression.

``FORMATS`` lists what is read; each module of :mod:`blocklp.problems.mrf.formats` describes its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

import blocklp as bl
from blocklp.errors import FormatError, OptionError
from blocklp.problems.files import MAX_BYTES, Allowance, format_suffix
from blocklp.problems.mrf.formats.cfn import read_cfn
from blocklp.problems.mrf.formats.clauses import read_clauses
from blocklp.problems.mrf.formats.ergo import read_ergo
from blocklp.problems.mrf.formats.opengm import read_opengm
from blocklp.problems.mrf.formats.photographs import read_photographs
from blocklp.problems.mrf.formats.pseudo_boolean import read_pseudo_boolean
from blocklp.problems.mrf.formats.qpbo import read_qpbo
from blocklp.problems.mrf.formats.uai import read_uai
from blocklp.problems.mrf.formats.wcsp import read_wcsp
from blocklp.problems.mrf.formats.words import Words
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.qpbo.arrays import IntArray
from blocklp.problems.qpbo.readers import DIMACS, Lines, instance_name
from blocklp.problems.qpbo.readers import SUFFIXES as QUBO_SUFFIXES

Format = Literal["uai", "wcsp", "qpbo", "cfn", "opb", "cnf", "erg", "bep", "opengm"]

SUFFIXES: dict[str, Format] = {
    ".uai": "uai",
    ".lg": "uai",
    ".wcsp": "wcsp",
    ".qpbo": "qpbo",
    ".cfn": "cfn",
    ".json": "cfn",
    ".opb": "opb",
    ".wbo": "opb",
    ".cnf": "cnf",
    ".wcnf": "cnf",
    ".erg": "erg",
    ".bep": "bep",
    ".h5": "opengm",
    ".hdf5": "opengm",
}
"""Suffixes of files, in any case and below those of compressions, and their formats."""

TEXTS: dict[Format, Callable[[Lines, str], Mrf]] = {
    "wcsp": read_wcsp,
    "qpbo": read_qpbo,
    "cfn": read_cfn,
    "opb": read_pseudo_boolean,
    "cnf": read_clauses,
    "erg": read_ergo,
    "bep": read_photographs,
}
"""Readers of texts by format; those of UAI files and of OpenGM's take more than lines."""

ELSEWHERE = {
    ".lp": "a linear program; read it with blocklp lp",
    ".mps": "a linear program; read it with blocklp lp",
    ".pre": "a pedigree, from which toulbar2 makes a model of genotypes; write that with toulbar2 -z=FILE.wcsp, and read FILE.wcsp",
    ".xml": "a model of XCSP; write it with toulbar2 -z=FILE.wcsp, and read FILE.wcsp",
    ".cp": "a model in the language of cp2wcsp.awk; translate it with that program, and read the .wcsp file",
    **dict.fromkeys(DIMACS, "a DIMACS graph; read it with blocklp mis"),
    **dict.fromkeys(QUBO_SUFFIXES, "a quadratic function or a max-cut graph; read it with blocklp qpbo"),
}
"""What files of other suffixes are."""


def read_mrf(
    path: str | os.PathLike[str],
    format: Format | None = None,
    log: bool | None = None,
    evidence: str | os.PathLike[str] | None = None,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | bl.Deadline = math.inf,
) -> Mrf:
    """Read the energy that a file states, in one of the formats of ``SUFFIXES``.

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
    suffix = format_suffix(file)
    if format is None:
        if suffix in ELSEWHERE:
            raise FormatError(f"{file}: this suffix names {ELSEWHERE[suffix]}")
        if suffix not in SUFFIXES:
            raise FormatError(f"{file}: the suffix tells no format ({', '.join(SUFFIXES)} do); pass format= (--format)")
        format = SUFFIXES[suffix]
    if format not in get_args(Format):
        raise OptionError(f"format is {format!r}; give one of {', '.join(get_args(Format))}, or None")
    if log is not None and format != "uai":
        raise OptionError(f"log={log} is for UAI files, and {file} is read as {format!r}; leave it out")
    name = instance_name(file, (".uai.lg", *SUFFIXES))
    if format == "opengm":
        mrf = read_opengm(Allowance(file, max_bytes, deadline), name)
    else:
        lines = Lines.read(file, max_bytes, deadline)
        if not len(lines):
            raise FormatError(f"{file}: the file is empty; fetch it again")
        read = partial(read_uai, log=suffix == ".lg" if log is None else log) if format == "uai" else TEXTS[format]
        mrf = read(lines, name)
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
