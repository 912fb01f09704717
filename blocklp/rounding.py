"""Bounds of rounding errors."""

from __future__ import annotations

import torch
from torch import Tensor


def rounding(terms: int | Tensor, dtype: torch.dtype) -> float | Tensor:
    r""":math:`\gamma_n = n u / (1 - n u)` for n ``terms``, doubled to cover its own rounding."""
    unit = torch.finfo(dtype).eps
    return 2 * terms * unit / (1 - 2 * terms * unit)


def roundoff(terms: int, size: Tensor) -> Tensor:
    """Rounding error of ``terms`` operations on numbers whose magnitudes sum to ``size``, with underflow."""
    return rounding(terms, size.dtype) * size + terms * torch.finfo(size.dtype).tiny
