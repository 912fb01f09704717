"""Linear programs from MPS and LP files, parsed by HiGHS."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, needed
from blocklp.general_solvers.linear_program import LinearProgram, program_of
from blocklp.general_solvers.small_lp import quiet_highs
from blocklp.problems.files import MAX_BYTES, format_suffix, read_bytes

SUFFIXES = (".mps", ".lp")
PER_BYTE = 1e-7
"""Seconds that HiGHS takes to parse one."""


@dataclass(frozen=True)
class LinearProgramFile:
    """What a file holds.

    Attributes
    ----------
    program : LinearProgram
        The LP; of a file with integer variables, its relaxation, and of one with semi-continuous variables, that between zero and
        their bounds.
    columns, rows : tuple of str
        Names of the variables and of the rows.
    integers : int
        Variables that the file declares to be integers or semi-continuous.
    """

    program: LinearProgram
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    integers: int


def read_linear_program(
    path: str | Path, *, max_bytes: int = MAX_BYTES, time_limit: float | Deadline = math.inf
) -> LinearProgramFile:
    """Read an MPS (``.mps``) or LP (``.lp``) file, compressed or not.

    Parameters
    ----------
    path : str or Path
        The file.
    max_bytes : int
        Most bytes that it may hold once decompressed.
    time_limit : float or Deadline
        Seconds.

    Raises
    ------
    FormatError
        If the suffix is another one, or HiGHS cannot parse the file, or it holds a quadratic objective or no variable.
    MissingDependencyError
        If highspy is not installed.
    TimeLimitError
        If the time is over.
    """
    suffix = format_suffix(path)
    if suffix not in SUFFIXES:
        raise FormatError(f"{path}: linear programs are read from .mps and .lp files, compressed or not")
    with needed("LP files are read by the package highspy", "highs"):
        import highspy
    deadline = Deadline.of(time_limit)
    data = read_bytes(path, max_bytes=max_bytes, deadline=deadline)
    deadline.check(f"parsing {path}", PER_BYTE * len(data))
    highs = quiet_highs()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / f"file{suffix}"
        place.write_bytes(data)
        status = highs.readModel(str(place))
    if status == highspy.HighsStatus.kError:
        raise FormatError(f"{path}: HiGHS cannot read this as a {suffix} file; check it with another solver, or give its format")
    if highs.getModel().hessian_.dim_:
        raise FormatError(f"{path}: the objective is quadratic; blocklp takes linear ones")
    lp = highs.getLp()
    if not lp.num_col_:
        raise FormatError(f"{path}: there are no variables; check whether the file is complete")
    integers = sum(kind != highspy.HighsVarType.kContinuous for kind in lp.integrality_)
    return LinearProgramFile(program_of(lp), tuple(lp.col_names_), tuple(lp.row_names_), integers)
