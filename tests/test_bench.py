"""Every benchmark runs, and no bound in it is above the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
QPBO = ROOT.parent / "shared" / "data" / "qpbo"
CRF = ROOT.parent / "shared" / "data" / "densecrf"
VERIFICATION = ROOT.parent / "shared" / "data" / "verification"
pytestmark = pytest.mark.skipif(
    not all(find_spec(name) for name in ("ortools", "thinqpbo")), reason="the extra [bench] is not installed"
)


@pytest.mark.parametrize("case", ["table_4_1", "anytime", "scaling", "batch", "real", "large", "traffic", "sparse_lps", "nodes"])
def test_a_quick_run_writes_its_table(case: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "run", case, "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    document = json.loads((tmp_path / f"{case}.json").read_text())
    assert document["records"] and document["machine"]["torch"]
    for record in document["records"]:
        shown = {k: v for k, v in record.items() if v is not None}
        errors = [v for k, v in shown.items() if k in ("error", "largest error") or (k[0].isdigit() and k.endswith(" passes"))]
        assert all(e >= -1e-9 for e in errors), record
    assert (tmp_path / f"{case}.png").exists() == (case in ("anytime", "scaling", "batch"))
    assert f"python -m bench run {case} --quick" in (tmp_path / f"{case}.md").read_text()


def test_counts_do_not_grow(tmp_path: Path) -> None:
    """Passes to an accuracy, operations, memory and loops a pass, against the committed table."""
    command = [sys.executable, "-m", "bench", "run", "counted", "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    fresh = json.loads((tmp_path / "counted.json").read_text())["records"]
    known = {(r["family"], r["method"]): r for r in json.loads((ROOT / "docs/benchmarks/counted.json").read_text())["records"]}
    assert len(fresh) == 4
    for record in fresh:
        before = known[record["family"], record["method"]]
        for what in list(record)[2:]:
            if before[what] is not None:
                assert record[what] is not None and record[what] <= 1.1 * before[what] + 0.5, (record["method"], what)


@pytest.mark.skipif(not VERIFICATION.exists(), reason="the shared verification data is not there")
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


@pytest.mark.skipif(not CRF.exists(), reason="the shared dense CRF data is not there")
@pytest.mark.skipif(not all(find_spec(name) for name in ("PIL", "numba")), reason="the extra [densecrf] is not installed")
@pytest.mark.parametrize("case", ["methods", "mixed", "ordered", "lattice", "mean_field", "iterations"])
def test_a_quick_run_on_dense_crfs_has_no_bound_above_an_energy(case: str, tmp_path: Path) -> None:
    name = f"densecrf_{case}"
    command = [sys.executable, "-m", "bench", "run", name, "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    records = json.loads((tmp_path / f"{name}.json").read_text())["records"]
    assert records and len({tuple(r) for r in records}) == 1
    assert (tmp_path / f"{name}.png").exists() == (case in ("methods", "iterations"))
    if case == "methods":
        for image in {r["image"] for r in records}:
            rows = [r for r in records if r["image"] == image]
            assert max(r["bound"] for r in rows if r["bound"] is not None) <= min(r["own energy"] for r in rows) + 1e-6
            least = min(r["energy"] for r in rows)
            assert least <= next(r["energy"] for r in rows if r["method"] == "mean-field, 25")
    if case == "ordered":
        assert all(r["error"] <= 1.0 for r in records)
    if case == "mixed":
        assert all(r["MF5 same energy"] < r["MF5 normalised"] <= r["unary"] for r in records)


@pytest.mark.skipif(not QPBO.exists(), reason="the shared MRF data is not there")
def test_a_quick_run_on_mrfs_has_no_bound_above_an_energy(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "run", "mrf_methods", "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    records = json.loads((tmp_path / "mrf_methods.json").read_text())["records"]
    assert len({tuple(r) for r in records}) == 1
    for instance in {r["instance"] for r in records}:
        first, *rows = (r for r in records if r["instance"] == instance)
        assert len(rows) >= 6 and all(r["energy"] >= first["bound"] - 1e-9 * abs(first["bound"]) for r in rows)
        assert min(r["above best"] for r in rows) == 0
