"""Processes that start together compile a loop once."""

import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blocklp.kernels.compile_once import COLLECTIONS, collect_rarely

SCRIPT = """
import sys, time
from blocklp.kernels import compiled
import numba.core.compiler as compiler
begun = []
old = compiler.compile_extra
compiler.compile_extra = lambda *args, **given: (begun.append(1), time.sleep(1), old(*args, **given))[-1]
sys.path.insert(0, sys.argv[1])
import loop_of_a_test
print("ready", flush=True)
sys.stdin.readline()
if len(sys.argv) > 2:  # stops in the middle
    compiler.compile_extra = lambda *args, **given: 1 / 0
try:
    print(loop_of_a_test.twice(3), len(begun))
except ZeroDivisionError:
    print("stopped")
"""
LOOP = """
from blocklp.kernels import compiled

@compiled.compile()
def twice(x):
    return 2 * x
"""


def processes(folder: Path, *stops: list[str]) -> list[str]:
    """What processes that begin together print."""
    pytest.importorskip("numba")
    (folder / "loop_of_a_test.py").write_text(LOOP)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    started = [subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), *more], **given) for more in stops]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    return [process.communicate("go\n", timeout=100)[0].strip() for process in started]


@pytest.mark.slow
def test_a_loop_is_compiled_by_one_of_them(tmp_path: Path) -> None:
    assert sorted(processes(tmp_path, [], [])) == ["6 0", "6 1"]


@pytest.mark.slow
def test_a_compilation_that_fails_keeps_nobody_waiting(tmp_path: Path) -> None:
    assert processes(tmp_path, ["stop"], []) == ["stopped", "6 1"]


def test_garbage_is_looked_for_rarely_while_numba_compiles() -> None:
    numba = pytest.importorskip("numba")
    event = importlib.import_module("numba.core.event")
    seen: list[tuple[int, ...]] = []

    class Watching(event.Listener):
        def on_start(self, _event: object) -> None:
            seen.append(gc.get_threshold())

        def on_end(self, _event: object) -> None:
            pass

    collect_rarely()
    doubled = numba.njit(lambda x: 2 * x)
    before, own = gc.get_threshold(), (701, 11, 9)
    gc.set_threshold(*own)
    try:
        with event.install_listener("numba:compile", Watching()):
            assert doubled(3) == 6
            with pytest.raises(numba.core.errors.TypingError):
                doubled(object())
        assert seen == [COLLECTIONS] * len(seen) and len(seen) >= 2 and gc.get_threshold() == own
    finally:
        gc.set_threshold(*before)
