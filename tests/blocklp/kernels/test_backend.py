"""Which backend a solve runs on: chosen by counts and by what is installed, said, and never wrong about what is ready."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.errors import MissingDependencyError, OptionError
from blocklp.kernels import compiled
from blocklp.kernels.backend import BY_BLOCKS, ENGINE, PER_COPY, PER_PASS, Backend, choose
from blocklp.kernels.compiled import COMPILING, LOADING
from blocklp.kernels.plan import Plan
from blocklp.options import known_backend
from blocklp.oracles import Simplex
from blocklp.oracles.filters.lattice_operations import LOOPS

CPU, DOUBLE = torch.device("cpu"), torch.float64


def model(blocks: int = 10) -> bl.Model:
    m = bl.Model()
    x = m.variable("x", 3 * blocks, lower=0, upper=1)
    m.add(Simplex(3), x[np.arange(3 * blocks).reshape(blocks, 3)])
    m.minimize(np.arange(3.0 * blocks) @ x)
    return m


def chosen(copies: int, asked: str = "auto", limit: float = np.inf) -> Backend:
    return choose(asked, CPU, copies, 100, frozenset(), DOUBLE, Deadline(limit))


def test_methods_on_blocks_load_no_loops_for_rows() -> None:
    pytest.importorskip("numba")
    plan = Plan(model().compile().decomposition(), backend=Backend("numba"))
    assert plan.settled(DOUBLE, 1).backend.modules >= set(ENGINE)
    assert not plan.settled(DOUBLE, 1, by_rows=False).backend.modules & (set(ENGINE) - set(BY_BLOCKS))


@pytest.mark.parametrize("cached", [True, False])
def test_auto_takes_loops_where_loading_or_compiling_them_pays(cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(compiled, "cached", lambda module, kind: cached)
    least = ((LOADING if cached else COMPILING) / 100 - PER_PASS) / PER_COPY
    assert chosen(int(0.9 * least)) == Backend("torch")
    assert chosen(int(1.1 * least)) == Backend("numba", frozenset(ENGINE))
    assert chosen(1, "numba").name == "numba" and chosen(10**9, "torch").name == "torch"
    assert choose("auto", torch.device("meta"), 10**9, 100, frozenset(), DOUBLE, Deadline()).name == "torch"
    if not cached:  # no time is left to compile
        assert chosen(10**9, limit=COMPILING).name == chosen(1, "numba", limit=COMPILING).name == "torch"


def test_the_environment_says_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKLP_BACKEND", "torch")
    assert chosen(10**9).name == "torch"
    monkeypatch.setenv("BLOCKLP_BACKEND", "fortran")
    with pytest.raises(OptionError, match="BLOCKLP_BACKEND is 'fortran'; choose one of 'auto', 'torch', 'numba'"):
        model().solve()


def test_a_solver_shows_its_backend(use_backend) -> None:
    use_backend("numba")
    for asked, used in (("auto", "numba"), ("torch", "torch"), ("numba", "numba")):
        solver = model().compile(backend=asked)
        assert solver.backend == asked
        assert solver.solve(method="pdhg").status == (bl.Status.OPTIMAL,)
        assert solver.backend == used and f"backend {used}" in repr(solver)
    assert model().solve(backend="torch").status == (bl.Status.OPTIMAL,)


@pytest.mark.parametrize("asked", ["fused", 1, None])
def test_an_unknown_backend_is_refused(asked: object) -> None:
    with pytest.raises(OptionError, match="choose one of 'auto', 'torch', 'numba'"):
        model().compile(backend=asked)


def test_numba_must_be_there_and_the_device_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blocklp.options.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="needs numba"):
        model().compile(backend="numba")
    with pytest.raises(OptionError, match="'numba' is for devices of type 'cpu', and the device is meta"):
        known_backend("numba", torch.device("meta"))


SCRIPT = """
import sys
import numpy as np
import torch
import blocklp as bl
from blocklp.kernels import compiled
from blocklp.oracles import Simplex
from blocklp.kernels.program import PASSES
m = bl.Model()
x = m.variable("x", 30, lower=0, upper=1)
m.add(Simplex(3), x[np.arange(30).reshape(10, 3)])
m.minimize(np.arange(30.0) @ x)
m.solve(method="pdhg", passes=20, tol=0, project=False, backend=sys.argv[1])
found = compiled.loops(PASSES)
print(compiled.cached(found, torch.float64), compiled.cached(found, torch.float32))
"""


@pytest.mark.slow
def test_a_cache_tells_that_nothing_need_be_compiled(tmp_path: Path) -> None:
    """In the same precision only; a process that ran no loops marks nothing."""
    pytest.importorskip("numba")

    def run(backend: str) -> str:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}  # compiled in half of the time
        done = subprocess.run([sys.executable, "-c", SCRIPT, backend], capture_output=True, text=True, env=environment, check=True)
        return done.stdout.strip()

    assert run("auto") == "False False"
    assert run("numba") == "True False"
    assert run("torch") == "True False"


@pytest.mark.parametrize("how", ["missing", "disabled"])
def test_without_numba_that_is_said_once(how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    if how == "missing":
        monkeypatch.setattr(compiled, "loops", lambda module: None)
    else:
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
        monkeypatch.setattr(compiled, "loops", compiled.loops.__wrapped__)
    monkeypatch.setattr(compiled, "_said", [])
    with caplog.at_level("WARNING", "blocklp"):
        assert chosen(10**7).name == chosen(10**7).name == "torch"
    assert [record.message for record in caplog.records] == [
        "numba is missing or disabled: passes take several times as long: pip install -e '.[fast]' in a clone of blocklp"
    ]


def test_a_wrong_name_of_loops_is_not_taken_for_a_missing_package() -> None:
    pytest.importorskip("numba")
    with pytest.raises(ModuleNotFoundError, match="no_such_kernels"):
        compiled.loops("blocklp.kernels.no_such_kernels")


def test_the_loops_of_filters_are_there() -> None:
    pytest.importorskip("numba")
    assert all(compiled.loops(module) is not None for module in LOOPS.values())


def test_no_file_but_the_backends_names_a_type_of_device() -> None:
    """Another accelerator needs a line there; comments and messages aside, only kernels of Triton are for one."""
    root = Path(__file__).parents[3]
    files = [f for part in ("blocklp", "oracles", "problems") for f in (root / part).rglob("*.py") if not f.is_symlink()]
    assert len(files) > 150
    named = {f.name for f in files if re.search(r"""["']cuda|\.is_cuda|torch\.cuda""", f.read_text())}
    assert {name for name in named if not name.startswith("triton_")} <= {"backend.py"}
