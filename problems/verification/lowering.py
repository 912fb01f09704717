"""What the readers share: layers of other libraries written with the few operations of ``Network``.

A reader works with a batch of one sample and keeps the shapes of its source, batch axis included, in ``Value``.  The
flattened elements of a value are always those of its operation in the same order, so reshapes cost no operation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, ShapeError
from blocklp.problems.verification.network import Add, Affine, Builder, Linear, Network, Relu, Scale, Shape

#: Rounding units of the sources that networks are compared with.
UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}

NOTHING = torch.zeros((), dtype=torch.float64)

# Products below the smallest normal number are flushed to zero, which no relative bound covers.
UNDERFLOW = 1e-30

# Sums of float32 numbers may overflow from about here.
LARGEST = 1e37

# How many times the rounding of its own sum may be what a neuron has inherited from its predecessors.
KINK = 64

# More outputs than these are compared by sums with random signs.
MOST_PROBES = 32

# Points at which networks are compared.
POINTS = 20

# Results to differentiate at a time: some hundredths of a second.
MOST_NUMBERS = 2**17


@dataclass(frozen=True)
class Value:
    """A result under the shape its source gives it.

    Attributes
    ----------
    at : int
        Position of the operation.
    shape : tuple of int
        Shape in the source, for a batch of one.
    """

    at: int
    shape: Shape


@dataclass(frozen=True)
class Folded(Scale):
    """A factor and shift computed from several constants.

    Attributes
    ----------
    parts : Tensor
        Sum of the magnitudes of what the shift is made of.  The source rounds at that size, however well it cancels.
    """

    parts: Tensor = NOTHING


@dataclass(frozen=True)
class Window:
    """Geometry of a convolution or pooling along its one or two spatial axes."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]

    def __post_init__(self) -> None:
        if min(self.kernel + self.stride + self.dilation, default=0) < 1 or min(self.before + self.after) < 0:
            raise ModelError(f"{self} needs positive kernels, strides and dilations, and no negative padding")
        if len({len(self.kernel), len(self.stride), len(self.before), len(self.after), len(self.dilation)}) > 1:
            raise ModelError(f"{self} has parts of different length")

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return any(self.before + self.after)

    def flat(self) -> Window:
        """Return the same window with a leading axis of height one if it has one axis only."""
        if len(self.kernel) != 1:
            return self
        one, none = (1,), (0,)
        return Window(one + self.kernel, one + self.stride, none + self.before, none + self.after, one + self.dilation)

    def padding(self) -> tuple[int, ...]:
        """Padding as (left, right, top, bottom)."""
        return (self.before[-1], self.after[-1], self.before[0], self.after[0])

    def refuse_ceil(self, image: Sequence[int]) -> None:
        """Refuse rounding the size of the result up where that differs from rounding it down."""
        for n, k, s, a, b, d in zip(image, self.kernel, self.stride, self.before, self.after, self.dilation, strict=True):
            if (n + a + b - d * (k - 1) - 1) % s:
                raise ModelError("windows that reach over the border (ceil_mode) are not supported; pad the image instead")

    def same(self, image: Sequence[int], upper: bool) -> Window:
        """Return the window padded such that the result has ceil(image / stride) elements an axis."""
        before, after = [], []
        for n, k, s, d in zip(image, self.kernel, self.stride, self.dilation, strict=True):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            before.append(total // 2 if upper else total - total // 2)
            after.append(total - before[-1])
        return replace(self, before=tuple(before), after=tuple(after))


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
        By every method: the layer does not fit its argument, is no composition of affine maps and ReLUs, or is too large.
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
        return Network(tuple(ops), whole.name)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Give a value another shape; one size may be -1."""
        shape, size = list(shape), math.prod(value.shape)
        if shape.count(-1) == 1:
            rest = math.prod(n for n in shape if n != -1)
            shape[shape.index(-1)] = size // rest if rest else 0
        if math.prod(shape) != size or min(shape, default=1) < 1:
            raise ShapeError(f"cannot reshape {value.shape} to {tuple(shape)}")
        return Value(value.at, tuple(shape))

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
        return Value(value.at, (*value.shape[:start], math.prod(value.shape[start : end + 1]), *value.shape[end + 1 :]))

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
        at = self._place(value, tuple(value.shape[axis] for axis in long), name)
        return Value(self.builder.reorder(at, [long.index(axis) for axis in moving], name=name), shape)

    def relu(self, value: Value, name: str) -> Value:
        """max(z, 0)."""
        return Value(self.builder.relu(value.at, name), value.shape)

    def add(self, a: Value, b: Value, name: str) -> Value:
        """Sum of two values, without broadcasting of more than axes of size one.

        Parameters
        ----------
        a, b : Value
            The values.
        name : str
            Of the operation.
        """
        shape = _broadcast(a.shape, b.shape)
        if math.prod(shape) != math.prod(a.shape) or math.prod(shape) != math.prod(b.shape):
            raise ShapeError(f"a sum of {a.shape} and {b.shape} repeats elements; expand the smaller one by a constant matrix")
        place = self._place(b, self.builder.ops[a.at].shape, name)
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
        weight, bias = torch.as_tensor(weight).double(), torch.as_tensor(bias).double()
        shape = _broadcast(value.shape, weight.shape, bias.shape)
        if math.prod(shape) != math.prod(value.shape):
            raise ShapeError(f"a constant {tuple(max(weight, bias, key=torch.numel).shape)} repeats the elements of {value.shape}")
        weight, bias = self._constant(value, weight), self._constant(value, bias)
        return Value(self.builder.scale(value.at, weight, bias, name), shape)

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
        grown = _broadcast(value.shape, bias.shape)
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
            Of shape ``(..., in, columns)`` or ``(in,)``.
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
        if math.prod(value.shape[:-2]) != 1:
            raise ShapeError(f"a matrix times a stack of matrices {value.shape} is not supported; use one matrix")
        result = self._along_first(Value(value.at, value.shape[-2:]), weight, None, name)
        return Value(result.at, (*value.shape[:-2], *result.shape))

    def conv(self, value: Value, weight: Tensor, bias: Tensor | None, window: Window, groups: int, name: str) -> Value:
        """One- or two-dimensional convolution of ``(1, channels, ...)`` by a kernel ``(out, in / groups, ...)``.

        Parameters
        ----------
        value : Value
            Of shape ``(1, channels, ...)``.
        weight, bias : Tensor, and Tensor or None
            ``(out, in / groups, ...)`` and ``(out,)``.
        window : Window
            Kernel, strides, padding and dilation.
        groups : int
            Groups of channels.
        name : str
            Of the operation.
        """
        self.image(value)
        if len(window.kernel) != len(value.shape) - 2 or tuple(weight.shape[2:]) != window.kernel:
            raise ShapeError(f"a kernel {tuple(weight.shape)} does not fit {value.shape}")
        if len(weight) % groups:
            raise ShapeError(f"{groups} groups do not divide {len(weight)} channels")
        flat = window.flat()
        channels, *image = value.shape[1:]
        at = self._place(value, (channels, *([1] * (3 - len(value.shape[1:]))), *image), name)
        weight = weight.reshape(*weight.shape[:2], *flat.kernel)
        at = self.builder.conv(at, weight, bias, flat.stride, flat.padding(), flat.dilation, groups, name)
        made = self.builder.ops[at].shape
        return Value(at, (1, made[0], *made[-len(image) :]))

    def average_pool(self, value: Value, window: Window, count_padding: bool, name: str) -> Value:
        """Mean of every window: a convolution of every channel by itself.

        Parameters
        ----------
        value : Value
            Image.
        window : Window
            Geometry.
        count_padding : bool
            Whether the mean is over padded zeros too.
        name : str
            For messages.
        """
        size = math.prod(window.kernel)
        self.builder.take(size, name)
        pooled = self._depthwise(value, torch.full(window.kernel, 1 / size, dtype=torch.float64), window, name)
        if count_padding or not window.padded:
            return pooled
        count = self._count(value, window).reshape(1, 1, *pooled.shape[2:])
        return self.scale(pooled, size / count, 0.0, f"{name}/count")

    def max_pool(self, value: Value, window: Window, name: str) -> Value:
        """Maximum of every window by max(a, b) = a + relu(b - a), as a knock-out tournament.

        Zeros as padding are right only where nothing is negative, so other padding is refused.

        Parameters
        ----------
        value : Value
            Of shape ``(1, channels, ...)``.
        window : Window
            Kernel, strides, padding and dilation.
        name : str
            Beginning of the operations' names.
        """
        self.image(value)
        if window.padded and not self._nonnegative(value.at):
            raise ModelError("padding of a maximum over values that may be negative is not supported; put a ReLU before it")
        if window.padded:
            self._count(value, window)
        size = math.prod(window.kernel)
        self.builder.take(size * size, name)
        picks = list(torch.eye(size).reshape(size, *window.kernel))
        # In the first round differences of entries are convolutions themselves and need no operation of their own.
        round_: list[Value] = []
        for k in range(0, size - 1, 2):
            first = self._depthwise(value, picks[k], window, f"{name}/entry{k}")
            ahead = self._depthwise(value, picks[k + 1] - picks[k], window, f"{name}/ahead{k}")
            round_.append(self.add(first, self.relu(ahead, f"{name}/max{k}"), f"{name}/max{k}"))
        if size % 2:
            round_.append(self._depthwise(value, picks[-1], window, f"{name}/entry{size - 1}"))
        while len(round_) > 1:
            winners = [self._maximum(a, b, name) for a, b in zip(round_[::2], round_[1::2], strict=False)]
            round_ = winners + round_[2 * len(winners) :]
        return round_[0]

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

    def image(self, value: Value) -> tuple[int, ...]:
        """Return the size of an image ``(1, channels, ...)`` of one or two dimensions."""
        if len(value.shape) not in (3, 4) or value.shape[0] != 1:
            raise ShapeError(f"{value.shape} is no image (1, channels, width) or (1, channels, height, width)")
        return value.shape[2:]

    def pad(self, value: Value, window: Window, name: str) -> Value:
        """Put zeros around an image.

        Parameters
        ----------
        value : Value
            Of shape ``(1, channels, ...)``.
        window : Window
            The padding; its kernels have size one.
        name : str
            Of the operation.
        """
        return self._depthwise(value, torch.ones(window.kernel), window, name) if window.padded else value

    def _place(self, value: Value, shape: Shape, name: str) -> int:
        """Position of an operation with these elements in this shape."""
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
        full = _broadcast(value.shape, constant.shape)
        return constant.expand(full).reshape(shape)

    def _along_first(self, value: Value, weight: Tensor, bias: Tensor | None, name: str) -> Value:
        rows, columns = value.shape
        at = self.builder.conv(self._place(value, (rows, columns, 1), name), weight[:, :, None, None], bias, name=name)
        return Value(at, (len(weight), columns))

    def _depthwise(self, value: Value, kernel: Tensor, window: Window, name: str) -> Value:
        self.image(value)
        channels = value.shape[1]
        self.builder.take(channels * kernel.numel(), name)
        weight = kernel.double().expand(channels, 1, *kernel.shape)
        return self.conv(value, weight, None, window, channels, name)

    def _count(self, value: Value, window: Window) -> Tensor:
        """How many entries of every window lie within the image; refuses a window that lies in the padding."""
        flat = window.flat()
        sides = zip(value.shape[2:], window.before, window.after, strict=True)
        self.builder.take(math.prod(n + a + b for n, a, b in sides), "the padding of a window")
        ones = torch.ones(1, 1, *([1] * (4 - len(value.shape))), *value.shape[2:], dtype=torch.float64)
        kernel = torch.ones(1, 1, *flat.kernel, dtype=torch.float64)
        count = F.conv2d(F.pad(ones, flat.padding()), kernel, None, flat.stride, 0, flat.dilation)
        if bool((count < 1).any()):
            raise ModelError("a window lies in the padding altogether; take less padding")
        return count

    def _maximum(self, a: Value, b: Value, name: str) -> Value:
        ahead = self.relu(self.subtract(b, a, name), name)
        return self.add(a, ahead, name)

    def _nonnegative(self, at: int) -> bool:
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


def random_points(network: Network, count: int = POINTS) -> Tensor:
    """Return inputs ``(count, *input_shape)`` to compare at, exact in float32: zero, [0, 1], [-1, 1], normal and large ones."""
    generator = torch.Generator().manual_seed(0)
    flat = (count, network.inputs)
    uniform, normal = torch.rand(flat, generator=generator), torch.randn(flat, generator=generator)
    kinds = (uniform, 2 * uniform - 1, normal, 100 * normal)
    points = torch.stack([kinds[i % 4][i] for i in range(count)])
    points[0] = 0.0
    return points.double().reshape(count, *network.input_shape)


def rounding(network: Network, x: Tensor, probes: Tensor, unit: float, deadline: Deadline | None = None) -> tuple[Tensor, Tensor]:
    """Estimate how far an evaluation in floating point can be from the real numbers.

    A sum of n products in any order is off by at most n u / (1 - n u) times the sum of their magnitudes (Higham, Accuracy
    and Stability of Numerical Algorithms, section 3.1).  What reaches the output of the error of one operation is, to first
    order, its product with the derivative of the output.  Products of the magnitudes of all layers would be a bound without
    "to first order", but one that exceeds the outputs of trained networks a thousand times.

    Parameters
    ----------
    network : Network
        In float64.
    x : Tensor, shape (batch, *input_shape)
        Inputs that the precision holds exactly.
    probes : Tensor, shape (probes, outputs)
        Combinations of outputs.
    unit : float
        u, half the distance of 1 to the next number.
    deadline : Deadline, optional
        When to raise a ``TimeLimitError``.

    Returns
    -------
    values, errors : Tensor, shape (batch, probes)
        Combinations in float64 and the estimate; infinite where a sum may exceed ``LARGEST`` and overflow in float32.
    """
    deadline, began = Deadline() if deadline is None else deadline, time.perf_counter()
    results: list[Tensor] = []
    local: list[Tensor] = []
    largest = x.flatten(1).abs().amax(1)
    for op in network.ops:
        of = [results[i] for i in op.inputs]
        op.ask(deadline, x)
        gamma, magnitude = unit, torch.zeros_like(of[0].detach() if of else x)
        if isinstance(op, Add):
            result, magnitude = of[0] + of[1], (of[0].abs() + of[1].abs()).detach()
        elif isinstance(op, Relu):
            # An error may switch a neuron that is this close to zero, so what comes through it counts.
            open_ = of[0] >= -KINK * local[op.inputs[0]]
            result = of[0].detach().clamp(min=0) + (of[0] - of[0].detach()) * open_
        elif isinstance(op, Affine):
            result, magnitude = op(of[0]), op.absolute()(of[0].detach().abs())
            gamma = op.terms * unit / (1 - op.terms * unit)
            if isinstance(op, Folded):
                magnitude = magnitude + op.parts
        else:
            result = x.clone().requires_grad_()
        results.append(result)
        local.append(gamma * magnitude + UNDERFLOW)
        largest = torch.maximum(largest, magnitude.flatten(1).amax(1))
    values = results[-1].flatten(1) @ probes.T
    errors = torch.zeros_like(values)
    seconds = time.perf_counter() - began  # a derivative takes about as long
    for probe in range(len(probes)):
        deadline.check(f"checking {network.name}", seconds)
        slopes = torch.autograd.grad(values[:, probe].sum(), results, retain_graph=True, allow_unused=True)
        parts = [(slope.abs() * off).flatten(1).sum(1) for slope, off in zip(slopes, local, strict=True) if slope is not None]
        errors[:, probe] = torch.stack(parts).sum(0).detach()
    return values.detach(), torch.where(largest[:, None] > LARGEST, torch.inf, errors)


def compare(network: Network, x: Tensor, outputs: Tensor, unit: float, source: str, deadline: Deadline | None = None) -> None:
    """Refuse a network that differs from its source by more than rounding.

    Parameters
    ----------
    network : Network
        In float64.
    x : Tensor, shape (batch, *input_shape)
        Points.
    outputs : Tensor, shape (batch, outputs)
        What the source gives there.
    unit : float
        Rounding unit of the source.
    source : str
        Name of the source for the message.
    deadline : Deadline, optional
        When to give up.

    Raises
    ------
    ModelError
        They differ.
    TimeLimitError
        The deadline is over, or would be.
    """
    if network.outputs != outputs.shape[1]:
        raise ModelError(f"{network.name} has {network.outputs} outputs where {source} has {outputs.shape[1]}")
    few = network.outputs <= MOST_PROBES
    signs = torch.randint(2, (MOST_PROBES, network.outputs), generator=torch.Generator().manual_seed(1))
    probes = torch.eye(network.outputs, dtype=torch.float64) if few else 2.0 * signs.double() - 1
    size = sum(math.prod(op.shape) for op in network.ops)
    step = max(1, MOST_NUMBERS // size)
    parts = [rounding(network, x[start : start + step], probes, unit, deadline) for start in range(0, len(x), step)]
    own, errors = (torch.cat(part) for part in zip(*parts, strict=True))
    # Twice each for the source's rounding of folded constants, and for ReLUs that rounding switches.
    others, allowed = outputs.double() @ probes.T, 4 * errors
    far = ~((own - others).abs() <= allowed) & allowed.isfinite()
    if bool(far.any()):
        at, probe = (int(i) for i in far.nonzero()[0])
        raise ModelError(
            f"{network.name}: {'output' if few else 'sum of outputs'} {probe} is {own[at, probe]:.9g} where {source} gives "
            f"{others[at, probe]:.9g} at test point {at}; rounding explains {allowed[at, probe]:.2g}; please report the network"
        )


def _broadcast(*shapes: Sequence[int]) -> Shape:
    try:
        return np.broadcast_shapes(*(tuple(s) for s in shapes))
    except ValueError:
        raise ShapeError(f"shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast") from None
