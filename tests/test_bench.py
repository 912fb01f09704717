"""Every benchmark runs, and no bound in it is above the truth."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(
    not all(find_spec(name) for name in ("ortools", "thinqpbo")), reason="the extra [bench] is not installed"
)


@pytest.mark.parametrize("case", ["table_4_1", "anytime", "scaling", "batch", "real"])
def test_a_quick_run_writes_its_table(case: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "run", case, "--quick", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    document = json.loads((tmp_path / f"{case}.json").read_text())
    assert document["records"] and document["machine"]["torch"]
    for record in document["records"]:
        errors = [v for k, v in record.items() if k in ("error", "largest error") or (k[0].isdigit() and k.endswith(" passes"))]
        assert all(e >= -1e-9 for e in errors), record
    assert (tmp_path / f"{case}.png").exists() == (case in ("anytime", "scaling", "batch"))
    assert f"python -m bench run {case} --quick" in (tmp_path / f"{case}.md").read_text()
