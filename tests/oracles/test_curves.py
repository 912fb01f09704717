"""Lines and minima of smooth functions against mpmath, in 50 digits, and dense sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp
import pytest
import torch
from torch import Tensor

from blocklp.oracles.curve_lines import extremes, minimum, slope_range
from blocklp.oracles.curves import CURVES, Curve

TRUE: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "tanh": mp.tanh,
    "erf": mp.erf,
    "softplus": lambda x: max(x, 0) + mp.log1p(mp.exp(-abs(x))),
    "silu": lambda x: x / (1 + mp.exp(-x)),
    "gelu": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "square": lambda x: x * x,
}
EVERY = pytest.mark.parametrize("name", list(CURVES))
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def intervals(count: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Intervals of all sizes and places: tiny, huge, one-sided, of equal ends, with ends at zero and where curves bend."""
    draw = torch.Generator().manual_seed(seed)
    places = torch.tensor([0.0, 1.0, -1.0, 3.0, -3.0, 30.0, -30.0, 500.0, -800.0, 1e-9, 2.3993573, 2.0**0.5, -(2.0**0.5)]).double()
    centre = places[torch.randint(len(places), (count,), generator=draw)] * (1 + 0.3 * torch.randn(count, generator=draw).double())
    width = 10.0 ** (12 * torch.rand(count, generator=draw).double() - 9)
    kind = torch.randint(5, (count,), generator=draw)
    lower = torch.where(kind == 0, 0.0, torch.where(kind == 1, centre, centre - width)).to(dtype)
    upper = torch.where(kind == 0, width, torch.where(kind == 1, centre, centre + width)).to(dtype)
    mirrored = (kind == 0) & (torch.rand(count, generator=draw) < 0.5)
    return torch.where(mirrored, -upper, lower), torch.where(mirrored, -lower, upper)


def costs(curve: Curve, lower: Tensor, upper: Tensor, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Costs of x and of f(x): of slopes between those of the curve, of others, and zeros."""
    draw = torch.Generator().manual_seed(seed)
    shape, dtype = lower.shape, lower.dtype
    where = torch.lerp(lower.double(), upper.double(), torch.rand(shape, generator=draw).double())
    sign = torch.where(torch.rand(shape, generator=draw) < 0.5, -1.0, 1.0).double()
    of_value = sign * 10.0 ** (4 * torch.rand(shape, generator=draw).double() - 2)
    slope = torch.where(torch.rand(shape, generator=draw) < 0.7, curve.slope(where), torch.randn(shape, generator=draw).double())
    kind = torch.randint(12, shape, generator=draw)
    of_x = torch.where(kind == 0, 0.0, -slope * of_value)
    return of_x.to(dtype), torch.where(kind == 1, 0.0, of_value).to(dtype)


def least_of(name: str, of_x: float, of_value: float, lower: float, upper: float) -> Any:
    """About the least value, from above: the curve at its ends and, by golden sections, between many points."""
    at = [mp.mpf(lower) + (mp.mpf(upper) - lower) * k / 16 for k in range(17)]
    bends = [b for b in (-40, -6, -2, -1, 0, 1, 2, 6, 40) if lower < b < upper]
    at = sorted({*at, *map(mp.mpf, bends)})

    def cost(x: Any) -> Any:
        return of_x * x + of_value * TRUE[name](x)

    values = [cost(x) for x in at]
    best = min(values)
    centre = values.index(best)
    low, high = at[max(centre - 1, 0)], at[min(centre + 1, len(at) - 1)]
    share = (mp.sqrt(5) - 1) / 2
    for _ in range(45):
        one, two = high - share * (high - low), low + share * (high - low)
        at_one, at_two = cost(one), cost(two)
        best = min(best, at_one, at_two)
        low, high = (low, two) if at_one < at_two else (one, high)
    return best


@EVERY
@BOTH
def test_minima_are_never_above_the_true_ones_and_near(name: str, dtype: torch.dtype) -> None:
    curve = CURVES[name]
    lower, upper = intervals(50, dtype)
    of_x, of_value = costs(curve, lower, upper)
    x, value = minimum(curve, of_x, of_value, lower, upper)
    assert bool(((lower <= x) & (x <= upper)).all())
    widest = torch.maximum(lower.abs(), upper.abs()).double()
    size = of_x.double().abs() * (1 + widest) + of_value.double().abs() * curve.largest(widest)
    with mp.workdps(50):
        for k, given in enumerate(zip(of_x.tolist(), of_value.tolist(), lower.tolist(), upper.tolist(), strict=True)):
            truth = least_of(name, *given)
            assert mp.mpf(float(value[k])) <= truth, given
            assert float(truth - mp.mpf(float(value[k]))) <= 200 * torch.finfo(dtype).eps * float(size[k]) + 1e-30, given


@EVERY
@BOTH
def test_minima_are_not_above_samples(name: str, dtype: torch.dtype) -> None:
    curve = CURVES[name]
    lower, upper = intervals(3000, dtype, seed=5)
    of_x, of_value = costs(curve, lower, upper, seed=6)
    value = minimum(curve, of_x, of_value, lower, upper)[1].double()
    share = torch.linspace(0, 1, 301, dtype=torch.float64)
    low, high = lower.double()[:, None], upper.double()[:, None]
    x = torch.lerp(low, high, share).clamp(low, high)
    terms = of_x.double()[:, None] * x, of_value.double()[:, None] * curve.value(x)
    error = 1e-15 * (terms[0].abs() + of_value.double()[:, None].abs() * curve.largest(x.abs()))  # of the samples
    assert bool((value[:, None] <= terms[0] + terms[1] + error).all())


@EVERY
def test_rounding_of_values_and_slopes_is_below_what_is_charged(name: str) -> None:
    curve = CURVES[name]
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(60, generator=draw).double() * torch.tensor([0.01, 1.0, 10.0, 100.0, 700.0]).double().repeat(12)
    for at in (x, x.float()):
        value, slope = curve.value(at), curve.slope(at)
        numbers = torch.finfo(at.dtype)
        errors = (
            8 * numbers.eps * curve.size(at, value) + 8 * numbers.tiny,
            8 * numbers.eps * curve.slope_size(at, slope) + 8 * numbers.tiny,
        )
        with mp.workdps(50):
            for k, point in enumerate(at.tolist()):
                exact = TRUE[name](mp.mpf(point))
                assert abs(exact - mp.mpf(float(value[k]))) <= float(errors[0][k]), point
                assert abs(exact) <= float(curve.largest(at.abs())[k])
                assert abs(mp.diff(TRUE[name], mp.mpf(point)) - mp.mpf(float(slope[k]))) <= float(errors[1][k]) + 1e-20, point


@EVERY
def test_curves_are_convex_and_concave_where_they_say(name: str) -> None:
    curve = CURVES[name]
    with mp.workdps(60):
        for pieces, sign in ((curve.convex, 1), (curve.concave, -1)):
            for start, end in pieces:
                low, high = max(start, -50.0), min(end, 50.0)
                for k in range(1, 20):
                    x = mp.mpf(low) + (mp.mpf(high) - low) * k / 20
                    step = mp.mpf(10) ** -12
                    second = TRUE[name](x + step) - 2 * TRUE[name](x) + TRUE[name](x - step)
                    assert sign * second >= -(mp.mpf(10) ** -50)
    ends = sorted(end for piece in (*curve.convex, *curve.concave) for end in piece)
    assert ends[0] == -torch.inf and ends[-1] == torch.inf and ends[1:-1:2] == ends[2:-1:2]


@EVERY
def test_values_over_intervals(name: str) -> None:
    curve = CURVES[name]
    lower, upper = intervals(300, torch.float64, seed=8)
    low, high = extremes(curve, lower, upper)
    x = torch.lerp(lower[:, None], upper[:, None], torch.linspace(0, 1, 200, dtype=torch.float64))
    value = curve.value(x)
    error = 1e-14 * curve.largest(x.abs()).amax(1)
    assert bool((low <= value.amin(1) + error).all()) and bool((value.amax(1) - error <= high).all())
    near = x.shape[1] * error + (upper - lower) ** 2
    assert bool((value.amin(1) - low <= near)[upper - lower < 1e-3].all())
    ends = torch.tensor([[-torch.inf, torch.inf], [-torch.inf, 1.0], [1.0, torch.inf], [1e200, 1e300]], dtype=torch.float64)
    low, high = extremes(curve, *ends.T)
    assert bool((low <= curve.value(torch.tensor(3.0))).all()) == bool(low[3] <= curve.value(torch.tensor(3.0)))
    if curve.bounded:
        assert bool((low >= -1 - 1e-12).all()) and bool((high <= 1 + 1e-12).all())
    else:
        assert bool((high == torch.inf)[[0, 2]].all())


@EVERY
@pytest.mark.parametrize("above", [False, True])
def test_slopes_are_those_of_the_envelope(name: str, above: bool) -> None:
    """Among lines of all slopes the chosen one is nearly the nearest in the middle, and better ones are in the range."""
    curve, sign = CURVES[name], -1.0 if above else 1.0
    draw = torch.Generator().manual_seed(4)
    lower = 4 * torch.randn(200, generator=draw).double()
    upper = lower + 8 * torch.rand(200, generator=draw).double()
    found, middle = slope_range(curve, above, lower, upper), (lower + upper) / 2
    assert bool(((found.least <= found.middle) & (found.middle <= found.most)).all())

    def height(slope: Tensor) -> Tensor:
        cost = -sign * slope
        return sign * slope * middle + minimum(curve, cost, torch.full_like(cost, sign), lower, upper)[1]

    others = torch.stack([height(torch.lerp(found.least - 0.2, found.most + 0.2, torch.tensor(k / 60).double())) for k in range(61)])
    gap = sign * curve.value(middle) - height(found.middle)
    assert bool((others.amax(0) - height(found.middle) <= 0.02 * gap + 2e-3 * (upper - lower)).all())
    assert bool((gap >= 0).all())
