"""Block structures: planted ones are found, areas are those of the definition, kinds are named by their rows."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import blocklp as bl
from blocklp.errors import ModelError, NonFiniteError, OptionError
from blocklp.lp import BlockStructure, LinearProgram, block_structure, structures
from blocklp.lp.detection.growth import grown
from blocklp.lp.detection.partitions import partitions
from blocklp.lp.detection.pattern import Pattern, split
from blocklp.lp.detection.row_classes import Form, row_classes, row_facts
from blocklp.lp.detection.scores import foreseen_white_area
from blocklp.oracles import Simplex

FAST = settings(max_examples=25, deadline=None)


@pytest.fixture
def without_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mtkahypar", None)


def program(matrix: np.ndarray | sp.csr_array, low: object, high: object, below: object = 0.0, above: object = 1.0) -> LinearProgram:
    filled = sp.csr_array(matrix)
    m, n = filled.shape
    sides = (np.broadcast_to(np.asarray(side, dtype=float), (m,)).copy() for side in (low, high))
    bounds = (np.broadcast_to(np.asarray(side, dtype=float), (n,)).copy() for side in (below, above))
    return LinearProgram(np.zeros(n), filled, *sides, *bounds)


def assignment(jobs: int, machines: int, seed: int = 0) -> LinearProgram:
    """Generalised assignment: each job to one machine, machines have capacities."""
    draw = np.random.default_rng(seed)
    once = np.kron(np.eye(jobs), np.ones(machines))
    room = np.kron(np.ones(jobs), np.eye(machines)) * draw.integers(2, 30, jobs * machines)
    low = np.r_[np.ones(jobs), np.full(machines, -np.inf)]
    return program(np.vstack([room, once]), np.roll(low, machines), np.r_[np.full(machines, 40.0), np.ones(jobs)])


def planted(draw: np.random.Generator, blocks: int, links: tuple[int, int]) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """Connected blocks of different sizes, full linking rows and columns, all shuffled; and the block of each row and column."""
    parts, row_block, column_block = [], [], []
    for k in range(blocks):
        r, c = draw.integers(2, 5), draw.integers(3, 7)
        part = (draw.random((r, c)) < 0.6) * draw.integers(1, 9, (r, c)).astype(float)
        part[0], part[:, 0] = 2.0, 3.0  # connected
        parts.append(part)
        row_block += [k] * r
        column_block += [k] * c
    inside = sp.block_diag([sp.coo_array(part) for part in parts]).toarray()
    rows, columns = links
    inside = np.block(
        [[inside, draw.integers(1, 9, (len(inside), columns))], [draw.integers(1, 9, (rows, inside.shape[1] + columns))]]
    )
    row_block, column_block = np.array(row_block + [-1] * rows), np.array(column_block + [-1] * columns)
    p, q = draw.permutation(len(row_block)), draw.permutation(len(column_block))
    return sp.csr_array(inside[p][:, q].astype(float)), row_block[p], column_block[q]


def partition(block: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(block == k).tolist()) for k in np.unique(block[block >= 0])}


def covered(structure: BlockStructure, pattern: np.ndarray) -> float:
    """The white area cell by cell."""
    m, n = pattern.shape
    rows, columns = structure.row_block[:, None], structure.column_block[None]
    linking = np.array([any(structure.row_block[pattern[:, j]] >= 0) for j in range(n)]) & (structure.column_block < 0)
    black = ((rows == columns) & (rows >= 0)) | np.broadcast_to(rows < 0, (m, n)) | linking[None]
    return 1 - black.mean()


@FAST
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12))
def test_the_white_area_is_what_no_block_and_no_border_covers(seed: int, m: int, n: int) -> None:
    draw = np.random.default_rng(seed)
    matrix = (draw.random((m, n)) < 0.4).astype(float)
    row_block = draw.integers(-1, 3, m)
    found = block_structure(sp.csr_array(matrix), row_block)
    assert found.white == pytest.approx(covered(found, matrix != 0), abs=1e-12)
    assert partition(found.row_block) == partition(row_block)
    for j in range(n):  # a column is in the one block that has it, if there is just one
        blocks = {k for k in found.row_block[matrix[:, j] != 0] if k >= 0}
        assert found.column_block[j] == (blocks.pop() if len(blocks) == 1 else -1)


@FAST
@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(0, 2))
def test_planted_blocks_are_found(seed: int, rows: int, columns: int) -> None:
    draw = np.random.default_rng(seed)
    matrix, row_block, column_block = planted(draw, 8, (rows, columns))
    truth = block_structure(matrix, row_block, column_block)
    found = bl.detect(matrix)
    assert found.white >= truth.white - 1e-12
    if found.white == truth.white:
        assert partition(found.row_block) == partition(row_block)
        assert partition(found.column_block) == partition(column_block)
    shown = matrix.toarray()[np.ix_(*found.order())]
    links = len(found.linking_rows)
    assert not links or (shown[-links:] != 0).sum() == (matrix.toarray()[found.linking_rows] != 0).sum()
    assert np.all(np.diff(found.row_block[found.order()[0]][: matrix.shape[0] - links]) >= 0)


@FAST
@given(st.integers(0, 10**6))
def test_growth_leaves_no_less_white_area(seed: int) -> None:
    draw = np.random.default_rng(seed)
    m, n = draw.integers(1, 25, 2)
    matrix = sp.csr_array((draw.random((m, n)) < 0.15).astype(float))
    pattern = Pattern.of(matrix)
    border = draw.random(m) < 0.5, draw.random(n) < draw.choice([0, 0.3])
    before, after = split(pattern, *border), split(pattern, *grown(pattern, *border))
    assert after.white >= before.white - 1e-12
    for found in (before, after):  # the same as when the blocks are given
        again = block_structure(matrix, found.row_block, found.column_block)
        assert (again.row_block.tolist(), again.white) == (found.row_block.tolist(), found.white)


@FAST
@given(st.integers(0, 10**6))
def test_foreseen_area_is_that_of_the_matrix_with_copies(seed: int) -> None:
    draw = np.random.default_rng(seed)
    m, n = draw.integers(2, 9, 2)
    matrix = (draw.random((m, n)) < 0.5).astype(float)
    pattern = Pattern.of(sp.csr_array(matrix))
    found = split(pattern, draw.random(m) < 0.3, draw.random(n) < 0.4)
    copies = [
        (j, k) for j in range(n) if found.column_block[j] < 0 for k in range(found.blocks) if matrix[found.row_block == k, j].any()
    ]
    wide = np.hstack([matrix, np.zeros((m, len(copies)))])
    row_block, column_block = found.row_block, np.r_[found.column_block, [k for _, k in copies]].astype(int)
    links = np.zeros((len(copies), n + len(copies)))
    for at, (j, k) in enumerate(copies):
        wide[row_block == k, n + at], wide[row_block == k, j] = matrix[row_block == k, j], 0
        links[at, [j, n + at]] = 1
    whole = block_structure(sp.csr_array(np.vstack([wide, links])), np.r_[row_block, [-1] * len(copies)].astype(int), column_block)
    assert foreseen_white_area(pattern, found) == pytest.approx(whole.white, abs=1e-12)


@pytest.mark.parametrize("scale", [1.0, -3.0, 1 / 49])
def test_forms_of_rows(scale: float) -> None:
    """Whatever a row is multiplied by."""
    inf = np.inf
    cases = [
        ([1, 1, 1], 1, 1, Form.PARTITION),
        ([2, 2, 2], 6, 6, Form.PARTITION),
        ([1, 1, 0], -inf, 1, Form.PACKING),
        ([1, 1, 1], 1, inf, Form.COVERING),
        ([1, 1, 1], 1, 2, Form.EQUAL),
        ([1, 1, 1], -inf, -1, Form.EQUAL),
        ([1, -1, 0], -inf, 0, Form.DIFFERENCE),
        ([1, -4, 0], 0, 0, Form.DIFFERENCE),
        ([1, 2, 3], -inf, 4, Form.KNAPSACK),
        ([1, 2, 3], 4, inf, Form.LOAD),
        ([1, 2, 3], 4, 4, Form.BALANCE),
        ([1, 2, -3], -inf, 4, Form.MIXED),
        ([1, 2, -3], 0, 0, Form.MIXED_EQUATION),
        ([0, 7, 0], -inf, 4, Form.SINGLE),
        ([0, 0, 0], -inf, 4, Form.EMPTY),
    ]
    rows, low, high, forms = (np.array(part) for part in zip(*cases, strict=True))
    low, high = (low * scale, high * scale) if scale > 0 else (high * scale, low * scale)
    matrix = sp.csr_array(rows * scale)
    facts = row_facts(matrix, Pattern.of(matrix), low, high)
    assert [Form(form) for form in facts.form] == list(forms)


def test_classes_do_not_depend_on_the_order_of_columns() -> None:
    draw = np.random.default_rng(0)
    rows = draw.integers(-3, 4, (30, 12)) * (draw.random((30, 12)) < 0.5)
    p = draw.permutation(12)
    matrix, other = sp.csr_array(rows.astype(float)), sp.csr_array(rows[:, p].astype(float))
    high = draw.integers(0, 2, 30).astype(float)
    sides = np.full(30, -np.inf), high
    first, second = (row_classes(Pattern.of(a), row_facts(a, Pattern.of(a), *sides)) for a in (matrix, other))
    assert first.keys() == second.keys()
    for name in first:
        assert {frozenset(np.flatnonzero(first[name] == k)) for k in first[name]} == {
            frozenset(np.flatnonzero(second[name] == k)) for k in second[name]
        }
    coefficients = first["coefficients"]
    for i in range(30):
        for j in range(i):
            scaled = [(sorted(rows[k].tolist()), high[k]) for k in (i, j)]
            if scaled[0] == scaled[1]:
                assert coefficients[i] == coefficients[j]


def test_assignments_have_either_side_as_blocks() -> None:
    """White area wants the many small blocks; GCG's score a master of set-partitioning rows."""
    gap = assignment(24, 4)
    found = bl.detect(gap)
    assert partition(found.row_block) == {frozenset([k]) for k in range(4, 28)}
    assert [(kind.name, len(kind.blocks), kind.columns, kind.identical) for kind in found.kinds] == [("Simplex", 24, 4, True)]
    dual = bl.detect(gap, score="spfwh")
    assert partition(dual.row_block) == {frozenset([k]) for k in range(4)}
    assert [(kind.name, len(kind.blocks), kind.columns, kind.identical) for kind in dual.kinds] == [("Knapsack", 4, 24, False)]
    listed = structures(gap)
    assert {found.white, dual.white} <= {one.white for one in listed}
    assert listed[0].white == max(one.white for one in listed)


def test_nearly_equal_areas_prefer_a_master_of_equal_coefficients() -> None:
    """Bin packing with as many bins as items: items into bins as rows that cover, or bins as knapsacks."""
    items, bins = 40, 40
    cover = np.hstack([np.kron(np.ones(bins), np.eye(items)), np.zeros((items, bins))])
    room = np.hstack([np.kron(np.eye(bins), np.arange(1.0, items + 1)), -20 * np.eye(bins)])
    low, high = np.r_[np.ones(items), np.full(bins, -np.inf)], np.r_[np.full(items, np.inf), np.zeros(bins)]
    found = bl.detect(program(np.vstack([cover, room]), low, high))
    assert found.linking_rows.tolist() == list(range(items))
    assert [(kind.name, len(kind.blocks), kind.identical) for kind in found.kinds] == [("Knapsack", bins, True)]


def test_kinds_by_rows_and_bounds() -> None:
    inf = np.inf
    rows = np.zeros((9, 20))
    rows[0, 0:3], rows[1, 3:6], rows[2, 6:9] = 1, 2, 1  # simplex; at most one, mass 2; simplex but for its bounds
    rows[3, 9:12], rows[4, 9], rows[5, 12:14] = [1, -2, 3], 2, [1, 1]  # knapsack with a bound as a row; unbounded
    rows[6, 14:16], rows[7, 15:17], rows[8, 17] = [1, -1], [1, -1], 1  # differences; a bound alone
    low, high = np.array([1, -inf, 1, -inf, -inf, -inf, 0, 0, -inf]), np.array([1, 4, 1, 4, 1, 3, inf, inf, 5])
    below, above = np.zeros(20), np.full(20, 2.0)
    above[7], above[12] = 0.5, inf
    found = block_structure(program(rows, low, high, below, above), np.array([0, 1, 2, 3, 3, 4, 5, 5, 6]))
    names = {int(b): kind.name for kind in found.kinds for b in kind.blocks}
    assert [names[b] for b in range(7)] == ["Simplex", "AtMostOne", "Knapsack", "Knapsack", "one row", "differences", "Box"]
    assert found.known == 4 / 7
    assert found.column_block[18:].tolist() == [-1, -1]
    # Bounds are not known of a matrix alone.
    bare = block_structure(sp.csr_array(rows), np.array([0, 1, 2, 3, 3, 4, 5, 5, 6]))
    assert {kind.name for kind in bare.kinds} == {"one row", "differences", "Box"}


def test_a_giant_block_is_worth_little() -> None:
    """One block with most entries and many of one row leave much white area, but are no structure."""
    draw = np.random.default_rng(1)
    giant = sp.csr_array((draw.random((20, 20)) < 0.5).astype(float))
    pattern = Pattern.of(sp.csr_array(sp.block_diag([giant, sp.eye_array(40)])))
    found = split(pattern, np.zeros(60, dtype=bool), np.zeros(60, dtype=bool))
    assert found.white > 0.8 and found.score < found.white * 2.5 * 40 / pattern.rows.size


def test_no_structure_in_a_dense_matrix(without_partitions: None) -> None:
    found = bl.detect(np.random.default_rng(0).normal(size=(6, 9)))
    assert (found.blocks, found.white, found.kinds) == (0, 0.0, ())
    assert len(found.linking_rows) == 6 and not len(found.linking_columns)
    assert "no blocks" in repr(found) and found.found == "no structure found"
    assert "mtkahypar" in found.note and "structure" in found.note


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1)])
def test_nothing_to_find(shape: tuple[int, int]) -> None:
    found = bl.detect(sp.csr_array(shape))
    assert (found.blocks, found.row_block.shape, found.column_block.shape) == (0, shape[:1], shape[1:])


def test_explicit_zeros_and_formats_do_not_matter() -> None:
    matrix, *_ = planted(np.random.default_rng(3), 8, (2, 1))
    stored = matrix.copy().tocoo()
    zeros = sp.coo_array((np.r_[stored.data, 0.0], (np.r_[stored.coords[0], 0], np.r_[stored.coords[1], 1])), shape=matrix.shape)
    first = bl.detect(matrix)
    for form in (zeros, matrix.tocsc(), matrix.toarray(), sp.csr_matrix(matrix), matrix.astype(np.int64)):
        again = bl.detect(form)
        assert np.array_equal(first.row_block, again.row_block) and np.array_equal(first.column_block, again.column_block)


def test_the_program_of_a_model() -> None:
    model = bl.Model()
    x = model.variable("x", (10, 4), lower=0, upper=1)
    model.add(Simplex(4), scope=x)
    model.add(x.sum(0) <= 3.0)
    model.minimize(x.sum())
    found = bl.detect(model.linear_program())
    assert [(kind.name, len(kind.blocks)) for kind in found.kinds] == [("Simplex", 10)]
    assert len(found.linking_rows) == 4


def test_partitions_find_what_classes_do_not() -> None:
    pytest.importorskip("mtkahypar", reason="partitions need Mt-KaHyPar")
    draw = np.random.default_rng(5)
    # Random sparse blocks, linked by rows that look like those of blocks.
    parts = [(draw.random((30, 30)) < 0.12) * 1.0 + np.eye(30) + np.eye(30, k=1) for _ in range(4)]
    links = np.zeros((12, 120))
    for row in links:
        row[draw.choice(120, 4, replace=False)] = 1.0
    rows, columns = draw.permutation(132), draw.permutation(120)
    matrix = sp.csr_array(np.vstack([sp.block_diag([sp.coo_array(part) for part in parts]).toarray(), links])[rows][:, columns])
    truth = block_structure(matrix, np.r_[np.repeat(np.arange(4), 30), [-1] * 12][rows])
    found = bl.detect(matrix)
    assert found.white >= truth.white - 1e-12 and not found.note
    assert np.array_equal(found.row_block, bl.detect(matrix).row_block)
    assert any("Mt-KaHyPar" in one.found for one in structures(matrix))
    assert "effort" in bl.detect(matrix, effort=1e-6).note


@FAST
@given(st.integers(0, 10**6))
def test_partitions_of_tiny_and_empty_matrices(seed: int) -> None:
    pytest.importorskip("mtkahypar", reason="partitions need Mt-KaHyPar")
    draw = np.random.default_rng(seed)
    m, n = draw.integers(1, 14, 2)
    pattern = Pattern.of(sp.csr_array((draw.random((m, n)) < draw.choice([0, 0.05, 0.2, 0.5])).astype(float)))
    for how, master, linking in partitions(pattern, 1.0):
        assert master.shape == (m,) and linking.shape == (n,)
        assert not linking.any() or not how.startswith("rows")
        assert not master.any() or not how.startswith("columns")
        assert (pattern.lengths[master] > 1).all() and (pattern.heights[linking] > 1).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda a: bl.detect(a, score="best"),
        lambda a: bl.detect(a, effort=0),
        lambda a: bl.detect(a, effort=float("nan")),
    ],
)
def test_wrong_options(call: object) -> None:
    with pytest.raises(OptionError, match=r"score|effort"):
        call(sp.eye_array(3))  # type: ignore[operator]


def test_wrong_matrices() -> None:
    for wrong in ([[1.0, 2.0]], np.ones(3), np.ones((2, 2), dtype=complex), "matrix"):
        with pytest.raises(ModelError, match="detect needs"):
            bl.detect(wrong)
    for value in (np.nan, np.inf):
        with pytest.raises(NonFiniteError):
            bl.detect(np.array([[1.0, value]]))
    matrix = sp.csr_array(np.ones((2, 2)))
    for wrong in ([0], [0.0, 1.0], [[0, 1]]):
        with pytest.raises(ModelError, match="2 integers"):
            block_structure(matrix, wrong)
    with pytest.raises(ModelError, match="row 0 of block 0 has an entry in column 1 of block 1"):
        block_structure(matrix, [0, 1], [0, 1])


def test_numbers_of_blocks_may_have_gaps() -> None:
    found = block_structure(sp.eye_array(4), np.array([7, -5, 3, 7]))
    assert found.row_block.tolist() == [1, -1, 0, 1]
    assert found.column_block.tolist() == [1, -1, 0, 1]


def test_a_solve_does_not_detect() -> None:
    code = (
        "import sys, numpy as np, blocklp as bl\n"
        "bl.linprog([1.0, 2.0], A_ub=np.array([[-1.0, -1.0]]), b_ub=[-1.0], bounds=(0, 3))\n"
        "print([name for name in sys.modules if 'detection' in name or 'kahypar' in name])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.strip() == "[]"
