"""Tensors with a leading batch dimension in nested tuples, lists and dicts, and their numbers as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.options import numbers, without_gradients

Structure = Any
"""A tensor ``(batch, ...)``, or a tuple, list or dict of structures."""


def leaves(structure: Structure, what: str, error: type[Exception]) -> Iterator[Tensor]:
    """Tensors of a structure, in order.

    Parameters
    ----------
    structure : structure
        The tensors.
    what : str
        Name of the structure, for messages.
    error : type
        Raised if it holds anything else.

    Yields
    ------
    Tensor
        Of any shape.

    Raises
    ------
    BlocklpError
        Of the given type, if the structure holds anything else.
    """
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, tuple | list | dict) and structure:
        for part in structure.values() if isinstance(structure, dict) else structure:
            yield from leaves(part, what, error)
    else:
        kind = type(structure).__name__
        raise error(f"{what} holds {kind}; it may be a tensor, or a tuple, list or dict of tensors")


def pack(structure: Structure, what: str = "c") -> Tensor:
    """Lay a structure out as rows ``(batch, numbers)``, float64, a copy.

    Raises
    ------
    ModelError
        If it holds complex numbers, or tensors that require gradients while autograd is on.
    """
    rows = []
    for part in leaves(structure, what, ShapeError):
        if part.is_complex():
            raise ModelError(f"{what} holds complex numbers; give real ones")
        without_gradients(part, what)
        rows.append(part.detach().double().reshape(len(part), -1))
    return torch.cat(rows, 1)


def unpack(rows: Tensor, like: Structure) -> Structure:
    """The structure, shaped as ``like``, whose numbers :func:`pack` lays out as ``rows``."""
    sizes = [p.shape[1:].numel() for p in leaves(like, "c", ShapeError)]
    pieces = iter(torch.split(rows, sizes, 1))

    def build(form: Structure) -> Structure:
        if isinstance(form, Tensor):
            return next(pieces).reshape(len(rows), *form.shape[1:])
        if isinstance(form, dict):
            return {k: build(v) for k, v in form.items()}
        return type(form)(build(v) for v in form)

    return build(like)


def same_form(structure: Structure, like: Structure) -> bool:
    """Whether two structures agree in containers and shapes."""
    if isinstance(like, Tensor):
        return isinstance(structure, Tensor) and structure.shape == like.shape
    if type(structure) is not type(like) or len(structure) != len(like):
        return False
    if isinstance(like, dict):
        return list(structure) == list(like) and all(same_form(structure[k], like[k]) for k in like)
    return all(same_form(a, b) for a, b in zip(structure, like, strict=True))


def bounded(like: Structure, side: Structure, name: str) -> Structure:
    """Broadcast bounds to a structure.

    Parameters
    ----------
    like : structure
        The tensors that are bounded.
    side : structure or number
        Their bounds; numbers may stand for whole parts.
    name : str
        Of the bounds, for messages.

    Returns
    -------
    structure
        Of the shapes of ``like``.

    Raises
    ------
    ShapeError
        If the bounds do not broadcast.
    """
    if isinstance(like, Tensor):
        given = numbers(side, name)
        try:
            return given.to(like).expand_as(like)
        except RuntimeError as error:
            raise ShapeError(f"{name} does not broadcast to a tensor {tuple(like.shape)} of c") from error
    if not isinstance(side, tuple | list | dict):
        side = {k: side for k in like} if isinstance(like, dict) else type(like)(side for _ in like)
    keys = isinstance(like, dict) and isinstance(side, dict) and side.keys() != like.keys()
    if type(side) is not type(like) or len(side) != len(like) or keys:
        raise ShapeError(f"{name} must have the structure of c, or be a number")
    if isinstance(like, dict):
        return {k: bounded(like[k], side[k], name) for k in like}
    return type(like)(bounded(a, b, name) for a, b in zip(like, side, strict=True))
