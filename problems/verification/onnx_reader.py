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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, ModelError, ShapeError, TimeLimitError
from blocklp.problems.files import COMPRESSIONS, MAX_BYTES
from blocklp.problems.verification.comparison import UNIT, compare, random_points
from blocklp.problems.verification.lowering import Array, Lowering, Value
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.onnx_constants import UNFOLDED, Evaluator
from blocklp.problems.verification.onnx_files import Runtime, load_model, source_of
from blocklp.problems.verification.onnx_nodes import OnnxNode
from blocklp.problems.verification.onnx_operators import AFTER_SOFTMAX, OPERATORS
from blocklp.problems.verification.onnx_refusals import batch_of, way_out
from blocklp.problems.verification.operations import Shape

if TYPE_CHECKING:
    import onnx

# Broadcasting, Dropout and BatchNormalization had other meanings before.
OLDEST_OPSET = 7


def read_onnx(
    path: str | os.PathLike[str],
    check: bool = True,
    *,
    max_bytes: int = MAX_BYTES,
    time_limit: float | Deadline = math.inf,
) -> Network:
    """Read a network of affine operations, ReLUs and smooth activations.

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
        The file is damaged, holds an operator that is no composition of operations of networks, has more than one input or
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
    if found.before is None:
        check_onnx(found.network, runtime, deadline)
    else:
        before = Runtime(file, source=found.before, deadline=deadline)
        check_onnx(found.network, before, deadline)
        _check_head(found.network, before, runtime)
    return found.network, runtime


class _Found(NamedTuple):
    """A network, and what onnxruntime reads: the file, or its data where it was compressed or holds more than is needed.

    Where the network ends in a softmax, ``before`` is the model that is cut off at it.
    """

    network: Network
    source: Path | bytes
    before: bytes | None = None


def _read(file: Path, max_bytes: int, deadline: Deadline) -> _Found:
    model, data = load_model(file, max_bytes, deadline)
    reader = _OnnxReader(file, model, max_bytes, deadline)
    network = reader.read()
    # onnxruntime would evaluate whatever else there is, however large; what the output depends on is unchanged.
    source = model.SerializeToString() if reader.pruned() else source_of(file, data)
    return _Found(network, source, reader.cut() if network.head is not None else None)


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


def _check_head(network: Network, before: Runtime, runtime: Runtime) -> None:
    """Compare the softmax at the end of a network with what onnxruntime makes of its own arguments."""
    assert network.head is not None
    for point in random_points(network).flatten(1).numpy():
        given, found = (torch.from_numpy(run(point)).double() for run in (before, runtime))
        # Sums of as many numbers, whose exponents are rounded, or logarithms of that size.
        allowed = UNIT[torch.float32] * (8 * len(found) + 64 + 8 * float(given.abs().max()))
        if not bool(((network.head(given[None])[0] - found).abs() <= allowed).all()):
            raise FormatError(f"{runtime.file}: {network.head.name} is no such softmax in onnxruntime; please report the network")


class _OnnxReader:
    """Goes through the nodes of a model."""

    def __init__(self, file: Path, model: onnx.ModelProto, max_bytes: int, deadline: Deadline) -> None:
        self.file, self.model, self.graph = file, model, model.graph
        self.max_bytes, self.deadline, self.logits = max_bytes, deadline, ""
        self.opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        if not self.graph.node:
            raise FormatError(f"{file}: the file holds no network; fetch or export it again")
        if self.opset < OLDEST_OPSET:
            raise FormatError(f"{file}: operator set {self.opset} is too old; convert it to 13 with onnx.version_converter")
        self.evaluator = Evaluator(file, self.opset, max_bytes, deadline)
        self.known: dict[str, Value | Array] = {}
        self._hold(self.graph)

    def _hold(self, graph: onnx.GraphProto) -> None:
        """Take in the constants of a graph."""
        from onnx import numpy_helper

        if graph.sparse_initializer:
            raise FormatError(f"{self.file}: sparse constants are not supported; export the network with dense ones")
        for tensor in graph.initializer:
            self.evaluator.take(math.prod(tensor.dims), f"the constant {tensor.name}")
            try:
                self.known[tensor.name] = numpy_helper.to_array(tensor)
            except Exception as error:  # Damage shows in many ways.
                raise FormatError(f"{self.file}: the constant {tensor.name} is damaged ({error})") from error

    def pruned(self) -> bool:
        """Leave the nodes that the output does not depend on out of the model, and say whether there were any."""
        needed = self._needed(self.graph.output[0].name)
        if len(needed) == len(self.graph.node) and not self.model.functions:
            return False
        nodes = [type(node).FromString(node.SerializeToString()) for node in needed]
        del self.graph.node[:], self.model.functions[:]
        self.graph.node.extend(nodes)
        return True

    def cut(self) -> bytes:
        """Return the model that ends before the softmax."""
        from onnx import helper

        del self.graph.output[:]
        self.graph.output.append(helper.make_empty_tensor_value_info(self.logits))
        return bytes(self.model.SerializeToString())

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
        self.uses = Counter([name for node in nodes for name in _arguments(node)] + outputs)
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
                wanted.update(_arguments(node))
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
        names = [result for result in node.output if result]
        variable = any(isinstance(value, Value) for value in inputs)
        try:
            if node.op_type == "If" and not variable:
                self._branch(node)
                return
            if not variable and node.op_type not in UNFOLDED:
                given = {wanted: np.asarray(self.known[wanted]) for wanted in node.input if wanted}
                self.known.update(zip(names, self.evaluator.evaluate(node, given), strict=True))
                return
            handler = OPERATORS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if handler is None:
                raise ModelError(f"it is not supported: {way_out(node.op_type, node.domain)}")
            heads = [value.head.name for value in inputs if isinstance(value, Value) and value.head is not None]
            if heads and node.op_type not in AFTER_SOFTMAX:
                raise ModelError(f"a softmax ({heads[0]}) is supported as the last layer alone; cut the network off at it")
            attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
            result = handler(
                self.lowering,
                OnnxNode(node.op_type, name, inputs, [*node.input], attributes, alone, self.opset, self._evaluation(node)),
            )
            if isinstance(result, Value) and result.head is not None and not heads:
                self.logits = node.input[0]
            results = result if isinstance(result, list) else [result]
            if any(self.uses[extra] for extra in node.output[len(results) :]):
                raise ModelError("only its first result is supported; export the network without the others")
            self.known.update(zip(node.output, results, strict=False))
        except (FormatError, TimeLimitError):
            raise
        except ModelError as error:
            batch = batch_of(self.lowering.input.shape) if isinstance(error, ShapeError) else ""
            raise FormatError(f"{self.file}: {where}: {error}{batch}") from error
        except Exception as error:  # A malformed node shows in whatever numpy, torch or onnx raises.
            raise FormatError(f"{self.file}: {where} is malformed ({error}); export the network again") from error

    def _evaluation(self, node: onnx.NodeProto) -> Callable[[dict[str, Array]], list[Array]]:
        """Return a function that evaluates a node with arrays in the place of results; it weighs the node the first time."""
        weighed = False

        def evaluate(given: dict[str, Array]) -> list[Array]:
            nonlocal weighed
            everything = {name: given[name] if name in given else np.asarray(self.known[name]) for name in node.input if name}
            # Constants between elements have their type.
            doubled = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in everything.items()}
            results = self.evaluator.evaluate(node, doubled, not weighed)
            weighed = True
            return results

        return evaluate

    def _branch(self, node: onnx.NodeProto) -> None:
        """Read the branch that a constant condition chooses."""
        condition = bool(np.asarray(self.known[node.input[0]]).reshape(()))
        graph = next(entry.g for entry in node.attribute if entry.name == ("then_branch" if condition else "else_branch"))
        self._hold(graph)
        for inner in graph.node:
            self._read_node(inner, [False] * len(inner.input))
        self.known.update({name: self.known[entry.name] for name, entry in zip(node.output, graph.output, strict=True)})


def _arguments(node: onnx.NodeProto) -> Iterator[str]:
    """Names of what a node uses, the graphs within it included."""
    yield from node.input
    for entry in node.attribute:
        for inner in (*entry.g.node, *(n for graph in entry.graphs for n in graph.node)):
            yield from _arguments(inner)
        yield from (result.name for result in entry.g.output)
