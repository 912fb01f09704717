"""Functions of one block as Triton functions of many: bit for bit what Python returns for each block."""

from __future__ import annotations

import inspect
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.oracles import AtMostOne, Edge, Knapsack, Simplex

from . import test_prox_block

pytest.importorskip("triton", reason="triton is not installed")
tl = pytest.importorskip("triton.language", reason="triton is not installed")

from blocklp.kernels.triton_launch import LANES  # noqa: E402
from blocklp.kernels.triton_source import BlockFunctions, data_arguments, functions_of  # noqa: E402

from .triton_asking import asked  # noqa: E402

BATCH, BLOCKS = 2, 5


class Probe(bl.Box):
    """A box of some dimension whose functions of one block tests replace."""

    block_data = ("lower", "upper", "weight", "table", "open", "places")

    def __init__(self, dim: int) -> None:
        draw = np.random.default_rng(dim)
        super().__init__(np.zeros(dim), np.ones(dim))
        self.weight = torch.from_numpy(draw.normal(size=(BATCH, BLOCKS)))
        self.table = torch.from_numpy(draw.normal(size=(1, BLOCKS, 2, dim)))
        self.places = torch.from_numpy(np.stack([draw.permutation(dim) for _ in range(BLOCKS)])[None])
        self.open = torch.from_numpy(draw.random((BATCH, 1, dim)) < 0.5)


def branches(cost: Any, centre: Any, step: float, point: Any, weight: Any) -> None:
    """Conditions within conditions, chains, whole numbers that become real, and what stands for nothing."""
    count, level, seen = 0, 0.1, False
    for i in range(len(point)):
        point[i] = centre[i] * weight
        if -1 < centre[i] <= weight < 1 or not seen:
            count += 1
            if centre[i] > 0:
                level, seen = level + centre[i] / 3, True
            elif centre[i] < -0.5 and not (seen and count > 1):
                level -= 0.25
            else:
                count = count + 2
    point[0] = level if seen else -level
    point[-1] += count * (0.5 if count == 2 else 1)


def loops(cost: Any, centre: Any, step: float, point: Any, weight: Any) -> None:
    """Loops that lanes leave at different times, by break, continue, or a condition."""
    n, total = len(centre), 0.0
    for i in range(n):
        if centre[i] < -1.0:
            continue
        total += centre[i]
        if total > 0.5:
            break
    turns = 0
    while abs(total) > 0.01 and turns < 30:
        turns += 1
        if turns % 1 == 0 if False else turns == 7:
            total = total * 0.125
            continue
        total = total / 2 if weight > 0 else total * 0.75
        if turns > 20:
            break
    for k in range(1, 3 if weight > 0 else 6, 2):
        total += k * weight
    for i in range(n - 1, -1, -1):
        point[i] = total + i
    point[turns % n if False else 0] = turns


def calls(cost: Any, centre: Any, step: float, point: Any, table: Any, open: Any, upper: Any) -> None:
    """Functions of math and numpy, arrays of block data, swaps and powers."""
    a, b = centre[0], centre[1]
    a, b = b, a
    size = math.sqrt(a**2 + b * b) + math.fabs(a) ** 0.5
    for i in range(len(point)):
        point[i] = np.where(open[i], table[0, i], table[1][i] if False else table[1, i]) * upper[i]
    point[0] = math.copysign(size, a) + np.sign(b) + math.floor(a) - np.minimum(a, b)
    point[1] = -np.inf if math.isnan(a) or math.isinf(b) else max(a, b, step) + np.finfo(np.float64).eps + math.pi
    point[1] += float(a > b) + int(3.7) + np.maximum(abs(b), 0.3)


def neighbours(cost: Any, centre: Any, step: float, point: Any, places: Any) -> None:
    """Entries beside others, which there are not for the first and the last."""
    n = len(point)
    for i in range(n):
        point[i] = (centre[i + 1] if i + 1 < n else 0.5) - (centre[i - 1] if i > 0 else centre[-1])
        point[i] += centre[places[i] + 1] if places[i] + 1 < n else centre[places[i] - n]


def places(cost: Any, centre: Any, step: float, point: Any, places: Any) -> None:
    """Whole numbers beyond 32 bits, and entries whose place is block data."""
    seed, last = 2**33, 0
    for i in range(len(point)):
        point[places[i]] = centre[i] + places[i]
        last = places[i] if centre[i] > 0 else last
        seed += last * 2**31 + (centre[i] > 0)
    point[last] += seed


def leaving(cost: Any, centre: Any, step: float, point: Any) -> None:
    """Returns at several places, from within loops too."""
    point[:] = 0.0
    for i in range(len(point)):
        if centre[i] > 0.8:
            return
        point[i] = 1.0 + i
    if centre[0] > 0:
        return
    point[0] = -1.0


def value(cost: Any, weight: Any) -> Any:
    """A value that is returned at several places."""
    if weight < -0.5:
        return 1
    for i in range(len(cost)):
        if cost[i] > 1:
            return cost[i] * weight
    return -0.75


def probe(dim: int, **functions: Callable[..., Any]) -> bl.BlockType:
    """A box with some functions of one block."""
    return type("Own", (Probe,), {name: staticmethod(own) for name, own in functions.items()})(dim)


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = name
    return function


def expected(name: str, function: Callable[..., Any], kind: Any, given: list[Tensor], dtype: torch.dtype) -> Tensor:
    """What Python makes of every block: points, and values where the function returns some."""
    dim, private = given[0].shape[-1], kind.private_coordinates
    names = list(inspect.signature(function).parameters)[{"prox_block": 4, "min_block": 1, "complete_block": 2}[name] :]
    found = torch.zeros(BATCH, BLOCKS, dim + 1, dtype=dtype)
    cost, centre, step = (t.to(dtype).numpy().copy() for t in given)
    if name == "prox_block":
        cost[..., : dim - private] = 0
        centre[..., dim - private :] = 0
    for row in range(BATCH):
        for b in range(BLOCKS):
            data = []
            for own in (getattr(kind, n) for n in names):
                entry = None if own is None else own[row % len(own), b % own.shape[1]].numpy()
                entry = entry.astype(cost.dtype) if entry is not None and entry.dtype.kind == "f" else entry
                data.append(entry if entry is None or entry.ndim else entry[()])
            point = centre[row, b].copy() if name == "complete_block" else np.zeros(dim, cost.dtype)
            head = {"prox_block": (cost[row, b], centre[row, b], step[row], point), "min_block": (cost[row, b],)}
            with np.errstate(all="ignore"):
                answer = function(*head.get(name, (cost[row, b], point)), *data)
            found[row, b, :dim] = torch.from_numpy(point)
            found[row, b, dim] = 0.0 if answer is None else float(answer)
    return found


def check(kind: Any, name: str = "prox_block", *, unrolled: bool, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
    """Compare a translated function with Python, in every bit in double precision."""
    dim = kind.dim
    draw = torch.Generator().manual_seed(seed)
    given = [torch.randn(BATCH, BLOCKS, dim, generator=draw, dtype=torch.float64) for _ in range(2)]
    given.append(torch.rand(BATCH, generator=draw, dtype=torch.float64) + 0.5)
    if name != "prox_block":
        given[1] = given[1].abs() % 1.0
    functions = functions_of(kind, dim)
    assert isinstance(functions, BlockFunctions) and functions.unrolled is unrolled
    found = asked(functions, name, kind.to(dtype, torch.device("cpu")), *(t.to(dtype) for t in given))
    wanted = expected(name, getattr(type(kind), name), kind, given, dtype)
    if name == "min_block":
        found, wanted = found[..., -1], wanted[..., -1]
    close = {"rtol": 0.0, "atol": 0.0} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found, wanted, **close)


DRAW = np.random.default_rng(0)
FIXED = Edge().restrict(torch.zeros(1, BLOCKS, 3), torch.tensor([1.0, 1.0, 0.0]).expand(1, BLOCKS, 3))
MIXED = torch.zeros(2, BATCH, BLOCKS, 3)
MIXED[1] = 1.0
MIXED[0, 0, 0, 0] = MIXED[0, 1, 3, 1] = 1.0
MIXED[1, 0, 2, 0] = MIXED[1, 0, 4, 2] = MIXED[1, 1, 4, 1] = MIXED[1, 1, 1, 2] = 0.0
KINDS: dict[str, Any] = {
    "edge": Edge(),
    "edge without products": FIXED,
    "edge with fixings": Edge().restrict(MIXED[0], MIXED[1]),
    "simplex": Simplex(4),
    "simplex with masses": Simplex(6, DRAW.uniform(0.5, 2.0, (BATCH, BLOCKS))),
    "at most one": AtMostOne(3),
    "at most one of many": AtMostOne(11),
    "knapsack": Knapsack(DRAW.uniform(0.1, 1.0, (BATCH, BLOCKS, 4)), DRAW.uniform(0.2, 1.0, (BATCH, BLOCKS))),
    "two-sided knapsack": Knapsack(DRAW.normal(size=(1, BLOCKS, 9)), 0.8, least=-0.3),
    "interval": bl.Box(np.zeros(1), np.ones(1)),
    "box": bl.Box(DRAW.uniform(-1, 0, 5), DRAW.uniform(0, 1, 5)),
    "ball": test_prox_block.Ball(torch.from_numpy(0.3 + DRAW.random((1, BLOCKS)))),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", KINDS)
def test_proximal_points_of_types(name: str, dtype: torch.dtype) -> None:
    check(KINDS[name], unrolled=KINDS[name].dim <= 8, dtype=dtype)


@pytest.mark.parametrize("function", ["min_block", "complete_block"])
@pytest.mark.parametrize("name", ["edge", "edge without products", "edge with fixings"])
def test_checks_of_edges(name: str, function: str) -> None:
    for seed in range(3):
        check(KINDS[name], function, unrolled=True, seed=seed)


@pytest.mark.parametrize("dim", [3, 12])
@pytest.mark.parametrize("function", [branches, loops, calls, leaving])
def test_statements(function: Callable[..., Any], dim: int) -> None:
    for seed in range(4):
        check(probe(dim, prox_block=named(function, "prox_block")), unrolled=dim == 3, seed=seed)


def test_places_that_are_data() -> None:
    """Coordinates are in memory then, however few."""
    for dim in (3, 12):
        for function in (places, neighbours):
            check(probe(dim, prox_block=named(function, "prox_block")), unrolled=False)


@pytest.mark.parametrize("dim", [3, 12])
def test_values(dim: int) -> None:
    kind = probe(dim, prox_block=named(leaving, "prox_block"), min_block=named(value, "min_block"))
    check(kind, "min_block", unrolled=dim == 3)


def test_numbers_are_in_the_working_precision() -> None:
    """A tenth as a float64 has other bits than as a float32."""

    def prox_block(cost: Any, centre: Any, step: float, point: Any) -> None:
        point[:] = 0.1
        point[1] = min(centre[1], 0.1) + (0.7 if centre[0] > 0 else 0.2)

    check(probe(3, prox_block=prox_block), unrolled=True)


def test_more_programs_than_one() -> None:
    """Blocks beyond the lanes of one program, and lanes without a block."""
    blocks = LANES + 3
    kind = Simplex(2)
    functions = functions_of(kind, 2)
    assert functions is not None
    centre = torch.randn(1, blocks, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = torch.ones(1, dtype=torch.float64)
    found = asked(functions, "prox_block", kind, torch.zeros_like(centre), centre, step)[..., :2]
    wanted = kind.prox(torch.zeros_like(centre), centre, step[:, None, None], torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-15)


def compile_all() -> None:
    """Compile all of the above for a GPU, and print what they take; without the interpreter."""
    import triton

    from bench import compile_triton

    from .triton_asking import _ask

    triton.runtime.driver.set_active(compile_triton.Card())
    for dim in (3, 12):
        for function in (branches, loops, calls, leaving, places, neighbours):
            kind: Any = probe(dim, prox_block=named(function, "prox_block"), min_block=named(value, "min_block"))
            functions, (data, strides) = functions_of(kind, dim), data_arguments(kind)
            assert functions is not None
            room = torch.zeros(2, dim + 1, BLOCKS, dtype=torch.float64)
            given = room, room, room[:, 0, 0].contiguous(), room, BLOCKS, data, strides
            for name in ("prox_block", "min_block") if function is branches else ("prox_block",):
                constants = {"FUNCTION": getattr(functions, name), "NAME": name, "DIM": dim, "COUPLED": dim}
                constants |= {"UNROLLED": functions.unrolled, "BLOCK": LANES}
                print(compile_triton.compiled(_ask, given, constants))


@pytest.mark.slow
def test_translations_compile_for_a_gpu() -> None:
    """The interpreter leaves out types; no single precision in double, and a lane is a thread."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    code = "from tests.blocklp.kernels.test_triton_source import compile_all; compile_all()"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 14
    for line in lines:
        assert "spilled=0" in line and "fused=0, cached=0, singles=0, lanes={1}" in line, line


def unknown(cost: Any, centre: Any, step: float, point: Any) -> None:
    point[0] = np.linalg.norm(centre)


def undefined(cost: Any, centre: Any, step: float, point: Any) -> None:
    point[0] = math.tau * BATCH


def arrays(cost: Any, centre: Any, step: float, point: Any) -> None:
    kinks = np.zeros(len(point))
    point[0] = kinks[0]


def after(cost: Any, centre: Any, step: float, point: Any) -> None:
    i = 1
    for i in range(len(point)):
        point[i] = 1.0
    point[i] = 2.0


def chained(cost: Any, centre: Any, step: float, point: Any) -> None:
    a = b = centre[0]
    point[0] = a + b


def endless(cost: Any, centre: Any, step: float, point: Any) -> None:
    point[0] = 1 / 0


def partly(cost: Any, centre: Any, step: float, point: Any) -> None:
    point[0] = 0.0


@pytest.mark.parametrize(
    ("function", "named_piece"),
    [
        (unknown, "np.linalg.norm"),
        (undefined, "math.tau"),
        (arrays, "np.zeros"),
        (after, "i"),
        (chained, "b"),
        (endless, "1 / 0"),
        (partly, "no value for point[1]"),
    ],
)
def test_what_has_no_translation_is_named(function: Callable[..., Any], named_piece: str, caplog: pytest.LogCaptureFixture) -> None:
    kind = probe(2, prox_block=named(function, "prox_block"))
    with caplog.at_level(logging.INFO, "blocklp"):
        assert functions_of(kind, 2) is None
    (record,) = caplog.records
    assert f"Own.prox_block is not translated to Triton, for it has `{named_piece}`" in record.getMessage()


def test_a_check_without_translation_leaves_the_passes(caplog: pytest.LogCaptureFixture) -> None:
    def prox_block(cost: Any, centre: Any, step: float, point: Any) -> None:
        point[:] = centre[0]

    def min_block(cost: Any) -> Any:
        return np.sort(cost)[0]

    with caplog.at_level(logging.INFO, "blocklp"):
        found = functions_of(probe(2, prox_block=prox_block, min_block=min_block), 2)
    assert found is not None and found.min_block is None
    assert "np.sort" in caplog.text


def test_block_data_as_kernels_take_them() -> None:
    kind: Any = probe(3, prox_block=named(branches, "prox_block"))
    data, strides = data_arguments(kind)
    assert [t.data_ptr() for t in data] == [kind.weight.data_ptr()] and strides == (BLOCKS, 1)
    kind = probe(3, prox_block=named(calls, "prox_block"))
    data, strides = data_arguments(kind)
    assert [tuple(t.shape) for t in data] == [(1, BLOCKS, 2, 3), (BATCH, 1, 3), (1, 1, 3)]
    assert strides == (0, 6, 3, 0, 0, 0)
