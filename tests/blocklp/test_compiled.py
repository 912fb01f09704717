"""When compiled loops take over from tensor operations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from blocklp import compiled

MODULE = "blocklp.consensus_kernels"
DOUBLE, SINGLE = torch.float64, torch.float32


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was solved yet."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiled, "_spent", {})


@pytest.mark.parametrize("cached", [True, False])
def test_loops_wait_until_they_are_worth_loading_or_compiling(cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "cached", lambda module, kind: cached)
    seconds = 0.0
    for more in (0.0, compiled.LOADING / 2, compiled.LOADING, compiled.COMPILING - 2 * compiled.LOADING, compiled.COMPILING):
        compiled.spend(MODULE, DOUBLE, more)
        seconds += more
        due = seconds >= (compiled.LOADING if cached else compiled.COMPILING)
        assert compiled.earned(MODULE, DOUBLE) is (compiled.loops(MODULE) if due else None)
    assert compiled.earned("blocklp.fused", DOUBLE) is None  # each module and precision for itself
    assert compiled.earned(MODULE, SINGLE) is None


SCRIPT = """
import sys
import numpy as np
import torch
import blocklp as bl
from blocklp import compiled
from blocklp.oracles import Simplex
from blocklp.program import MODULE
if sys.argv[1] == "compile":
    compiled.COMPILING = 0
m = bl.Model()
x = m.variable("x", 30, lower=0, upper=1)
m.add(Simplex(3), x[np.arange(30).reshape(10, 3)])
m.minimize(np.arange(30.0) @ x)
for kind in (torch.float64, torch.float32):
    compiled.spend(MODULE, kind, compiled.LOADING)
m.solve(method="pdhg", passes=20, tol=0, mend=False)
print(compiled.earned(MODULE, torch.float64) is not None, compiled.earned(MODULE, torch.float32) is not None)
"""


def test_a_cache_tells_that_nothing_need_be_compiled(tmp_path: Path) -> None:
    """Half a second of tensor operations is enough for loops that another process compiled, in the same precision only.

    A process that asked for loops and was not worth compiling them notes nothing.
    """

    def run(what: str) -> str:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", SCRIPT, what], capture_output=True, text=True, env=environment, check=True)
        return done.stdout.strip()

    assert [run("wait"), run("wait")] == ["False False", "False False"]
    run("compile")
    assert run("wait") == "True False"


@pytest.mark.parametrize("how", ["missing", "disabled"])
def test_without_numba_that_is_said_once(how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    if how == "missing":
        monkeypatch.setattr(compiled, "loops", lambda module: None)
    else:
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
        monkeypatch.setattr(compiled, "loops", compiled.loops.__wrapped__)
    monkeypatch.setattr(compiled, "_said", [])
    compiled.spend(MODULE, DOUBLE, compiled.LOADING)
    with caplog.at_level("WARNING", "blocklp"):
        assert compiled.earned(MODULE, DOUBLE) is None and compiled.earned(MODULE, DOUBLE) is None
    assert [record.message for record in caplog.records] == [
        "numba is missing or disabled: passes take several times as long: pip install -e '.[fast]' in a clone of blocklp"
    ]
