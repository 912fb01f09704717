"""Models from linear programs and their structures, ``blocklp structure``, and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import blocklp as bl
from blocklp.errors import ModelError, OptionError
from blocklp.lp import LinearProgram, block_structure
from blocklp.oracles import Knapsack
from blocklp.problems.command_line.app import app
from blocklp.problems.lp import read_decomposition, read_linear_program, structured_model, write_picture

PACKING = """Minimize
 cost: 2 x11 + 3 x12 + 4 x21 + 1 x22 + 2 x31 + 2 x32
Subject To
 job1: x11 + x12 = 1
 job2: x21 + x22 = 1
 job3: x31 + x32 = 1
 room1: 3 x11 + 2 x21 + 4 x31 <= 5
 room2: 1 x12 + 5 x22 + 2 x32 <= 5
Bounds
 0 <= x11 <= 1
 0 <= x12 <= 1
 0 <= x21 <= 1
 0 <= x22 <= 1
 0 <= x31 <= 1
 0 <= x32 <= 1
End
"""


def mixed(draw: np.random.Generator) -> LinearProgram:
    """Blocks of every kind around a point that satisfies all rows, linking rows, bounds as rows; shuffled."""
    rows, low, high, size, point = [], [], [], 0, []
    for _ in range(6):
        width, what = int(draw.integers(2, 6)), draw.choice(["simplex", "atmost", "knapsack", "equation", "polytope"])
        own = draw.random(width)
        if what in ("simplex", "atmost"):
            mass = draw.choice([1.0, 3.0])
            own *= mass / own.sum() * (1 if what == "simplex" else draw.random())
            part = np.full((1, width), draw.choice([1.0, -2.0]))
            ends = sorted((part[0, 0] * mass, part[0, 0] * mass if what == "simplex" else np.copysign(np.inf, -part[0, 0])))
        elif what == "polytope":
            part = draw.integers(-3, 4, (2, width)).astype(float)
            part[:, 0], ends = 1.0, None
        else:
            part = draw.integers(-4, 5, (1, width)).astype(float)
            part[0, :2] = [3.0, -1.0]
            load = (part @ own).item()
            ends = [load, load] if what == "equation" else [load - 1, draw.choice([load + 1, np.inf])]
        for row in part:
            rows.append({size + j: v for j, v in enumerate(row) if v})
            low.append(ends[0] if ends else row @ own - 0.3)
            high.append(ends[1] if ends else np.inf)
        point += own.tolist()
        size += width
    for _ in range(2):
        row = draw.integers(-2, 3, size).astype(float)
        rows.append({j: v for j, v in enumerate(row) if v})
        low.append(-np.inf)
        high.append(row @ np.array(point) + 0.1)
    rows += [{0: 2.0}, {}]
    low, high = [*low, -np.inf, 0.0], [*high, 2 * point[0] + 1, np.inf]
    order = draw.permutation(len(rows))
    matrix = sp.dok_array((len(rows), size))
    for i, k in enumerate(order):
        for j, v in rows[k].items():
            matrix[i, j] = v
    above = np.maximum(np.array(point), 3.0)
    return LinearProgram(
        draw.normal(size=size),
        sp.csr_array(matrix),
        np.array(low)[order],
        np.array(high)[order],
        np.zeros(size),
        above,
        float(draw.normal()),
        bool(draw.integers(2)),
    )


@pytest.mark.parametrize("polytopes", [False, True])
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_a_model_has_the_optimum_of_the_program(polytopes: bool, seed: int) -> None:
    program = mixed(np.random.default_rng(seed))
    found = program.linprog()
    assert found.status == 0
    value = (-found.fun if program.maximize else found.fun) + program.offset
    structure = bl.detect(program)
    model = structured_model(program, structure, polytopes=polytopes)
    assert model.maximizing == program.maximize
    assert bl.reference(model).objective.item() == pytest.approx(value, rel=1e-6, abs=1e-6)
    # Every row is stated just once: as a row, in a block, or as a bound.
    lengths = np.diff(program.A.indptr)
    in_rows = sum(part.constraint.matrix.shape[0] for part in model.rows)
    per_block = {"Polytope": 2}
    in_blocks = sum(len(b.scope) * per_block.get(b.type.name, 1) for b in model.blocks)
    if not polytopes or all(kind.rows <= 2 for kind in structure.kinds if kind.name == "rows"):
        assert in_rows + in_blocks == (lengths > 1).sum()


def test_blocks_by_type(tmp_path: Path) -> None:
    pytest.importorskip("highspy")
    (tmp_path / "gap.lp").write_text(PACKING)
    program = read_linear_program(tmp_path / "gap.lp").program
    model = structured_model(program, block_structure(program, [0, 1, 2, -1, -1]))
    assert [(b.type.name, len(b.scope)) for b in model.blocks] == [("Simplex", 3)]
    assert [(r.name, r.constraint.matrix.shape[0]) for r in model.rows] == [("linking", 2)]
    bins = structured_model(program, block_structure(program, [-1, -1, -1, 0, 1]))
    assert [(b.type.name, len(b.scope)) for b in bins.blocks] == [("Knapsack", 2)]
    solution = model.solve(tol=1e-6)
    assert solution.primal.item() == pytest.approx(program.linprog().fun, rel=1e-5)
    assert solution.bound.item() <= program.linprog().fun + 1e-9


def test_linking_columns_are_shared_by_blocks() -> None:
    """Two knapsacks with a variable in common: no rows are left."""
    matrix = sp.csr_array(np.array([[1.0, 2.0, 0.0], [0.0, 3.0, 1.0]]))
    program = LinearProgram(np.array([-1.0, -4.0, -1.0]), matrix, np.full(2, -np.inf), np.array([2.0, 3.0]), np.zeros(3), np.ones(3))
    structure = block_structure(program, [0, 1], [0, -1, 1])
    model = structured_model(program, structure)
    assert [b.scope.tolist() for b in model.blocks] == [[[0, 1], [1, 2]]] and not model.rows
    assert bl.reference(model).objective.item() == pytest.approx(program.linprog().fun)


def test_weights_above_the_capacity() -> None:
    """A knapsack states the bounds that its row implies; they are no tighter than the program's."""
    matrix = sp.csr_array(np.array([[30.0, 2.0, 45.0]]))
    program = LinearProgram(-np.ones(3), matrix, np.array([-np.inf]), np.array([15.0]), np.zeros(3), np.ones(3))
    model = structured_model(program, block_structure(program, [0]))
    assert isinstance(model.blocks[0].type, Knapsack)
    assert bl.reference(model).objective.item() == pytest.approx(program.linprog().fun)


def test_what_cannot_become_a_model() -> None:
    matrix = sp.csr_array(np.ones((1, 2)))
    open_ = LinearProgram(np.ones(2), matrix, np.zeros(1), np.full(1, np.inf), np.full(2, -np.inf), np.full(2, np.inf))
    structure = block_structure(open_, [0])
    with pytest.raises(ModelError, match=r"'x\[0\]', 'x\[1\]' have no finite bounds"):
        structured_model(open_, structure)
    assert structured_model(open_, structure, reach=5.0).blocks[0].type.upper.max() == 5
    with pytest.raises(ModelError, match="the structure is one of 2 rows"):
        structured_model(open_, block_structure(sp.eye_array(2), [0, 1]))
    empty = LinearProgram(np.ones(2), sp.csr_array((1, 2)), np.ones(1), np.ones(1), np.zeros(2), np.ones(2))
    with pytest.raises(ModelError, match="row 0 has no entries"):
        structured_model(empty, bl.detect(empty))
    with pytest.raises(ModelError, match="structure"):
        structured_model(open_, "structure")  # type: ignore[arg-type]


def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("highspy")
    path, dec, picture = tmp_path / "gap.lp", tmp_path / "gap.dec", tmp_path / "gap.png"
    path.write_text(PACKING)
    arguments = ["structure", str(path), "--json", "--write", str(dec), "--picture", str(picture)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["rows"], said["columns"], said["entries"], said["blocks"], said["linking_rows"]) == (5, 6, 12, 3, 2)
    assert said["white"] == pytest.approx(1 - (3 * 2 + 2 * 6) / 30)
    assert said["kinds"] == [{"blocks": 3, "name": "Simplex", "rows": 1, "columns": 2, "identical": True}]
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = read_decomposition(dec, read_linear_program(path))
    assert again.row_block.tolist() == [0, 1, 2, -1, -1]
    read = CliRunner().invoke(app, ["structure", str(path), "--read", str(dec)])
    assert read.exit_code == 0 and "read from gap.dec" in read.output and "3 x Simplex(1 x 2, identical)" in read.output
    other = json.loads(CliRunner().invoke(app, ["structure", str(path), "--json", "--score", "spfwh"]).stdout)
    assert other["blocks"] == 2 and other["kinds"][0]["name"] == "Knapsack"


def test_a_file_without_structure_and_wrong_arguments(tmp_path: Path) -> None:
    pytest.importorskip("highspy")
    path = tmp_path / "one.lp"
    path.write_text("Minimize\n x + 2 y\nSubject To\n a: x + y >= 3\n b: x - y <= 1\nEnd\n")
    result = CliRunner().invoke(app, ["structure", str(path)])
    assert result.exit_code == 1 and "no structure found" in result.output
    assert CliRunner().invoke(app, ["structure", str(path), "--read", str(path)]).exit_code == 2
    assert CliRunner().invoke(app, ["structure", str(path), "--picture", str(tmp_path / "no" / "x.png")]).exit_code == 2


def test_the_picture_shows_every_entry(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from blocklp.problems.lp.picture import draw_structure

    matrix = sp.csr_array(
        np.array([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 1, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=float)
    )
    structure = block_structure(matrix, [0, 1, 0, 1, -1], [0, 1, 0, 1, -1])
    figure = Figure()
    draw_structure(figure, matrix, structure, "a $name$")
    before, after = (axis.images[0].get_array()[..., 3] > 0 for axis in figure.axes)
    rows, columns = structure.order()
    assert np.array_equal(before, matrix.toarray() != 0)
    assert np.array_equal(after, matrix.toarray()[rows][:, columns] != 0)
    # Rows 0 and 2 make the first block, the master is last, and so is the linking column.
    assert rows.tolist() == [0, 2, 1, 3, 4] and columns.tolist() == [0, 2, 1, 3, 4]
    boxes = {tuple(patch.get_bbox().bounds) for patch in figure.axes[1].patches}
    assert boxes == {(0, 0, 2, 2), (2, 2, 2, 2), (0, 4, 5, 1), (4, 0, 1, 4)}
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[-2:] == ["1 linking row", "1 linking column"]
    write_picture(tmp_path / "a.svg", matrix, structure)
    assert "<svg" in (tmp_path / "a.svg").read_text()
    with pytest.raises(OptionError, match="does not exist"):
        write_picture(tmp_path / "no" / "a.png", matrix, structure)
