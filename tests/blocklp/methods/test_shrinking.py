"""The best factor of multipliers of rows, against a fine grid of factors."""

import numpy as np
import pytest
import torch

from blocklp.methods.shrinking import shrinking


@pytest.mark.parametrize(("spread", "kind"), [(1.0, np.float64), (1e-9, np.float64), (1e-6, np.float32)])
def test_no_factor_of_a_grid_gives_a_better_bound(device: torch.device, spread: float, kind: type) -> None:
    """Concave in s: no s of a grid, fine near 1, is better by more than the steps of the exponent allow."""
    draw = np.random.default_rng(5)
    batch, width = 60, 12
    cost = draw.uniform(-1, 2, (batch, width))
    pulled = cost * (1 + spread * draw.normal(0, 1, (batch, width)))  # near 1: prices of an optimal vertex
    lower, upper = -draw.integers(0, 2, (batch, width)) * 1.0, draw.choice([1.0, 1e3, 1e9], (batch, width))
    value = draw.normal(0, 3, batch) * 10.0 ** draw.integers(0, 4, batch)
    tables = value, *(t.astype(kind) for t in (pulled, cost, lower, upper))
    pulled, cost = (t.astype(np.float64) for t in tables[1:3])

    def bound(s: np.ndarray) -> np.ndarray:
        residual = cost[:, None] - s[..., None] * pulled[:, None]
        ends = residual * lower[:, None], residual * upper[:, None]
        return s * value[:, None] + np.minimum(*ends).sum(-1)

    grid = 1 - np.append(0.0, np.exp2(-np.arange(0, 53, 0.05)))
    best, at_zero = bound(np.tile(grid, (batch, 1))).max(1), bound(np.zeros((batch, 1)))[:, 0]
    size = 1 + np.abs(best) + 1e-16 * np.abs(pulled * upper).sum(1) * 8
    for place in (torch.device("cpu"), device):
        s = shrinking(*(torch.from_numpy(t).to(place) for t in tables)).cpu().numpy()
        assert ((s >= 0) & (s <= 1)).all()
        found = bound(s[:, None])[:, 0]
        assert (found >= best - 0.02 * np.abs(best - at_zero) - 1e-9 * size).all()
        assert (found > bound(np.ones((batch, 1)))[:, 0] + 1e-9).any()
