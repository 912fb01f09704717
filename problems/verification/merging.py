"""ReLUs of opposite arguments, made one: relu(-z) = relu(z) - z.

Networks that compute minima, maxima and absolute values by matrices and ReLUs alone, such as two-level lattices (Ferlez, Khedr and
Shoukry, 2021), write a number as relu(z) - relu(-z), and a minimum as
(relu(a + b) - relu(-a - b) - relu(a - b) - relu(b - a)) / 2.  A relaxation of each ReLU on its own does not know that two of
them belong together; with the identity the first is z, and the second b - relu(b - a): one ReLU in place of four.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from blocklp.problems.verification.network import Builder, Network
from blocklp.problems.verification.operations import Affine, Computed, Linear, Op, Relu, Sparse

SHORT, LARGEST = 4096.0, 4095.0
"""Factors of a product of matrices that is formed in float64 are whole multiples of 1 / SHORT, of at most that magnitude."""

TERMS = 32
"""Products of a sum, at most: with these limits every sum of them and one constant is exact in float64."""


def merged(network: Network) -> Network:
    """Return the same function of real numbers with one ReLU for every two of opposite arguments.

    Parameters
    ----------
    network : Network
        Float64; it comes back as it is where there is nothing to merge, or where a new weight would have to be rounded.
    """
    builder, place, users = Builder(network.input_shape, network.name), {0: 0}, [0] * len(network.ops)
    for op in network.ops:
        for argument in op.inputs:
            users[argument] += 1
    pairs = {}
    for at, op in enumerate(network.ops[2:], 2):
        relu = network.ops[op.inputs[0]]
        if _plain(op) and isinstance(relu, Relu) and users[op.inputs[0]] == 1:
            before = network.ops[relu.inputs[0]]
            if relu.inputs[0] in pairs or users[relu.inputs[0]] != 1 or not _plain(before):
                continue  # the matrix before goes itself, or is needed elsewhere
            found = _without_opposites(before, op)
            if found is not None:
                pairs[at] = found
    if not pairs:
        return network
    gone = {own for at in pairs for own in (network.ops[at].inputs[0], network.ops[network.ops[at].inputs[0]].inputs[0])}
    for at, op in enumerate(network.ops[1:], 1):
        if at in gone:
            continue
        if at not in pairs:
            builder.ops.append(replace(op, inputs=tuple(place[i] for i in op.inputs)))
        else:
            relu = network.ops[op.inputs[0]]
            before = network.ops[relu.inputs[0]]
            of = place[before.inputs[0]]
            inner, outer, direct = pairs[at]
            beside = _append(builder, of, op.shape, *direct, f"{op.name}, identity")
            if len(inner[1]):
                hidden = builder.relu(_append(builder, of, (len(inner[1]),), *inner, before.name), relu.name)
                builder.add(beside, _append(builder, hidden, op.shape, *outer, op.name), op.name)
        place[at] = len(builder.ops) - 1
    whole = builder.build().to(torch.float64, network.device)
    return replace(whole, head=network.head, unit=network.unit)


Matrix = tuple[csr_array, NDArray[np.float64]]
"""A sparse matrix and the constants of its rows."""


def _plain(op: Op) -> TypeGuard[Affine]:
    """Whether an operation is a matrix whose entries are the network's own, and short."""
    if not isinstance(op, (Linear, Sparse)) or isinstance(op, Computed):
        return False
    # Trained weights are not: the first of them tell, and no large matrix is looked at as a whole.
    return all(_short(t.flatten()) for t in (op.weight.flatten()[:1000], op.weight, op.bias))


def _short(values: Tensor) -> bool:
    """Whether numbers have so few digits that products of them, and sums of a few products, are exact in float64."""
    return bool((values * SHORT == (values * SHORT).round()).all() and (values.abs() <= LARGEST).all())


def _without_opposites(before: Affine, after: Affine) -> tuple[Matrix, Matrix, Matrix] | None:
    """Matrices before and after the ReLUs that are left, and the one beside them; None if none goes, or not exactly."""
    (inner, shift), (outer, constant) = _matrix(before), _matrix(after)
    first, second = _opposites(inner, shift)
    few = all(np.diff(own.indptr).max(initial=0) <= TERMS for matrix in (inner, outer) for own in (matrix, matrix.tocsc()))
    if not (first and few):
        return None
    # The weights of a pair's second ReLU go to its first one, and with the other sign to the argument of that.
    count = len(shift)
    target = np.arange(count)
    target[second] = first
    ones = np.ones(count)
    gather = csr_array((ones, (np.arange(count), target)), (count, count))
    follows = csr_array((ones[second], (second, first)), (count, count))
    gathered, direct = outer @ gather, -(outer @ follows)
    kept = np.flatnonzero(abs(gathered).sum(0))
    beside = direct @ inner, constant + direct @ shift
    return (inner[kept], shift[kept]), (gathered[:, kept], np.zeros(len(constant))), beside


def _opposites(matrix: csr_array, shift: NDArray[np.float64]) -> tuple[list[int], list[int]]:
    """Numbers of rows, and of later ones that are their negatives."""
    alone: dict[tuple[tuple[int, ...], tuple[float, ...]], list[int]] = {}
    first, second = [], []
    for i, constant in enumerate(shift.tolist()):
        own = slice(matrix.indptr[i], matrix.indptr[i + 1])
        columns, values = tuple(matrix.indices[own].tolist()), (*matrix.data[own].tolist(), constant)
        opposite = alone.get((columns, tuple(-v for v in values)))
        if opposite and columns:
            first.append(opposite.pop(0))
            second.append(i)
        else:
            alone.setdefault((columns, values), []).append(i)
    return first, second


def _matrix(op: Affine) -> Matrix:
    """The matrix of an operation and its constants, entries of a row in the order of their columns."""
    size = math.prod(op.shape), math.prod(op.source)
    if isinstance(op, Sparse):
        found = csr_array((op.weight.cpu().numpy(), (op.rows.cpu().numpy(), op.columns.cpu().numpy())), size)
    else:
        assert isinstance(op, Linear)
        found = csr_array(op.weight.cpu().numpy())
    found.sum_duplicates()
    found.eliminate_zeros()
    return found, op.shift().expand(1, *op.shape).reshape(-1).cpu().numpy().astype(np.float64)


def _append(builder: Builder, of: int, shape: tuple[int, ...], matrix: csr_array, constant: NDArray[np.float64], name: str) -> int:
    found = matrix.tocoo()
    found.eliminate_zeros()
    row, column = (torch.as_tensor(own, dtype=torch.long) for own in (found.row, found.col))
    return builder.sparse(of, shape, (row, column, torch.as_tensor(found.data)), torch.as_tensor(constant).reshape(shape), name)
