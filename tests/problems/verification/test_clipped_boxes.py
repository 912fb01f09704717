"""Boxes of nodes, clipped to where counterexamples may be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from blocklp.problems.verification import Property, VerifySettings, network_bounds, verify
from blocklp.problems.verification.clipped_boxes import MOST_INPUTS, ClippedBoxes
from blocklp.problems.verification.network import Builder
from blocklp.problems.verification.operations import Linear
from tests.problems.verification_networks import dense, unit_box

SIZES = (6, 12, 8, 2)


def boxes(seed: int) -> tuple[ClippedBoxes, torch.Tensor]:
    """Boxes of a network, and points of the box at the root."""
    network = dense(seed, SIZES)
    lower, upper = unit_box(network, seed)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    free = {r: relaxation.open[r].flatten().nonzero()[:, 0] for r in network.relus}
    draw = torch.rand(4000, SIZES[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ClippedBoxes(relaxation, free, True), torch.lerp(lower, upper, draw)


@pytest.mark.parametrize("seed", range(3))
def test_clipping_keeps_every_point_where_the_function_is_not_above_zero(seed: int) -> None:
    clipped, x = boxes(seed)
    cost = torch.randn(20, SIZES[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cost[:, 0] = 0.0  # an input that does not count
    lower, upper = (end.flatten() for end in clipped.box(clipped.root[None]))
    width = (cost.abs() * (upper - lower)).sum(1)
    room = 0.1 * width
    ends = clipped.clip(clipped.root.repeat(20, 1, 1), cost, -room)
    low, high = clipped.box(ends)
    least = torch.where(cost > 0, lower, upper)
    kept = ((x[:, None] - least) * cost).sum(2) <= room
    inside = ((x[:, None] >= low) & (x[:, None] <= high)).all(2)
    assert bool(kept.any())
    assert bool((inside | ~kept).all())
    assert bool((inside.sum(0) < len(x)).all())
    assert bool((low[:, 0] == lower[0]).all() and (high[:, 0] == upper[0]).all())
    # The first layer's bounds are those of what is left.
    (relu,) = clipped.first
    first = clipped.relaxation.network.ops[relu - 1]
    assert isinstance(first, Linear)
    weight, bias = first.weight, first.bias
    z = first(x)
    bounds = clipped.bounds(relu, ends)
    assert bounds is not None
    inner = clipped.bounds(relu, clipped.clip(clipped.root.repeat(20, 1, 1), cost, -room, within=True))
    assert inner is not None
    for k in range(20):
        assert bool(((z >= inner[0][k]) & (z <= inner[1][k]))[kept[:, k]].all())
        # Each end is an LP over the box and the constraint.
        neuron, most = k % SIZES[1], float((least[k] * cost[k]).sum() + room[k])
        for sign, side in ((1, 0), (-1, 1)):
            found, without = (sign * float(own[side][k, neuron]) for own in (inner, bounds))
            box = list(zip(lower.tolist(), upper.tolist(), strict=True))
            lp = linprog(sign * weight[neuron].numpy(), cost[k][None].numpy(), [most], bounds=box)
            value = lp.fun + sign * float(bias[neuron])
            assert value - 0.25 * (value - without) - 1e-9 <= found <= value + 1e-9
        assert bool(((z >= bounds[0][k]) & (z <= bounds[1][k]))[inside[:, k]].all())


@pytest.mark.parametrize("sign", [1, -1])
def test_a_split_keeps_the_points_of_its_sign_and_says_what_follows(sign: int) -> None:
    clipped, x = boxes(1)
    (relu,) = clipped.first
    free = clipped.free[relu]
    z = clipped.relaxation.network.run(x)[clipped.relaxation.network.ops[relu].inputs[0]]
    ends = clipped.split(clipped.root.repeat(len(free), 1, 1), [relu] * len(free), free.tolist(), sign)
    total = sum(len(own) for own in clipped.free.values())
    start = sum(len(own) for r, own in clipped.free.items() if r < relu)
    signs = torch.zeros(len(free), total, dtype=torch.int8)
    signs[torch.arange(len(free)), start + torch.arange(len(free))] = sign
    low, high = clipped.box(ends)
    found, empty = clipped.implied(ends, signs)
    assert not bool(empty.any())
    inside = ((x[:, None] >= low) & (x[:, None] <= high)).all(2)
    for k, neuron in enumerate(free.tolist()):
        own = sign * z[:, neuron] >= 0
        assert bool(inside[own, k].all())
        told = found[k, start : start + len(free)]
        assert bool((told * z[own][:, free] >= 0).all())
    # The other sign within what is left by a sign that is certain is impossible.
    certain = torch.where(torch.arange(2)[:, None] == 0, 1, -1).to(torch.int8).expand(2, total)
    point = x[:1].expand(2, -1)
    _, empty = clipped.implied(clipped.ends(point, point), certain)
    assert bool(empty.all())  # of several neurons some are on and some are off there


def test_in_float32_the_first_layer_keeps_what_rounding_adds() -> None:
    clipped, x = boxes(0)
    network = clipped.relaxation.network.in_float32()
    lower, upper = clipped.box(clipped.root[None])
    relaxation = network_bounds(network, lower[0], upper[0], method="crown").relaxation
    rounded = ClippedBoxes(relaxation, clipped.free, True)
    (relu,) = rounded.first
    real = network.ops[relu - 1]
    assert isinstance(real, Linear)
    point = x[:50].float().double()
    cost = torch.randn(50, SIZES[0], generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = rounded.bounds(relu, rounded.clip(rounded.ends(point, point), cost, torch.zeros(50).double(), within=True))
    assert found is not None
    z = real(point)  # float32 loses some 1e-7 of it
    assert bool((found[0] < z - 1e-9).all() and (found[1] > z + 1e-9).all())


def test_networks_of_many_inputs_and_proofs_keep_their_boxes() -> None:
    network = dense(2, (101, 4, 2))
    lower, upper = unit_box(network, 2)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    free = {r: relaxation.open[r].flatten().nonzero()[:, 0] for r in network.relus}
    assert not ClippedBoxes(relaxation, free, True).on
    assert ClippedBoxes(relaxation, free, False).root.shape == (2, 0)


def test_clipping_changes_no_verdict_and_spares_nodes() -> None:
    """A network of few inputs is clipped, and one with others that nothing depends on is not."""
    network = dense(5, (24, 40, 2))
    lower, upper = unit_box(network, 5, 0.15)
    row = np.array([[1.0, -1.0]])
    assert network.inputs > VerifySettings().few_inputs
    crown = float(network_bounds(network.followed_by(torch.tensor(row), torch.zeros(1)), lower, upper).output.lower)
    nodes = []
    for more in (0, MOST_INPUTS):
        builder, (first, second) = Builder((24 + more,)), [op for op in network.ops if isinstance(op, Linear)]
        hidden = builder.relu(builder.linear(0, torch.nn.functional.pad(first.weight, (0, more)), first.bias))
        builder.linear(hidden, second.weight, second.bias)
        ends = [np.pad(end.numpy(), (0, more)) for end in (lower, upper)]
        props = [Property.of(*ends, row, np.array([crown + shift])) for shift in (6.0, 8.0)]
        found = [verify(builder.build(), prop, timeout=60) for prop in props]
        assert [verdict.status for verdict in found] == ["unsat", "sat"]
        nodes.append(found[0].nodes)
    assert nodes[0] < nodes[1]
