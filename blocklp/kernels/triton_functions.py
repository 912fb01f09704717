"""Device functions that the modules of :mod:`blocklp.kernels.triton_source` call, and kernels too.

A *lane* is an entry of a tensor of a program: one block of an instance.  Division and roots round as IEEE 754
says, which Triton's own do not in single precision.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def some(mask: tl.tensor) -> tl.tensor:
    """Whether a mask holds for any lane of the program: a number."""
    return tl.max(mask.to(tl.int32), 0) > 0


@triton.jit
def divided(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The correctly rounded quotient of two numbers of one dtype."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def root(a: tl.tensor) -> tl.tensor:
    """The correctly rounded square root."""
    if a.dtype == tl.float32:
        return tl.sqrt_rn(a)
    else:
        return tl.sqrt(a)


@triton.jit
def lowest(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``numpy.minimum(a, b)``: no number where one of them is none."""
    a, b = tl.broadcast(a, b)
    return tl.where((b < a) | (b != b), b, a)


@triton.jit
def highest(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``numpy.maximum(a, b)``: no number where one of them is none."""
    a, b = tl.broadcast(a, b)
    return tl.where((b > a) | (b != b), b, a)


@triton.jit
def with_sign(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The magnitude of one number with the sign of another, which may be that of zero: ``math.copysign``."""
    if b.dtype == tl.float32:
        negative = b.to(tl.int32, bitcast=True) < 0
    else:
        negative = b.to(tl.int64, bitcast=True) < 0
    return tl.where(negative, -tl.abs(a), tl.abs(a))


@triton.jit
def sign(a: tl.tensor) -> tl.tensor:
    """``numpy.sign``."""
    one = tl.full([], 1.0, a.dtype)
    return tl.where(a > 0, one, tl.where(a < 0, -one, a))
