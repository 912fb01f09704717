"""Mean field and energies of labellings on a GPU, in Triton: what follows a filter is part of its last kernel.

Operations of :mod:`~blocklp.problems.densecrf.mean_field` and :mod:`~blocklp.problems.densecrf.energy`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocklp.kernels.operations import implements
from blocklp.kernels.triton_launch import on_its_device
from blocklp.oracles.filters.lattice_operations import BOTH, FORWARD
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.oracles.filters.triton_lattice import RUN, WIDE, blocks, blur, sliced, splat, sum_runs
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.kernel import Kernel


@triton.jit
def slice_costs(
    values,
    weights,
    vertices,
    costs,
    unit,
    out,
    points,
    labels,
    CORNERS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    UNITS: tl.constexpr,
    SOFTMAX: tl.constexpr,
):
    """Add what a kernel's lattice says to costs; with SOFTMAX, marginals of the sum, over units with UNITS.

    Parameters
    ----------
    values, weights, vertices : pointer
        ``(size, labels)``, ``(points, CORNERS)``, and ``(points, CORNERS)`` int64.
    costs, unit, out : pointer
        ``(points, labels)``; ``(points,)``, read with UNITS; ``(points, labels)``, written.
    points, labels : int
        Points and labels.
    CORNERS, BLOCK, CHANNELS : int
        d + 1, points of a program, and a power of 2 from the number of labels on.
    UNITS, SOFTMAX : bool
        Whether to divide by the units, with SOFTMAX, and whether to end in marginals.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label = tl.arange(0, CHANNELS)
    mask = (point < points)[:, None] & (label < labels)[None]
    at = point[:, None] * labels + label[None]
    total = tl.load(costs + at, mask=mask, other=0.0)
    total += sliced(values, weights, vertices, point, label, points, labels, CORNERS)
    if SOFTMAX:
        if UNITS:
            total /= tl.load(unit + point, mask=point < points, other=1.0)[:, None]
        total = tl.where((label < labels)[None], total, float("inf"))
        total = tl.exp(tl.min(total, 1)[:, None] - total)
        total /= tl.sum(total, 1)[:, None]
    tl.store(out + at, total, mask=mask)


@triton.jit
def splat_labels(
    table,
    labelling,
    weights,
    order,
    bounds,
    out,
    labels,
    corners,
    RUN: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Sum weighted rows of a table, those of the points' labels, over a run of entries.

    Parameters
    ----------
    table, labelling : pointer
        ``(labels, labels)`` float64 and ``(points,)`` int64.
    weights : pointer
        ``(points, corners)`` float64.
    order, bounds : pointer
        ``(points * corners,)`` and ``(runs + 1,)`` int64: entries of the lattice.
    out : pointer
        ``(runs, labels)`` float64, written.
    labels, corners : int
        Labels, and d + 1.
    RUN, CHANNELS : int
        Entries of a run at most, and labels of a program.
    """
    run = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    at = tl.load(bounds + run) + tl.arange(0, RUN)
    there = at < tl.load(bounds + run + 1)
    entry = tl.load(order + at, mask=there, other=0)
    weight = tl.load(weights + entry, mask=there, other=0.0)
    label = tl.load(labelling + entry // corners, mask=there, other=0)
    mask = there[:, None] & (channel < labels)[None]
    rows = tl.load(table + label[:, None] * labels + channel[None], mask=mask, other=0.0)
    tl.store(out + run * labels + channel, tl.sum(weight[:, None] * rows, 0), mask=channel < labels)


@triton.jit
def slice_labels(
    values,
    table,
    labelling,
    weights,
    vertices,
    diagonal,
    costs,
    out,
    points,
    labels,
    CORNERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add half of what a kernel's pairs cost every point at its own label, without itself, to costs.

    Parameters
    ----------
    values : pointer
        ``(size, labels)`` float64.
    table, labelling, weights : pointer
        As in :func:`splat_labels`.
    vertices : pointer
        ``(points, CORNERS)`` int64.
    diagonal, costs, out : pointer
        ``(points,)`` float64; out is written.
    points, labels, CORNERS, BLOCK : int
        Points, labels, d + 1, and points of a program.
    """
    point = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = point < points
    label = tl.load(labelling + point, mask=inside, other=0)
    total = tl.zeros((BLOCK,), dtype=tl.float64)
    for k in tl.static_range(CORNERS):
        vertex = tl.load(vertices + point * CORNERS + k, mask=inside, other=0)
        weight = tl.load(weights + point * CORNERS + k, mask=inside, other=0.0)
        total += weight * tl.load(values + vertex * labels + label, mask=inside, other=0.0)
    own = tl.load(table + label * labels + label, mask=inside, other=0.0)
    total -= own * tl.load(diagonal + point, mask=inside, other=0.0)
    tl.store(out + point, tl.load(costs + point, mask=inside, other=0.0) + total / 2, mask=inside)


def _on_lattices(crf: DenseCRF) -> bool:
    """Whether all kernels are lattices without gradients, and no clique is beside them."""
    plain = all(isinstance(k.filter, Lattice) and not _recorded(k) for k in crf.kernels)
    return plain and bool(crf.kernels) and crf.cliques is None and not crf.unary.requires_grad


def _recorded(kernel: Kernel) -> bool:
    tensors = kernel.compatibility, getattr(kernel.filter, "weights", None)
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _updates(crf: DenseCRF, q: Tensor, unit: Tensor | float = 1.0) -> bool:
    plain = not torch.compiler.is_compiling() and not (torch.is_grad_enabled() and q.requires_grad)
    return _on_lattices(crf) and crf.labels <= WIDE and (isinstance(unit, Tensor) or unit == 1) and plain


@implements("mean_field_update", "triton", _updates)
@on_its_device
def mean_field_update(crf: DenseCRF, q: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """Splat, blur and slice for every kernel; the last slice ends in the softmax.

    Parameters
    ----------
    crf : DenseCRF
        The energy, all of whose kernels are lattices.
    q : Tensor
        ``(points, labels)`` floating point: marginals.
    unit : Tensor or float
        ``(points, 1)``: what costs are divided by; 1 for nothing.
    """
    total, last = crf.unary.contiguous(), len(crf.kernels) - 1
    (grid, _), block = blocks(*total.shape)
    units = unit.contiguous() if isinstance(unit, Tensor) else None
    for number, kernel in enumerate(crf.kernels):
        crf.deadline.check("filtering")
        lattice = kernel.weighted
        assert isinstance(lattice, Lattice)
        potts, weights = kernel.compatibility is None, lattice.weights_as(q)
        y = q if potts else kernel.compare(q)
        summed = splat(y, weights, lattice.vertices, lattice.size, lattice.entries, others=potts)
        blurred = _blurred(lattice, summed)
        out = torch.empty_like(total)
        given = blurred, weights.contiguous(), lattice.vertices, total, total if units is None else units, out
        corners = lattice.features + 1
        slice_costs[grid,](*given, *total.shape, corners, **block, UNITS=units is not None, SOFTMAX=number == last)
        total = out
    return total


def _blurred(lattice: Lattice, summed: Tensor) -> Tensor:
    return blur(summed, lattice.neighbours, BOTH if lattice.symmetric else FORWARD, lattice.scale)


@implements("labelling_energy", "triton", lambda crf, labelling: _on_lattices(crf) and labelling.dtype == torch.int64)
@on_its_device
def labelling_energy(crf: DenseCRF, labelling: Tensor) -> Tensor:
    """Splat rows of costs by label, and slice own labels alone."""
    labelling = labelling.contiguous()
    total = crf.unary.gather(1, labelling[:, None])[:, 0].double()
    labels = crf.labels
    for kernel in crf.kernels:
        crf.deadline.check("filtering")
        lattice = kernel.weighted
        assert isinstance(lattice, Lattice)
        table, weights, vertices = kernel.table(labels), lattice.weights.double().contiguous(), lattice.vertices
        order, bounds, groups = lattice.entries
        assert bounds is not None
        parts, summed = weights.new_empty(len(bounds) - 1, labels), weights.new_empty(lattice.size, labels)
        grid, block = blocks(lattice.size, labels)
        runs = table, labelling, weights, order, bounds, parts, labels, lattice.features + 1
        splat_labels[len(parts), grid[1]](*runs, RUN, block["CHANNELS"])
        sum_runs[grid](parts, groups, summed, lattice.size, labels, **block)
        blurred, out = _blurred(lattice, summed), torch.empty_like(total)
        # Without costs on its diagonal a kernel's own is of no account, and need not be known.
        own = kernel.diagonal[:, 0].contiguous() if kernel.costs_itself else total
        given = blurred, table, labelling, weights, vertices, own, total, out, crf.points, labels
        slice_labels[triton.cdiv(crf.points, 256),](*given, lattice.features + 1, 256)
        total = out
    return torch.stack([part.sum() for part in torch.split(total, crf.sizes)])
