"""What the benchmark of campaigns works on; workers import it by name."""

from __future__ import annotations

import time
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from blocklp.problems.verification.digits import load, module

LARGEST, SECONDS = 0.06, 600
"""The largest radius of a query, pixels being from 0 to 1, and the seconds that each has."""


def sleep(seconds: float, number: int) -> int:
    """Take a while, and no processor."""
    time.sleep(seconds)
    return number


def write_network(file: Path) -> None:
    """Write the network of the demo, which reads digits."""
    nodes, values, before = [], [], "x"
    for number, layer in enumerate(module()):
        after = f"y{number}"
        weights = [f"{after}.{name}" for name, _ in layer.named_parameters()]
        values += [numpy_helper.from_array(p.detach().numpy(), f"{after}.{name}") for name, p in layer.named_parameters()]
        if isinstance(layer, nn.Conv2d):
            shape = {"strides": list(layer.stride), "pads": [*layer.padding, *layer.padding], "kernel_shape": list(layer.kernel_size)}
            nodes.append(helper.make_node("Conv", [before, *weights], [after], **shape))
        elif isinstance(layer, nn.Linear):
            nodes.append(helper.make_node("Gemm", [before, *weights], [after], transB=1))
        else:
            nodes.append(helper.make_node(type(layer).__name__.replace("ReLU", "Relu"), [before], [after]))
        before = after
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [1, 1, 8, 8]), (before, [1, 10]))]
    graph = helper.make_graph(nodes, "digits", ends[:1], ends[1:], values)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)


def write_queries(folder: Path, count: int) -> Path:
    """Write a network, ``count`` queries whether a digit that changes by some radius is read as another, and their list."""
    _, images, labels = load()
    write_network(folder / "digits.onnx")
    lines = []
    for number in range(count):
        digit, radius = number % len(images), LARGEST * (number + 1) / count
        pixels, label = images[digit].flatten().tolist(), int(labels[digit])
        text = [f"(declare-const X_{i} Real)" for i in range(64)] + [f"(declare-const Y_{j} Real)" for j in range(10)]
        for i, pixel in enumerate(pixels):
            low, high = max(pixel - radius, 0.0), min(pixel + radius, 1.0)
            text.append(f"(assert (>= X_{i} {low:.9f}))\n(assert (<= X_{i} {high:.9f}))")
        others = " ".join(f"(and (>= Y_{j} Y_{label}))" for j in range(10) if j != label)
        (folder / f"{number}.vnnlib").write_text("\n".join([*text, f"(assert (or {others}))"]) + "\n")
        lines.append(f"digits.onnx,{number}.vnnlib,{SECONDS}")
    listed = folder / "instances.csv"
    listed.write_text("\n".join(lines) + "\n")
    return listed
