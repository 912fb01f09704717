"""Kernels that ask functions of blocks, for tests."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocklp.kernels.triton_launch import LANES, launch, programs
from blocklp.kernels.triton_source import BlockFunctions, data_arguments


@triton.jit
def _entries(values, at, mine, first: tl.constexpr, last: tl.constexpr, blocks):  # type: ignore[no-untyped-def]
    found = ()
    for i in tl.static_range(first, last):
        found = found + (tl.load(values + at + i * blocks, mask=mine, other=0.0),)  # noqa: RUF005
    return found


@triton.jit
def _ask(  # type: ignore[no-untyped-def]
    cost, centre, eta, out, blocks, data, strides,
    FUNCTION: tl.constexpr, NAME: tl.constexpr, DIM: tl.constexpr, COUPLED: tl.constexpr, UNROLLED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Ask one function for the blocks of one program; ``out`` has the points, and then the value."""
    row = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine, at = block < blocks, row * (DIM + 1) * blocks + block
    KIND: tl.constexpr = out.dtype.element_ty
    step = tl.load(eta + row)
    if UNROLLED:
        if NAME == "prox_block":
            c, z = _entries(cost, at, mine, COUPLED, DIM, blocks), _entries(centre, at, mine, 0, COUPLED, blocks)
            found = FUNCTION(c, z, step, data, strides, row, block, mine, KIND)
            for i in tl.static_range(DIM):
                tl.store(out + at + i * blocks, found[i], mask=mine)
        elif NAME == "min_block":
            c = _entries(cost, at, mine, 0, DIM, blocks)
            tl.store(out + at + DIM * blocks, FUNCTION(c, data, strides, row, block, mine, KIND), mask=mine)
        else:
            c, x = _entries(cost, at, mine, 0, DIM, blocks), _entries(centre, at, mine, 0, COUPLED, blocks)
            found = FUNCTION(c, x, data, strides, row, block, mine, KIND)
            for i in tl.static_range(COUPLED):
                tl.store(out + at + i * blocks, x[i], mask=mine)
            for i in tl.static_range(DIM - COUPLED + 1):
                tl.store(out + at + (COUPLED + i) * blocks, found[i], mask=mine)
    else:
        if NAME == "prox_block":
            FUNCTION(cost + at, centre + at, step, out + at, blocks, data, strides, row, block, mine, KIND)
        elif NAME == "min_block":
            value = FUNCTION(cost + at, blocks, data, strides, row, block, mine, KIND)
            tl.store(out + at + DIM * blocks, value, mask=mine)
        else:
            for i in range(DIM):
                tl.store(out + at + i * blocks, tl.load(centre + at + i * blocks, mask=mine, other=0.0), mask=mine)
            value = FUNCTION(cost + at, out + at, blocks, data, strides, row, block, mine, KIND)
            tl.store(out + at + DIM * blocks, value, mask=mine)


def asked(functions: BlockFunctions, name: str, kind: Any, cost: Tensor, centre: Tensor, step: Tensor) -> Tensor:
    """Points and values ``(batch, blocks, dim + 1)`` of a function for costs and centres ``(batch, blocks, dim)``."""
    batch, blocks, dim = cost.shape
    laid = [torch.nn.functional.pad(t, (0, 1)).transpose(1, 2).contiguous() for t in (cost, centre)]
    out = torch.zeros(batch, dim + 1, blocks, dtype=cost.dtype)
    data, strides = data_arguments(kind)
    constants = {"FUNCTION": getattr(functions, name), "NAME": name, "DIM": dim, "COUPLED": functions.coupled}
    launch(
        _ask, (programs(blocks), batch), *laid, step, out, blocks, data, strides,
        **constants, UNROLLED=functions.unrolled, BLOCK=LANES,
    )  # fmt: skip
    return out.transpose(1, 2)
