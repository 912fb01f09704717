"""Operations of networks: affine maps, ReLUs, smooth activations and signs.

Every affine operation knows its linear map, the adjoint of that map (a transposed convolution, never a dense matrix of a
convolution) and how far rounding can throw it.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from blocklp.deadline import Deadline
from blocklp.oracles.curve_lines import extremes
from blocklp.oracles.curves import Curve

Shape = tuple[int, ...]

PRODUCTS, MOVED = 2e9, 5e7
"""Multiplications a second, in float64 on one thread of a slow CPU, and results that are worked on one by one a second (a few
passes over memory each): what large operations are estimated by."""

LEAST_NORMAL = 2.0**-126
"""The least normal number of float32, the coarsest of what results are computed in."""


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
class SmoothActivation(Op):
    """A smooth function, or the sign, element by element."""

    curve: Curve


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
class Folded(Scale):
    """A factor and shift computed from several constants.

    Attributes
    ----------
    parts : Tensor
        Sum of the magnitudes of what the shift is made of.  The source rounds at that size, however well it cancels.
    """

    parts: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    def to(self, dtype: torch.dtype, device: torch.device) -> Folded:
        """Other precision."""
        weight, bias, parts = (part.to(device, dtype) for part in (self.weight, self.bias, self.parts))
        return replace(self, weight=weight, bias=bias, parts=parts)


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
class Sparse(Affine):
    """A sparse matrix ``(results, arguments)`` over flat elements, and a bias: selections, copies, means, interpolations.

    Attributes
    ----------
    rows, columns : Tensor
        ``(entries,)`` int64: where the entries are, no place twice; rows ascend.
    weight : Tensor
        ``(entries,)``: the entries.
    bias : Tensor
        Broadcasts to ``shape``.
    """

    rows: Tensor
    columns: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def products(self) -> int:
        """One an entry."""
        return self.weight.numel()

    @cached_property
    def matrix(self) -> Tensor:
        """The matrix in compressed rows."""
        return _compressed(self.rows, self.columns, self.weight, (math.prod(self.shape), math.prod(self.source)))

    @cached_property
    def transposed(self) -> Tensor:
        """Its transpose in compressed rows."""
        return _compressed(self.columns, self.rows, self.weight, (math.prod(self.source), math.prod(self.shape)))

    def linear(self, x: Tensor) -> Tensor:
        """W x."""
        return (self.matrix @ x.flatten(1).T.contiguous()).T.reshape(-1, *self.shape)

    def shift(self) -> Tensor:
        """Bias."""
        return self.bias.expand(self.shape)[None]

    def adjoint(self, y: Tensor) -> Tensor:
        """W' y."""
        return (self.transposed @ y.flatten(1).T.contiguous()).T.reshape(-1, *self.source)

    def absolute(self) -> Sparse:
        """Magnitudes."""
        return replace(self, weight=self.weight.abs(), bias=self.bias.abs())

    def to(self, dtype: torch.dtype, device: torch.device) -> Sparse:
        """Other precision."""
        rows, columns = self.rows.to(device), self.columns.to(device)
        return replace(self, rows=rows, columns=columns, weight=self.weight.to(device, dtype), bias=self.bias.to(device, dtype))

    @cached_property
    def moves(self) -> bool:
        """Whether elements are only moved, or replaced by constants."""
        summed = self.rows[1:] == self.rows[:-1]
        shifted = self.bias.expand(self.shape).reshape(-1)[self.rows] != 0
        return not bool(summed.any() or shifted.any() or (self.weight != 1).any())


def _compressed(rows: Tensor, columns: Tensor, entries: Tensor, size: tuple[int, int]) -> Tensor:
    """A sparse matrix in compressed rows: products with many vectors take a half to a fifth of the time of sums by index."""
    with warnings.catch_warnings():  # of a first use in torch, which calls the format new
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
        return torch.sparse_coo_tensor(torch.stack([rows, columns]), entries, size).coalesce().to_sparse_csr()


@dataclass(frozen=True)
class Add(Op):
    """Sum of two results of the same shape: a residual connection."""


@dataclass(frozen=True)
class Computed(Sparse):
    """A sparse matrix whose entries an implementation computes in floating point, from coordinates or several constants."""


def activated(op: Op, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds of the result of an activation.

    Parameters
    ----------
    op : Relu or SmoothActivation
        The activation.
    low, high : Tensor
        Bounds of its argument.
    """
    return extremes(op.curve, low, high) if isinstance(op, SmoothActivation) else (low.clamp(min=0), high.clamp(min=0))


SUMMED = 10
"""Roundings that an addition is charged in floating point."""


def float_error(op: Op, size: Tensor, unit: float) -> Tensor | None:
    """Bound how far the result of an operation in floating point is from the real result for the same arguments.

    A sum of n terms in any order, with or without fused products, is off by at most n u / (1 - n u) times the sum of their
    magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), and by the least normal number for each
    term that is flushed to zero.  ReLUs, signs and moved elements are exact.

    Parameters
    ----------
    op : Op
        The operation.
    size : Tensor
        ``(..., *shape)``: the magnitudes that are summed for every element.
    unit : float
        u, half the distance of 1 to the next number; 0 for real numbers.

    Returns
    -------
    Tensor or None
        Of the shape of ``size``; None where there is no error.
    """
    if not unit or not isinstance(op, (Affine, Add)) or isinstance(op, Reorder) or (isinstance(op, Sparse) and op.moves):
        return None
    # The last of several additions stands for a sum of up to as many branches in any order.
    terms = op.terms if isinstance(op, Affine) else SUMMED
    if isinstance(op, Folded):
        size = size + op.parts
    share = terms * unit / (1 - terms * unit) if terms * unit < 1 else math.inf
    # A little more, for the rounding of this bound.
    return (1.001 * share) * size + terms * LEAST_NORMAL


def send(pending: dict[int, Tensor], to: int, y: Tensor) -> None:
    """Add a gradient or multipliers to what a backward pass has in store for an operation.

    Parameters
    ----------
    pending : dict
        What it has in store, by position of the operation.
    to : int
        That position.
    y : Tensor
        ``(batch, *shape)`` of the operation's result.
    """
    pending[to] = pending[to] + y if to in pending else y
