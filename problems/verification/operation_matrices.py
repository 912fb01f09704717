"""Sparse matrices of affine operations: for LP codes, and in the place of matrices of few entries."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError
from blocklp.general_solvers.linear_program import Array
from blocklp.problems.verification.operations import Affine, Conv, Linear, Op, Reorder, Scale, Sparse

MOST_PRODUCTS, FORMING = 4_000_000, 5e-7
"""Multiplications of operations whose matrices are formed for speed, and seconds that it takes for each."""

SMALL_MATRIX, FEW_ENTRIES = 10_000, 30
"""Entries of a matrix that is left as it is, and how many times more entries than nonzero ones one has that becomes sparse."""


def sparse_if_few(op: Op) -> Op:
    """Return a matrix most of whose entries are zero as a sparse one: networks that compute minima or moves by matrices have them."""
    if not isinstance(op, Linear) or op.weight.numel() < SMALL_MATRIX:
        return op
    if int(op.weight.count_nonzero()) * FEW_ENTRIES > op.weight.numel():
        return op
    rows, columns = op.weight.nonzero(as_tuple=True)
    most = max(int(torch.bincount(part).max()) if len(part) else 0 for part in (rows, columns))
    entries = op.weight[rows, columns]
    return Sparse(op.inputs, op.shape, op.name, op.source, most + 8, rows, columns, entries, op.bias)


def worth_forming(operations: Iterable[Affine], deadline: Deadline) -> bool:
    """Whether there is time to form the matrices of some operations.

    Parameters
    ----------
    operations : iterable of Affine
        The operations.
    deadline : Deadline
        When they must have been of use.
    """
    products = sum(op.products for op in operations)
    return products <= MOST_PRODUCTS and deadline.affords(2 * FORMING * products)


def array_of(tensor: Tensor) -> Array:
    """Return a tensor as float64 on the CPU."""
    return np.asarray(tensor.detach().cpu().double().numpy())


def sparse_matrix(op: Affine) -> sp.csr_array:
    """Return the linear map of an operation as a sparse matrix ``(results, arguments)`` float64, both in C order."""
    size, source = math.prod(op.shape), math.prod(op.source)
    if isinstance(op, Linear):
        return sp.csr_array(array_of(op.weight))
    if isinstance(op, Scale):
        return sp.diags_array(array_of(op.weight.expand(op.shape)).reshape(-1), format="csr")
    if isinstance(op, Reorder):
        columns = np.arange(source).reshape(op.source).transpose(op.axes).reshape(-1)
        return sp.csr_array((np.ones(size), columns, np.arange(size + 1)), (size, source))
    if isinstance(op, Sparse):
        return sp.csr_array((array_of(op.weight), (op.rows.cpu().numpy(), op.columns.cpu().numpy())), (size, source))
    if not isinstance(op, Conv):
        raise ModelError(f"{op.name}: no sparse matrix for {type(op).__name__}; use Linear, Conv, Scale, Reorder or Sparse")
    weight, (_, height, width) = array_of(op.weight), op.source
    channels, inner, *kernel = weight.shape
    # One axis each for output channel, channel within the group, kernel row and column, output row and column.
    o, i, a, b, r, s = np.ogrid[tuple(slice(n) for n in (channels, inner, *kernel, *op.shape[1:]))]
    y = r * op.stride[0] + a * op.dilation[0] - op.padding[2]
    x = s * op.stride[1] + b * op.dilation[1] - op.padding[0]
    row = (o * op.shape[1] + r) * op.shape[2] + s
    column = ((o // (channels // op.groups) * inner + i) * height + y) * width + x
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width) & (weight != 0)[..., None, None]
    value, row, column = (np.broadcast_to(part, inside.shape)[inside] for part in (weight[..., None, None], row, column))
    return sp.csr_array((value, (row, column)), (size, source))
