"""Pairwise Frank-Wolfe steps on blocks with few vertices (:mod:`blocklp.methods.sweeps`) in Triton."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.finite import struck_out
from blocklp.decomposition.problem import Group
from blocklp.kernels import triton_vertex_kernels as kernels
from blocklp.kernels.operations import implements
from blocklp.kernels.plan import Plan
from blocklp.kernels.row_tables import LANES, apart
from blocklp.kernels.triton_launch import launch
from blocklp.kernels.triton_rows import has_tables
from blocklp.methods import active_set as atom
from blocklp.methods.sweeps import OracleQuery, PairwiseSteps

ROOM, WIDEST = 2048, 256
"""Weights that a program holds, and the blocks that it takes at most."""


def _form(count: int) -> tuple[int, int]:
    """Room for so many vertices, a power of two, and blocks of a program."""
    slots = max(2, 1 << (count - 1).bit_length())
    return slots, min(WIDEST, ROOM // slots)


def _masked(group: Group, atoms: atom.Atoms, none: Tensor) -> tuple[Tensor, bool]:
    """Which vertices bounds exclude ``(batch or 1, blocks, vertices)`` int8, and whether any are."""
    if not isinstance(atoms, atom.VertexTable) or group.few_vertices is None or group.few_vertices[1] is None:
        return none, False
    mask = group.few_vertices[1]
    return mask.expand(-1, group.blocks, -1).contiguous().view(torch.int8), True


@functools.lru_cache(maxsize=1000)
def _numbers(device: torch.device, *values: int) -> Tensor:
    """Numbers that kernels read from memory: for those in tuples that they are given they are compiled."""
    return torch.tensor(values).to(device, non_blocking=True)


def _laid_out(atoms: atom.VertexTable | atom.VertexCache) -> atom.VertexTable | atom.VertexCache:
    """The vertices, where blocks are side by side."""
    return atoms if isinstance(atoms, atom.VertexTable) else replace(atoms, points=atoms.points.contiguous())


def _answers(found: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """An oracle's points ``(batch, blocks, dim)``, their values, and how far points are apart."""
    point, value = found
    strides = point.stride(0), point.stride(2), point.stride(1)
    return point, value.contiguous(), _numbers(point.device, *strides)


def _limits(dtype: torch.dtype) -> tuple[float, float, float]:
    """A slope below all real ones, the least positive number, and the cost of an excluded vertex."""
    return atom.ruled_out(dtype), torch.finfo(dtype).tiny, struck_out(dtype)


def _served(plan: Plan, group: Group, query: object, atoms: atom.Atoms, *_: Any) -> bool:
    return has_tables(plan.problem) and isinstance(atoms, atom.VertexTable | atom.VertexCache)


@implements("ask_group", "triton", _served)
def _ask_group(
    plan: Plan,
    group: Group,
    query: OracleQuery,
    atoms: atom.VertexTable | atom.VertexCache,
    weights: Tensor,
    earlier: Tensor,
) -> tuple[atom.OracleAnswer, Tensor]:
    """See :func:`blocklp.methods.sweeps.ask_group`; costs of vertices are left out."""
    points, place = query.points, plan.problem.coupling.places
    batch, count, atoms = len(points), weights.shape[1], _laid_out(atoms)
    weights, earlier = weights.contiguous(), earlier.contiguous()
    slots, block = _form(count)
    units = -(-group.blocks // block)
    depth = -(-units // LANES)
    partial = points.new_zeros(batch, depth * LANES * 3, dtype=torch.float64)
    none = points.new_empty(1, 0)
    mask, masked = _masked(group, atoms, none)
    valid = none if group.valid is None else group.valid
    distances = apart(place), apart(mask), apart(valid), depth * LANES * 3
    sizes = _numbers(points.device, points.shape[1], plan.problem.coupling.variables, *distances)
    state = points, query.centre, query.duals, query.mean
    table = atoms.table if isinstance(atoms, atom.VertexTable) else points
    given = sizes, state, place, query.eta, table, (mask, valid), weights, partial
    form = isinstance(atoms, atom.VertexTable), masked, group.valid is not None, slots
    numbers = units, group.blocks, group.dim, count, group.start
    constants = {"FORM": form, "HUGE": struck_out(points.dtype), "BLOCK": block}
    launch(kernels.vertex_ask, (batch * units,), *numbers, *given, **constants)
    if isinstance(atoms, atom.VertexCache):
        answers = _answers(group.min_oracle(group.view(query.duals)))
        kept = points.shape[1], depth, answers, atoms.points, query.duals, (weights, earlier), partial
        constants = {"LIMITS": _limits(points.dtype), "SLOTS": slots, "LANES": LANES, "BLOCK": block}
        launch(kernels.vertex_renew, (batch * units,), *numbers, *kept, **constants)
    values = points.new_empty(batch, 3)
    launch(kernels.vertex_totals, (batch,), depth, partial, values, LANES=LANES)
    return atom.OracleAnswer(atoms, weights, earlier, none, none), values


def _advanced(plan: Plan, group: Group, answer: atom.OracleAnswer, *_: Any) -> bool:
    return has_tables(plan.problem) and isinstance(answer.atoms, atom.VertexTable | atom.VertexCache)


@implements("advance_group", "triton", _advanced)
def _advance_group(
    plan: Plan, group: Group, answer: atom.OracleAnswer, steps: PairwiseSteps, points: Tensor
) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.methods.sweeps.advance_group`; weights and points are written over."""
    duals, eta, momentum, repeats = steps
    assert not isinstance(answer.atoms, atom.PartVertices)
    weights, earlier = answer.weights.contiguous(), answer.earlier.contiguous()
    _steps(group, _laid_out(answer.atoms), (duals, points), (eta, momentum), (weights, earlier), repeats)
    return earlier, weights


def _stepped(plan: Plan, group: Group, atoms: atom.Atoms, *_: Any) -> bool:
    return _served(plan, group, None, atoms)


@implements("steps_to_points", "triton", _stepped)
def _steps_to_points(
    plan: Plan,
    group: Group,
    atoms: atom.VertexTable | atom.VertexCache,
    weights: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    repeats: int,
) -> tuple[atom.Atoms, Tensor]:
    """See :func:`blocklp.methods.sweeps.steps_to_points`; weights, points and vertices are written over."""
    points, slopes, eta = state
    answers = group.min_oracle(group.view(slopes)) if isinstance(atoms, atom.VertexCache) else None
    atoms, weights = _laid_out(atoms), weights.contiguous()
    _steps(group, atoms, (slopes, points), (eta, eta), (weights, weights), repeats, answers)
    return atoms, weights


def _steps(
    group: Group,
    atoms: atom.VertexTable | atom.VertexCache,
    state: tuple[Tensor, Tensor],
    scalars: tuple[Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    repeats: int,
    answers: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Take pairwise steps, and extrapolate where weights of an earlier pass are given.

    Parameters
    ----------
    group : Group
        The group.
    atoms : VertexTable or VertexCache
        Its vertices; caches are written where there are answers.
    state : tuple of Tensor
        Slopes, and points (written), ``(batch, copies)``.
    scalars : tuple of Tensor
        ``(batch,)``: proximal weights, and factors of extrapolation.
    weights : tuple of Tensor
        ``(batch, vertices, blocks)``: weights and those of the last pass, or twice the same for no
        extrapolation; written.
    repeats : int
        Number of steps.
    answers : tuple of Tensor, optional
        The oracle's points ``(batch, blocks, dim)`` and their values ``(batch, blocks)``, to be kept.
    """
    slopes, points = state
    (batch, count, blocks), dtype = weights[0].shape, points.dtype
    own = isinstance(atoms, atom.VertexCache)
    vertices = atoms.points if isinstance(atoms, atom.VertexCache) else atoms.table
    slots, block = _form(count)
    units = -(-blocks // block)
    mask, masked = _masked(group, atoms, points.new_empty(1, 0))
    kept = (points, points, slopes) if answers is None else _answers(answers)
    masks = mask, _numbers(points.device, apart(mask)), group.coupled
    numbers = units, blocks, group.dim, count, group.start, points.shape[1], repeats
    given = masks, kept, vertices, scalars, weights, (slopes, points)
    form = own, masked, answers is not None, weights[0] is not weights[1], slots
    limits = _limits(dtype)
    launch(kernels.vertex_steps, (batch * units,), *numbers, *given, FORM=form, LIMITS=limits, BLOCK=block)
