"""Compiled ascents over slopes, against those of tensors and exact minima."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.oracles.curves import CURVES
from blocklp.problems.verification import Builder, Network, network_bounds
from blocklp.problems.verification.counterexample_bounds import ConstrainedDual
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.problems.verification.slope_loops import KERNELS, Effort, SlopeLoops
from blocklp.problems.verification.slopes import SlopeDual
from blocklp.search.best_first import branch_and_bound
from blocklp.search.parameter_ascent import ascend
from blocklp.status import Status

from ..verification_networks import all_kinds, dense, unit_box
from .test_conjunctions import least_greatest

pytest.importorskip("numba")

SCALE = 0.7
COUNT = 90
"""Instances: more than there are lanes, so that some take the places of others."""


class Nodes:
    """Random nodes of a network, as loops and as tensors take them."""

    def __init__(self, network: Network, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        lower, upper = unit_box(network, seed, 0.5)
        self.relaxation = network_bounds(network, lower, upper, method="crown").relaxation
        self.node, self.relus = len(network.ops) - 1, list(network.relus)
        self.free = {r: self.relaxation.open[r].flatten().nonzero()[:, 0] for r in self.relus}
        total = sum(len(f) for f in self.free.values())
        self.signs = torch.randint(-3, 4, (COUNT, total), generator=g).sign().to(torch.int8)
        self.signs *= torch.rand(COUNT, total, generator=g) < 0.5
        self.slopes = torch.rand(COUNT, total, generator=g)
        self.betas = torch.rand(COUNT, total, generator=g) * self.signs
        self.cost = torch.randn(COUNT, *network.ops[-1].shape, generator=g)
        loops = SlopeLoops.of(self.relaxation, self.node, self.free, dict.fromkeys(self.relus, SCALE))
        assert loops is not None
        self.loops = loops

    def dense(self, packed: Tensor) -> dict[int, Tensor]:
        """By ReLU ``(COUNT, *shape)``."""
        found, at = {}, 0
        for r in self.relus:
            flat = torch.zeros(COUNT, self.relaxation.bounds[r][0].numel(), dtype=packed.dtype)
            flat[:, self.free[r]] = packed[:, at : at + len(self.free[r])]
            at += len(self.free[r])
            found[r] = flat.view(COUNT, *self.relaxation.bounds[r][0].shape[1:])
        return found

    def packed(self, by_relu: dict[int, Tensor]) -> Tensor:
        return torch.cat([by_relu[r].flatten(1)[:, self.free[r]] for r in self.relus], 1)

    def dual(self, dtype: torch.dtype) -> SlopeDual:
        bounds = {}
        for r, sign in self.dense(self.signs).items():
            low, high = (end.expand(sign.shape) for end in self.relaxation.bounds[r])
            bounds[r] = torch.where(sign > 0, low.clamp(min=0), low), torch.where(sign < 0, high.clamp(max=0), high)
        whole = replace(self.relaxation, bounds=bounds).to(dtype)
        split = {r: sign.to(dtype) * SCALE for r, sign in self.dense(self.signs).items()}
        return SlopeDual(whole, self.node, self.cost.to(dtype), self.relus, split)

    def start(self) -> list[Tensor]:
        """Parameters of the dual."""
        lines, slopes, signs = self.relaxation.lines, self.dense(self.slopes), self.dense(self.signs)
        kept = {r: torch.where(self.relaxation.open[r], slopes[r], lines[r][0].float()) for r in self.relus}
        kept = {r: torch.where(signs[r] != 0, (signs[r] > 0).float(), kept[r]) for r in self.relus}
        betas = self.dense(self.betas)
        return [*(kept[r] for r in self.relus), *(betas[r] for r in self.relus)]


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("network", all_kinds(range(2)), ids=lambda network: network.name)
def test_loops_do_what_tensors_do(network: Network, steps: int) -> None:
    nodes = Nodes(network, 3)
    expected = ascend(nodes.dual(torch.float32), nodes.start(), steps)
    value, slopes, betas, cost = nodes.loops.ascend(
        nodes.cost.flatten(1), nodes.signs, nodes.slopes, nodes.betas, steps, np.inf, Deadline()
    )
    count = len(nodes.relus)
    by_relu = [dict(zip(nodes.relus, part, strict=True)) for part in (expected.parameters[:count], expected.parameters[count:])]
    torch.testing.assert_close(value, expected.value, rtol=1e-4, atol=1e-4)
    assert torch.equal(cost, nodes.cost.flatten(1))
    # Where two steps have equal values either may be the best; the value of each is what the dual says.
    same = torch.isclose(slopes, nodes.packed(by_relu[0]), atol=1e-3) & torch.isclose(betas, nodes.packed(by_relu[1]), atol=1e-3)
    assert bool((same.float().mean(1) == 1).float().mean() > 0.9)
    dual = nodes.dual(torch.float64)
    named = dual.named([*nodes.dense(slopes.double()).values(), *nodes.dense(betas.double()).values()])
    lines = {r: torch.where(nodes.relaxation.open[r], s, nodes.relaxation.lines[r][0]) for r, s in named[0].items()}
    again = dual.relaxation.backward(nodes.node, nodes.cost.double(), lines, named[1]).value
    torch.testing.assert_close(value.double(), again, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("network", all_kinds(range(2)), ids=lambda network: network.name)
def test_values_are_less_by_what_rounding_in_the_network_may_take(network: Network) -> None:
    """With a coarse arithmetic, in which that counts: as much as tensors say, or a little more where operations follow each other."""
    nodes, exact = (Nodes(replace(network, unit=unit), 3) for unit in (1e-4, 0.0))
    nodes.relaxation = replace(nodes.relaxation, bounds=exact.relaxation.bounds)
    loops = SlopeLoops.of(nodes.relaxation, nodes.node, exact.free, dict.fromkeys(nodes.relus, SCALE))
    assert loops is not None
    given = exact.cost.flatten(1), exact.signs, exact.slopes, exact.betas, 1, np.inf, Deadline()
    found, without = loops.ascend(*given)[0], exact.loops.ascend(*given)[0]
    dual = exact.dual(torch.float64)
    dual.relaxation.__dict__["noise"] = nodes.relaxation.noise
    slopes, betas = dual.named([p.double() for p in exact.start()])
    noise = dual.relaxation.backward(nodes.node, exact.cost.double(), slopes, betas).noise
    assert bool((noise > 1e-3).all())
    lost = (without - found).double()
    assert bool((lost >= noise * (1 - 1e-3) - 1e-5).all()) and bool((lost <= 1.5 * noise + 1e-5).all())


def test_instances_that_are_done_make_room_and_change_nothing() -> None:
    """Bits are the same in any company; with a threshold the first value above it is the result."""
    nodes = Nodes(dense(5, (30, 14, 12, 3)), 1)
    given = nodes.cost, nodes.signs, nodes.slopes, nodes.betas
    whole = nodes.loops.ascend(*given, 12, np.inf, Deadline())
    some = torch.arange(COUNT - 1, 0, -7)
    part = nodes.loops.ascend(*(t[some] for t in given), 12, np.inf, Deadline())
    for all_of, few in zip(whole, part, strict=True):
        assert torch.equal(all_of[some], few)
    enough = float(whole[0].median())
    early = nodes.loops.ascend(*given, 12, enough, Deadline())
    done = whole[0] > enough
    assert bool((early[0][done] > enough).all()) and torch.equal(early[0][~done], whole[0][~done])
    assert not torch.equal(early[1][done], whole[1][done])
    late = nodes.loops.ascend(*given, 12, np.inf, Deadline(1e-9))
    assert bool((late[0] == -np.inf).all())
    free = nodes.signs == 0
    assert torch.equal(late[1][free], nodes.slopes[free]) and torch.equal(late[2], nodes.betas)


@pytest.mark.parametrize("size", [1.0, 1e18, 1e37])
def test_whatever_comes_out_is_feasible(size: float) -> None:
    """Slopes from 0 to 1 and multipliers with their signs, finite, also of costs that leave the range of single precision."""
    nodes = Nodes(dense(2, (30, 14, 12, 3)), 2)
    value, slopes, betas, _ = nodes.loops.ascend(nodes.cost * size, nodes.signs, nodes.slopes, nodes.betas, 6, np.inf, Deadline())
    assert bool(((slopes >= 0) & (slopes <= 1)).all()) and bool((betas * nodes.signs >= 0).all())
    assert bool(torch.isfinite(betas).all()) and not bool(value.isnan().any())


def test_rows_and_targets_are_those_of_the_constrained_dual() -> None:
    """Bounds over counterexamples: multiples of rows are parameters too, and an argument of a ReLU has a cost."""
    nodes = Nodes(dense(4, (30, 14, 12, 2)), 4)
    relu, g = nodes.relus[1], torch.Generator().manual_seed(0)
    neurons = nodes.free[relu][torch.randint(len(nodes.free[relu]), (COUNT,), generator=g)]
    weight, unit = torch.randn(COUNT, generator=g).sign(), torch.rand(COUNT, 2, generator=g) * torch.tensor([1.0, 0.0])
    cost = torch.zeros(COUNT, *nodes.relaxation.bounds[relu][0].shape[1:])
    cost.view(COUNT, -1)[torch.arange(COUNT), neurons] = weight
    whole = ConstrainedDual(nodes.dual(torch.float32), relu, cost, unit)
    expected = ascend(whole, [*nodes.start(), torch.zeros_like(unit)], 5)
    target = relu, neurons, weight
    found = nodes.loops.ascend(torch.zeros_like(unit), nodes.signs, nodes.slopes, nodes.betas, 5, np.inf, Deadline(), unit, target)
    torch.testing.assert_close(found[0], expected.value, rtol=1e-4, atol=1e-4)
    multiples = expected.parameters[-1]
    assert bool((torch.isclose(found[3], multiples, atol=1e-3).float().mean(1) == 1).float().mean() > 0.9)
    assert bool((multiples[:, 0] > 0).any()) and bool((found[3][:, 1] == 0).all())


@pytest.mark.parametrize("seed", range(3))
def test_a_search_with_loops_proves_what_is_true_alone(seed: int) -> None:
    """With so many inputs that boxes are not clipped: a minimum by HiGHS is proved from just below, and never from above."""
    network = dense(seed, (120, 16, 1))
    lower, upper = unit_box(network, seed, 0.08)
    least = least_greatest(network, lower, upper)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    for above, proved in ((-0.02, True), (1e-4, False)):
        right = torch.tensor([least + above])
        effort = Effort(seconds=1e9)
        splits = ReluSplits(relaxation, torch.ones(1, 1, dtype=torch.float64), right, 10, lambda x: None, effort=effort)
        nodes = splits.roots([0], 10)
        assert effort.ready and splits.loops(1, 1) is not None
        assert nodes[0].bound <= -above + 1e-9
        found = branch_and_bound(nodes, splits.expand, cutoff=1e-300, max_nodes=2000)
        assert (found.status is Status.CUTOFF) == proved
        assert found.nodes > 0


def test_networks_that_do_not_suit_are_left_to_tensors() -> None:
    network = dense(0)
    lower, upper = unit_box(network, 0)

    def made(relaxation: Relaxation) -> SlopeLoops | None:
        free = {r: relaxation.open[r].flatten().nonzero()[:, 0] for r in relaxation.network.relus}
        return SlopeLoops.of(relaxation, len(relaxation.network.ops) - 1, free, dict.fromkeys(free, 1.0))

    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    assert made(relaxation) is not None
    b = Builder((3,), "smooth")
    b.linear(b.smooth(b.linear(0, torch.eye(3)), CURVES["tanh"]), torch.ones(1, 3))
    assert made(network_bounds(b.build(), lower, upper, method="crown").relaxation) is None
    b = Builder((4096,), "large")
    b.linear(b.relu(b.linear(0, torch.ones(8192, 4096), torch.zeros(8192))), torch.ones(1, 8192), torch.zeros(1))
    zero = torch.zeros(1, 4096, dtype=torch.float64)
    large = b.build()
    wide = torch.ones(1, 8192, dtype=torch.float64)
    assert made(Relaxation(large, zero, zero, {large.relus[0]: (-wide, wide)})) is None


def test_loops_serve_once_they_are_worth_their_while(monkeypatch: pytest.MonkeyPatch) -> None:
    effort = Effort()
    assert not effort.spend(0.1, Deadline()) and effort.ready is None
    assert effort.spend(1e9, Deadline()) and effort.ready
    assert effort.spend(0.0, Deadline())
    settled = Effort()
    settled.settle(Deadline())
    assert settled.ready
    monkeypatch.setenv("BLOCKLP_BACKEND", "torch")
    without = Effort()
    assert not without.spend(1e9, Deadline()) and without.ready is False
    assert KERNELS.endswith("ascent_kernels")
