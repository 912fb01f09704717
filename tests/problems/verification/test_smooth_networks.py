"""Networks with smooth activations: read, bounded and decided, against samples, mpmath and onnxruntime."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path

import mpmath as mp
import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, ModelError, OptionError
from blocklp.oracles.curves import CURVES
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.verification import (
    Builder,
    Network,
    Property,
    VerifySettings,
    from_torch,
    network_bounds,
    robust_accuracy,
    verify,
)
from blocklp.problems.verification.onnx_reader import load_onnx
from blocklp.problems.verification.operations import Add, Linear, Scale, SmoothActivation
from blocklp.problems.verification.planet import Planet
from blocklp.problems.verification.proof import check_proof
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.problems.verification.slopes import SHARES, SlopeDual
from blocklp.problems.verification.tightener import WEIGHTED, intervals
from blocklp.search.parameter_ascent import ascend

from ...oracles.test_curves import TRUE
from ..verification_networks import unit_box
from .exported_networks import Function, applied, between, filled, last

EVERY = pytest.mark.parametrize("name", list(CURVES))
ACTIVATION_SPLITS = VerifySettings(few_inputs=0)


def smooth(name: str, seed: int, sizes: tuple[int, ...] = (3, 6, 5, 2), scale: float = 1.0) -> Network:
    g = torch.Generator().manual_seed(seed)
    b = Builder(sizes[:1], f"{name} {seed}")
    at = 0
    for k, (a, c) in enumerate(itertools.pairwise(sizes)):
        at = b.linear(at, scale * torch.randn(c, a, generator=g), torch.randn(c, generator=g) / 2)
        if k + 2 < len(sizes):
            at = b.smooth(at, CURVES[name])
    return b.build()


def mixed(name: str, seed: int) -> Network:
    """A convolution, a skip past a ReLU and a smooth activation, and an activation of an activation."""
    g = torch.Generator().manual_seed(seed)
    b = Builder((1, 4, 4), f"mixed {name} {seed}")
    first = b.smooth(b.conv(0, torch.randn(2, 1, 3, 3, generator=g), torch.randn(2, generator=g), padding=(1, 1, 1, 1)), CURVES[name])
    second = b.relu(b.conv(first, torch.randn(2, 2, 3, 3, generator=g) / 2, torch.randn(2, generator=g) / 2, padding=(1, 1, 1, 1)))
    third = b.smooth(b.smooth(b.add(first, second), CURVES["tanh"]), CURVES[name])
    b.linear(third, torch.randn(2, 32, generator=g) / 3, torch.randn(2, generator=g))
    return b.build()


def samples(lower: Tensor, upper: Tensor, count: int, seed: int = 0) -> Tensor:
    """Points of a box, half of them corners."""
    where = torch.rand(count, *lower.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    where[::2] = where[::2].round()
    return torch.lerp(lower, upper, where).clamp(lower, upper)


def exactly(network: Network, x: Tensor) -> list[mp.mpf]:
    """Outputs of a network of matrices at one point, in as many digits as mpmath works with."""
    results = [[mp.mpf(v) for v in x.flatten().tolist()]]
    for op in network.ops[1:]:
        of = [results[i] for i in op.inputs]
        if isinstance(op, SmoothActivation):
            results.append([TRUE[op.curve.name](v) for v in of[0]])
        else:
            assert isinstance(op, Linear)
            rows = zip(op.weight.tolist(), op.bias.tolist(), strict=True)
            results.append([mp.fsum(mp.mpf(w) * v for w, v in zip(row, of[0], strict=True)) + mp.mpf(c) for row, c in rows])
    return results[-1]


@EVERY
@pytest.mark.parametrize("radius", [0.3, 5.0])
def test_bounds_hold_at_samples_of_every_layer(name: str, radius: float) -> None:
    for network in (smooth(name, 0), smooth(name, 1, scale=6.0 if CURVES[name].bounded else 1.5), mixed(name, 2)):
        lower, upper = unit_box(network, 3, radius)
        results = network.run(samples(lower, upper, 300))
        widths = []
        for method in ("interval", "crown", "slopes"):
            bounds = network_bounds(network, lower, upper, method=method, steps=3 if method == "slopes" else None)
            nodes = [network.ops[at].inputs[0] for at in network.activations] + [len(network.ops) - 1]
            for node, layer in zip(nodes, bounds.layers, strict=True):
                size = 1e-12 * (1 + results[node].abs().amax(0))
                assert bool((layer.lower <= results[node].amin(0) + size).all()), method
                assert bool((results[node].amax(0) - size <= layer.upper).all()), method
            widths.append(bounds.output.upper - bounds.output.lower)
        assert bool((widths[1] <= widths[0] * (1 + 1e-9)).all()) and bool((widths[2] <= widths[0] * (1 + 1e-9)).all())


@EVERY
def test_bounds_at_a_point_hold_in_fifty_digits(name: str) -> None:
    """Boxes of equal ends leave nothing but rounding."""
    for seed, scale in ((0, 1.0), (1, 3.0 if not CURVES[name].bounded else 30.0)):
        network = smooth(name, seed, scale=scale)
        point = unit_box(network, seed, 0.0)[0]
        for method in ("interval", "crown", "slopes"):
            bounds = network_bounds(network, point, point, method=method, steps=2 if method == "slopes" else None).output
            with mp.workdps(50):
                for low, high, y in zip(bounds.lower.tolist(), bounds.upper.tolist(), exactly(network, point), strict=True):
                    assert mp.mpf(low) <= y <= mp.mpf(high)
                    assert high - low <= 1e-6 * (1 + abs(float(y)))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_charged_values_are_below_samples_whatever_the_slopes(name: str, dtype: torch.dtype) -> None:
    """Also with multipliers of bounds, and in float32, where the charge matters."""
    for network in (smooth(name, 4), mixed(name, 5)):
        lower, upper = (end.float().double() for end in unit_box(network, 6))
        base = network_bounds(network, lower, upper, method="crown").relaxation
        bounds = {at: (low.float().double() - 1e-4, high.float().double() + 1e-4) for at, (low, high) in base.bounds.items()}
        g, node = torch.Generator().manual_seed(7), len(network.ops) - 1
        rounded = network.to(torch.float32).to(torch.float64)
        relaxation = Relaxation(rounded, lower[None], upper[None], bounds).to(dtype)
        before = list(network.activations)
        cost = torch.randn(32, *network.ops[node].shape, generator=g).to(dtype)
        slopes = {at: torch.rand(32, *network.ops[at].shape, generator=g).to(dtype) for at in before}
        fixed = relaxation.start(before, 32)
        slopes = {at: torch.where(relaxation.open[at], s, fixed[at]) for at, s in slopes.items()}
        betas = {at: 0.2 * torch.randn(32, *network.ops[at].shape, generator=g).to(dtype) for at in before if at in relaxation.curves}
        y = rounded.run(samples(lower, upper, 300))[-1]
        least = (cost.double().flatten(1) @ y.flatten(1).T).amin(1)
        for given in ({}, betas):
            value = relaxation.backward(node, cost, slopes, given, charge=True).value.double()
            assert bool((value <= least + 1e-12 * (1 + least.abs())).all())
            plain = relaxation.backward(node, cost, slopes, given).value.double()
            assert bool((value < plain).all()) and bool(
                (plain - value <= (1e-8 if dtype == torch.float64 else 0.5) * (1 + plain.abs())).all()
            )


@EVERY
def test_the_forward_pass_gives_value_and_supergradients(name: str) -> None:
    for network in (smooth(name, 8), mixed(name, 9)):
        lower, upper = unit_box(network, 1)
        relaxation = network_bounds(network, lower, upper, method="crown").relaxation
        node, g, before = len(network.ops) - 1, torch.Generator().manual_seed(6), list(network.activations)
        cost = torch.randn(3, *network.ops[node].shape, generator=g, dtype=torch.float64)
        split = {at: torch.full((3, *network.ops[at].shape), 0.3).double() for at in before if at in relaxation.curves}
        dual = SlopeDual(relaxation, node, cost, before, split)
        point = [torch.rand(p.shape, generator=g, dtype=p.dtype) for p in dual.start()]
        for k, at in enumerate(before):
            point[k] = torch.where(relaxation.open[at], point[k] * dual.reach(at), dual.start()[k])
        dual.project(point)
        value, gradients = dual.evaluate(point)
        slopes, betas = dual.named(point)
        torch.testing.assert_close(value, relaxation.backward(node, cost, slopes, betas).value)
        assert dual.trace is not None
        for k, at in enumerate(before):
            if at not in relaxation.curves:
                continue
            # Of shares, gradients are those of a line from end to end; the middle may be anywhere between.
            own, side = relaxation.curves[at], dual.trace.upper[at]
            least, middle, most = (
                torch.lerp(getattr(own.below, n), getattr(own.above, n), side) for n in ("least", "middle", "most")
            )
            share = torch.where(point[k] < SHARES / 2, middle - least, most - middle) * 2 / own.span(side)
            gradients[k] = gradients[k] * share.nan_to_num(0.0)
        step = 1e-6
        along = [torch.randn(p.shape, generator=g, dtype=p.dtype) * (q != 0) for p, q in zip(point, gradients, strict=True)]
        ends = [dual.evaluate([p + sign * step * d for p, d in zip(point, along, strict=True)])[0] for sign in (1, -1)]
        slope = sum((d * q).flatten(1).sum(1) for d, q in zip(along, gradients, strict=True))
        assert isinstance(slope, Tensor)
        torch.testing.assert_close((ends[0] - ends[1]) / (2 * step), slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sigmoid", "silu", "square"])
def test_nodes_of_the_search_bound_the_points_that_they_hold(name: str) -> None:
    """Cuts around the pre-activations of samples, and random multipliers: no value is above that of the sample."""
    network = mixed(name, 10)
    lower, upper = unit_box(network, 11)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    rows, right = torch.eye(2).double(), torch.zeros(2).double()
    splits = ReluSplits(relaxation, rows, right, 3, lambda x: None)
    g = torch.Generator().manual_seed(12)
    x = samples(lower, upper, 30)
    results = network.run(x)
    z = torch.cat([results[network.ops[at].inputs[0]].flatten(1)[:, splits.free[at]] for at in splits.relus], 1)
    bent = ~splits.cuts.smooth
    chosen = torch.rand(z.shape, generator=g) < 0.3
    signs = (chosen * torch.where(bent, torch.where(z > 0, 1, -1), 1)).to(torch.int8)
    cuts = splits.cuts.root.repeat(len(x), 1, 1)
    inner = z[:, ~bent]
    room = torch.rand(2, *inner.shape, generator=g).double() * 0.3
    cut = chosen[:, ~bent]
    cuts[:, 0] = torch.where(cut, torch.maximum(cuts[:, 0], inner - room[0]), cuts[:, 0])
    cuts[:, 1] = torch.where(cut, torch.minimum(cuts[:, 1], inner + room[1]), cuts[:, 1])
    slopes, betas = torch.rand(z.shape, generator=g), 0.3 * torch.randn(z.shape, generator=g)
    betas = torch.where(bent, betas.abs() * signs, betas)
    specs = torch.arange(len(x)) % 2
    ends = splits.boxes.root.repeat(len(x), 1, 1)
    dual, start = splits.dual(splits.exact, specs, signs, cuts, slopes, betas, ends)
    value = dual.relaxation.backward(splits.node, dual.cost, *dual.named(start), charge=True).value
    truth = results[-1].gather(1, specs[:, None])[:, 0]
    assert bool((value <= truth + 1e-9).all())
    # What the search itself makes of these nodes.
    nodes = splits._bounded(specs.tolist(), signs, cuts, slopes, betas, ends, depths=[0] * len(x), parts=[None] * len(x), steps=3)
    assert all(node.bound <= y + 1e-9 for node, y in zip(nodes, truth.tolist(), strict=True))
    children = splits.expand([node for node in nodes if node.bound <= 0]).children
    assert all(bool((child.state.cuts[0] <= child.state.cuts[1]).all()) for child in children if child.state is not None)


@EVERY
@pytest.mark.parametrize("settings", [VerifySettings(), ACTIVATION_SPLITS])
def test_what_is_known_is_decided(name: str, settings: VerifySettings) -> None:
    """Planted counterexamples are found, by attack or by bounds; what a finer cover of the box proves, is proved."""
    network = smooth(name, 13, (2, 4, 3, 2))
    lower, upper = (end.float().double() for end in unit_box(network, 14, 0.3))
    y = network(samples(lower, upper, 4000))[:, 0]
    least, spread = float(y.min()), float(y.max() - y.min())
    ends = lower.numpy(), upper.numpy()
    planted = Property.of(*ends, [[1.0, 0.0]], [least + 0.02 * spread])
    found = verify(network, planted, timeout=20, settings=settings)
    assert found.status == "sat" and found.x is not None
    assert bool((torch.tensor(found.x).double() >= lower).all()) and bool((torch.tensor(found.x).double() <= upper).all())
    assert float(network(torch.tensor(found.x).double()[None])[0, 0]) <= least + 0.02 * spread + 1e-4
    true = Property.of(*ends, [[1.0, 0.0]], [least - 0.15 * spread])
    proved = verify(network, true, timeout=30, attack=False, settings=settings)
    assert proved.status == "unsat" and 0 < proved.bound <= 0.15 * spread + 1e-3


@pytest.mark.parametrize("settings", [VerifySettings(), ACTIVATION_SPLITS])
def test_searches_split_and_never_prove_what_is_false(settings: VerifySettings) -> None:
    network = smooth("tanh", 15, (3, 5, 4, 2), 1.5)
    lower, upper = unit_box(network, 16, 0.5)
    least = float(network(samples(lower, upper, 20000))[:, 0].min())
    ends = lower.numpy(), upper.numpy()
    bound = float(network_bounds(network, lower, upper).output.lower[0])
    assert bound < least - 0.7
    between = verify(network, Property.of(*ends, [[1.0, 0.0]], [least - 0.7]), timeout=60, attack=False, settings=settings)
    assert between.status == "unsat" and between.nodes > 0
    false = verify(network, Property.of(*ends, [[1.0, 0.0]], [least + 1e-3]), timeout=0.4, attack=False, settings=settings)
    assert false.status != "unsat"


@pytest.mark.parametrize(("name", "method"), [("sigmoid", "admm"), ("gelu", "proxfw")])
def test_methods_of_the_engine_run_on_smooth_layers(name: str, method: str) -> None:
    """Their bounds are valid; they begin at the value of a backward pass, and end at the optimum that an ascent finds."""
    network = smooth(name, 17, (3, 5, 4, 2))
    lower, upper = unit_box(network, 18)
    y = network(samples(lower, upper, 2000))
    found = network_bounds(network, lower, upper, method=method, steps=10).output
    assert bool((found.lower <= y.amin(0)).all()) and bool((y.amax(0) <= found.upper).all())

    relaxation, node, before = network_bounds(network, lower, upper, method="crown").relaxation, len(network.ops) - 1, [2, 4]
    cost, start = torch.eye(2).double(), relaxation.start(before, 2)
    result = intervals(network, lower[None], upper[None], relaxation.bounds, node)[node]
    planet = Planet.build(relaxation, node, cost, result, start)
    first = planet.model.solve(method=method, passes=1, warm_start=planet.start).safe_bound
    assert bool((first >= relaxation.backward(node, cost, start).value - 1e-6).all())
    if name == "sigmoid":
        dual = SlopeDual(relaxation, node, cost, before, {})
        best = planet.model.solve(method=WEIGHTED[method], passes=150, warm_start=planet.start).safe_bound
        torch.testing.assert_close(best, ascend(dual, dual.start(), 150).value, rtol=2e-3, atol=2e-3)


def test_several_boxes_and_images() -> None:
    network = smooth("tanh", 19, (4, 6, 5, 3))
    centres = torch.rand(3, 4, generator=torch.Generator().manual_seed(20), dtype=torch.float64)
    several = network_bounds(network, (centres - 0.1).clamp(0, 1), (centres + 0.1).clamp(0, 1), method="crown").output
    for k, centre in enumerate(centres):
        alone = network_bounds(network, (centre - 0.1).clamp(0, 1), (centre + 0.1).clamp(0, 1), method="crown").output
        torch.testing.assert_close(several.lower[k], alone.lower, rtol=1e-9, atol=1e-9)
    labels = network(centres).argmax(1).numpy()
    found = robust_accuracy(network, centres.numpy(), labels, 0.02, timeout=20)
    assert found.natural == 1 and found.verified == 1
    for result in found.results:
        near = samples(centres[result.image] - 0.02, centres[result.image] + 0.02, 500).clamp(0, 1)
        margins = network(near)
        own = margins[:, result.label].clone()
        margins[:, result.label] = -torch.inf
        assert result.bound <= float((own - margins.amax(1)).min()) + 1e-9


def after_each_other(*activations: nn.Module) -> Network:
    torch.manual_seed(23)
    return from_torch(nn.Sequential(nn.Linear(3, 5), *activations, nn.Linear(5, 2)), (3,))


AFTER_EACH_OTHER = {
    "mish": lambda: after_each_other(nn.Mish()),
    "twice the same": lambda: after_each_other(nn.ReLU(), nn.ReLU()),
    "relu and tanh": lambda: after_each_other(nn.ReLU(), nn.Tanh()),
    "sigmoid and tanh": lambda: after_each_other(nn.Sigmoid(), nn.Tanh()),
    "flattened between": lambda: after_each_other(nn.ReLU(), nn.Flatten(), nn.ReLU()),
    "of the input": lambda: from_torch(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), (3,)),
    "two of one result": lambda: from_torch(applied(lambda x: F.relu(2 * x - 0.5) + torch.tanh(2 * x - 0.5), 3), (3,)),
    "last": lambda: from_torch(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh()), (3,)),
}


@pytest.mark.parametrize("name", AFTER_EACH_OTHER)
def test_activations_after_each_other_have_models(name: str) -> None:
    network = AFTER_EACH_OTHER[name]()
    lower, upper = unit_box(network, 24, 1.0)
    outputs, plain = network(samples(lower, upper, 2000)), network_bounds(network, lower, upper, method="interval").output
    for method in ("admm", "proxfw", "adam"):
        found = network_bounds(network, lower, upper, method=method, steps=20).output
        assert bool((found.lower <= outputs.amin(0)).all() and (outputs.amax(0) <= found.upper).all()), method
        assert bool((plain.lower <= found.lower).all() and (found.upper <= plain.upper).all()), method
    bounds = network_bounds(network, lower, upper)
    least = bounds.model([1.0, 0.0]).solve(tol=1e-5, passes=1000).bound.item()
    assert bounds.output.lower[0].item() - 1e-3 <= least <= outputs[:, 0].min().item()


@pytest.mark.parametrize("name", ["relu and tanh", "two of one result"])
def test_models_start_from_the_value_of_a_backward_pass(name: str) -> None:
    network = AFTER_EACH_OTHER[name]()
    lower, upper = unit_box(network, 25, 1.0)
    relaxation, node = network_bounds(network, lower, upper, method="crown").relaxation, len(network.ops) - 1
    cost, slopes = torch.eye(2, dtype=torch.float64), relaxation.start(list(network.activations), 2)
    result = intervals(network, relaxation.lower, relaxation.upper, relaxation.bounds, node)[node]
    planet = Planet.build(relaxation, node, cost, result, slopes)
    first = planet.model.solve(method="supergradient", warm_start=planet.start, passes=1).bound
    torch.testing.assert_close(first, relaxation.backward(node, cost, slopes).value, rtol=1e-9, atol=1e-9)


def test_what_is_not_covered_is_refused() -> None:
    network = smooth("sigmoid", 21)
    lower, upper = unit_box(network, 22)
    prop = Property.of(lower.numpy(), upper.numpy(), [[1.0, 0.0]], [-100.0])
    with pytest.raises(OptionError, match="proofs are of networks of ReLUs"):
        verify(network, prop, proof=True)
    with pytest.raises(FormatError, match=r"has smooth activations.*proofs are of ReLUs and boxes"):
        check_proof(network, prop, [])
    with pytest.raises(OptionError, match="'exact' bounds piecewise-linear networks alone"):
        network_bounds(network, lower, upper, method="exact")
    with pytest.raises(ModelError, match="smooth: the rounding of sigmoid in float32 is not known"):
        network.in_float32()


def test_numbers_beyond_float64_leave_valid_bounds() -> None:
    b = Builder((1,))
    large, larger = (torch.tensor([[v]], dtype=torch.float64) for v in (1e200, 1e300))
    at = b.smooth(b.linear(0, large), CURVES["sigmoid"])
    b.linear(b.smooth(b.linear(at, larger), CURVES["softplus"]), larger)
    bounds = network_bounds(b.build(), -torch.ones(1), torch.ones(1)).output
    assert float(bounds.lower) <= 0 and float(bounds.upper) == torch.inf


# Name: operator set, module, the curves that it is read as.
EXPORTED: dict[str, tuple[int, Callable[[], nn.Module], list[str]]] = {
    "sigmoid": (13, lambda: between(nn.Sigmoid()), ["sigmoid"]),
    "tanh": (9, lambda: between(nn.Tanh()), ["tanh"]),
    "softplus": (13, lambda: between(nn.Softplus()), ["softplus"]),
    "sharp softplus": (17, lambda: between(nn.Softplus(beta=3.0)), ["softplus"]),
    "silu": (13, lambda: between(nn.SiLU()), ["silu"]),
    "gelu as error function": (13, lambda: between(nn.GELU()), ["gelu"]),
    "gelu": (20, lambda: between(nn.GELU()), ["gelu"]),
    "gelu by tanh": (20, lambda: between(nn.GELU(approximate="tanh")), ["square", "square", "square", "tanh", "square", "square"]),
    "erf": (14, lambda: applied(torch.erf), ["erf"]),
    "mish": (18, lambda: between(nn.Mish()), ["softplus", "tanh", "square", "square"]),
    "hard swish": (14, lambda: between(nn.Hardswish()), ["square", "square"]),
    "tanh shrinkage": (13, lambda: between(nn.Tanhshrink()), ["tanh"]),
    "gated": (13, lambda: applied(F.glu, 3), ["sigmoid", "square", "square"]),
    "swish with a factor": (13, lambda: applied(lambda x: 2 * x * torch.sigmoid(1.5 * x)), ["silu"]),
    "product": (
        13,
        lambda: Function(lambda x, a, b, c: c(a(x) * b(x)), nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, 2)),
        ["square"] * 2,
    ),
    "square": (13, lambda: applied(lambda x: x**2 + x * x), ["square", "square"]),
    "sigmoid on images": (
        13,
        lambda: nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2), last(18)),
        ["sigmoid"],
    ),
}

# As the exporter of torch 2.13 with dynamo=True writes them.
GRAPHS: dict[str, tuple[int, str, list[str]]] = {
    "silu": (
        18,
        """g (float[1,4] x, float[3,4] w, float[2,3] v) => (float[] y) {
          linear = Gemm <transB = 1> (x, w)
          val_0 = Sigmoid (linear)
          silu = Mul (linear, val_0)
          y = Gemm <transB = 1> (silu, v)
        }""",
        ["silu"],
    ),
    "gelu": (
        18,
        """g (float[1,4] x, float[3,4] w, float[2,3] v) => (float[] y)
             <float c = {0.70710677}, float one = {1.0}, float half = {0.5}> {
          linear = Gemm <transB = 1> (x, w)
          val_0 = Mul (linear, c)
          val_1 = Erf (val_0)
          val_2 = Add (val_1, one)
          val_3 = Mul (half, val_2)
          gelu = Mul (linear, val_3)
          y = Gemm <transB = 1> (gelu, v)
        }""",
        ["gelu"],
    ),
    "swish": (24, "g (float[1,4] x) => (float[] y) { y = Swish <alpha = 1.5> (x) }", ["silu"]),
    "cube": (15, "g (float[1,4] x) => (float[] y) <float three = {3.0}> { y = Pow (x, three) }", ["square"] * 3),
}


def exported(name: str, path: Path) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(len(name))
    opset, make, _ = EXPORTED[name]
    module, shape = make().eval(), (3, 6, 6) if "images" in name else (6,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.zeros(1, *shape),), str(path), opset_version=opset, dynamo=False)
    return module, shape


def curves_of(network: Network) -> list[str]:
    return [op.curve.name for op in network.ops if isinstance(op, SmoothActivation)]


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_networks_are_read_and_right(tmp_path: Path, name: str) -> None:
    module, shape = exported(name, tmp_path / "net.onnx")
    network, runtime = load_onnx(tmp_path / "net.onnx", MAX_BYTES, Deadline(60))
    assert curves_of(network) == EXPORTED[name][2]
    g = torch.Generator().manual_seed(3)
    x = 2 * torch.randn(20, *shape, generator=g)
    y = runtime(x.flatten(1).numpy()).reshape(20, -1)
    np.testing.assert_allclose(network(x.double()).numpy(), y, rtol=1e-4, atol=1e-5 * np.abs(y).max())
    own = from_torch(module, shape)
    assert curves_of(own) == EXPORTED[name][2]
    with torch.no_grad():
        truth = torch.stack([module.double()(point[None]).flatten() for point in x.double()])
    torch.testing.assert_close(own(x.double()), truth, rtol=1e-7, atol=1e-7)

    lower = torch.full(shape, -0.3, dtype=torch.float64)
    bounds = network_bounds(network, lower, -lower, method="crown").output
    inside = runtime(samples(lower, -lower, 60).flatten(1).float().numpy()).reshape(60, -1)
    assert bool((bounds.lower.numpy() - 1e-4 <= inside).all()) and bool((inside <= bounds.upper.numpy() + 1e-4).all())
    ends = np.full(network.inputs, -0.3), np.full(network.inputs, 0.3)
    sat = Property.of(*ends, [[1.0, 0.0]], [float(np.median(inside[:, 0]))])
    verdict = verify(network, sat, runtime=runtime, timeout=20)
    assert verdict.status == "sat" and verdict.x is not None and sat.violated(verdict.x, runtime(verdict.x)) is not None


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_are_read_and_right(tmp_path: Path, name: str) -> None:
    opset, text, curves = GRAPHS[name]
    onnx.save(filled(text, opset), tmp_path / "net.onnx")
    network = load_onnx(tmp_path / "net.onnx", MAX_BYTES, Deadline(60))[0]
    assert curves_of(network) == curves


def test_products_that_only_look_gated_are_products() -> None:
    """Another factor, a shift, another gate: squares, and right (each network is compared with its module when it is read)."""
    modules: list[Callable[[Tensor], Tensor]] = [
        lambda x: (x + 1) * torch.sigmoid(x),
        lambda x: x * torch.sigmoid(x + 1),
        lambda x: x * (1 + torch.sigmoid(x)),
        lambda x: x * (1 - torch.erf(x)),
        lambda x: x * torch.sigmoid(x.flip(1)),
        lambda x: F.relu(x) * torch.tanh(x),
    ]
    for function in modules:
        network = from_torch(applied(function), (6,))
        assert curves_of(network).count("square") == 2
        assert any(isinstance(op, Add) for op in network.ops) and any(isinstance(op, Scale) for op in network.ops)
