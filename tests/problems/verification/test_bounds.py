"""Bounds of neurons against sampled activations and HiGHS."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.problems.verification import Network, network_bounds
from blocklp.problems.verification.bounds import ENGINE, STEPS
from blocklp.problems.verification.exact import exact_bounds, planet_lp
from blocklp.problems.verification.network import Builder
from blocklp.problems.verification.operations import Affine, Conv, Linear, Sparse
from blocklp.problems.verification.planet import Planet
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.slopes import MixedDual, SlopeDual
from blocklp.problems.verification.tightener import intervals
from blocklp.problems.verification.windows import window_sizes

from ..verification_networks import all_kinds, conv, dense, residual, unit_box

NETWORKS = all_kinds(range(3))


def samples(network: Network, lower: torch.Tensor, upper: torch.Tensor, count: int = 2000) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = lower + (upper - lower) * torch.rand(count, *lower.shape, generator=g, dtype=torch.float64)
    corners = torch.where(torch.rand(count, *lower.shape, generator=g) < 0.5, lower, upper)
    return network.run(torch.cat([x, corners]))


def escaped(network: Network, checked: Network, lower: torch.Tensor, upper: torch.Tensor, method: str) -> bool:
    """Whether some activation of ``checked`` leaves the bounds computed for ``network``."""
    bounds = network_bounds(network, lower, upper, method=method)
    results = samples(checked, lower, upper)
    nodes = [network.ops[r].inputs[0] for r in network.relus] + [len(network.ops) - 1]
    return any(
        bool((results[at] < layer.lower).any() or (results[at] > layer.upper).any())
        for at, layer in zip(nodes, bounds.layers, strict=True)
    )


PAIRS = [
    (network, method)
    for j, method in enumerate(m for m in STEPS if m != "exact")
    for k, network in enumerate(NETWORKS)
    if method not in ENGINE or (j + k // 3 + k) % 3 == 0
]
"""All networks by all methods; by the engine's, which take longest, one of each kind, and each network by a third of them."""


@pytest.mark.parametrize(("network", "method"), PAIRS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_no_activation_leaves_the_bounds(network: Network, method: str) -> None:
    lower, upper = unit_box(network, 1)
    assert not escaped(network, network, lower, upper, method)


def mutants(network: Network) -> list[Network]:
    """The network with one bias dropped, one weight's sign flipped, or two axes swapped."""
    found = []
    for at, op in enumerate(network.ops):
        if isinstance(op, (Linear, Conv, Sparse)):
            flipped = op.weight.clone()
            flipped.view(-1)[flipped.abs().argmax()] *= -1
            changed = [replace(op, weight=flipped)] + [replace(op, bias=torch.zeros_like(op.bias))] * bool(op.bias.any())
            if isinstance(op, Conv) and op.weight.shape[2] == op.weight.shape[3]:
                changed.append(replace(op, weight=op.weight.transpose(2, 3).contiguous()))
            found += [replace(network, ops=(*network.ops[:at], c, *network.ops[at + 1 :])) for c in changed]
    return found


@pytest.mark.parametrize("network", [dense(0), conv(0), residual(10)], ids=lambda n: n.name)
def test_the_samples_catch_every_mutation(network: Network) -> None:
    lower, upper = unit_box(network, 1, 0.05)
    assert all(escaped(mutant, network, lower, upper, "slopes") for mutant in mutants(network))


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
def test_slopes_reach_the_lp_and_never_cross_it(network: Network) -> None:
    lower, upper = unit_box(network, 2)
    crown = network_bounds(network, lower, upper, method="crown")
    found = network_bounds(network, lower, upper, steps=400, gap=True)
    open_, left = 0.0, 0.0
    for k, layer in enumerate(found.layers):
        relu = network.relus[k] if k < len(network.relus) else None
        node = network.ops[relu].inputs[0] if relu is not None else len(network.ops) - 1
        before = {r: (low[0], high[0]) for r, (low, high) in found.relaxation.bounds.items() if r < node}
        wanted = ((layer.lower < 0) & (layer.upper > 0) if relu is not None else layer.lower > -math.inf).flatten().nonzero()[:, 0]
        if not len(wanted) or not before:
            continue
        low, high = (torch.tensor(t) for t in exact_bounds(network, lower, upper, before, node, wanted.tolist()))
        mine_low, mine_high = layer.lower.flatten()[wanted], layer.upper.flatten()[wanted]
        scale = 1e-7 * (1 + low.abs() + high.abs())
        assert bool((mine_low <= low + scale).all() and (mine_high >= high - scale).all())
        assert layer.gap is not None
        gap = layer.gap.flatten(1)[:, wanted]
        # The primal points are feasible: bound + gap is on the other side of the optimum.
        assert bool((mine_low + gap[0] >= low - scale).all() and (mine_high - gap[1] <= high + scale).all())
        old = crown.layers[k]
        left += float((low - mine_low).sum() + (mine_high - high).sum())
        open_ += float(
            (low - old.lower.flatten()[wanted]).clamp(min=0).sum() + (old.upper.flatten()[wanted] - high).clamp(min=0).sum()
        )
    assert left <= 0.05 * open_ + 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("network", NETWORKS[:6], ids=lambda n: n.name)
def test_charged_values_are_below_the_lp(network: Network, dtype: torch.dtype) -> None:
    """Also with wild slopes and betas, and in float32, where the charge matters."""
    lower, upper = unit_box(network, 3)
    base = network_bounds(network, lower, upper, method="crown")
    node = len(network.ops) - 1
    before = {r: (low[0], high[0]) for r, (low, high) in base.relaxation.bounds.items()}
    c = torch.randn(network.outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    optimum = planet_lp(network, lower, upper, before, node).minimise(c).value
    # Rounding the boxes outwards keeps the LP's optimum above.
    eps = torch.finfo(torch.float32).eps
    wider = {r: (low - eps * low.abs(), high + eps * high.abs()) for r, (low, high) in base.relaxation.bounds.items()}
    relaxation = Relaxation(
        network,
        lower[None] - eps * lower.abs(),
        upper[None] + eps * upper.abs(),
        wider if dtype == torch.float32 else base.relaxation.bounds,
    ).to(dtype)
    g = torch.Generator().manual_seed(5)
    slopes = {r: torch.rand(64, *network.ops[r].shape, generator=g).to(dtype) for r in network.relus}
    fixed = relaxation.start(list(network.relus), 64)
    slopes = {r: torch.where(relaxation.open[r], slopes[r], fixed[r]) for r in network.relus}
    cost = c.to(dtype).view(1, *network.ops[node].shape).expand(64, *network.ops[node].shape)
    assert torch.equal(cost[0].double().flatten(), c) or dtype == torch.float32
    value = relaxation.backward(node, cost, slopes, charge=True).value.double()
    slack = 0.0 if dtype == torch.float64 else float((cost[0].double().flatten() - c).abs().sum()) * 1e2
    assert bool((value <= optimum + 1e-7 * (1 + abs(optimum)) + slack).all())
    plain = relaxation.backward(node, cost, slopes).value.double()
    assert bool((value < plain).all())


def test_the_charge_covers_the_rounding_of_float32() -> None:
    """The same multipliers valued in float32 with the charge are below their value in float64."""
    for network in all_kinds(range(10)):
        lower, upper = unit_box(network, 6, 3.0)
        coarse = network.to(torch.float32)
        base = Relaxation(coarse, lower.float()[None], upper.float()[None], {})
        bounds = intervals(coarse.to(torch.float64), base.lower.double(), base.upper.double(), {}, len(network.ops) - 1)
        pairs = {r: tuple(b.float() for b in bounds[network.ops[r].inputs[0]]) for r in network.relus}
        single = Relaxation(coarse, base.lower, base.upper, pairs)
        double = single.to(torch.float64)
        slopes = single.start(list(network.relus), 1)
        cost = torch.randn(1, *network.ops[-1].shape, generator=torch.Generator().manual_seed(7))
        charged = single.backward(len(network.ops) - 1, cost, slopes, charge=True).value.double()
        true = double.backward(len(network.ops) - 1, cost.double(), {r: s.double() for r, s in slopes.items()}).value
        assert bool(charged <= true)


def test_windows_give_what_the_whole_network_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    from blocklp.problems.verification import Builder

    b = Builder((2, 12, 12))
    at = b.relu(b.conv(0, torch.randn(3, 2, 3, 3, generator=g) / 3, torch.randn(3, generator=g), (1, 2), (1, 1, 1, 1)))
    at = b.relu(b.conv(at, torch.randn(3, 3, 3, 2, generator=g) / 3, torch.randn(3, generator=g), (2, 1), (1, 0, 0, 2)))
    b.relu(b.conv(at, torch.randn(2, 3, 2, 2, generator=g) / 2, torch.randn(2, generator=g), (2, 2), (1, 1, 0, 0)))
    network = b.build()
    lower, upper = unit_box(network, 8, 0.3)
    assert all(window_sizes(network, network.ops[r].inputs[0]) is not None for r in network.relus[1:])
    windowed = network_bounds(network, lower, upper, steps=10)
    monkeypatch.setattr("blocklp.problems.verification.tightener.window_sizes", lambda *_: None)
    whole = network_bounds(network, lower, upper, steps=10)
    for one, other in zip(windowed.layers, whole.layers, strict=True):
        torch.testing.assert_close(one.lower, other.lower, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one.upper, other.upper, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("network", NETWORKS[:6], ids=lambda n: n.name)
@pytest.mark.parametrize("method", ["prox", "proxbc", "supergradient"])
def test_the_model_is_the_same_lp(network: Network, method: str) -> None:
    lower, upper = unit_box(network, 9)
    base = network_bounds(network, lower, upper, method="crown")
    relaxation, node = base.relaxation, len(network.ops) - 1
    cost = torch.eye(network.outputs, dtype=torch.float64).view(-1, *network.ops[node].shape)
    slopes = relaxation.start(list(network.relus), len(cost))
    start = relaxation.backward(node, cost, slopes).value
    planet = Planet.build(relaxation, node, cost, (base.output.lower[None], base.output.upper[None]), slopes)
    first = planet.model.solve(method=method, warm_start=planet.start, passes=1)
    torch.testing.assert_close(first.bound, start, rtol=1e-9, atol=1e-9)
    later = planet.model.solve(method=method, warm_start=planet.start, passes=60)
    before = {r: (low[0], high[0]) for r, (low, high) in relaxation.bounds.items()}
    lp = planet_lp(network, lower, upper, before, node)
    optimum = torch.tensor([lp.minimise(c.flatten()).value for c in cost])
    assert bool((later.bound <= optimum + 1e-7 * (1 + optimum.abs())).all())
    assert bool((later.safe_bound <= later.bound + 1e-12).all() and torch.isfinite(later.safe_bound).all())


def test_signs_tighten_and_contradictions_are_errors() -> None:
    network = dense(1)
    lower, upper = unit_box(network, 10, 0.8)
    plain = network_bounds(network, lower, upper)
    relu = network.relus[0]
    neuron = int(((plain.layers[0].lower < 0) & (plain.layers[0].upper > 0)).nonzero()[0])
    sign = torch.zeros(1, *network.ops[relu].shape)
    sign[0, neuron] = 1
    tight = network_bounds(network, lower, upper, signs={relu: sign}, known=plain)
    assert float(tight.layers[0].lower[neuron]) == 0
    results = samples(network, lower, upper)
    on = results[network.ops[relu].inputs[0]][:, neuron] >= 0
    for at, layer, loose in zip(
        (network.ops[network.relus[1]].inputs[0], len(network.ops) - 1), tight.layers[1:], plain.layers[1:], strict=True
    ):
        assert bool((results[at][on] >= layer.lower).all() and (results[at][on] <= layer.upper).all())
        assert bool((layer.lower >= loose.lower).all() and (layer.upper <= loose.upper).all())
    stable = int((plain.layers[0].upper < 0).nonzero()[0]) if bool((plain.layers[0].upper < 0).any()) else None
    if stable is not None:
        sign[0, stable] = 1
        with pytest.raises(ModelError, match="contradict"):
            network_bounds(network, lower, upper, signs={relu: sign})


def test_exact_is_what_it_says() -> None:
    network = dense(2)
    lower, upper = unit_box(network, 11)
    exact, slopes = (network_bounds(network, lower, upper, method=m) for m in ("exact", "slopes"))
    assert bool((exact.output.lower >= slopes.output.lower - 1e-7).all())
    assert not escaped(network, network, lower, upper, "slopes")


@pytest.mark.parametrize("solver", ["highs-ipm", "gurobi", "cvxpy"])
def test_all_lp_codes_agree(solver: str) -> None:
    pytest.importorskip({"gurobi": "gurobipy", "cvxpy": "cvxpy"}.get(solver, "highspy"))
    for network in (dense(2), residual(0)):
        lower, upper = unit_box(network, 11)
        highs, other = (network_bounds(network, lower, upper, method="exact", solver=s) for s in ("highs", solver))
        assert highs.unstable
        for one, two in zip(highs.layers, other.layers, strict=True):
            torch.testing.assert_close(one.lower, two.lower, rtol=0, atol=1e-6)
            torch.testing.assert_close(one.upper, two.upper, rtol=0, atol=1e-6)


def test_wrong_input_is_refused() -> None:
    network = dense(0)
    lower, upper = unit_box(network, 12)
    with pytest.raises(ShapeError, match="takes inputs"):
        network_bounds(network, lower[:2], upper)
    with pytest.raises(OptionError, match=r"network is .*; give a Network, as from_torch"):
        network_bounds(torch.nn.Linear(3, 2), lower, upper)
    with pytest.raises(ModelError, match="NaN"):
        network_bounds(network, lower, upper * math.nan)
    with pytest.raises(ModelError, match="empty"):
        network_bounds(network, upper, lower)
    with pytest.raises(OptionError, match="unknown"):
        network_bounds(network, lower, upper, method="magic")
    for steps in (0, 2.5):
        with pytest.raises(OptionError, match=r"steps is .*; it must be a positive integer"):
            network_bounds(network, lower, upper, steps=steps)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="lower: cannot read str as numbers"):
        network_bounds(network, "low", upper)
    with pytest.raises(OptionError, match=r"x is .*; give a tensor of inputs \(3,\) in torch.float64"):
        network(lower[None].numpy())
    with pytest.raises(OptionError, match=r"is in torch.float64, and x in torch.float32; give x.to\(torch.float64\)"):
        network(lower[None].float())
    with pytest.raises(OptionError, match=r"'simplex'; choose 'highs', .*'gurobi', 'cvxpy'"):
        network_bounds(network, lower, upper, method="exact", solver="simplex")


def test_boxes_may_be_arrays() -> None:
    network = dense(0)
    lower, upper = unit_box(network, 12)
    found, same = network_bounds(network, lower.numpy(), upper.tolist()), network_bounds(network, lower, upper)
    assert torch.equal(found.output.lower, same.output.lower) and torch.equal(found.output.upper, same.output.upper)


def test_boxes_may_require_gradients() -> None:
    network = dense(0)
    lower, upper = unit_box(network, 12)
    found, same = network_bounds(network, lower.clone().requires_grad_(), upper), network_bounds(network, lower, upper)
    assert torch.equal(found.output.lower, same.output.lower) and not found.output.lower.requires_grad


def test_known_bounds_may_be_a_relaxation_and_must_fit() -> None:
    network = dense(0)
    lower, upper = unit_box(network, 12)
    known = network_bounds(network, lower, upper, method="crown")
    half = (lower + upper) / 2
    found, same = (network_bounds(network, lower, half, known=given) for given in (known, known.relaxation))
    assert torch.equal(found.output.lower, same.output.lower)
    network_bounds(network, torch.stack([lower, half]), torch.stack([half, upper]), known=known)
    with pytest.raises(OptionError, match=r"known is .*; give what network_bounds\(network, lower, upper\) returns"):
        network_bounds(network, lower, upper, known={})  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="known bounds are those of another network"):
        network_bounds(dense(1), lower, upper, known=known)
    with pytest.raises(ModelError, match="known bounds are not those of a box that holds this one"):
        network_bounds(network, lower, upper + 0.1, known=known)
    with pytest.raises(ModelError, match="known bounds are those of real arithmetic"):
        network_bounds(network.in_float32(), lower, upper, known=known)


def test_a_deadline_leaves_valid_bounds() -> None:
    network = conv(3)
    lower, upper = unit_box(network, 13)
    bounds = network_bounds(network, lower, upper, time_limit=1e-6)
    results = samples(network, lower, upper)
    assert bool((results[-1] >= bounds.output.lower).all() and (results[-1] <= bounds.output.upper).all())


def test_mixes_are_projected_to_the_simplex_of_their_rows() -> None:
    network = dense(0)
    lower, upper = unit_box(network, 1)
    node = len(network.ops) - 1
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    g = torch.Generator().manual_seed(2)
    for rows in (1, 2, 5):
        given = torch.randn(50, rows, generator=g) * 10.0 ** torch.randint(-3, 4, (50, 1), generator=g)
        allowed = torch.rand(50, rows, generator=g) < 0.6
        allowed[:, 0] |= ~allowed.any(1)
        dual = MixedDual(SlopeDual(relaxation, node, given, list(network.relus), {}), allowed)
        mix = given.clone()
        dual.project([*SlopeDual(relaxation, node, given, list(network.relus), {}).start(), mix])
        assert bool((mix >= 0).all() and (mix[~allowed] == 0).all())
        torch.testing.assert_close(mix.sum(1), torch.ones(50))
        # Nearest: where the mix is above zero it is the given point less a constant, which elsewhere is no smaller.
        less = torch.where(allowed, given - mix, -math.inf)
        level = torch.where(mix > 0, less, -math.inf).amax(1, keepdim=True)
        scale = 1e-5 * (1 + given.abs().amax(1, keepdim=True))
        assert bool((less <= level + scale).all() and (less[mix > 0] >= (level - scale).expand_as(less)[mix > 0]).all())


def test_the_gradient_of_a_mix_is_that_of_its_value() -> None:
    network = residual(1)
    lower, upper = unit_box(network, 1)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    dual = SlopeDual(relaxation, len(network.ops) - 1, torch.zeros(1, 2).double(), list(network.relus), {})
    mixed, mix = MixedDual(dual, torch.ones(1, 2, dtype=torch.bool)), torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    value, gradients = mixed.evaluate([*dual.start(), mix])
    for k in range(2):
        step = 1e-7 * torch.eye(2, dtype=torch.float64)[k]
        ends = [mixed.evaluate([*dual.start(), mix + sign * step])[0] for sign in (1, -1)]
        assert float((ends[0] - ends[1]) / 2e-7) == pytest.approx(float(gradients[-1][0, k]), abs=1e-5)


def test_adjoints() -> None:
    g = torch.Generator().manual_seed(0)
    for network in NETWORKS[:3]:
        for op in network.ops:
            if isinstance(op, Affine):
                x = torch.randn(2, *op.source, generator=g, dtype=torch.float64)
                y = torch.randn(2, *op.shape, generator=g, dtype=torch.float64)
                np.testing.assert_allclose(float((op.linear(x) * y).sum()), float((x * op.adjoint(y)).sum()), rtol=1e-10)


def test_adjoints_of_convolutions_are_those_of_autograd() -> None:
    """Whatever stride, padding (beyond the kernel too), dilation and groups."""
    random, done = np.random.default_rng(0), 0
    while done < 300:
        groups, inner, outer = random.integers(1, [4, 3, 3]).tolist()
        size, kernel, stride, dilation = (tuple(random.integers(1, most, 2).tolist()) for most in (10, 6, 5, 4))
        padding = random.integers(0, 7, 4).tolist()
        builder = Builder((groups * inner, *size))
        weight = torch.from_numpy(random.normal(size=(groups * outer, inner, *kernel)))
        try:
            builder.conv(0, weight, None, stride, padding, dilation, groups)
        except ShapeError:
            continue
        op = builder.build().ops[1]
        assert isinstance(op, Conv)
        x = torch.from_numpy(random.normal(size=(2, *op.source))).requires_grad_()
        y = torch.from_numpy(random.normal(size=(2, *op.shape)))
        (op.linear(x) * y).sum().backward()
        torch.testing.assert_close(op.adjoint(y), x.grad, msg=str((size, kernel, stride, padding, dilation, groups)))
        done += 1


@pytest.mark.parametrize("network", NETWORKS[:6], ids=lambda n: n.name)
def test_the_forward_pass_gives_value_and_supergradients(network: Network) -> None:
    lower, upper = unit_box(network, 1)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    node, g = len(network.ops) - 1, torch.Generator().manual_seed(6)
    relus = list(network.relus)
    cost = torch.randn(3, *network.ops[node].shape, generator=g, dtype=torch.float64)
    split = {r: torch.randint(-1, 2, (3, *network.ops[r].shape), generator=g).double() * 0.3 for r in relus}
    dual = SlopeDual(relaxation, node, cost, relus, split)
    point = [torch.rand(p.shape, generator=g, dtype=p.dtype) for p in dual.start()]
    for k, r in enumerate(relus):
        point[k] = torch.where(relaxation.open[r], point[k], dual.start()[k])
        point[len(relus) + k] *= split[r].sign()
    value, gradients = dual.evaluate(point)
    slopes, betas = dual.named(point)
    torch.testing.assert_close(value, relaxation.backward(node, cost, slopes, betas).value)
    step = 1e-7
    along = [torch.randn(p.shape, generator=g, dtype=p.dtype) * (gradient != 0) for p, gradient in zip(point, gradients, strict=True)]
    ends = [dual.evaluate([p + sign * step * d for p, d in zip(point, along, strict=True)])[0] for sign in (1, -1)]
    slope = sum((d * gradient).flatten(1).sum(1) for d, gradient in zip(along, gradients, strict=True))
    assert isinstance(slope, torch.Tensor)
    torch.testing.assert_close((ends[0] - ends[1]) / (2 * step), slope, rtol=1e-5, atol=1e-6)


def test_a_network_keeps_its_copies() -> None:
    network = dense(0)
    single = network.to(torch.float32)
    assert single is network.to(torch.float32) and single.dtype == torch.float32 and network.dtype == torch.float64
