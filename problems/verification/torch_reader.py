"""Reader of torch modules, by way of ``torch.fx``."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from blocklp.errors import ModelError, ShapeError
from blocklp.options import lengths, of_type
from blocklp.problems.verification import convolutions
from blocklp.problems.verification.comparison import UNIT, compare, random_points
from blocklp.problems.verification.convolutions import Window
from blocklp.problems.verification.lowering import Lowering, Value
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.torch_functions import (
    FROM_FILES,
    FUNCTIONS,
    MOVES,
    UnsupportedError,
    constant_of,
    map_nested,
    moved,
)


def from_torch(module: nn.Module, input_shape: int | Sequence[int]) -> Network:
    """Read a network from a module, and compare it with the module in float64 at random points.

    Parameters
    ----------
    module : Module
        In evaluation mode.  Its ``forward`` takes one batch ``(1, *input_shape)`` and may use linear layers, convolutions and
        their transposes, batch normalisation, pools, padding, interpolation, piecewise-linear activations (ReLU, LeakyReLU,
        PReLU, ReLU6, Hardtanh, Hardsigmoid, Softshrink, a Threshold with its threshold as the value below, clamp, abs, max, min),
        smooth ones (sigmoid, tanh, erf, softplus, log-sigmoid, SiLU, GELU, Mish, Hardswish, Tanhshrink, GLU), products and small
        powers of results, functions that move elements (cat, slices, split, expand, flip, ...), sums and means, constants that
        shift or scale, and a softmax as its last layer.
    input_shape : int or sequence of int
        Shape of one sample.

    Returns
    -------
    Network
        In float64, named after the class of the module.

    Raises
    ------
    OptionError, ShapeError
        The module is none, or the shape is no shape.
    ModelError
        The module holds a layer that is no composition of operations of networks, is in training mode, branches on its
        input, or differs from what was read.
    """
    of_type(module, nn.Module, "module", "a torch.nn.Module")
    name, input_shape = type(module).__name__, lengths(input_shape, "input_shape")
    # A layer of torch by itself would be traced into its functions.
    alone = fx.Tracer().is_leaf_module(module, "")
    try:
        traced = fx.symbolic_trace(nn.Sequential(module) if alone else module)
    except Exception as error:  # Whatever forward raises on a placeholder.
        raise ModelError(f"{name}: its forward cannot be traced ({error}); use fixed layers and shapes") from error
    lowering = Lowering((1, *input_shape), input_shape, name)
    interpreter = _Interpreter(traced, lowering)
    try:
        network = lowering.build(interpreter.output())
    except ShapeError as error:
        told = f"forward gets one batch {(1, *input_shape)}: input_shape is without the batch dimension, here {input_shape}"
        raise ShapeError(f"{error}; {told}") from error
    points = random_points(network)
    with torch.no_grad():
        if network.head is None:
            double = copy.deepcopy(module).cpu().double().eval()
            outputs = torch.cat([double(point[None]).flatten()[None] for point in points])
        else:
            outputs = torch.stack([_before(traced, interpreter.logits, point[None]).flatten() for point in points])
    compare(network, points, outputs, UNIT[torch.float64], "the module")
    return network


def _before(traced: fx.GraphModule, name: str, x: Tensor) -> Tensor:
    """Evaluate a node of a traced module in float64."""
    double = copy.deepcopy(traced).cpu().double().eval()
    interpreter = fx.Interpreter(double, garbage_collect_values=False)
    interpreter.run(x)
    found: Tensor = next(value for node, value in interpreter.env.items() if node.name == name)
    return found


class _Interpreter:
    """Goes through the nodes of a traced module; whatever does not depend on the input is simply computed."""

    def __init__(self, traced: fx.GraphModule, lowering: Lowering) -> None:
        self.traced, self.lowering, self.logits = traced, lowering, ""

    def output(self) -> Value:
        """Append all nodes and return the result."""
        known: dict[fx.Node, Any] = {}
        for node in self.traced.graph.nodes:
            known[node] = self._read(node, known)
            if node.op == "output":
                break
        result = known[node]
        if not isinstance(result, Value):
            raise ModelError(f"{self.lowering.builder.name}: its output must be one tensor that depends on the input")
        return result

    def _read(self, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
        args: Any = fx.node.map_arg(node.args, known.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, known.__getitem__)
        if node.op == "placeholder":
            return self._placeholder(node, any(isinstance(value, Value) for value in known.values()))
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self.traced)
        where = f"{self.lowering.builder.name}: {node.name}"
        target: Any = node.target
        if node.op == "call_module":
            target = self.traced.get_submodule(str(target))
        try:
            values: list[Value] = []
            map_nested(lambda part: values.append(part) if isinstance(part, Value) else None, (args, kwargs))
            # An element of a tuple of results is simply taken.
            if not values or (target is operator.getitem and not isinstance(args[0], Value)):
                return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
            word = type(target).__name__.lower() if node.op == "call_module" else _word(target)
            if any(value.head is not None for value in values) and word not in AFTER_SOFTMAX:
                raise ModelError("a softmax is supported as the last layer alone; leave what follows it out")
            if node.op == "call_module":
                found = self._layer(target, args[0], node.name)
            else:
                found = self._function(target, word, node.name, *args, **kwargs)
            if isinstance(found, Value) and found.head is not None and values[0].head is None:
                self.logits = node.all_input_nodes[0].name
            return found
        except UnsupportedError as error:
            told = "use one of the layers that help(from_torch) and docs/verification.md name"
            if word in FROM_FILES:
                told = "export the module by torch.onnx.export, and read the file by read_onnx"
            raise ModelError(f"{where}: {error} is not supported; {told}") from error
        except ShapeError as error:
            raise ShapeError(f"{where}: {error}") from error
        except ModelError as error:
            raise ModelError(f"{where}: {error}") from error
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            raise ModelError(f"{where}: unsupported arguments ({error})") from error

    def _placeholder(self, node: fx.Node, taken: bool) -> Any:
        if not taken:
            return self.lowering.input
        if not node.args:
            raise ModelError(f"{self.lowering.builder.name}: more than one input ({node.name}); only one is supported")
        return node.args[0]

    def _layer(self, layer: nn.Module, x: Value, name: str) -> Value:
        for kind, handler in LAYERS.items():
            if isinstance(layer, kind):
                return handler(self, layer, x, name)
        raise UnsupportedError(f"layer {type(layer).__name__}")

    def _function(self, target: Any, word: str, name: str, *args: Any, **kwargs: Any) -> Any:
        """Functions of torch and methods of tensors; those that have a layer go through it."""
        if word in AS_LAYER:
            return self._layer(AS_LAYER[word](*args[1:], **kwargs), args[0], name)
        if word in MOVES:
            apply = (lambda x, *rest, **more: getattr(x, word)(*rest, **more)) if isinstance(target, str) else target
            return moved(self.lowering, name, apply, args, kwargs)
        handler = FUNCTIONS.get(word)
        if handler is None:
            raise UnsupportedError(f"function {word}")
        return handler(self.lowering, name, *args, **kwargs)

    def _linear(self, layer: nn.Linear, x: Value, name: str) -> Value:
        return self.lowering.linear(x, constant_of(layer.weight), _optional(layer.bias), name)

    def _relu(self, layer: nn.ReLU, x: Value, name: str) -> Value:
        return self.lowering.relu(x, name)

    def _conv(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Value, name: str) -> Value:
        size = convolutions.image(x)
        zeros: tuple[int, ...] = (0,) * len(size)
        pad = zeros if isinstance(layer.padding, str) else tuple(layer.padding)
        if layer.padding_mode != "zeros":
            around = layer._reversed_padding_repeated_twice
            x = moved(self.lowering, name, F.pad, (x, around), {"mode": layer.padding_mode})
            pad = zeros
        window = Window(layer.kernel_size, layer.stride, pad, pad, layer.dilation)
        if layer.padding == "same" and layer.padding_mode == "zeros":
            window = window.same(size, upper=True)
        return convolutions.conv(self.lowering, x, constant_of(layer.weight), _optional(layer.bias), window, layer.groups, name)

    def _conv_transpose(self, layer: nn.ConvTranspose2d, x: Value, name: str) -> Value:
        pad = tuple(int(n) for n in layer.padding)
        window = Window(layer.kernel_size, layer.stride, pad, pad, layer.dilation)
        weight, bias = constant_of(layer.weight), _optional(layer.bias)
        return convolutions.conv_transpose(self.lowering, x, weight, bias, window, layer.output_padding, layer.groups, name)

    def _batch_norm(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, x: Value, name: str) -> Value:
        mean, variance = layer.running_mean, layer.running_var
        if layer.training or mean is None or variance is None:
            raise ModelError("normalisation by the statistics of a batch is not supported; call module.eval()")
        factor, shift = _optional(layer.weight), _optional(layer.bias)
        return self.lowering.batch_norm(x, factor, shift, constant_of(mean), constant_of(variance), layer.eps, name)

    def _dropout(self, layer: nn.Dropout, x: Value, name: str) -> Value:
        if layer.training and layer.p > 0:
            raise ModelError("random results are not supported; call module.eval()")
        return x

    def _identity(self, layer: nn.Module, x: Value, name: str) -> Value:
        return x

    def _flatten(self, layer: nn.Flatten, x: Value, name: str) -> Value:
        return self.lowering.flatten(x, layer.start_dim, layer.end_dim)

    def _unflatten(self, layer: nn.Unflatten, x: Value, name: str) -> Value:
        at = int(layer.dim) % len(x.shape)
        sizes = [int(n) for n in layer.unflattened_size]
        return self.lowering.reshape(x, [*x.shape[:at], *sizes, *x.shape[at + 1 :]])

    def _pool_window(self, layer: Any, x: Value) -> Window:
        size = convolutions.image(x)
        kernel, stride, pad, dilation = (
            _each(n, len(size)) for n in (layer.kernel_size, layer.stride, layer.padding, getattr(layer, "dilation", 1))
        )
        window = Window(kernel, stride, pad, pad, dilation)
        return window.ceil(size) if layer.ceil_mode else window

    def _average_pool(self, layer: nn.AvgPool2d, x: Value, name: str) -> Value:
        if getattr(layer, "divisor_override", None) is not None:
            raise UnsupportedError("divisor_override")
        return convolutions.average_pool(self.lowering, x, self._pool_window(layer, x), layer.count_include_pad, name)

    def _adaptive_pool(self, layer: nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d, x: Value, name: str) -> Value:
        size = convolutions.image(x)
        wanted = [n if m is None else m for n, m in zip(size, _each(layer.output_size, len(size)), strict=True)]
        if any(n % m for n, m in zip(size, wanted, strict=True)):
            raise UnsupportedError(f"output_size {layer.output_size}, which does not divide {size},")
        kernel = tuple(n // m for n, m in zip(size, wanted, strict=True))
        window = replace(Window.plain(kernel), stride=kernel)
        if isinstance(layer, nn.modules.pooling._AdaptiveAvgPoolNd):
            return convolutions.average_pool(self.lowering, x, window, True, name)
        return convolutions.max_pool(self.lowering, x, window, name)

    def _max_pool(self, layer: nn.MaxPool2d, x: Value, name: str) -> Value:
        if layer.return_indices:
            raise UnsupportedError("return_indices")
        return convolutions.max_pool(self.lowering, x, self._pool_window(layer, x), name)

    def _moved(self, layer: nn.Module, x: Value, name: str) -> Value:
        found = moved(self.lowering, name, layer, (x,), {})
        assert isinstance(found, Value)
        return found

    def _pad(self, layer: nn.ZeroPad2d, x: Value, name: str) -> Value:
        if layer.value:
            return self._moved(layer, x, name)
        sides = len(layer.padding) // 2
        before, after = ([0] * (len(x.shape) - sides) + list(layer.padding[end::2])[::-1] for end in (0, 1))
        return convolutions.pad(self.lowering, x, before, after, name)

    def _by_function(self, layer: nn.Module, x: Value, name: str) -> Any:
        word, attributes = BY_FUNCTION[next(kind for kind in BY_FUNCTION if isinstance(layer, kind))]
        return FUNCTIONS[word](self.lowering, name, x, *(getattr(layer, attribute) for attribute in attributes))


def _word(target: Any) -> str:
    """Name of a function or method."""
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


# Layers that are functions, and the attributes that these take in order.
BY_FUNCTION: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.GELU: ("gelu", ("approximate",)),
    nn.GLU: ("glu", ("dim",)),
    nn.Hardsigmoid: ("hardsigmoid", ()),
    nn.Hardswish: ("hardswish", ()),
    nn.Hardtanh: ("hardtanh", ("min_val", "max_val")),  # ReLU6 among them
    nn.LeakyReLU: ("leaky_relu", ("negative_slope",)),
    nn.LogSigmoid: ("logsigmoid", ()),
    nn.LogSoftmax: ("log_softmax", ("dim",)),
    nn.Mish: ("mish", ()),
    nn.PReLU: ("prelu", ("weight",)),
    nn.SiLU: ("silu", ()),
    nn.Sigmoid: ("sigmoid", ()),
    nn.Softmax: ("softmax", ("dim",)),
    nn.Softplus: ("softplus", ("beta", "threshold")),
    nn.Softshrink: ("softshrink", ("lambd",)),
    nn.Tanh: ("tanh", ()),
    nn.Tanhshrink: ("tanhshrink", ()),
    nn.Threshold: ("threshold", ("threshold", "value")),
    nn.Upsample: ("interpolate", ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")),
}

MOVED_LAYERS: tuple[type[nn.Module], ...] = (
    nn.modules.padding._ReflectionPadNd,
    nn.modules.padding._ReplicationPadNd,
    nn.modules.padding._CircularPadNd,
    nn.ChannelShuffle,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
)

LAYERS: dict[type[nn.Module], Callable[[_Interpreter, Any, Value, str], Value]] = {
    **dict.fromkeys(BY_FUNCTION, _Interpreter._by_function),
    **dict.fromkeys(MOVED_LAYERS, _Interpreter._moved),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _Interpreter._conv),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _Interpreter._conv_transpose),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), _Interpreter._average_pool),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _Interpreter._max_pool),
    nn.modules.pooling._AdaptiveAvgPoolNd: _Interpreter._adaptive_pool,
    nn.modules.pooling._AdaptiveMaxPoolNd: _Interpreter._adaptive_pool,
    nn.modules.padding._ConstantPadNd: _Interpreter._pad,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _Interpreter._batch_norm),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), _Interpreter._dropout),
    nn.Flatten: _Interpreter._flatten,
    nn.Identity: _Interpreter._identity,
    nn.Linear: _Interpreter._linear,
    nn.ReLU: _Interpreter._relu,
    nn.Unflatten: _Interpreter._unflatten,
}

AS_LAYER: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    "max_pool1d": nn.MaxPool1d,
    "max_pool2d": nn.MaxPool2d,
    "max_pool3d": nn.MaxPool3d,
    "avg_pool1d": nn.AvgPool1d,
    "avg_pool2d": nn.AvgPool2d,
    "avg_pool3d": nn.AvgPool3d,
    "adaptive_avg_pool1d": nn.AdaptiveAvgPool1d,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
    "adaptive_max_pool1d": nn.AdaptiveMaxPool1d,
    "adaptive_max_pool2d": nn.AdaptiveMaxPool2d,
}

AFTER_SOFTMAX = (
    "contiguous",
    "dropout",
    "flatten",
    "getattr",
    "identity",
    "reshape",
    "size",
    "squeeze",
    "unflatten",
    "unsqueeze",
    "view",
)
"""Functions and layers that leave the elements of the outputs where they are."""


def _each(given: Any, rank: int) -> tuple[int, ...]:
    return (given,) * rank if isinstance(given, int) else tuple(given)


def _optional(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else constant_of(tensor)
