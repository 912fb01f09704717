"""Matchings in folders of Parquet or Arrow files, read by pyarrow (an optional package).

``edges`` has a row for each edge, with the columns ``source``, ``destination``, ``value`` and ``weight``, and ``use`` and
``upper`` where they are needed; it is a file (``edges.parquet``, ``edges.arrow`` or ``edges.feather``) or a folder of such
files.  ``destinations`` has ``capacity``, and ``floor`` where it is needed, for each destination in the order of their
numbers; ``sources``, where it is needed, ``limit`` or ``least`` or both for each source.

No reader holds more than the edges of the sources that are asked for.  Files whose edges are in the order of their sources are
read in part, by the least and largest source of each row group that Parquet keeps; all others are read through.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, ScopeError, needed
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.matching.instance import FloatArray, IntArray, Matching

COLUMNS = {
    "edges": (("source", "destination", "value", "weight"), ("use", "upper")),
    "destinations": (("capacity",), ("floor",)),
    "sources": ((), ("limit", "least")),
}
"""Tables, the columns that they must have, and those that they may have."""

INTEGERS = "source", "destination"
"""Columns of integers."""

SUFFIXES = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc"}
"""Suffixes of files, and what pyarrow calls their format."""

BINS = 2**16
"""Ranges of sources whose edges are counted before they are dealt out."""

GROUP = 2**20
"""Rows of a row group that is written."""


class MatchingTables:
    """A matching in a folder.

    Parameters
    ----------
    folder : str or Path
        Where the tables are.
    max_bytes : int
        Most bytes that what is read at once may take in memory.
    time_limit : float or Deadline
        Seconds for all reading.

    Raises
    ------
    MissingDependencyError
        If pyarrow is not installed.
    FormatError
        If a table or a column is missing, unknown or of another kind.
    """

    def __init__(self, folder: str | Path, *, max_bytes: int = MAX_BYTES, time_limit: float | Deadline = math.inf) -> None:
        self.folder, self.max_bytes, self.deadline = Path(folder), max_bytes, Deadline.of(time_limit)
        self.edges, self.destinations = self._table("edges"), self._table("destinations")
        self.sources = self._table("sources") if self._files("sources") else None

    def starts(self, parts: int) -> IntArray:
        """Divide sources into ranges of about the same number of edges.

        Returns
        -------
        ndarray
            ``(parts + 1,)`` int64: the first source of each range, and the number of sources.

        Raises
        ------
        ScopeError
            If a source is negative.
        TimeLimitError
            If the time is over.
        """
        counts, shift, _ = self._sources
        return equal_ranges(counts, shift, self.count, parts)

    @cached_property
    def count(self) -> int:
        """Number of sources: that of the table, or one more than the largest of an edge."""
        largest = self._sources[2]
        return largest + 1 if self.sources is None else max(largest + 1, int(self.sources.count_rows()))

    def read(self, first: int = 0, stop: int | None = None) -> Matching:
        """Read the edges of a range of sources, sorted by source, and all destinations.

        Parameters
        ----------
        first, stop : int
            The first source, and the one after the last; numbers in the matching begin at 0.

        Raises
        ------
        FormatError
            If a value is missing, or there is too much for ``max_bytes``.
        BlocklpError
            If the columns are no matching.
        TimeLimitError
            If the time is over.
        """
        stop = self.count if stop is None else stop
        found = self._read(self.edges, "edges", (first, stop))
        order = np.argsort(found["source"], kind="stable") if (np.diff(found["source"]) < 0).any() else slice(None)
        found = {name: own[order] for name, own in found.items()}
        found["source"] = found["source"] - first
        found |= self._read(self.destinations, "destinations")
        limits: dict[str, Any] = {"limit": np.broadcast_to(1.0, stop - first)}
        if self.sources is not None:
            limits |= self._rows(self.sources, "sources", (first, stop))
        return Matching(**found, **limits)

    @cached_property
    def _sources(self) -> tuple[IntArray, int, int]:
        """Numbers of edges of ranges of sources, the power of two that ranges are long, and the largest source, or -1."""
        counts, shift, largest = np.zeros(BINS, dtype=np.int64), 0, -1
        for batch in self._batches(self.edges, "edges", ["source"]):
            source = batch["source"]
            if source.min() < 0:
                raise ScopeError(f"{self.folder}: a source is {source.min()}; numbers begin at 0")
            largest = max(largest, int(source.max()))
            while largest >> shift >= BINS:
                counts = np.append(counts.reshape(-1, 2).sum(1), np.zeros(BINS // 2, dtype=np.int64))
                shift += 1
            counts += np.bincount(source >> shift, minlength=BINS)
        return counts, shift, largest

    def _read(self, table: Any, name: str, sources: tuple[int, int] | None = None) -> dict[str, Any]:
        """Columns of a table, or of the edges of a range of sources."""
        names, chosen = list(table.schema.names), None
        if sources is not None:
            field = _arrow("pyarrow.compute").field("source")
            chosen = (field >= sources[0]) & (field < sources[1])
        parts: dict[str, list[Any]] = {own: [] for own in names}
        size = 0
        for batch in self._batches(table, name, names, chosen):
            size += sum(own.nbytes for own in batch.values())
            self._allow(size, name)
            for own in names:
                parts[own].append(batch[own])
        kinds = {own: np.int64 if own in INTEGERS else np.float64 for own in names}
        return {own: np.concatenate(found) if found else np.empty(0, kinds[own]) for own, found in parts.items()}

    def _rows(self, table: Any, name: str, rows: tuple[int, int]) -> dict[str, FloatArray]:
        """Some rows of a table."""
        names = list(table.schema.names)
        self._allow(8 * len(names) * (rows[1] - rows[0]), name)
        parts: dict[str, list[FloatArray]] = {own: [] for own in names}
        first = 0
        for batch in self._batches(table, name, names):
            for own in names:
                parts[own].append(batch[own][max(rows[0] - first, 0) : max(rows[1] - first, 0)].copy())
            first += len(batch[names[0]])
        if first < rows[1]:
            raise FormatError(f"{self.folder}: {name} has {first} rows, and edges name source {self._sources[2]}; give a row to each")
        return {own: np.concatenate(found) for own, found in parts.items()}

    def _batches(self, table: Any, name: str, names: Sequence[str], chosen: Any = None) -> Iterator[dict[str, Any]]:
        """Columns of some rows at a time; none without rows."""
        batches = iter(table.to_batches(columns=list(names), filter=chosen))
        while True:
            self.deadline.check(f"reading {self.folder}")
            try:
                batch = next(batches, None)
            except (_arrow("pyarrow").ArrowException, OSError) as error:
                raise FormatError(f"{self.folder}: pyarrow cannot read {name} ({error}); write it again") from error
            if batch is None:
                return
            if len(batch):
                yield {own: self._numbers(batch.column(own), f"{name}.{own}") for own in names}

    def _numbers(self, column: Any, name: str) -> Any:
        """A column as int64 or float64."""
        if column.null_count:
            raise FormatError(f"{self.folder}: {column.null_count} values of {name} are missing; give all")
        numbers = column.to_numpy(zero_copy_only=False)
        return numbers.astype(np.int64 if name.partition(".")[2] in INTEGERS else np.float64, copy=False)

    def _allow(self, size: int, name: str) -> None:
        """Refuse what takes too much memory."""
        if size > self.max_bytes:
            raise FormatError(f"{self.folder}: {name} take more than {self.max_bytes} bytes in memory; raise max_bytes")

    def _files(self, name: str) -> list[Path]:
        """The files of a table, in the order of their names."""
        single = [path for suffix in SUFFIXES if (path := self.folder / f"{name}{suffix}").is_file()]
        inside = (path for path in (self.folder / name).rglob("*") if path.suffix in SUFFIXES and path.is_file())
        return single + sorted(path for path in inside if not path.name.startswith(("_", ".")))

    def _table(self, name: str) -> Any:
        """Open a table, and check its columns."""
        files, (must, may) = self._files(name), COLUMNS[name]
        kinds = {SUFFIXES[path.suffix] for path in files}
        if not files:
            raise FormatError(f"{self.folder}: lacks {name}; give {name}.parquet, or a folder {name} of such files")
        if len(kinds) > 1:
            raise FormatError(f"{self.folder}: {name} are in files of Parquet and of Arrow; give one format")
        arrow, datasets = _arrow("pyarrow"), _arrow("pyarrow.dataset")
        try:
            table = datasets.dataset([str(path) for path in files], format=kinds.pop())
        except (arrow.ArrowException, OSError) as error:
            raise FormatError(f"{self.folder}: pyarrow cannot read {name} ({error}); write it again") from error
        names = list(table.schema.names)
        if missing := [own for own in must if own not in names]:
            raise FormatError(f"{self.folder}: {name} lack {', '.join(missing)}; they have {', '.join(names) or 'no column'}")
        if not set(names) & {*must, *may}:
            raise FormatError(f"{self.folder}: {name} have {', '.join(names) or 'no column'}; give {' or '.join(may)}")
        if unknown := sorted(set(names) - {*must, *may}):
            there = ", ".join((*must, *may))
            raise FormatError(f"{self.folder}: {name} have {', '.join(unknown)}; there may be {there}")
        types = arrow.types
        for own in names:
            kind = table.schema.field(own).type
            if not (types.is_integer(kind) or (own not in INTEGERS and types.is_floating(kind))):
                what = "integers" if own in INTEGERS else "numbers"
                raise FormatError(f"{self.folder}: {name}.{own} is a column of {kind}; give {what}")
        return table


def equal_ranges(counts: IntArray, shift: int, stop: int, parts: int) -> IntArray:
    """Divide sources into ranges of about the same number of edges.

    Parameters
    ----------
    counts : ndarray
        ``(ranges,)`` int64: numbers of edges of ranges of sources, each ``2**shift`` long.
    shift : int
        See there.
    stop : int
        Number of sources.
    parts : int
        How many ranges there shall be.

    Returns
    -------
    ndarray
        ``(parts + 1,)`` int64, ascending from 0 to ``stop``.
    """
    ends = np.cumsum(counts)
    wanted = ends[-1] * np.arange(1, parts) // parts
    inner = np.minimum(np.searchsorted(ends, wanted, side="left") + 1 << shift, stop)
    return np.concatenate([[0], inner, [stop]]).astype(np.int64)


def write_tables(folder: str | Path, tables: dict[str, dict[str, Any]]) -> None:
    """Write tables to files of Parquet in a folder, which is made.

    Parameters
    ----------
    folder : str or Path
        Where to.
    tables : dict
        Name of a file, without its suffix, to its columns: name to array.
    """
    arrow, parquet = _arrow("pyarrow"), _arrow("pyarrow.parquet")
    for table, columns in tables.items():
        path = Path(folder) / f"{table}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.table(columns), path, row_group_size=GROUP)


def tables_of(matching: Matching) -> dict[str, dict[str, Any]]:
    """The tables of a matching: what is as if it were not given is left out."""
    given = {name: getattr(matching, name) for names in COLUMNS.values() for name in sum(names, ())}
    usual = {"use": 1.0, "upper": math.inf, "limit": 1.0, "least": 0.0, "floor": 0.0}
    kept = {name: own for name, own in given.items() if name not in usual or (own != usual[name]).any()}
    found = {table: {name: kept[name] for name in (*must, *may) if name in kept} for table, (must, may) in COLUMNS.items()}
    if matching.sources > (matching.source.max(initial=-1) + 1) and not found["sources"]:
        found["sources"] = {"limit": given["limit"]}
    return {table: columns for table, columns in found.items() if columns}


def _arrow(module: str) -> Any:
    """A module of pyarrow."""
    with needed("files of Parquet and Arrow are read and written by pyarrow", "arrow"):
        return importlib.import_module(module)
