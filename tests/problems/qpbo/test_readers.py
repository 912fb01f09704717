import bz2
import gzip
import lzma

import numpy as np
import pytest

import blocklp as bl
from blocklp.errors import FormatError, OptionError, TimeLimitError
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
    qubo = read_qubo(write(tmp_path / "toy.0", f"{header}\n{rows}"), "maxcut")
    y = all_labellings(3)
    expected = Qubo.max_cut(3, [(0, 1), (1, 2)], weights)
    np.testing.assert_array_equal(qubo.energy(y), expected.energy(y))
    assert qubo.name == "toy.0"


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("u,v,weight\n0,1,3\n2,1,-1\n", [3, -1]),
        ("# a comment, of two parts\n0, 1, 3\n\n2,1 ,-1", [3, -1]),
        ("source,target\n0,1\n2,1\n", [1, 1]),
        ("0,1\r\n2,1\r\n", [1, 1]),
    ],
)
def test_comma_separated_edges_are_a_max_cut_graph(tmp_path, text, weights, all_labellings):
    y = all_labellings(3)
    expected = Qubo.max_cut(3, [(0, 1), (1, 2)], weights)
    for path, format in ((tmp_path / "toy.csv", None), (tmp_path / "toy.txt", "edges")):
        qubo = read_qubo(write(path, text), format)
        np.testing.assert_array_equal(qubo.energy(y), expected.energy(y))
        assert qubo.name == "toy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file is empty"),
        ("u,v,w\n", "no edge"),
        ("0,1,2\n1,2\n", "line 2 .*2 fields where 3"),
        ("0,1,2\nu,2,1\n", "line 2 .*'u' is not a whole number"),
        ("-1,1,2\n", "line 1 .*'-1' is not a whole number"),
        ("0,1,nan\n", "line 1 .*not finite"),
        ("# c\nu,v\n1,1\n", "line 3 .*self-loops"),
        ("0,1\n1,0\n", "line 2 .*repeats the pair of line 1"),
        ("0,1\n1,999999999999\n", "variables would take"),
    ],
)
def test_bad_comma_separated_edges_are_named(tmp_path, text, message):
    with pytest.raises(FormatError, match=message):
        read_qubo(write(tmp_path / "bad.csv", text))


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
        read_qubo(path, format="maxcut")
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


@pytest.mark.parametrize("suffix", [".sparse", ".SPARSE", ".Sparse.GZ", ".sparse.bz2", ".sparse.xz"])
def test_suffix_of_a_matrix_is_known_in_any_case_below_any_compression(tmp_path, suffix):
    pack = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}.get(suffix.rpartition(".")[2].lower(), bytes)
    (tmp_path / f"toy{suffix}").write_bytes(pack(SPARSE.encode()))
    qubo = read_qubo(tmp_path / f"toy{suffix}")
    assert qubo.name == "toy"
    assert qubo.linear.tolist() == [-5, 0, 4] and qubo.quadratic.tolist() == [4, -3]


@pytest.mark.parametrize("name", ["toy", "toy.txt", "toy.0", "toy.gz", "toy.data"])
def test_triples_under_a_suffix_that_says_nothing_are_refused(tmp_path, name):
    path = write(tmp_path / name, "3 2\n1 2 3\n2 3 -1\n")
    with pytest.raises(FormatError, match=r"neither suffix nor content .*--format"):
        read_qubo(path)
    # Only max-cut files lack weights or have a word after the counts.
    assert read_qubo(write(path, "3 2\n1 2\n2 3\n")).quadratic.tolist() == [2, 2]
    assert read_qubo(write(path, "3 2 J\n1 2 3\n2 3 -1\n")).quadratic.tolist() == [6, -2]


def test_memory_is_asked_for_before_it_is_taken(tmp_path):
    path = write(tmp_path / "a.mc", "100000000 2\n1 2 3\n2 3 -1\n")
    with pytest.raises(FormatError, match=r"100000000 variables would take .*raise max_bytes to \d+"):
        read_qubo(path)
    write(path, "3000 2\n1 2 3\n2 3 -1\n")
    assert read_qubo(path).n == 3000
    with pytest.raises(FormatError, match="raise max_bytes"):
        read_qubo(path, max_bytes=100_000)
    with pytest.raises(FormatError, match="raise max_bytes"):
        read_qubo(path, max_bytes=10)
    with pytest.raises(TimeLimitError, match="while reading"):
        read_qubo(path, time_limit=bl.Deadline(1.0, began=-10.0))
    with pytest.raises(OptionError, match="max_bytes is 0"):
        read_qubo(path, max_bytes=0)


def test_damaged_binary_and_misnamed_files_are_refused(tmp_path):
    (tmp_path / "cut.sparse.gz").write_bytes(gzip.compress(SPARSE.encode())[:-12])
    with pytest.raises(FormatError, match="damaged gzip"):
        read_qubo(tmp_path / "cut.sparse.gz")
    (tmp_path / "plain.sparse.gz").write_text(SPARSE)
    assert read_qubo(tmp_path / "plain.sparse.gz").n == 3
    (tmp_path / "image.sparse").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="not text in UTF-8"):
        read_qubo(tmp_path / "image.sparse")
    readers = {"graph.CLQ": "read_graph", "graph.clq.xz": "read_graph", "a.qpbo": "read_mrf", "a.uai.LG": "read_mrf"}
    for name, reader in readers.items():
        with pytest.raises(FormatError, match=reader):
            read_qubo(write(tmp_path / name, SPARSE))


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
    qubo = read_qubo(shared_qpbo / "maxcut" / name, "maxcut")
    assert qubo.quadratic[qubo.quadratic > 0].sum() / 2 == total


def test_every_library_file_is_read(shared_qpbo):
    assert all(len(read_qubo(file).edges) for file in (shared_qpbo / "qubo").iterdir())
    assert all(len(read_qubo(file, "maxcut").edges) for file in (shared_qpbo / "maxcut").iterdir())
