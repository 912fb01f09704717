"""Files of GCG with block structures: those of its documentation, round trips, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blocklp.errors import FormatError
from blocklp.lp import LinearProgram, block_structure
from blocklp.problems.lp import LinearProgramFile, read_decomposition, read_linear_program, write_decomposition

COLORING = """\\ the example of GCG's documentation
Minimize
 cost:  + y#1 + y#2
Subject to
 b_use_;1;: -100 y#1 + x#2#1 + x#1#1 <= 0
 b_use_;2;: -100 y#2 + x#2#2 + x#1#2 <= 0
 b_edge_;1;1;: + x#5#1 + x#1#1 <= 1
 b_edge_;2;1;: + x#5#2 + x#1#2 <= 1
 b_edge_;1;2;: + x#7#1 + x#1#1 <= 1
 b_edge_;2;2;: + x#7#2 + x#1#2 <= 1
 m_alco_;1;: + x#1#2 + x#1#1 >= 1
 m_alco_;2;: + x#2#2 + x#2#1 >= 1
End
"""
DEC = """\\ Decomposition file for coloring.zpl
PRESOLVED
0
NBLOCKS
2
BLOCK 1
b_use_;1;
b_edge_;1;1;
b_edge_;1;2;
BLOCK 2
b_use_;2;
b_edge_;2;1;
b_edge_;2;2;
MASTERCONSS
m_alco_;1;
m_alco_;2;
"""


def matrix_file(matrix: np.ndarray, rows: list[str] | None = None) -> LinearProgramFile:
    m, n = matrix.shape
    program = LinearProgram(np.zeros(n), sp.csr_array(matrix), np.full(m, -np.inf), np.ones(m), np.zeros(n), np.ones(n))
    return LinearProgramFile(program, tuple(f"x{j}" for j in range(n)), tuple(rows or [f"c{i}" for i in range(m)]), 0)


@pytest.fixture
def coloring(tmp_path: Path) -> LinearProgramFile:
    pytest.importorskip("highspy")
    (tmp_path / "coloring.lp").write_text(COLORING)
    return read_linear_program(tmp_path / "coloring.lp")


def written(tmp_path: Path, text: str, suffix: str = ".dec") -> Path:
    path = tmp_path / f"some{suffix}"
    path.write_text(text)
    return path


def test_the_example_of_the_documentation(coloring: LinearProgramFile, tmp_path: Path) -> None:
    found = read_decomposition(written(tmp_path, DEC), coloring)
    assert dict(zip(coloring.rows, found.row_block.tolist(), strict=True)) == {
        "b_use_;1;": 0,
        "b_use_;2;": 1,
        "b_edge_;1;1;": 0,
        "b_edge_;2;1;": 1,
        "b_edge_;1;2;": 0,
        "b_edge_;2;2;": 1,
        "m_alco_;1;": -1,
        "m_alco_;2;": -1,
    }
    for name, block in zip(coloring.columns, found.column_block.tolist(), strict=True):
        assert block == int(name[-1]) - 1  # by the colour
    assert found.white == pytest.approx(1 - (2 * 3 * 5 + 2 * 10) / (8 * 10))
    assert found.found == "read from some.dec"


@pytest.mark.parametrize(
    "text",
    [
        re.sub(r"^[A-Z]+", lambda key: key[0].lower(), DEC, flags=re.M),
        DEC.replace("BLOCK ", "BLOCKCONSS\n").replace("MASTERCONSS", "MASTERCONS"),
        "a comment without a key word\n" + DEC.replace("\n", "  \\ and one at the end\n"),
        DEC.split("MASTERCONSS")[0],  # what is not named is in the master
        DEC.replace("PRESOLVED\n0", "CONSDEFAULTMASTER\n1\nPRESOLVED\n1"),
        DEC.replace("b_edge_;1;1;\n", "").replace("PRESOLVED", "CONSDEFAULTMASTER\n0\nPRESOLVED"),
        DEC.replace("b_edge_;1;1;\n", "").replace("PRESOLVED", "INCOMPLETE\n1\nPRESOLVED"),
        DEC.replace("NBLOCKS\n2", "NBLOCKS\n3").replace("BLOCK 2", "BLOCK 3"),  # an empty block
        DEC + "BLOCKVARS 1\ny#1\nBLOCKVARS 2\nx#7#2 x#1#2\n",
    ],
)
def test_other_ways_to_say_it(coloring: LinearProgramFile, tmp_path: Path, text: str) -> None:
    first = read_decomposition(written(tmp_path, DEC), coloring)
    again = read_decomposition(written(tmp_path, text), coloring)
    assert again.row_block.tolist() == first.row_block.tolist()
    assert again.column_block.tolist() == first.column_block.tolist()


def test_variables_that_link_by_name(tmp_path: Path) -> None:
    matrix = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 1.0]])
    given = matrix_file(matrix)
    text = "PRESOLVED 0\nNBLOCKS 2\nBLOCK 1\nc0 c1\nBLOCK 2\nc2\n"
    plain = read_decomposition(written(tmp_path, text), given)
    assert plain.column_block.tolist() == [0, 0, 0, 1] and not len(plain.linking_columns)
    found = read_decomposition(written(tmp_path, text + "LINKINGVARS\nx1\n"), given)
    assert found.column_block.tolist() == [0, -1, 0, 1] and found.linking_columns.tolist() == [1]
    assert found.white == pytest.approx(1 - (2 * 2 + 1 * 1 + 1 * 4 + 1 * 3) / 16)


def test_blk_files_name_variables(tmp_path: Path) -> None:
    """Rows follow their variables; those of several blocks link."""
    matrix = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 1.0]])
    text = "Presolved\n0\nNBlocks\n2\nBlock 1\n x0\n x1\nBlock 2\n x2\n x3\nMasterconss\nEnd\nwhat follows is not read"
    found = read_decomposition(written(tmp_path, text, ".blk"), matrix_file(matrix))
    assert found.row_block.tolist() == [0, 0, 1, -1]
    assert found.column_block.tolist() == [0, 0, 1, 1]
    kept = text.replace("Masterconss", "Masterconss\nc1")
    assert read_decomposition(written(tmp_path, kept, ".blk"), matrix_file(matrix)).row_block.tolist() == [0, -1, 1, -1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6))
def test_round_trips(tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    m, n = draw.integers(1, 15, 2)
    matrix = (draw.random((m, n)) < 0.3).astype(float)
    given = matrix_file(matrix, [f"r_;{i};#a" for i in range(m)])
    structure = block_structure(given.program, draw.integers(-1, 4, m))
    write_decomposition(tmp_path / "a.dec", structure, given)
    again = read_decomposition(tmp_path / "a.dec", given)
    assert np.array_equal(structure.row_block, again.row_block)
    assert np.array_equal(structure.column_block, again.column_block)
    assert structure.white == again.white


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("b_use_;1;", "b_us_;1;"), r"line 7: the LP has no row 'b_us_;1;'; did you mean 'b_use_;1;'\?"),
        (("b_use_;1;", "zzzzzzzzzz"), r"line 7: the LP has no row 'zzzzzzzzzz'; take the names"),
        (("b_use_;2;", "b_use_;1;"), r"line 11: row 'b_use_;1;' is named in line 7 already"),
        (("BLOCK 2", "BLOCK 3"), r"line 10: BLOCK is 3; blocks are numbered from 1 to NBLOCKS, 2"),
        (("BLOCK 2", "BLOCK two"), r"line 10: BLOCK needs a number, got 'two'"),
        (("NBLOCKS\n2\n", ""), r"line 4: BLOCK 1 comes before NBLOCKS"),
        (("NBLOCKS\n2\n", "NBLOCKS\n2\nNBLOCKS\n2\n"), r"line 7: NBLOCKS is given twice"),
        (("PRESOLVED\n0", "PRESOLVED\n2"), r"line 3: PRESOLVED is 2; it must be 0 or 1"),
        (("BLOCK 1\n", ""), r"line 6: 'b_use_;1;' stands in no section"),
        (("MASTERCONSS\n", "MASTERCONSS\nm_alco_;3;\n"), r"line 15: the LP has no row 'm_alco_;3;'"),
        (
            ("MASTERCONSS\n", "BLOCKVARS 2\nx#1#1\nMASTERCONSS\n"),
            r"row 'b_use_;1;' of block 1 has the variable 'x#1#1' of block 2; .*LINKINGVARS",
        ),
        (("MASTERCONSS\n", "MASTERVARS\ny#1\nMASTERCONSS\n"), r"row 'b_use_;1;' of block 1 has the variable 'y#1' of MASTERVARS"),
        (("MASTERCONSS\n", "LINKINGVARS\nx\nMASTERCONSS\n"), r"line 15: the LP has no variable 'x'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(coloring: LinearProgramFile, tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = written(tmp_path, DEC.replace(*change))
    with pytest.raises(FormatError, match=rf"{re.escape(str(path))}.*{said}"):
        read_decomposition(path, coloring)


def test_other_files_are_refused(coloring: LinearProgramFile, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no NBLOCKS"):
        read_decomposition(written(tmp_path, "nothing here"), coloring)
    with pytest.raises(FormatError, match=r"\.dec and \.blk"):
        read_decomposition(written(tmp_path, DEC, ".txt"), coloring)
    structure = read_decomposition(written(tmp_path, DEC), coloring)
    with pytest.raises(FormatError, match="change the suffix"):
        write_decomposition(tmp_path / "a.txt", structure, coloring)
    for name in ("a b", "", "block", "a\\b"):
        given = matrix_file(np.eye(2), ["fine", name])
        with pytest.raises(FormatError, match="row 1 has the name"):
            write_decomposition(tmp_path / "a.dec", block_structure(given.program, [0, 1]), given)
        assert not (tmp_path / "a.dec").exists()
    presolved = written(tmp_path, DEC.replace("PRESOLVED\n0", "PRESOLVED\n1").replace("b_use_;1;", "other"))
    with pytest.raises(FormatError, match="presolved problem"):
        read_decomposition(presolved, coloring)
