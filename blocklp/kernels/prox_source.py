"""Compiled passes for block types that bring a proximal point of one block (:class:`HasProxBlock`).

The source of the function and a loop over blocks make a module of their own.  Its name is a digest of its
text, so that an edited function is another module.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import logging
import os
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp import generated
from blocklp.blocks.capabilities import HasProxBlock, supports
from blocklp.blocks.contract import BlockType
from blocklp.kernels.prox_kernels import pass_over_blocks

FIXED = ("cost", "centre", "step", "point")
"""The first parameters of every such function; the others are names of block data."""

TEMPLATE = '''"""A pass of ADMM over blocks of {owner}, written by blocklp."""

import math

import numpy as np

from blocklp.kernels.compiled import TILE, compile, kernel


@compile(nogil=True, error_model="numpy")
{source}


@compile(nogil=True, error_model="numpy")
def prox(cost, centre, step, point, data, instance, block):
    {name}(cost, centre, step, point{arguments})


@kernel(grain=8)
{loop}
'''


def module_of(kind: BlockType) -> str | None:
    """The name of the module of a type's passes, written if it is not there; None where there is none.

    Parameters
    ----------
    kind : BlockType
        The type; which of its block data are None decides what is compiled.
    """
    if not supports(kind, HasProxBlock):
        return None
    function = type(kind).prox_block
    absent = tuple(getattr(kind, name) is None for name in data_of(function))
    return _written(function, type(kind).__name__, absent)


def data_of(function: Callable[..., None]) -> tuple[str, ...]:
    """The names of the block data that a function for one block reads."""
    return tuple(inspect.signature(function).parameters)[len(FIXED) :]


@functools.cache
def _written(function: Callable[..., None], owner: str, absent: tuple[bool, ...]) -> str | None:
    """Write the module of a function, whose data are None where ``absent`` says so."""
    try:
        source = _source(function)
    except (OSError, SyntaxError, TypeError):  # typed in where no source is kept
        logging.getLogger("blocklp").info("%s.prox_block has no source: tensor operations serve", owner)
        return None
    given = [n for n, missing in enumerate(absent) if not missing]
    at = {n: f"data[{k}][instance % len(data[{k}]), block % data[{k}].shape[1]]" for k, n in enumerate(given)}
    arguments = "".join(", " + at.get(n, "None") for n in range(len(absent)))
    loop = _source(pass_over_blocks)
    text = TEMPLATE.format(owner=owner, source=source, name=function.__name__, arguments=arguments, loop=loop)
    name = f"prox_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    place = generated.folder() / f"{name}.py"
    try:
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = place.with_suffix(f".{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            draft.replace(place)
    except OSError as error:
        logging.getLogger("blocklp").info("%s cannot be written (%s): tensor operations serve", place, error)
        return None
    return f"{generated.__name__}.{name}"


def _source(function: Callable[..., None]) -> str:
    """The text of a function, without decorators and annotations."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(found, ast.FunctionDef):
        raise SyntaxError("no function")
    found.decorator_list, found.returns = [], None
    for argument in found.args.args:
        argument.annotation = None
    return ast.unparse(found)


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
    assert supports(kind, HasProxBlock)
    function, (instance, block) = type(kind).prox_block, place
    data = [getattr(kind, name) for name in data_of(function)]
    own = (None if t is None else t[instance % len(t), block % t.shape[1]].numpy() for t in data)
    found = np.empty(len(cost))
    function(cost.numpy(), centre.numpy(), step, found, *own)
    return torch.from_numpy(found)


def block_data(kind: BlockType) -> tuple[Any, ...]:
    """The tensors that the function of a type reads, without those that are None."""
    assert supports(kind, HasProxBlock)
    function = type(kind).prox_block
    return tuple(t for name in data_of(function) if (t := getattr(kind, name)) is not None)
