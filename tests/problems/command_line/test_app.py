import errno
import io
import json
import re
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import matplotlib.image
import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import blocklp as bl
import blocklp.problems.qpbo
from blocklp.errors import LicenceError
from blocklp.problems.command_line import demo as tour
from blocklp.problems.command_line import mis, mrf
from blocklp.problems.command_line.app import OPTIONAL, app
from blocklp.problems.command_line.report import RelaxationRow, to_json
from blocklp.problems.mis.instance import Objective as GraphObjective
from blocklp.problems.mis.relaxation import CliqueBlocks as GraphBlocks
from blocklp.problems.modules import module_names
from blocklp.problems.mrf.relaxation import Decomposition as MrfBlocks
from blocklp.problems.qpbo import Qubo, read_qubo, solve_qpbo, solve_qpbo_exactly

from .running import refused, run

ROOT = Path(__file__).parents[3]
# The only minimum is y = (1, 0, 1) with energy -5; its roof dual is tight.
QUBO = "3 4\n1 1 -3\n2 2 1\n3 3 -2\n1 2 1\n"
TRIANGLE = "3 3\n1 2 1\n2 3 1\n1 3 1\n"
GRAPH = "p edge 4 4\nn 1 5\nn 2 1\nn 3 1\nn 4 2\ne 1 2\ne 2 3\ne 1 3\ne 3 4\n"
FIELD = "MARKOV\n2\n2 2\n1\n2 0 1\n4\n0.1 0.2 0.3 0.4\n"


def test_table_of_a_qubo(write):
    shown = run("qpbo", write("a.sparse", QUBO))
    assert "a.sparse" in shown.stdout and "optimal" in shown.stdout and "-5" in shown.stdout
    assert shown.stderr == ""


def test_json_of_a_qubo(write):
    [entry] = json.loads(run("qpbo", write("a.sparse", QUBO), "--json", "--tol", "1e-6").stdout)
    assert (entry["n"], entry["pairs"], entry["method"], entry["version"]) == (3, 1, "auto", bl.__version__)
    assert entry["file"].endswith("a.sparse")
    assert entry["status"] == "optimal"
    assert entry["bound"] == pytest.approx(-5, abs=1e-5)
    assert entry["safe_bound"] <= -5
    assert entry["primal"] == pytest.approx(-5, abs=1e-5)
    assert 0 <= entry["gap"] <= 1e-6 and entry["passes"] > 0 and entry["seconds"] > 0
    assert (entry["energy"], entry["solution"]) == (-5, [1, 0, 1])
    assert entry["persistency"] == {"weak": 3, "strong": 3}
    assert "reference" not in entry and "note" not in entry


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (mrf.MrfBlocksName, MrfBlocks),
        (mis.GraphObjectiveName, GraphObjective),
        (mis.GraphBlocksName, GraphBlocks),
    ],
)
def test_choices_of_options_are_those_of_python(names, known):
    assert {name.value for name in names} == set(get_args(known))


@pytest.mark.parametrize(
    ("command", "package", "option"),
    [
        ("qpbo", "blocklp.problems.qpbo.formats", "--format"),
        ("mis", "blocklp.problems.mis.formats", "--format"),
        ("mrf", "blocklp.problems.mrf.formats", "--format"),
        ("mrf", "blocklp.problems.mrf.nonconvex.methods", "--heuristic"),
    ],
)
def test_help_lists_the_modules_of_a_package_and_no_other_is_taken(write, command, package, option):
    names = module_names(package)
    shown = run(command, "--help").stdout
    assert names and all(name in shown for name in names)
    error = refused(command, write("a.uai", FIELD), option, "none-such")
    assert "'none-such'" in error and ", ".join(names) in error


def test_format_is_told_by_the_suffix_or_the_option(write):
    cut = json.loads(run("qpbo", write("g.mc", TRIANGLE), "--json").stdout)[0]
    assert (cut["energy"], cut["bound"]) == pytest.approx((-2, -3), rel=1e-3)
    matrix = json.loads(run("qpbo", write("g.mc", TRIANGLE), "--format", "sparse", "--json").stdout)[0]
    assert matrix["energy"] == 0
    edges = "i,j,weight\n0,1,1\n1,2,1\n0,2,1\n"
    for path, chosen in ((write("g.csv", edges), []), (write("g.txt", edges), ["--format", "edges"])):
        listed = json.loads(run("qpbo", path, *chosen, "--json").stdout)[0]
        assert (listed["energy"], listed["bound"]) == pytest.approx((-2, -3), rel=1e-3)


@pytest.mark.parametrize("blocks", ["edges", "cliques", "separated"])
def test_independent_set(write, blocks):
    [entry] = json.loads(run("mis", write("g.mis", GRAPH), "--blocks", blocks, "--json", "--tol", "1e-6").stdout)
    assert (entry["weight"], entry["solution"]) == (7, [1, 0, 0, 1])
    assert entry["bound"] == pytest.approx(7, rel=1e-5)


def test_clique_file_is_complemented_with_a_note(write):
    path = write("g.clq", GRAPH)
    shown = run("mis", path, "--json")
    [entry] = json.loads(shown.stdout)
    assert (entry["weight"], entry["solution"]) == (7, [1, 1, 1, 0])
    assert "complement" in entry["note"] and "complement" in shown.stderr
    assert run("mis", path, "--quiet").stderr == ""


def test_every_file_is_reported_in_order(write):
    files = [write("b.sparse", QUBO), write("lonely.sparse", "1 1\n1 1 -1\n"), write("a.mc", TRIANGLE), write("c.sparse", QUBO)]
    entries = json.loads(run("qpbo", *files, "--json").stdout)
    assert [entry["file"] for entry in entries] == files
    assert [entry["energy"] for entry in entries] == [-5, -1, -2, -5]


@pytest.mark.parametrize("method", sorted(bl.methods.METHODS))
def test_every_method_bounds(write, method):
    result = CliRunner().invoke(app, ["qpbo", write("a.sparse", QUBO), "--method", method, "--json", "--passes", "50"])
    assert result.exit_code in (0, 1)
    [entry] = json.loads(result.stdout)
    assert entry["bound"] <= -5 + 1e-9 and entry["method"] == method


def test_float32_bounds_are_certified_too(write):
    [entry] = json.loads(run("qpbo", write("a.sparse", QUBO), "--dtype", "float32", "--json").stdout)
    assert entry["bound"] <= -5 + 1e-9


@pytest.mark.parametrize(
    ("limit", "status"),
    [(("--method", "admm", "--passes", "2"), "pass_limit"), (("--time-limit", "1e-9"), "time_limit")],
    ids=["passes", "time"],
)
def test_limit_gives_exit_code_1_and_a_valid_bound(write, monkeypatch, limit, status):
    monkeypatch.setattr(bl.Deadline, "check", lambda *_: None)  # as if the time ended after reading
    [entry] = json.loads(run("mis", write("g.mis", GRAPH), "--blocks", "edges", *limit, "--json", code=1).stdout)
    assert entry["status"] == status
    assert entry["bound"] >= 7


@pytest.mark.parametrize("arguments", [("qpbo", "a.sparse", QUBO), ("mis", "g.mis", GRAPH), ("mrf", "m.uai", FIELD)])
@pytest.mark.parametrize("exact", [(), ("--exact",)])
def test_time_that_is_up_before_a_file_is_read_is_one_line(write, arguments, exact):
    command, name, text = arguments
    assert f"reading {write(name, text)}" in refused(command, write(name, text), *exact, "--time-limit", "1e-9")


@pytest.mark.parametrize("arguments", [("qpbo", "a.sparse", QUBO), ("mis", "g.mis", GRAPH), ("mrf", "m.uai", FIELD)])
def test_files_are_as_large_as_allowed(write, arguments):
    command, name, text = arguments
    assert "max_bytes" in refused(command, write(name, text), "--max-bytes", "5")


def test_what_a_graph_asks_for_is_told_by_the_option(write):
    path = write("g.txt", GRAPH)
    assert "--objective" in refused("mis", path)
    found = [json.loads(run("mis", path, "--objective", asked, "--json").stdout)[0] for asked in ("clique", "independent-set")]
    assert [entry["solution"] for entry in found] == [[1, 1, 1, 0], [1, 0, 0, 1]]
    metis = write("g.graph", "4 4 10\n5 2 3\n1 1 3\n1 1 2 4\n2 3\n")
    assert json.loads(run("mis", metis, "--json").stdout)[0]["solution"] == [1, 0, 0, 1]


def test_interrupt_prints_the_best_so_far_of_every_file(write, monkeypatch):
    def interrupt(self, event):
        raise KeyboardInterrupt

    monkeypatch.setattr(bl.progress.Progress, "__call__", interrupt)
    cycle = "".join(f"{i} {i} -3\n{min(i, i % 9 + 1)} {max(i, i % 9 + 1)} 2\n" for i in range(1, 10))
    files = [write("cycle.sparse", f"9 18\n{cycle}"), write("lonely.sparse", "1 1\n1 1 -1\n")]
    entries = json.loads(run("qpbo", *files, "--json", code=130).stdout)
    # The second is solved by its first pass; the first, an odd cycle, is not.
    assert [entry["status"] for entry in entries] == ["interrupted", "optimal"]
    assert entries[0]["bound"] <= -12 and entries[1]["bound"] <= -1


def test_interrupt_of_an_exact_search_names_the_files_that_it_kept_from_their_turn(write, monkeypatch):
    stopped = solve_qpbo_exactly(Qubo([1.0], np.zeros((0, 2), dtype=int), []), callback=lambda *_: True)
    interrupted = replace(stopped, status=bl.Status.INTERRUPTED)
    monkeypatch.setattr(blocklp.problems.qpbo, "solve_qpbo_exactly", lambda *_, **__: interrupted)
    files = [write(name, QUBO) for name in ("a.sparse", "b.sparse", "c.sparse")]
    result = run("qpbo", *files, "--exact", "--json", code=130)
    assert [entry["file"] for entry in json.loads(result.stdout)] == [str(files[0])]
    assert all(f"{file}: not reached" in result.stderr for file in files[1:])


def test_interrupt_outside_the_solve_is_one_line(write, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(blocklp.problems.qpbo, "read_qubo", interrupt)
    result = run("qpbo", write("a.sparse", QUBO), code=130)
    assert (result.stdout, result.stderr) == ("", "interrupted\n")


def test_an_answer_is_printed_although_the_reference_is_refused(write, monkeypatch):
    def refused(model, solver, **options):
        raise LicenceError(f"{solver} covers 2000 variables")

    monkeypatch.setattr("blocklp.reference", refused)
    given = "qpbo", write("g.mc", TRIANGLE), "--reference", "gurobi"
    shown = run(*given)
    assert "refused" in shown.stdout and "gurobi LP" in shown.stdout
    assert "--reference: gurobi covers 2000 variables" in shown.stderr
    [entry] = json.loads(run(*given, "--json").stdout)
    assert entry["bound"] == pytest.approx(-3)
    assert entry["reference"]["status"] == "refused" and entry["reference"]["value"] is None


def test_an_answer_is_printed_although_the_reference_is_interrupted(write, monkeypatch):
    whole = bl.reference

    def interrupted(model, solver, **options):
        if model.size == 1:  # to see whether the solver is there
            return whole(model, solver)
        raise KeyboardInterrupt

    monkeypatch.setattr("blocklp.reference", interrupted)
    [entry] = json.loads(run("qpbo", write("g.mc", TRIANGLE), "--reference", "highs", "--json").stdout)
    assert entry["bound"] == pytest.approx(-3)
    assert entry["reference"]["status"] == "interrupted" and entry["reference"]["value"] is None


def test_reference_agrees(write):
    [entry] = json.loads(run("qpbo", write("g.mc", TRIANGLE), "--reference", "highs", "--json").stdout)
    assert entry["reference"]["solver"] == "highs"
    assert entry["reference"]["value"] == pytest.approx(-3)
    assert -1e-4 <= entry["reference"]["difference"] <= 1e-9 and entry["reference"]["seconds"] > 0
    assert "highs LP" in run("qpbo", write("g.mc", TRIANGLE), "--reference", "highs").stdout


@pytest.mark.parametrize("count", [1, 3])
def test_picture_is_written_and_not_blank(write, tmp_path, count):
    files = [write(f"{i}.mc", TRIANGLE) for i in range(count)]
    run("qpbo", *files, "--tol", "1e-6", "--plot", tmp_path / "out.png")
    picture = matplotlib.image.imread(tmp_path / "out.png")
    assert picture.shape[0] > 500 and picture.shape[1] > 500
    # Each of the four panels holds dark and coloured ink.
    halves = [np.array_split(half, 2, axis=1) for half in np.array_split(picture[..., :3], 2, axis=0)]
    for panel in (p for half in halves for p in half):
        assert (panel.max(-1) < 0.4).any() and (np.ptp(panel, axis=-1) > 0.3).sum() > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "simplex"), "unknown method 'simplex'"),
        (("--device", "tpu"), "device is 'tpu'"),
        (("--device", "cuda:99"), "device 'cuda:99' is not available"),
        (("--time-limit", "-1"), "time_limit is -1.0"),
        (("--time-limit", "nan"), "time_limit is nan"),
        (("--reference", "abacus"), "unknown solver 'abacus'"),
        (("--plot", "out.xyz"), "suffix '.xyz'"),
        (("--plot", "nowhere/out.png"), "folder nowhere does not exist"),
    ],
)
def test_bad_options_are_one_line(write, arguments, message):
    assert message in refused("qpbo", write("a.sparse", QUBO), *arguments)


@pytest.mark.parametrize("arguments", [("--tol", "-1"), ("--passes", "0"), ("--passes", "x"), ("--dtype", "int8"), ("--format", "x")])
def test_bad_values_name_the_option(write, arguments):
    assert arguments[0] in run("qpbo", write("a.sparse", QUBO), *arguments, code=2).stderr


def test_missing_cuda_is_one_line(write):
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    assert "device 'cuda' is not available" in refused("qpbo", write("a.sparse", QUBO), "--device", "cuda")


def test_bad_files_are_one_line_and_nothing_is_solved(write, tmp_path):
    good = write("a.sparse", QUBO)
    assert "missing.sparse: No such file" in refused("qpbo", good, tmp_path / "missing.sparse")
    assert "line 1" in refused("qpbo", good, write("cut.sparse", "3 9\n1 1 1\n"))
    assert str(tmp_path) in refused("mis", tmp_path)
    assert "blocklp mis" in refused("qpbo", write("g.mis", GRAPH))


def test_missing_matplotlib_names_the_extra(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install -e '.[plot]'" in refused("qpbo", write("a.sparse", QUBO), "--plot", "out.png")


def test_json_has_no_infinities():
    found = solve_qpbo(Qubo.from_terms([-1.0, 1.0], [(0, 1)], [1.0]))
    nothing = torch.tensor([torch.inf], dtype=torch.float64)
    found = replace(found, relaxation=replace(found.relaxation, primal=nothing, gap=nothing))
    [entry] = json.loads(to_json([RelaxationRow("x", 2, 1, found)], "prox"), parse_constant=pytest.fail)
    assert entry["primal"] is None and entry["gap"] is None


def test_doctor_lists_what_is_there_and_solves_a_problem(monkeypatch: pytest.MonkeyPatch):
    shown = run("doctor").stdout
    assert "a small problem: solved, between 2.0000" in shown and "compiled loops: " in shown
    assert bl.__version__ in shown and torch.__version__ in shown
    assert all(method in shown for method in bl.methods.METHODS)
    installed = {d.metadata["Name"].lower() for d in distributions()}
    for package in OPTIONAL:
        assert (f"{package}: not installed" in shown) == (package not in installed)
    monkeypatch.setattr(bl.Model, "solve", lambda *_, **__: SimpleNamespace(bound=torch.tensor([3.0]), primal=torch.tensor([2.0])))
    wrong = CliRunner().invoke(app, ["doctor"])
    assert wrong.exit_code == 1 and "a small problem: WRONG" in wrong.stdout


def test_a_reader_that_leaves_early_is_no_error(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(typer, "echo", broken)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1 and "error" not in result.stderr


def test_demo_certifies(monkeypatch):
    rows = []
    # What the tour says of digits and of a picture has tests of its own.
    monkeypatch.setattr(tour, "read_digits", list)
    monkeypatch.setattr(tour, "show_picture", lambda console: None)
    monkeypatch.setattr(tour, "demo", lambda console, demo=tour.demo: rows.extend(demo(console)))
    threads = torch.get_num_threads()
    shown = run("demo").stdout
    assert torch.get_num_threads() == threads
    assert len(rows) == 13 and all(row.file in shown for row in rows)
    for row in rows:
        named, value, _ = row.labelling
        sign = 1 if named == "energy" else -1
        bound, optimum = float(row.relaxation.bound[0]), row.reference.value
        assert row.relaxation.status == (bl.Status.OPTIMAL,)
        assert sign * bound <= sign * optimum + 1e-9 * abs(optimum) <= sign * value + 2e-9 * abs(value)
    split, southern, cliques = rows[0], rows[3], rows[-4:]
    assert split.found.gap <= 1e-4 and southern.labelling[1] == -89 and all(row.found.gap <= 1.1e-4 for row in cliques)


def test_real_files_as_one_batch(shared_qpbo):
    files = [shared_qpbo / "qubo" / f"bqp50-{i}.sparse" for i in (1, 2, 3)]
    entries = json.loads(run("qpbo", *files, "--json").stdout)
    assert [entry["energy"] for entry in entries] == [-2098, -3702, -4626]
    for file, entry in zip(files, entries, strict=True):
        assert entry["bound"] <= entry["energy"] <= entry["bound"] + 1e-4 * abs(entry["bound"]) + 1e-9
        assert float(read_qubo(file).energy(entry["solution"])) == entry["energy"]


def test_exact_solutions(write):
    [entry] = json.loads(run("qpbo", write("a.sparse", QUBO), "--exact", "--json").stdout)
    assert (entry["energy"], entry["bound"], entry["proven"], entry["solution"]) == (-5, -5, True, [1, 0, 1])
    [entry] = json.loads(run("mis", write("g.mis", GRAPH), "--exact", "--json").stdout)
    assert (entry["weight"], entry["bound"], entry["proven"], entry["solution"]) == (7, 7, True, [1, 0, 0, 1])
    shown = run("qpbo", write("b.sparse", QUBO), "--exact", "--time-limit", "10").stdout
    assert "proven" in shown and "-5" in shown


@pytest.mark.parametrize("solver", ["highs", "gurobi"])
def test_exact_solutions_are_those_of_an_integer_program(write, solver):
    pytest.importorskip("highspy")
    for command, name, content, key in (("qpbo", "a.sparse", QUBO, "energy"), ("mis", "g.mis", GRAPH, "weight")):
        [entry] = json.loads(run(command, write(name, content), "--exact", "--reference", solver, "--json").stdout)
        other = entry["reference"]
        assert (other["solver"], other["status"]) == (solver, "optimal") and other["value"] == pytest.approx(entry[key])
    shown = run("qpbo", write("b.sparse", QUBO), "--exact", "--reference", solver).stdout
    assert solver in shown and "its seconds" in shown
    assert "unknown solver" in refused("qpbo", write("c.sparse", QUBO), "--exact", "--reference", "nobody")


def test_exact_takes_no_options_of_the_relaxation(write, tmp_path):
    assert "--exact" in refused("qpbo", write("a.sparse", QUBO), "--exact", "--plot", str(tmp_path / "p.png"))
    assert "time_limit is 0" in refused("qpbo", write("a.sparse", QUBO), "--exact", "--time-limit", "0")
    for option in (("--method", "prox"), ("--passes", "7"), ("--tighten",)):
        assert "--exact" in refused("qpbo", write("a.sparse", QUBO), "--exact", *option)
    assert "--exact" in refused("mis", write("g.mis", GRAPH), "--exact", "--blocks", "edges")


ODD = "[red]$a_b$[densecrf].mc"
"""A file whose name is markup to a terminal, and a formula to matplotlib."""


def test_names_of_files_are_printed_as_they_are(write, tmp_path):
    path, other = write(ODD, TRIANGLE), write(f"other{ODD}", TRIANGLE)
    shown = run("qpbo", path, other, "--plot", tmp_path / "both.png").stdout
    assert shown.count(ODD) == 2
    run("qpbo", path, "--plot", tmp_path / "one.png")
    assert ODD in run("qpbo", path, "--exact").stdout
    assert ODD in refused("qpbo", write(f"broken{ODD}", "3 9\n1 1 1\n"))
    assert f"{ODD}.clq" in run("mis", write(f"{ODD}.clq", GRAPH), "--json").stderr


def test_the_tour_names_the_extra_of_what_it_leaves_out(monkeypatch):
    monkeypatch.setattr(tour.importlib.util, "find_spec", lambda name: None)
    shown = io.StringIO()
    tour.show_picture(Console(file=shown, width=200))
    assert "'.[densecrf]'" in shown.getvalue()


def test_messages_and_documentation_ask_for_what_can_be_installed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    code = [file for folder in ("blocklp", "oracles", "problems") for file in (ROOT / folder).rglob("*.py")]
    asked = set()
    for file in [*pages, *code]:
        text = file.read_text()
        assert not re.search(r"pip install (-\S+ )*'?blocklp\b", text), f"{file}: no index serves blocklp"
        asked |= set(re.findall(r"install\('(\w+)'\)", text))
        asked |= {extra for listed in re.findall(r"-e '\.\[([\w,]+)\]'", text) for extra in listed.split(",")}
    assert {"densecrf", "highs", "plot", "verify"} <= asked <= set(extras)
