"""Networks with signs: bounded and decided, against enumeration of all signs with an LP each, samples and onnxruntime."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from torch import nn

from blocklp.errors import OptionError
from blocklp.oracles.curves import BESIDE_ZERO, SIGN
from blocklp.problems.verification import Builder, Network, Property, Runtime, from_torch, network_bounds, read_onnx, verify
from blocklp.problems.verification.operations import Linear, SmoothActivation
from blocklp.problems.verification.relaxation import Relaxation

from .exported_networks import GRAPHS, filled

Array = NDArray[np.float64]
LOW, HIGH = torch.tensor([-0.7, -0.7]).double(), torch.ones(2).double()


def network_of(kinds: str, seed: int, integer: bool = False) -> Network:
    """Matrices with signs and ReLUs between: ``"sr"``."""
    g = torch.Generator().manual_seed(seed)
    sizes, b, at = (2, *[3, 2][: len(kinds)], 1), Builder((2,), f"{kinds} {seed}"), 0
    for k, (a, c) in enumerate(itertools.pairwise(sizes)):
        weight, bias = torch.randn(c, a, generator=g), torch.randn(c, generator=g) / 2
        if integer:
            weight, bias = weight.sign(), bias.round()
        at = b.linear(at, weight, bias)
        if k < len(kinds):
            at = b.relu(at) if kinds[k] == "r" else b.smooth(at, SIGN)
    return b.build()


def least(network: Network, at: int = 1, rows: tuple[tuple[Array, float], ...] = (), now: tuple[Array, Array] | None = None) -> float:
    """Least output over the box: an LP for all signs, where both -1 and 1 count at zero, too."""
    matrix, shift = (np.eye(2), np.zeros(2)) if now is None else now
    left, right = np.array([-a for a, _ in rows]).reshape(-1, 2), np.array([c for _, c in rows])
    here = at == len(network.ops)
    box = list(zip(LOW.tolist(), HIGH.tolist(), strict=True))
    found = linprog(matrix[0] if here else np.zeros(2), A_ub=left, b_ub=right, bounds=box)
    if here or found.status:
        return float(found.fun + shift[0]) if found.status == 0 else math.inf
    op = network.ops[at]
    if isinstance(op, Linear):
        return least(network, at + 1, rows, (op.weight.numpy() @ matrix, op.weight.numpy() @ shift + op.bias.numpy()))
    signed = isinstance(op, SmoothActivation)
    values = []
    for chosen in itertools.product((-1, 0, 1) if signed else (-1, 1), repeat=len(shift)):
        own = [(s * matrix[j], s * float(shift[j])) for j, v in enumerate(chosen) for s in ((1, -1) if v == 0 else (v,))]
        on = np.array(chosen, dtype=float)
        after = (0 * matrix, on) if signed else ((on > 0)[:, None] * matrix, (on > 0) * shift)
        values.append(least(network, at + 1, (*rows, *own), after))
    return min(values)


@pytest.mark.parametrize(("seed", "widths"), [(0, (6, 6)), (5, (6, 6)), (27, (6, 6)), (1, (6, 4)), (2, (4, 6))])
def test_no_counterexample_is_argued_away_where_signs_are_side_by_side(seed: int, widths: tuple[int, int]) -> None:
    """The argument of the later sign comes before that of the earlier one, and may have another size."""
    g, b = torch.Generator().manual_seed(seed), Builder((6,), "side by side")
    first, second = (b.linear(0, torch.randn(n, 6, generator=g), torch.randn(n, generator=g) * 2) for n in widths)
    early, late = b.smooth(second, SIGN), b.smooth(first, SIGN)
    ends = (b.linear(at, torch.randn(1, n, generator=g)) for at, n in ((early, widths[1]), (late, widths[0])))
    b.add(*ends)
    network = b.build()
    points = 2 * torch.rand(20_000, 6, generator=g, dtype=torch.float64) - 1
    reached = float(network(points).min())
    prop = Property.of(-np.ones(6), np.ones(6), [[1.0]], [reached + 1e-3])
    assert verify(network, prop, timeout=1, attack=False).status != "unsat"
    lower = float(network_bounds(network, -torch.ones(6).double(), torch.ones(6).double()).output.lower)
    held = Property.of(-np.ones(6), np.ones(6), [[1.0]], [lower - 1e-3])
    assert verify(network, held, timeout=20).status == "unsat"


@pytest.mark.parametrize(("kinds", "seed", "integer"), [("ss", 0, False), ("rs", 1, False), ("sr", 2, False), ("ss", 3, True)])
def test_bounds_and_verdicts_agree_with_all_signs(kinds: str, seed: int, integer: bool) -> None:
    network = network_of(kinds, seed, integer)
    true = least(network)
    share = torch.rand(500, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    results = network.run(LOW + (HIGH - LOW) * share)
    for method in ("interval", "crown", "slopes", "admm"):
        bounds = network_bounds(network, LOW, HIGH, method=method, steps=3)
        assert float(bounds.output.lower) <= true + 1e-8
        nodes = [network.ops[at].inputs[0] for at in network.activations] + [len(network.ops) - 1]
        for node, layer in zip(nodes, bounds.layers, strict=True):
            inside = (layer.lower <= results[node] + 1e-9) & (results[node] - 1e-9 <= layer.upper)
            assert bool(inside.all()), method
    below, above = (Property.of(LOW.numpy(), HIGH.numpy(), [[1.0]], [true + off]) for off in (-1e-3, 1e-3))
    assert verify(network, below, timeout=60).status == "unsat"
    # The least value may be one that only signs of -1 and 1 at zero have.
    sampled = bool((results[-1] <= true + 1e-3).any())
    assert verify(network, above, timeout=60).status in (("sat",) if sampled else ("sat", "unknown"))


def between(low: float, high: float) -> Property:
    return Property.of(-np.ones(1), np.ones(1), [[1.0], [-1.0]], [high, -low])


def test_at_zero_the_sign_is_zero_and_may_be_an_end() -> None:
    b = Builder((1,), "step")
    b.smooth(b.relu(b.linear(0, torch.ones(1, 1))), SIGN)  # zero for half of the box, and never -1
    step = b.build()
    bounds = network_bounds(step, -torch.ones(1), torch.ones(1)).output
    assert -1e-300 <= float(bounds.lower) <= 0 and float(bounds.upper) == 1
    assert verify(step, between(0.4, 0.6)).status == "unsat"  # within the hull, and no value of a sign
    assert verify(step, between(-0.1, 0.1)).status == "sat"
    b = Builder((1,), "sign")
    b.smooth(0, SIGN)
    for low, high in ((-0.1, 0.1), (0.9, 1.1), (-1.1, -0.9)):
        assert verify(b.build(), between(low, high), attack=False).status == "unknown"
    assert verify(b.build(), between(0.1, 0.9), attack=False).status == "unsat"


def test_multipliers_of_ends_beside_zero_pay_for_zero() -> None:
    """A node above zero begins at the least normal number, and holds for all that is above zero."""
    b = Builder((1,), "sign")
    b.add(0, b.smooth(0, SIGN))
    low, high = (torch.tensor([[end]], dtype=torch.float64) for end in (BESIDE_ZERO, 1.0))
    whole = torch.tensor([[0.0]], dtype=torch.float64), high
    relaxation = Relaxation(b.build(), *whole, {1: (low, high)})
    found = relaxation.backward(2, torch.ones(1, 1).double(), relaxation.start([1], 1), {1: torch.full((1, 1), 1e37).double()})
    assert float(found.value) <= 1 + 1e-9


class Binary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList([nn.Linear(6, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 3)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(8), nn.BatchNorm1d(8)])
        for norm in self.norms:
            nn.init.normal_(norm.running_mean)
            nn.init.normal_(norm.bias)
        with torch.no_grad():
            for layer in self.layers:
                layer.weight.sign_()
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = torch.sign(norm(layer(x)))
        return self.layers[-1](x)


def test_binary_networks_are_decided_in_real_numbers_and_float32() -> None:
    network = from_torch(Binary(), (6,))
    low, high = -torch.ones(6, dtype=torch.float64) / 2, torch.ones(6, dtype=torch.float64) / 2
    y = network(low + torch.rand(4000, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64))
    row = torch.tensor([1.0, -1.0, 0.0]).double()
    reached, seen = float((y @ row).min()), set()
    for net in (network, network.in_float32()):
        below = reached + 0.01
        while (verdict := verify(net, Property.of(low.numpy(), high.numpy(), [row.tolist()], [below]), timeout=60)).status == "sat":
            below = float(verdict.y @ row.numpy()) - 0.01
        assert verdict.status == "unsat" and below < reached
        seen.add(round(below, 4))
    assert len(seen) == 1  # outputs are sums of signs, far from each other


def test_file_is_read_and_counterexamples_are_those_of_onnxruntime(tmp_path: Path) -> None:
    opset, text = GRAPHS["binary"]
    onnx.save(filled(text, opset), tmp_path / "net.onnx")
    network, runtime = read_onnx(tmp_path / "net.onnx"), Runtime(tmp_path / "net.onnx")
    x = np.random.default_rng(6).uniform(-1, 1, (2000, network.inputs)).astype(np.float32)
    y = runtime(x)[:, 0]
    prop = Property.of(-np.ones(network.inputs), np.ones(network.inputs), [[1.0, *[0.0] * (network.outputs - 1)]], [y.min() + 0.01])
    verdict = verify(network, prop, runtime=runtime, timeout=60)
    assert verdict.status == "sat" and runtime(verdict.x)[0] <= y.min() + 0.01


def test_proofs_are_refused() -> None:
    with pytest.raises(OptionError, match="smooth activations or signs: ask for none"):
        verify(network_of("ss", 0), Property.of(LOW.numpy(), HIGH.numpy(), [[1.0]], [-9.0]), proof=True)
