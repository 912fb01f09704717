"""Violations relative to sides and terms, against their definition row by row."""

from __future__ import annotations

import pytest
import torch

from blocklp.blocks.contract import Constraints
from blocklp.violation import relative_excess


@pytest.mark.parametrize("beyond", [0.0, 1e-9, 0.3])
@pytest.mark.parametrize("side", [0.0, 2.0])
def test_rows_of_dense_systems(side: float, beyond: float) -> None:
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(1, 1, 20, 30, generator=draw, dtype=torch.float64)
    point = torch.rand(3, 2, 30, generator=draw, dtype=torch.float64)
    size = 2 * point + 1
    activity = (matrix * point[:, :, None]).sum(-1)
    upper = torch.full_like(activity, torch.inf)
    upper[1, 0, 4] = activity[1, 0, 4] - beyond if side else 0.0
    rows = Constraints(matrix, torch.full_like(upper, -torch.inf), upper)
    truth = torch.zeros(3, 2, dtype=torch.float64)
    over = float(activity[1, 0, 4] - upper[1, 0, 4])
    if over > 0:
        terms = float((matrix[0, 0, 4].abs() * (point if side else size)[1, 0]).sum())
        truth[1, 0] = over / (max(abs(float(upper[1, 0, 4])), terms) if side else terms)
    found = rows.relative_violation(point, size)
    assert torch.allclose(found, truth, rtol=1e-9, atol=1e-15)


def test_shapes_broadcast_whether_something_is_violated_or_not() -> None:
    one, many = torch.ones(1, 3), torch.ones(4, 1)
    for excess in (one, -one):
        assert torch.equal(relative_excess(excess, many, one, many), excess.clamp(min=0).expand(4, 3))
