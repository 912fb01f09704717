"""Nodes of ONNX models that ``onnx.reference`` evaluates, within limits of memory and time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, ModelError

if TYPE_CHECKING:
    import onnx

Array = NDArray[Any]

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
SELECTIONS = ("Compress", "NonZero", "Trilu", "Unique")

EVALUATED_FROM = {"DequantizeLinear": 19}
"""Operator sets from which on ``onnx.reference`` has operators that meant the same before."""

FEW = 1024
"""Entries up to which a constant's values, and not its shape alone, may tell the shape of a result."""

FOLDED = 1e8
"""Entries that onnx evaluates in a second."""


class Evaluator:
    """Evaluates nodes of one file, and counts what that takes.

    Parameters
    ----------
    file : Path
        For messages.
    opset : int
        Operator set of the file.
    max_bytes : int
        Most bytes that all constants may take in float64.
    deadline : Deadline
        When to give up.
    """

    def __init__(self, file: Path, opset: int, max_bytes: int, deadline: Deadline) -> None:
        self.file, self.opset, self.max_bytes, self.deadline = file, opset, max_bytes, deadline
        self.entries = 0

    def take(self, entries: int, what: str) -> None:
        """Count float64 numbers that are about to be allocated."""
        self.deadline.check(f"reading {self.file}")
        self.entries += entries
        if 8 * self.entries > self.max_bytes:
            told = f"with {what} its constants take more than {self.max_bytes} bytes in float64; raise max_bytes if they may"
            raise FormatError(f"{self.file}: {told}")

    def evaluate(self, node: onnx.NodeProto, given: Mapping[str, Array], weighed: bool = True) -> list[Array]:
        """Return all results of a node that has names.

        Parameters
        ----------
        node : NodeProto
            The node.
        given : mapping
            Its arguments by name.
        weighed : bool
            Whether to count what it takes; not again for arguments of the same shapes.
        """
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        graph = helper.make_graph([node], "constants", [], [])
        if weighed:
            self._weigh(node, given)
        names = [name for name in node.output if name]
        opset = max(self.opset, EVALUATED_FROM.get(node.op_type, 0))
        results: Any = ReferenceEvaluator(graph, opsets={"": opset}).run(names, dict(given))
        return list(results)

    def _weigh(self, node: onnx.NodeProto, given: Mapping[str, Array]) -> None:
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
