"""Integer sums in loops that numba compiles for the CPU; imported where these serve a solve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blocklp.distributed import integer_kernels as loops
from blocklp.kernels.operations import implements


@implements("largest_shared", "numba")
def _largest_shared(coupling: Any, copies: Tensor) -> Tensor:
    """See :func:`blocklp.distributed.shared_coupling.largest_shared`."""
    most = [loops.largest_of_shared(row, coupling.targets) for row in copies.numpy()]
    return torch.tensor(most, dtype=torch.float64)


@implements("integer_copies", "numba")
def _integer_copies(coupling: Any, copies: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.distributed.shared_coupling.integer_copies`."""
    sums = torch.zeros(len(copies), len(coupling.several), dtype=torch.long)
    total = copies.new_zeros(len(copies), coupling.variables)
    for row, own, unit, found in zip(
        copies.numpy(), sums.numpy(), scale.tolist(), total.numpy(), strict=True
    ):
        loops.add_copies(row, coupling.targets, unit, own, found)
    return sums, total


@implements("largest_magnitude", "numba")
def _largest_magnitude(totals: Any, terms: Tensor) -> Tensor:
    """See :func:`blocklp.distributed.totals.largest_magnitude`."""
    return torch.tensor([loops.largest_term(row) for row in terms.numpy()], dtype=torch.float64)


@implements("integer_terms", "numba")
def _integer_terms(totals: Any, terms: Tensor, scale: Tensor, finer: int) -> Tensor:
    """See :func:`blocklp.distributed.totals.integer_terms`."""
    rows = zip(terms.numpy(), scale.tolist(), strict=True)
    return torch.tensor([loops.add_terms(row, unit, 2.0**finer) for row, unit in rows]).T.contiguous()
