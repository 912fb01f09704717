r"""Nearest points of blocks, as means of active vertices, from the min-oracle alone.

.. math:: \arg\min_{x \in X_b} \tfrac12 |x - t_b|^2

Wolfe's algorithm (Finding the nearest point in a polytope, 1976), for all blocks of a batch at once: the
oracle adds a vertex, and the weights go to the nearest point of the affine hull of the active ones, on the
way to which vertices leave.  The active vertices stay affinely independent, and the answer is exact up to
rounding after finitely many of them; it also spans the face in which the point lies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.kernels.compiled import in_time

KERNELS = "blocklp.kernels.vertex_kernels"
"""Module of compiled loops for the CPU."""

ROUNDING = 1e-14
"""Part of the terms of a Frank-Wolfe gap up to which it counts as zero."""

RIDGE = 1e-15
"""Added to the diagonal of scaled Gram matrices, so that they have a Cholesky factor."""

NO_WEIGHT = 1e-13
"""Weights up to which a vertex leaves."""

NEGLIGIBLE, FLAT = 1e-10, 1e-10
"""Weights of vertices that rounding may have left, which do not count for a face; and how much of a direction
is left by the others, relative to it, that counts as nothing."""

FIRST = 4
"""Places for vertices at the start."""

SPARE = 2
"""Free places that are kept where vertices are fewer than places."""

VISITS = 3
"""Calls of the oracle for each dimension of a block, after which rounding keeps the gap up."""


@dataclass
class ActiveVertices:
    """Points of blocks as means of vertices.

    Attributes
    ----------
    vertices : Tensor
        ``(batch, blocks, places, dim)`` float64.
    weights : Tensor
        ``(batch, blocks, places)`` float64, of sum 1; 0 where a place is free.
    gap : Tensor or None
        ``(batch, blocks)``: sizes of the Frank-Wolfe gaps that :func:`nearest` left, relative to their terms.
    """

    vertices: Tensor
    weights: Tensor
    gap: Tensor | None = None

    def points(self) -> Tensor:
        """The means: ``(batch, blocks, dim)``."""
        return (self.weights[:, :, None] @ self.vertices)[:, :, 0]

    def select(self, rows: Tensor) -> ActiveVertices:
        """Those of some instances: numbers ``(k,)`` int64."""
        return ActiveVertices(self.vertices.index_select(0, rows), self.weights.index_select(0, rows))

    def widened(self, places: int) -> ActiveVertices:
        """With at least so many places."""
        more = places - self.weights.shape[2]
        if more <= 0:
            return self
        vertices = torch.nn.functional.pad(self.vertices, (0, 0, 0, more))
        return ActiveVertices(vertices, torch.nn.functional.pad(self.weights, (0, more)))

    def narrowed(self) -> ActiveVertices:
        """A copy without places that are free in all blocks; some free ones stay."""
        used = self.weights > 0
        places = int(used.sum(-1).max()) + SPARE if used.numel() else used.shape[2]
        if places >= used.shape[2]:
            return ActiveVertices(self.vertices.clone(), self.weights.clone())
        order = used.byte().argsort(dim=-1, descending=True, stable=True)[..., :places]
        at = order[..., None].expand(-1, -1, -1, self.vertices.shape[3])
        return ActiveVertices(self.vertices.gather(2, at), self.weights.gather(2, order))

    def put(self, rows: Tensor, other: ActiveVertices) -> ActiveVertices:
        """With those of instances ``rows`` ``(k,)`` in place of its own."""
        places = max(self.weights.shape[2], other.weights.shape[2])
        mine, given = self.widened(places), other.widened(places)
        mine.vertices[rows], mine.weights[rows] = given.vertices, given.weights
        return mine


def nearest(kind: BlockType, target: Tensor, start: ActiveVertices | None = None) -> ActiveVertices:
    """Find the nearest point of every block.

    Parameters
    ----------
    kind : BlockType
        Whose data serve any batch (of leading dimension 1).
    target : Tensor
        ``(batch, blocks, dim)`` float64: the points to be near to.
    start : ActiveVertices, optional
        Vertices of the blocks to start from, as of another target.

    Returns
    -------
    ActiveVertices
        The nearest points, and the gaps at which they were accepted.
    """
    if start is None:
        vertex, _ = kind.min_oracle(-target)
        vertices = torch.nn.functional.pad(vertex[:, :, None], (0, 0, 0, FIRST - 1))
        weights = torch.nn.functional.pad(vertex.new_ones(*vertex.shape[:2], 1), (0, FIRST - 1))
        found = ActiveVertices(vertices, weights)
    else:
        found = start.narrowed()
    left = target.new_zeros(target.shape[:2])
    if not target.numel():
        return replace(found, gap=left)
    rows = torch.arange(len(target), device=target.device)
    own, aim = found, target
    entered = torch.zeros_like(own.weights, dtype=torch.bool)
    done = torch.zeros(own.weights.shape[:2], dtype=torch.bool, device=target.device)
    for _ in range(VISITS * (target.shape[2] + 1) + 10):
        own.weights, stuck = _descend(own, entered, aim)
        done |= stuck
        point = own.points()
        slope = point - aim
        vertex, _ = kind.min_oracle(slope)
        gap = (slope * (point - vertex)).sum(-1)
        size = ((slope.abs() + aim.abs()) * (point.abs() + vertex.abs())).sum(-1)
        done |= gap <= ROUNDING * size
        left[rows] = gap.abs() / size.clamp(min=torch.finfo(size.dtype).tiny)
        open_ = ~done.all(1)
        if not bool(open_.all()):
            found = own if len(rows) == len(target) else found.put(rows, own)
            if not bool(open_.any()):
                return replace(found, gap=left)
            keep = open_.nonzero()[:, 0]
            rows, aim, done, vertex = rows[keep], aim[keep], done[keep], vertex[keep]
            own = found.select(rows)
        counts, places = (own.weights > 0).sum(-1), own.weights.shape[2]
        held = ((own.vertices == vertex[:, :, None]).all(-1) & (own.weights > 0)).any(-1)
        done |= held | (counts > target.shape[2] + 1)  # which rounding alone makes of independent vertices
        if int(counts.max()) == places:
            own = own.widened(min(places + places // 2, target.shape[2] + SPARE))
        elif places > 2 * (int(counts.max()) + SPARE):
            own = own.narrowed()
        place = (own.weights > 0).long().argmin(-1, keepdim=True)
        entered = torch.zeros_like(own.weights, dtype=torch.bool).scatter_(2, place, ~done[..., None])
        own = ActiveVertices(
            torch.where(entered[..., None], vertex[:, :, None], own.vertices), own.weights.clone()
        )
    return replace(found.put(rows, own), gap=left)


def _descend(own: ActiveVertices, entered: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Go to the nearest point of the affine hull of the vertices, and drop those whose weight becomes zero.

    A vertex of each block, or none, has ``entered`` ``(batch, blocks, places)`` with weight 0. Returned are
    the weights, and the blocks ``(batch, blocks)`` where that vertex left again.
    """
    vertices, aims = own.vertices.flatten(0, 1), target.flatten(0, 1)
    found = own.weights.flatten(0, 1)
    active = (found > 0) | entered.flatten(0, 1)
    if target.is_cpu and (kernels := in_time(KERNELS, target.dtype)) is not None:
        found = found.clone()
        given = (vertices.contiguous(), aims.contiguous(), active, found)
        kernels.descend(len(found), *given, (RIDGE, NO_WEIGHT))
    else:
        found = _descended(vertices, found, active, aims)
    found = found.view(own.weights.shape)
    return found, (entered & (found <= 0)).any(-1)


def _descended(vertices: Tensor, found: Tensor, active: Tensor, aims: Tensor) -> Tensor:
    """New weights ``(k, places)`` of the active vertices ``(k, places, dim)``, for points ``(k, dim)``."""
    weights, rows = found, torch.arange(len(found), device=found.device)
    for _ in range(found.shape[1] + 1):
        step = _affine_step(vertices, weights, active, aims)
        blocking = active & (step < 0) & (weights + step <= NO_WEIGHT)
        lengths = torch.where(blocking, weights / -step.clamp(max=-1e-300), torch.inf)
        length = lengths.amin(-1, keepdim=True).clamp(max=1.0)
        leaving = blocking & (lengths <= length)
        weights = weights + length * step
        weights = weights.masked_fill(leaving | (weights <= NO_WEIGHT), 0.0)
        weights = weights / weights.sum(-1, keepdim=True)
        found = weights if len(rows) == len(found) else found.index_copy(0, rows, weights)
        keep = leaving.any(-1).nonzero()[:, 0]
        if not len(keep):
            break
        active = (active & ~leaving)[keep]
        rows, weights, vertices, aims = rows[keep], weights[keep], vertices[keep], aims[keep]
    return found


def _affine_step(vertices: Tensor, weights: Tensor, active: Tensor, target: Tensor) -> Tensor:
    r"""The change of weights to the nearest point of the affine hull: :math:`G d + \mu 1 = r, 1^\top d = 0`.

    Vertices ``(k, places, dim)`` are taken relative to the present point, so that G is as well
    conditioned as they allow. Changes ``(k, places)`` are 0 where a place is not active.
    """
    mask = active.to(weights)
    point = (weights[:, None] @ vertices)[:, 0]
    apart = (vertices - point[:, None]) * mask[..., None]
    gram = apart @ apart.transpose(-1, -2)
    scale = gram.diagonal(dim1=-2, dim2=-1).amax(-1)
    scale = torch.where(scale > 0, scale, 1.0)[:, None]
    gram = gram / scale[..., None] + mask[..., None] * mask[:, None]
    gram.diagonal(dim1=-2, dim2=-1).add_(1.0 - mask + RIDGE)
    right = torch.stack([(apart @ (target - point)[..., None])[..., 0] / scale, mask], -1)
    factor, _ = torch.linalg.cholesky_ex(gram)
    one, other = torch.cholesky_solve(right, factor).unbind(-1)
    step = (one - other * (one.sum(-1, keepdim=True) / other.sum(-1, keepdim=True))) * mask
    return step.masked_fill(~step.isfinite().all(-1, keepdim=True), 0.0)


def tangents(found: ActiveVertices) -> Tensor:
    """Orthonormal directions within the faces that active vertices span.

    Parameters
    ----------
    found : ActiveVertices
        Affinely independent vertices.

    Returns
    -------
    Tensor
        ``(batch, blocks, places at most, dim)``: directions, and zeros.
    """
    if found.vertices.is_cpu and (kernels := in_time(KERNELS, found.vertices.dtype)) is not None:
        vertices, weights = (own.flatten(0, 1).contiguous() for own in (found.vertices, found.weights))
        most = int((weights > NEGLIGIBLE).sum(-1).max()) - 1 if len(weights) else 0
        basis = vertices.new_zeros(len(vertices), min(most, vertices.shape[2]), vertices.shape[2])
        kernels.tangents(len(vertices), vertices, weights, (NEGLIGIBLE, FLAT), basis)
        return basis.view(*found.vertices.shape[:2], *basis.shape[1:])
    active = found.weights > NEGLIGIBLE
    first = found.weights.argmax(-1, keepdim=True)
    at = first[..., None].expand(-1, -1, -1, found.vertices.shape[3])
    mask = active.scatter(2, first, False)
    apart = torch.where(mask[..., None], found.vertices - found.vertices.gather(2, at), 0.0)
    size = apart.norm(dim=-1, keepdim=True)
    _, values, basis = torch.linalg.svd(apart / torch.where(size > 0, size, 1.0), full_matrices=False)
    kept: Tensor = basis * (values > FLAT)[..., None]
    return kept


def leave_out(basis: Tensor, vectors: Tensor) -> Tensor:
    """Parts of vectors that are orthogonal to directions.

    Parameters
    ----------
    basis : Tensor
        ``(batch, blocks, directions, dim)`` float64: orthonormal, or zero, as of :func:`tangents`.
    vectors : Tensor
        ``(batch, blocks, dim)`` float64.

    Returns
    -------
    Tensor
        ``(batch, blocks, dim)``.
    """
    if vectors.is_cpu and (kernels := in_time(KERNELS, vectors.dtype)) is not None:
        rest = vectors.clone(memory_format=torch.contiguous_format)
        kernels.leave_out(rest.shape[0] * rest.shape[1], basis.flatten(0, 1), rest.flatten(0, 1))
        return rest
    return vectors - ((basis @ vectors[..., None]).mT @ basis)[:, :, 0]
