"""Block types given by the list of their vertices."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType, Constraints
from blocklp.errors import ModelError, ShapeError
from blocklp.options import with_gradients
from blocklp.rounding import roundoff

QHULL_DIM = 8
"""Largest dimension of a hull whose facets are listed."""

QHULL_VERTICES = 256
"""Largest number of vertices of such a hull."""


class FiniteVertices(BlockType):
    r"""The convex hull of a table of vertices; the min-oracle takes the best row.

    Ties go to the first row. Everything else is derived from the table: the H-representation (facets by
    Qhull), the rounding error of the value, and fixings (rows outside the bounds are masked).
    Subclasses whose tables are long state :meth:`vertex_values`, :meth:`vertex_points` and ``vertex_count``
    anew, and list ``table`` where it is asked for.

    Parameters
    ----------
    vertices : array_like, optional
        ``(vertices, dim)``.  Subclasses may set the class attribute ``vertices`` instead.

    Raises
    ------
    ShapeError
        If the table is not two-dimensional or is empty.
    ModelError
        If it holds NaN or infinite entries, or repeated rows.

    Examples
    --------
    >>> class Edge(FiniteVertices):
    ...     vertices = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 1]]
    >>> point, value = Edge().min_oracle(torch.tensor([[[-1.0, -1.0, 5.0]]]))
    >>> value.item()
    -1.0
    """

    vertices: Sequence[Sequence[float]] | Tensor | None = None
    block_data = ("excluded",)
    #: ``(batch or 1, blocks, vertices)`` bool, or None: rows that the bounds of the variables mask.
    excluded: Tensor | None = None

    def __init__(self, vertices: object = None) -> None:
        given = self.vertices if vertices is None else vertices
        if given is None:
            raise ModelError(f"{self.name} has no vertices; give a table (vertices, dim)")
        table = with_gradients(given, f"{self.name} vertices").clone()
        if table.dim() != 2 or 0 in table.shape:
            shape = tuple(table.shape)
            raise ShapeError(f"{self.name}: the vertex table has shape {shape}; it needs (vertices, dim)")
        if not torch.isfinite(table).all():
            raise ModelError(f"{self.name}: the vertex table holds NaN or infinite entries")
        if len(torch.unique(table, dim=0)) != len(table):
            raise ModelError(f"{self.name}: the vertex table repeats a row; list every vertex once")
        self.table = table
        self.dim = table.shape[1]

    @property
    def vertex_count(self) -> int:
        """Number of rows of the table."""
        return self.table.shape[0]

    @functools.cached_property
    def _sent(self) -> dict[tuple[torch.device, torch.dtype], Tensor]:
        """The table on other devices; types with a constructor of their own have it too."""
        return {}

    def _table(self, like: Tensor) -> Tensor:
        """The table in dtype and on device of a tensor: a device gets it once, without the host waiting."""
        if like.device.type == "cpu":
            return self.table.to(like)
        key = like.device, like.dtype
        if key not in self._sent:
            self._sent[key] = self.table.to(like.device, like.dtype, non_blocking=True)
        return self._sent[key]

    def vertex_values(self, cost: Tensor) -> Tensor:
        """Cost of every vertex: ``(batch, blocks, dim) -> (batch, blocks, vertices)``; huge where masked."""
        values = cost @ self._table(cost).T
        return values if self.excluded is None else values.masked_fill(self.excluded, struck_out(cost.dtype))

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vertex of least cost in each block, the first one on ties."""
        values = self.vertex_values(cost)
        row = values.argmin(-1)
        return self.vertex_points(row, cost), values.gather(-1, row[..., None])[..., 0]

    def vertex_points(self, row: Tensor, like: Tensor) -> Tensor:
        """Rows of the table by their numbers: ``(...) -> (..., dim)``, in dtype and on device of ``like``."""
        return self._table(like)[row]

    def min_value(self, cost: Tensor) -> Tensor:
        """The least cost of a vertex."""
        return self.vertex_values(cost).amin(-1)

    def min_marginals(self, cost: Tensor) -> Tensor | None:
        """Compare the best vertices with 1 and with 0 in each column of zeros and ones; None without one."""
        binary = ((self.table == 0) | (self.table == 1)).all(0).tolist()
        if not any(binary):
            return None
        values = self.vertex_values(cost)
        if self.excluded is not None:
            values = values.masked_fill(self.excluded, torch.inf)
        found = torch.full_like(cost, torch.nan)
        for i, column in enumerate(self._table(cost).unbind(1)):
            if binary[i]:
                one, zero = (values.masked_fill(column != side, torch.inf).amin(-1) for side in (1, 0))
                found[..., i] = one - zero
        return found

    def overlap(self, shared: Tensor) -> int:
        """The largest number of shared columns in which two vertices differ; all of them for large tables."""
        columns = self.table[:, shared.cpu() > 0]
        if self.vertex_count > QHULL_VERTICES:
            return max(1, int(shared.sum()))
        return max(1, int((columns[:, None] != columns).sum(-1).max()))

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of all vertices by their cost."""
        weights, value, excess = soft(self.vertex_values(cost), temperature)
        return weights @ self._table(cost), value, excess

    def vertex_table(self) -> Tensor | None:
        """The table, where no row is masked."""
        return self.table if self.excluded is None else None

    def masked_table(self, most: float = math.inf) -> tuple[Tensor, Tensor | None] | None:
        """The table and the mask, if there are at most so many vertices."""
        return (self.table, self.excluded) if self.vertex_count <= most else None

    def value_error(self, cost: Tensor) -> Tensor:
        """Dot products of length ``dim``: the standard error bound, taken over the worst vertex."""
        magnitude = cost.abs() @ self.table.abs().to(cost).T
        return roundoff(self.table.shape[1] + 1, magnitude.amax(-1))

    def constraints(self) -> Constraints | None:
        """Facets and affine hull of the table, from Qhull; ``None`` for tables too large for it.

        They describe the whole table: fixings taken in by :meth:`restrict` come on top, as bounds.
        """
        return hull(self.table.shape[1], self.table.detach().numpy().tobytes())

    def restrict(self, lower: Tensor, upper: Tensor) -> FiniteVertices | None:
        """Mask rows outside the box, if each bound that cuts the hull leaves a face of it."""
        low, high = self.table.amin(0), self.table.amax(0)
        cut_low, cut_high = lower > low, upper < high
        face = (~cut_low | (lower >= high)) & (~cut_high | (upper <= low))
        if not bool(face.all()):
            return None
        outside = (self.table < lower[..., None, :]) | (self.table > upper[..., None, :])
        masked = outside.any(-1)
        return self.with_data(excluded=masked if self.excluded is None else masked | self.excluded)

    def __repr__(self) -> str:
        return f"{self.name}(vertices={self.table.shape[0]}, dim={self.dim})"


def struck_out(dtype: torch.dtype) -> float:
    """Cost of a masked vertex: larger than any real one, and finite so that ``0 * cost`` is 0."""
    return float(torch.finfo(dtype).max ** 0.75)


def soft(values: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Soft minimum of values over vertices.

    Parameters
    ----------
    values : Tensor
        ``(batch, blocks, vertices)``.
    temperature : Tensor
        ``(batch, 1, 1)``, positive.

    Returns
    -------
    weights, value, excess : Tensor
        ``(batch, blocks, vertices)``, ``(batch, blocks)``, ``(batch, blocks)``: the gradient, the minimum,
        and the minimum less the soft one.
    """
    value = values.amin(-1, keepdim=True)
    powers = ((value - values) / temperature).exp()
    total = powers.sum(-1, keepdim=True)
    return powers / total, value[..., 0], (temperature * total.log())[..., 0]


@functools.lru_cache(maxsize=64)
def hull(dim: int, table: bytes) -> Constraints | None:
    """Convex hull of a float64 table, computed once per table, whichever types hold it."""
    rows = facets(np.frombuffer(table).reshape(-1, dim))
    return None if rows is None else Constraints.rows(*rows)


def facets(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Hull ``lower <= matrix @ x <= upper`` of the rows of a table, or ``None`` if Qhull would take long.

    The table is ``(vertices, dim)`` float64; returns ``matrix`` ``(rows, dim)``, ``lower`` and ``upper``.
    """
    from scipy.spatial import ConvexHull

    centre = table.mean(0)
    # The triangular factor has the singular values and row space of the table, and at most dim rows.
    _, singular, basis = np.linalg.svd(np.linalg.qr(table - centre, mode="r"))
    rank = int((singular > max(1e-9 * singular.max(initial=0.0), 1e-13 * np.abs(table).max())).sum())
    if rank > QHULL_DIM or len(table) > QHULL_VERTICES:
        return None
    inside, normal = basis[:rank], basis[rank:]
    size = 2.0 ** np.frexp(np.abs(table - centre).max(initial=0.0))[1]  # Qhull's tolerances are absolute
    flat = (table - centre) @ inside.T / size
    if rank < 2:
        rows = np.vstack([inside, -inside])
    else:
        equations = ConvexHull(flat).equations
        rows = equations[np.unique(np.round(equations, 12), axis=0, return_index=True)[1], :-1] @ inside
    rows = np.where(np.abs(rows) > 1e-14, rows, 0.0)  # normals have length one
    right = (table @ rows.T).max(0)  # no vertex is outside
    matrix, equal = np.vstack([rows, normal]), normal @ centre
    nothing = 1e-13 * np.abs(table).max()  # a side that rounding alone has left
    sides = equal, np.concatenate([right, equal])
    lower, upper = (np.where(np.abs(side) > nothing, side, 0.0) for side in sides)
    return matrix, np.concatenate([np.full(len(rows), -np.inf), lower]), upper


def binary_vertices(dim: int) -> np.ndarray:
    """All 0/1 vectors of a length, in lexicographic order: ``(2 ** dim, dim)``."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=dim)))
