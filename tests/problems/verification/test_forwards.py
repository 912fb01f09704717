"""What searches over inputs do before any backward pass: one ReLU for two of opposite arguments, and affine forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blocklp.deadline import Deadline
from blocklp.errors import ModelError
from blocklp.oracles.curves import CURVES
from blocklp.problems.verification import Property, verify
from blocklp.problems.verification.affine_forms import AffineForms
from blocklp.problems.verification.merging import merged
from blocklp.problems.verification.network import Builder, Network
from blocklp.problems.verification.operations import Relu
from blocklp.problems.verification.tightener import intervals
from tests.problems.verification_networks import all_kinds, dense, unit_box


def relus(network: Network) -> int:
    return sum(op.shape[0] for op in network.ops if isinstance(op, Relu))


def smallest_of_two(signs: float = 1.0, share: float = 0.5) -> Network:
    """min(a, b) of two inputs as two-level lattices are exported: four ReLUs."""
    builder = Builder((2,), "smallest")
    rows = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]]) * signs
    hidden = builder.relu(builder.linear(0, rows, torch.tensor([0.5, -0.5, 0.25, -0.25])))
    builder.linear(hidden, torch.tensor([[1.0, -1.0, -1.0, -1.0]]) * share, torch.tensor([0.125]))
    return builder.build()


def test_a_minimum_of_four_relus_has_one_and_is_bounded_by_its_arguments() -> None:
    network = smallest_of_two()
    one = merged(network)
    assert (relus(network), relus(one)) == (4, 1)
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = x[:, 0] + 0.125, x[:, 1] + 0.375  # what the constants of the rows make of the inputs
    torch.testing.assert_close(one(x)[:, 0], torch.minimum(a, b) + 0.125, atol=1e-14, rtol=0)
    # Where only one argument counts the forms of the merged network know its slope; intervals lose a third of it.
    lower, upper = torch.tensor([[0.0, 2.0]]).double(), torch.tensor([[1.0, 3.0]]).double()
    bounds = {}
    for relu in one.relus:
        bounds[relu] = intervals(one, lower, upper, bounds, one.ops[relu].inputs[0])[-1]
    low, high = AffineForms(one, lower, upper, Deadline()).at(len(one.ops) - 1, bounds.__getitem__).ends()
    assert float(low) == pytest.approx(0.25, abs=1e-12)
    assert float(high) == pytest.approx(1.25, abs=1e-12)


def test_a_number_written_by_two_relus_needs_none() -> None:
    builder = Builder((3,), "identity")
    rows = torch.tensor([[1.0, 0.0, -2.0], [-1.0, 0.0, 2.0]])
    builder.linear(builder.relu(builder.linear(0, rows)), torch.tensor([[3.0, -3.0]]))
    network = builder.build()
    one = merged(network)
    assert not one.relus
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(one(x)[:, 0], 3 * (x[:, 0] - 2 * x[:, 2]), atol=1e-13, rtol=0)


def test_networks_without_opposites_or_with_weights_that_would_be_rounded_stay_as_they_are() -> None:
    for network in (dense(0), smallest_of_two(signs=1 / 3), smallest_of_two(share=0.3)):
        assert merged(network) is network
    shared = Builder((2,), "arguments used twice")
    at = shared.linear(0, torch.tensor([[1.0, 2.0], [-1.0, -2.0]]))
    shared.add(shared.linear(shared.relu(at), torch.eye(2)), at)
    assert relus(merged(shared.build())) == 2


@pytest.mark.parametrize("float32", [False, True])
def test_affine_forms_hold_at_all_points_and_are_exact_before_the_first_relu(float32: bool) -> None:
    better = 0
    for network in all_kinds(range(3)):
        real, network = network, network.in_float32() if float32 else network
        lower, upper = unit_box(network, 5)
        bounds = {}
        draw = torch.rand(300, *network.input_shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        x = torch.lerp(lower, upper, draw.round() if float32 else draw)
        results = real.to(torch.float32).run(x.float()) if float32 else real.run(x)
        forms = AffineForms(network, lower[None], upper[None], Deadline())
        for number, relu in enumerate(network.relus):
            node = network.ops[relu].inputs[0]
            low, high = intervals(network, lower[None], upper[None], bounds, node)[node]
            below, above = forms.at(node, bounds.__getitem__).ends()
            assert (below <= results[node]).all()
            assert (results[node] <= above).all()
            if number == 0 and len(network.ancestors(node)) == 2:
                torch.testing.assert_close(below, low, atol=1e-5 if float32 else 1e-12, rtol=0)
            bounds[relu] = low, high
            better += int((below > low).sum())
    assert better > 20


def test_affine_forms_say_that_they_know_no_smooth_activation() -> None:
    builder = Builder((2,), "curved")
    builder.linear(builder.smooth(builder.linear(0, torch.eye(2)), CURVES["tanh"]), torch.eye(2))
    network = builder.build()
    forms = AffineForms(network, *(end[None] for end in unit_box(network, 0)), Deadline())
    with pytest.raises(ModelError, match="smooth"):
        forms.at(len(network.ops) - 1, lambda at: pytest.fail("no bounds are asked for"))


def test_opposites_in_consecutive_layers_are_the_same_function() -> None:
    builder = Builder((1,), "two layers of opposites")
    first = builder.relu(builder.linear(0, torch.tensor([[1.0], [-1.0]])))
    second = builder.relu(builder.linear(first, torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), torch.tensor([-0.5, 0.5])))
    builder.linear(second, torch.tensor([[1.0, 1.0]]))
    network = builder.build()
    one = merged(network)
    assert relus(one) < relus(network) == 4
    x = torch.linspace(-2, 2, 101, dtype=torch.float64)[:, None]
    torch.testing.assert_close(one(x), (x.abs() - 0.5).abs(), atol=1e-14, rtol=0)


@pytest.mark.parametrize("largest", [1e300, 1.7e308])
def test_bounds_at_the_end_of_float64_lose_nothing(largest: float) -> None:
    """The width of an argument's bounds overflows, each of which is finite."""
    builder, at = Builder((1,), "scaled up and down"), 0
    for factor in (1e150, largest / 1e150, None, 1e-150, 1e150 / largest):
        at = builder.relu(at) if factor is None else builder.linear(at, torch.tensor([[factor]], dtype=torch.float64))
    network = builder.build()
    assert float(network(torch.ones(1, 1, dtype=torch.float64))) == pytest.approx(1.0)
    box = torch.tensor([[-1.0]]).double(), torch.tensor([[1.0]]).double()
    forms, node = AffineForms(network, *box, Deadline()), len(network.ops) - 1
    high = forms.at(node, lambda relu: forms.at(network.ops[relu].inputs[0], lambda _: box).ends()).ends()[1]
    assert float(high) >= 1.0
    prop = Property.of(np.array([-1.0]), np.array([1.0]), np.array([[-1.0]]), np.array([-0.5]))
    assert verify(network, prop, timeout=0.5, attack=False).status != "unsat"
