"""Functions of torch and methods of tensors in terms of ``Lowering``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.problems.verification import convolutions, piecewise, smooth, sparse_maps
from blocklp.problems.verification.convolutions import Resizing
from blocklp.problems.verification.lowering import Lowering, Value


class UnsupportedError(Exception):
    """Names what is not supported."""


def constant_of(tensor: Any) -> Tensor:
    """Return a constant in float64."""
    return torch.as_tensor(tensor, dtype=torch.float64).detach().cpu()


def _sum_of(lowering: Lowering, name: str, a: Any, b: Any, *, alpha: float = 1.0) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        return lowering.add(a, b if alpha == 1 else lowering.scale(b, alpha, 0.0, name), name)
    if isinstance(a, Value):
        return lowering.scale(a, 1.0, alpha * constant_of(b), name)
    return lowering.scale(b, alpha, constant_of(a), name)


def _difference(lowering: Lowering, name: str, a: Any, b: Any, *, alpha: float = 1.0) -> Value:
    return _sum_of(lowering, name, a, b, alpha=-alpha)


def _from(lowering: Lowering, name: str, a: Any, b: Any) -> Value:
    return _difference(lowering, name, b, a)


def _product(lowering: Lowering, name: str, a: Any, b: Any) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        return smooth.product(lowering, a, b, name)
    value, factor = (a, b) if isinstance(a, Value) else (b, a)
    return lowering.scale(value, constant_of(factor), 0.0, name)


def _quotient(lowering: Lowering, name: str, a: Any, b: Any) -> Value:
    if isinstance(b, Value):
        raise UnsupportedError("division by a result")
    return lowering.scale(a, 1 / constant_of(b), 0.0, name)


def _negative(lowering: Lowering, name: str, a: Value) -> Value:
    return piecewise.negative(lowering, a, name)


def _reshape(lowering: Lowering, name: str, a: Value, *shape: Any) -> Value:
    return lowering.reshape(a, _sizes(shape))


def _flatten(lowering: Lowering, name: str, a: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    return lowering.flatten(a, start_dim, end_dim)


def _permute(lowering: Lowering, name: str, a: Value, *axes: Any) -> Value:
    return lowering.transpose(a, _sizes(axes), name)


def _transpose(lowering: Lowering, name: str, a: Value, one: int, other: int) -> Value:
    axes = list(range(len(a.shape)))
    axes[one], axes[other] = axes[other], axes[one]
    return lowering.transpose(a, axes, name)


def _squeeze(lowering: Lowering, name: str, a: Value, dim: int | None = None) -> Value:
    gone = range(len(a.shape)) if dim is None else [dim % len(a.shape)]
    return lowering.reshape(a, [n for axis, n in enumerate(a.shape) if n > 1 or axis not in gone])


def _unsqueeze(lowering: Lowering, name: str, a: Value, dim: int) -> Value:
    at = dim % (len(a.shape) + 1)
    return lowering.reshape(a, [*a.shape[:at], 1, *a.shape[at:]])


def _size(lowering: Lowering, name: str, a: Value, dim: int | None = None) -> Any:
    return torch.Size(a.shape) if dim is None else a.shape[dim]


def _attribute(lowering: Lowering, name: str, a: Value, attribute: str) -> Any:
    if attribute not in ("shape", "ndim"):
        raise UnsupportedError(f"attribute {attribute}")
    return torch.Size(a.shape) if attribute == "shape" else len(a.shape)


def _dropout(lowering: Lowering, name: str, a: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    if training and p > 0:
        raise ModelError("random results are not supported; call module.eval() before reading")
    return a


def _same(lowering: Lowering, name: str, a: Value) -> Value:
    return a


def _to(lowering: Lowering, name: str, a: Value, *kinds: Any, **more: Any) -> Value:
    if not {*kinds, *more.values()} <= {torch.float32, torch.float64, "cpu", torch.device("cpu")}:
        raise UnsupportedError(f"a conversion to {kinds or more}")
    return a


def _curve(curve: str) -> Callable[..., Value]:
    def smoothed(lowering: Lowering, name: str, a: Value, inplace: bool = False) -> Value:
        return lowering.smooth(a, curve, name)

    return smoothed


def _gelu(lowering: Lowering, name: str, a: Value, approximate: str = "none") -> Value:
    return smooth.gelu(lowering, a, approximate, name)


def _softplus(lowering: Lowering, name: str, a: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    if threshold < 20:
        raise UnsupportedError(f"a softplus that is cut off at {threshold}, below 20,")
    return smooth.sharpened(lowering, a, "softplus", beta, name)


def _log_sigmoid(lowering: Lowering, name: str, a: Value) -> Value:
    return smooth.sharpened(lowering, a, "softplus", -1.0, name)


def _tanh_shrink(lowering: Lowering, name: str, a: Value) -> Value:
    return lowering.subtract(a, lowering.smooth(a, "tanh", name), name)


def _glu(lowering: Lowering, name: str, a: Value, dim: int = -1) -> Value:
    value, gate = moved(lowering, name, torch.chunk, (a, 2), {"dim": dim})
    return smooth.product(lowering, value, lowering.smooth(gate, "sigmoid", name), name)


def _mish(lowering: Lowering, name: str, a: Value, inplace: bool = False) -> Value:
    return smooth.mish(lowering, a, name)


def _hard_swish(lowering: Lowering, name: str, a: Value, inplace: bool = False) -> Value:
    return smooth.hard_swish(lowering, a, name)


def _power(lowering: Lowering, name: str, a: Value, exponent: float = 2.0) -> Value:
    return smooth.power(lowering, a, exponent, name)


def _matmul(lowering: Lowering, name: str, a: Any, b: Any) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        raise UnsupportedError("a product of matrices of results")
    value, weight = (a, constant_of(b)) if isinstance(a, Value) else (b, constant_of(a))
    return sparse_maps.matmul(lowering, value, weight, isinstance(b, Value), name)


def _linear(lowering: Lowering, name: str, a: Value, weight: Tensor, bias: Tensor | None = None) -> Value:
    return lowering.linear(a, constant_of(weight), None if bias is None else constant_of(bias), name)


def _axes(given: Any) -> list[int] | None:
    return None if given is None or given == () else [given] if isinstance(given, int) else list(given)


def _reduction(mean: bool) -> Callable[..., Value]:
    def reduce(lowering: Lowering, name: str, a: Value, *dims: Any, dim: Any = None, keepdim: bool = False) -> Value:
        axes, rest = (dims[0], dims[1:]) if dims else (dim, ())
        return sparse_maps.reduce(lowering, a, _axes(axes), rest[0] if rest else keepdim, mean, name)

    return reduce


def _most(lowering: Lowering, name: str, a: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return piecewise.reduce_largest(lowering, a, _axes(dim), keepdim, name)


def _least(lowering: Lowering, name: str, a: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return _negative(lowering, name, _most(lowering, name, _negative(lowering, name, a), dim, keepdim))


def _extreme(choose: Callable[..., Value], reduce: Callable[..., Value]) -> Callable[..., Any]:
    """``torch.max`` and ``torch.min``: of all, along an axis (with places, which are not there), or of two."""

    def extreme(
        lowering: Lowering, name: str, a: Any, b: Any = None, keepdim: bool = False, *, dim: int | None = None, other: Any = None
    ) -> Any:
        b = other if other is not None else dim if dim is not None else b
        if b is None:
            return reduce(lowering, name, a)
        if isinstance(b, int):
            return reduce(lowering, name, a, b, keepdim), None
        a, b = (part if isinstance(part, Value) else constant_of(part) for part in (a, b))
        return choose(lowering, a, b, name)

    return extreme


def _clamp(lowering: Lowering, name: str, a: Value, min: Any = None, max: Any = None) -> Value:
    low, high = (None if end is None else constant_of(end) for end in (min, max))
    return piecewise.clip(lowering, a, low, high, name)


def _hardtanh(lowering: Lowering, name: str, a: Value, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Value:
    return piecewise.clip(lowering, a, min_val, max_val, name)


def _threshold(lowering: Lowering, name: str, a: Value, threshold: float, value: float, inplace: bool = False) -> Value:
    if value != threshold:
        raise UnsupportedError(f"a threshold of {threshold} with the value {value} below, to which it jumps,")
    return piecewise.clip(lowering, a, threshold, None, name)


def _soft_shrink(lowering: Lowering, name: str, a: Value, lambd: float = 0.5) -> Value:
    return piecewise.soft_shrink(lowering, a, lambd, name)


def _relu6(lowering: Lowering, name: str, a: Value, inplace: bool = False) -> Value:
    return piecewise.clip(lowering, a, 0.0, 6.0, name)


def _leaky_relu(lowering: Lowering, name: str, a: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value:
    return piecewise.leaky(lowering, a, negative_slope, name)


def _prelu(lowering: Lowering, name: str, a: Value, weight: Tensor) -> Value:
    slope = constant_of(weight)
    if slope.numel() > 1:  # one a channel
        slope = slope.reshape(-1, *(1,) * (len(a.shape) - 2))
    return piecewise.leaky(lowering, a, slope, name)


def _hardsigmoid(lowering: Lowering, name: str, a: Value, inplace: bool = False) -> Value:
    return piecewise.clip(lowering, lowering.scale(a, 1 / 6, 0.5, name), 0.0, 1.0, name)


def _absolute(lowering: Lowering, name: str, a: Value) -> Value:
    return piecewise.absolute(lowering, a, name)


def _softmax(logarithm: bool) -> Callable[..., Value]:
    def softmax(lowering: Lowering, name: str, a: Value, dim: int | None = None, *rest: Any, **more: Any) -> Value:
        if dim is None:
            raise UnsupportedError("a softmax without dim")
        return lowering.softmax(a, [dim], logarithm, name)

    return softmax


def _interpolate(
    lowering: Lowering,
    name: str,
    input: Value,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value:
    if antialias or mode not in ("nearest", "linear", "bilinear", "trilinear"):
        raise UnsupportedError(f"interpolation {mode!r}{' with antialias' * antialias}")
    image = convolutions.image(input)
    sizes, factors = ([given] * len(image) if isinstance(given, (int, float)) else given for given in (size, scale_factor))
    if sizes is None:
        sizes = [int(n * factor) for n, factor in zip(image, factors, strict=True)]
    if factors is None or recompute_scale_factor:
        factors = [m / n for n, m in zip(image, sizes, strict=True)]
    coordinates = "asymmetric" if mode == "nearest" else "align_corners" if align_corners else "half_pixel"
    how = Resizing("nearest" if mode == "nearest" else "linear", coordinates, "floor")
    lead = input.shape[:2]
    return convolutions.resize(lowering, input, (*lead, *sizes), (1.0, 1.0, *factors), how, name)


def moved(lowering: Lowering, name: str, target: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Result of a function that only moves elements about, or puts constants in their place.

    Parameters
    ----------
    lowering : Lowering
        The network so far.
    name : str
        Of the operation.
    target : callable
        The function.
    args : sequence
        Its arguments, values and constants, in tuples and lists too.
    kwargs : dict
        The same by name.

    Returns
    -------
    Value, Tensor or tuple
        As the function returns it.
    """
    values: list[Value] = []
    several = False

    def collect(part: Any) -> Any:
        if isinstance(part, Value) and part not in values:
            values.append(part)
        return part

    map_nested(collect, (args, kwargs))

    def evaluate(given: list[Any]) -> list[Any]:
        nonlocal several

        def replaced(part: Any) -> Any:
            return torch.from_numpy(given[values.index(part)]) if isinstance(part, Value) else part

        own, named = map_nested(replaced, (list(args), kwargs))
        with torch.no_grad():
            result = target(*own, **named)
        several = isinstance(result, (tuple, list))
        return [np.asarray(part.double()) for part in (result if several else [result])]

    results = [r if isinstance(r, Value) else torch.from_numpy(r) for r in sparse_maps.moved(lowering, values, evaluate, name)]
    return tuple(results) if several else results[0]


def map_nested(function: Callable[[Any], Any], given: Any) -> Any:
    """Apply a function to everything that is in tuples, lists and dictionaries."""
    if isinstance(given, torch.Size):
        return given
    if isinstance(given, (tuple, list)):
        return type(given)(map_nested(function, part) for part in given)
    if isinstance(given, dict):
        return {key: map_nested(function, part) for key, part in given.items()}
    return function(given)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "iadd", "add_"), _sum_of),
    **dict.fromkeys(("sub", "isub", "sub_", "subtract"), _difference),
    **dict.fromkeys(("mul", "imul", "mul_", "multiply"), _product),
    **dict.fromkeys(("truediv", "div", "itruediv", "divide"), _quotient),
    **dict.fromkeys(("neg", "negative"), _negative),
    "rsub": _from,
    **dict.fromkeys(("reshape", "view"), _reshape),
    "flatten": _flatten,
    "permute": _permute,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "size": _size,
    "getattr": _attribute,
    **dict.fromkeys(("contiguous", "clone", "float", "double", "detach"), _same),
    "to": _to,
    "dropout": _dropout,
    **dict.fromkeys(("matmul", "bmm", "mm"), _matmul),
    "linear": _linear,
    "sum": _reduction(mean=False),
    "mean": _reduction(mean=True),
    "amax": _most,
    "amin": _least,
    "max": _extreme(piecewise.maximum, _most),
    "maximum": _extreme(piecewise.maximum, _most),
    "min": _extreme(piecewise.minimum, _least),
    "minimum": _extreme(piecewise.minimum, _least),
    **dict.fromkeys(("clamp", "clamp_", "clip"), _clamp),
    **dict.fromkeys(("clamp_min", "clamp_min_"), _clamp),
    "clamp_max": lambda lowering, name, a, max: _clamp(lowering, name, a, None, max),
    "hardtanh": _hardtanh,
    "relu6": _relu6,
    **dict.fromkeys(("leaky_relu", "leaky_relu_"), _leaky_relu),
    "prelu": _prelu,
    "hardsigmoid": _hardsigmoid,
    **dict.fromkeys(("abs", "absolute"), _absolute),
    **dict.fromkeys(("sigmoid", "sigmoid_"), _curve("sigmoid")),
    **dict.fromkeys(("tanh", "tanh_"), _curve("tanh")),
    "erf": _curve("erf"),
    **dict.fromkeys(("sign", "sign_", "sgn", "sgn_"), lambda lowering, name, a: lowering.sign(a, name)),
    "silu": _curve("silu"),
    "gelu": _gelu,
    "softplus": _softplus,
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), _log_sigmoid),
    "glu": _glu,
    "mish": _mish,
    "softshrink": _soft_shrink,
    "tanhshrink": _tanh_shrink,
    **dict.fromkeys(("threshold", "_threshold", "threshold_"), _threshold),
    "hardswish": _hard_swish,
    **dict.fromkeys(("pow", "square"), _power),
    "softmax": _softmax(logarithm=False),
    "log_softmax": _softmax(logarithm=True),
    "interpolate": _interpolate,
}

MOVES = (
    "broadcast_to", "cat", "channel_shuffle", "chunk", "concat", "concatenate", "expand", "expand_as", "flip", "gather",
    "getitem", "hstack", "index_select", "masked_fill", "movedim", "narrow", "pad", "pixel_shuffle", "pixel_unshuffle", "repeat",
    "repeat_interleave", "roll", "select", "split", "stack", "swapaxes", "swapdims", "t", "tile", "unbind", "unflatten",
    "vstack", "where",
)  # fmt: skip
"""Functions and methods that only move elements about, or put constants in their place."""

FROM_FILES = ("cumsum", "einsum", "norm", "scatter", "tril", "triu")
"""Functions that are read from ONNX files alone, of most arguments."""


def _sizes(given: tuple[Any, ...]) -> list[int]:
    return [int(n) for n in (given[0] if len(given) == 1 and not isinstance(given[0], int) else given)]
