"""Time limits of verification: asked for in every phase, and kept whichever answer is the last one."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import blocklp as bl
from blocklp.errors import TimeLimitError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.verification import Property, Runtime, network_bounds, read_onnx, read_property, verify
from blocklp.problems.verification.answers import How, Networks, answer
from blocklp.problems.verification.network import Builder, Network

from ..verification_networks import all_kinds, unit_box


class Countdown(bl.Deadline):
    """A deadline that is over after a number of questions; it counts those that come later."""

    def __init__(self, asks: float) -> None:
        super().__init__()
        self.seconds, self.asks, self.asked = 1.0, asks, 0

    def elapsed(self) -> float:
        self.asked += 1
        return 0.0 if self.asked <= self.asks else math.inf

    def within(self, seconds: float) -> bl.Deadline:
        return self


def query(folder: Path) -> tuple[Path, Path]:
    """A network with every kind of layer in a file, and a property that takes a search."""
    g = np.random.default_rng(0)
    values = {
        "k": g.normal(size=(2, 1, 2, 2)).astype(np.float32), "shape": np.array([1, -1]),
        "w": g.normal(size=(32, 12)).astype(np.float32), "v": g.normal(size=(12, 3)).astype(np.float32),
        "size": np.array([3]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "shape"], ["c"]), helper.make_node("MatMul", ["c", "w"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]), helper.make_node("MatMul", ["e", "v"], ["f"]),
        helper.make_node("ConstantOfShape", ["size"], ["zeros"]), helper.make_node("Add", ["f", "zeros"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), folder / "net.onnx")
    text = "".join(f"(declare-const X_{i} Real)(assert (>= X_{i} -1))(assert (<= X_{i} 1))\n" for i in range(25))
    text += "".join(f"(declare-const Y_{i} Real)" for i in range(3)) + "(assert (>= Y_0 9.5))(assert (<= Y_1 0))(assert (<= Y_2 Y_1))"
    (folder / "a.vnnlib").write_text(text)
    return folder / "net.onnx", folder / "a.vnnlib"


def test_a_deadline_that_is_over_at_any_question_is_an_answer(tmp_path: Path) -> None:
    """Whichever question is the first to be late, the answer is timed-out, and hardly any more is asked."""
    net, spec = query(tmp_path)
    phases, asks = set(), 1
    while asks < 20_000:
        deadline = Countdown(asks)
        found = answer(spec, [str(net)], How(), Networks(), deadline)
        assert deadline.asked <= asks + 40
        if deadline.asked <= asks:
            break
        assert found.verdict.status in ("timed-out", "sat") and found.verdict.nodes >= 0
        phases |= {"reading"} if not found.verdict.phases else set(found.verdict.phases)
        asks = math.ceil(1.35 * asks)
    assert {"reading", "quick bounds", "attack", "bounds"} <= phases


@pytest.mark.parametrize("network", all_kinds(range(1)), ids=lambda n: n.name)
@pytest.mark.parametrize("method", ["slopes", "alpha-crown", "exact"])
def test_bounds_at_any_deadline_are_valid(network: Network, method: str) -> None:
    """Layers that are not reached keep interval bounds; a chunk that was begun is left out or finished."""
    low, high = unit_box(network, 0)
    plain, whole = (network_bounds(network, low, high, method=name).output for name in ("interval", method))
    asks, last = 1, -math.inf
    while asks < 30_000:
        deadline = Countdown(asks)
        found = network_bounds(network, low, high, method=method, time_limit=deadline).output
        assert bool((found.lower >= plain.lower - 1e-9).all() and (found.upper <= plain.upper + 1e-9).all())
        assert bool((found.lower <= whole.upper).all() and (found.upper >= whole.lower).all())
        last = float(found.lower.sum())
        if deadline.asked <= asks:
            break
        asks *= 3
    assert last == pytest.approx(float(whole.lower.sum()), abs=1e-6)


def test_readers_give_up(tmp_path: Path) -> None:
    net, spec = query(tmp_path)
    for read in (read_onnx, read_property):
        with pytest.raises(TimeLimitError, match=r"reading|importing"):
            read(net if read is read_onnx else spec, time_limit=Countdown(0))
        assert read(net if read is read_onnx else spec, time_limit=60) is not None
    with pytest.raises(TimeLimitError, match="into onnxruntime"):
        Runtime(net, source=net, deadline=Countdown(0))


def test_an_operation_that_would_be_late_is_not_begun() -> None:
    """A matrix whose products alone take ten times what is left."""
    b = Builder((40,))
    hidden = b.relu(b.linear(0, torch.ones(30, 40)))
    b.linear(hidden, torch.ones(1, 30))
    network = b.build()
    seen = []
    network.ops[1].__class__.linear, original = (lambda op, x: seen.append(op) or original(op, x)), network.ops[1].__class__.linear
    try:
        with pytest.raises(TimeLimitError, match="applying linear"):
            network.run(torch.ones(10**6, 40, dtype=torch.float64), bl.Deadline(0.01))
    finally:
        network.ops[1].__class__.linear = original
    assert not seen


def test_limits_hold_on_the_clock() -> None:
    """A search that would take minutes, at limits shorter than its phases."""
    g = torch.Generator().manual_seed(0)
    b, at = Builder((60,)), 0
    for size in (200, 200, 200):
        at = b.relu(b.linear(at, torch.randn(size, b.ops[at].shape[0], generator=g) / 8, torch.randn(size, generator=g)))
    b.linear(at, torch.randn(10, 200, generator=g))
    network, ones = b.build(), torch.ones(60, dtype=torch.float64)
    verify(network, Property.robustness(-ones, ones, 0, 10), timeout=0.2)  # what is loaded at first use
    for seconds in (0.1, 0.5):
        began = time.perf_counter()
        verdict = verify(network, Property.robustness(-ones / 4, ones / 4, 3, 10), timeout=seconds, attack=False)
        assert verdict.status == "timed-out" and time.perf_counter() - began < seconds + 2.0  # on a busy machine


@pytest.mark.parametrize("phase", ["quick bounds", "attack", "bounds", "search"])
def test_a_keyboard_interrupt_is_an_answer(phase: str, tmp_path: Path) -> None:
    def interrupt(progress) -> None:
        if progress.phase == phase:
            raise KeyboardInterrupt

    net, spec = query(tmp_path)
    network = read_onnx(net, max_bytes=MAX_BYTES)
    verdict = verify(network, read_property(spec), callback=interrupt, timeout=60)
    assert (verdict.status, verdict.reason) == ("unknown", "Interrupted.") or phase not in verdict.phases
