"""Block structures from and to files of GCG: ``.dec`` names the rows of each block, ``.blk`` the variables."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.errors import FormatError
from blocklp.lp.detection.block_structure import BlockStructure
from blocklp.lp.detection.detect import block_structure
from blocklp.lp.detection.pattern import common_block
from blocklp.problems.files import MAX_BYTES, format_suffix, read_text
from blocklp.problems.lp.readers import LinearProgramFile

Numbers = NDArray[np.int64]

SUFFIXES = (".dec", ".blk")
SECTIONS = {
    "PRESOLVED": "PRESOLVED",
    "NBLOCKS": "NBLOCKS",
    "INCOMPLETE": "INCOMPLETE",
    "CONSDEFAULTMASTER": "CONSDEFAULTMASTER",
    **dict.fromkeys(("BLOCK", "BLOCKCONSS", "BLOCKCONS"), "BLOCK"),
    **dict.fromkeys(("MASTERCONSS", "MASTERCONS"), "MASTERCONSS"),
    **dict.fromkeys(("BLOCKVARS", "BLOCKVAR"), "BLOCKVARS"),
    **dict.fromkeys(("MASTERVARS", "MASTERVAR", "STATICVARS", "STATICVAR"), "MASTERVARS"),
    **dict.fromkeys(("LINKINGVARS", "LINKINGVAR"), "LINKINGVARS"),
}
"""Key words of GCG's reader, in any case, by what they mean."""

OPEN, OUTSIDE = -2, -1
"""Numbers of rows and variables that a file says nothing of, and of those that it puts into no block."""


def read_decomposition(
    path: str | Path,
    given: LinearProgramFile,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | Deadline = float("inf"),
) -> BlockStructure:
    """Read a block structure from a ``.dec`` or ``.blk`` file of GCG, compressed or not.

    Rows that a ``.dec`` file does not name are linking rows, unless it says ``CONSDEFAULTMASTER 0`` or ``INCOMPLETE 1``; such
    rows, and all rows of a ``.blk`` file but those of the master, go to the block that has all their variables of blocks.
    Variables that are not named go to the block of their rows, or link.  Blocks without rows are left out.

    Parameters
    ----------
    path : str or Path
        The file.
    given : LinearProgramFile
        The linear program whose rows and variables it names.
    max_bytes : int
        Most bytes that it may hold once decompressed.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    BlockStructure
        With kinds and white area.

    Raises
    ------
    FormatError
        If the suffix is another one, a name is unknown or given twice, a number is missing or out of range, or a block has a
        variable of another one.
    TimeLimitError
        If the time is over.
    """
    suffix = format_suffix(path)
    if suffix not in SUFFIXES:
        raise FormatError(f"{path}: block structures are read from .dec and .blk files of GCG, compressed or not")
    text = read_text(path, max_bytes=max_bytes, deadline=Deadline.of(time_limit))
    read = _DecompositionReader(path, given, suffix == ".blk")
    read.all(text)
    return read.structure()


def write_decomposition(path: str | Path, structure: BlockStructure, given: LinearProgramFile) -> None:
    """Write a block structure to a ``.dec`` file, as GCG reads it for the problem that is not presolved.

    Parameters
    ----------
    path : str or Path
        The file, with the suffix ``.dec``.
    structure : BlockStructure
        Of the linear program.
    given : LinearProgramFile
        The linear program, whose names are written.

    Raises
    ------
    FormatError
        If the suffix is another one, or a name cannot be written: it is empty, a key word, or has a space or a backslash.
    """
    if Path(path).suffix.lower() != ".dec":
        raise FormatError(f"{path}: block structures are written to .dec files; change the suffix")
    lines = [f"\\ {structure.blocks} blocks, white area {structure.white:.6f}; {structure.found}"]
    lines += ["PRESOLVED", "0", "NBLOCKS", str(structure.blocks)]
    by_block = np.argsort(structure.row_block, kind="stable")
    ends = np.searchsorted(structure.row_block[by_block], np.arange(structure.blocks + 1))
    for k in range(structure.blocks):
        lines += [f"BLOCK {k + 1}", *_written(path, given.rows, by_block[ends[k] : ends[k + 1]], "row")]
    lines += ["MASTERCONSS", *_written(path, given.rows, structure.linking_rows, "row")]
    if len(structure.linking_columns):
        lines += ["LINKINGVARS", *_written(path, given.columns, structure.linking_columns, "variable")]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _written(path: str | Path, names: Sequence[str], numbers: Numbers, what: str) -> Iterator[str]:
    """Names of some rows or variables."""
    for number in numbers.tolist():
        name = names[number]
        if not name or name.split() != [name] or "\\" in name or name.upper() in SECTIONS:
            raise FormatError(f"{path}: {what} {number} has the name {name!r}, which a .dec file cannot hold; rename it in the LP")
        yield name


@dataclass
class _DecompositionReader:
    """What is read so far, and where in the file."""

    path: str | Path
    given: LinearProgramFile
    by_variables: bool
    line: int = 0
    blocks: int | None = None
    presolved: bool = False
    open_rows: bool = False
    rows: dict[str, int] = field(init=False)
    columns: dict[str, int] = field(init=False)
    row_block: Numbers = field(init=False)
    column_block: Numbers = field(init=False)
    lines: dict[tuple[str, int], int] = field(default_factory=dict)
    of_master: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = {name: k for k, name in enumerate(self.given.rows)}
        self.columns = {name: k for k, name in enumerate(self.given.columns)}
        self.row_block, self.column_block = (np.full(len(names), OPEN) for names in (self.given.rows, self.given.columns))
        self.open_rows = self.by_variables

    def all(self, text: str) -> None:
        """Read a whole file; what comes before the first key word is a comment."""
        section, block = "", OUTSIDE
        words = self._words(text)
        for word in words:
            key = SECTIONS.get(word.upper(), "")
            if self.by_variables and word.upper() == "END":
                break
            if key in ("PRESOLVED", "NBLOCKS", "INCOMPLETE", "CONSDEFAULTMASTER"):
                self._set(key, self._integer(next(words, ""), key))
                section = ""
            elif key in ("BLOCK", "BLOCKVARS"):
                section, block = key, self._block(next(words, ""), key)
            elif key:
                section, block = key, OUTSIDE
            elif section:
                self._assign(section, word, block)
            elif self.blocks is not None:
                raise self._error(f"{word!r} stands in no section; put it below BLOCK or MASTERCONSS")
        if self.blocks is None:
            raise FormatError(f"{self.path}: there is no NBLOCKS with a number of blocks; is it a file of GCG?")

    def structure(self) -> BlockStructure:
        """The structure, with what the file leaves open filled in."""
        matrix = self.given.program.A.tocoo()
        kept = matrix.data != 0
        rows, columns = matrix.coords[0][kept], matrix.coords[1][kept]
        if self.open_rows:
            # By the variables that the file or the other rows of blocks put into a block.
            known = np.where(
                self.column_block == OPEN, common_block(columns, self.row_block[rows], len(self.column_block)), self.column_block
            )
            found = common_block(rows, known[columns], len(self.row_block))
            self.row_block = np.where(self.row_block == OPEN, found, self.row_block)
        row_block = np.maximum(self.row_block, OUTSIDE)
        own = common_block(columns, row_block[rows], len(self.column_block))
        inside = np.flatnonzero((row_block[rows] >= 0) & np.isin(columns, self.of_master))
        if len(inside):
            i, j = rows[inside[0]], columns[inside[0]]
            where = f"row {self.given.rows[i]!r} of block {row_block[i] + 1} has the variable {self.given.columns[j]!r} of MASTERVARS"
            raise FormatError(f"{self.path}: {where}; name the variable in LINKINGVARS")
        explicit = self.column_block >= 0
        wrong = np.flatnonzero((row_block[rows] >= 0) & explicit[columns] & (self.column_block[columns] != row_block[rows]))
        if len(wrong):
            i, j = rows[wrong[0]], columns[wrong[0]]
            where = f"row {self.given.rows[i]!r} of block {row_block[i] + 1} has the variable {self.given.columns[j]!r} of block"
            raise FormatError(
                f"{self.path}: {where} {self.column_block[j] + 1}; name the variable in LINKINGVARS, or the row in MASTERCONSS"
            )
        column_block = np.where(self.column_block == OPEN, own, self.column_block)
        return block_structure(self.given.program, row_block, column_block, found=f"read from {Path(self.path).name}")

    def _words(self, text: str) -> Iterator[str]:
        for self.line, line in enumerate(text.splitlines(), 1):
            yield from line.partition("\\")[0].split()

    def _error(self, what: str) -> FormatError:
        return FormatError(f"{self.path}, line {self.line}: {what}")

    def _integer(self, word: str, key: str) -> int:
        if not word.isdecimal():
            raise self._error(f"{key} needs a number, got {word!r}; write it on the next line")
        return int(word)

    def _set(self, key: str, value: int) -> None:
        if key == "NBLOCKS":
            if self.blocks is not None:
                raise self._error("NBLOCKS is given twice; keep one of them")
            self.blocks = value
        elif value > 1:
            raise self._error(f"{key} is {value}; it must be 0 or 1")
        elif key == "PRESOLVED":
            self.presolved = bool(value)
        else:
            self.open_rows = bool(value) == (key == "INCOMPLETE")

    def _block(self, word: str, key: str) -> int:
        number = self._integer(word, key)
        if self.blocks is None:
            raise self._error(f"{key} {number} comes before NBLOCKS; state the number of blocks first")
        if not 1 <= number <= self.blocks:
            raise self._error(f"{key} is {number}; blocks are numbered from 1 to NBLOCKS, {self.blocks}")
        return number - 1

    def _assign(self, section: str, name: str, block: int) -> None:
        """Put a row or a variable where the section says."""
        is_row = section == "MASTERCONSS" or (section == "BLOCK" and not self.by_variables)
        what, names, where = ("row", self.rows, self.row_block) if is_row else ("variable", self.columns, self.column_block)
        number = names.get(name)
        if number is None:
            near = difflib.get_close_matches(name, names, 1)
            mend = f"did you mean {near[0]!r}?" if near else "take the names of the LP"
            if self.presolved:
                mend += " (the file is one for the presolved problem; let GCG write that of the original one)"
            raise self._error(f"the LP has no {what} {name!r}; {mend}")
        if where[number] != OPEN:
            raise self._error(f"{what} {name!r} is named in line {self.lines[what, number]} already; keep one of the two")
        where[number], self.lines[what, number] = block, self.line
        if section == "MASTERVARS":
            self.of_master.append(number)
