"""Geometry of the permutohedral lattice: elevation, simplices of points, and keys of vertices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blocklp.errors import ModelError

KEY_BITS = 62
"""Bits of the key of a vertex."""
FINEST = 1 / 64
"""Largest rounding of a coordinate, in lattice units."""


def vertex_keys(features: Tensor, image: Tensor | None) -> tuple[Tensor, int, Tensor]:
    """Integer keys of the vertices of points, linear in their coordinates.

    Parameters are features ``(points, d)`` and images ``(points,)`` int64 or None.

    Returns
    -------
    steps : Tensor
        ``(d + 1,)`` int64: change of a key by a step up each axis.
    start : int
        Key of the origin.
    offsets : Tensor
        ``(points,)`` int64: change of the keys by the image of each point.

    Raises
    ------
    ModelError
        If the features or their range are too large for keys of :data:`KEY_BITS` bits.
    """
    points, d = features.shape
    least, most = torch.stack([torch.stack(column.aminmax()) for column in features.double().unbind(1)], 1)
    elevation = elevation_map(d).to(least)
    reach = float((elevation.abs() @ torch.maximum(least.abs(), most.abs())).max())
    if not reach * torch.finfo(features.dtype).eps < FINEST:
        raise ModelError(
            f"the features reach {reach:.3g} lattice units, where {features.dtype} no longer tells "
            "neighbours apart; take their mean off, or use larger kernel widths"
        )
    # Steps up the first d axes are a basis of the lattice: coordinates x have (x_i - x_d) / (d + 1) of the
    # i-th.
    basis = (elevation[:d] - elevation[d]) / (d + 1)
    # The vertices of a simplex differ by at most one in each, and their neighbours are one further.
    low = (basis.clamp(min=0) @ least + basis.clamp(max=0) @ most).floor().long() - 3
    high = (basis.clamp(min=0) @ most + basis.clamp(max=0) @ least).ceil().long() + 3
    extents = (high - low + 1).tolist()
    images = 1 if image is None else int(image.max()) + 1
    if math.prod(extents) * images >= 2**KEY_BITS:
        raise ModelError(
            f"the features range over {', '.join(map(str, extents))} lattice steps, too many for keys of "
            f"{KEY_BITS} bits; use larger kernel widths"
        )
    strides = torch.tensor([math.prod(extents[i + 1 :]) for i in range(d)])
    start = -int(low.cpu() @ strides)
    offsets = features.new_zeros(points, dtype=torch.int64) if image is None else image * math.prod(extents)
    return torch.cat([strides, -strides.sum(0, keepdim=True)]).to(features.device), start, offsets


def embed(features: Tensor) -> tuple[Tensor, Tensor]:
    """Barycentric weights of points ``(points, d)``, and coordinates of their vertices.

    Weights are ``(points, d + 1)``, coordinates ``(points, d + 1, d + 1)`` int64 in lattice units.
    """
    count, d = features.shape
    # Not by a matrix product: its rounding of a row may depend on the number of rows.
    elevated = (features[:, None] * elevation_map(d).to(features)).sum(2)
    with torch.no_grad():
        # The nearest lattice point of remainder 0, then the simplex around it by the order of the residuals.
        nearest = (elevated * (1 / (d + 1))).round()
        excess = nearest.sum(1, keepdim=True).long()
        residual = elevated - nearest * (d + 1)
        order = residual.argsort(dim=1, descending=True, stable=True)
        places = torch.arange(d + 1, device=order.device).expand(count, -1)
        rank = torch.empty_like(order).scatter_(1, order, places) + excess
        wrap = (rank < 0).long() - (rank > d).long()
        rank = rank + (d + 1) * wrap
        corner = nearest.long() + wrap
        steps = torch.arange(d + 1, device=rank.device)[:, None]
        coordinates = (corner * (d + 1))[:, None] + steps - (d + 1) * (rank[:, None] > d - steps)
    position = elevated * (1 / (d + 1)) - corner.to(elevated)
    ranked = torch.empty_like(position).scatter(1, rank, position)
    weights = torch.cat([1 + ranked[:, d:] - ranked[:, :1], (ranked[:, :-1] - ranked[:, 1:]).flip(1)], 1)
    return weights, coordinates


def scales(d: int) -> Tensor:
    """Factors of the features ``(d,)`` float64 that give the filter unit variance."""
    factors = [(d + 1) * math.sqrt(2 / 3) / math.sqrt((i + 1) * (i + 2)) for i in range(d)]
    return torch.tensor(factors, dtype=torch.float64)


def elevation_map(d: int) -> Tensor:
    """The matrix ``(d + 1, d)`` float64 that maps features to the hyperplane of the lattice."""
    rows = torch.ones(d + 1, d, dtype=torch.float64).triu()
    rows[1:] -= torch.diag(torch.arange(1.0, d + 1, dtype=torch.float64))
    return rows * scales(d)


def neighbours_by_keys(unique: Tensor, steps: Tensor) -> Tensor:
    """Neighbours ``(d + 1, 2, size)`` int64 of vertices with ascending keys, ``size`` for none."""
    size = len(unique)
    wanted = unique + torch.stack([steps, -steps], 1)[:, :, None]
    at = torch.searchsorted(unique, wanted).clamp_(max=size - 1)
    return torch.where(unique[at] == wanted, at, size)


def stencil(neighbours: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The blur, as the mean of both orders of the axes, as a sparse matrix.

    Its entries are sums of powers of 1/2, which single precision holds exactly.  The host waits once an axis.

    Parameters
    ----------
    neighbours : Tensor
        ``(d + 1, 2, size)`` int64, ``size`` for none.

    Returns
    -------
    starts : Tensor
        ``(size + 1,)`` int64: where rows start.
    columns, entries : Tensor
        ``(entries,)`` int32 and float32, by rows.
    """
    size, device = neighbours.shape[2], neighbours.device
    row = column = torch.arange(size, device=device)
    entry = torch.ones(size, dtype=torch.float64, device=device)
    for beside in neighbours:
        rows = row.repeat(3)
        columns = torch.cat([column, beside[0][column], beside[1][column]])
        row, column, entry = _merged(rows, columns, torch.cat([entry, entry / 2, entry / 2]), size)
    row, column, entry = _merged(
        torch.cat([row, column]), torch.cat([column, row]), (entry / 2).repeat(2), size
    )
    starts = torch.searchsorted(row, torch.arange(size + 1, device=device))
    return starts, column.int(), entry.float()


def _merged(row: Tensor, column: Tensor, entry: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Entries of a sparse matrix by rows, those of one place added up, and none of column ``size``."""
    key, order = torch.where(column < size, row * size + column, size * size).sort()
    new = torch.nn.functional.pad(key[1:] != key[:-1], (1, 0), value=True)
    number = new.cumsum(0) - 1
    count = int(number[-1]) + 1
    key = torch.empty_like(key[:count]).scatter_(0, number, key)
    # Prefix sums of powers of 1/2 are exact, whatever their order.
    upto = entry[order].cumsum(0)
    last = torch.searchsorted(number, torch.arange(count, device=key.device), right=True) - 1
    total = torch.diff(upto[last], prepend=torch.zeros_like(upto[:1]))
    count -= int(key[-1] == size * size)
    return key[:count] // size, key[:count] % size, total[:count]
