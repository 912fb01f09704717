"""Scopes: the variables of every block, as users state them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError, ScopeError
from blocklp.language.expression import View
from blocklp.language.space import Space
from blocklp.options import shown

COMPARED = 4
"""Variables of a block up to which each is compared with each."""


def scope_of(model: Space, scope: View | Sequence[View], block_type: BlockType, none: bool = False) -> Tensor:
    """Read the variables of blocks.

    Parameters
    ----------
    model : Space
        The model of the variables.
    scope : View or sequence of View
        A view ``(blocks, dim)``, or one view ``(blocks,)`` or ``(blocks, k)`` after the other; those of one
        block may be single variables.
    block_type : BlockType
        The type of the blocks.
    none : bool
        Whether there may be no blocks.

    Returns
    -------
    Tensor
        ``(blocks, dim)`` int64: columns of an instance's row.

    Raises
    ------
    ScopeError
        If it is no view or list of views of the model, of one length, as wide as the type, without a variable
        twice in a block.
    """
    views = [scope] if isinstance(scope, View) else list(scope) if isinstance(scope, Iterable) else []
    if not views or not all(isinstance(v, View) for v in views):
        need = "it must be a variable, an indexed variable or a list of them"
        raise ScopeError(f"the scope is {shown(scope)}; {need}")
    if any(v.model is not model for v in views):
        need = "build the blocks from this model's variables"
        raise ScopeError(f"the scope holds variables of another model; {need}")
    if isinstance(scope, View):
        index = scope.index.clone()  # the handle's own
        index = index[None] if index.dim() == 0 or (index.dim() == 1 and block_type.dim != 1) else index
        index = index[:, None] if index.dim() == 1 else index
    else:
        columns = [v.index.reshape(-1, 1) if v.index.dim() < 2 else v.index for v in views]
        lengths = {len(c) for c in columns if c.dim() == 2}
        if len(lengths) != 1 or any(c.dim() != 2 for c in columns):
            shapes = [v.shape for v in views]
            need = "the first axis of each is that of blocks, and single variables are those of one block"
            raise ScopeError(f"the views of a scope need one entry a block, got shapes {shapes}; {need}")
        index = torch.cat(columns, 1)
    if index.dim() != 2 or not index.shape[1] or not (len(index) or none):
        raise ScopeError(f"a scope needs shape (blocks, dim), got {tuple(index.shape)}")
    if block_type.dim is not None and index.shape[1] != block_type.dim:
        width, need = index.shape[1], "the last axis of a scope has the variables of one block"
        if len(index) == block_type.dim:
            need += ", and so x.T has where x is given"
        elif index.numel() == block_type.dim:
            need += ", as x.reshape(1, -1) has all of x"
        told = f"{block_type.name} has {block_type.dim} variables a block, the scope gives {width}"
        raise ScopeError(f"{told}; {need}")
    if (block := _naming_twice(index)) is not None:
        named = index[block].tolist()
        twice = model.entry(next(column for column in named if named.count(column) > 1))
        where = f"block {block} of {block_type.name}"
        raise ScopeError(f"{where} names {twice} twice; every position needs its own variable")
    return index


def refuse_beyond_defaults(model: Space, index: Tensor, block_type: BlockType) -> None:
    """Refuse variables whose bounds reach beyond those that blocks have by default.

    Parameters
    ----------
    model : Space
        The model of the variables.
    index : Tensor
        ``(blocks, dim)`` int64: the scope.
    block_type : BlockType
        The type of the blocks.

    Raises
    ------
    ModelError
        If a variable of :attr:`BlockType.default_sides` does.
    """
    if not (sides := block_type.default_sides) or not index.numel():
        return
    variables = list(model.variables.values())
    stops = np.cumsum([v.columns.stop - v.columns.start for v in variables])
    columns = np.unique(index.numpy())
    owner = np.searchsorted(stops, columns, side="right")
    for first in np.flatnonzero(np.diff(owner, prepend=-1)):
        variable = variables[owner[first]]
        inside = columns[owner == owner[first]]
        entries = np.unravel_index(inside - variable.columns.start, variable.shape or (1,))
        for side in sides:
            bounds = getattr(variable, side).reshape(-1, *(variable.shape or (1,)))[(slice(None), *entries)]
            found = bounds.amin(0) if side == "lower" else bounds.amax(0)
            worst = int(found.argmin() if side == "lower" else found.argmax())
            refuse_beyond_default(block_type, side, found, model.entry(int(inside[worst])))


def refuse_beyond_default(block_type: BlockType, side: str, bounds: Tensor, named: str) -> None:
    """Refuse bounds of variables beyond the one that blocks have by default.

    Parameters
    ----------
    block_type : BlockType
        The type of the blocks.
    side : str
        "lower" or "upper".
    bounds : Tensor
        ``(k,)``, k >= 1: those of variables in its blocks.
    named : str
        The variable that reaches farthest.

    Raises
    ------
    ModelError
        If one is.
    """
    limit, far = (0, float(bounds.min())) if side == "lower" else (1, float(bounds.max()))
    if far < limit if side == "lower" else far > limit:
        name = block_type.name
        raise ModelError(
            f"{name} has {side} bounds of {limit}, as it was given none, and {named} has {far:g}; "
            f"give {name}(..., {side}={far:g}), or {side}={limit} if it shall be so"
        )


def _naming_twice(index: Tensor) -> int | None:
    """The first block of ``(blocks, dim)`` that names a variable twice."""
    rows = index.numpy()
    if rows.shape[1] <= COMPARED:  # quicker than sorting short rows
        columns = np.ascontiguousarray(rows.T)
        masks = [columns[a] == columns[b] for a, b in combinations(range(len(columns)), 2)]
        return min((int(same.argmax()) for same in masks if same.any()), default=None)
    ordered = np.sort(rows, axis=1)
    repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    return int(repeated.argmax()) if repeated.any() else None
