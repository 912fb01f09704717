"""Compile the loops of all backends once on a machine: ``blocklp warm-up``.

Solves choose loops that are ready (:mod:`blocklp.kernels.backend`), and compile them themselves only where tensor
operations would take longer than that.  Loops are kept beside the source, or where ``NUMBA_CACHE_DIR`` says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed

import numpy as np
import torch

import blocklp as bl
from blocklp.campaigns import LocalExecutor
from blocklp.deadline import Deadline
from blocklp.errors import MissingDependencyError, install
from blocklp.kernels import compiled
from blocklp.kernels.backend import ENGINE
from blocklp.kernels.block_source import module_of
from blocklp.kernels.settings import EngineSettings
from blocklp.language.compiled_models import ModelList
from blocklp.oracles import (
    Arborescence,
    AtMostOne,
    Cut,
    Edge,
    Knapsack,
    Path,
    ResourcePath,
    Simplex,
    Transport,
    Tree,
)
from blocklp.solver import Solver

FUSED = "blocklp.kernels.fused_kernels"
ON_GRAPHS = tuple(f"blocklp.oracles.{name}_kernels" for name in ("cut", "path", "resource_path", "transport", "tree"))
LINEAR_NODES = "blocklp.kernels.dual_simplex_kernels"
ACTIVE_VERTICES = "blocklp.kernels.vertex_kernels"
SEARCHES = tuple(
    f"blocklp.problems.{name}_kernels"
    for name in ("qpbo.annealing", "qpbo.cycle", "qpbo.search", "mis.search", "mrf.messages", "verification.ascent")
)

PROCESSES = 8
"""Processes at most: more would wait for the longest parts."""


def ready() -> dict[str, bool] | None:
    """Return which parts of the engine's loops are compiled in double precision, by name; None without numba."""
    if (found := {module: compiled.loops(module) for module in ENGINE})[ENGINE[0]] is None:
        return None
    names = {module: module.rpartition(".")[2].replace("_", " ") for module in ENGINE}
    return {names[module]: loops is not None and compiled.cached(loops, torch.float64) for module, loops in found.items()}


def warm_up() -> Iterator[tuple[str, float]]:
    """Compile the loops of the engine, of block types and of searches, in both precisions, in several processes.

    Yields
    ------
    part, seconds : str, float
        What was made ready, and how long it took: next to nothing where it had been.

    Raises
    ------
    MissingDependencyError
        If numba is missing.
    ProcessError
        If a process ends before its work is done, as where memory runs out.
    """
    if compiled.loops(ENGINE[0]) is None:
        raise MissingDependencyError(f"there are no loops to compile without numba: {install('fast')}")
    with LocalExecutor(min(os.cpu_count() or 1, PROCESSES)) as executor:
        parts = [executor.submit(_part, name) for name in _parts()]
        searches = [executor.submit(_search, module) for module in SEARCHES]
        for done in as_completed([*parts, executor.submit(_on_graphs), *searches]):
            yield from done.result()
    compiled.cached.cache_clear()


def _parts() -> dict[str, tuple[Callable[[torch.dtype], None], tuple[str, ...]]]:
    """Solves that compile the loops of some modules in a precision, those that take longest first."""
    return {
        "passes over rows": (_rows, tuple(m for m in ENGINE if m != FUSED)),
        "passes over edges": (_edges, _modules(Edge())),
        "blocks with vertices": (_vertices, (FUSED,)),
        "proximal points of blocks": (_proximal, _modules(*_kinds())),
        "nodes of linear programs": (_linear_nodes, (LINEAR_NODES,)),
        "proximal layers": (_layers, (ACTIVE_VERTICES,)),
    }


def _part(name: str) -> list[tuple[str, float]]:
    """Compile a part in both precisions, one after the other, as both need loops in double precision."""
    taken = []
    run, modules = _parts()[name]
    for kind in (torch.float64, torch.float32):
        began = time.perf_counter()
        run(kind)
        for module in modules:
            found = compiled.loops(module)
            assert found is not None
            compiled.mark(found, kind)
        taken.append((f"{name}, {str(kind).removeprefix('torch.')}", time.perf_counter() - began))
    return taken


def _search(module: str) -> list[tuple[str, float]]:
    """Compile the loops of a search of a problem module."""
    began, found = time.perf_counter(), compiled.loops(module)
    assert found is not None
    found.rehearse()
    compiled.mark(found, torch.float64)
    problem, loops = module.removesuffix("_kernels").split(".")[2:]
    return [(f"{loops} of {problem}", time.perf_counter() - began)]


def _modules(*kinds: bl.BlockType) -> tuple[str, ...]:
    """The modules of loops that are written for some types."""
    return tuple(m for kind in kinds if (m := module_of(kind, int(kind.dim or 0))) is not None)


def _linear_nodes(_kind: torch.dtype) -> None:
    """Nodes, all in double precision, whatever iterates."""
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(np.ones((1, 3)) @ x <= 2)
    m.maximize(x[0] + 2 * x[1])
    bl.LinearNodes(m)


def _layers(_kind: torch.dtype) -> None:
    """Points and gradients of a layer, all in double precision, whatever its costs have."""
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    price = m.parameter("price", 3)
    m.add(_Answers(), x[None])
    m.minimize((price * x).sum())
    costs = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    bl.Layer(m, cost=price)(costs).sum().backward()


def _edges(kind: torch.dtype) -> None:
    """ADMM with anchors and restarts, for one instance, for several, for a large one in parts, and with a hook."""
    models = [_pairs(30), _pairs(12)]
    one, hooked = models[0], _pairs(12)
    hooked.repair_with(lambda x: x)
    for some in ([one], models, [hooked]):
        _solved(bl.compile(some, dtype=kind, backend="numba"), "admm")
    _solved(Solver(ModelList([one]), torch.device("cpu"), kind, "numba", EngineSettings(divided_copies=0)), "admm")


def _rows(kind: torch.dtype) -> None:
    """PDHG with projected points, for one instance, for a large one in parts, and for a batch; small vertices."""
    for batch, divided in ((1, 10**12), (1, 0), (40, 10**12)):
        m = bl.Model(batch)
        x = m.variable("x", 30, lower=0, upper=1)
        m.add(Knapsack(np.linspace(1, 2, 6), 4.0, least=3.0), x.reshape(5, 6))
        m.add(np.eye(30)[:20] @ x <= 0.9)
        m.minimize((torch.sin(torch.arange(30.0 * batch)).reshape(batch, 30).double() * x).sum())
        settings = EngineSettings(divided_numbers=divided)
        solver = Solver(ModelList([m]), torch.device("cpu"), kind, "numba", settings)
        for method in ("pdhg", "race", "newton"):
            _solved(solver, method)


def _vertices(kind: torch.dtype) -> None:
    """Pairwise steps over blocks with a table, and over blocks with a few answers of their oracle."""
    for dim in (2, 8):
        m = bl.Model()
        x = m.variable("x", 8, lower=0, upper=1)
        table = np.concatenate([np.zeros((1, dim)), np.eye(dim), 1 - np.eye(dim), np.tri(dim)[::-1]])
        m.add(bl.FiniteVertices(np.unique(table, axis=0)), x.reshape(8 // dim, dim))
        m.add(bl.FiniteVertices([[0, 0], [1, 0], [0, 1]]), x.reshape(4, 2))
        m.minimize(np.sin(np.arange(8.0)) @ x)
        for method in ("prox", "admm"):
            _solved(m.compile(dtype=kind, backend="numba"), method)
    polytope = bl.Model()
    y = polytope.variable("y", 6, lower=0, upper=1)
    polytope.add(_Answers(), y.reshape(2, 3))
    polytope.add(AtMostOne(2), y.reshape(3, 2))
    polytope.minimize(np.sin(np.arange(6.0)) @ y)
    _solved(polytope.compile(dtype=kind, backend="numba"), "admm")


class _Answers(bl.BlockType):
    """A box without a formula for proximal points."""

    dim = 3

    def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take what is worth something."""
        point = (cost < 0).to(cost)
        return point, (cost * point).sum(-1)


def _on_graphs() -> list[tuple[str, float]]:
    """Ask oracles on graphs, with and without cycles."""
    began, around = time.perf_counter(), ([0, 1, 2], [1, 2, 0])
    kinds = (
        Arborescence(*around),
        Cut(*around, 0, 2),
        Path(*around, 0, 2),
        Path([0, 1], [1, 2], 0, 2),
        ResourcePath(*around, 0, 2, [[1]], [[4]]),
        Transport([1.0, 1.0], [1.0]),
        Tree(*around),
    )
    for kind in kinds:
        kind.min_oracle(torch.zeros(1, 1, kind.dim, dtype=torch.float64))
    for module in ON_GRAPHS:
        if (found := compiled.in_time(module, torch.float64)) is not None:
            compiled.mark(found, torch.float64)
    return [("blocks on graphs", time.perf_counter() - began)]


def _kinds() -> list[bl.BlockType]:
    """Types with a proximal point of one block, in their usual forms."""
    ones = np.ones(4)
    both = Knapsack(ones, 2.0), Knapsack(ones, 2.0, least=1.0)
    return [Simplex(4), AtMostOne(4), *both, bl.Box(np.zeros(4), ones)]


def _proximal(kind: torch.dtype) -> None:
    """ADMM over blocks of every such type."""
    for block in _kinds():
        m = bl.Model()
        x = m.variable("x", 8, lower=0, upper=1)
        m.add(block, x.reshape(2, 4))
        m.add(AtMostOne(2), x.reshape(4, 2))
        m.minimize(np.sin(np.arange(8.0)) @ x)
        _solved(m.compile(dtype=kind, backend="numba"), "admm")


def _pairs(n: int) -> bl.Model:
    """Roof duality on a ring with chords."""
    ends = np.array([(i, (i + step) % n) for i in range(n) for step in (1, 3)])
    m = bl.Model()
    y, z = m.variable("y", n, lower=0, upper=1, grid=0.5), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize(np.sin(np.arange(float(n))) @ y + np.cos(np.arange(float(len(ends)))) @ z)
    return m


def _solved(solver: Solver, method: str) -> None:
    """Make enough passes for all that a solve may call."""
    solver.solve(method=method, tol=0, passes=260, time_limit=Deadline())
