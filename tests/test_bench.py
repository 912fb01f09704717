"""Every benchmark runs, writes what it promises, and claims no bound above the truth."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("thinqpbo")
pytest.importorskip("highspy")
pytest.importorskip("gurobipy")
pytest.importorskip("matplotlib")

from bench.text import tally, verdict
from bench.truth import roof

from bench import driver
from bench.__main__ import main
from bench.instances import barabasi_albert
from bench.registry import Options, load
from bench.rivals import RIVALS, written_out

CASES = load()


@pytest.mark.parametrize("name", CASES)
def test_a_case_runs_and_every_bound_is_valid(name: str, tmp_path: Path) -> None:
    main(["run", name, "--quick", "--out", str(tmp_path)])
    content = json.loads((tmp_path / f"{name}.json").read_text())
    assert content["complete"] and content["quick"] and content["records"]
    assert content["command"] == f"python -m bench run {name} --quick --out {tmp_path}"
    where = content["machine"]
    assert where["cpu"] and where["cores"] and where["torch"] and where["date"] and where["revision"] and where["torch_threads"]
    page = (tmp_path / f"{name}.md").read_text()
    assert content["command"] in page and "smoke run" in page
    assert all((tmp_path / figure).stat().st_size for figure in figures(name, content["records"], tmp_path))
    assert name in (tmp_path / "index.md").read_text()
    for record in content["records"]:
        if "bounds" in record:
            assert len(record["bounds"]) == len(record["truths"])
            for bound, truth in zip(record["bounds"], record["truths"], strict=True):
                assert bound <= truth + 1e-9 * max(1.0, abs(truth))


def figures(name: str, records: list[dict[str, object]], out: Path) -> list[str]:
    draw = CASES[name].figures
    return draw(records, out) if draw else []


@pytest.mark.parametrize("rival", [r for r in RIVALS if r != "OR-tools PDLP"])
def test_rivals_agree_with_max_flow(rival: str) -> None:
    qubo = barabasi_albert(60, 0)
    answer = RIVALS[rival](written_out(qubo), 60.0)
    assert answer.objective is not None
    assert math.isclose(answer.objective, roof(qubo).value, rel_tol=1e-3)


def test_ortools_answers_from_its_own_process() -> None:
    pytest.importorskip("ortools")
    qubo = barabasi_albert(60, 0)
    answer = RIVALS["OR-tools PDLP"](written_out(qubo), 60.0)
    assert answer.objective is not None, answer.status
    assert math.isclose(answer.objective, roof(qubo).value, rel_tol=1e-3)


def test_an_interrupted_run_keeps_its_part(tmp_path: Path) -> None:
    case = CASES["anytime"]

    def stopped(options: Options):
        yield next(case.records(options))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver.run(type(case)("anytime", case.title, stopped, case.page), Options(quick=True), tmp_path, "a command")
    content = json.loads((tmp_path / "anytime.json").read_text())
    assert len(content["records"]) == 1 and not content["complete"]


def test_losses_are_named() -> None:
    assert verdict(2.0) == "win, 2 times faster" and verdict(0.5) == "loss, 2 times slower" and verdict(1.0) == "tie"
    text = tally([("a", 3.0), ("b", 0.25), ("c", 1.0), ("d", None)])
    assert "1 wins, 1 ties, 1 losses" in text and "- b: loss, 4 times slower" in text
