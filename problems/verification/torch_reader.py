"""Reader of torch modules, by way of ``torch.fx``."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from blocklp.errors import ModelError
from blocklp.problems.verification.lowering import UNIT, Lowering, Value, Window, compare, random_points
from blocklp.problems.verification.network import Network


def from_torch(module: nn.Module, input_shape: Sequence[int]) -> Network:
    """Read a ReLU network from a module, and compare it with the module in float64 at random points.

    Parameters
    ----------
    module : Module
        In evaluation mode.  Its ``forward`` takes one batch ``(1, *input_shape)`` and may use the layers Linear, Conv1d,
        Conv2d, ReLU, Flatten, Unflatten, BatchNorm1d, BatchNorm2d, AvgPool2d, AdaptiveAvgPool2d(1), MaxPool2d, Dropout and
        Identity, sums and differences of branches, constants that shift or scale, and reshapes.
    input_shape : sequence of int
        Shape of one sample.

    Returns
    -------
    Network
        In float64, named after the class of the module.

    Raises
    ------
    ModelError
        The module holds a layer that is no composition of affine maps and ReLUs, is in training mode, branches on its
        input, or differs from what was read.
    """
    name = type(module).__name__
    # A layer of torch by itself would be traced into its functions.
    alone = fx.Tracer().is_leaf_module(module, "")
    try:
        traced = fx.symbolic_trace(nn.Sequential(module) if alone else module)
    except Exception as error:  # Whatever forward raises on a placeholder.
        raise ModelError(f"{name}: its forward cannot be traced ({error}); use fixed layers and shapes") from error
    lowering = Lowering((1, *input_shape), input_shape, name)
    network = lowering.build(_Interpreter(traced, lowering).output())
    double = copy.deepcopy(module).cpu().double().eval()
    points = random_points(network)
    with torch.no_grad():
        outputs = torch.cat([double(point[None]).flatten()[None] for point in points])
    compare(network, points, outputs, UNIT[torch.float64], "the module")
    return network


class _Interpreter:
    """Goes through the nodes of a traced module; whatever does not depend on the input is simply computed."""

    def __init__(self, traced: fx.GraphModule, lowering: Lowering) -> None:
        self.traced, self.lowering = traced, lowering

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
            if not any(isinstance(value, Value) for value in (*args, *kwargs.values())):
                return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
            if node.op == "call_module":
                return self._layer(target, args[0], node.name)
            return self._function(target, node.name, *args, **kwargs)
        except _UnsupportedError as error:
            raise ModelError(f"{where}: {error} is not supported: ReLU networks only") from error
        except ModelError as error:
            raise ModelError(f"{where}: {error}") from error
        except (TypeError, ValueError, IndexError) as error:
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
        raise _UnsupportedError(f"layer {type(layer).__name__}")

    def _function(self, target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Functions of torch and methods of tensors; those that have a layer go through it."""
        word = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        if word in AS_LAYER:
            return self._layer(AS_LAYER[word](*args[1:], **kwargs), args[0], name)
        handler = FUNCTIONS.get(word)
        if handler is None:
            raise _UnsupportedError(f"function {word}")
        return handler(self.lowering, name, *args, **kwargs)

    def _linear(self, layer: nn.Linear, x: Value, name: str) -> Value:
        return self.lowering.linear(x, _weight(layer.weight), _optional(layer.bias), name)

    def _relu(self, layer: nn.ReLU, x: Value, name: str) -> Value:
        return self.lowering.relu(x, name)

    def _conv(self, layer: nn.Conv1d | nn.Conv2d, x: Value, name: str) -> Value:
        image = self.lowering.image(x)
        if layer.padding_mode != "zeros":
            raise _UnsupportedError(f"padding_mode {layer.padding_mode!r}")
        zeros = (0,) * len(image)
        pad = layer.padding if not isinstance(layer.padding, str) else zeros
        window = Window(layer.kernel_size, layer.stride, pad, pad, layer.dilation)
        if layer.padding == "same":
            window = window.same(image, upper=True)
        weight = _weight(layer.weight)
        return self.lowering.conv(x, weight, _optional(layer.bias), window, layer.groups, name)

    def _batch_norm(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, x: Value, name: str) -> Value:
        mean, variance = layer.running_mean, layer.running_var
        if layer.training or mean is None or variance is None:
            raise ModelError("normalisation by the statistics of a batch is not supported; call module.eval()")
        factor, shift = _optional(layer.weight), _optional(layer.bias)
        return self.lowering.batch_norm(x, factor, shift, _weight(mean), _weight(variance), layer.eps, name)

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

    def _pool_window(self, layer: nn.MaxPool2d | nn.AvgPool2d, x: Value) -> Window:
        kernel, pad = _pair(layer.kernel_size), _pair(layer.padding)
        stride = kernel if layer.stride is None else _pair(layer.stride)
        window = Window(kernel, stride, pad, pad, _pair(getattr(layer, "dilation", 1)))
        if layer.ceil_mode:
            window.refuse_ceil(self.lowering.image(x))
        return window

    def _average_pool(self, layer: nn.AvgPool2d, x: Value, name: str) -> Value:
        if layer.divisor_override is not None:
            raise _UnsupportedError("divisor_override")
        return self.lowering.average_pool(x, self._pool_window(layer, x), layer.count_include_pad, name)

    def _global_pool(self, layer: nn.AdaptiveAvgPool2d, x: Value, name: str) -> Value:
        if _pair(layer.output_size) != (1, 1):
            raise _UnsupportedError(f"output_size {layer.output_size} other than 1")
        size = self.lowering.image(x)
        return self.lowering.average_pool(x, Window(size, (1, 1), (0, 0), (0, 0), (1, 1)), True, name)

    def _max_pool(self, layer: nn.MaxPool2d, x: Value, name: str) -> Value:
        if layer.return_indices:
            raise _UnsupportedError("return_indices")
        return self.lowering.max_pool(x, self._pool_window(layer, x), name)


class _UnsupportedError(Exception):
    """Names what is not supported."""


LAYERS: dict[type[nn.Module], Callable[[_Interpreter, Any, Value, str], Value]] = {
    nn.Linear: _Interpreter._linear,
    nn.Conv1d: _Interpreter._conv,
    nn.Conv2d: _Interpreter._conv,
    nn.ReLU: _Interpreter._relu,
    nn.BatchNorm1d: _Interpreter._batch_norm,
    nn.BatchNorm2d: _Interpreter._batch_norm,
    nn.Flatten: _Interpreter._flatten,
    nn.Unflatten: _Interpreter._unflatten,
    nn.AvgPool2d: _Interpreter._average_pool,
    nn.AdaptiveAvgPool2d: _Interpreter._global_pool,
    nn.MaxPool2d: _Interpreter._max_pool,
    nn.Dropout: _Interpreter._dropout,
    nn.Dropout2d: _Interpreter._dropout,
    nn.Identity: _Interpreter._identity,
}

AS_LAYER: dict[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    "max_pool2d": nn.MaxPool2d,
    "avg_pool2d": nn.AvgPool2d,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
}


def _sum(lowering: Lowering, name: str, a: Any, b: Any, *, alpha: float = 1.0) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        return lowering.add(a, b if alpha == 1 else lowering.scale(b, alpha, 0.0, name), name)
    if isinstance(a, Value):
        return lowering.scale(a, 1.0, alpha * torch.as_tensor(b).double(), name)
    return lowering.scale(b, alpha, a, name)


def _difference(lowering: Lowering, name: str, a: Any, b: Any, *, alpha: float = 1.0) -> Value:
    return _sum(lowering, name, a, b, alpha=-alpha)


def _product(lowering: Lowering, name: str, a: Any, b: Any) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        raise _UnsupportedError("a product of two results")
    return lowering.scale(a, b, 0.0, name) if isinstance(a, Value) else lowering.scale(b, a, 0.0, name)


def _quotient(lowering: Lowering, name: str, a: Any, b: Any) -> Value:
    if isinstance(b, Value):
        raise _UnsupportedError("division by a result")
    return lowering.scale(a, 1 / torch.as_tensor(b).double(), 0.0, name)


def _negative(lowering: Lowering, name: str, a: Value) -> Value:
    return lowering.scale(a, -1.0, 0.0, name)


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
    if attribute != "shape":
        raise _UnsupportedError(f"attribute {attribute}")
    return torch.Size(a.shape)


def _dropout(lowering: Lowering, name: str, a: Value, p: float = 0.5, training: bool = True, inplace: bool = False) -> Value:
    if training and p > 0:
        raise ModelError("random results are not supported; call module.eval() before reading")
    return a


def _same(lowering: Lowering, name: str, a: Value, *rest: Any, **more: Any) -> Value:
    return a


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("add", "iadd", "add_"), _sum),
    **dict.fromkeys(("sub", "isub", "sub_"), _difference),
    **dict.fromkeys(("mul", "imul", "mul_"), _product),
    **dict.fromkeys(("truediv", "div", "itruediv"), _quotient),
    "neg": _negative,
    **dict.fromkeys(("reshape", "view"), _reshape),
    "flatten": _flatten,
    "permute": _permute,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "size": _size,
    "getattr": _attribute,
    "contiguous": _same,
    "dropout": _dropout,
}


def _sizes(given: tuple[Any, ...]) -> list[int]:
    return [int(n) for n in (given[0] if len(given) == 1 and not isinstance(given[0], int) else given)]


def _pair(given: Any) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else (given[0], given[1])


def _weight(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def _optional(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else _weight(tensor)
