"""Networks: directed acyclic graphs of affine operations, ReLUs, smooth activations and signs, and what builds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.options import of_type
from blocklp.oracles.curves import Curve
from blocklp.problems.verification.heads import Softmax
from blocklp.problems.verification.operation_matrices import sparse_if_few
from blocklp.problems.verification.operations import (
    Add,
    Affine,
    Computed,
    Conv,
    Input,
    Linear,
    Op,
    Relu,
    Reorder,
    Scale,
    Shape,
    SmoothActivation,
    Sparse,
)

WEIGHTED = (Linear, Conv, Scale, Sparse)


@dataclass(frozen=True, repr=False)
class Network:
    """A network; the last operation is its output, but for a softmax that may follow it.

    Attributes
    ----------
    ops : tuple of Op
        In an order in which arguments come first; ``ops[0]`` is the input.
    name : str
        For messages.
    head : Softmax or None
        What is applied to the last result.  Bounds are those of the last result, before it.
    unit : float
        Of the arithmetic that bounds speak of: 0 for real numbers, 2^-24 for float32 (:meth:`in_float32`).
    """

    ops: tuple[Op, ...]
    name: str = "network"
    head: Softmax | None = None
    unit: float = 0.0

    def __post_init__(self) -> None:
        if not self.ops or not isinstance(self.ops[0], Input):
            raise ModelError(f"{self.name}: the first operation must be the input")
        for at, op in enumerate(self.ops):
            if any(not 0 <= i < at for i in op.inputs):
                raise ModelError(f"{self.name}: {op.name} uses a result that comes later")

    def __repr__(self) -> str:
        neurons, count = sum(math.prod(self.ops[i].shape) for i in self.activations), len(self.activations)
        kind = "ReLUs" if count == len(self.relus) else "activations"
        layers = f"{count} layer{'s' * (count != 1)} of {neurons} {kind}"
        return f"Network({self.name!r}: inputs {self.input_shape}, {layers}, {self.outputs} outputs, {self.weights} weights)"

    def __str__(self) -> str:
        """A table of the operations: number, kind, name, shape of the result, weights and what it is computed from."""
        kinds = [(type(op).__name__, op) for op in self.ops] + ([] if self.head is None else [("Softmax", None)])
        rows = [("", "operation", "name", "shape", "weights", "of")]
        for at, (kind, op) in enumerate(kinds):
            if op is None:
                rows.append((str(at), kind, "", str(self.ops[-1].shape), "", str(at - 1)))
                continue
            own, kind = _weights(op), op.curve.name if isinstance(op, SmoothActivation) else kind
            rows.append((str(at), kind, op.name, str(op.shape), f"{own:,}" if own else "", ", ".join(map(str, op.inputs))))
        width = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        right = 0, 4
        lines = [
            "  ".join(t.rjust(w) if i in right else t.ljust(w) for i, (t, w) in enumerate(zip(row, width, strict=True)))
            for row in rows
        ]
        return "\n".join([repr(self), *(line.rstrip() for line in lines)])

    @property
    def weights(self) -> int:
        """Numbers in matrices, kernels, scales and biases."""
        return sum(map(_weights, self.ops))

    @property
    def input_shape(self) -> Shape:
        """Shape of one input."""
        return self.ops[0].shape

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return math.prod(self.input_shape)

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return math.prod(self.ops[-1].shape)

    @property
    def relus(self) -> tuple[int, ...]:
        """Positions of the ReLUs."""
        return tuple(i for i, op in enumerate(self.ops) if isinstance(op, Relu))

    @property
    def activations(self) -> tuple[int, ...]:
        """Positions of ReLUs, smooth activations and signs."""
        return tuple(i for i, op in enumerate(self.ops) if isinstance(op, (Relu, SmoothActivation)))

    @property
    def jumps(self) -> bool:
        """Whether it holds signs, which jump."""
        return any(isinstance(op, SmoothActivation) and op.curve.jumps for op in self.ops)

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next((op.weight.dtype for op in self.ops if isinstance(op, WEIGHTED)), torch.float64)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next((op.weight.device for op in self.ops if isinstance(op, WEIGHTED)), torch.device("cpu"))

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Network:
        """Return the same network in another precision or place; it is kept for the next time.

        Weights beyond the range of the precision become infinite, and so do results.
        """
        place = dtype, torch.device(device)
        if place not in self._copies:
            self._copies[place] = replace(self, ops=tuple(op.to(*place) for op in self.ops))
        return self._copies[place]

    @cached_property
    def _copies(self) -> dict[tuple[torch.dtype, torch.device], Network]:
        return {}

    def run(self, x: Tensor, deadline: Deadline | None = None) -> list[Tensor]:
        """Results of all operations for inputs ``(batch, *input_shape)``; ``TimeLimitError`` if there is no time for one of them."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise ShapeError(f"{self.name} takes inputs {self.input_shape}, got {tuple(x.shape[1:])}")
        results: list[Tensor] = []
        for op in self.ops:
            if deadline is not None and results:
                op.ask(deadline, x)
            if isinstance(op, Input):
                results.append(x)
            elif isinstance(op, Relu):
                results.append(results[op.inputs[0]].clamp(min=0))
            elif isinstance(op, SmoothActivation):
                results.append(op.curve.value(results[op.inputs[0]]))
            elif isinstance(op, Add):
                results.append(results[op.inputs[0]] + results[op.inputs[1]])
            else:
                assert isinstance(op, Affine)
                results.append(op(results[op.inputs[0]]))
        return results

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``(batch, outputs)`` for inputs ``(batch, *input_shape)`` in the precision of the network and where it is.

        Raises
        ------
        OptionError
            The inputs are no tensor, or one of another precision.
        ShapeError
            They have the wrong shape.
        """
        of_type(x, Tensor, "x", f"a tensor of inputs {self.input_shape} in {self.dtype}, with a dimension of inputs in front")
        if x.dtype != self.dtype and any(isinstance(op, WEIGHTED) for op in self.ops):
            raise OptionError(
                f"{self.name} is in {self.dtype}, and x in {x.dtype}; give x.to({self.dtype}), or take network.to({x.dtype})"
            )
        result = self.run(x)[-1].flatten(1)
        return result if self.head is None else self.head(result)

    def in_float32(self) -> Network:
        """Return the network whose bounds hold for its evaluation in float32, too.

        Every operation is rounded on its own, in the order of the network, with sums in any order; constants are what they are.

        Raises
        ------
        ModelError
            It ends in a softmax, or holds a smooth activation or an operation whose own coefficients are computed in float32.
        """
        if self.head is not None:
            raise ModelError(
                f"{self.head.name}: the rounding of a softmax in float32 is not bounded here; state the property before it"
            )
        for op in self.ops:
            if isinstance(op, Computed):
                raise ModelError(
                    f"{op.name}: the rounding of its coefficients in float32 is not bounded here; read the query as real"
                )
            if isinstance(op, SmoothActivation) and not op.curve.jumps:
                raise ModelError(f"{op.name}: the rounding of {op.curve.name} in float32 is not known; read the query as real")
        return replace(self, unit=2.0**-24)

    def followed_by(self, weight: Tensor, bias: Tensor) -> Network:
        """Return the network with a last layer ``weight @ last result + bias``: ``(rows, outputs)``, ``(rows,)``."""
        builder = Builder(self.input_shape, self.name)
        builder.ops[:] = self.ops
        builder.linear(len(self.ops) - 1, weight, bias, "rows")
        return replace(builder.build(), unit=self.unit)

    def ancestors(self, node: int) -> list[int]:
        """Positions of everything ``node`` depends on, itself included, in order."""
        wanted = {node}
        for at in range(node, -1, -1):
            if at in wanted:
                wanted.update(self.ops[at].inputs)
        return sorted(wanted)


def _weights(op: Op) -> int:
    """Numbers in the weight and the bias of an operation."""
    return sum(own.numel() for part in ("weight", "bias") if isinstance(own := getattr(op, part, None), Tensor))


class Builder:
    """Appends operations and works out their shapes; what readers use.

    Parameters
    ----------
    input_shape : sequence of int
        Shape of one input.
    name : str
        Name of the network.
    most : float
        Numbers that all results for one input may hold; every method raises a ``ModelError`` beyond.
    """

    def __init__(self, input_shape: Sequence[int], name: str = "network", most: float = math.inf) -> None:
        self.name, self.most, self.taken = name, most, 0
        self.ops: list[Op] = [Input((), tuple(input_shape), "input")]

    def take(self, numbers: int, what: str) -> None:
        """Count numbers that will be allocated."""
        self.taken += numbers
        if self.taken > self.most:
            raise ModelError(f"with {what} the network holds more than {8 * self.most} bytes of results; raise max_bytes if it may")

    def build(self) -> Network:
        """The network so far; its last operation is the output.

        Raises
        ------
        ModelError
            A weight is not finite.
        """
        for op in self.ops:
            for part in ("weight", "bias"):
                tensor = getattr(op, part, None)
                if tensor is not None and not bool(torch.isfinite(tensor).all()):
                    raise ModelError(f"{self.name}: the {part} of {op.name} holds NaN or infinite numbers")
        return Network(tuple(sparse_if_few(op) for op in self.ops), self.name)

    def _append(self, op: Op) -> int:
        self.take(math.prod(op.shape), op.name)
        self.ops.append(op)
        return len(self.ops) - 1

    def linear(self, of: int, weight: Tensor, bias: Tensor | None = None, name: str = "linear") -> int:
        """Append a matrix; the argument is flattened.

        Parameters
        ----------
        of : int
            Position of the argument.
        weight, bias : Tensor, and Tensor or None
            ``(out, in)`` and ``(out,)``; no bias is zero.
        name : str
            Of the operation.
        """
        source = self.ops[of].shape
        if weight.dim() != 2 or weight.shape[1] != math.prod(source):
            raise ShapeError(f"{name}: a matrix {tuple(weight.shape)} does not fit {math.prod(source)} inputs")
        weight = weight.double()
        bias = weight.new_zeros(len(weight)) if bias is None else bias.double().reshape(-1)
        if len(bias) != len(weight):
            raise ShapeError(f"{name}: {len(bias)} biases for {len(weight)} outputs")
        return self._append(Linear((of,), (len(weight),), name, source, max(weight.shape) + 8, weight, bias))

    def conv(
        self,
        of: int,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0, 0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
        name: str = "conv",
    ) -> int:
        """Append a two-dimensional convolution.

        Parameters
        ----------
        of : int
            Position of the argument, of shape ``(channels, height, width)``.
        weight, bias : Tensor, and Tensor or None
            ``(out, channels / groups, height, width)`` and ``(out,)``; no bias is zero.
        stride, dilation : sequence of int
            Of height and of width.
        padding : sequence of int
            Left, right, top and bottom.
        groups : int
            Groups of channels.
        name : str
            Of the operation.
        """
        source = self.ops[of].shape
        if len(source) != 3 or weight.dim() != 4 or source[0] != weight.shape[1] * groups:
            raise ShapeError(f"{name}: a kernel {tuple(weight.shape)} with {groups} groups does not fit an image {source}")
        out = tuple(
            (n + a + b - d * (k - 1) - 1) // s + 1
            for n, (a, b), d, k, s in zip(source[1:], (padding[2:], padding[:2]), dilation, weight.shape[2:], stride, strict=True)
        )
        if min(out) < 1:
            raise ShapeError(f"{name}: a kernel {tuple(weight.shape[2:])} is larger than the image {source[1:]}")
        weight = weight.double()
        bias = weight.new_zeros(len(weight)) if bias is None else bias.double().reshape(-1)
        terms = max(math.prod(weight.shape[1:]), len(weight) // groups * math.prod(weight.shape[2:])) + 8
        left, right, top, bottom = padding
        return self._append(
            Conv(
                (of,), (len(weight), *out), name, source, terms, weight, bias,
                (stride[0], stride[1]), (left, right, top, bottom), (dilation[0], dilation[1]), groups,
            )
        )  # fmt: skip

    def scale(self, of: int, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0, name: str = "scale") -> int:
        """Append an element-wise factor and shift.

        Parameters
        ----------
        of : int
            Position of the argument.
        weight, bias : Tensor or float
            They broadcast to the shape of the argument.
        name : str
            Of the operation.
        """
        source = self.ops[of].shape
        weight, bias = (torch.as_tensor(t, dtype=torch.float64) for t in (weight, bias))
        for tensor in (weight, bias):
            if np.broadcast_shapes(tensor.shape, source) != tuple(source):
                raise ShapeError(f"{name}: a constant {tuple(tensor.shape)} does not fit {source}")
        return self._append(Scale((of,), source, name, source, 10, weight, bias))

    def reorder(self, of: int, axes: Sequence[int] | None = None, shape: Sequence[int] | None = None, name: str = "reorder") -> int:
        """Append a transposition of the sample's axes and a reshape.

        Parameters
        ----------
        of : int
            Position of the argument.
        axes : sequence of int, optional
            Which axis goes to each place; by default all stay.
        shape : sequence of int, optional
            The shape afterwards; by default that of the transposition.
        name : str
            Of the operation.
        """
        source = self.ops[of].shape
        axes = tuple(range(len(source))) if axes is None else tuple(axes)
        moved = tuple(source[a] for a in axes)
        target = moved if shape is None else tuple(shape)
        if sorted(axes) != list(range(len(source))) or math.prod(target) != math.prod(source):
            raise ShapeError(f"{name}: axes {axes} and shape {target} do not fit {source}")
        return self._append(Reorder((of,), target, name, source, 1, axes))

    def sparse(
        self, of: int, shape: Sequence[int], entries: tuple[Tensor, Tensor, Tensor], bias: Tensor | float = 0.0, name: str = "sparse"
    ) -> int:
        """Append a sparse matrix over flat elements.

        Parameters
        ----------
        of : int
            Position of the argument.
        shape : sequence of int
            Shape of the result.
        entries : tuple of Tensor
            Rows and columns, int64, and values, ``(entries,)`` each; values of one place are added up.
        bias : Tensor or float
            Broadcasts to the result.
        name : str
            Of the operation.
        """
        source, size = self.ops[of].shape, math.prod(shape)
        rows, columns, values = entries
        if len(rows) and not (0 <= rows.min() and rows.max() < size and 0 <= columns.min() and columns.max() < math.prod(source)):
            raise ShapeError(f"{name}: an entry lies outside a matrix of {size} rows and {math.prod(source)} columns")
        self.take(3 * len(rows), f"the entries of {name}")
        place, at = torch.unique(rows * math.prod(source) + columns, return_inverse=True)
        weight = values.new_zeros(len(place), dtype=torch.float64).index_add_(0, at, values.double())
        rows, columns = place // math.prod(source), place % math.prod(source)
        most = max((int(part.bincount().max()) for part in (rows, columns) if len(part)), default=0)
        bias = torch.as_tensor(bias, dtype=torch.float64)
        if np.broadcast_shapes(bias.shape, tuple(shape)) != tuple(shape):
            raise ShapeError(f"{name}: a constant {tuple(bias.shape)} does not fit {tuple(shape)}")
        return self._append(Sparse((of,), tuple(shape), name, source, most + 8, rows, columns, weight, bias))

    def relu(self, of: int, name: str = "relu") -> int:
        """Append a ReLU."""
        return self._append(Relu((of,), self.ops[of].shape, name))

    def smooth(self, of: int, curve: Curve, name: str = "smooth") -> int:
        """Append a smooth activation, or a sign.

        Parameters
        ----------
        of : int
            Position of the argument.
        curve : Curve
            The function: one of :data:`blocklp.oracles.curves.CURVES`, or :data:`blocklp.oracles.curves.SIGN`.
        name : str
            Of the operation.
        """
        return self._append(SmoothActivation((of,), self.ops[of].shape, name, curve))

    def add(self, a: int, b: int, name: str = "add") -> int:
        """Append the sum of two results.

        Parameters
        ----------
        a, b : int
            Positions of the arguments, which have one shape.
        name : str
            Of the operation.
        """
        if self.ops[a].shape != self.ops[b].shape:
            raise ShapeError(f"{name}: cannot add {self.ops[a].shape} and {self.ops[b].shape}")
        return self._append(Add((a, b), self.ops[a].shape, name))
