"""Hashes of what is stated and of what is found: equal where all bits are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.results.solution import Solution


def solution_hash(found: Solution) -> str:
    """SHA-256 of the bounds, multipliers and points of a solution.

    What is hashed are the little-endian float64 numbers of ``bound`` ``(batch,)``, then of
    ``state.duals``, block by block in the order of the names, each ``(batch, blocks, dim)``, then of the
    point, ``(batch, variables)`` in the order in which the variables were declared.

    Parameters
    ----------
    found : Solution
        The solution.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    told = hashlib.sha256()
    duals = [found.state.duals[name] for name in sorted(found.state.duals)]
    for numbers in (found.bound, *duals, found.raw_x):
        told.update(_bytes(numbers))
    return told.hexdigest()


def problem_hash(problem: Decomposition, settings: object, start: Sequence[Tensor | None]) -> str:
    """SHA-256 of what a solve is asked.

    Parameters
    ----------
    problem : Decomposition
        The problem.
    settings : object
        Whatever else counts; settings are told apart by how they are printed.
    start : sequence of Tensor or None
        Where the solve starts.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    form = problem.rows is None, problem.batch, list(problem.coupling.maps)
    told = hashlib.sha256(repr((settings, form)).encode())
    for own in start:
        told.update(b"none" if own is None else _bytes(own))
    names = ("cost", "lower", "upper", "offset", "counts", "grid", "beyond")
    for name in names:
        own = getattr(problem, name)
        told.update(name.encode() + (b"" if own is None else _bytes(own)))
    told.update(_bytes(problem.coupling.index))
    for group in problem.groups:
        told.update(repr((group.name, group.type.name, group.blocks, group.dim)).encode())
        for name, own in group.type.tensors().items():
            told.update(name.encode() + repr(tuple(own.shape)).encode())
            told.update(_bytes(own))
    return told.hexdigest()


def _bytes(numbers: Tensor) -> bytes:
    """The numbers as they lie in memory, little-endian."""
    array = numbers.detach().cpu().contiguous().numpy()
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).tobytes()
