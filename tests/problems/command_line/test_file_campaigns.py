"""Commands over many files with ``--results``: a line for each, none twice, and the same numbers as for the file alone."""

import json

import pytest

from blocklp.problems.command_line import file_campaigns

from .running import run

# Minima by hand: -5 at (1, 0, 1); a triangle cuts two edges; the heaviest set {1, 4} weighs 7.
QUBO = "3 4\n1 1 -3\n2 2 1\n3 3 -2\n1 2 1\n"
TRIANGLE = "3 3\n1 2 1\n2 3 1\n1 3 1\n"
GRAPH = "p edge 4 4\nn 1 5\nn 2 1\nn 3 1\nn 4 2\ne 1 2\ne 2 3\ne 1 3\ne 3 4\n"
FIELD = "MARKOV\n2\n2 2\n1\n2 0 1\n4\n0.1 0.2 0.3 0.4\n"
PROGRAM = "Minimize\n obj: x + 2 y\nSubject To\n c: x + y >= 3\nBounds\n x <= 2\nEnd\n"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_file_has_one_line(write, tmp_path):
    out = tmp_path / "out.jsonl"
    files = [write("a.sparse", QUBO), write("bad.sparse", "nothing"), write("t.mc", TRIANGLE), str(tmp_path / "none.sparse")]
    shown = run("qpbo", *files, files[0], "--exact", "--results", out, code=2)
    found = lines(out)
    assert [entry["file"] for entry in found] == files
    assert [entry["status"] for entry in found] == ["optimal", "error", "optimal", "error"]
    assert [entry.get("energy") for entry in found] == [-5, None, -2, None]
    assert "header" in found[1]["reason"] and "none.sparse" in found[3]["reason"] and "none.sparse" in shown.stderr
    before = out.read_text()
    again = run("qpbo", files[0], files[2], "--exact", "--results", out, "--json")
    assert out.read_text() == before and [entry["energy"] for entry in json.loads(again.stdout)] == [-5, -2]
    out.write_text("".join(before.splitlines(keepends=True)[:1]) + '{"file": "t.m')
    run("qpbo", *files, "--exact", "--results", out, "--quiet", code=2)
    assert [entry["file"] for entry in lines(out)] == files


@pytest.mark.parametrize(
    ("command", "name", "text", "value", "options"),
    [
        ("qpbo", "a.sparse", QUBO, -5, ("--format", "sparse")),
        ("mis", "g.mis", GRAPH, 7, ("--blocks", "edges")),
        ("mrf", "m.uai", FIELD, None, ("--dtype", "float64", "--no-log")),
        ("lp", "p.lp", PROGRAM, 4, ("--solution",)),
    ],
)
def test_lines_are_those_of_the_file_alone(write, tmp_path, command, name, text, value, options):
    file, out = write(name, text), tmp_path / "out.jsonl"
    alone = json.loads(run(command, file, "--json", *options).stdout)
    alone = alone[0] if isinstance(alone, list) else alone
    run(command, file, "--results", out, "--tol", "1e-4", *options)
    [found] = lines(out)
    assert found.pop("exit_code") == 0
    for entry in (alone, found):
        del entry["seconds"]
    assert found == alone | {"command": command}
    if value is not None:
        assert found["bound"] == pytest.approx(value, rel=1e-3)


def test_options_that_do_not_fit_are_refused(write, tmp_path):
    file, out = write("a.sparse", QUBO), tmp_path / "out.jsonl"
    assert "--results" in run("qpbo", file, "--workers", "2", code=2).stderr
    assert "--plot" in run("qpbo", file, "--results", out, "--plot", tmp_path / "a.png", code=2).stderr
    assert "give one" in run("qpbo", file, "--results", out, "--workers", "2", "--ray", "auto", code=2).stderr
    program = write("p.lp", PROGRAM)
    assert "--results" in run("lp", program, program, code=2).stderr
    theirs = tmp_path / "theirs.jsonl"
    run("qpbo", file, "--results", theirs)
    known = theirs.read_text()
    assert "what blocklp qpbo found, and this is mis" in run("mis", file, "--results", theirs, code=2).stderr
    assert theirs.read_text() == known
    out.write_text('{"other": 1}\n')
    assert "line 1" in run("qpbo", file, "--results", out, code=2).stderr and out.read_text() == '{"other": 1}\n'


def test_an_interrupt_and_the_deadline_keep_what_is_done(write, tmp_path, monkeypatch):
    files, out = [write(f"{k}.sparse", QUBO) for k in range(3)], tmp_path / "out.jsonl"
    solved, calls = file_campaigns.solved, []

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return solved(*given)

    monkeypatch.setattr(file_campaigns, "solved", interrupted)
    shown = run("qpbo", *files, "--results", out, "--time-limit", "1000", "--json", code=130)
    assert [entry["file"] for entry in lines(out)] == files[:1] == [entry["file"] for entry in json.loads(shown.stdout)]
    seconds = [given[-1] for given in calls]
    assert 300 < seconds[0] < 334 and 450 < seconds[1] < 500  # equal parts of what is left
    assert run("qpbo", *files, "--results", out, "--time-limit", "1e-9", "--quiet", code=1).stderr == ""
    assert len(lines(out)) == 1
