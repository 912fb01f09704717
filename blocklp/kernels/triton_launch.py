"""How kernels are launched: so many lanes a program, on the device of its tensors, and no fused additions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import triton

from blocklp.kernels.backend import current

Given = ParamSpec("Given")
Result = TypeVar("Result")

WARPS = 8
LANES = 32 * WARPS
"""Lanes of a program, one a thread: what a lane wrote to memory it can read without a barrier."""


def kernel(function: Callable[..., None]) -> Any:
    """Make a kernel that is compiled once, whatever the values of its arguments, but for those constant."""
    own = inspect.signature(function).parameters.values()
    values = [each.name for each in own if "constexpr" not in str(each.annotation)]
    return triton.jit(function, do_not_specialize=values, do_not_specialize_on_alignment=values)


def launch(started: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Start a kernel; a grid without programs starts none.

    Sums and products are rounded one after the other, so that a kernel gives the bits of tensor operations.

    Parameters
    ----------
    started : JITFunction
        A :func:`kernel` whose programs have :data:`LANES` lanes.
    grid : tuple of int
        Numbers of programs.
    *args, **constants
        Its arguments, by place and by name.
    """
    if not all(grid):
        return
    with current(next(_tensors(args)).device), np.errstate(all="ignore"):
        # The interpreter is numpy, which warns of lanes that are masked.
        started[grid](*args, **constants, num_warps=WARPS, enable_fp_fusion=False)


def on_its_device(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Have kernels that a function starts run on the device of the first tensor that it is given."""

    @functools.wraps(function)
    def placed(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with current(next(_tensors((*args, *kwargs.values()))).device):
            return function(*args, **kwargs)

    return placed


def _tensors(args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    """Tensors among the arguments of a kernel, those in tuples too."""
    for own in args:
        if isinstance(own, tuple):
            yield from _tensors(own)
        elif isinstance(own, torch.Tensor):
            yield own


def programs(lanes: int) -> int:
    """How many programs have so many lanes."""
    return int(triton.cdiv(lanes, LANES))
