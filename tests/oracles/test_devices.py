"""The oracles on a device give what they give on the CPU."""

import numpy as np
import pytest
import torch

from blocklp.blocks.contract import BlockType
from blocklp.oracles import (
    Arborescence,
    AtMostOne,
    Box,
    Cut,
    Edge,
    FourCycle,
    Knapsack,
    Pairwise,
    Path,
    Polytope,
    ResourcePath,
    Schedule,
    Simplex,
    Transport,
    Tree,
    Triangle,
)

KINDS: list[BlockType] = [
    Edge(),
    Triangle(),
    FourCycle(),
    Simplex(5),
    AtMostOne(5),
    Pairwise(2, 3),
    Box(np.zeros(4), np.ones(4)),
    Knapsack([0.0, 1.0, 2.0, 0.5], 1.25),
    Knapsack([-1.0, 1.0, 2.0, 0.5], 1.25, least=0.25),
    Simplex(5, 0.3),
    Transport([1.0, 2.0], [0.5, 1.0, 1.0]),
    Path([0, 0, 1], [1, 2, 2], 0, 2),
    Path([0, 0, 1, 2], [1, 2, 2, 0], 0, 2, 1.5),
    Cut([0, 0, 1], [1, 2, 2], 0, 2),
    ResourcePath([0, 0, 1, 2], [1, 2, 2, 1], 0, 2, [[1]], [[4]], demand=0.5),
    Arborescence([0, 0, 1, 2], [1, 2, 2, 1]),
    Schedule([1, 2], 3),
    Tree([0, 0, 1], [1, 2, 2]),
    Tree([0, 0, 1], [1, 2, 2], forest=True),
    Polytope([[1.0, 2.0, -1.0]], [0.0], [1.0], -np.ones(3), np.ones(3)),
    Polytope(np.ones((1, 7)), [0.0], [1.5], np.zeros(7), np.ones(7)),
]


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_same_as_cpu(kind: BlockType, dtype: torch.dtype, device: torch.device) -> None:
    assert kind.dim is not None
    cost = torch.randn(2, 50, kind.dim, generator=torch.Generator().manual_seed(0)).round(decimals=2).to(dtype)
    value = kind.to(dtype, cost.device).min_oracle(cost)[1]
    found, same = kind.to(dtype, device).min_oracle(cost.to(device))
    assert found.device.type == same.device.type == device.type and found.dtype == same.dtype == dtype
    slack = 16 * torch.finfo(dtype).eps * cost.abs().sum(-1)
    assert ((same.cpu() - value).abs() <= slack).all()
    assert (((cost * found.cpu()).sum(-1) - value).abs() <= slack + 1e-9).all()
