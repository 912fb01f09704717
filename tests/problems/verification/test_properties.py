import gzip
import math
import operator
import re
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklp.errors import FormatError, ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.problems.verification.balls import Ball
from blocklp.problems.verification.properties import Clause, Property
from blocklp.problems.verification.vnnlib_reader import read_property

COMPARE = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
HEAD = "(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
BOX = "(assert (<= X_0 1))\n(assert (>= X_0 -1))\n"
NETWORK = "(declare-network N (declare-input X float32 [1,2]) (declare-output Y float32 [2]))\n"


@pytest.fixture(scope="session")
def shared_verification():
    folder = Path(__file__).parents[4] / "shared" / "data" / "verification"
    if not folder.is_dir():
        pytest.skip(f"the instance folder {folder} is absent")
    return folder


@pytest.fixture
def read(tmp_path):
    def read_text(text, **asked):
        path = tmp_path / "case.vnnlib"
        path.write_text(text)
        return read_property(path, **asked)

    return read_text


def assertions(text):
    """The assertions of a version 1 file as nested lists, by another way than the reader's."""
    words = re.sub(";.*", "", text).replace("(", " ( ").replace(")", " ) ").split()
    source = " ".join("[" if w == "(" else "]," if w == ")" else f"{w!r}," for w in words)
    return [command[1] for command in eval(f"[{source}]") if command[0] == "assert"]


def value(term, point):
    if isinstance(term, str):
        return point[term] if term in point else Fraction(term)
    values = [value(part, point) for part in term[1:]]
    if term[0] == "-":
        return -values[0] if len(values) == 1 else values[0] - sum(values[1:])
    return sum(values) if term[0] == "+" else math.prod(values)


def truth(formula, point):
    if formula[0] in ("and", "or"):
        return (all if formula[0] == "and" else any)(truth(part, point) for part in formula[1:])
    return COMPARE[formula[0]](value(formula[1], point), value(formula[2], point))


def named(x, y):
    """Exact values by name."""
    pairs = [(f"X_{i}", v) for i, v in enumerate(x)] + [(f"Y_{j}", v) for j, v in enumerate(y)]
    return {name: Fraction(float(v)) for name, v in pairs}


def as_version_2(text):
    """The same file in version 2, whose own package wants a point in every constant."""
    text = re.sub(";.*", "", text)
    inputs, outputs = (len(re.findall(f"declare-const {letter}_", text)) for letter in "XY")
    text = re.sub(r"([XY])_(\d+)", r"\1[\2]", re.sub(r"\(declare-const \S+ Real\)", "", text))
    network = f"(declare-network N (declare-input X float32 [{inputs}]) (declare-output Y float32 [{outputs}]))"
    return f"(vnnlib-version <2.0>){network}" + re.sub(r"(?<=\s)(-?\d+)(?=[\s)])", r"\1.0", text)


def test_conjunction_of_outputs_is_one_clause(read):
    prop = read(HEAD + BOX + "(assert (<= Y_0 Y_1)) (assert (> (+ (* 2 Y_0) 1.5 (- Y_1)) (- 3 Y_0 Y_0)))")
    assert (prop.inputs, prop.outputs, prop.name, prop.element_type, prop.network) == (1, 2, "case", "real", "N")
    (clause,) = prop.clauses
    assert (clause.lower, clause.upper) == (-1, 1)
    np.testing.assert_array_equal(clause.matrix, [[1, -1], [-4, 1]])
    np.testing.assert_array_equal(clause.right, [0, -1.5])
    np.testing.assert_array_equal(clause.strict, [False, True])
    arrays = (clause.lower, clause.upper, *clause.box, clause.matrix, clause.right, clause.strict)
    assert not any(array.flags.writeable for array in arrays)


def test_equality_is_two_rows_and_inequality_two_clauses(read):
    (clause,) = read(HEAD + BOX + "(assert (= Y_0 2))").clauses
    np.testing.assert_array_equal(clause.matrix, [[1, 0], [-1, 0]])
    np.testing.assert_array_equal(clause.right, [2, -2])
    below, above = read(HEAD + BOX + "(assert (!= Y_0 2))").clauses
    assert below.strict.all() and above.strict.all()
    assert (below.right, above.right) == (2, -2)


def test_disjunctions_multiply_and_equal_boxes_are_shared(read):
    sides = "(assert (or (<= X_0 -0.5) (and (>= X_0 0.5) (<= X_0 2))))"
    prop = read(HEAD + BOX + sides + "(assert (or (<= Y_0 0) (<= Y_1 0) (and (>= Y_0 5) (>= Y_1 5))))")
    assert [(c.lower[0], c.upper[0]) for c in prop.clauses] == 3 * [(-1, -0.5)] + 3 * [(0.5, 1)]
    assert len({id(c.lower) for c in prop.clauses}) == len({id(c.upper) for c in prop.clauses}) == 2
    assert [len(c.right) for c in prop.clauses] == [1, 1, 2, 1, 1, 2]


def test_version_2_flattens_tensors_in_c_order(read):
    text = """(vnnlib-version <2.0>) ; a comment (
    (declare-network acc (declare-input A Float32 [2, 3]) (declare-output B Float32 []))
    (assert (and (<= B 1e-1) (== A[1,2] 7.0)))"""
    bounds = [f"(assert (<= A [{i},{j}] {3 * i + j}.0)) (assert (>= A[{i}, {j}] 0))" for i, j in product(range(2), range(3))]
    with pytest.raises(FormatError, match=r"no value of input A\[1,2\] lies between"):
        read(text + "".join(bounds))
    prop = read(text.replace("7.0", "5.0") + "".join(bounds), inputs=6, outputs=1)
    np.testing.assert_array_equal(prop.clauses[0].upper, range(6))
    np.testing.assert_array_equal(prop.clauses[0].lower, [0, 0, 0, 0, 0, 5])
    assert (prop.element_type, prop.network, prop.outputs) == ("float32", "acc", 1)


def test_decimals_are_rounded_outwards(read):
    numbers = ["0.1", "-0.1", "0.3", "1e-3", "2.5E+2", "1", "-.7", "0.43686676025390625", "1e-330", "-0.0", "5.", "0.0e999"]
    for text in numbers:
        body = f"(assert (= X_0 {text})) (assert (= Y_0 {text}))"
        (clause,) = read(HEAD + body).clauses
        stated, lower, upper = Fraction(text), Fraction(clause.lower[0]), Fraction(clause.upper[0])
        assert lower <= stated <= upper
        assert math.nextafter(clause.lower[0], math.inf) >= clause.upper[0]
        if Fraction(float(text)) == stated:
            assert lower == upper
        assert -Fraction(clause.right[1]) <= stated <= Fraction(clause.right[0])


def test_a_counterexample_satisfies_the_decimals_of_the_file(read):
    """Points around each number satisfy the property exactly if they satisfy the text in rational arithmetic."""
    numbers = ["0.1", "-0.1", "0.30353115737438202", "1e-3", "0.5", "0.43686676025390625", "1e-330", "-7e22", "0.0"]
    for text, comparison in product(numbers, ("<=", "<", ">=", ">")):
        stated, near = Fraction(text), float(text)
        above = {"<=": lambda v, s=stated: v <= s, "<": lambda v, s=stated: v < s}
        above |= {">=": lambda v, s=stated: v >= s, ">": lambda v, s=stated: v > s}
        wide = "(assert (>= X_0 -1e30))" if comparison in ("<=", "<") else "(assert (<= X_0 1e30))"
        inputs = read(HEAD + wide + f"(assert ({comparison} X_0 {text})) (assert (<= Y_0 0))")
        outputs = read(HEAD + BOX + f"(assert ({comparison} (* 0.1 Y_0) (* 0.1 {text})))")
        for value in (near, math.nextafter(near, math.inf), math.nextafter(near, -math.inf)):
            truth = above[comparison](Fraction(value))
            assert (inputs.violated([value], [0, 0]) == 0) is truth, (text, comparison, value)
            assert (outputs.violated([0], [value, 0]) == 0) is truth, (text, comparison, value)
        # What is proved is proved of a box that contains the stated one.
        (clause,) = inputs.clauses
        assert (clause.lower <= clause.box[0]).all() and (clause.box[1] <= clause.upper).all()
        assert Fraction(clause.lower[0]) <= max(stated, Fraction(-(10**30))) and Fraction(clause.upper[0]) >= min(
            stated, Fraction(10**30)
        )


def test_alternative_is_dropped_only_if_its_box_is_certainly_empty(read):
    def boxes(*alternatives):
        return len(read(HEAD + BOX + f"(assert (<= Y_0 0)) (assert (or (<= X_0 0) {' '.join(alternatives)}))").clauses)

    # The two decimals are the same float64 number.
    assert boxes("(and (>= X_0 0.50000000000000000001) (<= X_0 0.5))") == 1
    assert boxes("(and (<= X_0 0.50000000000000000001) (>= X_0 0.5))") == 2
    assert boxes("(and (< X_0 0.5) (>= X_0 0.5))") == boxes("(and (> X_0 0.5) (<= X_0 0.5))") == boxes("(> X_0 1)") == 1
    assert boxes("(and (<= X_0 0.5) (>= X_0 0.5))") == boxes("(>= X_0 1)") == 2
    assert boxes("(<= 1 0)", "(< X_0 X_0)") == 1


def test_comparisons_of_constants_are_decided(read):
    (clause,) = read(HEAD + BOX + "(assert (and (<= 1 2) (<= (* 0 X_0 Y_0) 0) (<= (- Y_0 Y_0) (- (- 1))) (<= Y_1 0)))").clauses
    np.testing.assert_array_equal(clause.matrix, [[0, 1]])
    assert len(read(HEAD + BOX + "(assert (or (< 2 2) (<= Y_0 0) (<= Y_1 0)))").clauses) == 2


def test_gzip_data_are_known_by_their_bytes(tmp_path):
    text = (HEAD + BOX + "(assert (<= Y_0 0))").encode()
    for name, data in (("a.vnnlib", text), ("b.vnnlib", gzip.compress(text)), ("c.vnnlib.gz", gzip.compress(text))):
        (tmp_path / name).write_bytes(data)
        assert read_property(tmp_path / name).name == name[0]


def test_damaged_and_missing_files(tmp_path):
    path = tmp_path / "case.vnnlib"
    with pytest.raises(FileNotFoundError, match=r"case\.vnnlib"):
        read_property(path)
    path.write_bytes(gzip.compress((HEAD * 20).encode())[:-12])
    with pytest.raises(FormatError, match="damaged gzip"):
        read_property(path)
    path.write_bytes(b"(assert \xff)")
    with pytest.raises(FormatError, match=r"case\.vnnlib is not text"):
        read_property(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file is empty"),
        ("; nothing\n", "file is empty"),
        ("(assert (<= X_0 1)", r"line 4 .*unbalanced '\('"),
        ("(assert (<= X_0 1))\n)", r"line 5 .*unbalanced '\)'"),
        ("X_0", "line 4 .*'X_0' stands outside"),
        ("(" * 300 + ")" * 300, "line 4 .*nested parentheses"),
        ("(assert (<= X_1 1))", "line 4 .*'X_1' is neither a declared variable nor a number"),
        ("\n(assert (or (<= Y_0 1)\n (<= Z 1)))", "line 6 .*'Z' is neither"),
        ("(assert (<= X_0 nan))", "line 4 .*nan is not a finite number"),
        ("(assert (<= X_0 -inf))", "line 4 .*-inf is not a finite"),
        ("(assert (<= X_0 1e999))", "line 4 .*1e999 is beyond the range"),
        ("(assert (<= X_0 1e-9999999))", "line 4 .*1e-9999999 is beyond the range"),
        ("(assert (<= X_0 1_0))", "line 4 .*'1_0' is not a number"),
        ("(assert (<= X_0 -Y_0))", "line 4 .*'-Y_0' is not a number"),
        ("(assert (<= (/ X_0 2) 1))", "line 4 .*unsupported: '/' as arithmetic"),
        ("(assert (<= (* Y_0 Y_1) 1))", "line 4 .*unsupported: a product of variables"),
        ("(assert (<= (+) 1))", r"line 4 .*unsupported: '\+'"),
        ("(assert (<= () 1))", "line 4 .*unsupported: 'this'"),
        ("(assert (not (<= X_0 1)))", "line 4 .*unsupported: 'not' as a formula"),
        ("(assert (<= X_0 Y_0))", "line 4 .*unsupported: a constraint between inputs and outputs"),
        ("(declare-const X_1 Real)(assert (<= X_0 X_1))", "line 4 .*unsupported: a constraint between several inputs"),
        ("(assert (<= -1 X_0 1))", "line 4 .*compares two terms and has 3"),
        ("(assert (or))", "line 4 .*an empty 'or'"),
        ("(assert (or true (<= X_0 1)))", "line 4 .*unknown symbol 'true'"),
        ("(assert true)", "line 4 .*an assertion holds one comparison"),
        ("(check-sat)", "line 4 .*command 'check-sat'"),
        ("()", "line 4 .*command ''"),
        ("(declare-const X_0 Real)", "line 4 .*X_0 is declared twice"),
        ("(declare-const X_1 Int)", "line 4 .*unsupported: this declaration"),
        ("(declare-const Z_1 Real)", "line 4 .*unsupported: this declaration"),
        (NETWORK, "line 4 .*declared in version 2 only"),
        (BOX, "nothing is asserted about the outputs"),
        (BOX + "(assert (or (<= Y_0 1) (<= X_0 0)))", "nothing is asserted about the outputs, at least in one"),
        (BOX + "(assert (<= 0 Y_0)) (assert (<= 1 0))", "false rule out any counterexample"),
        ("(assert (<= 0 1))", "nothing is asserted about X and Y"),
        ("(assert (<= X_0 1)) (assert (<= Y_0 1))", "input X_0 has no lower bound"),
        ("(assert (>= X_0 1)) (assert (<= Y_0 1))", "input X_0 has no upper bound"),
        (BOX + "(assert (>= X_0 2)) (assert (<= Y_0 1))", r"empty in every alternative: .* X_0 .* 2\.0 .* 1\.0"),
        (BOX + "(assert (or (< X_0 -1) (>= X_0 3))) (assert (<= Y_0 1))", r"empty in every alternative: .*X_0 .* 3\.0 .* 1\.0"),
        ("(declare-const X_2 Real)" + BOX + "(assert (<= Y_0 1))", "input X_1 is not declared"),
        ("(declare-const X_999999999 Real)" + BOX + "(assert (<= Y_0 1))", "input X_1 is not declared"),
        ("(declare-const Y_999999999 Real)" + BOX + "(assert (<= Y_0 1))", "numbers after expansion"),
        ("(assert (<= (* 1e300 1e300 X_0) 1e300))" + BOX + "(assert (<= (* 1e300 1e300 Y_0) 1))", "arithmetic on constants"),
        (BOX + "(assert (<= (* 1e-300 1e-300 Y_0) 1))", "arithmetic on constants"),
        (BOX + "(assert (<= Y_0 (* 1e300 1e300)))", "arithmetic on constants"),
    ],
)
def test_faulty_file_is_refused(read, text, message):
    head = "" if not text or text[0] == ";" else HEAD
    with pytest.raises(FormatError, match=message) as caught:
        read(head + text)
    assert "case.vnnlib" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NETWORK + "(assert (<= X[0] 1))", r"line 3 .*X\[0\] is outside of the declared shape \[1, 2\]"),
        (NETWORK + "(assert (<= X[0,2] 1))", r"line 3 .*X\[0,2\] is outside"),
        (NETWORK + "(assert (<= X 1))", "line 3 .*X is outside"),
        (NETWORK + "(assert (<= X[0,-1] 1))", r"line 3 .*\[0,-1\] is not a list of whole numbers"),
        (NETWORK + "(assert (<= X[0 1] 1))", r"line 3 .*\[0 1\] is not a list of whole numbers"),
        (NETWORK + "(assert (<= Z[0] 1))", r"line 3 .*'Z\[0\]' is neither"),
        (NETWORK + "(assert (<= X[0,1] 1)) (assert (<= Y[0] 1))", r"input X\[0,0\] has no lower bound"),
        (NETWORK + NETWORK, "line 3 .*unsupported: several networks"),
        (NETWORK.replace("(declare-input", "(equal-to M) (declare-input"), "line 2 .*unsupported: equal-to"),
        (NETWORK.replace("(declare-input", "(isomorphic-to M) (declare-input"), "line 2 .*unsupported: isomorphic-to"),
        (NETWORK.replace("(declare-output", '(declare-hidden H real [1] "a;b)") (declare-output'), "unsupported: declare-hidden"),
        (NETWORK.replace("Y float32", "Y float64"), "unsupported: input and output of different"),
        (NETWORK.replace("float32", "int8"), "unsupported: element type int8"),
        (NETWORK.replace("[1,2]", "[1,2] initialized"), "unsupported: an initialized input"),
        (NETWORK.replace("[1,2]", "[1,0]"), "is empty or too large"),
        (NETWORK.replace("[1,2]", "2"), "not a declaration of a tensor"),
        (NETWORK.replace("Y float32", "X float32"), "share a name"),
        (NETWORK.replace("(declare-output Y float32 [2])", ""), "unsupported: a network with other than one input"),
        (NETWORK.replace("(declare-input", "oops (declare-input"), "unknown symbol 'oops'"),
        ("(declare-network (declare-input X real [1]))", "a network has a name"),
        ("(declare-const X_0 Real)", "command 'declare-const' of version 2"),
        ("(assert (<= X[0] 1))", r"'X\[0\]' is neither"),
    ],
)
def test_faulty_version_2_file_is_refused(read, text, message):
    with pytest.raises(FormatError, match=message):
        read("(vnnlib-version <2.0>)\n" + text)


def test_other_versions_are_refused(read):
    for version in ("<3.0>", "2.0", "<2.0> <2.0>"):
        with pytest.raises(FormatError, match=r"line 1 .*unsupported: this version"):
            read(f"(vnnlib-version {version})\n" + NETWORK)


def test_file_must_fit_the_network(read):
    text = HEAD + BOX + "(assert (<= Y_0 0))"
    assert read(text, inputs=1, outputs=5).outputs == 5
    with pytest.raises(FormatError, match="2 outputs are declared but the network has 1"):
        read(text, outputs=1)
    with pytest.raises(FormatError, match="1 inputs are declared but the network has 2"):
        read(text, inputs=2)
    with pytest.raises(FormatError, match="input X_1 is not declared"):
        read(text + "(declare-const X_2 Real)", inputs=3)
    with pytest.raises(FormatError, match="2 inputs are declared but the network has 1"):
        read(text + "(declare-const X_1 Real)", inputs=1)
    with pytest.raises(FormatError, match="2 inputs are declared but the network has 3"):
        read(f"(vnnlib-version <2.0>){NETWORK}(assert (<= Y[0] 0))", inputs=3)
    with pytest.raises(FormatError, match="no inputs are declared"):
        read("(declare-const Y_0 Real)(assert (<= Y_0 0))")


def test_expansion_is_limited(read):
    pairs = "(assert (or (<= Y_0 0) (<= Y_1 0)))"
    assert len(read(HEAD + BOX + 6 * pairs).clauses) == 64
    with pytest.raises(FormatError, match=f"{2**60} alternatives after expansion, above .*raise max_bytes"):
        read(HEAD + BOX + 60 * pairs)
    with pytest.raises(FormatError, match=r"about 2\^20000 alternatives"):
        read(HEAD + BOX + 20_000 * pairs)
    with pytest.raises(FormatError, match="64 alternatives after expansion, above 12;"):
        read(HEAD + BOX + 6 * pairs, max_bytes=100_000)


X_TERMS = st.sampled_from(["X_0", "X_1", "(- X_0)", "(* -2 X_1)", "(+ X_0 X_1 (- X_1))", "(- 1 X_1)", "(* (- 3 2.5) X_0)"])
Y_TERMS = st.sampled_from(["Y_0", "(- Y_1)", "(- Y_0 Y_1 0.5)", "(+ (* 0.5 Y_0) Y_1)", "(* 2 (- Y_1 (+ Y_0 1)))"])
NUMBERS = st.sampled_from(["-1", "-0.5", "0", "(- 0.5)", "1.0", "2e0", "(* 2 0.25 -1)"])
ATOMS = st.one_of(
    st.tuples(st.sampled_from(sorted(COMPARE)), left, right)
    for left, right in [(X_TERMS, NUMBERS), (NUMBERS, X_TERMS), (Y_TERMS, NUMBERS), (Y_TERMS, Y_TERMS), (NUMBERS, NUMBERS)]
).map(lambda parts: "({} {} {})".format(*parts))
FORMULAS = st.recursive(
    ATOMS,
    lambda parts: st.tuples(st.sampled_from(["and", "or"]), st.lists(parts, min_size=1, max_size=3)).map(
        lambda node: f"({node[0]} {' '.join(node[1])})"
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("version", [1, 2])
@settings(max_examples=150, deadline=None)
@given(formulas=st.lists(FORMULAS, min_size=1, max_size=3), data=st.data())
def test_clauses_agree_with_the_formula(tmp_path_factory, version, formulas, data):
    box = ["(<= X_0 2)", "(<= X_1 2)", "(>= X_0 -2)", "(>= X_1 -2)", "(<= Y_0 99)"]
    body = "\n".join(f"(assert {formula})" for formula in [*formulas, *box])
    text = "".join(f"(declare-const {name} Real)\n" for name in ("X_0", "X_1", "Y_0", "Y_1")) + body
    path = tmp_path_factory.mktemp("random") / "case.vnnlib"
    path.write_text(text if version == 1 else as_version_2(text))
    try:
        prop = read_property(path)
    except FormatError as error:
        assert re.search("empty in every alternative|rule out any counterexample", str(error))
        prop = None
    grid = st.integers(-5, 5).map(lambda k: k / 2)
    stated = assertions(text)
    # Boxes are closed, so that on the rim of a strict bound the clauses say more than the formula; nothing else differs.
    points = st.lists(st.tuples(grid, grid, grid, grid, st.sampled_from([0.0, 0.0625])), min_size=20, max_size=20)
    for a, b, c, d, shift in data.draw(points):
        x, y = (a + shift, b + shift), (c, d)
        point = named(x, y)
        expected = all(truth(formula, point) for formula in stated)
        found = prop is not None and not prop.holds_at(x, y)
        assert found == expected or (found and not shift)


def near(rng, prop, count):
    """Points in and around the boxes of some clauses, with outputs that often nearly meet their rows."""
    for _ in range(count):
        clause = prop.clauses[rng.integers(len(prop.clauses))]
        x = clause.lower + (clause.upper - clause.lower) * rng.uniform(0.01, 0.99, prop.inputs)
        if rng.random() < 0.2:
            x[rng.integers(prop.inputs)] += rng.choice([-3, 3])
        y = rng.normal(size=prop.outputs)
        for row, right in zip(clause.matrix, clause.right, strict=True):
            excess = max(row @ y - right, 0.0)
            y -= (excess + 0.01) * rng.choice([0.5, 1.5]) * row / (row @ row)
        yield x, y


FILES = [f"acasxu/specs/prop_{k}.vnnlib" for k in range(1, 11)]
FILES += [f"smoke/test_{name}.vnnlib" for name in ("nano", "tiny", "small", "prop")]
FILES += ["mnist_fc/specs/prop_0_0.03.vnnlib", "oval21/specs/cifar_base_kw-img590-eps0.03228758169934641.vnnlib"]
FILES += ["marabou-cifar10/specs/networkcifar10_small_index1783_eps0.024_target9_orig8.vnnlib"]


@pytest.mark.parametrize("name", FILES)
def test_shared_files_agree_with_an_evaluation_of_their_text(shared_verification, name):
    path, rng = shared_verification / name, np.random.default_rng(0)
    prop, formulas = read_property(path), assertions(path.read_text())
    verdicts = set()
    for x, y in near(rng, prop, 40 if prop.inputs < 10 else 6):
        point = named(x, y)
        expected = all(truth(formula, point) for formula in formulas)
        assert prop.holds_at(x, y) != expected
        verdicts.add(expected)
    assert prop.inputs > 10 or verdicts == {True, False}


# prop_6 is left out: vnnlib 1.0.2 does not multiply its disjunction of input boxes with that of the outputs.
@pytest.mark.parametrize("name", [name for name in FILES[:15] if "prop_6" not in name])
def test_shared_files_agree_with_the_vnnlib_package(shared_verification, read, name):
    vnnlib = pytest.importorskip("vnnlib")
    compat = pytest.importorskip("vnnlib.compat")
    path = shared_verification / name
    text = as_version_2(path.read_text())
    (case,) = compat.transform(vnnlib.parse_query_string(text))
    for prop in (read_property(path), read(text)):
        assert len({id(clause.lower) for clause in prop.clauses}) == 1
        box = np.stack([prop.clauses[0].lower, prop.clauses[0].upper], axis=1)
        np.testing.assert_allclose(box, case.input_box, rtol=3e-16, atol=0)
        assert len(prop.clauses) == len(case.output_constraints)
        for clause, polytope in zip(prop.clauses, case.output_constraints, strict=True):
            np.testing.assert_array_equal(clause.matrix, polytope.coeff_matrix)
            np.testing.assert_allclose(clause.right, polytope.rhs, rtol=3e-16, atol=0)


def test_shared_files_of_all_families_have_their_form(shared_verification):
    sizes = {
        "acasxu": (5, 5),
        "cifar10_resnet": (3072, 10),
        "marabou-cifar10": (3072, 10),
        "mnist_fc": (784, 10),
        "oval21": (3072, 10),
    }
    for family, (inputs, outputs) in sizes.items():
        for path in sorted((shared_verification / family / "specs").glob("*.vnnlib"))[:: 1 if inputs < 10 else 5]:
            prop = read_property(path, inputs, outputs)
            boxes = {id(clause.lower) for clause in prop.clauses}
            assert (prop.inputs, prop.outputs) == (inputs, outputs)
            assert len(boxes) == (2 if path.stem == "prop_6" else 1)
            if family in ("oval21", "mnist_fc", "cifar10_resnet"):
                assert len(prop.clauses) == 9
                label = {int(clause.matrix[0].argmax()) for clause in prop.clauses}
                expected = Property.robustness(prop.clauses[0].lower, prop.clauses[0].upper, label.pop(), 10)
                assert not label
                np.testing.assert_array_equal([c.matrix for c in prop.clauses], [c.matrix for c in expected.clauses])


def test_robustness_asks_for_a_margin_over_each_other_class():
    prop = Property.robustness([0, 0], [1, 1], label=1, classes=3, name="toy")
    assert (prop.inputs, prop.outputs, prop.name, len(prop.clauses)) == (2, 3, "toy", 2)
    assert prop.clauses[0].lower is prop.clauses[1].lower and prop.clauses[0].upper is prop.clauses[1].upper
    assert prop.holds_at([0, 1], [1, 2, 1.5])
    assert prop.violated([0, 1], [1, 2, 2]) == 1
    assert prop.violated([[0, 1]], [[2, 2, 3]]) == 0
    assert prop.holds_at([0, 2], [2, 2, 3])
    assert prop.violated([0, 1.25], [1, 1.25, 0], tolerance=0.25) == 0
    for label, classes in ((3, 3), (-1, 3), (0, 1)):
        with pytest.raises(ModelError, match="label is"):
            Property.robustness([0], [1], label, classes)


def test_strict_rows_exclude_their_rim():
    plain, strict = (Property.of([0], [1], [[1, -1]], [0], strict=mark) for mark in (False, [True]))
    assert plain.violated([0], [1, 1]) == 0 and strict.violated([0], [1, 1]) is None
    assert strict.violated([0], [1, 1], tolerance=0.1) == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_are_taken_and_copied(dtype):
    low, high, matrix, right = (torch.tensor(v, dtype=dtype) for v in ([0, 0.5], [1, 2], [[1, -1]], [0.25]))
    found = Property.of(low, high, matrix, right, strict=torch.tensor([True])).clauses[0]
    robust = Property.robustness(low, high, 0, 2)
    for tensor in (low, high, matrix, right):
        tensor.fill_(7)
    expected = Property.of([0, 0.5], [1, 2], [[1, -1]], [0.25], strict=[True]).clauses[0]
    assert all(np.array_equal(value, vars(expected)[name]) for name, value in vars(found).items())
    assert all(np.array_equal(getattr(robust.clauses[0], side), getattr(expected, side)) for side in ("lower", "upper"))
    assert robust.violated(torch.tensor([0.5, 1], dtype=dtype), torch.zeros(2, dtype=dtype)) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1], [0], [[1]], [0]), ModelError, r"the box is empty: lower\[0\] is 1.0"),
        (([math.nan], [0], [[1]], [0]), NonFiniteError, r"lower\[0\] is nan"),
        (([0], [math.inf], [[1]], [0]), NonFiniteError, r"upper\[0\] is inf"),
        (([0], [1], [[1, math.nan]], [0]), NonFiniteError, r"matrix\[0, 1\] is nan"),
        (([0], [1], [[1]], [math.nan]), NonFiniteError, r"right\[0\] is nan"),
        (([0, 0], [1], [[1]], [0]), ShapeError, "lower has shape"),
        (([], [], [[1]], [0]), ShapeError, "lower has shape"),
        (([[0]], [1], [[1]], [0]), ShapeError, "lower has shape"),
        (([0], [1], [1], [0]), ShapeError, "matrix has shape"),
        (([0], [1], [[]], [0]), ShapeError, "matrix has shape"),
        (([0], [1], [[1]], [0, 0]), ShapeError, "right has shape"),
        (([0], [1], [[1]], [0], [True, False]), ShapeError, r"strict \(2,\)"),
    ],
)
def test_wrong_arrays_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Property.of(*arguments)
    with pytest.raises(error, match=message):
        Clause(*arguments, *[False] * (len(arguments) == 4))


def test_a_clause_by_hand_takes_lists_and_keeps_what_is_read_only():
    one = Clause([0, 0], [1, 1], [[1, -1], [1, 0]], [0, 1], True)
    assert one.matrix.dtype == one.lower.dtype == np.float64 and one.strict.tolist() == [True, True]
    assert not any(array.flags.writeable for array in (one.lower, one.upper, one.matrix, one.right, one.strict))
    other = Clause(one.lower, one.upper, one.matrix, one.right, one.strict)
    assert all(getattr(other, name) is getattr(one, name) for name in ("lower", "upper", "matrix", "right", "strict"))
    assert Property([one, other]).violated([0.5, 0.5], [-1, 0]) == 0
    with pytest.raises(OptionError, match=r"ball is 0\.3; give a Ball"):
        Clause([0], [1], [[1]], [0], False, ball=0.3)
    with pytest.raises(ShapeError, match="the ball has 2 inputs and the box 1"):
        Clause([0], [1], [[1]], [0], False, ball=Ball.of([0, 0], 0.3))


@pytest.mark.parametrize(("label", "classes"), [(1.5, 10), (1, 2.5), ("1", 10), (None, 10)])
def test_a_label_that_is_no_whole_number_is_refused(label, classes):
    with pytest.raises(ModelError, match=r"label is .* classes; give whole numbers"):
        Property.robustness([0], [1], label, classes)


def test_a_message_quotes_the_form_and_not_the_start_of_a_long_line(read):
    line = " ".join(["(assert (<= Y_0 1))"] * 6) + " (assert (not (<= Y_1 0)))" + " (assert (<= Y_0 1))" * 6
    with pytest.raises(FormatError, match=r"line 6 \('\(not \(<= Y_1 0\)\)\) .*\.\.\.'\): unsupported: 'not' as a formula"):
        read(HEAD + BOX + line + "\n")


def test_clauses_must_fit_each_other_and_points_the_property():
    one, two = Property.of([0], [1], [[1]], [0]), Property.of([0, 0], [1, 1], [[1]], [0])
    assert len(Property(one.clauses + one.clauses).clauses) == 2
    with pytest.raises(ModelError, match="at least one clause"):
        Property(())
    with pytest.raises(ShapeError, match="clause 1 has 2 inputs and 1 outputs, and clause 0 1 and 1"):
        Property(one.clauses + two.clauses)
    with pytest.raises(ModelError, match=r"clauses\[1\] is .*; give a Clause; of a Property give its clauses"):
        Property((one.clauses[0], two))
    with pytest.raises(ModelError, match=r"clauses is .*; give a tuple of Clause"):
        Property(one)
    with pytest.raises(ShapeError, match="matrix has shape"):
        Property((Clause(np.zeros(1), np.ones(1), np.zeros((0, 2)), np.zeros(0), np.zeros(0, dtype=bool)),))
    with pytest.raises(ShapeError, match="x and y have 2 and 1 entries; give 1 and 1"):
        one.holds_at([0, 0], [0])
    with pytest.raises(NonFiniteError, match=r"y\[0\] is nan"):
        one.holds_at([0], [math.nan])
    for tolerance in (-1, math.nan, math.inf):
        with pytest.raises(OptionError, match="tolerance is"):
            one.holds_at([0], [0], tolerance)
