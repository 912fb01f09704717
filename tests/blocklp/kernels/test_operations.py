"""Operations: every implementation of a backend does what the definition does, and backends can be added from outside."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from bench.families import ring
from blocklp.decomposition.block_runs import completed
from blocklp.engine.loop import run  # imports the definitions of the engine
from blocklp.errors import OptionError
from blocklp.kernels import backend as backends
from blocklp.kernels import compiled
from blocklp.kernels.backend import ENGINE, Backend, add_backend
from blocklp.kernels.operations import IMPLEMENTATIONS, OPERATIONS, implements, lays_out
from blocklp.kernels.plan import Plan
from blocklp.methods.active_set import VertexCache
from blocklp.methods.base import MethodState
from blocklp.methods.consensus import residuals
from blocklp.methods.proximal_weight import ResidualBalancing
from blocklp.oracles import AtMostOne, Simplex

from ...block_types import Oracle, Table, choices, sharing

REPOSITORY = Path(__file__).parents[3]
assert run is not None


def shared(*kinds: bl.BlockType) -> Callable[[np.random.Generator], bl.Model]:
    """What states a model of blocks in rows and columns."""
    return lambda draw: sharing(draw, *kinds)


def rows(draw: np.random.Generator) -> bl.Model:
    """A batch that is worth loops."""
    return choices(draw, 20)


class Creeping(ResidualBalancing):
    """A rule of its own, which compiled loops do not know."""

    def update(self, eta: Tensor, origin: Tensor, passes: int, primal: Tensor, dual: Tensor) -> Tensor:
        """A little less or a little more."""
        return torch.where(primal > dual, eta / 1.05, eta * 1.05)


class AnotherRule(bl.methods.Admm):
    """ADMM with another rule for its weight."""

    balance = Creeping()


FIRST = {"admm_first_means", "admm_first_iterates"}

# What is asked of the engine, and the operations that this must reach in compiled loops.
CASES: dict[str, tuple[Callable[[np.random.Generator], bl.Model], str | bl.methods.Method, set[str]]] = {
    "edges": (
        ring,
        "admm",
        {
            "admm_first_means",
            "admm_first_iterates",
            "admm_passes",
            "admm_settled",
            "improved_bounds",
            "offer_mean",
            "finish_points",
            "status_record",
        },
    ),
    "another rule": (ring, AnotherRule(), {"admm_passes", "admm_restart"}),
    "groups": (shared(AtMostOne(3), Simplex(3)), "admm", {"admm_block_points"}),
    "tables": (shared(Table(), Table()), "admm", {"steps_to_points"}),
    "oracles": (shared(Oracle(), Oracle()), "admm", {"steps_to_points"}),
    "sweeps": (shared(Table(), Table()), "prox", {"ask_group", "advance_group"}),
    "rows": (rows, "pdhg", {"pdhg_passes", "row_products", "row_adjoints", "row_extremes", "projection_passes"}),
    "vertices": (rows, "race", {"vertices"}),
    "proximal": (rows, "newton", {"projected", "curvature"}),
}


SAME = {torch.float64: {"rtol": 1e-8, "atol": 1e-9}, torch.float32: {"rtol": 1e-3, "atol": 1e-4}}
"""How far backends agree, by precision of the iterates."""


def copied(value: Any) -> Any:
    """Tensors of their own, in whatever holds them."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(copied, value))
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if isinstance(value, MethodState | VertexCache):
        return replace(value, **{f.name: copied(getattr(value, f.name)) for f in fields(value)})
    return value


def with_points(plan: Plan, state: Any) -> Any:
    """A state of ADMM with the proximal points around its iterate, which loops over whole instances do not keep."""
    state, still = replace(copied(state), ready=torch.ones_like(state.ready)), state.ready
    for number, group in enumerate(plan.problem.groups):
        if group.shares:
            OPERATIONS["admm_block_points"].definition(plan, state, number, 0.0, 1)
    return replace(state, ready=still)


def by_definition(plan: Any) -> Any:
    """The plan or program without a backend."""
    return replace(plan, backend=Backend("torch"), **({"tables": None} if isinstance(plan, Plan) else {}))


def compared(name: str, tolerance: dict[str, float], function: Callable[..., Any], plan: Any, *args: Any) -> Any:
    """Run an implementation and the definition on copies of the same arguments, and compare all that they write.

    One pass, or one pairwise step: a step of the best length makes two vertices tie, and rounding chooses the next one.
    """
    if name in ("pdhg_passes", "admm_passes", "steps_to_points"):
        args = *args[:-1], 1
    elif name == "advance_group":
        args = *args[:2], (*args[2][:-1], 1), args[3]
    own, pure = tuple(map(copied, args)), by_definition(plan)
    if name.startswith("admm_") and name != "admm_block_points":  # of copies that are not coupled a pass needs the cost alone
        coupled = (plan.problem.counts > 1).expand_as(plan.problem.cost)
        copies = plan.problem.spread(coupled.double()) > 0
    if name in ("admm_passes", "admm_restart", "admm_settled"):
        own = with_points(pure, args[0]), *own[1:]
    if name == "admm_settled":
        pure = replace(pure, tables=plan.tables)  # residuals are those that the passes measured
    elif name == "pdhg_passes":
        own = replace(own[0], program=by_definition(own[0].program)), *own[1:]
    elif name == "advance_group":  # the answer may come from loops, without the costs of vertices
        answer = own[1]
        own = own[0], answer.atoms.answer(own[0], own[2][0], answer.weights, answer.earlier), *own[2:]
    known, found = OPERATIONS[name].definition(pure, *own), function(plan, *args)
    if name == "admm_passes":
        known = bl.methods.Admm().finish(pure, known[0])
        pairs = [(found[0].iterate[copies], known.iterate[copies]), (found[0].duals, known.duals)]
        pairs += [(getattr(found[0], part)[coupled], getattr(known, part)[coupled]) for part in ("reflected", "mean")]
        pairs += [(residuals(plan, found[0]), residuals(pure, known))]
    elif name == "admm_first_means":
        pairs = [(found[0][coupled], known[0][coupled]), (found[1:], known[1:])]
    elif name == "admm_first_iterates":
        pairs = [(found[copies], known[copies])]
    elif name == "admm_restart":
        anchors = args[-1].shape[1] > 0
        pairs = [(args[0].iterate[copies], own[0].iterate[copies])]
        pairs += [(args[-1][copies], own[-1][copies])] if anchors else []
    elif name == "admm_settled":
        for part in ("eta", "ready", "age", "origin", "last"):
            assert torch.equal(getattr(found, part), getattr(known, part)), part
        assert found.anchor.shape == known.anchor.shape
        pairs = [(args[0].iterate[copies], own[0].iterate[copies])]
        pairs += [(found.anchor[copies], known.anchor[copies])] if known.anchor.shape[1] else []
    elif name == "admm_block_points":
        pairs = [(getattr(args[0], part), getattr(own[0], part)) for part in ("iterate", "points")]
    elif name == "pdhg_passes":
        names = "now", "bar", "first", "eta", "age", "residual", "first_residual"
        pairs = [(getattr(found[0], part), getattr(known[0], part)) for part in names]
        pairs += [(found[0].pulled.sum(1), known[0].pulled.sum(1))]
    elif name == "ask_group":
        part = slice(args[0].start, args[0].stop)
        pairs = [(found[1], known[1]), (args[1].duals[:, part], own[1].duals[:, part])]
    elif name == "advance_group":
        pairs = [(found, known), (args[-1], own[-1])]
    elif name == "steps_to_points":
        pairs = [(found[1], known[1]), (args[3][0], own[3][0])]
    elif name == "offer_mean":
        pairs = [(args[-2], own[-2])]
    elif name == "finish_points":  # the definition has nothing to do, as it leaves nothing out before
        rows, x = args
        pairs = [(x[rows], completed(plan.problem.select(rows), x[rows]))]
    elif name == "row_adjoints":
        pairs = [(found[:, : args[0].in_blocks], known[:, : args[0].in_blocks])]
    elif name == "projected":
        pairs = [(getattr(found, part), getattr(known, part)) for part in ("x", "activity")]
    elif name == "curvature":
        pairs = [(found.dense(), known.dense()), (found.diagonal(), known.diagonal())]
    elif name == "vertices":  # the definition leaves all to passes; test_vertices.py has HiGHS beside
        assert not bool(known[2].any()) and bool(found[2].any())
        pairs = []
    else:
        pairs = [(found, known)]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, **tolerance, msg=lambda said: f"{name}: {said}")
    return found


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Have backends and implementations that a test adds forgotten after it.

    Our own are imported first: what registers while a test runs would be forgotten too, for good.
    """
    there = {"numba": compiled.loops(ENGINE[0]) is not None, "triton": find_spec("triton") is not None}
    for name in (name for name, found in there.items() if found):
        for module in backends.known(name).modules:
            importlib.import_module(module)
    known, registered = dict(backends.BACKENDS), {key: list(own) for key, own in IMPLEMENTATIONS.items()}
    yield
    for table, before in ((backends.BACKENDS, known), (IMPLEMENTATIONS, registered)):
        table.clear()
        table.update(before)  # type: ignore[arg-type]


TESTED = ("numba",)
"""Backends whose implementations are compared with the definitions."""


@pytest.fixture(params=TESTED)
def comparing(request: pytest.FixtureRequest, forgotten: None, dtype: torch.dtype) -> set[str]:
    """A backend named "compared", whose operations run numba's and compare it with the definition; returns those that ran."""
    pytest.importorskip("numba")
    tested: str = request.param
    ran: set[str] = set()
    add_backend("compared", builds_on=tested)

    def both(name: str, *args: Any) -> Any:
        found = next(own for own in IMPLEMENTATIONS[name, tested] if own.serves(*args))
        ran.add(name)
        return compared(name, SAME[dtype], found.function, *args)

    for name in [name for name, backend in IMPLEMENTATIONS if backend == tested]:

        def serves(*args: Any, name: str = name) -> bool:
            return any(own.serves(*args) for own in IMPLEMENTATIONS[name, tested])

        implements(name, "compared", serves)(partial(both, name))
    return ran


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("seed", "dtype"), [*((seed, torch.float64) for seed in range(3)), (3, torch.float32)])
def test_compiled_loops_do_what_definitions_say(case: str, seed: int, dtype: torch.dtype, comparing: set[str]) -> None:
    stated, method, reached = CASES[case]
    solver = stated(np.random.default_rng(seed)).compile(backend="compared", dtype=dtype)
    found = solver.solve(method=method, tol=0, passes=60)
    assert solver.backend == "compared" and bool(torch.isfinite(found.bound).all())
    assert reached <= comparing


def test_every_implementation_has_a_definition_and_a_case() -> None:
    pytest.importorskip("numba")
    for module in backends.known("numba").modules:
        importlib.import_module(module)
    implemented = {
        name
        for (name, backend), found in IMPLEMENTATIONS.items()
        if backend == "numba" and not all("blocklp.distributed" in own.function.__module__ for own in found)
    }  # those are compared in tests/blocklp/distributed
    assert implemented <= set(OPERATIONS)
    assert implemented == set().union(*(reached for _, _, reached in CASES.values()))


def test_the_documentation_lists_all_operations() -> None:
    for module in ("blocklp.problems.densecrf.mean_field", "blocklp.distributed.sharding"):
        importlib.import_module(module)  # have operations, too
    page = (REPOSITORY / "docs" / "extending.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| `([\w/.]+)` \|", page, re.MULTILINE))
    folder = {name: found.definition.__module__.replace(".", "/") + ".py" for name, found in OPERATIONS.items()}
    assert listed == folder


@pytest.mark.usefixtures("forgotten")
def test_a_backend_can_be_added_from_outside() -> None:
    """It implements one operation in one case, finds there what it laid out, and leaves the rest to definitions."""
    add_backend("outside", device="cpu")
    asked: list[int] = []

    @implements("row_products", "outside", serves=lambda program, problem, rows, x: len(x) == 20)
    def products(program: Any, problem: Any, rows: Any, x: Tensor) -> Tensor:
        asked.append(len(x))
        return OPERATIONS["row_products"].definition(program, problem, rows, x)

    for batch in (20, 1):
        model = rows(np.random.default_rng(0))
        model = model if batch == 20 else shared(AtMostOne(3), Simplex(3))(np.random.default_rng(0))
        here, there = (model.compile(backend=name) for name in ("outside", "torch"))
        ours, theirs = (solver.solve(method="pdhg", passes=200) for solver in (here, there))
        assert torch.equal(ours.bound, theirs.bound) and here.backend == "outside"
    assert asked and set(asked) == {20}


@pytest.mark.usefixtures("forgotten")
def test_an_operation_that_there_is_not_is_refused() -> None:
    add_backend("misspelt")
    implements("row_product", "misspelt")(print)
    with pytest.raises(OptionError, match="backend 'misspelt' implements row_product; there are admm_block_points"):
        rows(np.random.default_rng(0)).solve(backend="misspelt")


def test_backends_that_cannot_be_are_refused() -> None:
    with pytest.raises(OptionError, match="there is a backend 'numba' already"):
        add_backend("numba")
    with pytest.raises(OptionError, match="backend is 'none'; choose one of 'auto', 'torch', 'numba'"):
        add_backend("other", builds_on="none")
    with pytest.raises(OptionError, match="backend is 'none'"):
        implements("row_products", "none")
    with pytest.raises(OptionError, match="backend is 'none'"):
        lays_out("none")
