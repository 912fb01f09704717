import bz2
import gzip
import lzma

import numpy as np
import pytest

from blocklp.errors import FormatError, OptionError
from blocklp.problems.mrf import read_evidence, read_labelling, read_mrf

# Variables of 2 and 3 labels; the pair is listed as (1, 0), so that the label of variable 0 runs fastest.
UAI = "MARKOV\n2\n2 3\n2\n1 0\n2 1 0\n\n2\n 0.5 1\n6\n 1 2\n 3 4\n 5 0\n"
PAIR = np.array([[1, 2], [3, 4], [5, 0]])

WCSP = "small 3 3 4 100\n2 3 2\n2 0 1 7 2\n0 2 5\n1 0 100\n1 2 0 1\n1 9\n0 4 0\n3 0 1 2 1 1\n1 2 1 12\n"


@pytest.fixture
def write(tmp_path):
    def make(name, text):
        data = text.encode()
        pack = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}.get(name.rpartition(".")[2], bytes)
        (tmp_path / name).write_bytes(pack(data))
        return tmp_path / name

    return make


@pytest.mark.parametrize("name", ["a.uai", "a.UAI.gz", "a.uai.xz", "a.Uai.bz2"])
def test_uai_tables_are_potentials_with_the_last_variable_fastest(write, name):
    mrf = read_mrf(write(name, UAI))
    assert (mrf.name, mrf.counts.tolist()) == ("a", [2, 3])
    for a in range(2):
        for b in range(3):
            potential = [0.5, 1][a] * PAIR[b, a]
            assert mrf.energy([a, b]) == (pytest.approx(-np.log(potential)) if potential else np.inf)


@pytest.mark.parametrize(("name", "log"), [("a.uai", True), ("a.uai.LG", None), ("a.UAI.LG", None)])
def test_tables_of_logarithms(write, name, log):
    mrf = read_mrf(write(name, UAI), log=log)
    assert mrf.name == "a"
    assert [float(mrf.energy([a, b])) for a in (0, 1) for b in (0, 1, 2)] == [
        -[0.5, 1][a] - PAIR[b, a] for a in (0, 1) for b in range(3)
    ]


def test_wcsp_has_default_costs_and_an_upper_bound(write):
    mrf = read_mrf(write("a.wcsp", WCSP))
    assert mrf.counts.tolist() == [2, 3, 2]
    for a in range(2):
        for b in range(3):
            for c in range(2):
                pair = {(0, 2): 5, (1, 0): np.inf}.get((a, b), 7)
                assert mrf.energy([a, b, c]) == 4 + pair + (9 if c == 1 else 0) + (12 if (a, b, c) == (1, 2, 1) else 1)


@pytest.mark.parametrize(("header", "values", "sign"), [("2 3", (0, 1), 1), ("-2 3", (1, -1), 1), ("2 -3", (0, 1), -1)])
def test_qpbo_counts_pairs_twice_and_goes_by_the_signs_of_its_header(write, header, values, sign):
    mrf = read_mrf(write("a.qpbo", f"{header}\n1 1 3\n1 2 -1.5\n2 2 4\n"))
    for a in range(2):
        for b in range(2):
            x, y = values[a], values[b]
            assert mrf.energy([a, b]) == sign * (3 * x - 3 * x * y + 4 * y)


@pytest.mark.parametrize(("text", "found"), [("2 1 0 0 1\n", {1: 0, 0: 1}), ("0\n", {}), ("1\n1 1 2\n", {1: 2}), ("0 0", {})])
def test_evidence_of_both_conventions(write, text, found):
    file = write("a.uai.evid", text)
    assert read_evidence(file) == found
    mrf = read_mrf(write("a.uai", UAI), evidence=file)
    every = np.array([[a, b] for a in range(2) for b in range(3)])
    kept = np.array([all(x[i] == label for i, label in found.items()) for x in every])
    assert np.array_equal(mrf.energy(every), np.where(kept, read_mrf(write("b.uai", UAI)).energy(every), np.inf))


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.uai", "", "empty"),
        ("a.uai", "MARKOW\n1\n", "line 1.*MARKOV"),
        ("a.uai", UAI.replace("2 3\n", "2 x\n", 1), "line 3.*number of labels"),
        ("a.uai", UAI.replace("2 1 0", "2 1 2"), "line 6.*0 .. 1"),
        ("a.uai", UAI.replace("2 1 0", "2 1 1"), "line 6.*twice"),
        ("a.uai", UAI.replace("\n6\n", "\n5\n"), "line 10.*6 joint labels"),
        ("a.uai", UAI.replace("3 4", "3 z"), "line 12.*not a number"),
        ("a.uai", UAI.replace("3 4", "3 nan"), "line 12.*not a number"),
        ("a.uai", UAI.replace("3 4", "3 -4"), "line 12.*log=True"),
        ("a.uai", UAI[:-5], "cut off"),
        ("a.uai", UAI + "1", "line 14.*should end"),
        ("a.uai", "MARKOV\n9\n" + "99 " * 9 + "\n1\n9 0 1 2 3 4 5 6 7 8\n1\n", "too large"),
        ("a.uai.xz", None, "line 1.*MARKOV"),
        ("a.uai", "MARKOV\n40\n" + "1 " * 40 + "\n1\n40 " + " ".join(map(str, range(40))) + "\n1\n1\n", "line 5.*0 .. 32"),
        ("a.uai", "MARKOV\n2\n2 999999999999\n0\n", "up to 999999999999 labels would take .* raise max_bytes"),
        ("a.wcsp", "a 2 9000000 1 9\n9000000 9000000\n2 0 1 0 0\n", "line 3.*too large.*raise max_bytes"),
        ("a.wcsp", "a 1 2 1 99999999999999999\n2\n1 0 0 1\n0 9007199254740993\n", "line 4.*rounded"),
        ("a.wcsp", "a 1 2 2 9007199254740993\n2\n" + "1 0 0 1\n0 9007199254740992\n" * 2, "upper bound .* exactly"),
        ("a.wcsp", WCSP.replace("2 0 1 7", "-99 0 1 7"), "line 3.*number of variables of a constraint"),
        ("a.wcsp", WCSP.replace("2 0 1 7", "2 0 1 -1"), "line 3.*this cost function is not read"),
        ("a.wcsp", WCSP.replace("0 2 5", "0 3 5"), "line 4.*0 .. 2"),
        ("a.qpbo", "2 1\n0 1 3\n", "line 2.*1 .. 2"),
        ("a.qpbo", "2 1\n1 2 inf\n", "line 2.*finite"),
        ("a.qpbo", "99999999999 1\n1 2 1\n", "variables would take .* raise max_bytes"),
        ("a.qpbo", "2 1\n1 2 1e308\n", "line 2.*at most 1e\\+150"),
        ("a.uai", "MARKOV\n1\n2\n1\n0\n1\n0\n", "line 7.*forbids every labelling"),
        ("a.txt", UAI, "format="),
    ],
)
def test_broken_files_are_refused_with_their_line(tmp_path, name, text, problem):
    file = tmp_path / name
    file.write_bytes(b"no archive" if text is None else text.encode())
    with pytest.raises(FormatError, match=f"a.*{problem}"):
        read_mrf(file)


def test_broken_evidence_labellings_and_options_are_refused(write):
    mrf = read_mrf(write("a.uai", UAI))
    for text in ("2 0 1", "3\n1 0 1", "2 0 1 0 0"):
        with pytest.raises(FormatError):
            read_evidence(write("a.evid", text))
    for text in ("2 0 1", "MAP\n3 0 1 1", "MAP\n2 0 3", "MAP\n2 0", "MAP\n2 0 1 1"):
        with pytest.raises(FormatError):
            read_labelling(write("a.MAP", text), mrf)
    assert read_labelling(write("a.MAP", "MAP\n2 1 2"), mrf).tolist() == [1, 2]
    with pytest.raises(OptionError, match="log"):
        read_mrf(write("a.wcsp", WCSP), log=True)
    with pytest.raises(OptionError, match="format"):
        read_mrf(write("a.uai", UAI), format="xml")


@pytest.mark.parametrize(
    ("file", "energy"),
    [
        ("grids_wrap20/Grids_26", -3051.0128),
        ("grids_wrap20/Grids_29", -1542.6647),
        ("multilabel/Segmentation_11", 316.8641),
        ("multilabel/wcsp_15", 331.5723),
    ],
)
def test_energies_of_reference_labellings(shared_qpbo, file, energy):
    mrf = read_mrf(shared_qpbo / "mrf" / f"{file}.uai")
    labels = read_labelling(shared_qpbo / "mrf" / f"{file}.uai.MAP", mrf)
    assert mrf.energy(labels) == pytest.approx(energy, abs=1e-4)


def test_larger_factors_from_a_compressed_file(shared_qpbo):
    mrf = read_mrf(shared_qpbo / "toulbar2" / "GeomSurf-7-gm256.uai.xz")
    assert (mrf.n, int(mrf.counts.max()), len(mrf.factors), mrf.order) == (787, 7, 3527, 3)
    assert sum(len(scope) == 3 for scope, _ in mrf.factors) == 560
