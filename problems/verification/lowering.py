"""What the readers share: layers of other libraries written with the few operations of ``Network``.

A reader works with a batch of one sample and keeps the shapes of its source, batch axis included, in ``Value``.  The
flattened elements of a value are always those of its operation in the same order, so reshapes cost no operation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.errors import ShapeError
from blocklp.oracles.curves import CURVES, SIGN
from blocklp.problems.verification.comparison import POINTS
from blocklp.problems.verification.heads import Softmax
from blocklp.problems.verification.network import Builder, Network
from blocklp.problems.verification.operations import Add, Affine, Computed, Folded, Linear, Relu, Scale, Shape, Sparse

Array = NDArray[Any]


@dataclass(frozen=True)
class Value:
    """A result under the shape its source gives it.

    Attributes
    ----------
    at : int
        Position of the operation.
    shape : tuple of int
        Shape in the source, for a batch of one.
    head : Softmax or None
        What is still to be applied to its flat elements: only at the end of a network.
    """

    at: int
    shape: Shape
    head: Softmax | None = None

    @property
    def numbers(self) -> Array:
        """The flat positions of its elements, int64, in its shape."""
        return np.arange(math.prod(self.shape)).reshape(self.shape)


class Lowering:
    """Appends layers to a ``Builder``.

    Parameters
    ----------
    shape : sequence of int
        Shape of the input in the source, for a batch of one.
    sample : sequence of int
        Shape of one input of the network: the same elements.
    name : str
        Name of the network.
    most : float
        Numbers that all results for one input may hold, and kernels and points that are made for them.

    Raises
    ------
    ModelError
        By every method: the layer does not fit its argument, is no composition of operations of networks, or is too large.
    """

    def __init__(self, shape: Sequence[int], sample: Sequence[int], name: str, most: float = math.inf) -> None:
        self.builder = Builder(sample, name, most)
        self.builder.take(POINTS * math.prod(sample), "the input")
        self.input = Value(0, tuple(shape))

    def build(self, output: Value) -> Network:
        """Return the network that ends in ``output``, without operations it does not need."""
        whole = self.builder.build()
        kept = whole.ancestors(output.at)
        position = {old: new for new, old in enumerate(kept)}
        ops = (replace(whole.ops[old], inputs=tuple(position[i] for i in whole.ops[old].inputs)) for old in kept)
        return Network(tuple(ops), whole.name, output.head)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Give a value another shape; one size may be -1."""
        shape, size = list(shape), math.prod(value.shape)
        if shape.count(-1) == 1:
            rest = math.prod(n for n in shape if n != -1)
            shape[shape.index(-1)] = size // rest if rest else 0
        if math.prod(shape) != size or min(shape, default=1) < 1:
            raise ShapeError(f"cannot reshape {value.shape} to {tuple(shape)}")
        return replace(value, shape=tuple(shape))

    def flatten(self, value: Value, start: int = 1, end: int = -1) -> Value:
        """Merge the axes ``start .. end``.

        Parameters
        ----------
        value : Value
            The result to reshape.
        start, end : int
            First and last of the axes; negative ones count from the end.
        """
        start, end = (axis + len(value.shape) if axis < 0 else axis for axis in (start, end))
        merged = math.prod(value.shape[start : end + 1])
        return replace(value, shape=(*value.shape[:start], merged, *value.shape[end + 1 :]))

    def transpose(self, value: Value, axes: Sequence[int], name: str) -> Value:
        """Permute all axes.

        Parameters
        ----------
        value : Value
            The result to reorder.
        axes : sequence of int
            Which axis goes to each place; negative ones count from the end.
        name : str
            Of the operation.
        """
        rank = len(value.shape)
        axes = [axis + rank if axis < 0 else axis for axis in axes]
        if sorted(axes) != list(range(rank)):
            raise ShapeError(f"axes {tuple(axes)} are no permutation of those of {value.shape}")
        shape = tuple(value.shape[axis] for axis in axes)
        moving = [axis for axis in axes if value.shape[axis] > 1]
        if moving == sorted(moving):
            return Value(value.at, shape)
        long = sorted(moving)
        at = self.placed(value, tuple(value.shape[axis] for axis in long), name)
        return Value(self.builder.reorder(at, [long.index(axis) for axis in moving], name=name), shape)

    def softmax(self, value: Value, axes: Sequence[int], logarithm: bool, name: str) -> Value:
        """Put a softmax, or its logarithm, at the end of the network.

        Parameters
        ----------
        value : Value
            Its argument.
        axes : sequence of int
            The axes along which sums are 1, together; negative ones count from the end.
        logarithm : bool
            Whether to take the logarithm.
        name : str
            For messages.
        """
        rank = len(value.shape)
        gone = {axis % rank for axis in axes}
        kept = tuple(1 if axis in gone else n for axis, n in enumerate(value.shape))
        groups = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), value.shape)
        return replace(value, head=Softmax(torch.from_numpy(groups.reshape(-1).copy()), logarithm, name))

    def relu(self, value: Value, name: str) -> Value:
        """max(z, 0)."""
        return Value(self.builder.relu(value.at, name), value.shape)

    def smooth(self, value: Value, curve: str, name: str) -> Value:
        """Apply a smooth function.

        Parameters
        ----------
        value : Value
            Its argument.
        curve : str
            Its name: one of :data:`blocklp.oracles.curves.CURVES`.
        name : str
            Of the operation.
        """
        return Value(self.builder.smooth(value.at, CURVES[curve], name), value.shape)

    def sign(self, value: Value, name: str) -> Value:
        """-1, 0 or 1."""
        return Value(self.builder.smooth(value.at, SIGN, name), value.shape)

    def add(self, a: Value, b: Value, name: str) -> Value:
        """Sum of two values, which broadcast.

        Parameters
        ----------
        a, b : Value
            The values.
        name : str
            Of the operation.
        """
        shape = broadcast(a.shape, b.shape)
        a, b = self.expand(a, shape, name), self.expand(b, shape, name)
        place = self.placed(b, self.builder.ops[a.at].shape, name)
        return Value(self.builder.add(a.at, place, name), shape)

    def subtract(self, a: Value, b: Value, name: str) -> Value:
        """Difference a - b.

        Parameters
        ----------
        a, b, name
            As in :meth:`add`.
        """
        return self.add(a, self.scale(b, -1.0, 0.0, f"{name}/minus"), name)

    def scale(self, value: Value, weight: Tensor | float, bias: Tensor | float, name: str) -> Value:
        """Element-wise factor and shift, which broadcast in the shape of the source.

        Parameters
        ----------
        value : Value
            The result to scale.
        weight, bias : Tensor or float
            The factor, and what is added.
        name : str
            Of the operation.
        """
        weight, bias = (torch.as_tensor(part, dtype=torch.float64) for part in (weight, bias))
        shape = broadcast(value.shape, weight.shape, bias.shape)
        value = self.expand(value, shape, name)
        weight, bias = self._constant(value, weight), self._constant(value, bias)
        return Value(self.builder.scale(value.at, weight, bias, name), shape)

    def expand(self, value: Value, shape: Sequence[int], name: str) -> Value:
        """Repeat elements along axes of size one and along new leading axes.

        Parameters
        ----------
        value : Value
            The result to repeat.
        shape : sequence of int
            A shape that it broadcasts to.
        name : str
            Of the operation.
        """
        if broadcast(value.shape, shape) != tuple(shape):
            raise ShapeError(f"{value.shape} does not broadcast to {tuple(shape)}")
        self.builder.take(math.prod(shape), name)
        return self.pick(value, np.broadcast_to(value.numbers, shape), name)

    def pick(self, value: Value, elements: Array, name: str, constant: Array | None = None) -> Value:
        """Select, repeat and reorder elements.

        Parameters
        ----------
        value : Value
            The result whose elements they are.
        elements : ndarray
            Flat position of every element of the result, in its shape, int64; negative where it is constant.
        name : str
            Of the operation.
        constant : ndarray, optional
            The constants, of the same shape and zero elsewhere.
        """
        flat = elements.reshape(-1)
        if len(flat) == math.prod(value.shape) and bool((flat == np.arange(len(flat))).all()):
            return Value(value.at, elements.shape)
        there = np.flatnonzero(flat >= 0)
        entries = (there, flat[there], np.ones(len(there)))
        return self.sparse(value, elements.shape, entries, 0.0 if constant is None else constant, name)

    def sparse(
        self, value: Value, shape: Sequence[int], entries: tuple[Array, Array, Array], bias: Array | float, name: str
    ) -> Value:
        """Apply a sparse matrix to the flat elements of a value.

        Parameters
        ----------
        value : Value
            The argument.
        shape : sequence of int
            Shape of the result.
        entries : tuple of ndarray
            Rows and columns, int64, and values, ``(entries,)`` each.
        bias : ndarray or float
            Added; of the shape of the result, or a number.
        name : str
            Of the operation.
        """
        if 0 in shape:
            raise ShapeError(f"the result {tuple(shape)} is empty")
        sample = _sample(shape)
        rows, columns, values = (torch.from_numpy(np.ascontiguousarray(part)) for part in entries)
        added = torch.from_numpy(np.array(bias, dtype=np.float64))
        at = self.builder.sparse(value.at, sample, (rows, columns, values), added.reshape(sample) if added.dim() else added, name)
        return Value(at, tuple(shape))

    def computed(self, value: Value) -> Value:
        """Mark the last sparse matrix as one whose entries an implementation computes in floating point."""
        op = self.builder.ops[value.at]
        assert isinstance(op, Sparse)
        fields = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
        self.builder.ops[value.at] = Computed(**fields)
        return value

    def shift(self, value: Value, bias: Tensor, alone: bool, name: str) -> Value:
        """Add a constant; into the bias of a matrix if nothing else uses its result.

        Parameters
        ----------
        value : Value
            The result to add to.
        bias : Tensor
            The constant, which broadcasts.
        alone : bool
            Whether nothing but this sum uses ``value``.
        name : str
            Of the operation.
        """
        op = self.builder.ops[value.at]
        grown = broadcast(value.shape, bias.shape)
        if alone and isinstance(op, Linear) and not op.bias.any() and math.prod(grown) == math.prod(op.shape):
            self.builder.ops[value.at] = replace(op, bias=bias.double().expand(grown).reshape(-1).clone())
            return Value(value.at, grown)
        return self.scale(value, 1.0, bias, name)

    def linear(self, value: Value, weight: Tensor, bias: Tensor | None, name: str) -> Value:
        """Apply a matrix ``(out, in)`` along the last axis; a 1 x 1 convolution where there are several rows.

        Parameters
        ----------
        value : Value
            Of shape ``(..., in)``.
        weight, bias : Tensor, and Tensor or None
            ``(out, in)`` and ``(out,)``.
        name : str
            Of the operation.
        """
        *lead, columns = value.shape
        rows = math.prod(lead)
        if weight.dim() != 2 or weight.shape[1] != columns:
            raise ShapeError(f"a matrix {tuple(weight.shape)} does not fit the last axis of {value.shape}")
        if rows == 1:
            return Value(self.builder.linear(value.at, weight, bias, name), (*lead, len(weight)))
        turned = self.transpose(Value(value.at, (rows, columns)), (1, 0), name)
        result = self._along_first(turned, weight, bias, name)
        return Value(self.transpose(result, (1, 0), name).at, (*lead, len(weight)))

    def linear_left(self, value: Value, weight: Tensor, name: str) -> Value:
        """Apply a matrix ``(out, in)`` along the last axis but one, or the only one: W x.

        Parameters
        ----------
        value : Value
            Of shape ``(1, ..., 1, in, columns)`` or ``(in,)``.
        weight : Tensor
            ``(out, in)``.
        name : str
            Of the operation.
        """
        rank = len(value.shape)
        if weight.dim() != 2 or rank == 0 or weight.shape[1] != value.shape[max(rank - 2, 0)]:
            raise ShapeError(f"a matrix {tuple(weight.shape)} does not fit the columns of {value.shape}")
        if math.prod(value.shape) == weight.shape[1]:
            at = self.builder.linear(value.at, weight, None, name)
            return Value(at, (len(weight),) if rank == 1 else (*value.shape[:-2], len(weight), 1))
        result = self._along_first(Value(value.at, value.shape[-2:]), weight, None, name)
        return Value(result.at, (*value.shape[:-2], *result.shape))

    def batch_norm(
        self, value: Value, factor: Tensor | None, shift: Tensor | None, mean: Tensor, variance: Tensor, eps: float, name: str
    ) -> Value:
        """Normalise channels with fixed statistics.

        Parameters
        ----------
        value : Value
            Of shape ``(1, channels, ...)``.
        factor, shift : Tensor or None
            ``(channels,)``: applied after the normalisation; None for 1 and 0.
        mean, variance : Tensor
            ``(channels,)``: the statistics.
        eps : float
            Added to the variances.
        name : str
            Of the operation.
        """
        if len(value.shape) < 2 or mean.shape != (value.shape[1],):
            raise ShapeError(f"{tuple(mean.shape)} means do not fit {value.shape}")
        factor = torch.ones_like(mean) if factor is None else factor
        shift = torch.zeros_like(mean) if shift is None else shift
        form = (-1, *([1] * (len(value.shape) - 2)))
        weight = (factor.double() / (variance.double() + eps).sqrt()).reshape(form)
        moved = mean.double().reshape(form) * weight
        shift = shift.double().reshape(form)
        result = self.scale(value, weight, shift - moved, name)
        parts = self._constant(value, shift.abs() + moved.abs())
        op = self.builder.ops[result.at]
        assert isinstance(op, Scale)
        self.builder.ops[result.at] = Folded(op.inputs, op.shape, op.name, op.source, op.terms, op.weight, op.bias, parts)
        return result

    def placed(self, value: Value, shape: Shape, name: str) -> int:
        """Position of an operation with the elements of a result in a shape; appended if the result has another one.

        Parameters
        ----------
        value : Value
            The result.
        shape : tuple of int
            Of as many elements, for a batch of one.
        name : str
            Of the operation.
        """
        if self.builder.ops[value.at].shape == shape:
            return value.at
        return self.builder.reorder(value.at, shape=shape, name=name)

    def _constant(self, value: Value, constant: Tensor) -> Tensor:
        """Bring a constant that broadcasts to ``value`` into a form that broadcasts to its operation, small if possible."""
        shape, rank = self.builder.ops[value.at].shape, len(value.shape)
        while constant.dim() > len(shape) and constant.shape[0] == 1:
            constant = constant[0]
        if constant.numel() == 1:
            return constant.reshape(())
        if value.shape[max(rank - len(shape), 0) :] == shape and constant.dim() <= len(shape):
            return constant
        full = broadcast(value.shape, constant.shape)
        return constant.expand(full).reshape(shape)

    def _along_first(self, value: Value, weight: Tensor, bias: Tensor | None, name: str) -> Value:
        rows, columns = value.shape
        at = self.builder.conv(self.placed(value, (rows, columns, 1), name), weight[:, :, None, None], bias, name=name)
        return Value(at, (len(weight), columns))

    def nonnegative(self, at: int) -> bool:
        """Whether a result is certainly nowhere negative."""
        pending, seen = [at], set[int]()
        while pending:
            op = self.builder.ops[at := pending.pop()]
            if at in seen or isinstance(op, Relu):
                continue
            seen.add(at)
            parts = [getattr(op, part, torch.zeros(())) for part in ("weight", "bias")]
            if not isinstance(op, (Add, Affine)) or not all(bool((part >= 0).all()) for part in parts):
                return False
            pending += op.inputs
        return True


def _sample(shape: Sequence[int]) -> Shape:
    """Shape of an operation's result: that of one sample, without the axis of the batch."""
    return tuple(shape[1:]) if len(shape) > 1 and shape[0] == 1 else tuple(shape) or (1,)


def broadcast(*shapes: Sequence[int]) -> Shape:
    """Return the shape that shapes broadcast to."""
    try:
        return np.broadcast_shapes(*(tuple(s) for s in shapes))
    except ValueError:
        raise ShapeError(f"shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast") from None
