"""Affine operations that become sparse matrices: moves and copies of elements, reductions, stacks of matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from blocklp.errors import ModelError, ShapeError
from blocklp.problems.verification.lowering import Array, Lowering, Value, broadcast
from blocklp.problems.verification.operations import Shape

MOST_PROBED = 2_000_000
"""Entries of a matrix that is found by evaluating every unit vector."""


def moved(
    lowering: Lowering, values: Sequence[Value], evaluate: Callable[[list[Array]], Sequence[Array]], name: str
) -> list[Value | Array]:
    """Results of an operation that only moves elements about, or puts constants in their place.

    Where its elements go is found by evaluating it on their numbers: it needs no code of its own here.

    Parameters
    ----------
    values : sequence of Value
        Arguments that depend on the input.
    evaluate : callable
        Gets arrays of float64 in their place and returns all results.
    name : str
        Of the operation.

    Returns
    -------
    list of Value or ndarray
        The results; an array where no element of the arguments is left.
    """
    starts = list(itertools.accumulate((math.prod(value.shape) for value in values), initial=1))
    constants = evaluate([np.zeros(value.shape) for value in values])
    moved = evaluate([(start + value.numbers).astype(np.float64) for start, value in zip(starts, values, strict=False)])
    results: list[Value | Array] = []
    for constant, result in zip(constants, moved, strict=True):
        constant = np.asarray(constant, dtype=np.float64)
        if not np.isfinite(constant).all():
            raise ModelError("constants that are infinite or no numbers are not supported; use finite ones")
        numbers = (np.asarray(result) - constant).astype(np.int64)
        found: Value | Array = constant
        for start, end, value in zip(starts, starts[1:], values, strict=False):
            mine = (start <= numbers) & (numbers < end)
            if not mine.any():
                continue
            if isinstance(found, Value):
                found = lowering.add(found, lowering.pick(value, np.where(mine, numbers - start, -1), name), name)
            else:
                found = lowering.pick(value, np.where(mine, numbers - start, -1), name, constant)
        results.append(found)
    return results


def probed(lowering: Lowering, value: Value, evaluate: Callable[[Array], Array], name: str) -> Value:
    """Result of a linear operation of which nothing is known but how to evaluate it: on every unit vector.

    Parameters
    ----------
    value : Value
        The argument.
    evaluate : callable
        Gets an array of float64 in its place and returns the result.
    name : str
        Of the operation.
    """
    size, shape = math.prod(value.shape), np.shape(evaluate(np.zeros(value.shape)))
    lowering.builder.take(size * math.prod(shape), name)
    if size * math.prod(shape) > MOST_PROBED:
        raise ModelError(f"a map of {size} to {math.prod(shape)} numbers is too large here; write it as MatMul or Conv")
    units = np.eye(size).reshape(size, *value.shape)
    matrix = np.stack([np.asarray(evaluate(unit), dtype=np.float64).reshape(-1) for unit in units], 1)
    rows, columns = matrix.nonzero()
    return lowering.computed(lowering.sparse(value, shape, (rows, columns, matrix[rows, columns]), 0.0, name))


def reduce(lowering: Lowering, value: Value, axes: Sequence[int] | None, keep: bool, mean: bool, name: str) -> Value:
    """Sum or mean over axes.

    Parameters
    ----------
    value : Value
        The argument.
    axes : sequence of int or None
        Negative ones count from the end; None for all.
    keep : bool
        Keep them with size one.
    mean : bool
        Whether to divide by the number of summands.
    name : str
        Of the operation.
    """
    kept, shape = reduced(value, axes, keep)
    result = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), value.shape).reshape(-1)
    size = len(result) // math.prod(kept)
    if size == 1:
        return lowering.reshape(value, shape)
    weights = np.full(len(result), 1 / size if mean else 1.0)
    return lowering.sparse(value, shape, (result, value.numbers.reshape(-1), weights), 0.0, name)


def reduced(value: Value, axes: Sequence[int] | None, keep: bool) -> tuple[Shape, Shape]:
    """Return the shape of a reduction with its axes kept, and the shape of its result.

    Parameters
    ----------
    value, axes, keep
        As in :func:`reduce`.
    """
    rank = len(value.shape)
    if any(not -rank <= axis < rank for axis in axes or ()):
        raise ShapeError(f"axes {axes} are not all axes of {value.shape}")
    gone = set(range(rank)) if axes is None else {axis % rank for axis in axes}
    kept = tuple(1 if axis in gone else n for axis, n in enumerate(value.shape))
    return kept, kept if keep else tuple(n for axis, n in enumerate(value.shape) if axis not in gone)


def matmul(lowering: Lowering, value: Value, weight: Tensor, left: bool, name: str) -> Value:
    """Product of a value and a constant, matrices, vectors or stacks of them, as numpy's ``matmul``.

    Parameters
    ----------
    lowering, value : Lowering, Value
        The network so far, and the argument.
    weight : Tensor
        The constant.
    left : bool
        Whether the constant is to the left.
    name : str
        Of the operation.
    """
    while weight.dim() > 2 and weight.shape[0] == 1 and len(value.shape) >= weight.dim():
        weight = weight[0]
    # A vector is a matrix whose axis of size one is missing in the result.
    vector = weight.dim() == 1
    weight = (weight[None] if left else weight[:, None]) if vector else weight
    if weight.dim() > 2 or (left and math.prod(value.shape[:-2]) != 1):
        result = stacked(lowering, value, weight, left, name)
    elif left:
        result = lowering.linear_left(value, weight, name)
    else:
        result = lowering.linear(value, weight.T, None, name)
    if not vector:
        return result
    gone = max(len(result.shape) - 2, 0) if left else len(result.shape) - 1
    return lowering.reshape(result, (*result.shape[:gone], *result.shape[gone + 1 :]))


def stacked(lowering: Lowering, value: Value, weight: Tensor, left: bool, name: str) -> Value:
    """Products of two stacks of matrices, one of them constant; leading axes broadcast.

    Parameters
    ----------
    value : Value
        Of shape ``(..., rows, inner)``, or ``(..., inner, columns)`` with ``left``.
    weight : Tensor
        ``(..., inner, columns)``, or ``(..., rows, inner)`` with ``left``.
    left : bool
        Whether the constants are to the left.
    name : str
        Of the operation.
    """
    numbers = value.numbers if len(value.shape) > 1 else value.numbers[:, None] if left else value.numbers[None]
    one, other = (weight.double().numpy(), numbers) if left else (numbers, weight.double().numpy())
    if one.shape[-1] != other.shape[-2]:
        raise ShapeError(f"matrices {one.shape} and {other.shape} cannot be multiplied")
    shape = (*broadcast(one.shape[:-2], other.shape[:-2]), one.shape[-2], other.shape[-1])
    lowering.builder.take(3 * math.prod(shape) * one.shape[-1], name)
    both = np.broadcast_arrays(one[..., :, :, None], other[..., None, :, :])  # (..., rows, inner, columns)
    factors, columns = both if left else both[::-1]
    rows = np.broadcast_to(np.arange(math.prod(shape)).reshape(*shape[:-1], 1, shape[-1]), columns.shape)
    found = lowering.sparse(value, shape, (rows.reshape(-1), columns.reshape(-1), factors.reshape(-1)), 0.0, name)
    if len(value.shape) > 1:
        return found
    return lowering.reshape(found, shape[:-1] if left else (*shape[:-2], shape[-1]))
