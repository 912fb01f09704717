"""What layers keep of earlier solves, by rows of a data set: the warm starts of the next epoch."""

from __future__ import annotations

import torch
from torch import Tensor


class Memory:
    """Tensors of data set rows, one for each name; a row that was never put holds zeros.

    Tensors may grow in any dimension from one call to the next: what is shorter is filled up with zeros.
    """

    def __init__(self) -> None:
        self.known = torch.zeros(0, dtype=torch.bool)
        self.tensors: dict[str, Tensor] = {}

    def take(self, rows: Tensor) -> dict[str, Tensor] | None:
        """Tensors ``(k, ...)`` of rows ``(k,)`` int64, or None unless all of them are known."""
        if not len(rows) or int(rows.max()) >= len(self.known) or not bool(self.known[rows].all()):
            return None
        return {name: own.index_select(0, rows.to(own.device)) for name, own in self.tensors.items()}

    def put(self, rows: Tensor, tensors: dict[str, Tensor]) -> None:
        """Keep tensors ``(k, ...)`` of rows ``(k,)`` int64; of a row that is given twice, either one."""
        size = max(len(self.known), int(rows.max()) + 1 if len(rows) else 0)
        self.known = _filled(self.known, (size,))
        self.known[rows] = True
        for name, own in tensors.items():
            before = self.tensors.get(name, own.new_zeros(0, *own.shape[1:]))
            inner = [max(a, b) for a, b in zip(before.shape[1:], own.shape[1:], strict=True)]
            if before.shape != (size, *inner):
                before = _filled(before, (size, *inner))
            before[rows.to(own.device)] = _filled(own, (len(own), *inner))
            self.tensors[name] = before


def _filled(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Values with zeros behind in every dimension."""
    if values.shape == shape:
        return values
    more = [n for have, want in zip(values.shape[::-1], shape[::-1], strict=True) for n in (0, want - have)]
    return torch.nn.functional.pad(values, more)
