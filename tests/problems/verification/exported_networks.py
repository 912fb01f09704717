"""Networks as common exporters write them: small ones, with random weights.

``LEGACY`` modules go through ``torch.onnx.export(dynamo=False)`` when a test runs.  ``dynamo_exports.txt`` holds graphs that the
exporter of torch 2.13 with ``dynamo=True`` wrote, without their weights.  ``GRAPHS`` are made by hand: images with channels last
between transpositions, as converters of TensorFlow and Keras write them, operators of old sets with attributes that became
arguments later, constants that are computed, quantised weights, and a few rare operators.  ``REFUSED`` are networks of
operators that are not known.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn
from torch.nn import functional as F

IMAGE, VECTOR = (3, 6, 6), (6,)


class Function(nn.Module):
    """A module whose forward is a function of its input and layers."""

    def __init__(self, function: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.layers)


def last(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 2))


def between(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), activation, nn.Linear(5, 2))


def applied(function: Callable[..., torch.Tensor], inputs: int = 6) -> nn.Module:
    return Function(lambda x, layer: layer(function(x)), nn.Linear(inputs, 2))


def compared(function: Callable[..., torch.Tensor]) -> nn.Module:
    return Function(lambda x, one, two: two(function(one(x), x)), nn.Linear(6, 5), nn.Linear(5, 2))


def residual(x: torch.Tensor, one: nn.Module, two: nn.Module, linear: nn.Module) -> torch.Tensor:
    y = one(x)
    return linear(F.adaptive_avg_pool2d(F.relu(two(F.relu(y)) + y), 1).flatten(1))


def dense_block(x: torch.Tensor, one: nn.Module, two: nn.Module, linear: nn.Module) -> torch.Tensor:
    y = torch.cat([x, F.relu(one(x))], 1)
    return linear(torch.cat([y, F.relu(two(y))], 1))


def up_and_beside(x: torch.Tensor, one: nn.Module, linear: nn.Module) -> torch.Tensor:
    return linear(torch.cat([F.interpolate(F.relu(one(x)), scale_factor=2.0, mode="nearest"), x], 1))


def differences(x: torch.Tensor) -> torch.Tensor:
    one, two = torch.split(F.relu(x), 3, 1)[0], torch.split(x, 3, 1)[1]
    return one - two


EVEN = torch.arange(6) % 2 == 0

# Name: operator set, module, shape of one input.
LEGACY: dict[str, tuple[int, Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (
        13,
        lambda: Function(residual, nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 2)),
        IMAGE,
    ),
    "residual 9": (9, lambda: Function(residual, nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 4, 1), nn.Linear(4, 2)), IMAGE),
    "dense block": (11, lambda: Function(dense_block, nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(5, 1, 1), last(216)), IMAGE),
    "normalised": (14, lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), last(64)), IMAGE),
    "normalised vector": (15, lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)), VECTOR),
    "mobile": (12, lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.ReLU6(), nn.Conv2d(6, 2, 1), nn.ReLU6(), last(32)), IMAGE),
    "means of channels": (18, lambda: Function(lambda x, c: F.relu(c(x)).mean((2, 3)), nn.Conv2d(3, 4, 3)), IMAGE),
    "mean kept": (17, lambda: Function(lambda x, c: F.relu(c(x)).mean(1, keepdim=True), nn.Conv2d(3, 2, 3)), IMAGE),
    "sum": (10, lambda: Function(lambda x, c: F.relu(c(x)).sum(-1), nn.Conv2d(3, 2, 3)), IMAGE),
    "centred": (17, lambda: applied(lambda x: F.relu(x) - x.mean(1, keepdim=True)), VECTOR),
    "slices": (11, lambda: applied(lambda x: F.relu(x[:, 1:, ::2, -4:-1]).flatten(1), 18), IMAGE),
    "slices 9": (9, lambda: applied(lambda x: F.relu(x[:, 1:, :2, -4:-1]).flatten(1), 12), IMAGE),
    "split": (13, lambda: applied(differences, 3), VECTOR),
    "split 9": (9, lambda: applied(differences, 3), VECTOR),
    "entry": (16, lambda: applied(lambda x: F.relu(x)[:, :, 0, 2], 3), IMAGE),
    "entries": (16, lambda: applied(lambda x: F.relu(x)[:, [4, 0, 2]], 3), VECTOR),
    "gathered": (16, lambda: applied(lambda x: torch.gather(F.relu(x), 1, torch.tensor([[5, 1, 1]])), 3), VECTOR),
    "stack": (13, lambda: applied(lambda x: torch.stack([F.relu(x), x], 2).flatten(1), 12), VECTOR),
    "expand": (9, lambda: applied(lambda x: F.relu(x[:, :1]).expand(1, 6) + x), VECTOR),
    "broadcast sum": (17, lambda: applied(lambda x: F.relu(x[:, :1]) + x), VECTOR),
    "repeat": (13, lambda: applied(lambda x: F.relu(x).repeat(1, 2), 12), VECTOR),
    "tile": (17, lambda: applied(lambda x: torch.tile(F.relu(x), (1, 2)), 12), VECTOR),
    "chosen": (16, lambda: applied(lambda x: torch.where(EVEN, F.relu(x), torch.tensor(0.5))), VECTOR),
    "chosen of two": (11, lambda: applied(lambda x: torch.where(EVEN, F.relu(x), -x)), VECTOR),
    "masked": (17, lambda: applied(lambda x: F.relu(x).masked_fill(EVEN, 0.25)), VECTOR),
    "flip": (17, lambda: applied(lambda x: F.relu(x).flip(1)), VECTOR),
    "roll": (17, lambda: applied(lambda x: F.relu(x).roll(2, 1)), VECTOR),
    "cumulated": (14, lambda: applied(lambda x: F.relu(torch.cumsum(x, 1))), VECTOR),
    "einsum": (12, lambda: Function(lambda x, a: F.relu(torch.einsum("bi,oi->bo", x, a.weight)), nn.Linear(6, 2)), VECTOR),
    "squeezed": (13, lambda: applied(lambda x: F.relu(x.unsqueeze(1)).squeeze(1)), VECTOR),
    "size as data": (17, lambda: applied(lambda x: F.relu(x) / x.shape[1] ** 0.5), VECTOR),
    "size in view": (9, lambda: Function(lambda x, c, a: a(F.relu(c(x)).view(x.size(0), -1)), nn.Conv2d(3, 2, 3), last(32)), IMAGE),
    "transposed convolution": (
        13,
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1), last(72)
        ),
        IMAGE,
    ),
    "transposed groups": (11, lambda: nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(3, 6, 2, groups=3, dilation=2), last(384)), IMAGE),
    "transposed row": (17, lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 3, stride=2), nn.ReLU(), last(33)), (2, 5)),
    "volume": (
        13,
        lambda: nn.Sequential(nn.Conv3d(2, 2, 2, padding=(1, 0, 1), stride=(1, 2, 1), groups=2), nn.ReLU(), last(100)),
        (2, 4, 4, 4),
    ),
    "pools of a volume": (17, lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.MaxPool3d(2), nn.AvgPool3d(1), last(2)), (1, 4, 4, 4)),
    "row": (14, lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), last(9)), (2, 6)),
    "nearest": (9, lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Upsample(scale_factor=2.0), last(128)), IMAGE),
    "nearest 11": (11, lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Upsample(size=(6, 9)), last(108)), IMAGE),
    "bilinear": (13, lambda: nn.Sequential(nn.ReLU(), nn.Upsample(scale_factor=2.0, mode="bilinear"), last(432)), IMAGE),
    "bilinear corners": (
        16,
        lambda: nn.Sequential(nn.ReLU(), nn.Upsample((5, 9), mode="bilinear", align_corners=True), last(135)),
        IMAGE,
    ),
    "smaller": (18, lambda: nn.Sequential(nn.ReLU(), nn.Upsample((3, 4), mode="bilinear"), last(36)), IMAGE),
    "up and beside": (11, lambda: Function(up_and_beside, nn.Conv2d(3, 2, 2, stride=2), last(180)), IMAGE),
    "reflected": (12, lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 2, 3), nn.ReLU(), last(72)), IMAGE),
    "replicated": (9, lambda: nn.Sequential(nn.ReplicationPad2d(2), nn.Conv2d(3, 2, 3, stride=2), nn.ReLU(), last(32)), IMAGE),
    "constant around": (
        18,
        lambda: nn.Sequential(nn.ConstantPad2d((1, 0, 2, 1), 0.7), nn.Conv2d(3, 2, 3), nn.ReLU(), last(70)),
        IMAGE,
    ),
    "cut": (13, lambda: nn.Sequential(nn.ZeroPad2d((-1, 1, -1, 0)), nn.Conv2d(3, 2, 3), nn.ReLU(), last(24)), IMAGE),
    "channels around": (17, lambda: applied(lambda x: F.pad(F.relu(x), (0, 0, 0, 0, 1, 2)).flatten(1), 216), IMAGE),
    "circular": (13, lambda: nn.Sequential(nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"), nn.ReLU(), last(72)), IMAGE),
    "ceiled maximum": (11, lambda: nn.Sequential(nn.Conv2d(3, 2, 2), nn.MaxPool2d(2, ceil_mode=True), last(18)), IMAGE),
    "ceiled mean": (19, lambda: nn.Sequential(nn.Conv2d(3, 2, 2), nn.ReLU(), nn.AvgPool2d(2, ceil_mode=True), last(18)), IMAGE),
    "padded maximum": (13, lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.MaxPool2d(3, stride=2, padding=1), last(8)), IMAGE),
    "padded mean": (
        10,
        lambda: nn.Sequential(nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), nn.Conv2d(3, 2, 1), nn.ReLU(), last(18)),
        IMAGE,
    ),
    "pixels shuffled": (13, lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.PixelShuffle(2), last(64)), IMAGE),
    "stack of matrices": (
        13,
        lambda: applied(lambda x: F.relu(x.view(1, 3, 1, 2) @ torch.ones(3, 2, 2).cumsum(0)).flatten(1)),
        VECTOR,
    ),
    "leaky": (9, lambda: between(nn.LeakyReLU(0.1)), VECTOR),
    "prelu": (11, lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4), last(64)), IMAGE),
    "hard tangent": (8, lambda: between(nn.Hardtanh(-0.5, 0.5)), VECTOR),
    "hard sigmoid": (14, lambda: between(nn.Hardsigmoid()), VECTOR),
    "clamped": (11, lambda: compared(lambda y, x: y.clamp(min=-0.25)), VECTOR),
    "clamped from above": (12, lambda: compared(lambda y, x: y.clamp(max=0.25)), VECTOR),
    "magnitudes": (9, lambda: compared(lambda y, x: y.abs()), VECTOR),
    "greater of two": (12, lambda: compared(lambda y, x: torch.maximum(y, x[:, :5])), VECTOR),
    "less of two": (14, lambda: compared(lambda y, x: torch.minimum(y, torch.tensor(0.3))), VECTOR),
    "greatest": (13, lambda: Function(lambda x, a: a(x).amax(1, keepdim=True), nn.Linear(6, 5)), VECTOR),
    "greatest of rows": (18, lambda: Function(lambda x, a: a(x).view(1, 2, 3).max(2)[0], nn.Linear(6, 6)), VECTOR),
    "greatest pixel": (11, lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten()), IMAGE),
    "softmax": (11, lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.Softmax(1)), VECTOR),
    "logarithm of softmax": (13, lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3), nn.LogSoftmax(-1)), VECTOR),
}


def module_of(name: str) -> nn.Module:
    """A module of ``LEGACY`` with weights that repeat, for inference."""
    torch.manual_seed(0)
    return randomised(LEGACY[name][1]())


def randomised(module: nn.Module) -> nn.Module:
    """A module for inference, whose normalisations have other statistics than the initial ones."""
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            for tensor in (layer.weight.data, layer.bias.data, layer.running_mean):
                tensor.normal_()
            layer.running_var.uniform_(0.5, 2.0)
    return module.eval()


def legacy_export(name: str, path: Path) -> None:
    opset, _, shape = LEGACY[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module_of(name), (torch.zeros(1, *shape),), str(path), opset_version=opset, dynamo=False)


def filled(text: str, opset: int) -> onnx.ModelProto:
    """A model from the text of a graph, whose inputs but x become random weights."""
    graph = onnx.parser.parse_graph(text)
    rng = np.random.default_rng(len(text))
    for entry in list(graph.input):
        if entry.name != "x":
            shape = [n.dim_value for n in entry.type.tensor_type.shape.dim]
            graph.initializer.append(numpy_helper.from_array((rng.normal(size=shape) / 2).astype(np.float32), entry.name))
            graph.input.remove(entry)
    graph.output[0].type.tensor_type.ClearField("shape")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def blocks(text: str) -> dict[str, str]:
    return {block.split(" ", 1)[0]: block for block in text.strip().split("\n\n")}


NEWER = (18, 19, 20, 21, 22, 23, 24, 25)

DYNAMO = {
    f"dynamo {name}": (NEWER[k % len(NEWER)], text)
    for k, (name, text) in enumerate(blocks((Path(__file__).parent / "dynamo_exports.txt").read_text()).items())
}

# Operator set, and a graph of which all inputs but x are weights.
GRAPHS: dict[str, tuple[int, str]] = {
    "channels last": (
        13,
        """g (float[1,6,5,3] x, float[4,3,3,3] k, float[4] b, float[120,2] w, float[2] c) => (float[] y) <int64[2] s = {-1, 120}> {
          t = Transpose <perm = [0, 3, 1, 2]> (x)
          h = Conv <auto_pad = "SAME_UPPER", kernel_shape = [3, 3], strides = [1, 1], dilations = [1, 1], group = 1> (t, k, b)
          r = Relu (h)
          u = Transpose <perm = [0, 2, 3, 1]> (r)
          f = Reshape (u, s)
          m = MatMul (f, w)
          y = Add (m, c)
        }""",
    ),
    "channels last, size computed": (
        15,
        """g (float[N,6,5,3] x, float[4,3,3,3] k, float[120,2] w) => (float[] y)
          <int64[1] z = {0}, int64[1] o = {1}, int64[1] rest = {120}> {
          t = Transpose <perm = [0, 3, 1, 2]> (x)
          h = Conv <auto_pad = "SAME_LOWER", strides = [1, 1]> (t, k)
          r = Relu (h)
          u = Transpose <perm = [0, 2, 3, 1]> (r)
          n = Shape (x)
          i = Cast <to = 6> (n)
          l = Cast <to = 7> (i)
          a = Slice (l, z, o, z)
          s = Concat <axis = 0> (a, rest)
          f = Reshape (u, s)
          y = MatMul (f, w)
        }""",
    ),
    "global mean of channels last": (
        13,
        """g (float[1,5,5,3] x, float[4,3,2,2] k, float[4] b, float[4,2] w, float[2] c) => (float[] y) {
          t = Transpose <perm = [0, 3, 1, 2]> (x)
          h = Conv <strides = [2, 2], pads = [0, 0, 1, 1]> (t, k, b)
          r = Relu (h)
          u = Transpose <perm = [0, 2, 3, 1]> (r)
          p = ReduceMean <axes = [1, 2], keepdims = 0> (u)
          m = MatMul (p, w)
          y = Add (m, c)
        }""",
    ),
    "clamp by minimum and maximum": (
        12,
        """g (float[1,6] x, float[6,5] w, float[5] b, float[5,2] v) => (float[] y) <float six = {0.6}, float zero = {0}> {
          m = MatMul (x, w)
          a = Add (b, m)
          u = Max (zero, a)
          r = Min (u, six)
          y = MatMul (r, v)
        }""",
    ),
    "concatenated channels last": (
        11,
        """g (float[1,4,4,2] x, float[3,2,1,1] k, float[1,1,1,2] s, float[80,2] w) => (float[] y) <int64[2] f = {1, 80}> {
          t = Transpose <perm = [0, 3, 1, 2]> (x)
          h = Conv (t, k)
          a = Relu (h)
          u = Transpose <perm = [0, 2, 3, 1]> (a)
          b = Mul (x, s)
          c = Concat <axis = -1> (u, b)
          r = Reshape (c, f)
          y = MatMul (r, w)
        }""",
    ),
    "enlarged channels last": (
        13,
        """g (float[1,3,3,2] x, float[2,2,2,2] k, float[50,2] w) => (float[] y) <float[4] s = {1, 1, 2, 2}, int64[2] f = {1, 50}> {
          t = Transpose <perm = [0, 3, 1, 2]> (x)
          a = Relu (t)
          h = Resize <coordinate_transformation_mode = "asymmetric", mode = "nearest", nearest_mode = "floor"> (a, "", s)
          c = Conv (h, k)
          u = Transpose <perm = [0, 2, 3, 1]> (c)
          r = Reshape (u, f)
          y = MatMul (r, w)
        }""",
    ),
    "transposed convolution of a stated size": (
        13,
        """g (float[1,2,3,3] x, float[2,3,3,3] k, float[3] b) => (float[] y) {
          h = ConvTranspose <strides = [2, 2], output_shape = [6, 6], auto_pad = "SAME_UPPER"> (x, k, b)
          r = Relu (h)
          y = ReduceSum <keepdims = 0> (r)
        }""",
    ),
    "padding of channels last": (
        13,
        """g (float[1,4,4,2] x, float[3,2,3,3] k) => (float[] y) <int64[8] p = {0, 1, 2, 0, 0, 1, 0, 0}> {
          q = Pad <mode = "constant"> (x, p)
          t = Transpose <perm = [0, 3, 1, 2]> (q)
          h = Conv <strides = [2, 2]> (t, k)
          r = Relu (h)
          s = GlobalAveragePool (r)
          y = Squeeze (s)
        }""",
    ),
    "depthwise kernel reshaped": (
        13,
        """g (float[1,4,4,2] x, float[3,3,2,2] k, float[4] b) => (float[] y) <int64[4] s = {3, 3, 1, 4}> {
          t = Transpose <perm = [0, 3, 1, 2]> (x)
          v = Reshape (k, s)
          w = Transpose <perm = [3, 2, 0, 1]> (v)
          h = Conv <group = 2> (t, w, b)
          r = Relu (h)
          y = Flatten (r)
        }""",
    ),
    "maximum that keeps the size": (
        12,
        """g (float[1,2,5,5] x, float[2,2,2,2] k) => (float[] y) {
          h = Conv (x, k)
          m = MaxPool <kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"> (h)
          y = Flatten (m)
        }""",
    ),
    "old attributes": (
        7,
        """g (float[1,2,4,4] x, float[2,1,1] p, float[2,2,3,3] k) => (float[] y) {
          r = PRelu (x, p)
          e = Pad <mode = "reflect", pads = [0, 0, 1, 1, 0, 0, 1, 1]> (r)
          h = Conv (e, k)
          u = Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 1.0]> (h)
          c = Clip <min = -0.5, max = 0.75> (u)
          a, b = Split <axis = 1, split = [1, 1]> (c)
          d = Sub (a, b)
          s = Slice <axes = [2], starts = [1], ends = [-2]> (d)
          q = Squeeze <axes = [1]> (s)
          y = Flatten (q)
        }""",
    ),
    "old linear enlargement": (
        9,
        """g (float[1,2,3,3] x) => (float[] y) <float[4] s = {1, 1, 2, 3}> {
          r = Relu (x)
          u = Upsample <mode = "linear"> (r, s)
          y = Flatten (u)
        }""",
    ),
    "sums of several": (
        8,
        """g (float[1,4] x, float[4,4] w, float[4] c, float[4,3] v) => (float[] y) {
          m = MatMul (x, w)
          r = Relu (m)
          s = Sum (r, x, c, m)
          a = Mean (s, r)
          g1 = Max (a, x, c)
          g2 = Min (g1, s)
          y = MatMul (g2, v)
        }""",
    ),
    "condition on a size": (
        13,
        """g (float[1,1,4] x, float[4,2] w) => (float[] y) <int64 one = {1}, int64[1] axis = {1}> {
          r = Relu (x)
          s = Shape (r)
          n = Gather <axis = 0> (s, one)
          c = Equal (n, one)
          q = If (c) <
            then_branch = squeezed () => (float[] a) { a = Squeeze (r, axis) },
            else_branch = kept () => (float[] b) { b = Identity (r) }
          >
          y = MatMul (q, w)
        }""",
    ),
    "quantised weights": (
        13,
        """g (float[1,3] x, float[2] b) => (float[] y) <int8[3,2] q = {-128, 5, 17, 90, -3, 127}, float s = {0.02}, int8 z = {3}> {
          r = Relu (x)
          w = DequantizeLinear (q, s, z)
          y = Gemm (r, w, b)
        }""",
    ),
    "binary": (
        15,
        """g (float[1,6] x, float[6,8] w, float[8] a, float[8] b, float[8] m, float[8,8] v, float[8,2] u) => (float[] y)
           <float[8] d = {1, 2, 1, 2, 1, 2, 1, 2}> {
          h = MatMul (x, w)
          n = BatchNormalization (h, a, b, m, d)
          s = Sign (n)
          g = MatMul (s, v)
          t = Sign (g)
          y = MatMul (t, u)
        }""",
    ),
    "turned products": (
        11,
        """g (float[3,2] x, float[3,4] w, float[5,2] v, float[2,3] u) => (float[] y) {
          a = Gemm <transA = 1> (x, w)
          b = Relu (a)
          c = Gemm <alpha: float = 0.5> (v, b)
          e = Relu (c)
          f = Flatten <axis = 0> (e)
          y = ReduceSum <axes = [1], keepdims = 0> (f)
        }""",
    ),
    "blocks and depth": (
        13,
        """g (float[1,4,4,4] x, float[4,4,1,1] k) => (float[] y) {
          d = DepthToSpace <blocksize = 2, mode = "CRD"> (x)
          r = Relu (d)
          s = SpaceToDepth <blocksize = 2> (r)
          h = Conv (s, k)
          m = GlobalMaxPool (h)
          y = Flatten (m)
        }""",
    ),
    "least and magnitudes": (
        14,
        """g (float[1,3,4] x, float[4,2] w) => (float[] y) {
          t = Trilu <upper = 1> (x)
          a = ReduceMin <axes = [1], keepdims = 0> (t)
          b = ReduceL1 <axes = [1], keepdims = 0> (x)
          s = Sub (a, b)
          y = MatMul (s, w)
        }""",
    ),
    "written into constants": (
        16,
        """g (float[1,4] x, float[6] c, float[6,2] w) => (float[] y) <int64[4,1] at = {5, 0, 2, 3}> {
          r = Relu (x)
          f = Squeeze (r)
          s = ScatterND (c, at, f)
          y = MatMul (s, w)
        }""",
    ),
    "hard sigmoid and back": (
        22,
        """g (float[1,4] x, float[4,3] w, float[3,2] v) => (float[] y) {
          m = MatMul (x, w)
          h = HardSigmoid <alpha: float = 0.5, beta: float = 0.25> (m)
          n = Neg (h)
          l = LeakyRelu <alpha: float = -0.5> (n)
          y = MatMul (l, v)
        }""",
    ),
    "soft shrinkage": (
        13,
        """g (float[1,4] x, float[4,5] w, float[5,2] v) => (float[] y) {
          m = MatMul (x, w)
          s = Shrink <bias: float = 0.1, lambd: float = 0.1> (m)
          y = MatMul (s, v)
        }""",
    ),
}

# Operator set, graph, and what the refusal names: operator, node and a way out.
REFUSED: dict[str, tuple[int, str, str]] = {
    "exponential": (13, "g (float[1,4] x) => (float[] y) { y = Exp (x) }", r"Exp \(node y\).*use one of these"),
    "exponential below zero": (
        13,
        "g (float[1,4] x) => (float[] y) { h = Elu (x) y = Relu (h) }",
        r"Elu \(node h\).*use one of these",
    ),
    "sine": (20, "g (float[1,4] x) => (float[] y) { y = Sin (x) }", r"Sin \(node y\).*use one of these"),
    "quotient": (14, "g (float[1,4] x) => (float[] y) { h = HardSigmoid (x) y = Div (x, h) }", r"Div \(node y\).*quotients"),
    "steps": (13, "g (float[1,4] x) => (float[] y) { y = Floor (x) }", r"Floor \(node y\).*cut it off"),
    "hard shrinkage": (
        9,
        "g (float[1,4] x) => (float[] y) { y = Shrink (x) }",
        r"Shrink \(node y\).*not negative, .*jumps; cut it off",
    ),
    "normalised layer": (
        17,
        "g (float[1,4] x, float[4] w) => (float[] y) { y = LayerNormalization (x, w) }",
        r"LayerNormalization \(node y\).*use one of these",
    ),
    "attention": (
        13,
        "g (float[1,2,4] x, float[4,4] w) => (float[] y) { m = MatMul (x, w) s = Softmax (m) y = MatMul (s, w) }",
        r"MatMul \(node y\).*last layer alone; cut the network off",
    ),
    "quantised results": (
        13,
        "g (float[1,4] x) => (float[] y) <float s = {0.1}> { q = QuantizeLinear (x, s) y = DequantizeLinear (q, s) }",
        r"QuantizeLinear \(node q\).*export the network in float32",
    ),
    "loop": (
        13,
        """g (float[1,4] x) => (float[] y) <int64 n = {2}, bool c = {1}> {
          y = Loop (n, c, x) <body = b (int64 i, bool k, float[1,4] u) => (bool o, float[1,4] v) { o = Identity (k) v = Relu (u) }>
        }""",
        r"Loop \(node y\).*without control flow",
    ),
}
