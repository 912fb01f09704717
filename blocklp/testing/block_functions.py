"""The functions of one block that types state (:class:`HasProxBlock`), called in Python to check them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.kernels.block_source import data_of


def point_of(kind: BlockType, place: tuple[int, int], cost: Tensor, centre: Tensor, step: float) -> Tensor:
    """The proximal point of one block by its type's function, in Python: to check it.

    Parameters
    ----------
    kind : BlockType
        A type with such a function.
    place : tuple of int
        Instance and block.
    cost, centre : Tensor
        ``(dim,)`` float64.
    step : float
        Proximal step length, positive.

    Returns
    -------
    Tensor
        ``(dim,)`` float64.
    """
    function, found = _function(kind, "prox_block"), np.empty(len(cost))
    function(cost.numpy(), centre.numpy(), step, found, *_own_data(kind, function, place))
    return torch.from_numpy(found)


def value_of(kind: BlockType, place: tuple[int, int], cost: Tensor) -> float:
    """Ask a type's function for the least value of one block, in Python.

    Parameters
    ----------
    kind : BlockType
        The type.
    place : tuple of int
        Numbers of instance and block.
    cost : Tensor
        ``(dim,)`` float64.

    Returns
    -------
    float
        The value.
    """
    function = _function(kind, "min_block")
    return float(function(cost.numpy(), *_own_data(kind, function, place)))


def completed_of(
    kind: BlockType, place: tuple[int, int], cost: Tensor, point: Tensor
) -> tuple[Tensor, float]:
    """Ask a type's function to complete the point of one block, in Python.

    Parameters
    ----------
    kind, place
        As in :func:`value_of`.
    cost, point : Tensor
        ``(dim,)`` float64.

    Returns
    -------
    point, violation : Tensor, float
        ``(dim,)``: the point completed, and how far it leaves the block.
    """
    function, found = _function(kind, "complete_block"), point.numpy().copy()
    violation = function(cost.numpy(), found, *_own_data(kind, function, place))
    return torch.from_numpy(found), float(violation)


def _function(kind: BlockType, name: str) -> Callable[..., Any]:
    """A function of one block that a type has."""
    function: Callable[..., Any] = getattr(type(kind), name)
    return function


def _own_data(kind: BlockType, function: Callable[..., Any], place: tuple[int, int]) -> list[Any]:
    """The data of one block that a function reads."""
    instance, block = place
    data = [getattr(kind, name) for name in data_of(function)]
    return [None if t is None else t[instance % len(t), block % t.shape[1]].numpy() for t in data]
