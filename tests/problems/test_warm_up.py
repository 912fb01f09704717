"""Loops compiled once: after that, solves find all of them ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from blocklp.deadline import Deadline
from blocklp.errors import MissingDependencyError
from blocklp.kernels import compiled
from blocklp.kernels.backend import ENGINE, choose
from blocklp.kernels.block_source import module_of
from blocklp.oracles import Edge
from blocklp.problems import warm_up

COMMAND = str(Path(sys.executable).with_name("blocklp"))

CHECK = """
import torch
from blocklp.kernels import compiled
from blocklp.kernels.backend import ENGINE
from blocklp.kernels.block_source import module_of
from blocklp.oracles import Edge
from blocklp.problems.warm_up import ACTIVE_VERTICES, ON_GRAPHS, SEARCHES
assert all(compiled.cached(compiled.loops(m), torch.float64) for m in (*ON_GRAPHS, ACTIVE_VERTICES, *SEARCHES))
print([compiled.cached(compiled.loops(m), k) for m in (*ENGINE, module_of(Edge(), 3)) for k in (torch.float64, torch.float32)])
"""


def test_every_loop_of_the_engine_is_ready_afterwards() -> None:
    """Even under a time limit that leaves no time to compile; with the cache at hand, whatever it holds."""
    pytest.importorskip("numba")
    done = subprocess.run([COMMAND, "warm-up", "--json"], capture_output=True, text=True, check=True)
    parts = json.loads(done.stdout)
    assert len(parts) == 19 and all(seconds >= 0 for seconds in parts.values())
    assert all(f"{name}: " in done.stderr for name in parts)
    ready = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    assert json.loads(ready.stdout.lower()) == [True] * 2 * (len(ENGINE) + 1)
    compiled.cached.cache_clear()
    edges = str(module_of(Edge(), 3))
    chosen = choose("numba", torch.device("cpu"), 1, 1, frozenset({edges}), torch.float32, Deadline(compiled.COMPILING))
    assert chosen.modules == {*ENGINE, edges}


def test_without_numba_there_is_nothing_to_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiled, "loops", lambda module: None)
    with pytest.raises(MissingDependencyError, match="without numba"):
        next(warm_up.warm_up())
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([COMMAND, "warm-up"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "without numba" in done.stderr
