"""Convolutions, pools, padding and resizing of images of one to three dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.problems.verification.lowering import Array, Lowering, Value
from blocklp.problems.verification.piecewise import largest, maximum


@dataclass(frozen=True)
class Window:
    """Geometry of a convolution or pooling along its spatial axes.

    Attributes
    ----------
    kernel, stride, before, after, dilation : tuple of int
        One number an axis; ``before`` and ``after`` are the padding.
    over : tuple of int
        How far windows reach over the padding at the end of each axis: none of it counts for a mean.  Empty for not at all.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]
    over: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.kernel + self.stride + self.dilation, default=0) < 1 or min(self.before + self.after) < 0:
            raise ModelError(f"{self} needs positive kernels, strides and dilations, and no negative padding")
        if len({len(self.kernel), len(self.stride), len(self.before), len(self.after), len(self.dilation)}) > 1:
            raise ModelError(f"{self} has parts of different length")

    @staticmethod
    def plain(kernel: Sequence[int]) -> Window:
        """Return a window of stride one without padding."""
        one, none = (1,) * len(kernel), (0,) * len(kernel)
        return Window(tuple(kernel), one, none, none, one)

    @property
    def ends(self) -> tuple[int, ...]:
        """Padding and what is reached beyond it, at the end of each axis."""
        return tuple(a + b for a, b in zip(self.after, self.over, strict=True)) if self.over else self.after

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return any(self.before + self.ends)

    @property
    def pads(self) -> list[tuple[int, int]]:
        """The padding of an image ``(1, channels, ...)``, as numpy takes it."""
        return [(0, 0), (0, 0), *zip(self.before, self.ends, strict=True)]

    def flat(self) -> Window:
        """Return the same window with a leading axis of height one if it has one axis only."""
        if len(self.kernel) != 1:
            return self
        one, none = (1,), (0,)
        return Window(one + self.kernel, one + self.stride, none + self.before, none + self.ends, one + self.dilation)

    def results(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the size of the result."""
        sides = zip(image, self.kernel, self.stride, self.before, self.ends, self.dilation, strict=True)
        sizes = tuple((n + a + b - d * (k - 1) - 1) // s + 1 for n, k, s, a, b, d in sides)
        if min(sizes) < 1:
            raise ShapeError(f"a kernel {self.kernel} is larger than the image {tuple(image)}")
        return sizes

    def ceil(self, image: Sequence[int]) -> Window:
        """Return the window with a result whose size is rounded up; a last window that would lie in the padding is left out."""
        over = []
        for n, k, s, a, b, d in zip(image, self.kernel, self.stride, self.before, self.after, self.dilation, strict=True):
            size = -(-(n + a + b - d * (k - 1) - 1) // s) + 1
            size -= (size - 1) * s >= n + a
            over.append(max((size - 1) * s + d * (k - 1) + 1 - (n + a + b), 0))
        return replace(self, over=tuple(over))

    def same(self, image: Sequence[int], upper: bool) -> Window:
        """Return the window padded such that the result has ceil(image / stride) elements an axis."""
        before, after = [], []
        for n, k, s, d in zip(image, self.kernel, self.stride, self.dilation, strict=True):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            before.append(total // 2 if upper else total - total // 2)
            after.append(total - before[-1])
        return replace(self, before=tuple(before), after=tuple(after))

    def covered(self, padded: Array) -> Array:
        """The entries of every window in a padded image ``(..., *size)``: ``(..., *results, *kernel)``."""
        spatial = range(padded.ndim - len(self.kernel), padded.ndim)
        reach = tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        seen = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(spatial))
        taken: tuple[Any, ...] = (..., *(slice(None, None, step) for step in (*self.stride, *self.dilation)))
        return np.asarray(seen[taken])


def image(value: Value) -> tuple[int, ...]:
    """Return the size of an image ``(1, channels, ...)`` of one to three dimensions."""
    if len(value.shape) not in (3, 4, 5) or value.shape[0] != 1:
        raise ShapeError(f"{value.shape} is no image (1, channels, ...) of one to three dimensions")
    return value.shape[2:]


def conv(lowering: Lowering, value: Value, weight: Tensor, bias: Tensor | None, window: Window, groups: int, name: str) -> Value:
    """Convolution of ``(1, channels, ...)`` by a kernel ``(out, in / groups, ...)``.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and an image ``(1, channels, ...)``.
    weight, bias : Tensor, and Tensor or None
        ``(out, in / groups, ...)`` and ``(out,)``.
    window : Window
        Kernel, strides, padding and dilation.
    groups : int
        Groups of channels.
    name : str
        Of the operation.
    """
    size = image(value)
    if len(window.kernel) != len(size) or tuple(weight.shape[2:]) != window.kernel:
        raise ShapeError(f"a kernel {tuple(weight.shape)} does not fit {value.shape}")
    if len(weight) % groups:
        raise ShapeError(f"{groups} groups do not divide {len(weight)} channels")
    if len(size) == 3:
        return _conv_3d(lowering, value, weight, bias, window, groups, name)
    flat = window.flat()
    at = lowering.placed(value, (value.shape[1], *([1] * (2 - len(size))), *size), name)
    weight = weight.reshape(*weight.shape[:2], *flat.kernel)
    padding = (flat.before[1], flat.ends[1], flat.before[0], flat.ends[0])
    at = lowering.builder.conv(at, weight, bias, flat.stride, padding, flat.dilation, groups, name)
    made = lowering.builder.ops[at].shape
    return Value(at, (1, made[0], *made[-len(size) :]))


def _conv_3d(lowering: Lowering, value: Value, weight: Tensor, bias: Tensor | None, window: Window, groups: int, name: str) -> Value:
    """A convolution of three dimensions, as one of a tall image: the slices that each result needs become its channels."""
    (deep, *kernel), (step, *stride), (spread, *dilation) = window.kernel, window.stride, window.dilation
    depth, height, width = window.results(image(value))
    sides = zip(image(value), window.pads[2:], (0, stride[0], 0), strict=True)
    lowering.builder.take(value.shape[1] * math.prod(n + a + b + more for n, (a, b), more in sides), name)
    padded = np.pad(value.numbers, window.pads, constant_values=-1)
    # Slices begin where the stride arrives.
    padded = np.pad(padded, [(0, 0)] * 3 + [(0, -padded.shape[3] % stride[0]), (0, 0)], constant_values=-1)
    taken = step * np.arange(depth) + spread * np.arange(deep)[:, None]
    channels, (tall, wide) = value.shape[1] * deep, padded.shape[3:]
    lowering.builder.take(channels * depth * tall * wide, name)
    slices = lowering.pick(value, padded[:, :, taken].reshape(1, channels, depth * tall, wide), f"{name}/slices")
    weight = weight.reshape(len(weight), -1, *kernel)
    flat = Window(tuple(kernel), tuple(stride), (0, 0), (0, 0), tuple(dilation))
    result = conv(lowering, slices, weight, bias, flat, groups, name)
    rows = np.arange(depth)[:, None] * (tall // stride[0]) + np.arange(height)
    return lowering.pick(result, result.numbers[:, :, rows, :width], f"{name}/rows")


def conv_transpose(
    lowering: Lowering,
    value: Value,
    weight: Tensor,
    bias: Tensor | None,
    window: Window,
    more: Sequence[int],
    groups: int,
    name: str,
) -> Value:
    """Transposed convolution: one of stride 1, of an image with zeros between its elements, by the turned kernel.

    Parameters
    ----------
    lowering, value, groups, name
        As in :func:`conv`.
    weight, bias : Tensor, and Tensor or None
        ``(in, out / groups, ...)`` and ``(out,)``.
    window : Window
        That of the convolution whose transpose this is.
    more : sequence of int
        What the result is larger by at the end of each axis (output_padding).
    """
    size, (channels, out, *kernel) = image(value), weight.shape
    if len(kernel) != len(size) or channels != value.shape[1] or channels % groups or tuple(kernel) != window.kernel:
        raise ShapeError(f"a kernel {tuple(weight.shape)} in {groups} groups does not fit {value.shape}")
    between = [(n - 1) * s + 1 for n, s in zip(size, window.stride, strict=True)]
    lowering.builder.take(channels * math.prod(between), name)
    elements = np.full((1, channels, *between), -1)
    places: tuple[Any, ...] = (..., *(slice(None, None, s) for s in window.stride))
    elements[places] = value.numbers
    reach = [d * (k - 1) for k, d in zip(kernel, window.dilation, strict=True)]
    first = [r - a for r, a in zip(reach, window.before, strict=True)]
    last = [r - b + m for r, b, m in zip(reach, window.after, more, strict=True)]
    lowering.builder.take(channels * math.prod(n + max(a, 0) + max(b, 0) for n, a, b in zip(between, first, last, strict=True)), name)
    spread = lowering.pick(value, _padded(elements, first, last), f"{name}/spread")
    turned = weight.flip(*range(2, weight.dim())).view(groups, channels // groups, out, *kernel).transpose(1, 2)
    turned = turned.reshape(groups * out, channels // groups, *kernel)
    plain = replace(Window.plain(kernel), dilation=window.dilation)
    return conv(lowering, spread, turned, bias, plain, groups, name)


def _padded(elements: Array, before: Sequence[int], after: Sequence[int]) -> Array:
    """Put places of no element around the last axes, or cut elements off where the numbers are negative."""
    lead = elements.ndim - len(before)
    outside = [(0, 0)] * lead + [(max(a, 0), max(b, 0)) for a, b in zip(before, after, strict=True)]
    padded = np.pad(elements, outside, constant_values=-1)
    ends = zip(before, after, padded.shape[lead:], strict=True)
    kept: tuple[Any, ...] = (..., *(slice(max(-a, 0), n - max(-b, 0)) for a, b, n in ends))
    return np.asarray(padded[kept])


def depthwise(lowering: Lowering, value: Value, kernel: Tensor, window: Window, name: str) -> Value:
    """Convolve every channel by itself with one kernel.

    Parameters
    ----------
    lowering, value, window, name
        As in :func:`conv`.
    kernel : Tensor
        Of the shape of the window.
    """
    image(value)
    channels = value.shape[1]
    lowering.builder.take(channels * kernel.numel(), name)
    weight = kernel.double().expand(channels, 1, *kernel.shape)
    return conv(lowering, value, weight, None, window, channels, name)


def pad(lowering: Lowering, value: Value, before: Sequence[int], after: Sequence[int], name: str) -> Value:
    """Put zeros around a value, or cut elements off where the numbers are negative.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and the argument.
    before, after : sequence of int
        Zeros at both ends of every axis.
    name : str
        Of the operation.
    """
    if not any(before) and not any(after):
        return value
    least = min(*before, *after)
    if len(value.shape) in (3, 4) and value.shape[0] == 1 and least >= 0 and not any((*before[:2], *after[:2])):
        # A convolution, as of images there are windows.
        window = replace(Window.plain((1,) * (len(value.shape) - 2)), before=tuple(before[2:]), after=tuple(after[2:]))
        return depthwise(lowering, value, torch.ones(window.kernel), window, name)
    sides = zip(value.shape, before, after, strict=True)
    lowering.builder.take(math.prod(n + max(a, 0) + max(b, 0) for n, a, b in sides), name)
    return lowering.pick(value, _padded(value.numbers, before, after), name)


def average_pool(lowering: Lowering, value: Value, window: Window, count_padding: bool, name: str) -> Value:
    """Mean of every window: a convolution of every channel by itself.

    Parameters
    ----------
    lowering, value, window, name
        As in :func:`conv`.
    count_padding : bool
        Whether the mean is over padded zeros too.
    """
    size = math.prod(window.kernel)
    lowering.builder.take(size, name)
    pooled = depthwise(lowering, value, torch.full(window.kernel, 1 / size, dtype=torch.float64), window, name)
    if not (any(window.over) if count_padding else window.padded):
        return pooled
    count = _count(lowering, value, window, count_padding).reshape(1, 1, *pooled.shape[2:])
    return lowering.scale(pooled, size / torch.from_numpy(count).double(), 0.0, f"{name}/count")


def max_pool(lowering: Lowering, value: Value, window: Window, name: str) -> Value:
    """Maximum of every window.

    Zeros as padding are right only where nothing is negative; elsewhere an element of the window takes the place of what lies
    outside the image.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and an image ``(1, channels, ...)``.
    window : Window
        Kernel, strides, padding and dilation.
    name : str
        Beginning of the operations' names.
    """
    size, count = image(value), math.prod(window.kernel)
    if window.padded:
        _count(lowering, value, window, False)
    if len(size) == 3 or (window.padded and not lowering.nonnegative(value.at)):
        padded = math.prod(n + a + b for n, (a, b) in zip(size, window.pads[2:], strict=True))
        lowering.builder.take(value.shape[1] * (padded + math.prod(window.results(size)) * count), name)
        covered = window.covered(np.pad(value.numbers, window.pads, constant_values=-1))
        elements = covered.reshape(*covered.shape[: len(value.shape)], count)
        return largest(lowering, value, np.where(elements < 0, elements.max(-1, keepdims=True), elements), name)
    lowering.builder.take(count * count, name)
    picks = list(torch.eye(count).reshape(count, *window.kernel))
    # In the first round differences of entries are convolutions themselves and need no operation of their own.
    round_: list[Value] = []
    for k in range(0, count - 1, 2):
        first = depthwise(lowering, value, picks[k], window, f"{name}/entry{k}")
        ahead = depthwise(lowering, value, picks[k + 1] - picks[k], window, f"{name}/ahead{k}")
        round_.append(lowering.add(first, lowering.relu(ahead, f"{name}/max{k}"), f"{name}/max{k}"))
    if count % 2:
        round_.append(depthwise(lowering, value, picks[-1], window, f"{name}/entry{count - 1}"))
    while len(round_) > 1:
        winners = [maximum(lowering, a, b, name) for a, b in zip(round_[::2], round_[1::2], strict=False)]
        round_ = winners + round_[2 * len(winners) :]
    return round_[0]


def _count(lowering: Lowering, value: Value, window: Window, count_padding: bool) -> Array:
    """How many entries of every window count; refuses a window that lies in the padding."""
    size = image(value)
    lowering.builder.take(math.prod(n + a + b for n, (a, b) in zip(size, window.pads[2:], strict=True)), "the padding of a window")
    inside = np.pad(np.ones(size, dtype=bool), window.pads[2:])
    axes = tuple(range(len(size), 2 * len(size)))
    if (window.covered(inside).sum(axes) < 1).any():
        raise ModelError("a window lies in the padding altogether; take less padding")
    if count_padding:
        sides = zip(size, window.before, window.after, window.ends, strict=True)
        ends = [(a + n + b, c - b) for n, a, b, c in sides]
        inside = np.pad(np.ones([n for n, _ in ends], dtype=bool), [(0, more) for _, more in ends])
    return np.asarray(window.covered(inside).sum(axes))


@dataclass(frozen=True)
class Resizing:
    """How the elements of a resized axis are found.

    Attributes
    ----------
    mode : str
        "nearest" or "linear".
    coordinates : str
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners" or "asymmetric", as ONNX defines them.
    nearest : str
        "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil".
    """

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"

    def axis(self, size: int, result: int, scale: float) -> tuple[Array, Array]:
        """Return the elements that each result is made of and their weights, ``(results, 1 or 2)`` each.

        Parameters
        ----------
        size, result : int
            Lengths of the axis before and after.
        scale : float
            What it grows by.
        """
        x = np.arange(result)
        if self.coordinates == "half_pixel" or (self.coordinates == "pytorch_half_pixel" and result > 1):
            at = (x + 0.5) / scale - 0.5
        elif self.coordinates == "half_pixel_symmetric":
            at = size / 2 * (1 - result / (scale * size)) + (x + 0.5) / scale - 0.5
        elif self.coordinates == "align_corners":
            at = x * (size - 1) / max(result - 1, 1)
        elif self.coordinates in ("asymmetric", "pytorch_half_pixel"):
            at = x / scale if self.coordinates == "asymmetric" else 0.0 * x
        else:
            raise ModelError(f"coordinates {self.coordinates} are not supported; use half_pixel, asymmetric or align_corners")
        if self.mode == "linear":
            low = np.floor(at)
            pair, share = np.stack([low, low + 1], 1), (at - low)[:, None]
            return pair.clip(0, size - 1).astype(np.int64), np.concatenate([1 - share, share], 1)
        if self.mode != "nearest":
            raise ModelError(f"mode {self.mode} is not supported; use nearest or linear")
        rounding: dict[str, Callable[[Array], Array]] = {
            "round_prefer_floor": lambda t: np.ceil(t - 0.5),
            "round_prefer_ceil": lambda t: np.floor(t + 0.5),
            "floor": np.floor,
            "ceil": np.ceil,
        }
        if self.nearest not in rounding:
            raise ModelError(f"nearest_mode {self.nearest} is not supported; use floor")
        return rounding[self.nearest](at).clip(0, size - 1).astype(np.int64)[:, None], np.ones((result, 1))


def resize(lowering: Lowering, value: Value, shape: Sequence[int], scales: Sequence[float], how: Resizing, name: str) -> Value:
    """Interpolate along every axis whose size changes.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and the argument.
    shape : sequence of int
        Of the result, as many axes.
    scales : sequence of float
        What each axis grows by, where that is no whole number of elements.
    how : Resizing
        Interpolation.
    name : str
        Of the operation.
    """
    if len(shape) != len(value.shape) or len(scales) != len(shape) or min(shape) < 1 or min(scales) <= 0:
        raise ShapeError(f"a result of shape {tuple(shape)} with scales {tuple(scales)} does not fit {value.shape}")
    lowering.builder.take(2 * math.prod(shape) * 2 ** sum(n != m for n, m in zip(value.shape, shape, strict=True)), name)
    columns, weights = np.zeros((1, 1), dtype=np.int64), np.ones((1, 1))
    for size, result, scale in zip(value.shape, shape, scales, strict=True):
        kept = size == result and scale == 1
        taken, share = (np.arange(size)[:, None], np.ones((size, 1))) if kept else how.axis(size, result, scale)
        columns = (columns[:, None, :, None] * size + taken[None, :, None, :]).reshape(len(columns) * result, -1)
        weights = (weights[:, None, :, None] * share[None, :, None, :]).reshape(columns.shape)
    rows = np.repeat(np.arange(len(columns)), columns.shape[1])
    resized = lowering.sparse(value, shape, (rows, columns.reshape(-1), weights.reshape(-1)), 0.0, name)
    return resized if weights.shape[1] == 1 else lowering.computed(resized)
