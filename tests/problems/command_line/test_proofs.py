"""Optima with proofs: ``--exact --proof`` of three commands, and ``check-proof``."""

import gzip
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from blocklp.errors import TimeLimitError
from blocklp.problems.command_line.app import app
from blocklp.problems.proofs import Decomposition, check_proof, read_proof, write_proof
from blocklp.problems.qpbo import Qubo

pytest.importorskip("numba")

FILES = {
    "qpbo": ("a.sparse", "3 4\n1 1 -3\n2 2 1\n3 3 -2\n1 2 1\n", "optimal: no labelling is below -5"),
    "mis": ("a.col", "p edge 4 3\ne 1 2\ne 2 3\ne 3 4\n", "optimal: no independent set weighs more than 2"),
    "mrf": ("a.wcsp", "a 2 2 1 100\n2 2\n2 0 1 0 2\n0 0 7\n1 1 4\n", "optimal: no labelling is below 0"),
}
CLIQUE = "a.clq", "p edge 4 4\ne 1 2\ne 2 3\ne 1 3\ne 3 4\n", "optimal: no clique weighs more than 3"
NOTHING = (
    "none.wcsp",
    "none 2 2 2 100\n2 2\n2 0 1 0 2\n0 0 100\n1 1 100\n2 0 1 100 2\n0 0 0\n1 1 0\n",
    "no labelling respects the hard",
)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", [*FILES, "clique", "nothing"])
def test_an_optimum_is_written_with_its_proof_and_checked(command, tmp_path):
    name, text, said = CLIQUE if command == "clique" else NOTHING if command == "nothing" else FILES[command]
    command = {"clique": "mis", "nothing": "mrf"}.get(command, command)
    file, proof = tmp_path / name, tmp_path / "proof.gz"
    file.write_text(text)
    shown = run(command, file, "--exact", "--proof", proof)
    assert shown.exit_code == 0 and said in shown.stdout and str(proof) in shown.stdout, shown.output
    checked = run("check-proof", file, proof)
    assert checked.exit_code == 0 and checked.stdout.startswith(said) and "proved by 1 leaf, checked" in checked.stdout
    entry = json.loads(run("check-proof", file, proof, "--json").stdout)
    assert entry["proved"] in said.replace("no labelling respects", "infeasible") and entry["leaves"] == 1
    [solved] = json.loads(run(command, file, "--exact", "--proof", proof, "--json").stdout)
    assert solved["proof"]["proved"] == entry["proved"] and solved["proof"]["bytes"] == proof.stat().st_size
    assert (
        entry["proved"] != "optimal"
        or entry["bound"] == solved["proof"]["bound"] == solved["weight" if command == "mis" else "energy"]
    )


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (TimeLimitError("the time limit was reached"), 1, "the time limit was reached"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_solution_stands_where_no_proof_is_found(error, code, said, tmp_path, monkeypatch):
    file, proof = tmp_path / "a.sparse", tmp_path / "proof.gz"
    file.write_text(FILES["qpbo"][1])

    def ended(*args, **options):
        raise error

    monkeypatch.setattr("blocklp.problems.proofs.prove_minimum", ended)
    shown = run("qpbo", file, "--exact", "--proof", proof, "--json")
    assert shown.exit_code == code and "no proof was written" in shown.stderr and said in shown.stderr and not proof.exists()
    assert json.loads(shown.stdout)[0]["energy"] == -5


def test_a_proof_without_a_place_is_refused_before_the_search(tmp_path, monkeypatch):
    file = tmp_path / "a.sparse"
    file.write_text(FILES["qpbo"][1])
    monkeypatch.setattr("blocklp.problems.qpbo.exact.solve_qpbo_exactly", None)
    shown = run("qpbo", file, "--exact", "--proof", tmp_path / "none" / "proof.gz")
    assert shown.exit_code == 2 and "the folder" in shown.stderr and "does not exist" in shown.stderr


def test_a_proof_of_another_instance_proves_nothing(tmp_path):
    file, other, proof = tmp_path / "a.sparse", tmp_path / "b.sparse", tmp_path / "proof.gz"
    file.write_text(FILES["qpbo"][1])
    other.write_text(FILES["qpbo"][1].replace("-3", "-4"))
    assert run("qpbo", file, "--exact", "--proof", proof).exit_code == 0
    refused = run("check-proof", other, proof)
    assert refused.exit_code == 2 and "another problem" in refused.stderr


def test_a_proof_of_a_bound_alone_says_so(tmp_path):
    file, proof = tmp_path / "a.sparse", tmp_path / "proof.gz"
    file.write_text(FILES["qpbo"][1])
    assert run("qpbo", file, "--exact", "--proof", proof).exit_code == 0
    lines = gzip.decompress(proof.read_bytes()).splitlines()
    header = json.loads(lines[0])
    proof.write_bytes(b"\n".join([json.dumps(header | {"labels": [0, 0, 0]}).encode(), *lines[1:]]))
    weaker = run("check-proof", file, proof)
    assert weaker.exit_code == 1 and weaker.stdout.startswith("no labelling is better than 0 by more than 5")


@pytest.mark.parametrize(
    ("command", "labels", "said", "bound"),
    [
        ("qpbo", [1, 0, 0], "no labelling is better than -3 by more than 2, 6.7e-01 of that", -5),
        ("mis", [1, 0, 0, 0], "no independent set is better than 1 by more than 1, 1.0e+00 of that", 2),
        ("mis", None, "no independent set weighs more than 2", 2),
    ],
)
def test_what_is_open_is_told_relative_to_the_value(command, labels, said, bound, tmp_path):
    name, text, _ = FILES[command]
    file, proof = tmp_path / name, tmp_path / "proof.gz"
    file.write_text(text)
    assert run(command, file, "--exact", "--proof", proof).exit_code == 0
    lines = gzip.decompress(proof.read_bytes()).splitlines()
    proof.write_bytes(b"\n".join([json.dumps(json.loads(lines[0]) | {"labels": labels}).encode(), *lines[1:]]))
    weaker = run("check-proof", file, proof)
    assert weaker.exit_code == 1 and weaker.stdout.startswith(f"{said}\n"), weaker.output
    entry = json.loads(run("check-proof", file, proof, "--json").stdout)
    assert (entry["proved"], entry["bound"]) == ("bound", bound)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [b"{}", *lines[1:]], "no proof"),
        (lambda lines: [], "no proof"),
        (lambda lines: [lines[0].replace(b'version":1', b'version":2'), *lines[1:]], "version 2"),
        (lambda lines: [lines[0].replace(b"Qubo", b"Cube"), *lines[1:]], "'Cube'"),
        (lambda lines: [lines[0].replace(b'"labels":[', b'"labels":["a",'), *lines[1:]], "integers"),
        (lambda lines: [lines[0], b"nonsense"], "step 1 is damaged"),
        (lambda lines: [lines[0], b"[" * 100_000], "step 1 is damaged"),
        (lambda lines: [lines[0], b"{}"], "not a step"),
        (lambda lines: lines[:1], "ends before"),
        (lambda lines: [*lines, lines[-1]], "goes on"),
    ],
)
def test_damaged_files_are_refused(change, said, tmp_path):
    file, proof = tmp_path / "a.sparse", tmp_path / "proof.gz"
    file.write_text(FILES["qpbo"][1])
    assert run("qpbo", file, "--exact", "--proof", proof).exit_code == 0
    proof.write_bytes(b"\n".join(change(gzip.decompress(proof.read_bytes()).splitlines())))
    refused = run("check-proof", file, proof)
    assert refused.exit_code == 2 and said in refused.stderr, refused.output


def test_options_that_do_not_fit_are_refused(tmp_path):
    file, proof = tmp_path / "a.sparse", tmp_path / "proof.gz"
    file.write_text(FILES["qpbo"][1])
    assert "give --exact too" in run("qpbo", file, "--proof", proof).stderr
    assert "one file" in run("qpbo", file, file, "--exact", "--proof", proof).stderr
    assert run("qpbo", file, "--exact", "--proof", proof).exit_code == 0
    for options, said in (
        (["--network", "a.onnx"], "minimum"),
        (["--log"], "Markov"),
        (["--evidence", "a.evid"], "Markov"),
        (["--objective", "clique"], "graphs"),
    ):
        refused = run("check-proof", file, proof, *options)
        assert refused.exit_code == 2 and said in refused.stderr, refused.output
    missing = run("check-proof", file, tmp_path / "none.gz")
    assert missing.exit_code == 2 and "No such file" in missing.stderr


def test_labels_of_any_type_are_written_as_integers(tmp_path):
    qubo = Qubo([1.0, -1.0], [], [])
    write_proof(tmp_path / "a.gz", qubo, np.array([0.0, 1.0]), [Decomposition()])
    labels, steps = read_proof(tmp_path / "a.gz", qubo)
    assert labels == [0, 1] and check_proof(qubo, labels, steps).optimal
