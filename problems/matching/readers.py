"""Matchings in files of numpy arrays, and in folders of Parquet or Arrow files (:mod:`blocklp.problems.matching.tables`)."""

from __future__ import annotations

import math
import zipfile
from dataclasses import fields
from pathlib import Path

import numpy as np

from blocklp.deadline import Deadline
from blocklp.errors import FormatError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.matching.instance import Matching
from blocklp.problems.matching.tables import MatchingTables, tables_of, write_tables

NEEDED = ("source", "destination", "value", "weight", "capacity")
"""Arrays that a file holds."""

OPTIONAL = tuple(f.name for f in fields(Matching) if f.name not in (*NEEDED, "budgets"))
"""Arrays that it may hold beside them."""

PER_BYTE = 2e-9
"""Seconds that it takes to read one."""


def read_matching(path: str | Path, *, max_bytes: int = MAX_BYTES, time_limit: float | Deadline = math.inf) -> Matching:
    """Read a matching from an ``.npz`` file, or a folder of Parquet or Arrow files.

    Parameters
    ----------
    path : str or Path
        A folder of tables (docs/matching.md); edges come sorted by source.  Or a file:
        arrays by the names of :class:`Matching`'s parameters: ``source``, ``destination``, ``value`` and ``weight`` with
        one entry an edge, ``capacity`` with one a destination; ``limit``, ``least``, ``use``, ``floor`` and ``upper``
        may be there too.
    max_bytes : int
        Most bytes that the arrays may take in memory.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    Matching

    Raises
    ------
    FormatError
        If the file is none of numpy's, an array or a column is missing, unknown or too large, or holds objects.
    MissingDependencyError
        If a folder is given, and pyarrow is not installed.
    BlocklpError
        If the arrays are no matching.
    TimeLimitError
        If the time is over.
    """
    deadline = Deadline.of(time_limit)
    if Path(path).is_dir():
        return MatchingTables(path, max_bytes=max_bytes, time_limit=deadline).read()
    try:
        with np.load(Path(path), allow_pickle=False) as held:
            if not hasattr(held, "files"):
                raise FormatError(f"{path}: holds one array; give a file of several, as numpy.savez writes it")
            names = set(held.files)
            if missing := [name for name in NEEDED if name not in names]:
                raise FormatError(f"{path}: lacks {', '.join(missing)}; a matching has {', '.join(NEEDED)}")
            if unknown := sorted(names - {*NEEDED, *OPTIONAL}):
                raise FormatError(
                    f"{path}: holds {', '.join(unknown)}; beside {', '.join(NEEDED)} there may be {', '.join(OPTIONAL)}"
                )
            size = sum(info.file_size for info in held.zip.infolist())
            if size > max_bytes:
                raise FormatError(f"{path}: takes {size} bytes in memory, above the limit of {max_bytes}; raise max_bytes")
            deadline.check(f"reading {path}", PER_BYTE * size)
            arrays = {name: held[name] for name in names}
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FormatError(f"{path}: no file of numpy arrays ({error}); write it by numpy.savez") from error
    return Matching(**arrays)


def write_matching(path: str | Path, matching: Matching) -> None:
    """Write a matching without further budgets to an ``.npz`` file, or to a folder of Parquet files.

    Parameters
    ----------
    path : str or Path
        A file whose name ends in ``.npz``; any other name is that of a folder, which is made.
    matching : Matching
        The matching.

    Raises
    ------
    FormatError
        If it has further budgets, for which the formats have no place.
    MissingDependencyError
        If a folder is to be written, and pyarrow is not installed.
    """
    if matching.budgets:
        raise FormatError("the matching has budgets, and files have one limit a source; write the arrays yourself")
    if Path(path).suffix != ".npz":
        return write_tables(path, tables_of(matching))
    arrays = {name: getattr(matching, name) for name in (*NEEDED, *OPTIONAL)}
    same = {name: a[0] for name, a in arrays.items() if a.size and not a.strides[0]}  # one number for all
    np.savez(Path(path), **(arrays | same))
