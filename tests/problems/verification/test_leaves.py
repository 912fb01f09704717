"""Leaves of the branch and bound over signs, against SciPy's LPs over the input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import OptimizeResult, linprog
from torch import Tensor

from blocklp.problems.verification import Network, network_bounds, sign_leaves
from blocklp.problems.verification.exact import LeafResult, Optimum
from blocklp.problems.verification.operations import Add, Affine, Input, Relu
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.problems.verification.split_state import SplitState
from blocklp.search.best_first import Expansion, Node

from ..verification_networks import conv, dense, residual, unit_box

ROWS = torch.tensor([[1.0, -1.0, 0.5], [-1.0, 0.75, 0.25], [0.1, 0.25, -1.0]], dtype=torch.float64)
NETWORKS = [dense(0, (3, 6, 5, 2)), dense(1, (8, 30, 30, 20, 2)), residual(2), conv(3)]


class Leaves:
    """Leaves of one network, and the LPs that they are."""

    def __init__(self, network: Network, rows: int, radius: float = 0.4, seed: int = 0) -> None:
        self.network = network
        self.lower, self.upper = unit_box(network, seed, radius)
        self.relaxation = network_bounds(network, self.lower, self.upper, method="crown").relaxation
        self.rows = ROWS[:rows, : network.outputs]
        self.g = torch.Generator().manual_seed(seed)
        self.seen: list[Tensor] = []

    def signs(self, flips: int) -> dict[int, Tensor]:
        """The signs at a random point, but for some of the unstable neurons."""
        x = self.lower + (self.upper - self.lower) * torch.rand(self.lower.shape, generator=self.g, dtype=torch.float64)
        results = self.network.run(x[None])
        on = {r: results[self.network.ops[r].inputs[0]][0] > 0 for r in self.network.relus}
        for _ in range(flips):
            r = self.network.relus[int(torch.randint(len(self.network.relus), (1,), generator=self.g))]
            unstable = self.relaxation.open[r].flatten().nonzero()[:, 0]
            if len(unstable):
                on[r].view(-1)[unstable[int(torch.randint(len(unstable), (1,), generator=self.g))]] ^= True
        return on

    def truth(self, on: dict[int, Tensor]) -> OptimizeResult:
        """Minimum of the greatest row over the inputs with these signs."""
        # An affine function by its values at the origin and at unit vectors.
        x = torch.cat([torch.zeros(1, self.network.inputs), torch.eye(self.network.inputs)]).double()
        results: list[Tensor] = []
        for at, op in enumerate(self.network.ops):
            given = [results[i] for i in op.inputs]
            if isinstance(op, Input):
                results.append(x.view(-1, *op.shape))
            elif isinstance(op, Relu):
                results.append(given[0] * on[at])
            else:
                results.append(given[0] + given[1] if isinstance(op, Add) else op(given[0]))  # type: ignore[operator]
                assert isinstance(op, Add | Affine)
        values = {at: results[at].flatten(1).numpy() for at in (*(self.network.ops[r].inputs[0] for r in on), len(results) - 1)}
        rows, right = [], []
        for r, mask in on.items():
            z, sign = values[self.network.ops[r].inputs[0]], np.where(mask.flatten().numpy(), 1.0, -1.0)
            rows.append(-sign[:, None] * (z[1:] - z[0]).T)
            right.append(sign * z[0])
        y = values[len(results) - 1] @ self.rows.numpy().T
        rows.append((y[1:] - y[0]).T)
        right.append(-y[0])
        last = np.concatenate([np.zeros((len(r), 1)) for r in rows[:-1]] + [np.full((len(self.rows), 1), -1.0)])
        limits = [*zip(self.lower.flatten().tolist(), self.upper.flatten().tolist(), strict=True), (None, None)]
        table = np.concatenate([np.concatenate(rows), last], 1)
        return linprog(np.append(np.zeros(len(x) - 1), 1.0), table, np.concatenate(right), bounds=limits, method="highs")

    def expand(self, on: dict[int, Tensor], right: float) -> Expansion:
        """What becomes of the leaf for the question whether some row is above a number."""
        more = torch.zeros(1, self.network.outputs, dtype=torch.float64)  # a clause that is easily proved must not help
        rights = torch.tensor([right] * len(self.rows) + [-1e3], dtype=torch.float64)
        splits = ReluSplits(self.relaxation, torch.cat([self.rows, more]), rights, 1, lambda x: self.seen.append(x))
        splits.roots([0] * len(self.rows) + [1], 3)
        self.seen = []
        signs = torch.cat([torch.where(on[r].flatten()[splits.free[r]], 1, -1) for r in splits.relus]).to(torch.int8)
        state = SplitState(0, signs, splits.cuts.root, (signs > 0).float(), torch.zeros(len(signs)), splits.boxes.root, ())
        self.claimed = splits.margin
        return splits.expand([Node(-1.0, 3, state)])


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
def test_a_leaf_is_closed_if_and_only_if_its_minimum_is_above_zero(network: Network, rows: int) -> None:
    leaves = Leaves(network, rows)
    for flips in (0, 0, 0, 1, 1):
        on = leaves.signs(flips)
        truth = leaves.truth(on)
        if truth.status != 0:
            continue
        for margin in (1.0, 1e-3, 1e-7):
            closed = leaves.expand(on, truth.fun - margin)
            assert [n.depth for n in closed.children] == [3]
            assert not closed.unresolved
            # The bound is the minimum, up to what is claimed of boxes that may be clipped, and never above it.
            assert min(margin - 1e-8, leaves.claimed) <= closed.children[0].bound < margin + 1e-10
            assert not leaves.seen
        left = leaves.expand(on, truth.fun + 1e-3)
        assert not left.children
        assert len(left.unresolved) == 1
        [point] = leaves.seen
        assert float((network(point) @ leaves.rows.T).max()) == pytest.approx(truth.fun, abs=1e-6)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
def test_a_leaf_without_an_input_is_closed_whatever_is_asked(network: Network) -> None:
    leaves, empty = Leaves(network, 2, 1.5), 0
    for flips in (1, 2, 3, 5, 8) * 3:
        on = leaves.signs(flips)
        if leaves.truth(on).status != 2:
            continue
        empty += 1
        for right in (0.0, 1e3):
            closed = leaves.expand(on, right)
            assert len(closed.children) == 1
            assert closed.children[0].bound > 0
            assert not closed.unresolved
    assert empty > 3


@pytest.mark.parametrize("status", ["optimal", "infeasible"])
def test_nothing_that_the_lp_code_says_is_a_proof(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random multipliers and mixes, of both signs, zero or NaN, of a leaf with a counterexample."""
    leaves = Leaves(NETWORKS[2], 2)
    on = leaves.signs(0)
    least = leaves.truth(on).fun
    g = torch.Generator().manual_seed(1)
    sizes = [0.0, 1e-6, 0.1, 1.0, 1e3, 1e9, float("nan")] * 5

    def lie(*_: object) -> LeafResult:
        size = sizes.pop()
        betas = {r: (size * torch.randn(mask.numel(), generator=g, dtype=torch.float64)).numpy() for r, mask in on.items()}
        return LeafResult(
            Optimum(1.0, leaves.lower.flatten().numpy(), status), size * torch.randn(3, generator=g).double().numpy(), betas
        )

    monkeypatch.setattr(sign_leaves, "solve_leaf", lie)
    while sizes:
        assert len(leaves.expand(on, least + 10.0 ** (len(sizes) % 10 - 6)).unresolved) == 1
