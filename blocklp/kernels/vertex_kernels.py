"""Weights of active vertices, and the directions within their faces, compiled for the CPU.

Operations are those of :mod:`blocklp.learning.nearest`; every block takes as many steps as it needs, and only
over the vertices that it has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import compile, kernel


@kernel(grain=64)
def descend(
    first: int,
    last: int,
    vertices: Any,
    target: Any,
    active: Any,
    weights: Any,
    settings: Any,
) -> None:
    """Go to the nearest points of affine hulls, and drop vertices whose weight becomes zero.

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    vertices, target : ndarray
        ``(blocks, places, dim)`` and ``(blocks, dim)`` float64.
    active : ndarray
        ``(blocks, places)`` bool: vertices to take.
    weights : ndarray
        ``(blocks, places)`` float64, written over.
    settings : tuple of float
        What is added to diagonals of Gram matrices, and the weight up to which a vertex leaves.
    """
    ridge, none = settings
    places, dim = vertices.shape[1:]
    place, own = np.empty(places, np.int64), np.empty(places)
    apart, point = np.empty((places, dim)), np.empty(dim)
    factor, right = np.empty((places, places)), np.empty((2, places))
    for b in range(first, last):
        count = 0
        for k in range(places):
            if active[b, k]:
                place[count], own[count] = k, weights[b, k]
                count += 1
            weights[b, k] = 0.0
        leaving = True
        while leaving:
            point[:] = 0.0
            for i in range(count):
                for d in range(dim):
                    point[d] += own[i] * vertices[b, place[i], d]
            for i in range(count):
                for d in range(dim):
                    apart[i, d] = vertices[b, place[i], d] - point[d]
            _affine_step(count, apart, target[b], point, ridge, factor, right)
            step, length, leaving = right[0], 1.0, False
            for i in range(count):
                if step[i] < 0 and own[i] + step[i] <= none:
                    length, leaving = min(length, own[i] / -step[i]), True
            total, kept = 0.0, 0
            for i in range(count):
                blocking = step[i] < 0 and own[i] + step[i] <= none and own[i] / -step[i] <= length
                moved = own[i] + length * step[i]
                if blocking or moved <= none:
                    continue
                place[kept], own[kept] = place[i], moved
                total += moved
                kept += 1
            count = kept
            for i in range(count):
                own[i] /= total
        for i in range(count):
            weights[b, place[i]] = own[i]


@compile(nogil=True, error_model="numpy")
def _affine_step(
    count: int, apart: Any, target: Any, point: Any, ridge: float, factor: Any, right: Any
) -> None:
    """The change of weights to the nearest point of the affine hull, into ``right[0]``; zero if it has none.

    Parameters
    ----------
    count : int
        Number of vertices.
    apart : ndarray
        ``(places, dim)``: vertices less the point.
    target, point : ndarray
        ``(dim,)`` each.
    ridge : float
        What is added to the diagonal of the scaled Gram matrix.
    factor, right : ndarray
        Room, ``(places, places)`` and ``(2, places)``.
    """
    scale = 0.0
    for i in range(count):
        for j in range(i + 1):
            factor[i, j] = _product(apart[i], apart[j])
        scale = max(scale, factor[i, i])
        total = 0.0
        for d in range(len(point)):
            total += apart[i, d] * (target[d] - point[d])
        right[0, i], right[1, i] = total, 1.0
    if not scale > 0:
        scale = 1.0
    for i in range(count):  # G / scale + 1 1' + ridge, and its Cholesky factor
        right[0, i] /= scale
        for j in range(i + 1):
            total = factor[i, j] / scale + 1.0
            if i == j:
                total += ridge
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            factor[i, j] = np.sqrt(total) if i == j else total / factor[j, j]
    for s in range(2):
        for i in range(count):
            total = right[s, i]
            for k in range(i):
                total -= factor[i, k] * right[s, k]
            right[s, i] = total / factor[i, i]
        for i in range(count - 1, -1, -1):
            total = right[s, i]
            for k in range(i + 1, count):
                total -= factor[k, i] * right[s, k]
            right[s, i] = total / factor[i, i]
    one, other = 0.0, 0.0
    for i in range(count):
        one += right[0, i]
        other += right[1, i]
    finite = True
    for i in range(count):
        right[0, i] -= right[1, i] * (one / other)
        finite &= np.isfinite(right[0, i])
    if not finite:
        right[0, :count] = 0.0


@kernel(grain=64)
def tangents(first: int, last: int, vertices: Any, weights: Any, settings: Any, basis: Any) -> None:
    """Orthonormal directions within the faces that active vertices span.

    Gram and Schmidt's method, twice for each direction, so that rounding leaves nothing of the others.

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    vertices, weights : ndarray
        ``(blocks, places, dim)`` and ``(blocks, places)`` float64.
    settings : tuple of float
        The weight up to which a vertex does not count, and the part of a direction up to which what the
        others leave of it is rounding.
    basis : ndarray
        ``(blocks, most directions of a block, dim)`` float64, zero at first: its first rows are written over.
    """
    dim, (least, flat) = vertices.shape[2], settings
    for b in range(first, last):
        base, count = np.argmax(weights[b]), 0
        for k in range(vertices.shape[1]):
            if not weights[b, k] > least or k == base or count == basis.shape[1]:
                continue
            own, size = basis[b, count], 0.0
            for d in range(dim):
                own[d] = vertices[b, k, d] - vertices[b, base, d]
                size = max(size, abs(own[d]))
            if size == 0:
                continue
            _divide(own, size)
            _divide(own, np.sqrt(_product(own, own)))
            for turn in range(2):  # the second time takes away what rounding left
                for i in range(count):
                    total = _product(basis[b, i], own)
                    for d in range(dim):
                        own[d] -= total * basis[b, i, d]
                size = np.sqrt(_product(own, own))
                if turn == 0 and size <= flat:
                    own[:] = 0.0
                    break
                _divide(own, size)
            else:
                count += 1


@kernel(grain=64)
def leave_out(first: int, last: int, basis: Any, rest: Any) -> None:
    """Take the parts along orthonormal directions out of vectors.

    Parameters
    ----------
    first, last : int
        The blocks, from ``first`` to before ``last``.
    basis : ndarray
        ``(blocks, directions, dim)`` float64: orthonormal, or zero.
    rest : ndarray
        ``(blocks, dim)`` float64: the vectors, written over.
    """
    sizes = np.empty(basis.shape[1])
    for b in range(first, last):
        for i in range(len(sizes)):
            sizes[i] = _product(basis[b, i], rest[b])
        for i in range(len(sizes)):
            for d in range(basis.shape[2]):
                rest[b, d] -= sizes[i] * basis[b, i, d]


@compile(nogil=True, error_model="numpy")
def _product(one: Any, other: Any) -> float:
    total = 0.0
    for d in range(len(one)):
        total += one[d] * other[d]
    return total


@compile(nogil=True, error_model="numpy")
def _divide(vector: Any, size: float) -> None:
    for d in range(len(vector)):
        vector[d] /= size
