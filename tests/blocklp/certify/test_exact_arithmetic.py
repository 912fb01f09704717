"""Sums of products against rationals."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklp.certify.exact_arithmetic import sums_of_products


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 9), st.sampled_from(["plain", "whole", "scales", "cancelling"]))
def test_sums_of_products_are_rounded_up_once(seed: int, terms: int, kind: str) -> None:
    """Whatever cancels and however large or small the factors are."""
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(2, 3, terms))
    if kind == "whole":
        a, b = (4 * a).round(), (4 * b).round()
    elif kind == "scales":
        a, b = (t * 10.0 ** draw.integers(-300, 300, t.shape) for t in (a, b))
    elif kind == "cancelling":
        rest = draw.normal(size=(3, 1)) * 10.0 ** -draw.integers(0, 60, (3, 1))
        a, b = np.concatenate([a, rest, -a], 1), np.concatenate([b, np.ones((3, 1)), b], 1)
    value, exponent = sums_of_products(a, b)
    for i in range(3):
        truth = sum((Fraction(p) * Fraction(q) for p, q in zip(a[i].tolist(), b[i].tolist(), strict=True)), Fraction(0))
        found = Fraction(value[i].item()) * Fraction(2) ** int(exponent[i])
        assert 0 <= found - truth <= 2 * Fraction(2) ** -52 * abs(truth)
        assert kind != "whole" or found == truth


def test_products_beyond_the_range_of_floats() -> None:
    value, exponent = sums_of_products(np.array([[1e300, -1e300, 5e-324]]), np.array([[1e300, 1e300, 1e-300]]))
    assert Fraction(value.item()) * Fraction(2) ** int(exponent.item()) == Fraction(5e-324) * Fraction(1e-300)
    assert sums_of_products(np.zeros((2, 0)), np.zeros((2, 0)))[0].tolist() == [0, 0]
    assert sums_of_products(np.zeros((1, 3)), np.ones((1, 3)))[0].tolist() == [0]
