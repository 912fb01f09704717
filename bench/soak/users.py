"""Block types as users write them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import blocklp as bl

Array = NDArray[np.float64]


class Listed(bl.BlockType):
    """A type as users write them: an oracle alone."""

    def __init__(self, table: Array) -> None:
        self.table = torch.as_tensor(table)
        self.dim = self.table.shape[1]

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """The best row."""
        table = self.table.to(cost)
        point = table[(cost @ table.T).argmin(-1)]
        return point, (cost * point).sum(-1)


class Charged(Listed):
    """The same type with an error of its value, as the conformance tests want it."""

    def value_error(self, cost: Tensor) -> Tensor:
        """A generous charge for rounding."""
        return 64 * torch.finfo(cost.dtype).eps * (cost.abs() @ self.table.abs().amax(0).to(cost))


class Single(Listed):
    """An oracle that calculates in single precision and answers in double."""

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """The best row, its value as float32 knows it."""
        table, given = self.table.float(), cost.float()
        point = table[(given @ table.T).argmin(-1)]
        return point.to(cost.dtype), (given * point).sum(-1).to(cost.dtype)
