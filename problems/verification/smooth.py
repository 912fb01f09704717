"""Layers made of smooth functions: products of two results, and what is built of them."""

from __future__ import annotations

import math
from typing import NamedTuple

from blocklp.errors import ModelError
from blocklp.problems.verification import piecewise
from blocklp.problems.verification.lowering import Lowering, Value
from blocklp.problems.verification.operations import Scale, SmoothActivation


class _Scaled(NamedTuple):
    """A result as ``factor x + shift``, x the result of another operation."""

    at: int
    factor: float
    shift: float


def product(lowering: Lowering, a: Value, b: Value, name: str) -> Value:
    """Product of two values, which broadcast.

    As exporters write them, a product with a sigmoid of the same value is a SiLU, and one with an error function a GELU.  Any
    other one is the difference of the squares of half the sum and half the difference.

    Parameters
    ----------
    lowering : Lowering
        The network so far.
    a, b : Value
        The factors.
    name : str
        Of the operations.
    """
    if a == b:
        return lowering.smooth(a, "square", name)
    if a.shape == b.shape:
        for one, other in ((a, b), (b, a)):
            found = _gated(lowering, one, other, name)
            if found is not None:
                return found
    total = lowering.scale(lowering.add(a, b, name), 0.5, 0.0, name)
    gap = lowering.scale(lowering.subtract(a, b, name), 0.5, 0.0, name)
    return lowering.subtract(lowering.smooth(total, "square", name), lowering.smooth(gap, "square", name), name)


def power(lowering: Lowering, value: Value, exponent: float, name: str) -> Value:
    """A small power.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and x.
    exponent : float
        1, 2 or 3.
    name : str
        Of the operations.
    """
    if exponent not in (1, 2, 3):
        raise ModelError(f"a power of {exponent} is not supported; 1, 2 and 3 are")
    if exponent == 1:
        return value
    square = lowering.smooth(value, "square", name)
    return square if exponent == 2 else product(lowering, value, square, name)


def sharpened(lowering: Lowering, value: Value, curve: str, beta: float, name: str) -> Value:
    """``f(beta x) / beta``, for a softplus or a SiLU f.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and x.
    curve : str
        The name of f.
    beta : float
        Not zero.
    name : str
        Of the operations.
    """
    if not beta:
        raise ModelError("a factor of zero within an activation is not supported; write it as the affine function that it is")
    inner = value if beta == 1 else lowering.scale(value, beta, 0.0, name)
    result = lowering.smooth(inner, curve, name)
    return result if beta == 1 else lowering.scale(result, 1 / beta, 0.0, name)


def gelu(lowering: Lowering, value: Value, approximate: str, name: str) -> Value:
    """A GELU.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and x.
    approximate : str
        "none", or "tanh" for the approximation by a hyperbolic tangent.
    name : str
        Of the operations.
    """
    if approximate == "none":
        return lowering.smooth(value, "gelu", name)
    inner = lowering.add(value, lowering.scale(power(lowering, value, 3, name), 0.044715, 0.0, name), name)
    gate = lowering.smooth(lowering.scale(inner, math.sqrt(2 / math.pi), 0.0, name), "tanh", name)
    return product(lowering, value, lowering.scale(gate, 0.5, 0.5, name), name)


def mish(lowering: Lowering, value: Value, name: str) -> Value:
    """``x tanh(softplus(x))``.

    Parameters
    ----------
    lowering, value, name
        As in :func:`power`.
    """
    return product(lowering, value, lowering.smooth(lowering.smooth(value, "softplus", name), "tanh", name), name)


def hard_swish(lowering: Lowering, value: Value, name: str) -> Value:
    """``x min(max(x / 6 + 1 / 2, 0), 1)``.

    Parameters
    ----------
    lowering, value, name
        As in :func:`power`.
    """
    gate = piecewise.clip(lowering, lowering.scale(value, 1 / 6, 0.5, name), 0.0, 1.0, name)
    return product(lowering, value, gate, name)


def _gated(lowering: Lowering, one: Value, other: Value, name: str) -> Value | None:
    """The product, if ``other`` is a sigmoid or an error function of a multiple of ``one``."""
    x, gate = _scaled(lowering, one.at), _scaled(lowering, other.at)
    op = lowering.builder.ops[gate.at]
    if not isinstance(op, SmoothActivation) or x.shift:
        return None
    argument = _scaled(lowering, op.inputs[0])
    if argument.at != x.at or argument.shift or not argument.factor:
        return None
    if op.curve.name == "sigmoid" and gate.shift == 0:
        found, inner = "silu", argument.factor
    elif op.curve.name == "erf" and gate.shift == gate.factor:
        found, inner = "gelu", math.sqrt(2) * argument.factor
    else:
        return None
    result = sharpened(lowering, Value(x.at, one.shape), found, inner, name)
    outer = x.factor * gate.factor * (1 if found == "silu" else 2)
    return result if outer == 1 else lowering.scale(result, outer, 0.0, name)


def _scaled(lowering: Lowering, at: int) -> _Scaled:
    """Go back through element-wise factors and shifts that are single numbers."""
    factor, shift = 1.0, 0.0
    while isinstance(op := lowering.builder.ops[at], Scale) and op.weight.numel() == op.bias.numel() == 1:
        # In the order of the chain from its end: a (b x + c) + d.
        factor, shift = factor * float(op.weight), factor * float(op.bias) + shift
        at = op.inputs[0]
    return _Scaled(at, factor, shift)
