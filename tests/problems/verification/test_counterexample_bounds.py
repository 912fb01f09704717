"""Bounds over counterexamples and networks without dead neurons, against points of the box and the network as it was."""

from __future__ import annotations

import pytest
import torch

from blocklp.problems.verification import network_bounds
from blocklp.problems.verification.counterexample_bounds import bounds_at_counterexamples
from blocklp.problems.verification.network import Builder
from blocklp.problems.verification.operations import Conv, Sparse
from blocklp.problems.verification.pruning import pruned
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.search.best_first import branch_and_bound

from ..verification_networks import dense, unit_box


@pytest.mark.parametrize("seed", range(2))
def test_counterexamples_are_within(seed: int) -> None:
    """No point at which a row is at most zero leaves the bounds of its region, at the root and below a few splits."""
    network = dense(seed, (4, 12, 10, 8, 2))
    lower, upper = unit_box(network, seed, 0.5)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    points = lower + (upper - lower) * torch.rand(20_000, *lower.shape, generator=torch.Generator().manual_seed(seed)).double()
    results = network.run(points)
    rows = torch.tensor([[1.0, -1.0], [0.5, 0.25]], dtype=torch.float64)
    right = (results[-1] @ rows.T).quantile(0.05, 0)  # one point of twenty is a counterexample to each
    splits = ReluSplits(relaxation, rows, right, 20, lambda x: None)
    roots = splits.roots([0, 1], 20)
    nodes = [*roots, *branch_and_bound(roots, splits.expand, batch=4, cutoff=1e-300, max_nodes=6).frontier]
    tightened = 0
    for node in nodes:
        signs = splits.dense(node.state.signs[None])
        inside = (results[-1] @ rows[node.state.spec] <= right[node.state.spec]).clone()
        for relu, sign in signs.items():
            z = results[network.ops[relu].inputs[0]]
            inside &= ((sign * z) >= 0).flatten(1).all(1)
        found = bounds_at_counterexamples(splits, node.state, signs, 20)
        if found is None:
            assert not inside.any()
            continue
        for relu, (low, high) in found.items():
            z = results[network.ops[relu].inputs[0]][inside]
            assert ((low <= z) & (z <= high)).all()
            tightened += int((high - low < relaxation.bounds[relu][1] - relaxation.bounds[relu][0] - 1e-3).sum())
    assert tightened


@pytest.mark.parametrize("seed", range(2))
def test_pruned_is_the_same_function(seed: int) -> None:
    """A network without the neurons that are off has the results of the whole one in its region."""
    network = dense(seed, (6, 40, 30, 20, 2))
    lower, upper = unit_box(network, seed, 0.05)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    relu = network.relus[1]
    off = (relaxation.bounds[relu][1] <= 0).flatten()
    signs = {relu: -off[None].double() * (off.cumsum(0) == 1)}  # the first neuron that is off stays
    small, left = pruned(relaxation, signs)
    points = lower + (upper - lower) * torch.rand(200, *lower.shape, generator=torch.Generator().manual_seed(seed)).double()
    torch.testing.assert_close(small.network(points), network(points))
    kept = sum(int((relaxation.bounds[r][1] > 0).sum()) for r in network.relus)
    assert sum(small.bounds[r][0].numel() for r in network.relus) == kept + 1
    assert int(left[relu].sum()) == -1


@pytest.mark.parametrize(("shift", "kind"), [(-1.5, Sparse), (1.5, Conv)])
def test_convolutions_with_few_neurons_left_become_sparse(shift: float, kind: type) -> None:
    """Function, bounds of what is left and bounds by the dual are those of the whole; with many neurons left they stay."""
    g = torch.Generator().manual_seed(0)
    b = Builder((2, 8, 8), "two convolutions")
    at = b.relu(b.conv(0, torch.randn(4, 2, 3, 3, generator=g), torch.full((4,), shift), (2, 2), (1, 1, 1, 1)))
    at = b.relu(b.conv(at, torch.randn(5, 4, 3, 3, generator=g), torch.full((5,), shift), (2, 2), (1, 0, 1, 0)))
    b.linear(at, torch.randn(3, 20, generator=g))
    network = b.build()
    lower, upper = unit_box(network, 1, 0.05)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    small, _ = pruned(relaxation, {})
    assert all(isinstance(small.network.ops[at], kind) for at in (1, 3))
    points = lower + (upper - lower) * torch.rand(200, *lower.shape, generator=g).double()
    results, whole = small.network.run(points), network.run(points)
    torch.testing.assert_close(results[-1], whole[-1])
    for r in network.relus:
        kept = (relaxation.bounds[r][1].flatten() > 0) | (kind is Conv)
        torch.testing.assert_close(results[r].flatten(1), whole[r].flatten(1)[:, kept])
        assert torch.equal(small.bounds[r][0].flatten(), relaxation.bounds[r][0].flatten()[kept])
    cost = torch.eye(3, dtype=torch.float64)
    bounds = [of.backward(5, cost, of.start(list(network.relus), 3), charge=True).value for of in (small, relaxation)]
    torch.testing.assert_close(*bounds)
    assert bool((whole[-1].min(0).values >= bounds[0]).all())
