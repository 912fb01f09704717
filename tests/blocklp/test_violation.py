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


@pytest.mark.parametrize("hub", [False, True])
def test_large_sparse_systems_are_taken_by_their_entries(hub: bool) -> None:
    """Two entries in each column, in rows of several lengths; a row with all columns makes it dense again."""
    draw = torch.Generator().manual_seed(1)
    ends, column = torch.randint(0, 60, (2, 400), generator=draw), torch.arange(400)
    matrix = torch.zeros(60, 400, dtype=torch.float64)
    matrix[ends[0], column], matrix[ends[1], column] = 1.0, -2.0
    matrix[0] = 1.0 if hub else matrix[0]
    rows = Constraints.rows(matrix, torch.full((60,), -0.5), torch.full((60,), 0.25))
    assert (rows._sparse is None) == hub
    point = torch.rand(3, 2, 400, generator=draw, dtype=torch.float64)
    activity, terms = (matrix @ point[..., None])[..., 0], (matrix.abs() @ point[..., None])[..., 0]
    excess = torch.maximum(activity - 0.25, -0.5 - activity)
    side = torch.where(activity > 0, 0.25, 0.5)
    truth = (excess / torch.maximum(side, terms)).clamp(min=0).amax(-1)
    assert float(truth.min()) > 0.01
    assert torch.allclose(rows.relative_violation(point, 2 * point), truth, rtol=1e-12)
    reach = torch.maximum(side, matrix.abs().sum(-1) * point.amax(-1, keepdim=True))
    assert torch.allclose(rows.violation(point), (excess / reach).clamp(min=0).amax(-1), rtol=1e-12)


def test_shapes_broadcast_whether_something_is_violated_or_not() -> None:
    one, many = torch.ones(1, 3), torch.ones(4, 1)
    for excess in (one, -one):
        assert torch.equal(relative_excess(excess, many, one, many), excess.clamp(min=0).expand(4, 3))
