"""Bounds and verdicts for networks that are evaluated in float32."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from blocklp.errors import ModelError, OptionError
from blocklp.problems.verification import Network, Property, Runtime, from_torch, network_bounds, read_onnx, verify
from blocklp.problems.verification.operations import Add, Input, Linear, Relu
from blocklp.problems.verification.vnnlib_formula import nearest_float32

from ..verification_networks import all_kinds, conv, unit_box
from .exported_networks import module_of


def cancelling(folder: Path) -> Path:
    """The constant 0.3 in real numbers, stated as (x a + 0.3) - x a, of which float32 makes something else."""
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["g"]),
        helper.make_node("Relu", ["g"], ["r"]),
        helper.make_node("Sub", ["r", "h"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "cancelling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])],
        [numpy_helper.from_array(np.float32(value), name) for name, value in (("a", 1e7 / 3), ("b", 0.3))],
    )
    path = folder / "cancelling.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_rounding_of_the_runtime_is_within_bounds_for_float32_alone(tmp_path: Path) -> None:
    path = cancelling(tmp_path)
    network = read_onnx(path)
    low, high = torch.full((1,), 1.0).double(), torch.full((1,), 2.0).double()
    y = Runtime(path)(np.linspace(1, 2, 2000, dtype=np.float32)[:, None])
    real, rounded = (network_bounds(n, low, high).output for n in (network, network.in_float32()))
    assert y.min() < float(real.lower) - 1e-3  # onnxruntime leaves what holds in real numbers
    assert float(rounded.lower) <= y.min() and y.max() <= float(rounded.upper)
    prop = Property.of([1.0], [2.0], [[1.0]], [0.28])
    assert y.min() <= 0.28
    assert verify(network, prop, attack=False).status == "unsat"
    # Rounding is proved for no part of the box, however small: a search goes on for as long as it may.
    assert verify(network.in_float32(), prop, attack=False, timeout=1.0).status in ("unknown", "timed-out")
    beyond = Property.of([1.0], [2.0], [[1.0]], [-30.0])
    verdict = verify(network.in_float32(), beyond, attack=False)
    assert verdict.status == "unsat" and verdict.claim.startswith("No counterexample exists in float32")


def shuffled(network: Network, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The outputs in float32, matrices summed in a random order, one by one."""
    results: list[torch.Tensor] = []
    for op in network.to(torch.float32).ops:
        of = [results[i] for i in op.inputs]
        if isinstance(op, Input):
            results.append(x.float())
        elif isinstance(op, Relu):
            results.append(of[0].clamp(min=0))
        elif isinstance(op, Add):
            results.append(of[0] + of[1])
        elif isinstance(op, Linear):
            total = op.bias.expand(len(x), -1).clone()
            for j in torch.randperm(op.weight.shape[1], generator=generator).tolist():
                total += of[0].flatten(1)[:, j : j + 1] * op.weight[:, j]
            results.append(total)
        else:
            results.append(op(of[0]))  # type: ignore[operator]
    return results[-1].flatten(1)


@pytest.mark.parametrize("method", ["interval", "crown", "slopes"])
def test_float32_in_any_order_stays_within_bounds_of_tiny_boxes(method: str) -> None:
    # In a box of a few float32 numbers rounding is most of what bounds have to cover.
    left = 0
    for network in all_kinds(range(3)):
        centre = unit_box(network, 1)[0].float().double()
        low, high = centre, centre + 2.0**-22
        generator = torch.Generator().manual_seed(2)
        x = torch.stack([torch.where(torch.rand(low.shape, generator=generator) < 0.5, low, high).float() for _ in range(200)])
        y = shuffled(network, x, generator).double()
        real, rounded = (network_bounds(n, low, high, method=method, steps=3).output for n in (network, network.in_float32()))
        assert ((rounded.lower.flatten() <= y) & (y <= rounded.upper.flatten())).all()
        left += int(((y < real.lower.flatten()) | (y > real.upper.flatten())).sum())
    assert left > 0  # bounds in real numbers do not hold


def test_windows_of_convolutions_are_rounded_too() -> None:
    network = conv(0)
    low, high = unit_box(network, 0)
    real, rounded = (network_bounds(n, low, high, method="crown") for n in (network, network.in_float32()))
    for a, b in zip(real.layers, rounded.layers, strict=True):
        assert (b.lower < a.lower).all() and (a.upper < b.upper).all()
        assert (a.lower - b.lower).max() < 1e-3


def test_what_is_not_bounded_in_float32_is_refused() -> None:
    with pytest.raises(ModelError, match="softmax in float32"):
        from_torch(module_of("softmax"), (6,)).in_float32()
    with pytest.raises(ModelError, match="coefficients in float32"):
        from_torch(module_of("bilinear"), (3, 6, 6)).in_float32()
    network = all_kinds(range(1))[0].in_float32()
    low, high = unit_box(network, 0)
    with pytest.raises(OptionError, match="real arithmetic alone"):
        network_bounds(network, low, high, method="prox")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**31 - 2**23 - 2), st.integers(-3, 3))
def test_decimals_go_to_the_nearest_float32(bits: int, nudge: int) -> None:
    below, above = (Fraction(float(np.uint32(b).view(np.float32))) for b in (bits, bits + 1))
    value = (below + above) / 2 + Fraction(nudge, 2**200)
    even = below if bits % 2 == 0 else above
    assert nearest_float32(value) == (above if nudge > 0 else below if nudge < 0 else even)
    assert nearest_float32(-value) == -nearest_float32(value)
