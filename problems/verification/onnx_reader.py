"""Reader of ONNX files, and their replay by onnxruntime.

The batch axis (a leading axis of size one or of unknown size, before others) is fixed to one sample; every other axis
belongs to the sample, so ``X_i`` of a VNN-LIB file is element i of the input as declared, in C order.  Nodes that do not
depend on the input are evaluated by ``onnx.reference``.  Networks are real-valued: weights are those of the file in
float64, and how the runtime rounds is left to replays.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, ModelError, TimeLimitError
from blocklp.problems.files import COMPRESSIONS, MAX_BYTES
from blocklp.problems.verification.lowering import UNIT, Lowering, Value, Window, compare, random_points
from blocklp.problems.verification.network import Network, Shape
from blocklp.problems.verification.onnx_files import Runtime, load_model, source_of

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]

# Broadcasting, Dropout and BatchNormalization had other meanings before.
OLDEST_OPSET = 7

# Random, or taken for training by ``onnx.reference`` although the file does not say so.
UNFOLDED = (
    "BatchNormalization",
    "Dropout",
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)

# Operators whose result is at most as large as their arguments, times their rank, though nobody can say how large.
SELECTIONS = ("Compress", "NonZero", "Unique")

FEW = 1024
"""Entries up to which a constant's values, and not its shape alone, may tell the shape of a result."""

FOLDED = 1e8
"""Entries that onnx evaluates in a second."""


def read_onnx(
    path: str | os.PathLike[str],
    check: bool = True,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | Deadline = math.inf,
) -> Network:
    """Read a ReLU network.

    Parameters
    ----------
    path : path-like
        The file; compressed data are known by their first bytes, not by the name.
    check : bool, optional
        Compare the network with onnxruntime at random points.
    max_bytes : int
        Most bytes that the file may hold once decompressed, with the files beside it, and most that its constants and the
        results of its operations for one input may take in float64; looked at before any of them is allocated.
    time_limit : float or Deadline
        Seconds.

    Returns
    -------
    Network
        In float64, named after the file.

    Raises
    ------
    FormatError
        The file is damaged, holds an operator that is no composition of affine maps and ReLUs, has more than one input or
        output or one of unknown size, holds NaN, is larger than ``max_bytes``, or differs from onnxruntime.
    MissingDependencyError
        onnx, or onnxruntime for the check, is not installed.
    TimeLimitError
        The deadline is over, or would be.
    """
    deadline = Deadline.of(time_limit)
    return load_onnx(path, max_bytes, deadline)[0] if check else _read(Path(path), max_bytes, deadline).network


def load_onnx(path: str | os.PathLike[str], max_bytes: int, deadline: Deadline) -> tuple[Network, Runtime]:
    """Read a network and what replays it, compared with each other; errors are those of ``read_onnx``.

    Parameters
    ----------
    path, max_bytes
        As in ``read_onnx``.
    deadline : Deadline
        When to give up.
    """
    file = Path(path)
    found = _read(file, max_bytes, deadline)
    runtime = Runtime(file, source=found.source, deadline=deadline)
    check_onnx(found.network, runtime, deadline)
    return found.network, runtime


class _Found(NamedTuple):
    """A network, and what onnxruntime reads: the file, or its data where it was compressed or holds more than is needed."""

    network: Network
    source: Path | bytes


def _read(file: Path, max_bytes: int, deadline: Deadline) -> _Found:
    model, data = load_model(file, max_bytes, deadline)
    reader = _Reader(file, model, max_bytes, deadline)
    network = reader.read()
    if reader.pruned():
        # onnxruntime would evaluate whatever else there is, however large; what the output depends on is unchanged.
        return _Found(network, model.SerializeToString())
    return _Found(network, source_of(file, data))


def check_onnx(network: Network, runtime: Runtime, deadline: Deadline | None = None) -> None:
    """Compare a network with what onnxruntime computes from its file.

    Parameters
    ----------
    network : Network
        In float64.
    runtime : Runtime
        The file.
    deadline : Deadline, optional
        When to give up.

    Raises
    ------
    FormatError
        They differ by more than rounding in float32.
    TimeLimitError
        The deadline is over.
    """
    deadline = Deadline() if deadline is None else deadline
    points = random_points(network)
    outputs = []
    for point in points.flatten(1).numpy():
        deadline.check(f"checking {runtime.file}")
        outputs.append(runtime(point))
    try:
        # Models in float64 may compute in float32 between casts; the coarser unit serves both.
        compare(network, points, torch.from_numpy(np.stack(outputs)), UNIT[torch.float32], "onnxruntime", deadline)
    except ModelError as error:
        raise FormatError(f"{runtime.file}: {error}") from error


@dataclass(frozen=True)
class _Node:
    """A node with its arguments: results of the network, constants, or None where left out."""

    operator: str
    name: str
    inputs: list[Value | Array | None]
    attributes: dict[str, Any]
    alone: list[bool]

    def variable(self, at: int = 0) -> Value:
        """Argument that must depend on the input."""
        found = self.inputs[at] if at < len(self.inputs) else None
        if not isinstance(found, Value):
            raise ModelError(f"argument {at} must depend on the input of the network, and the others must not")
        return found

    def constant(self, at: int) -> Array | None:
        """Argument that must not depend on the input; None if left out."""
        found = self.inputs[at] if at < len(self.inputs) else None
        if isinstance(found, Value):
            raise ModelError(f"argument {at} depends on the input of the network; only constants are supported there")
        return found

    def tensor(self, at: int) -> Tensor:
        """Constant argument in float64."""
        if (found := self.optional(at)) is None:
            raise ModelError(f"argument {at} is missing")
        return found

    def optional(self, at: int) -> Tensor | None:
        """Constant argument in float64, or None."""
        found = self.constant(at)
        return None if found is None else _tensor(found)

    def integers(self, at: int, attribute: str) -> list[int] | None:
        """Integers that older files hold in an attribute and newer ones in an argument."""
        found = self.constant(at)
        held = self.attributes.get(attribute)
        return held if found is None else [int(n) for n in found.reshape(-1)]


class _Reader:
    """Goes through the nodes of a model."""

    def __init__(self, file: Path, model: onnx.ModelProto, max_bytes: int, deadline: Deadline) -> None:
        from onnx import numpy_helper

        self.file, self.model, self.graph = file, model, model.graph
        self.max_bytes, self.deadline, self.entries = max_bytes, deadline, 0
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        if not self.graph.node:
            raise FormatError(f"{file}: the file holds no network; fetch or export it again")
        if self.opset < OLDEST_OPSET:
            raise FormatError(f"{file}: operator set {self.opset} is too old; convert it to 13 with onnx.version_converter")
        if self.graph.sparse_initializer:
            raise FormatError(f"{file}: sparse constants are not supported; export the network with dense ones")
        self.known: dict[str, Value | Array] = {}
        for tensor in self.graph.initializer:
            self.take(math.prod(tensor.dims), f"the constant {tensor.name}")
            try:
                self.known[tensor.name] = numpy_helper.to_array(tensor)
            except Exception as error:  # Damage shows in many ways.
                raise FormatError(f"{file}: the constant {tensor.name} is damaged ({error})") from error

    def take(self, entries: int, what: str) -> None:
        """Count float64 numbers that are about to be allocated."""
        self.deadline.check(f"reading {self.file}")
        self.entries += entries
        if 8 * self.entries > self.max_bytes:
            told = f"with {what} its constants take more than {self.max_bytes} bytes in float64; raise max_bytes if they may"
            raise FormatError(f"{self.file}: {told}")

    def pruned(self) -> bool:
        """Leave the nodes that the output does not depend on out of the model, and say whether there were any."""
        needed = self._needed(self.graph.output[0].name)
        if len(needed) == len(self.graph.node) and not self.model.functions:
            return False
        nodes = [type(node).FromString(node.SerializeToString()) for node in needed]
        del self.graph.node[:], self.model.functions[:]
        self.graph.node.extend(nodes)
        return True

    def read(self) -> Network:
        """Build the network."""
        inputs = [entry for entry in self.graph.input if entry.name not in self.known]
        outputs = [entry.name for entry in self.graph.output]
        if len(inputs) != 1 or len(outputs) != 1:
            raise FormatError(f"{self.file}: {len(inputs)} inputs and {len(outputs)} outputs where one of each is supported")
        shape, sample = self._input_shape(inputs[0])
        name = Path(self.file.name)
        while name.suffix.lower() in (".onnx", *COMPRESSIONS):
            name = name.with_suffix("")
        try:
            self.lowering = Lowering(shape, sample, name.name, self.max_bytes // 8)
        except ModelError as error:
            raise FormatError(f"{self.file}: {error}") from error
        self.known[inputs[0].name] = self.lowering.input
        nodes = self._needed(outputs[0])
        self.uses = Counter([name for node in nodes for name in node.input] + outputs)
        matrices = {node.output[0] for node in nodes if node.op_type in ("MatMul", "Gemm")}
        for node in nodes:
            self.deadline.check(f"reading {self.file}")
            self._read_node(node, [name in matrices and self.uses[name] == 1 for name in node.input])
        result = self.known.get(outputs[0])
        if not isinstance(result, Value):
            raise FormatError(f"{self.file}: the output {outputs[0]} does not depend on the input; export the network again")
        try:
            return self.lowering.build(result)
        except ModelError as error:
            raise FormatError(f"{self.file}: {error}; export the network again") from error

    def _input_shape(self, entry: onnx.ValueInfoProto) -> tuple[Shape, Shape]:
        """Shape of the input for a batch of one, and of its sample."""
        from onnx import TensorProto

        kind = entry.type.tensor_type
        if kind.elem_type not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            names = {number: name for name, number in TensorProto.DataType.items() if number}
            found = names.get(kind.elem_type, f"of the unknown type {kind.elem_type}" if kind.elem_type else "no tensor")
            raise FormatError(f"{self.file}: the input {entry.name} is {found}; export the network in float32")
        sizes = [n.dim_value if n.HasField("dim_value") and n.dim_value > 0 else 0 for n in kind.shape.dim]
        if not sizes or 0 in sizes[1:] or sizes == [0]:
            raise FormatError(f"{self.file}: the size of the input {entry.name} is not stated; export it with fixed axes")
        if sizes[0] > 1 or len(sizes) == 1:
            return tuple(sizes), tuple(sizes)
        return (1, *sizes[1:]), tuple(sizes[1:])

    def _needed(self, output: str) -> list[onnx.NodeProto]:
        """Nodes that the output depends on, in order."""
        wanted, kept = {output}, []
        for node in reversed(self.graph.node):
            if wanted.intersection(node.output):
                wanted.update(node.input)
                kept.append(node)
        return kept[::-1]

    def _read_node(self, node: onnx.NodeProto, alone: list[bool]) -> None:
        from onnx import helper

        name = node.name or next(iter(node.output), "")
        where = f"operator {node.op_type} (node {name})"
        for wanted in node.input:
            if wanted and wanted not in self.known:
                raise FormatError(f"{self.file}: {where} uses {wanted}, which no earlier node defines; export the network again")
        inputs = [self.known[wanted] if wanted else None for wanted in node.input]
        try:
            if not any(isinstance(value, Value) for value in inputs) and node.op_type not in UNFOLDED:
                self._fold(node)
                return
            handler = OPERATORS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if handler is None:
                raise FormatError(f"{self.file}: {where} is not supported: ReLU networks only")
            if any(self.uses[extra] for extra in node.output[1:]):
                raise ModelError("only its first result is supported")
            attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
            self.known[node.output[0]] = handler(self, _Node(node.op_type, name, inputs, attributes, alone))
        except (FormatError, TimeLimitError):
            raise
        except ModelError as error:
            raise FormatError(f"{self.file}: {where}: {error}") from error
        except Exception as error:  # A malformed node shows in whatever numpy, torch or onnx raises.
            raise FormatError(f"{self.file}: {where} is malformed ({error}); export the network again") from error

    def _fold(self, node: onnx.NodeProto) -> None:
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        graph = helper.make_graph([node], "constants", [], [])
        names = [name for name in node.output if name]
        given = {name: np.asarray(self.known[name]) for name in node.input if name}
        self._weigh(node, given)
        results: Any = ReferenceEvaluator(graph, opsets={"": self.opset}).run(names, given)
        self.known.update(zip(names, results, strict=True))

    def _weigh(self, node: onnx.NodeProto, given: dict[str, Array]) -> None:
        """Refuse a constant whose evaluation would take more memory or time than there is."""
        from onnx import AttributeProto, helper, numpy_helper, shape_inference

        if any(entry.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for entry in node.attribute):
            raise ModelError("control flow is not supported; export the network without it")
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in given.items()}
        large = [helper.make_tensor_value_info(name, kinds[name], v.shape) for name, v in given.items() if v.size > FEW]
        small = [numpy_helper.from_array(value, name) for name, value in given.items() if value.size <= FEW]
        graph = helper.make_graph([node], "constants", large, outputs, small)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        sizes, whole = [value.size for value in given.values()], sum(value.size for value in given.values())
        made = 0
        for entry in shape_inference.infer_shapes(model, data_prop=True).graph.output:
            shape = entry.type.tensor_type.shape
            if node.op_type in SELECTIONS:
                made += whole * max(value.ndim for value in given.values())
            elif entry.type.tensor_type.HasField("shape") and all(n.HasField("dim_value") for n in shape.dim):
                made += math.prod(n.dim_value for n in shape.dim)
            else:
                raise ModelError("the size of this constant cannot be told before it is computed; export the network with it folded")
        kernel = next((entry.ints for entry in node.attribute if entry.name == "kernel_shape"), ())
        if node.op_type.startswith(("Conv", "Deform", "QLinearConv")) and len(sizes) > 1:
            kernel = (sizes[1],)
        self.take(made * math.prod(kernel), f"the result {node.output[0]}")
        # A product of matrices (m, k) and (k, n) takes m k n multiplications.
        work = math.isqrt(math.prod(sorted(sizes)[-2:]) * made) if len(sizes) > 1 else made
        self.deadline.check(f"evaluating {node.op_type} (node {node.name})", max(work, made, whole) * math.prod(kernel) / FOLDED)

    def _forward(self, node: _Node) -> Value:
        return node.variable()

    def _shape(self, node: _Node) -> Array:
        shape = node.variable().shape
        return np.array(shape[node.attributes.get("start", 0) : node.attributes.get("end", len(shape))], dtype=np.int64)

    def _dropout(self, node: _Node) -> Value:
        training = node.constant(2)
        if training is not None and training.any():
            raise ModelError("training mode is not supported; export the network for inference")
        return node.variable()

    def _cast(self, node: _Node) -> Value:
        from onnx import TensorProto

        if node.attributes["to"] not in (TensorProto.FLOAT, TensorProto.DOUBLE):
            raise ModelError("only casts to float32 and float64 are supported; export the network in float32")
        return node.variable()

    def _relu(self, node: _Node) -> Value:
        return self.lowering.relu(node.variable(), node.name)

    def _neg(self, node: _Node) -> Value:
        return self.lowering.scale(node.variable(), -1.0, 0.0, node.name)

    def _add(self, node: _Node) -> Value:
        a, b = node.inputs
        if isinstance(a, Value) and isinstance(b, Value):
            return self.lowering.add(a, b, node.name)
        at = 0 if isinstance(a, Value) else 1
        return self.lowering.shift(node.variable(at), node.tensor(1 - at), node.alone[at], node.name)

    def _sub(self, node: _Node) -> Value:
        a, b = node.inputs
        if isinstance(a, Value) and isinstance(b, Value):
            return self.lowering.subtract(a, b, node.name)
        if isinstance(a, Value):
            return self.lowering.shift(a, -node.tensor(1), node.alone[0], node.name)
        return self.lowering.scale(node.variable(1), -1.0, node.tensor(0), node.name)

    def _mul(self, node: _Node) -> Value:
        at = 0 if isinstance(node.inputs[0], Value) else 1
        return self.lowering.scale(node.variable(at), node.tensor(1 - at), 0.0, node.name)

    def _div(self, node: _Node) -> Value:
        return self.lowering.scale(node.variable(), 1 / node.tensor(1), 0.0, node.name)

    def _batch_normalization(self, node: _Node) -> Value:
        if node.attributes.get("training_mode", 0) or not node.attributes.get("spatial", 1):
            raise ModelError("training mode and spatial=0 are not supported; export the network for inference")
        factor, shift, mean, variance = (node.tensor(at) for at in range(1, 5))
        eps = node.attributes.get("epsilon", 1e-5)
        return self.lowering.batch_norm(node.variable(), factor, shift, mean, variance, eps, node.name)

    def _gemm(self, node: _Node) -> Value:
        if node.attributes.get("transA", 0):
            raise ModelError("transA is not supported; transpose the weights instead")
        weight = node.tensor(1) if node.attributes.get("transB", 0) else node.tensor(1).T
        weight = node.attributes.get("alpha", 1.0) * weight
        result = self.lowering.linear(node.variable(), weight, None, node.name)
        bias = node.optional(2)
        if bias is None:
            return result
        # Nothing else can use the product without the bias.
        return self.lowering.shift(result, node.attributes.get("beta", 1.0) * bias, True, node.name)

    def _matmul(self, node: _Node) -> Value:
        at = 0 if isinstance(node.inputs[0], Value) else 1
        value, weight = node.variable(at), node.tensor(1 - at)
        while weight.dim() > 2 and weight.shape[0] == 1:
            weight = weight[0]
        if weight.dim() != 1:
            apply = self.lowering.linear_left if at else self._right
            return apply(value, weight, node.name)
        # A vector is a matrix whose axis of size one is missing in the result.
        result = self.lowering.linear_left(value, weight[None], node.name) if at else self._right(value, weight[:, None], node.name)
        gone = max(len(result.shape) - 2, 0) if at else len(result.shape) - 1
        return Value(result.at, (*result.shape[:gone], *result.shape[gone + 1 :]))

    def _right(self, value: Value, weight: Tensor, name: str) -> Value:
        return self.lowering.linear(value, weight.T, None, name)

    def _window(self, node: _Node, value: Value, kernel: Sequence[int]) -> Window:
        image = self.lowering.image(value)
        rank, given = len(image), node.attributes
        pads = tuple(given.get("pads", [0] * 2 * rank))
        window = Window(
            tuple(kernel),
            tuple(given.get("strides", [1] * rank)),
            pads[: len(pads) // 2],
            pads[len(pads) // 2 :],
            tuple(given.get("dilations", [1] * rank)),
        )
        mode = given.get("auto_pad", b"NOTSET").decode()
        if given.get("ceil_mode", 0):
            window.refuse_ceil(image)
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            return window.same(image, mode == "SAME_UPPER")
        if mode not in ("NOTSET", "VALID"):
            raise ModelError(f"auto_pad {mode} is not supported; state the pads")
        return window

    def _conv(self, node: _Node) -> Value:
        value, weight = node.variable(), node.tensor(1)
        window = self._window(node, value, node.attributes.get("kernel_shape", weight.shape[2:]))
        return self.lowering.conv(value, weight, node.optional(2), window, node.attributes.get("group", 1), node.name)

    def _average_pool(self, node: _Node) -> Value:
        value = node.variable()
        window = self._window(node, value, node.attributes["kernel_shape"])
        return self.lowering.average_pool(value, window, bool(node.attributes.get("count_include_pad", 0)), node.name)

    def _global_average_pool(self, node: _Node) -> Value:
        value = node.variable()
        return self.lowering.average_pool(value, self._window(node, value, self.lowering.image(value)), False, node.name)

    def _max_pool(self, node: _Node) -> Value:
        value = node.variable()
        return self.lowering.max_pool(value, self._window(node, value, node.attributes["kernel_shape"]), node.name)

    def _pad(self, node: _Node) -> Value:
        value, given = node.variable(), node.attributes
        rank = len(value.shape)
        axes, fill = node.integers(3, "axes"), node.constant(2)
        pads = node.integers(1, "pads") or []
        axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
        before, after = dict(zip(axes, pads, strict=False)), dict(zip(axes, pads[len(axes) :], strict=True))
        if not any(pads):
            return value
        if given.get("mode", b"constant") != b"constant" or given.get("value", 0.0) or (fill is not None and fill.any()):
            raise ModelError("only padding by zeros is supported")
        if any(before.get(axis, 0) or after.get(axis, 0) for axis in (0, 1)):
            raise ModelError("only padding of the spatial axes of an image is supported")
        one = (1,) * len(self.lowering.image(value))
        spatial = range(2, rank)
        first, last = (tuple(side.get(axis, 0) for axis in spatial) for side in (before, after))
        return self.lowering.pad(value, Window(one, one, first, last, one), node.name)

    def _flatten(self, node: _Node) -> Value:
        value, axis = node.variable(), node.attributes.get("axis", 1)
        axis += len(value.shape) if axis < 0 else 0
        return self.lowering.reshape(value, (math.prod(value.shape[:axis]), -1))

    def _reshape(self, node: _Node) -> Value:
        value, target = node.variable(), node.integers(1, "shape") or []
        if not node.attributes.get("allowzero", 0):
            target = [value.shape[axis] if n == 0 else n for axis, n in enumerate(target)]
        return self.lowering.reshape(value, target)

    def _transpose(self, node: _Node) -> Value:
        value = node.variable()
        axes = node.attributes.get("perm", range(len(value.shape))[::-1])
        return self.lowering.transpose(value, axes, node.name)

    def _squeeze(self, node: _Node) -> Value:
        value, axes = node.variable(), node.integers(1, "axes")
        rank = len(value.shape)
        gone = {axis for axis, n in enumerate(value.shape) if n == 1} if axes is None else {axis % rank for axis in axes}
        return self.lowering.reshape(value, [n for axis, n in enumerate(value.shape) if axis not in gone])

    def _unsqueeze(self, node: _Node) -> Value:
        value, axes = node.variable(), node.integers(1, "axes") or []
        rank = len(value.shape) + len(axes)
        new, old = {axis % rank for axis in axes}, iter(value.shape)
        return self.lowering.reshape(value, [1 if axis in new else next(old) for axis in range(rank)])


OPERATORS: dict[str, Callable[[_Reader, _Node], Value | Array]] = {
    "Add": _Reader._add,
    "AveragePool": _Reader._average_pool,
    "BatchNormalization": _Reader._batch_normalization,
    "Cast": _Reader._cast,
    "Conv": _Reader._conv,
    "Div": _Reader._div,
    "Dropout": _Reader._dropout,
    "Flatten": _Reader._flatten,
    "Gemm": _Reader._gemm,
    "GlobalAveragePool": _Reader._global_average_pool,
    "Identity": _Reader._forward,
    "MatMul": _Reader._matmul,
    "MaxPool": _Reader._max_pool,
    "Mul": _Reader._mul,
    "Neg": _Reader._neg,
    "Pad": _Reader._pad,
    "Relu": _Reader._relu,
    "Reshape": _Reader._reshape,
    "Shape": _Reader._shape,
    "Squeeze": _Reader._squeeze,
    "Sub": _Reader._sub,
    "Transpose": _Reader._transpose,
    "Unsqueeze": _Reader._unsqueeze,
}


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))
