"""Hashes of what is stated and of what is found: equal where all bits are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.decomposition.problem import Decomposition
from blocklp.distributed.processes import Processes, taking_part
from blocklp.errors import ModelError
from blocklp.language.handles import ROWS
from blocklp.language.statement import Statement
from blocklp.results.solution import Solution


def solution_hash(found: Solution, mesh: Any = None) -> str:
    """SHA-256 of the bounds, multipliers and points of a solution.

    What is hashed are the little-endian float64 numbers of ``bound`` ``(batch,)``, then of
    ``state.duals``, block by block in the order of the names, each ``(batch, blocks, dim)``, then of the
    point, ``(batch, variables)`` in the order in which the variables were declared.

    Parameters
    ----------
    found : Solution
        The solution.
    mesh : Mesh, ProcessGroup, DeviceMesh or True, optional
        The processes of the solve, where each stated a part of the model.  All of them call this, and tell
        each other what only one of them knows, a piece at a time: blocks and private variables come in the
        order of the processes.

    Returns
    -------
    str
        64 hexadecimal digits, the same in all processes.

    Raises
    ------
    ModelError
        If other processes have parts of the solution, and ``mesh`` is not given.
    """
    told, model = hashlib.sha256(), found.solver.owner(found.numbers.start)[0]
    if model.part is not None and model.part.world > 1:
        if mesh is None:
            raise ModelError("other processes have parts of the solution; give their mesh, in all of them")
        with taking_part(mesh) as processes:
            for numbers in _in_order(found, model, processes):
                told.update(_bytes(numbers))
        return told.hexdigest()
    duals = [found.state.duals[name] for name in sorted(found.state.duals)]
    for numbers in (found.bound, *duals, found.raw_x):
        told.update(_bytes(numbers))
    return told.hexdigest()


def _in_order(found: Solution, model: Statement, processes: Processes) -> Iterator[Tensor]:
    """What is hashed of a solution of which processes have parts, in pieces."""

    def by_variable(values: Tensor) -> Iterator[Tensor]:
        for name, own in model.variables.items():
            mine = values[0, own.columns].contiguous()
            yield from processes.pieces(mine) if name in model.private else [mine]

    yield found.bound
    for name in sorted(found.state.duals):
        own = found.state.duals[name]
        if name == ROWS:  # all processes have all prices
            yield own
        else:
            yield from by_variable(own[..., 0]) if name == BOX else processes.pieces(own.reshape(-1))
    yield from by_variable(found.raw_x)


def problem_hash(
    problem: Decomposition,
    settings: object,
    start: Sequence[Tensor | None],
    common: Tensor | None = None,
) -> str:
    """SHA-256 of what a solve is asked, as far as all processes state it alike.

    Parameters
    ----------
    problem : Decomposition
        The problem.
    settings : object
        Whatever else counts; settings are told apart by how they are printed.
    start : sequence of Tensor or None
        Where the solve starts.
    common : Tensor, optional
        ``(variables,)`` bool: which variables all processes state, where each states blocks of its own; these
        do not count then.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    form = problem.rows is None, problem.batch, list(problem.coupling.maps)
    told = hashlib.sha256(repr((settings, form)).encode())
    for own in start:
        told.update(b"none" if own is None else _bytes(own))
    for name in ("cost", "lower", "upper", "counts", "grid", "beyond"):
        own = getattr(problem, name)
        if common is not None:
            own = None if own is None or name in ("counts", "beyond") else own[:, common]
        told.update(name.encode() + (b"" if own is None else _bytes(own)))
    told.update(_bytes(problem.offset))
    if (rows := problem.rows) is not None:
        parts = {name: getattr(rows, name) for name in ("lower", "upper", "row", "column", "entry")}
        if common is not None:
            alike, number = common[rows.column], common.cumsum(0) - 1
            entries = {"row": rows.row, "column": number[rows.column], "entry": rows.entry}
            parts |= {name: own[alike] for name, own in entries.items()}
        for name, own in parts.items():
            told.update(name.encode() + _bytes(own))
    if common is not None:
        return told.hexdigest()
    told.update(_bytes(problem.coupling.index))
    for group in problem.groups:
        told.update(repr((group.name, group.type.name, group.blocks, group.dim)).encode())
        for name, own in group.type.tensors().items():
            told.update(name.encode() + repr(tuple(own.shape)).encode())
            told.update(_bytes(own))
    return told.hexdigest()


def items_hash(name: str, ids: Tensor, *numbers: Tensor) -> Tensor:
    """Sum 64-bit hashes of items, modulo 2^64: the same whatever their order, and whoever has which of them.

    Parameters
    ----------
    name : str
        What the items are.
    ids : Tensor
        ``(items,)`` int64: which items.
    *numbers : Tensor
        ``(items, ...)`` each: their numbers, the bits of which count as those of float64 or int64.

    Returns
    -------
    Tensor
        ``(1,)`` int64, to be added to those of other processes.
    """
    start = np.frombuffer(hashlib.sha256(name.encode()).digest()[:8], "<u8")
    own = _mixed(ids.numpy().view(np.uint64) + start)
    for values in numbers:
        table = values.detach().reshape(len(ids), math.prod(values.shape[1:])).T
        wide = table.double().contiguous().view(torch.int64) if table.is_floating_point() else table.long()
        for column in wide.contiguous().numpy().view(np.uint64):
            own = _mixed(own ^ column)
    return torch.from_numpy(own.sum(keepdims=True).view(np.int64))


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The last step of splitmix64 (Steele, Lea, Flood 2014): every bit changes half of the others."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _bytes(numbers: Tensor) -> bytes:
    """The numbers as they lie in memory, little-endian."""
    array = numbers.detach().cpu().contiguous().numpy()
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).tobytes()
