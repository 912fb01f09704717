"""Block structures of files: those that GCG or the names of rows give, against what detection finds."""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

import blocklp as bl
from bench.data import data
from bench.registry import Record, case
from blocklp.errors import FormatError, NonFiniteError
from blocklp.lp import BlockStructure, LinearProgram, block_structure
from blocklp.lp.detection.detect import installed
from blocklp.problems.files import format_suffix
from blocklp.problems.lp import LinearProgramFile, read_decomposition, read_linear_program

FAMILIES = 8
"""Most families of names of which all subsets are tried as the master."""

BEFORE = ("file", "rows", "columns", "entries", "given", "given blocks", "given white")
AFTER = ("blocks", "linking rows", "linking columns", "white", "against given", "seconds", "found", "kinds")
MORE = ("same by spfwh", "white without partitions", "seconds without partitions", "findings")
EMPTY: Record = dict.fromkeys((*BEFORE, *AFTER, *MORE))
"""A row that says nothing yet."""

QUICK = """Minimize
 c: x11 + x12 + 2 x21 + x22 + 3 x31 + x32
Subject To
 m_job1: x11 + x12 = 1
 m_job2: x21 + x22 = 1
 m_job3: x31 + x32 = 1
 b_room1: 3 x11 + 2 x21 + 4 x31 <= 5
 b_room2: x12 + 5 x22 + 2 x32 <= 5
Bounds
 x11 <= 1
 x12 <= 1
 x21 <= 1
 x22 <= 1
 x31 <= 1
 x32 <= 1
End
"""
SAME = 1e-9


def given_structure(path: Path, file: LinearProgramFile) -> tuple[str, BlockStructure] | None:
    """The structure of a .dec or .blk file beside the LP, or else of the names of its rows."""
    stem = path.name[: path.name.index(format_suffix(path))] if format_suffix(path) in path.name else path.stem
    for other in sorted(path.parent.glob(f"{stem}*")):
        if other.suffix in (".dec", ".blk"):
            return other.suffix, read_decomposition(other, file)
    families = [re.sub(r"[^A-Za-z_].*", "", name) for name in file.rows]
    names = sorted(set(families))
    if {name[:2] for name in names} == {"b_", "m_"}:  # "block" and "master", as in GCG's own models
        return "names b_, m_", by_master(file.program, families, [name for name in names if name.startswith("m_")])
    if not 2 <= len(names) <= FAMILIES:
        return None
    some = [[n for n, used in zip(names, mask, strict=True) if used] for mask in itertools.product((0, 1), repeat=len(names))]
    found = [by_master(file.program, families, master) for master in some if 0 < len(master) < len(names)]
    best = max(found, key=lambda structure: structure.white)
    return ("best of names", best) if best.blocks > 1 else None


def by_master(program: LinearProgram, families: list[str], master: list[str]) -> BlockStructure:
    """The blocks that are left without the rows of some names."""
    from blocklp.lp.detection.pattern import Pattern, split

    matrix = program.A.copy()
    matrix.eliminate_zeros()
    border = np.isin(families, master), np.zeros(matrix.shape[1], dtype=bool)
    left = split(Pattern.of(matrix), *border)
    return block_structure(program, left.row_block, left.column_block)


def timed(program: LinearProgram, **options: object) -> tuple[BlockStructure, float]:
    """What detection finds, and its seconds of CPU."""
    began = time.process_time()
    found = bl.detect(program, **options)
    return found, time.process_time() - began


def partition(structure: BlockStructure) -> set[bytes]:
    """The rows of each block."""
    return {np.flatnonzero(structure.row_block == k).tobytes() for k in range(structure.blocks)}


def record(path: Path) -> Record | None:
    """One file; None if it cannot be read."""
    try:
        file = read_linear_program(path)
        found, seconds = timed(file.program)
    except (FormatError, NonFiniteError):
        return None
    if not file.program.A.nnz:
        return None
    m, n = file.program.A.shape
    seen = EMPTY | {"file": path.name, "rows": m, "columns": n, "entries": file.program.A.nnz}
    with patch.dict(sys.modules, {"mtkahypar": None}):
        bare, bare_seconds = timed(file.program)
    again = block_structure(file.program, found.row_block, found.column_block)
    seen |= {
        "blocks": found.blocks,
        "linking rows": len(found.linking_rows),
        "linking columns": len(found.linking_columns),
        "white": round(found.white, 4),
        "seconds": seconds,
        "found": found.found,
        "kinds": ", ".join(map(repr, found.kinds[:2])) + (" ..." if len(found.kinds) > 2 else ""),
        "white without partitions": round(bare.white, 4),
        "seconds without partitions": bare_seconds,
        "findings": int(abs(again.white - found.white) > SAME or again.blocks != found.blocks),
    }
    truth = given_structure(path, file)
    if truth is None:
        return seen
    how, structure = truth
    difference = found.white - structure.white
    word = "same" if partition(found) == partition(structure) else "more white" if difference > SAME else "as white"
    return seen | {
        "given": how,
        "given blocks": structure.blocks,
        "given white": round(structure.white, 4),
        "against given": "LESS WHITE" if difference < -SAME else word,
        "same by spfwh": "yes" if partition(bl.detect(file.program, score="spfwh")) == partition(structure) else "no",
    }


def summary(records: list[Record], start: float) -> Record:
    """How many are as good as what is given, and how long the slowest took."""
    known = [r for r in records if r["given"]]
    words = ("same", "as white", "more white", "LESS WHITE")
    counts = ", ".join(f"{sum(r['against given'] == word for r in known)} {word.lower()}" for word in words)
    part = f"import and start of mtkahypar {start:.2f} s, apart" if installed() else "without mtkahypar"
    return EMPTY | {
        "file": "all",
        "given": f"{len(known)} of {len(records)}",
        "white": round(float(np.mean([r["white"] for r in records])), 4),
        "against given": counts,
        "seconds": max(r["seconds"] for r in records),
        "found": f"seconds are those of the slowest file; {part}",
        "same by spfwh": f"{sum(r['same by spfwh'] == 'yes' for r in known)} of {len(known)}",
        "white without partitions": round(float(np.mean([r["white without partitions"] for r in records])), 4),
        "seconds without partitions": max(r["seconds without partitions"] for r in records),
        "findings": sum(r["findings"] for r in records),
    }


@case(
    "structure",
    "Block structure of linear programs from files",
    "All MPS and LP files of `blocklp data fetch lp` (`check/instances` of scipopt/gcg, `check/instances` of ERGO-Code/HiGHS and "
    "coin-or-tools/Data-Netlib), by `bl.detect` with an effort of 1; "
    "seconds are of CPU, one thread, after imports. `given`: the structure of a `.dec` or `.blk` file of GCG beside the LP; "
    "else the one that names of rows tell, `b_` for blocks and `m_` for the master, or, where rows have two to eight names "
    "before their numbers, the names that leave most white area as master. `white`: GCG's score max white. `same by spfwh`: "
    "whether detection by GCG's default score gives just the given blocks. `findings`: a structure that is none. In the last "
    "row means of white areas, and the most seconds.",
)
def run(quick: bool) -> Iterator[Record]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folders = [Path(made)] if quick else [data(f"lp/{name}") for name in ("gcg", "highs", "netlib")]
        if quick:
            Path(made, "quick.lp").write_text(QUICK)
        began = time.process_time()
        if installed():
            bl.detect(np.eye(6) + np.eye(6, k=1))
        start = time.process_time() - began
        records = []
        for folder in folders:
            for path in sorted(folder.rglob("*"), key=lambda p: (p.parent, p.stat().st_size)):
                if path.is_file() and format_suffix(path) in (".mps", ".lp"):
                    one = record(path)
                    if one is not None:
                        records.append(one)
                        yield one
    yield summary(records, start)
