import gzip

import numpy as np
import pytest

from blocklp.errors import FormatError, OptionError
from blocklp.problems.qpbo import Qubo, read_qubo

SPARSE = "3 4\n1 1 -5\n1 2 2\n2 3 -1.5\n3 3 4\n"


def write(path, text):
    path.write_text(text)
    return path


def test_sparse_file_is_the_quadratic_form_of_a_symmetric_matrix(tmp_path, all_labellings):
    qubo = read_qubo(write(tmp_path / "toy.sparse", SPARSE))
    matrix = np.array([[-5, 2, 0], [2, 0, -1.5], [0, -1.5, 4]])
    y = all_labellings(3)
    np.testing.assert_array_equal(qubo.energy(y), np.einsum("bi,ij,bj->b", y, matrix, y))
    assert qubo.name == "toy"


@pytest.mark.parametrize("header", ["3 2", "3 2 J", " 3 2 \r"])
@pytest.mark.parametrize(("rows", "weights"), [("1 2 3\n3 2 -1\n", [3, -1]), ("1 2\n\n2 3\n", [1, 1])])
def test_max_cut_file_with_and_without_weights(tmp_path, header, rows, weights, all_labellings):
    qubo = read_qubo(write(tmp_path / "toy.0", f"{header}\n{rows}"))
    y = all_labellings(3)
    expected = Qubo.max_cut(3, [(0, 1), (1, 2)], weights)
    np.testing.assert_array_equal(qubo.energy(y), expected.energy(y))
    assert qubo.name == "toy.0"


def test_gzipped_file_reads_the_same(tmp_path):
    plain = read_qubo(write(tmp_path / "toy.sparse", SPARSE))
    (tmp_path / "toy.sparse.gz").write_bytes(gzip.compress(SPARSE.encode()))
    packed = read_qubo(tmp_path / "toy.sparse.gz")
    assert packed.name == plain.name
    np.testing.assert_array_equal(packed.quadratic, plain.quadratic)


def test_format_overrides_the_suffix(tmp_path):
    path = write(tmp_path / "matrix.txt", SPARSE)
    assert read_qubo(path, format="sparse").linear.tolist() == [-5, 0, 4]
    with pytest.raises(FormatError, match=r"line 2 .*self-loops.*format='sparse'"):
        read_qubo(path)
    with pytest.raises(OptionError, match="'csv'"):
        read_qubo(path, format="csv")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file is empty"),
        ("3\n", "line 1 .*not a header"),
        ("3 x\n", "line 1 .*'x' is not a whole number"),
        ("0 0\n", "line 1 .*no variable"),
        ("3 4\n1 1 5\n", "line 1 .*4 entries are announced but 1 follow"),
        ("3 1\n1 1 5\n1 2 5\n", "line 1 .*1 entries are announced but 2 follow"),
        ("3 2\n1 1 5\n1 2\n", "line 3 .*2 fields where 3 are needed"),
        ("3 2\n1 1\n5 1 2 5\n", "line 2 .*2 fields"),
        ("3 1\n1 4 5\n", r"line 2 .*node 4 is outside 1 \.\. 3"),
        ("3 1\n0 1 5\n", "line 2 .*node 0 is outside"),
        ("3 1\n-1 1 5\n", "line 2 .*'-1' is not a whole number"),
        ("3 1\n1.0 1 5\n", "line 2 .*'1.0' is not a whole number"),
        ("3 1\n99999999999999999999 1 5\n", "line 2 .*not a whole number"),
        ("3 1\n\n1 2 five\n", "line 3 .*'five' is not a number"),
        ("3 1\n1 2 1_0\n", "line 2 .*'1_0' is not a number"),
        ("3 1\n1 2 nan\n", "line 2 .*nan is not finite"),
        ("3 1\n1 2 1e999\n", "line 2 .*1e999 is not finite"),
        ("3 2\n1 2 1e20\n1 3 1\n", "line 2 .*1e\\+20.*hard constraints"),
        ("3 1\n1 2 1e200\n", "line 2 .*1e\\+200.*rescale"),
        ("3 2\n1 2 1e-9\n1 3 1e7\n", "line 3 .*hard constraints"),
        ("3 2\n1 2 1\n2 1 1\n", "line 3 .*repeats the pair of line 2"),
    ],
)
def test_faulty_file_is_refused_with_its_line(tmp_path, text, message):
    path = write(tmp_path / "bad.sparse", text)
    with pytest.raises(FormatError, match=message) as caught:
        read_qubo(path)
    assert str(path) in str(caught.value)


def test_damaged_binary_and_misnamed_files_are_refused(tmp_path):
    (tmp_path / "cut.sparse.gz").write_bytes(gzip.compress(SPARSE.encode())[:-12])
    with pytest.raises(FormatError, match="damaged gzip"):
        read_qubo(tmp_path / "cut.sparse.gz")
    (tmp_path / "plain.sparse.gz").write_text(SPARSE)
    with pytest.raises(FormatError, match="damaged gzip"):
        read_qubo(tmp_path / "plain.sparse.gz")
    (tmp_path / "image.sparse").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not a text file"):
        read_qubo(tmp_path / "image.sparse")
    with pytest.raises(FormatError, match="read_graph"):
        read_qubo(write(tmp_path / "graph.clq", SPARSE))


# Off-diagonal entries as the library states them.
@pytest.mark.parametrize(("name", "n", "pairs"), [("bqp50-1", 50, 108), ("gka1b", 20, 187), ("bqp1000-2", 1000, 49479)])
def test_library_files_have_their_size(shared_qpbo, name, n, pairs):
    qubo = read_qubo(shared_qpbo / "qubo" / f"{name}.sparse")
    assert (qubo.n, len(qubo.edges), qubo.name) == (n, pairs, name)


def test_library_optimum_is_reached_by_enumeration(shared_qpbo):
    qubo = read_qubo(shared_qpbo / "qubo" / "gka1b.sparse")
    low = (np.arange(2**10)[:, None] >> np.arange(10)) & 1
    best = min(qubo.energy(np.hstack([low, np.broadcast_to(high, low.shape)])).min() for high in low)
    assert best == -133


# Sums of the positive weights, and for the bipartite torus G48 the best cut, which is all of them.
@pytest.mark.parametrize(("name", "total"), [("G1.txt", 19176), ("G6.txt", 9665), ("G48.txt", 6000), ("t2g10_5555", 7552108)])
def test_max_cut_files_have_their_weights(shared_qpbo, name, total):
    qubo = read_qubo(shared_qpbo / "maxcut" / name)
    assert qubo.quadratic[qubo.quadratic > 0].sum() / 2 == total


def test_every_library_file_is_read(shared_qpbo):
    files = sorted((shared_qpbo / "qubo").iterdir()) + sorted((shared_qpbo / "maxcut").iterdir())
    assert all(len(read_qubo(file).edges) for file in files)
