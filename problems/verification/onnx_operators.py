"""Operators of ONNX in terms of ``Lowering``: one function for each operator, or family of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.problems.verification import convolutions, piecewise, smooth, sparse_maps
from blocklp.problems.verification.convolutions import Resizing, Window, image
from blocklp.problems.verification.lowering import Array, Lowering, Value
from blocklp.problems.verification.onnx_nodes import OnnxNode, tensor_of
from blocklp.problems.verification.onnx_refusals import way_out
from blocklp.problems.verification.operations import SUMMED

Result = Value | Array | list[Value | Array]

# Clip stated them for "no bound" before it had arguments.
UNBOUNDED = 3.4e38


def _forward(lowering: Lowering, node: OnnxNode) -> Value:
    return node.variable()


def _shape(lowering: Lowering, node: OnnxNode) -> Array:
    shape = node.variable().shape
    return np.array(shape[node.attributes.get("start", 0) : node.attributes.get("end", len(shape))], dtype=np.int64)


def _size(lowering: Lowering, node: OnnxNode) -> Array:
    return np.array(math.prod(node.variable().shape), dtype=np.int64)


def _dropout(lowering: Lowering, node: OnnxNode) -> Value:
    training = node.constant(2)
    if training is not None and training.any():
        raise ModelError("training mode is not supported; export the network for inference")
    return node.variable()


def _cast(lowering: Lowering, node: OnnxNode) -> Value:
    from onnx import TensorProto, helper

    like = node.constant(1)
    kind = node.attributes["to"] if like is None else helper.np_dtype_to_tensor_dtype(like.dtype)
    if kind not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        raise ModelError("only casts to float32 and float64 are supported; export the network in float32")
    return node.variable()


# Moves, copies and constants in between; which arguments may depend on the input, None for all.
MOVES: dict[str, tuple[int, ...] | None] = {
    "CenterCropPad": (0,),
    "Compress": (0,),
    "Concat": None,
    "DepthToSpace": (0,),
    "Expand": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "ReverseSequence": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Slice": (0,),
    "SpaceToDepth": (0,),
    "Split": (0,),
    "Tile": (0,),
    "Trilu": (0,),
    "Where": (1, 2),
}


def _move(lowering: Lowering, node: OnnxNode) -> Result:
    allowed = MOVES.get(node.operator, (0,))
    for at in range(len(node.inputs)):
        if allowed is not None and at not in allowed:
            node.constant(at)
    if node.text("reduction", "none") != "none":
        raise ModelError("a reduction is not supported; write it as a sum")
    names, values = list(node.variables()), list(node.variables().values())
    return sparse_maps.moved(lowering, values, lambda given: node.evaluate(dict(zip(names, given, strict=True))), node.name)


def _probe(lowering: Lowering, node: OnnxNode) -> Value:
    [(name, value)] = node.variables().items()
    if node.names.count(name) > 1:
        raise ModelError("products of results are not supported here; write them as Mul")
    return sparse_maps.probed(lowering, value, lambda given: node.evaluate({name: given})[0], node.name)


def _neg(lowering: Lowering, node: OnnxNode) -> Value:
    return piecewise.negative(lowering, node.variable(), node.name)


def _plus(lowering: Lowering, a: Value | Array, b: Value | Array, alone: Sequence[bool], name: str) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        return lowering.add(a, b, name)
    (value, free), constant = ((a, alone[0]), b) if isinstance(a, Value) else ((b, alone[1]), a)
    assert isinstance(value, Value) and not isinstance(constant, Value)
    return lowering.shift(value, tensor_of(constant), free, name)


def _given(node: OnnxNode) -> list[Value | Array]:
    return [value for value in node.inputs if value is not None]


def _add(lowering: Lowering, node: OnnxNode) -> Value:
    a, b = _given(node)
    return _plus(lowering, a, b, node.alone, node.name)


def _sum(lowering: Lowering, node: OnnxNode) -> Value:
    constants = [value for value in _given(node) if not isinstance(value, Value)]
    values = [value for value in _given(node) if isinstance(value, Value)]
    total = functools.reduce(lambda a, b: lowering.add(a, b, node.name), values)
    for _ in range(len(values) // SUMMED):
        # Each is charged as many roundings, so that sums of many are covered in any order.
        total = lowering.scale(total, 1.0, 0.0, node.name)
    if constants:
        total = lowering.scale(total, 1.0, functools.reduce(torch.add, map(tensor_of, constants)), node.name)
    return lowering.scale(total, 1 / len(node.inputs), 0.0, node.name) if node.operator == "Mean" else total


def _sub(lowering: Lowering, node: OnnxNode) -> Value:
    a, b = node.inputs
    if isinstance(a, Value) and isinstance(b, Value):
        return lowering.subtract(a, b, node.name)
    if isinstance(a, Value):
        return lowering.shift(a, -node.tensor(1), node.alone[0], node.name)
    return lowering.scale(node.variable(1), -1.0, node.tensor(0), node.name)


def _mul(lowering: Lowering, node: OnnxNode) -> Value:
    a, b = _given(node)
    if isinstance(a, Value) and isinstance(b, Value):
        return smooth.product(lowering, a, b, node.name)
    at = 0 if isinstance(node.inputs[0], Value) else 1
    return lowering.scale(node.variable(at), node.tensor(1 - at), 0.0, node.name)


def _div(lowering: Lowering, node: OnnxNode) -> Value:
    return lowering.scale(node.variable(), 1 / node.tensor(1), 0.0, node.name)


def _reduce(lowering: Lowering, node: OnnxNode) -> Value:
    value, axes = node.variable(), node.integers(1, "axes")
    if not axes and node.attributes.get("noop_with_empty_axes", 0):
        return value
    axes, keep = axes or None, bool(node.attributes.get("keepdims", 1))
    if node.operator == "ReduceMax":
        return piecewise.reduce_largest(lowering, value, axes, keep, node.name)
    if node.operator == "ReduceMin":
        turned = piecewise.negative(lowering, value, node.name)
        most = piecewise.reduce_largest(lowering, turned, axes, keep, node.name)
        return piecewise.negative(lowering, most, node.name)
    if node.operator == "ReduceL1":
        value = piecewise.absolute(lowering, value, node.name)
    return sparse_maps.reduce(lowering, value, axes, keep, node.operator == "ReduceMean", node.name)


def _batch_normalization(lowering: Lowering, node: OnnxNode) -> Value:
    if node.attributes.get("training_mode", 0) or not node.attributes.get("spatial", 1):
        raise ModelError("training mode and spatial=0 are not supported; export the network for inference")
    factor, shift, mean, variance = (node.tensor(at) for at in range(1, 5))
    eps = node.attributes.get("epsilon", 1e-5)
    return lowering.batch_norm(node.variable(), factor, shift, mean, variance, eps, node.name)


def _gemm(lowering: Lowering, node: OnnxNode) -> Value:
    at = 0 if isinstance(node.inputs[0], Value) else 1
    value, weight = node.variable(at), node.tensor(1 - at)
    turned = [bool(node.attributes.get(name, 0)) for name in ("transA", "transB")]
    if turned[at]:
        value = lowering.transpose(value, (1, 0), node.name)
    weight = node.attributes.get("alpha", 1.0) * (weight.T if turned[1 - at] else weight)
    result = lowering.linear_left(value, weight, node.name) if at else lowering.linear(value, weight.T, None, node.name)
    third, beta = node.argument(2), node.attributes.get("beta", 1.0)
    if third is None:
        return result
    third = lowering.scale(third, beta, 0.0, node.name) if isinstance(third, Value) else np.asarray(beta * third)
    # Nothing else can use the product without the bias.
    return _plus(lowering, result, third, (True, True), node.name)


def _matmul(lowering: Lowering, node: OnnxNode) -> Value:
    at = 0 if isinstance(node.inputs[0], Value) else 1
    return sparse_maps.matmul(lowering, node.variable(at), node.tensor(1 - at), bool(at), node.name)


def _window(node: OnnxNode, value: Value, kernel: Sequence[int]) -> Window:
    size, given = image(value), node.attributes
    rank = len(size)
    pads = tuple(given.get("pads", [0] * 2 * rank))
    window = Window(
        tuple(kernel),
        tuple(given.get("strides", [1] * rank)),
        pads[: len(pads) // 2],
        pads[len(pads) // 2 :],
        tuple(given.get("dilations", [1] * rank)),
    )
    mode = node.text("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        return window.same(size, mode == "SAME_UPPER")
    if mode not in ("NOTSET", "VALID"):
        raise ModelError(f"auto_pad {mode} is not supported; state the pads")
    return window.ceil(size) if given.get("ceil_mode", 0) else window


def _conv(lowering: Lowering, node: OnnxNode) -> Value:
    value, weight = node.variable(), node.tensor(1)
    window = _window(node, value, node.attributes.get("kernel_shape", weight.shape[2:]))
    return convolutions.conv(lowering, value, weight, node.optional(2), window, node.attributes.get("group", 1), node.name)


def _conv_transpose(lowering: Lowering, node: OnnxNode) -> Value:
    value, weight, given = node.variable(), node.tensor(1), node.attributes
    kernel = tuple(weight.shape[2:])
    size, rank = image(value), len(kernel)
    stride, dilation = tuple(given.get("strides", [1] * rank)), tuple(given.get("dilations", [1] * rank))
    more, pads = list(given.get("output_padding", [0] * rank)), list(given.get("pads", [0] * 2 * rank))
    mode = node.text("auto_pad", "NOTSET")
    same = [n * s for n, s in zip(size, stride, strict=True)] if mode.startswith("SAME") else []
    # A stated size of the result decides the padding.
    for axis, wanted in enumerate(given.get("output_shape", same)):
        full = (size[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1 + more[axis]
        total = max(full - wanted, 0)
        more[axis] += max(wanted - full, 0)
        pads[axis] = total // 2 if mode == "SAME_UPPER" else total - total // 2
        pads[rank + axis] = total - pads[axis]
    window = Window(kernel, stride, tuple(pads[:rank]), tuple(pads[rank:]), dilation)
    groups = given.get("group", 1)
    return convolutions.conv_transpose(lowering, value, weight, node.optional(2), window, more, groups, node.name)


def _average_pool(lowering: Lowering, node: OnnxNode) -> Value:
    value = node.variable()
    window = _window(node, value, node.attributes["kernel_shape"])
    return convolutions.average_pool(lowering, value, window, bool(node.attributes.get("count_include_pad", 0)), node.name)


def _global_average_pool(lowering: Lowering, node: OnnxNode) -> Value:
    value = node.variable()
    return convolutions.average_pool(lowering, value, Window.plain(image(value)), False, node.name)


def _max_pool(lowering: Lowering, node: OnnxNode) -> Value:
    value = node.variable()
    return convolutions.max_pool(lowering, value, _window(node, value, node.attributes["kernel_shape"]), node.name)


def _global_max_pool(lowering: Lowering, node: OnnxNode) -> Value:
    value = node.variable()
    return piecewise.reduce_largest(lowering, value, range(2, len(value.shape)), True, node.name)


def _pad(lowering: Lowering, node: OnnxNode) -> Result:
    value, pads, axes = node.variable(), node.integers(1, "pads") or [], node.integers(3, "axes")
    before, after = [0] * len(value.shape), [0] * len(value.shape)
    for at, axis in enumerate(range(len(value.shape)) if axes is None else axes):
        before[axis], after[axis] = pads[at], pads[at + len(pads) // 2]
    mode, fill = node.text("mode", "constant"), node.number(2, "value", 0.0)
    if mode == "constant" and not fill:
        return convolutions.pad(lowering, value, before, after, node.name)
    # As in onnxruntime: what negative pads cut off is gone before the rest is reflected or repeated.
    value = convolutions.pad(lowering, value, np.minimum(before, 0).tolist(), np.minimum(after, 0).tolist(), node.name)
    sides = [(max(a, 0), max(b, 0)) for a, b in zip(before, after, strict=True)]
    lowering.builder.take(2 * math.prod(n + a + b for n, (a, b) in zip(value.shape, sides, strict=True)), node.name)
    how: dict[str, Any] = {"mode": mode} | ({"constant_values": fill} if mode == "constant" else {})
    return sparse_maps.moved(lowering, [value], lambda given: [np.pad(given[0], sides, **how)], node.name)


def _resize(lowering: Lowering, node: OnnxNode) -> Value:
    value, given = node.variable(), node.attributes
    rank, old = len(value.shape), node.operator == "Upsample" or node.opset < 11
    if given.get("antialias", 0) or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise ModelError("antialias and policies on the aspect ratio are not supported; resize to a stated size")
    stated, sizes = node.constant(1 if old else 2), None if old else node.constant(3)
    factors: Array = np.asarray(given.get("scales", [])) if stated is None else stated
    axes = [axis % rank for axis in given.get("axes", range(rank))]
    shape, scales = list(value.shape), [1.0] * rank
    for at, axis in enumerate(axes):
        if sizes is not None and sizes.size:
            shape[axis] = int(sizes[at])
            scales[axis] = shape[axis] / value.shape[axis]
        else:
            scales[axis] = float(factors[at])
            shape[axis] = math.floor(value.shape[axis] * scales[axis])
    coordinates = "asymmetric" if old else node.text("coordinate_transformation_mode", "half_pixel")
    nearest = "floor" if old else node.text("nearest_mode", "round_prefer_floor")
    how = Resizing(node.text("mode", "nearest").replace("bilinear", "linear"), coordinates, nearest)
    return convolutions.resize(lowering, value, shape, scales, how, node.name)


def _relu(lowering: Lowering, node: OnnxNode) -> Value:
    return lowering.relu(node.variable(), node.name)


def _leaky_relu(lowering: Lowering, node: OnnxNode) -> Value:
    return piecewise.leaky(lowering, node.variable(), node.attributes.get("alpha", 0.01), node.name)


def _prelu(lowering: Lowering, node: OnnxNode) -> Value:
    return piecewise.leaky(lowering, node.variable(), node.tensor(1), node.name)


def _clip(lowering: Lowering, node: OnnxNode) -> Value:
    low, high = node.number(1, "min", None), node.number(2, "max", None)
    low = None if low is None or low <= -UNBOUNDED else low
    high = None if high is None or high >= UNBOUNDED else high
    return piecewise.clip(lowering, node.variable(), low, high, node.name)


def _hard_sigmoid(lowering: Lowering, node: OnnxNode) -> Value:
    alpha, beta = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    return piecewise.clip(lowering, lowering.scale(node.variable(), alpha, beta, node.name), 0.0, 1.0, node.name)


def _shrink(lowering: Lowering, node: OnnxNode) -> Value:
    limit, bias = node.attributes.get("lambd", 0.5), node.attributes.get("bias", 0.0)
    if bias != limit or limit < 0:
        raise ModelError(
            f"lambd is {limit:g} and bias {bias:g}; unless they are equal and not negative, {way_out('ThresholdedRelu', '')}"
        )
    return piecewise.soft_shrink(lowering, node.variable(), limit, node.name)


def _abs(lowering: Lowering, node: OnnxNode) -> Value:
    return piecewise.absolute(lowering, node.variable(), node.name)


def _extreme(lowering: Lowering, node: OnnxNode) -> Value:
    choose = piecewise.maximum if node.operator == "Max" else piecewise.minimum
    parts = [value if isinstance(value, Value) else tensor_of(value) for value in _given(node)]
    # Constants last, so that a value is there to be compared with.
    first, *others = sorted(parts, key=lambda part: isinstance(part, Tensor))
    assert isinstance(first, Value)
    return functools.reduce(lambda a, b: choose(lowering, a, b, node.name), others, first)


def _curve(lowering: Lowering, node: OnnxNode) -> Value:
    return lowering.smooth(node.variable(), node.operator.lower(), node.name)


def _power(lowering: Lowering, node: OnnxNode) -> Value:
    exponent = node.tensor(1)
    if exponent.numel() != 1:
        raise ModelError("powers of several exponents are not supported; export the network with one")
    return smooth.power(lowering, node.variable(), float(exponent), node.name)


def _softmax(lowering: Lowering, node: OnnxNode) -> Value:
    value = node.variable()
    axis = node.attributes.get("axis", -1 if node.opset >= 13 else 1)
    rank = len(value.shape)
    # Until set 13 all axes from this one on were normalised together.
    axes = [axis] if node.opset >= 13 else range(axis % rank, rank)
    return lowering.softmax(value, axes, node.operator == "LogSoftmax", node.name)


def _flatten(lowering: Lowering, node: OnnxNode) -> Value:
    value, axis = node.variable(), node.attributes.get("axis", 1)
    axis += len(value.shape) if axis < 0 else 0
    return lowering.reshape(value, (math.prod(value.shape[:axis]), -1))


def _reshape(lowering: Lowering, node: OnnxNode) -> Value:
    value, target = node.variable(), node.integers(1, "shape") or []
    if not node.attributes.get("allowzero", 0):
        target = [value.shape[axis] if n == 0 else n for axis, n in enumerate(target)]
    return lowering.reshape(value, target)


def _transpose(lowering: Lowering, node: OnnxNode) -> Value:
    value = node.variable()
    axes = node.attributes.get("perm", range(len(value.shape))[::-1])
    return lowering.transpose(value, axes, node.name)


def _squeeze(lowering: Lowering, node: OnnxNode) -> Value:
    value, axes = node.variable(), node.integers(1, "axes")
    rank = len(value.shape)
    gone = {axis for axis, n in enumerate(value.shape) if n == 1} if axes is None else {axis % rank for axis in axes}
    return lowering.reshape(value, [n for axis, n in enumerate(value.shape) if axis not in gone])


def _unsqueeze(lowering: Lowering, node: OnnxNode) -> Value:
    value, axes = node.variable(), node.integers(1, "axes") or []
    rank = len(value.shape) + len(axes)
    new, old = {axis % rank for axis in axes}, iter(value.shape)
    return lowering.reshape(value, [1 if axis in new else next(old) for axis in range(rank)])


OPERATORS: dict[str, Callable[[Lowering, OnnxNode], Result]] = {
    **dict.fromkeys(MOVES, _move),
    **dict.fromkeys(("ReduceL1", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduce),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    **dict.fromkeys(("CumSum", "Einsum"), _probe),
    **dict.fromkeys(("LogSoftmax", "Softmax"), _softmax),
    **dict.fromkeys(("Max", "Min"), _extreme),
    **dict.fromkeys(("Mean", "Sum"), _sum),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("Erf", "Sigmoid", "Softplus", "Tanh"), _curve),
    "Abs": _abs,
    "Add": _add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Clip": _clip,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": _div,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Gelu": lambda lowering, node: smooth.gelu(lowering, node.variable(), node.text("approximate", "none"), node.name),
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "GlobalMaxPool": _global_max_pool,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda lowering, node: smooth.hard_swish(lowering, node.variable(), node.name),
    "Identity": _forward,
    "LeakyRelu": _leaky_relu,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mish": lambda lowering, node: smooth.mish(lowering, node.variable(), node.name),
    "Mul": _mul,
    "Neg": _neg,
    "PRelu": _prelu,
    "Pad": _pad,
    "Pow": _power,
    "Relu": _relu,
    "Reshape": _reshape,
    "Shape": _shape,
    "Shrink": _shrink,
    "Sign": lambda lowering, node: lowering.sign(node.variable(), node.name),
    "Size": _size,
    "Squeeze": _squeeze,
    "Sub": _sub,
    "Swish": lambda lowering, node: smooth.sharpened(lowering, node.variable(), "silu", node.attributes.get("alpha", 1.0), node.name),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}

AFTER_SOFTMAX = ("Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze")
"""Operators that leave the elements of the outputs where they are."""
