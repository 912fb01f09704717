"""The commands verify, supports and bounds, and the scripts of VNN-COMP."""

import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from concurrent.futures import Future
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from typer.testing import CliRunner

import blocklp as bl
from blocklp.campaigns import InProcess
from blocklp.errors import ProcessError
from blocklp.problems.command_line import verification as verification_commands
from blocklp.problems.command_line.app import app
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.verification import answers, batch, images
from blocklp.problems.verification.onnx_files import Runtime
from blocklp.problems.verification.onnx_operators import OPERATORS
from blocklp.problems.verification.onnx_reader import load_onnx, read_onnx
from blocklp.problems.verification.verdict import VerificationEvent
from blocklp.problems.verification.vnnlib_reader import read_property
from blocklp.search.best_first import SearchEvent

from .running import run

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "data" / "verification"

# y = |x0| + |x1|, so that 0 <= y <= 2 on the box [-1, 1]^2, and y0 is the first output, y1 = -y0 the second.
BOX = "".join(f"(declare-const X_{i} Real)\n(assert (>= X_{i} -1.0))\n(assert (<= X_{i} 1.0))\n" for i in range(2))
OUTPUTS = "(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
HOLDS = BOX + OUTPUTS + "(assert (>= Y_0 2.5))\n"
BROKEN = BOX + OUTPUTS + "(assert (>= Y_0 0.5))\n(assert (<= Y_1 -0.5))\n"
# Bounds and attack cannot tell: the maximum is at the corners, and the row asks for just that.
RIM = BOX + OUTPUTS + "(assert (>= Y_0 2.0))\n"


def second(kind="real", name="N", row="(>= score[0,0] 0.5)"):
    """Return a version 2 query about the same network."""
    bounds = "".join(f"(assert (and (>= point[0,{i}] -1.0) (<= point[0,{i}] 1.0)))\n" for i in range(2))
    declared = f"(declare-input point {kind} [1,2])\n(declare-output score {kind} [1,2])"
    return f"(vnnlib-version <2.0>)\n(declare-network {name}\n{declared})\n{bounds}(assert {row})\n"


def constants(**more):
    signs = np.array([[1, -1, 0, 0], [0, 0, 1, -1]], dtype=np.float32)
    sums = np.array([[1, -1]] * 4, dtype=np.float32)
    return {"signs": signs, "sums": sums} | more


def save(path, nodes=None, values=None, opset=15, shape=(1, 2)):
    nodes = nodes or [("MatMul", "x,signs", "a"), ("Relu", "a", "b"), ("MatMul", "b,sums", "y")]
    graph = helper.make_graph(
        [helper.make_node(op, inputs.split(","), [out], name=out) for op, inputs, out in nodes],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (values or constants()).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


@pytest.fixture
def net(tmp_path):
    return save(tmp_path / "net.onnx")


@pytest.fixture
def write(tmp_path):
    def make(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make


def assignment(stdout):
    """Return what follows the verdict: variables with type, shape and values."""
    first, *lines = stdout.splitlines()
    assert first == "sat"
    found = {}
    for line in lines:
        if " " in line:
            name, kind, dims = line.split(" ")
            values = []
            found[name] = (kind, [int(n) for n in dims[1:-1].split(",")], values)
        else:
            values.append(float(line))
    return found


def confirmed(found, net, query):
    """Whether a printed assignment is a counterexample: inside, and its outputs are those of the runtime."""
    (_, shape, x), (_, _, y) = found.values()
    assert np.prod(shape) == len(x)
    assert all(float(np.float32(value)) == value for value in x)
    assert np.array_equal(Runtime(net)(np.array(x, dtype=np.float32)), np.array(y, dtype=np.float32))
    return read_property(query, len(x), len(y)).violated(x, y) is not None


def test_help_shows_what_stands_in_brackets(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for name, command in typer.main.get_command(app).commands.items():
        shown = run(name, "--help").stdout
        for written in (command.help, *(getattr(param, "help", "") for param in command.params)):
            assert all(text in shown for text in re.findall(r"\[.+?\]", written)), written
    assert '"X real [1,5]"' in run("verify", "--help").stdout and "[0, 1]" in run("bounds", "--help").stdout


def test_unsat(net, write):
    shown = run("verify", write("a.vnnlib", HOLDS), "--network", f"N={net}", "--timeout", "60")
    assert shown.stdout == "unsat\n"
    assert len(shown.stderr.splitlines()) == 1 and "bound" in shown.stderr
    assert run("verify", write("a.vnnlib", HOLDS), "--network", net, "--quiet").stderr == ""


def test_sat_prints_what_the_runtime_computes(net, write):
    query = write("a.vnnlib", BROKEN)
    found = assignment(run("verify", query, "--network", net).stdout)
    assert [(name, kind, shape) for name, (kind, shape, _) in found.items()] == [("X", "real", [2]), ("Y", "real", [2])]
    assert confirmed(found, net, query)


def test_a_witness_satisfies_the_decimals_of_the_file(net, write):
    """The ends are decimals just inside of float32 numbers: rounded outwards, they would contain these."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        text, ends = OUTPUTS + "(assert (>= Y_0 0.01))", []
        for i in range(2):
            low, high = (Decimal(float(v)) for v in np.sort(np.float32(rng.uniform(0.1, 1, 2))))
            with localcontext(prec=18):
                inner = (low.next_plus() if (+low) <= low else +low), (high.next_minus() if (+high) >= high else +high)
            assert low < inner[0] < inner[1] < high and float(inner[0]) == low and float(inner[1]) == high
            text += f"(declare-const X_{i} Real)(assert (>= X_{i} {inner[0]}))(assert (<= X_{i} {inner[1]}))"
            ends.append(inner)
        query = write("a.vnnlib", text)
        (_, _, x), (_, _, y) = assignment(run("verify", query, "--network", net).stdout).values()
        assert all(Fraction(low) <= Fraction(v) <= Fraction(high) for v, (low, high) in zip(x, ends, strict=True))
        assert Fraction(y[0]) >= Fraction(1, 100)
    # A box without a float32 number has no counterexample that onnxruntime could be given.
    fixed = "".join(f"(declare-const X_{i} Real)(assert (= X_{i} 0.1))" for i in range(2))
    result = run("verify", write("b.vnnlib", OUTPUTS + fixed + "(assert (>= Y_0 0.01))"), "--network", net, "--timeout", "2", code=1)
    assert result.stdout == "unknown\n"


def test_what_is_claimed_is_said(net, write):
    for text, status, words in ((HOLDS, "unsat", "rounded outwards"), (BROKEN, "sat", "exactly as the query's decimals")):
        entry = json.loads(run("verify", write("a.vnnlib", text), "--network", net, "--json").stdout)
        assert entry["status"] == status and words in entry["claim"] and entry["claim"] in run("supports").stdout


@pytest.mark.parametrize("name", ["N", "other"])
def test_version_2_keeps_declared_names_and_shapes(net, write, name):
    query = write("a.vnnlib", "; (declare-input Z real [7])\n" + second(name=name))
    found = assignment(run("verify", query, "--network", f"{name}={net}").stdout)
    assert [(n, kind, shape) for n, (kind, shape, _) in found.items()] == [("point", "real", [1, 2]), ("score", "real", [1, 2])]
    assert confirmed(found, net, query)
    assert run("verify", write("b.vnnlib", second(row="(> score[0,0] 2.1)", name=name)), "--network", net).stdout == "unsat\n"


def test_zipped_files(net, tmp_path):
    for name, data in (("net.onnx.gz", net.read_bytes()), ("a.vnnlib.gz", second().encode())):
        (tmp_path / name).write_bytes(gzip.compress(data))
    found = assignment(run("verify", tmp_path / "a.vnnlib.gz", "--network", tmp_path / "net.onnx.gz").stdout)
    assert list(found) == ["point", "score"]


def refused(*arguments):
    """Return the message of an error, whose verdict is unknown."""
    result = run("verify", *arguments, code=2)
    assert result.stdout == "unknown\n"
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_queries_of_floats_need_consent(net, write, kind):
    query = write("a.vnnlib", second(kind))
    assert f"declares {kind}" in (message := refused(query, "--network", net)) and "--real-semantics" in message
    found = assignment(run("verify", query, "--network", net, "--real-semantics").stdout)
    assert [kind for kind, _, _ in found.values()] == [kind, kind]


def test_a_query_of_float32_has_a_verdict_on_float32(net, write):
    found = assignment(run("verify", query := write("a.vnnlib", second("float32")), "--network", net).stdout)
    assert [kind for kind, _, _ in found.values()] == ["float32", "float32"] and confirmed(found, net, query)
    holds = write("b.vnnlib", second("float32", row="(> score[0,0] 2.1)"))
    entry = json.loads(run("verify", holds, "--network", net, "--json").stdout)
    assert entry["status"] == "unsat" and entry["claim"].startswith("No counterexample exists in float32")
    rows = write("c.vnnlib", second("float32", row="(> (+ score[0,0] score[0,1]) 2.1)"))
    assert "arithmetic in float32" in refused(rows, "--network", net)


def test_networks_must_be_those_of_the_query(net, write):
    query = write("a.vnnlib", second(name="f"))
    assert "0 networks are given" in refused(query)
    assert "2 networks are given" in refused(query, "--network", net, "--network", f"f={net}")
    assert "'g'" in (message := refused(query, "--network", f"g={net}")) and "about f" in message


def test_a_path_may_hold_an_equals_sign(tmp_path, write):
    net = save(tmp_path / "eps=0.1.onnx")
    for given in (net, f"N={net}"):
        assert run("verify", write("a.vnnlib", HOLDS), "--network", given).stdout == "unsat\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: (p / "net.onnx").write_bytes(b"\x08\x07 no protobuf"), "net.onnx"),
        (lambda p: (p / "net.onnx").write_bytes((p / "net.onnx").read_bytes()[:70]), "net.onnx"),
        (lambda p: (p / "net.onnx").unlink(), "net.onnx: No such file"),
        (lambda p: (p / "a.vnnlib").unlink(), "a.vnnlib: No such file"),
        (lambda p: (p / "a.vnnlib").write_bytes(b"\x1f\x8b cut"), "damaged gzip data"),
        (lambda p: (p / "a.vnnlib").write_text(HOLDS[:-5]), "unbalanced '('"),
        (lambda p: (p / "a.vnnlib").write_text(HOLDS.replace(" 1.0", " -2.0")), "empty"),
        (lambda p: save(p / "net.onnx", values=constants(sums=np.full((4, 2), np.nan, dtype=np.float32))), "nan"),
        (lambda p: save(p / "net.onnx", [("Sin", "x", "y")]), "operator Sin"),
        (lambda p: save(p / "net.onnx", [("Relu", "x", "y")], shape=(1, 1)), "the network has 1"),
    ],
    ids=["noise", "cut", "no network", "no query", "gzip", "parenthesis", "empty box", "nan", "operator", "size"],
)
def test_errors_say_unknown_and_what_is_wrong(net, write, tmp_path, make, message):
    query = write("a.vnnlib", HOLDS)
    make(tmp_path)
    assert message.lower() in refused(query, "--network", net).lower()
    entry = json.loads(run("verify", query, "--network", net, "--json", code=2).stdout)
    assert entry["status"] == "unknown" and message.lower() in entry["reason"].lower()


def test_a_bug_says_unknown_and_shows_its_trace(net, write, monkeypatch):
    def fail(*given, **options):
        raise TypeError("a bug")

    monkeypatch.setattr(answers, "verify", fail)
    result = run("verify", write("a.vnnlib", HOLDS), "--network", net, code=2)
    assert result.stdout == "unknown\n" and "Traceback" in result.stderr and "error: a bug" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("a.vnnlib", "--timeout", "0"),
        ("a.vnnlib", "--timeout", "nan"),
        ("a.vnnlib", "--instances", "i.csv", "--results", "o.csv"),
        ("--instances", "i.csv"),
        ("a.vnnlib", "--workers", "0"),
        ("a.vnnlib", "--results", "o.csv"),
        ("a.vnnlib", "--expected", "e.csv"),
        ("--instances", "i.csv", "--results", "o.csv", "--network", "n.onnx"),
        ("a.vnnlib", "--threads", "0"),
    ],
)
def test_wrong_options_print_nothing(arguments):
    result = run("verify", *arguments, code=2)
    assert result.stdout == "" and "Invalid value" in result.stderr


def test_no_attack_is_never_sat(net, write):
    query = write("a.vnnlib", BROKEN)
    result = CliRunner().invoke(app, ["verify", str(query), "--network", str(net), "--no-attack", "--timeout", "3"])
    assert (result.stdout, result.exit_code) in (("unknown\n", 1), ("timed-out\n", 3))


def test_undecided_is_unknown_or_timed_out(net, write):
    query = write("a.vnnlib", RIM.replace("2.0", "2.000000001"))
    result = CliRunner().invoke(app, ["verify", str(query), "--network", str(net), "--timeout", "2"])
    assert (result.stdout, result.exit_code) in (("unknown\n", 1), ("timed-out\n", 3), ("unsat\n", 0))


def test_time_that_is_up_before_the_start(net, write):
    result = run("verify", write("a.vnnlib", BROKEN), "--network", net, "--timeout", "1e-6", code=3)
    assert result.stdout == "timed-out\n"


@pytest.mark.parametrize("phase", ["reading", "attack", "search"])
def test_interrupt_says_unknown(net, write, monkeypatch, phase):
    def interrupt(self, progress):
        if progress.phase == phase:
            raise KeyboardInterrupt

    monkeypatch.setattr(answers.Watch, "__call__", interrupt)
    query = write("a.vnnlib", HOLDS.replace("2.5", "2.0001"))
    assert run("verify", query, "--network", net, code=130).stdout == "unknown\n"
    assert json.loads(run("verify", query, "--network", net, "--json", code=130).stdout)["status"] == "unknown"


def test_json(net, write):
    query = write("a.vnnlib", second())
    entry = json.loads(run("verify", query, "--network", net, "--json").stdout, parse_constant=pytest.fail)
    assert (entry["status"], entry["query"], entry["network"], entry["version"]) == ("sat", str(query), str(net), bl.__version__)
    assert entry["bound"] is None and entry["nodes"] >= 0 and 0 < entry["load_seconds"] <= entry["seconds"]
    found = {name: (v["type"], v["shape"], v["values"]) for name, v in entry["assignment"].items()}
    assert confirmed(found, net, query)
    entry = json.loads(run("verify", write("b.vnnlib", HOLDS), "--network", net, "--json").stdout)
    assert entry["status"] == "unsat" and 0 < entry["bound"] <= 0.5 and entry["assignment"] == {}


def test_serialised_assignments(net, write, tmp_path):
    folder, query = tmp_path / "deep" / "out", write("a.vnnlib", second())
    assert run("verify", query, "--network", net, "--serialise-assignments", folder).stdout == "sat\n"
    assert sorted(path.name for path in folder.iterdir()) == ["point.pb", "score.pb"]
    x, y = (numpy_helper.to_array(TensorProto.FromString((folder / f"{name}.pb").read_bytes())) for name in ("point", "score"))
    assert x.shape == y.shape == (1, 2) and x.dtype == y.dtype == np.float32
    assert np.array_equal(Runtime(net)(x.ravel()), y.ravel()) and read_property(query).violated(x, y) is not None


def test_result_file_of_the_competition(net, write, tmp_path):
    query, file = write("a.vnnlib", BROKEN), tmp_path / "result.txt"
    run("verify", query, "--network", net, "--result-file", file)
    verdict, rest = file.read_text().split("\n", 1)
    values = [part.split() for part in rest.strip()[1:-1].replace("(", "").split(")") if part.strip()]
    assert verdict == "sat" and [name for name, _ in values] == ["X_0", "X_1", "Y_0", "Y_1"]
    numbers = [float(value) for _, value in values]
    assert read_property(query).violated(numbers[:2], numbers[2:]) is not None
    for text, options, code, expected in (
        (HOLDS, (), 0, "unsat"),
        (BROKEN, ("--timeout", "1e-6"), 3, "timeout"),
        (BOX, (), 2, "unknown"),
    ):
        run("verify", write("b.vnnlib", text), "--network", net, "--result-file", file, *options, code=code)
        assert file.read_text() == f"{expected}\n"


def test_places_are_tried_before_the_search(net, write, tmp_path, monkeypatch):
    """No verdict is found that has no place."""
    monkeypatch.setattr(answers, "verify", lambda *given, **options: pytest.fail("searched"))
    query, file = write("a.vnnlib", BROKEN), write("file", "kept")
    for options in (("--result-file", tmp_path / "none" / "out.txt"), ("--serialise-assignments", file), ("--result-file", tmp_path)):
        result = run("verify", query, "--network", net, *options, code=2)
        assert result.stdout == "unknown\n" and str(options[1]) in result.stderr and "Traceback" not in result.stderr
    listed = write("i.csv", "net.onnx,a.vnnlib,60\n")
    out = write("out-witnesses", "a file where the folder of counterexamples would be").with_name("out.csv")
    assert "out-witnesses" in run("verify", "--instances", listed, "--results", out, code=2).stderr
    assert not out.exists() and file.read_text() == "kept" and not (tmp_path / "none").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_verdict_is_printed_before_it_is_written(net, write, tmp_path, monkeypatch):
    query = write("a.vnnlib", BROKEN)
    result = run("verify", query, "--network", net, "--result-file", "/dev/full", code=2)
    assert confirmed(assignment(result.stdout), net, query)
    assert "error: No space left on device" in result.stderr and "Traceback" not in result.stderr
    listed = write("i.csv", "net.onnx,a.vnnlib,60\nnet.onnx,holds.vnnlib,60\n")
    write("holds.vnnlib", HOLDS)
    (tmp_path / "out.csv").symlink_to("/dev/full")
    result = run("verify", "--instances", listed, "--results", tmp_path / "out.csv", code=2)
    assert result.stderr == "error: No space left on device\n" and result.stdout == ""  # before the first instance

    def filling(self, line):
        if "sat" in line:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(batch.Records, "append", filling)
    result = run("verify", "--instances", listed, "--results", tmp_path / "other.csv", "--json", code=2)
    assert "a.vnnlib: sat" in result.stderr and "other.csv: No space left" in result.stderr and "Traceback" not in result.stderr
    assert [entry["status"] for entry in json.loads(result.stdout)] == ["sat"]


def test_a_verdict_outlives_its_witness(net, write, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(28, "No space left on device", "witness.txt")

    monkeypatch.setattr(batch, "_write_witness", full)
    write("a.vnnlib", BROKEN)
    write("b.vnnlib", HOLDS)
    listed = write("i.csv", "net.onnx,a.vnnlib,60\nnet.onnx,b.vnnlib,60\n")
    result = run("verify", "--instances", listed, "--results", tmp_path / "out.csv", code=2)
    assert [(row["status"], row["witness"]) for row in table(tmp_path / "out.csv")] == [("sat", ""), ("unsat", "")]
    assert "error: witness.txt: No space left on device" in result.stderr


def test_threads_are_set(net, write, monkeypatch):
    seen = []
    monkeypatch.setattr("torch.set_num_threads", seen.append)
    run("verify", write("a.vnnlib", HOLDS), "--network", net, "--threads", "3")
    assert seen == [3]


@pytest.mark.parametrize("text", [HOLDS, BROKEN])
def test_a_device_gives_the_same(net, write, text, device):
    query = write("a.vnnlib", text)
    here, there = (run("verify", query, "--network", net, "--device", place).stdout.split()[0] for place in ("cpu", device))
    assert there == here in ("sat", "unsat")


def test_bounds_on_a_device(net, tmp_path, device):
    np.save(tmp_path / "x.npy", np.array([0.2, 0.6]))
    given = ("bounds", net, "--image", tmp_path / "x.npy", "--eps", "0.1", "--json")
    here, there = (json.loads(run(*given, "--device", place).stdout)["layers"] for place in ("cpu", device))
    assert all(a["lower"] == pytest.approx(b["lower"]) for a, b in zip(there, here, strict=True))


def test_a_device_that_is_missing_is_an_error(net, write):
    shown = run("verify", write("a.vnnlib", HOLDS), "--network", net, "--device", "cuda:77", code=2)
    assert shown.stdout == "unknown\n" and "not available" in shown.stderr


def test_live_line():
    event = SearchEvent(nodes=12, open=3, bound=-0.25, incumbent=float("inf"), seconds=1.0)
    line = answers.describe(VerificationEvent("search", 2.5, event), "1/9 a", 7.2)
    assert line == "1/9 a | search | 12 nodes | 3 open | bound -0.25 | 2.5 s | 7 s left"
    assert answers.describe(VerificationEvent("attack", 0.04), "", float("inf")) == "attack | 0.0 s"
    terminal = io.StringIO()
    with answers.Watch(console=Console(force_terminal=True, file=terminal, width=80), interval=3600.0) as watch:
        watch.begin("a", bl.Deadline(5))
        watch(VerificationEvent("search", 2.5, event))  # too soon
        watch(VerificationEvent("attack", 2.5))
    drawn = terminal.getvalue()
    assert "a | reading" in drawn and "a | attack" in drawn and "nodes" not in drawn
    with answers.Watch(quiet=True, console=Console(force_terminal=True, file=io.StringIO())) as watch:
        assert repr(watch) == "Watch, not shown"


@pytest.mark.parametrize("spec", ["test_nano", "test_tiny", "test_small"])
def test_smoke_instances(spec):
    if not SHARED.is_dir():
        pytest.skip(f"the folder {SHARED} is absent")
    smoke = SHARED / "smoke"
    assert run("verify", smoke / f"{spec}.vnnlib", "--network", f"N={smoke / spec}.onnx").stdout == "unsat\n"


def test_streams_are_apart_and_start_up_counts(net, write):
    command = [sys.executable, "-m", "blocklp", "verify", write("a.vnnlib", HOLDS), "--network", net]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout == "unsat\n" and result.stderr.count("\n") == 1
    result = subprocess.run([*command, "--timeout", "0.1"], capture_output=True, text=True, check=False, timeout=120)
    assert (result.stdout, result.returncode) == ("timed-out\n", 3)


# Capabilities


@pytest.mark.parametrize(
    ("option", "lines"),
    [
        ("--onnx-operators", sorted([*OPERATORS, "Constant"])),
        ("--onnx-element-types", ["real", "float32"]),
        ("--vnnlib-versions", ["1.0", "2.0"]),
        ("--hidden-node-theories", ["NH"]),
        ("--multiple-input-output-theories", ["SIO"]),
        ("--multiple-network-theories", ["SNET"]),
        ("--multiple-node-comparison-theories", ["SNC"]),
        ("--arithmetic-complexity-theories", ["BND", "OUTC"]),
        ("--optimised-disjunctive-reasoning", ["false"]),
        ("--serialise-assignments", ["true"]),
    ],
)
def test_supports(option, lines):
    assert run("supports", option).stdout.splitlines() == lines


def test_every_operator_set_that_is_claimed_is_read(tmp_path):
    lowest, highest = map(int, run("supports", "--onnx-opset-versions").stdout.split())
    nodes = [("MatMul", "x,signs", "a"), ("Relu", "a", "b"), ("Flatten", "b", "c"), ("Identity", "c", "d"), ("MatMul", "d,sums", "y")]
    for opset in range(lowest, highest + 1):
        assert read_onnx(save(tmp_path / f"{opset}.onnx", nodes, opset=opset)).outputs == 2


def test_constant_nodes_are_read(tmp_path):
    made = onnx.load(save(tmp_path / "net.onnx"))
    value = made.graph.initializer.pop()
    made.graph.node.insert(0, helper.make_node("Constant", [], [value.name], value=value))
    onnx.save(made, tmp_path / "net.onnx")
    assert read_onnx(tmp_path / "net.onnx").outputs == 2


def test_supports_explains_all_and_what_verdicts_claim():
    shown = run("supports").stdout
    assert all(text in shown for text in ("Conv", "SNET", "real-valued function", "onnxruntime"))


def test_a_family_is_printed_as_its_folder_is_called():
    shown = io.StringIO()
    rows = [batch.InstanceResult(f"{family}/a.onnx", "a.vnnlib", "unsat", 1.0) for family in ("[red]one", "two")]
    batch.show_score(rows, {}, Console(file=shown))
    assert "[red]one" in shown.getvalue()


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_supports_names_a_missing_package(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    for options in ((), ("--onnx-opset-versions",)):
        result = run("supports", *options, code=2)
        assert result.stdout == "" and result.stderr.count("\n") == 1 and f"{package}: pip install -e '.[verify]'" in result.stderr
    assert run("supports", "--vnnlib-versions").stdout == "1.0\n2.0\n"


def test_name_and_version():
    assert run("--name").stdout == "blocklp\n"
    assert run("--version").stdout == f"{bl.__version__}\n"


# Many instances


@pytest.fixture
def instances(net, write, tmp_path):
    """Four instances: unsat, sat, an error, and no time."""
    write("holds.vnnlib", HOLDS)
    write("broken.vnnlib", BROKEN)
    rows = ["net.onnx,holds.vnnlib,60", "./net.onnx,broken.vnnlib,60", "none.onnx,holds.vnnlib,60", "net.onnx,broken.vnnlib,1e-6"]
    return write("instances.csv", "\n".join(rows) + "\n")


def table(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_instances_are_recorded(instances, tmp_path):
    out = tmp_path / "out.csv"
    shown = run("verify", "--instances", instances, "--results", out, code=2)
    rows = table(out)
    assert tuple(rows[0]) == batch.COLUMNS
    assert [(row["onnx"], row["vnnlib"]) for row in rows] == [tuple(line.split(",")[:2]) for line in instances.read_text().split()]
    assert [row["status"] for row in rows[:2]] == ["unsat", "sat"] and rows[3]["status"] == "timed-out"
    assert rows[2]["status"] == f"error: {tmp_path / 'none.onnx'}: No such file or directory"
    assert all(float(row["seconds"]) >= 0 for row in rows) and 0 < float(rows[0]["bound"]) <= 0.5 and rows[1]["bound"] == ""
    assert (tmp_path / rows[1]["witness"]).read_text().startswith("sat\n((X_0 ") and rows[0]["witness"] == ""
    assert len(shown.stderr.splitlines()) == 4 and "undecided" in shown.stdout


def test_a_network_without_its_option_is_named(net, write):
    shown = run("verify", write("a.vnnlib", HOLDS), net, code=2)
    assert "--network" in shown.stderr and "is an option" in shown.stderr


def test_a_run_is_taken_up_again(instances, tmp_path, monkeypatch):
    out, done = tmp_path / "out.csv", []
    run("verify", "--instances", instances, "--results", out, "--quiet", code=2)
    whole = out.read_text()
    original = batch.answer

    def counted(path, *given):
        done.append(Path(path).name)
        return original(path, *given)

    monkeypatch.setattr(batch, "answer", counted)
    run("verify", "--instances", instances, "--results", out, "--quiet", code=2)
    assert done == [] and out.read_text() == whole
    # Killed while it wrote the second row: what is there of it goes, and three instances are left.
    lines = whole.splitlines(keepends=True)
    out.write_text("".join(lines[:2]) + lines[2][:20])
    run("verify", "--instances", instances, "--results", out, "--quiet", code=2)
    assert done == ["broken.vnnlib", "holds.vnnlib", "broken.vnnlib"]
    assert [row["status"][:5] for row in table(out)] == ["unsat", "sat", "error", "timed"]


@pytest.mark.slow
def test_workers_say_the_same(instances, tmp_path):
    out, other = tmp_path / "out.csv", tmp_path / "other.csv"
    run("verify", "--instances", instances, "--results", out, "--quiet", code=2)
    shown = run("verify", "--instances", instances, "--results", other, "--workers", "1", "--threads", "1", code=2)
    alone, together = (
        {(row["onnx"], row["vnnlib"]): (row["status"], row["bound"], row["witness"].rpartition("/")[2]) for row in table(file)}
        for file in (out, other)
    )
    assert together == alone and len(shown.stderr.splitlines()) == len(table(other)) == 4
    assert (tmp_path / "other-witnesses" / "net-broken.txt").read_text().startswith("sat")


def test_a_process_that_ends_is_an_error_of_its_instance(instances, tmp_path, monkeypatch):
    class Ended(InProcess):
        def submit(self, function, /, *arguments):
            answer = Future()
            answer.set_exception(ProcessError("the process of the task was ended by SIGSEGV"))
            return answer

    monkeypatch.setattr(verification_commands, "executor", lambda *given: Ended())
    run("verify", "--instances", instances, "--results", tmp_path / "out.csv", "--quiet", code=2)
    assert {row["status"] for row in table(tmp_path / "out.csv")} == {"error: the process of the task was ended by SIGSEGV"}


def test_an_interrupt_keeps_finished_rows(instances, tmp_path, monkeypatch):
    def interrupt(self, progress):
        if "broken" in self.title and progress.phase == "attack":
            raise KeyboardInterrupt

    monkeypatch.setattr(answers.Watch, "__call__", interrupt)
    out = tmp_path / "out.csv"
    run("verify", "--instances", instances, "--results", out, code=130)
    assert [row["status"] for row in table(out)] == ["unsat"]


def test_networks_are_read_once(net, write, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(answers, "load_onnx", lambda path, *given: read.append(path) or load_onnx(path, *given))
    for i in range(3):
        write(f"{i}.vnnlib", HOLDS)
    listed = write("i.csv", "".join(f"net.onnx,{i}.vnnlib,60\n" for i in range(3)))
    run("verify", "--instances", listed, "--results", tmp_path / "out.csv")
    assert len(read) == 1
    networks = answers.Networks()
    for i in range(answers.KEPT + 2):
        networks.get(save(tmp_path / f"{i}.onnx"), MAX_BYTES, bl.Deadline())
    assert len(networks.kept) == answers.KEPT and tmp_path / "0.onnx" not in networks.kept


def test_timeouts_are_capped(instances, tmp_path):
    out = tmp_path / "out.csv"
    run("verify", "--instances", instances, "--results", out, "--timeout", "1e-6")
    assert {row["status"] for row in table(out)} == {"timed-out"}


def test_comparison_with_known_results(instances, write, tmp_path):
    out = tmp_path / "out.csv"
    heading = "onnx,timeout,vnnlib,expected\n"
    right = write("right.csv", heading + "net.onnx,1,holds.vnnlib,unsat\n./net.onnx,1,broken.vnnlib,sat\n")
    shown = run("verify", "--instances", instances, "--results", out, "--expected", right, "--json", code=2)
    entries = json.loads(shown.stdout, parse_constant=pytest.fail)
    assert [entry["expected"] for entry in entries] == ["unsat", "sat", None, None]
    wrong = write(
        "wrong.csv", heading + "net.onnx,1,holds.vnnlib,sat\n./net.onnx,1,broken.vnnlib,sat\nnet.onnx,1,broken.vnnlib,sat\n"
    )
    shown = run("verify", "--instances", instances, "--results", out, "--expected", wrong, code=4)
    assert "wrong: net.onnx holds.vnnlib is sat, not unsat" in shown.stderr
    [numbers] = [line.split()[1:] for line in shown.stdout.splitlines() if line.split()[:1] == ["all"]]
    assert numbers[:7] == ["4", "1", "1", "1", "1", "0", "0"]


def test_rows_that_are_not_listed_are_no_mistakes():
    rows = [batch.InstanceResult("a", "b", status, 1.0) for status in ("sat", "unknown", "error: x")]
    found = batch.score(rows, {("a", "b"): "unknown"})
    assert (len(found.new), len(found.open), len(found.errors), len(found.right), len(found.wrong)) == (1, 1, 1, 0, 0)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("instances", "a.onnx,b.vnnlib\n", "line 1"),
        ("instances", "a.onnx,b.vnnlib,60\n\na.onnx,b.vnnlib,soon\n", "line 3"),
        ("instances", "a.onnx,b.vnnlib,-1\n", "positive"),
        ("results", "onnx,vnnlib,status\n", "its columns"),
        ("results", "no results\nand no end", "its columns"),
        ("results", ",".join(batch.COLUMNS) + "\na,b,sat\n", "damaged"),
        ("expected", "onnx,vnnlib\na,b\n", "columns onnx, vnnlib and expected"),
    ],
)
def test_damaged_tables(instances, write, tmp_path, name, text, message):
    files = {"instances": instances, "results": tmp_path / "out.csv", "expected": write("e.csv", "onnx,vnnlib,expected\n")}
    files[name] = write("bad.csv", text)
    result = run("verify", *(part for key, file in files.items() for part in (f"--{key}", file)), code=2)
    assert result.stdout == "" and message in result.stderr and (tmp_path / "bad.csv").read_text() == text


def test_zipped_instances(instances, net, tmp_path):
    net.with_name("net.onnx.gz").write_bytes(gzip.compress(net.read_bytes()))
    net.unlink()
    run("verify", "--instances", instances, "--results", tmp_path / "out.csv", code=2)
    assert [row["status"] for row in table(tmp_path / "out.csv")][:2] == ["unsat", "sat"]


# Bounds


@pytest.fixture
def seeing(tmp_path):
    """Return a network on images (3, 4, 4): a sum of channels with weights, a ReLU, three outputs."""
    generator = np.random.default_rng(3)
    values = {
        "k": generator.normal(size=(2, 3, 3, 3)).astype(np.float32),
        "shape": np.array([1, -1]),
        "w": generator.normal(size=(8, 3)).astype(np.float32),
    }
    nodes = [("Conv", "x,k", "a"), ("Relu", "a", "b"), ("Reshape", "b,shape", "c"), ("MatMul", "c,w", "y")]
    return save(tmp_path / "seeing.onnx", nodes, values, shape=(1, 3, 4, 4))


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(4).integers(0, 256, (4, 4, 3))
    (tmp_path / "photo.csv").write_text("".join(f"{label}," + ",".join(map(str, pixels.flatten())) + "\n" for label in (0, 2)))
    return tmp_path / "photo.csv"


def test_images_and_boxes(tmp_path, photo):
    matplotlib_image = pytest.importorskip("matplotlib.image")
    read = images.read_image(photo, 1)
    first = images.as_input(read, (3, 4, 4))
    assert read.label == 2
    whole = (read.pixels.reshape(4, 4, 3) * 255).round().astype(np.uint8)
    assert np.array_equal(first, whole.transpose(2, 0, 1) / 255)
    assert np.array_equal(images.as_input(read, (4, 4, 3)), whole / 255)
    assert np.array_equal(images.as_input(read, (48,)), first.ravel())
    np.save(tmp_path / "first.npy", first)
    np.save(tmp_path / "last.npy", whole)
    np.save(tmp_path / "batch.npy", first[None])
    matplotlib_image.imsave(tmp_path / "photo.png", whole)
    for name in ("first.npy", "last.npy", "batch.npy", "photo.png"):
        assert np.allclose(images.as_input(images.read_image(tmp_path / name), (3, 4, 4)), first, atol=1e-7), name
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.25, 2.0]
    m, s = (np.array(v)[:, None, None] for v in (mean, std))
    for shape in ((3, 4, 4), (48,)):
        lower, upper, point = images.image_box(read, shape, 0.25, mean, std, "pixel")
        assert np.allclose(point.reshape(3, 4, 4), (first - m) / s, atol=1e-12)
        assert np.allclose(lower.reshape(3, 4, 4), (np.maximum(first - 0.25, 0) - m) / s, atol=1e-12)
        assert np.allclose(upper.reshape(3, 4, 4), (np.minimum(first + 0.25, 1) - m) / s, atol=1e-12)
    lower, upper, point = images.image_box(read, (3, 4, 4), 0.1, mean, std, "input")
    assert np.allclose(lower, np.maximum((first - m) / s - 0.1, -m / s), atol=1e-12)
    assert np.allclose(upper, np.minimum((first - m) / s + 0.1, (1 - m) / s), atol=1e-12)
    grey = images.image_box(images.Image(np.full((28, 28), 0.5)), (784, 1), 0.1, [0.0], [1.0], "pixel")
    assert grey[0].shape == (784, 1) and float(grey[1].max()) == 0.6


@pytest.mark.parametrize(("text", "value"), [("8/255", 8 / 255), ("0.03", 0.03), ("0", 0.0), ("1e-3", 1e-3)])
def test_radii(text, value):
    assert images.read_epsilon(text) == value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--eps", "x"), "radius 'x'"),
        (("--eps", "-1"), "radius '-1'"),
        (("--eps", "1/0"), "radius '1/0'"),
        (("--row", "2"), "rows 0 to 1"),
        (("--mean", "1,2"), "mean has 2 numbers"),
        (("--mean", "a"), "--mean is 'a'"),
        (("--std", "0"), "positive"),
        (("--label", "3"), "3 outputs"),
        (("--plot", "nowhere/out.png"), "folder nowhere"),
    ],
)
def test_bounds_refuses(seeing, photo, arguments, message):
    result = run("bounds", seeing, "--image", photo, "--eps", "0.1", *arguments, code=2)
    assert result.stdout == "" and message in result.stderr


def test_bounds_refuses_images(seeing, net, photo, tmp_path):
    np.save(tmp_path / "wide.npy", np.full((4, 4, 3), 7.5))
    (tmp_path / "noise.npy").write_bytes(b"noise")
    (tmp_path / "noise.png").write_bytes(b"noise")
    for model, image, message in (
        (net, photo, "(48,)"),
        (seeing, tmp_path / "wide.npy", "outside of their range"),
        (seeing, tmp_path / "noise.npy", "not an array"),
        (seeing, tmp_path / "noise.png", "not a picture"),
        (seeing, tmp_path / "none.png", "No such file"),
    ):
        assert message in run("bounds", model, "--image", image, "--eps", "0.1", code=2).stderr


@pytest.mark.parametrize("method", ["interval", "slopes"])
def test_bounds_hold(seeing, photo, method):
    given = ("bounds", seeing, "--image", photo, "--eps", "8/255", "--mean", "0.5", "--std", "0.25", "--method", method)
    entry = json.loads(run(*given, "--row", "1", "--json").stdout, parse_constant=pytest.fail)
    assert (entry["epsilon"], entry["method"], entry["label"]) == (8 / 255, method, 2)
    assert [layer["neurons"] for layer in entry["layers"]] == [8, 3]
    for layer in entry["layers"]:
        assert layer["active"] + layer["inactive"] + layer["unstable"] == layer["neurons"]
    # Outputs of points of the box are within the bounds.
    picture = images.read_image(photo, 1)
    lower, upper, point = images.image_box(picture, (3, 4, 4), 8 / 255, [0.5], [0.25], "pixel")
    network, generator = read_onnx(seeing), np.random.default_rng(1)
    where = generator.uniform(size=(200, 3, 4, 4))
    values = network(lower + (upper - lower) * lower.new_tensor(where)).numpy()
    low, high = (np.array(entry["layers"][-1][end]) for end in ("lower", "upper"))
    assert (low <= values).all() and (values <= high).all()
    assert entry["predicted"] == int(network(point[None])[0].argmax())
    assert entry["margin"] == pytest.approx(low[2] - max(high[:2]))
    assert entry["margin"] <= (values[:, 2] - values[:, :2].max(1)).min()


@pytest.mark.parametrize("solver", ["highs", "cvxpy"])
def test_lps_of_outputs_by_another_solver(net, tmp_path, solver):
    """The sum of two absolute values over a square, and its negative: the triangles' LP is exact."""
    np.save(tmp_path / "x.npy", np.full(2, 0.5))
    given = ("bounds", net, "--image", tmp_path / "x.npy", "--eps", "0.5", "--mean", "0.5", "--std", "0.5", "--reference", solver)
    entry = json.loads(run(*given, "--method", "crown", "--json").stdout)
    by = entry["reference"]
    assert by["solver"] == solver and by["seconds"] > 0
    assert by["lower"] == pytest.approx([0, -2], abs=1e-6) and by["upper"] == pytest.approx([2, 0], abs=1e-6)
    output = entry["layers"][-1]
    off = max(by["lower"][0] - output["lower"][0], (output["upper"][0] - 2) / 2)
    assert by["difference"] == pytest.approx(off, abs=1e-6) and off >= -1e-9
    assert f"LPs of the outputs by {solver}" in run(*given).stdout
    assert "unknown solver 'none'" in run(*given[:-1], "none", code=2).stderr


def test_bounds_table_and_picture(seeing, photo, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    shown = run("bounds", seeing, "--image", photo, "--eps", "0.1", "--gap", "--steps", "30", "--plot", tmp_path / "out.png")
    for text in ("neurons", "unstable", "largest gap", "all ReLUs", "output", "margin at least"):
        assert text in shown.stdout
    picture = image.imread(tmp_path / "out.png")
    for panel in (part for half in np.array_split(picture[..., :3], 2) for part in np.array_split(half, 2, axis=1)):
        assert (panel.max(-1) < 0.4).any()
    assert (np.ptp(picture[..., :3], axis=-1) > 0.3).sum() > 100
    assert "largest gap" not in run("bounds", seeing, "--image", photo, "--eps", "0.1").stdout


# Scripts of the competition


def script(name, *arguments, **environment):
    here = {"BLOCKLP": str(Path(sys.executable).with_name("blocklp"))}
    command = ["bash", str(ROOT / "bench" / "vnncomp" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | here | environment)


@pytest.fixture(scope="module")
def smoke():
    if not SHARED.is_dir():
        pytest.skip(f"the folder {SHARED} is absent")
    if not Path(sys.executable).with_name("blocklp").exists():
        pytest.skip("the command blocklp is not installed")
    return SHARED / "smoke"


@pytest.mark.slow
def test_competition_scripts(smoke, tmp_path):
    out = tmp_path / "result.txt"
    assert script("prepare_instance.sh", "v1", "test", smoke / "test_sat.onnx", smoke / "test_prop.vnnlib").returncode == 0
    found = script("run_instance.sh", "v1", "test", smoke / "test_sat.onnx", smoke / "test_prop.vnnlib", out, "60", THREADS="1")
    assert found.returncode == 0, found.stderr
    lines = out.read_text().splitlines()
    assert lines[0] == "sat" and lines[1].startswith("((X_0 ") and lines[-1].startswith("(Y_4 ") and lines[-1].endswith("))")
    numbers = [float(line.strip("()").split()[1]) for line in lines[1:]]
    assert read_property(smoke / "test_prop.vnnlib").violated(numbers[:5], numbers[5:]) is not None
    assert script("run_instance.sh", "v1", "test", smoke / "test_tiny.onnx", smoke / "test_tiny.vnnlib", out, "60").returncode == 0
    assert out.read_text() == "unsat\n"
    assert script("run_instance.sh", "v1", "test", smoke / "test_tiny.onnx", smoke / "test_tiny.vnnlib", out, "0.1").returncode == 0
    assert out.read_text() == "timeout\n"


def test_competition_scripts_refuse(smoke, tmp_path):
    out = tmp_path / "result.txt"
    assert script("run_instance.sh", "v2", "test", "a", "b", out, "60").returncode == 1
    assert script("prepare_instance.sh", "v1", "test", "a", "b").returncode == 1
    assert script("install_tool.sh", "v2").returncode == 1
    assert script("run_instance.sh", "v1", "test", tmp_path / "no.onnx", smoke / "test_tiny.vnnlib", out, "60").returncode == 2
    assert out.read_text() == "unknown\n"
