"""Every benchmark runs, and no bound in it is above the truth."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blocklp.problems.datasets import data_folder
from blocklp.problems.mis import WeightedGraph
from blocklp.problems.mrf import Mrf
from blocklp.problems.qpbo import Qubo

ROOT = Path(__file__).parents[2]
BESIDE = ROOT.parent / "shared" / "data"
QPBO, CRF, VERIFICATION, VERIFICATION_2025 = (
    pytest.mark.skipif(not (BESIDE / name).is_dir() and not (data_folder() / name).is_dir(), reason=f"blocklp data fetch {name}")
    for name in ("qpbo", "densecrf", "verification", "verification_2025")
)
DRAWN = ("table_4_1", "figure_4_1", "anytime", "weights", "size_and_batch", "scaling", "batch", "matching", "learning")
pytestmark = pytest.mark.skipif(
    not all(find_spec(name) for name in ("ortools", "thinqpbo")), reason="the extra [bench] is not installed"
)


@pytest.mark.parametrize(
    "case",
    [
        "table_4_1",
        "figure_4_1",
        "anytime",
        "weights",
        "size_and_batch",
        "scaling",
        "batch",
        pytest.param("real", marks=QPBO),
        "large",
        "traffic",
        "sparse_lps",
        "matching",
        "learnt",
        "learnt_branching",
        "lp_files",
        "integer_blocks",
        "general",
        "nodes",
        "first",
        "learning",
        "device",
        "distributed",
        "campaigns",
        "distributed_kills",
        "searches",
    ],
)
def test_a_quick_run_writes_its_table(case: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "run", case, "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    document = json.loads((tmp_path / f"{case}.json").read_text())
    assert document["records"] and document["machine"]["torch"]
    for record in document["records"]:
        shown = {k: v for k, v in record.items() if v is not None}
        errors = [v for k, v in shown.items() if k in ("error", "largest error") or (k[0].isdigit() and k.endswith(" passes"))]
        assert all(e >= -1e-9 for e in errors), record
    assert (tmp_path / f"{case}.png").exists() == (case in DRAWN)
    assert f"python -m bench run {case} --quick" in (tmp_path / f"{case}.md").read_text()


def test_a_device_is_measured_only_if_its_answers_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one nothing is called measured; with wrong answers, or errors, nothing is measured."""
    monkeypatch.syspath_prepend(ROOT)
    import torch

    from bench import device_checks
    from bench.cases import device as case
    from bench.device_places import Place

    place = Place.of_this_machine()
    if place.real:
        pytest.skip("a real device is there")

    def failing(where: torch.device) -> torch.Tensor:
        return torch.zeros(2) if where.type == "cpu" else torch.zeros(2) + torch.zeros(2, device=where)

    answers = {"off": lambda where: torch.tensor([1.0, 1.0 if where.type == "cpu" else 1.01]), "failing": failing}
    for name, answer in answers.items():
        monkeypatch.setattr(device_checks, "checks", lambda quick, own=(name, answer): [own])
        with pytest.raises(SystemExit, match=f"nothing was measured: {name} "):
            list(case.run(True, 1.0))
    monkeypatch.setattr(device_checks, "checks", lambda quick: [("same", lambda where: torch.ones(1))])
    monkeypatch.setattr(case, "STAGES", (case.scaling, lambda table, quick: iter(failing(table.place.device))))
    rows = list(case.run(True, 10.0))  # minutes: a second stage is begun only if some are left
    assert all(row["seconds"] is None for row in rows) and any((row["predicted"] or 0) > 0 for row in rows)
    assert "simulated" in rows[0]["result"] and rows[-1]["result"].startswith("failed: RuntimeError")


def test_counts_do_not_grow(tmp_path: Path) -> None:
    """Passes to an accuracy, operations, memory and loops a pass, against the committed table."""
    command = [sys.executable, "-m", "bench", "run", "counted", "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    fresh = json.loads((tmp_path / "counted.json").read_text())["records"]
    known = {(r["family"], r["method"]): r for r in json.loads((ROOT / "docs/benchmarks/counted.json").read_text())["records"]}
    assert len(fresh) == 5
    for record in fresh:
        before = known[record["family"], record["method"]]
        for what in list(record)[2:]:
            if before[what] is not None:
                assert record[what] is not None and record[what] <= 1.1 * max(before[what], 0.0) + 0.5, (record["method"], what)


@VERIFICATION
@pytest.mark.skipif(not all(find_spec(name) for name in ("onnx", "onnxruntime", "highspy")), reason="a reader of networks is missing")
@pytest.mark.parametrize("case", ["output", "anytime", "layers", "instances", "nodes"])
def test_a_quick_run_on_networks_has_no_bound_above_the_truth(case: str, tmp_path: Path) -> None:
    name = f"verification_{case}"
    command = [sys.executable, "-m", "bench", "run", name, "--quick", "--out", str(tmp_path)]
    without = {k: v for k, v in os.environ.items() if k != "BLOCKLP_AUTO_LIRPA"}
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600, env=without)
    records = json.loads((tmp_path / f"{name}.json").read_text())["records"]
    assert len({tuple(r) for r in records}) == 1
    assert (tmp_path / f"{name}.png").exists() == (case in ("anytime", "instances"))
    for record in records:
        assert (record.get("above exact") or 0.0) <= 1e-8, record
        assert all(v >= -1e-6 for k, v in record.items() if k.startswith("error ")), record
        assert record.get("compared") != "wrong" and record.get("unattacked") != "unsat", record
        assert record.get("alpha-CROWN error 20") is None
    if case == "output":
        assert records[0]["error 20"] > records[0]["error 100"] and records[0]["gap 100"] >= 0


@VERIFICATION_2025
@pytest.mark.skipif(not all(find_spec(name) for name in ("onnx", "onnxruntime", "highspy")), reason="a reader of networks is missing")
def test_a_quick_run_on_sets_of_a_competition_stands_beside_its_tools(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "run", "vnncomp_2025", "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    records = json.loads((tmp_path / "vnncomp_2025.json").read_text())["records"]
    own = [r for r in records if r["tool"] == "blocklp"]
    assert [r["set"] for r in own] == ["safenlp", "tllverifybench", "linearizenn"]
    assert all(r["wrong"] == 0 and r["decided"] >= 2 for r in own)
    assert len(records) == 3 * 9 and all(r["decided"] <= r["instances"] for r in records)


@CRF
@pytest.mark.skipif(not all(find_spec(name) for name in ("PIL", "numba")), reason="the extra [densecrf] is not installed")
@pytest.mark.parametrize(
    "case",
    [
        "methods",
        "mixed",
        "ordered",
        "lattice",
        "mean_field",
        "iterations",
        "regularisation",
        "stereo",
        "segmentation",
        pytest.param("clique_tables", marks=pytest.mark.skipif(find_spec("skimage") is None, reason="scikit-image is missing")),
        "weights",
        "widths",
    ],
)
def test_a_quick_run_on_dense_crfs_has_no_bound_above_an_energy(case: str, tmp_path: Path) -> None:
    name = f"densecrf_{case}"
    command = [sys.executable, "-m", "bench", "run", name, "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    records = json.loads((tmp_path / f"{name}.json").read_text())["records"]
    assert records and len({tuple(r) for r in records}) == 1
    drawn = ("methods", "iterations", "regularisation", "stereo", "segmentation", "weights", "widths")
    assert (tmp_path / f"{name}.png").exists() == (case in drawn)
    if case == "methods":
        for image in {r["image"] for r in records}:
            rows = [r for r in records if r["image"] == image]
            assert max(r["bound"] for r in rows if r["bound"] is not None) <= min(r["own energy"] for r in rows) + 1e-6
            least = min(r["energy"] for r in rows)
            assert least <= next(r["energy"] for r in rows if r["method"] == "mean-field, 25")
    if case == "stereo":
        rows = [r for r in records if r["bound"] is not None]
        assert len(rows) > 2 and max(r["bound"] for r in rows) <= min(r["own energy"] for r in records)
        assert all(0 <= r["bad pixels"] <= 100 for r in records)
    if case == "segmentation":
        summaries = [r for r in records if r["images"] == "all 2"]
        assert len(summaries) == 4 * 9 and len(records) == 3 * len(summaries)
        assert all(r["bound"] <= r["energy"] for r in records if r["bound"] is not None)
        assert all(0 <= r[what] <= 100 for r in records for what in ("IoU", "accuracy"))
        for kernels, method in {(r["kernels"], r["method"]) for r in summaries}:
            rows = [r for r in summaries if (r["kernels"], r["method"]) == (kernels, method)]
            assert max(r["accuracy"] for r in rows) == max(r["accuracy"] for r in rows if r["best"] == "yes")
    if case == "clique_tables":
        energies = {(r["kernels"], r["parameters"]) for r in records}
        assert len(energies) == 2 * 4 and len(records) == 7 * len(energies)
        for energy in energies:
            rows = [r for r in records if (r["kernels"], r["parameters"]) == energy]
            assert max(r["bound"] for r in rows if r["bound"] is not None) <= min(r["energy"] for r in rows) + 1e-6
    if case == "regularisation":
        (field,) = (r["energy"] for r in records if r["method"] == "mean-field")
        (entropy,) = (r["energy"] for r in records if (r["method"], r["weight"]) == ("efw", 1.0))
        assert entropy == pytest.approx(field, rel=1e-3)
    if case == "weights":
        assert all(r["bound"] <= r["least"] <= min(r["energy 0"], r["energy 10"]) for r in records)
        assert sum(r["default"] == "yes" for r in records) == len({r["kernels"] for r in records}) == 2
    if case in ("ordered", "widths"):
        assert all(r["error"] <= 1.0 for r in records)
    if case == "mixed":
        assert all(r["MF5 same energy"] < r["MF5 normalised"] <= r["unary"] for r in records)


@pytest.mark.skipif(find_spec("numba") is None, reason="the extra [densecrf] is not installed")
def test_wins_and_intersections_over_unions_are_those_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    import torch

    from bench.cases.densecrf_segmentation import mark_best, table, wins
    from bench.densecrf_data import Labelled, scores

    first, second = torch.tensor([[0, 0, 1], [1, 255, 2]]), torch.tensor([[1, 1]])
    # Of five points with a truth three are right; label 0 has 1 of 3 points, 1 has 2 of 3, 2 has 0 of 1, and no other label counts.
    one = torch.tensor([0, 1, 1, 1, 0, 0])
    assert scores(one, first) == pytest.approx({"accuracy": 60.0, "IoU": 100 * (1 / 3 + 2 / 3 + 0) / 3})
    assert scores(torch.tensor([1, 1]), second) == pytest.approx({"accuracy": 100.0, "IoU": 100.0})

    assert wins({"a": [1.0, 2.0, 3.0], "b": [1.0, 3.0, 2.5]}) == {"a": {"a": None, "b": 1}, "b": {"a": 1, "b": None}}
    assert wins({"a": [1.0, 2.0], "b": [0.0, 1.0]}) == {"a": {"a": None, "b": 0}, "b": {"a": 2, "b": None}}

    found = {
        "first": {"a": Labelled(one, 4.0, 2.0, 1.0), "b": Labelled(first.flatten() % 255, 6.0)},
        "second": {"a": Labelled(torch.tensor([1, 1]), 2.0, 1.0, 2.0), "b": Labelled(torch.tensor([0, 1]), 1.0)},
    }
    a, b = table({"images": "all 2"}, found, [first, second])
    assert (a["a"], a["b"], b["a"], b["b"]) == (None, 1, 1, None)
    assert (a["energy"], a["bound"], a["seconds"], b["energy"], b["bound"]) == (3.0, 1.5, 1.5, 3.5, None)
    # Of all images together, which is not the mean of theirs: label 1 of method a has 4 of 5 points.
    assert (a["accuracy"], a["IoU"]) == pytest.approx((500 / 7, 100 * (1 / 3 + 4 / 5 + 0) / 3))
    assert (b["accuracy"], b["IoU"]) == pytest.approx((600 / 7, 100 * (2 / 3 + 3 / 4 + 1) / 3))

    rows = [{"kernels": "k", "method": m, "accuracy": share} for m, share in (("a", 60.0), ("b", 70.0), ("a", 80.0), ("b", 70.0))]
    assert [r["best"] for r in mark_best(rows)] == [None, "yes", "yes", "yes"]


@pytest.mark.skipif(not all(find_spec(name) for name in ("skimage", "numba")), reason="the extra [densecrf] is not installed")
def test_a_quick_run_with_cliques_keeps_bounds_below_energies_and_breaks_fewer(tmp_path: Path) -> None:
    records = quick_run("densecrf_cliques", tmp_path)
    for energy in ("pairs", "with cliques"):
        rows = [r for r in records if r["minimised"] == energy]
        assert max(r["bound"] for r in rows) <= min(r[energy] for r in records)  # of every labelling, whatever it minimised
    alone, both = ([r for r in records if r["minimised"] == energy] for energy in ("pairs", "with cliques"))
    assert min(r["with cliques"] for r in both) <= min(r["with cliques"] for r in alone)
    assert min(r["breaks"] for r in both) <= min(r["breaks"] for r in alone)


@pytest.mark.parametrize("case", [pytest.param("mrf_methods", marks=QPBO), pytest.param("mrf_forms", marks=CRF)])
def test_a_quick_run_on_mrfs_has_no_bound_above_an_energy(case: str, tmp_path: Path) -> None:
    *records, counted = quick_run(case, tmp_path, "--limit", "2")
    assert (tmp_path / f"{case}.png").exists() == (case == "mrf_forms")
    for record in records:
        cells = {name: cell for name, cell in record.items() if isinstance(cell, dict) and "energy" in cell}
        least = min(cell["energy"] for cell in cells.values())
        bounds = [record[f"{name} bound"]["value"] for name in ("LP", "tightened")]
        assert len(cells) >= 8 and max(bounds) <= least + 1e-9 * abs(least)
        assert all(cell["least"] for cell in cells.values() if cell["energy"] == least)
    assert int(counted["LP"]["shown"]) <= len(records)


@QPBO
def test_a_quick_run_of_root_bounds_orders_them(tmp_path: Path) -> None:
    records = quick_run("tightening", tmp_path, "--limit", "3")
    assert (tmp_path / "tightening.png").exists()
    for record in records:
        assert record["faults"] is None and record["LP error"] <= 1e-6, record
        assert record["tightened %"] <= record["max-flow %"] + 1e-6
    dense = next(r for r in records if r["instance"] == "g05_60.0")
    assert dense["semidefinite %"] < dense["tightened %"] < dense["max-flow %"]


@QPBO
def test_a_quick_run_of_exact_solvers_agrees(tmp_path: Path) -> None:
    records = quick_run("exact", tmp_path, "--limit", "5")
    assert (tmp_path / "exact.png").exists()
    assert {r["instance"]: r["best"]["value"] for r in records}.items() >= {"bqp50-1": -2098, "myciel5": -23}.items()
    for record in records:
        assert record["disagrees"] is None, record
        assert record["blocklp"]["done"] and record["nodes"] >= 0
        assert "crashed" not in [cell["shown"] for cell in record.values() if isinstance(cell, dict)]


def quick_run(case: str, folder: Path, *more: str) -> list[dict[str, Any]]:
    """Records of a quick run, which all have the same keys."""
    command = [sys.executable, "-m", "bench", "run", case, "--quick", "--out", str(folder), *more]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    records: list[dict[str, Any]] = json.loads((folder / f"{case}.json").read_text())["records"]
    assert len({tuple(r) for r in records}) == 1
    return records


@pytest.mark.parametrize("solver", ["toulbar2", "CP-SAT", "HiGHS", "Gurobi"])
def test_an_exact_rival_gets_the_instance_that_is_meant(solver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from bench.contest import judged, rival, value, write

    draw = np.random.default_rng(3)
    qubo = Qubo.from_matrix(np.triu(draw.integers(-9, 10, (8, 8))))
    graph = WeightedGraph.from_edges(draw.random(8), [(i, j) for j in range(8) for i in range(j) if draw.random() < 0.4])
    tables = draw.normal(size=(7, 2, 3))
    tables[:4, 0, 2] = np.inf
    counts = np.array([2, 3] * 4)
    chain = [((i, i + 1), tables[i] if i % 2 == 0 else tables[i].T) for i in range(7)]
    field = Mrf(counts, [*chain, ((1,), [0.0, np.inf, 0.5]), ((0, 3), draw.normal(size=(2, 3)))], 1.25)
    for number, instance in enumerate((qubo, graph, field)):
        points = np.array(list(itertools.product(*map(range, counts if instance is field else [2] * 8))))
        least = min(value(instance, point) for point in points)
        file = tmp_path / f"{number}.npz"
        write(instance, file)
        answer = rival(solver, file, 20.0)
        if answer.get("fault") == "missing":
            pytest.skip(f"{solver} is not installed")
        answers, best, wrong = judged(instance, {solver: answer}, None)
        assert answers[solver]["done"] and not wrong
        assert best == pytest.approx(least, abs=1e-5) and answers[solver]["bound"] == pytest.approx(least, abs=1e-4)


def test_claims_that_cannot_be_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from bench.contest import judged

    qubo = Qubo(np.array([-1.0, -1.0]), [[0, 1]], [2.0])
    honest = {"labels": [1, 0], "bound": -1.0, "nodes": 1, "seconds": 1.0, "done": True}
    answers = {
        "honest": dict(honest),
        "open": {**honest, "bound": -2.0, "done": False},
        "wrong": {**honest, "labels": [1, 1], "bound": -1.0},
        "too high": {**honest, "bound": 0.0, "done": False},
        "gone": {"fault": "crashed"},
    }
    found, best, wrong = judged(qubo, answers, None)
    assert best == -1 and [text.partition(":")[0] for text in wrong] == ["wrong", "too high"]
    assert [found[name]["shown"] for name in ("honest", "open", "gone")] == ["1.00 s", "50 %", "crashed"]


def test_a_method_of_ours_that_dies_leaves_a_fault_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    from bench.contest import Ours

    with Ours() as ours:
        assert ours(os._exit, 1) == {"fault": "crashed"}
        assert ours(int, "no number")["fault"].startswith("failed")
        assert ours(dict, [("bound", 1.0)]) == {"bound": 1.0}
