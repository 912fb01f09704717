"""Probe of a block type on a device: every answer is that of the CPU, and lies where the costs do."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from blocklp.blocks.capabilities import (
    HasCompletion,
    HasMinMarginals,
    HasProx,
    HasSoftMin,
    supports,
    value_error_of,
)
from blocklp.blocks.contract import BlockType
from blocklp.blocks.refusals import refuse, size
from blocklp.errors import OracleError
from blocklp.testing.probes import shared_masks


def elsewhere(kind: BlockType, cost: Tensor, other: Tensor, device: torch.device) -> None:
    """Check that a type gives on a device what it gives on the CPU.

    Points are compared by what they cost, since ties may be broken in another way.

    Parameters
    ----------
    kind : BlockType
        The type, its block data on the CPU.
    cost, other : Tensor
        ``(batch, blocks, dim)`` float64 on the CPU: costs, and proximal centres.
    device : torch.device
        The device.

    Raises
    ------
    OracleError
        If an answer differs, lies elsewhere, or cannot be had there.
    """
    there = kind.to(cost.dtype, device)
    here = _answers(kind, cost, other)
    moved = _answers(there, cost.to(device), other.to(device))
    largest = size(cost, torch.maximum(kind.min_oracle(cost)[0].abs(), other.abs())).amax()
    while True:
        try:
            found = next(moved, None)
        except (RuntimeError, TypeError) as error:  # the latter from .numpy()
            remedy = "make what it creates on the device of the cost, and keep data in block_data"
            raise OracleError(f"{kind.name} does not run on {device}: {error}; {remedy}") from error
        if found is None:
            return
        (method, own), (_, expected) = found, next(here)
        if own.device.type != device.type:
            raise OracleError(f"{method} of {kind.name} got costs on {device} and answers on {own.device}")
        same = (own.cpu() == expected) | (own.cpu().isnan() & expected.isnan())
        near = (own.cpu() - expected).abs() <= 1e-9 * (1 + largest)
        bad = ~(same | near)
        refuse(kind, bad.flatten(2).any(-1) if bad.dim() > 2 else bad, f"has another {method} on {device}")


def _answers(kind: BlockType, cost: Tensor, other: Tensor) -> Iterator[tuple[str, Tensor]]:
    """All that a type answers, by the names of its methods: ``(batch, blocks)`` or ``(batch, blocks, k)``."""
    point, value = kind.min_oracle(cost)
    yield "min_oracle", value
    yield "min_oracle", (cost * point).sum(-1)
    yield "min_value", kind.min_value(cost)
    error = value_error_of(kind, cost)
    if error is not None:
        yield "value_error", error
    step = torch.full((len(cost), 1, 1), 0.7, dtype=cost.dtype, device=cost.device)
    for shared in shared_masks(torch.empty(cost.shape[-1:], dtype=cost.dtype)):
        near = kind.prox(cost, other, step, shared) if supports(kind, HasProx) else None
        if near is not None:
            moved = (near - other) * shared.to(near)
            yield "prox", (cost * near).sum(-1) + moved.square().sum(-1) / (2 * step[..., 0])
        full = kind.complete(cost, point, shared) if supports(kind, HasCompletion) else None
        if full is not None:
            chosen = [i for i, s in enumerate(shared.tolist()) if not s]
            yield "complete", (cost[..., chosen] * full).sum(-1)
    marginals = kind.min_marginals(cost) if supports(kind, HasMinMarginals) else None
    if marginals is not None:
        yield "min_marginals", marginals
    soft = kind.soft_min(cost, step) if supports(kind, HasSoftMin) else None
    for found in soft or ():
        yield "soft_min", found
