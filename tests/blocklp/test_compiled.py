"""When compiled loops take over from tensor operations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blocklp import compiled

MODULE = "blocklp.consensus_kernels"


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was solved yet."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiled, "_spent", {})


@pytest.mark.parametrize("cached", [True, False])
def test_loops_wait_until_they_are_worth_loading_or_compiling(cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_cached", lambda module: cached)
    seconds = 0.0
    for more in (0.0, compiled.LOADING / 2, compiled.LOADING, compiled.COMPILING - 2 * compiled.LOADING, compiled.COMPILING):
        compiled.spend(MODULE, more)
        seconds += more
        due = seconds >= (compiled.LOADING if cached else compiled.COMPILING)
        assert compiled.earned(MODULE) is (compiled.loops(MODULE) if due else None)
    assert compiled.earned("blocklp.fused") is None  # each module for itself


SCRIPT = """
import sys
import torch
from blocklp import compiled
module = "blocklp.consensus_kernels"
if sys.argv[1] == "compile":
    places, segments = torch.zeros(1, 2, dtype=torch.uint32), torch.tensor([[0, 2]])
    compiled.loops(module).collect(1, 1, places, segments, torch.ones(1, 2), torch.zeros(1, 1))
compiled.spend(module, compiled.LOADING)
print(compiled.earned(module) is not None)
"""


def test_a_cache_tells_that_nothing_need_be_compiled(tmp_path: Path) -> None:
    """Half a second of tensor operations is enough for loops that another process compiled, and is not on a new machine."""

    def run(what: str) -> bool:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", SCRIPT, what], capture_output=True, text=True, env=environment, check=True)
        return done.stdout.strip() == "True"

    assert [run("wait"), run("compile"), run("wait")] == [False, True, True]


def test_without_numba_that_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compiled, "loops", lambda module: None)
    monkeypatch.setattr(compiled, "_said", [])
    compiled.spend(MODULE, compiled.LOADING)
    with caplog.at_level("WARNING", "blocklp"):
        assert compiled.earned(MODULE) is None and compiled.earned(MODULE) is None
    assert [record.message for record in caplog.records] == [
        "numba is not installed: passes take several times as long; pip install 'blocklp[fast]'"
    ]
