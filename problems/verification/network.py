"""ReLU networks as a list of operations with adjoints.

A network is a directed acyclic graph of affine operations and ReLUs.  Every affine operation knows its linear map, the
adjoint of that map (a transposed convolution, never a dense matrix of a convolution) and how far rounding can throw it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, ShapeError

Shape = tuple[int, ...]

PRODUCTS, MOVED = 2e9, 5e7
"""Multiplications a second, in float64 on one thread of a slow CPU, and results that are worked on one by one a second (a few
passes over memory each): what large operations are estimated by."""


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes
    ----------
    inputs : tuple of int
        Positions of its arguments in the network.
    shape : tuple of int
        Shape of its result for one sample.
    name : str
        What errors call it.
    """

    inputs: tuple[int, ...]
    shape: Shape
    name: str

    def to(self, dtype: torch.dtype, device: torch.device) -> Op:
        """Return the operation in another precision."""
        return self

    @property
    def products(self) -> int:
        """Multiplications for one sample."""
        return 0

    def ask(self, deadline: Deadline, x: Tensor) -> None:
        """Raise a ``TimeLimitError`` unless there is time for the operation or its adjoint on a batch like ``x``."""
        seconds = self.products / PRODUCTS + math.prod(self.shape) / MOVED
        deadline.check(f"applying {self.name}", len(x) * seconds * x.element_size() / 8)


@dataclass(frozen=True)
class Input(Op):
    """The input of the network."""


@dataclass(frozen=True)
class Relu(Op):
    """max(z, 0), element by element."""


@dataclass(frozen=True)
class Affine(Op):
    """An affine map of one argument."""

    source: Shape

    #: Most terms in one sum of the map or of its adjoint, with a margin for weights that were folded in float64.
    terms: int

    def linear(self, x: Tensor) -> Tensor:
        """Return W x: ``(batch, *source) -> (batch, *shape)``."""
        raise NotImplementedError

    def shift(self) -> Tensor:
        """Return b, broadcastable to ``(batch, *shape)``."""
        raise NotImplementedError

    def adjoint(self, y: Tensor) -> Tensor:
        """Return W' y: ``(batch, *shape) -> (batch, *source)``."""
        raise NotImplementedError

    def absolute(self) -> Affine:
        """Return the map of magnitudes, ``abs(W) x + abs(b)``."""
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Tensor:
        """Return W x + b."""
        return self.linear(x) + self.shift()


@dataclass(frozen=True)
class Linear(Affine):
    """A matrix ``(out, in)`` and a bias ``(out,)``; the argument is flattened."""

    weight: Tensor
    bias: Tensor

    @property
    def products(self) -> int:
        """One a weight."""
        return self.weight.numel()

    def linear(self, x: Tensor) -> Tensor:
        """W x."""
        return (x.flatten(1) @ self.weight.T).reshape(-1, *self.shape)

    def shift(self) -> Tensor:
        """Bias."""
        return self.bias.reshape(1, *self.shape)

    def adjoint(self, y: Tensor) -> Tensor:
        """W' y."""
        return (y.flatten(1) @ self.weight).reshape(-1, *self.source)

    def absolute(self) -> Linear:
        """Magnitudes."""
        return replace(self, weight=self.weight.abs(), bias=self.bias.abs())

    def to(self, dtype: torch.dtype, device: torch.device) -> Linear:
        """Other precision."""
        return replace(self, weight=self.weight.to(device, dtype), bias=self.bias.to(device, dtype))


@dataclass(frozen=True)
class Conv(Affine):
    """A two-dimensional convolution of ``(channels, height, width)``; ``padding`` is (left, right, top, bottom), zeros."""

    weight: Tensor
    bias: Tensor
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def products(self) -> int:
        """One a weight and position."""
        return self.weight.numel() * math.prod(self.shape[1:])

    @property
    def _symmetric(self) -> bool:
        left, right, top, bottom = self.padding
        return left == right and top == bottom

    def linear(self, x: Tensor) -> Tensor:
        """W x."""
        if self._symmetric:
            pad = (self.padding[2], self.padding[0])
            return F.conv2d(x, self.weight, None, self.stride, pad, self.dilation, self.groups)
        return F.conv2d(F.pad(x, self.padding), self.weight, None, self.stride, 0, self.dilation, self.groups)

    def shift(self) -> Tensor:
        """Bias of every channel."""
        return self.bias.reshape(1, -1, 1, 1)

    def adjoint(self, y: Tensor) -> Tensor:
        """W' y; padding is cropped away and positions the stride never reached are zero.

        A transposed convolution, as one of stride 1 whose channels are then interleaved: several times as fast on a CPU.
        """
        left, _, top, _ = self.padding
        (s, t), (rows, columns), (high, wide) = self.stride, self.shape[1:], self._phases.shape[2:]
        channels, height, width = self.source
        # Whole strides of padding need not be computed.
        skip = max(0, min(top // s, rows + high - 1 - -(-(top + height) // s), high - 1))
        over = max(0, min(left // t, columns + wide - 1 - -(-(left + width) // t), wide - 1))
        found = F.conv2d(y, self._phases, None, 1, (high - 1 - skip, wide - 1 - over), 1, self.groups)
        if s * t > 1:
            rows, columns = found.shape[2:]
            found = found.view(-1, channels, s, t, rows, columns).permute(0, 1, 4, 2, 5, 3)
            found = found.reshape(-1, channels, rows * s, columns * t)
        top, left = top - skip * s, left - over * t
        beyond = max(0, left + width - found.shape[3]), max(0, top + height - found.shape[2])
        if any(beyond):
            found = F.pad(found, (0, beyond[0], 0, beyond[1]))
        return found[:, :, top : top + height, left : left + width]

    @cached_property
    def _phases(self) -> Tensor:
        """The kernel of the adjoint: a channel for every input channel and position within a stride."""
        (s, t), (d, e), g = self.stride, self.dilation, self.groups
        out, inner, k, m = self.weight.shape
        k, m = (k - 1) * d + 1, (m - 1) * e + 1
        high, wide = -(-k // s), -(-m // t)
        kernel = self.weight.new_zeros(out, inner, high * s, wide * t)
        kernel[:, :, :k:d, :m:e] = self.weight
        kernel = kernel.view(g, out // g, inner, high, s, wide, t).flip(3, 5)
        return kernel.permute(0, 2, 4, 6, 1, 3, 5).reshape(g * inner * s * t, out // g, high, wide)

    def absolute(self) -> Conv:
        """Magnitudes."""
        return replace(self, weight=self.weight.abs(), bias=self.bias.abs())

    def to(self, dtype: torch.dtype, device: torch.device) -> Conv:
        """Other precision."""
        return replace(self, weight=self.weight.to(device, dtype), bias=self.bias.to(device, dtype))


@dataclass(frozen=True)
class Scale(Affine):
    """Element-wise factor and shift, tensors that broadcast to ``shape``: normalisation, batch normalisation, constants."""

    weight: Tensor
    bias: Tensor

    def linear(self, x: Tensor) -> Tensor:
        """W x."""
        return x * self.weight

    def shift(self) -> Tensor:
        """Shift."""
        return self.bias.expand(self.shape)[None]

    def adjoint(self, y: Tensor) -> Tensor:
        """W' y."""
        return y * self.weight

    def absolute(self) -> Scale:
        """Magnitudes."""
        return replace(self, weight=self.weight.abs(), bias=self.bias.abs())

    def to(self, dtype: torch.dtype, device: torch.device) -> Scale:
        """Other precision."""
        return replace(self, weight=self.weight.to(device, dtype), bias=self.bias.to(device, dtype))


@dataclass(frozen=True)
class Reorder(Affine):
    """Permute the axes of a sample, then reshape it to ``shape``: Transpose, Flatten, Reshape."""

    axes: tuple[int, ...]

    def linear(self, x: Tensor) -> Tensor:
        """W x."""
        return x.permute(0, *(a + 1 for a in self.axes)).reshape(-1, *self.shape)

    def shift(self) -> Tensor:
        """Nothing."""
        return torch.zeros(())

    def adjoint(self, y: Tensor) -> Tensor:
        """W' y."""
        back = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        y = y.reshape(-1, *(self.source[a] for a in self.axes))
        return y.permute(0, *(b + 1 for b in back))

    def absolute(self) -> Reorder:
        """Itself."""
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """Only moved."""
        return self.linear(x)


@dataclass(frozen=True)
class Add(Op):
    """Sum of two results of the same shape: a residual connection."""


@dataclass(frozen=True)
class Network:
    """A network; the last operation is its output.

    Attributes
    ----------
    ops : tuple of Op
        In an order in which arguments come first; ``ops[0]`` is the input.
    name : str
        For messages.
    """

    ops: tuple[Op, ...]
    name: str = "network"

    def __post_init__(self) -> None:
        if not self.ops or not isinstance(self.ops[0], Input):
            raise ModelError(f"{self.name}: the first operation must be the input")
        for at, op in enumerate(self.ops):
            if any(not 0 <= i < at for i in op.inputs):
                raise ModelError(f"{self.name}: {op.name} uses a result that comes later")

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
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next((op.weight.dtype for op in self.ops if isinstance(op, (Linear, Conv, Scale))), torch.float64)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next((op.weight.device for op in self.ops if isinstance(op, (Linear, Conv, Scale))), torch.device("cpu"))

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
            elif isinstance(op, Add):
                results.append(results[op.inputs[0]] + results[op.inputs[1]])
            else:
                assert isinstance(op, Affine)
                results.append(op(results[op.inputs[0]]))
        return results

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``(batch, outputs)`` for inputs ``(batch, *input_shape)``."""
        return self.run(x)[-1].flatten(1)

    def followed_by(self, weight: Tensor, bias: Tensor) -> Network:
        """Return the network with a last layer ``weight @ outputs + bias``: ``(rows, outputs)``, ``(rows,)``."""
        builder = Builder(self.input_shape, self.name)
        builder.ops[:] = self.ops
        builder.linear(len(self.ops) - 1, weight, bias, "rows")
        return builder.build()

    def ancestors(self, node: int) -> list[int]:
        """Positions of everything ``node`` depends on, itself included, in order."""
        wanted = {node}
        for at in range(node, -1, -1):
            if at in wanted:
                wanted.update(self.ops[at].inputs)
        return sorted(wanted)


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
        return Network(tuple(self.ops), self.name)

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

    def relu(self, of: int, name: str = "relu") -> int:
        """Append a ReLU."""
        return self._append(Relu((of,), self.ops[of].shape, name))

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
