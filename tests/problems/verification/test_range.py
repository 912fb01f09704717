"""Networks whose numbers leave the range of float32, or of float64: bounds and verdicts hold in rational arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blocklp.problems.verification import Builder, Network, Property, VerifySettings, network_bounds, verify
from blocklp.problems.verification.operations import Linear

EXPONENTS = st.lists(st.integers(-30, 30), min_size=3, max_size=3)


def scaled(seed: int, exponents: list[int], inputs: int = 3) -> Network:
    """A network of two hidden layers whose weights and biases are of these powers of ten."""
    g = torch.Generator().manual_seed(seed)
    b, sizes = Builder((inputs,), f"scaled{seed}"), [inputs, 4, 4, 2]
    for k, exponent in enumerate(exponents):
        weight = torch.randn(sizes[k + 1], sizes[k], generator=g, dtype=torch.float64) * 10.0**exponent
        b.linear(len(b.ops) - 1, weight, torch.randn(sizes[k + 1], generator=g, dtype=torch.float64) * 10.0 ** min(exponent, 30))
        if k < 2:
            b.relu(len(b.ops) - 1)
    return b.build()


def exactly(network: Network, x: np.ndarray) -> list[Fraction]:
    """The outputs in rational arithmetic."""
    values = [Fraction(float(v)) for v in x]
    for op in network.ops[1:]:
        if isinstance(op, Linear):
            rows, bias = op.weight.tolist(), op.bias.tolist()
            values = [
                sum((Fraction(w) * v for w, v in zip(row, values, strict=True)), Fraction(c))
                for row, c in zip(rows, bias, strict=True)
            ]
        else:
            values = [max(v, Fraction(0)) for v in values]
    return values


def points(low: Tensor, high: Tensor, seed: int) -> list[np.ndarray]:
    """Corners (some) and points of a box."""
    share = torch.rand(12, len(low), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    share[:6] = share[:6].round()
    return [p.numpy() for p in (low + share * (high - low)).clamp(low, high)]


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), exponents=EXPONENTS, radius=st.sampled_from([1e-3, 1.0, 1e6]))
def test_bounds_hold_at_every_scale(seed: int, exponents: list[int], radius: float) -> None:
    network = scaled(seed, exponents)
    low, high = -radius * torch.ones(3, dtype=torch.float64), radius * torch.ones(3, dtype=torch.float64)
    truth = [exactly(network, x) for x in points(low, high, seed)]
    for method in ("interval", "crown", "slopes", "admm"):
        output = network_bounds(
            network, low, high, method=method, steps=None if method == "interval" else 4, gap=method == "slopes"
        ).output
        assert not bool(torch.isnan(output.lower).any() | torch.isnan(output.upper).any())
        for value, least, most in itertools.chain(
            *(zip(y, output.lower.tolist(), output.upper.tolist(), strict=True) for y in truth)
        ):
            assert least <= value <= most, method


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), exponents=EXPONENTS, few=st.booleans(), planted=st.booleans(), clauses=st.integers(1, 2))
def test_verdicts_hold_at_every_scale(seed: int, exponents: list[int], few: bool, planted: bool, clauses: int) -> None:
    network = scaled(seed, exponents, 3 if few else 21)
    low, high = -torch.ones(network.inputs, dtype=torch.float64), torch.ones(network.inputs, dtype=torch.float64)
    given_points = points(low, high, seed)
    values = [exactly(network, x) for x in given_points]
    # y0 - y1 <= right and -y1 <= more, which a point satisfies, or a row that none of them does.
    gap = [y[0] - y[1] for y in values]
    right = float(max(gap)) if planted else float(min(gap)) - abs(float(min(gap)))
    rows, sides = (
        ([[1.0, -1.0], [0.0, -1.0]], [right, float(max(-y[1] for y in values))]) if clauses == 2 else ([[1.0, -1.0]], [right])
    )
    limits = np.clip(sides, -1e300, 1e300).tolist()
    prop = Property.of(low, high, rows, limits)
    verdict = verify(network, prop, timeout=0.25)
    assert verdict.status in ("sat", "unsat", "unknown", "timed-out")
    if verdict.status == "unsat":
        for y in values:
            over = [
                sum(Fraction(c) * v for c, v in zip(row, y, strict=True)) - Fraction(side)
                for row, side in zip(rows, limits, strict=True)
            ]
            assert max(over) > 0
    if verdict.status == "sat":
        assert verdict.x is not None and prop.violated(verdict.x, verdict.y) == 0


@pytest.mark.parametrize("exponents", [[30, 30, 30], [20, 25, -30], [-30, -30, -30], [200, 200, 0], [150, -150, 200]])
@pytest.mark.parametrize("few", [0, 20], ids=["relu splits", "input splits"])
def test_nothing_crashes_where_iterates_are_not_finite(exponents: list[int], few: int) -> None:
    few_inputs = VerifySettings(few_inputs=few)
    network = scaled(1, exponents)
    low, high = -torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    for attack in (True, False):
        prop = Property.of(low, high, [[1.0, -1.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 0.0, -1.0])
        verdict = verify(network, prop, timeout=0.15, attack=attack, settings=few_inputs)
        assert verdict.status in ("unsat", "unknown", "timed-out") or attack
    for method in ("slopes", "alpha-crown", "prox", "exact"):
        output = network_bounds(network, low, high, method=method, gap=method == "slopes").output
        ends = zip(exactly(network, np.zeros(3)), output.lower.tolist(), output.upper.tolist(), strict=True)
        assert method == "exact" or all(least <= value <= most for value, least, most in ends)
