"""Passes over blocks with active sets: ask the oracles, then advance the blocks' points.

Blocks with a vertex table, and in ADMM those that keep the last answers of their oracle, are swept by the
compiled loops of :mod:`blocklp.kernels.fused_kernels` on a CPU; all others by tensor operations.  Runs of
both agree in quality, not in numbers: a step of the best length makes two atoms tie, and rounding chooses
which of them is next.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from blocklp.blocks.finite import struck_out
from blocklp.decomposition.problem import Group, dot
from blocklp.kernels.compiled import tiles
from blocklp.kernels.plan import Plan
from blocklp.methods import active_set as atom


@dataclass(frozen=True)
class Asked:
    """Answers of all oracles.

    Attributes
    ----------
    duals : Tensor
        ``(batch, copies)``: the multipliers at which they were asked.
    model, value, cost : Tensor
        ``(batch,)``: squared disagreement, the dual value, and the cost of the points that the oracles were
        asked about.
    answers : tuple of Answer
        One a group; values are left out where loops find them again.
    """

    duals: Tensor
    model: Tensor
    value: Tensor
    cost: Tensor
    answers: tuple[atom.Answer, ...]


def ask(
    plan: Plan,
    points: Tensor,
    centre: Tensor,
    eta: Tensor,
    atoms: tuple[atom.Atoms, ...],
    weights: tuple[Tensor, ...],
    earlier: tuple[Tensor, ...],
) -> Asked:
    r"""Ask all oracles at :math:`\beta + P x / \eta`.

    Parameters
    ----------
    plan : Plan
        The problem, and how it is executed.
    points, centre : Tensor
        ``(batch, copies)``: x and :math:`\beta`.
    eta : Tensor
        ``(batch,)``: proximal weights.
    atoms, weights, earlier : tuple of Tensor
        For each group its active set, the weights of its points, and those of the last pass.

    Returns
    -------
    Asked
        Answers of all oracles, and values ``(batch,)``.
    """
    problem, fused = plan.problem, fused_loops(plan)
    swept = [fused is not None and isinstance(a, atom.VertexTable) for a in atoms]
    spread = torch.empty_like(points) if all(swept) else problem.disagreement(points)
    duals = torch.empty_like(points) if all(swept) else spread.div(eta[:, None]).add_(centre)
    mean = problem.mean(points) if any(swept) else points
    found = points.new_zeros(len(points), 3)
    answers: tuple[atom.Answer, ...] = ()
    for group, a, w, e in zip(problem.groups, atoms, weights, earlier, strict=True):
        if fused is not None and isinstance(a, atom.VertexTable):
            sums = points.new_empty(len(points), tiles(group.blocks), 3)
            valid = points.new_empty(1, 0) if group.alive is None else group.alive
            state = (points, centre, problem.coupling.places, mean, eta)
            table = (group.start, a.table, *_masked(group, points), valid)
            fused.ask(sums.shape[0] * sums.shape[1], *state, *table, w, duals, sums)
            answer, values = atom.Answer(a, w, e, points.new_empty(0), points.new_empty(0)), sums.sum(1)
        else:
            answer, own = a.answer(group, duals, w, e), group.rows(spread)
            values = torch.stack([dot(own, own), answer.best.sum(1), dot(answer.weights, answer.values)], 1)
        answers += (answer,)
        found += values
    model, value, cost = found.unbind(1)
    return Asked(duals, model, value, cost, answers)


def advance(
    plan: Plan,
    asked: Asked,
    points: Tensor,
    eta: Tensor,
    momentum: Tensor,
    repeats: int,
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Step each block, and extrapolate.

    Compiled loops write over the points given and the weights of the answers: fresh memory takes as long as
    the work.

    Parameters
    ----------
    plan : Plan
        The problem, and how it is executed.
    asked : Asked
        Answers of the oracles.
    points : Tensor
        ``(batch, copies)``: points of the blocks.
    eta, momentum : Tensor
        ``(batch,)``: proximal weights, and factors of extrapolation.
    repeats : int
        Pairwise steps.

    Returns
    -------
    points : Tensor
        ``(batch, copies)``: extrapolated points.
    stepped, extrapolated : tuple of Tensor
        For each group the weights of its points after the steps, and after the extrapolation.
    """
    fused = fused_loops(plan)
    stepped: tuple[Tensor, ...] = ()
    extrapolated: tuple[Tensor, ...] = ()
    for group, a in zip(plan.problem.groups, asked.answers, strict=True):
        if fused is not None and isinstance(a.atoms, atom.VertexTable):
            new, ahead, table = a.earlier, a.weights, (a.atoms.table, a.atoms.gram)
            rest = (*_masked(group, points), eta, momentum, repeats, atom.ruled_out(points.dtype))
            units = len(points) * tiles(group.blocks)
            fused.advance(units, asked.duals, group.start, *table, *rest, ahead, new, points)
        else:
            new = atom.pairwise_steps(a.atoms, a.weights, a.values, eta, repeats)
            ahead = atom.extrapolated(new, a.earlier, momentum[:, None, None])
            group.rows(points).copy_(a.atoms.combine(ahead))
        stepped += (new,)
        extrapolated += (ahead,)
    return points, stepped, extrapolated


def around(
    plan: Plan,
    group: Group,
    table: atom.VertexTable,
    weights: Tensor,
    slopes: Tensor,
    eta: Tensor,
    repeats: int,
    points: Tensor,
) -> None:
    r"""Pairwise steps of one group towards its proximal points, by the loops.

    Points and weights are written over.

    Parameters
    ----------
    plan : Plan
        The problem, and how it is executed.
    group : Group
        The group.
    table : VertexTable
        Its vertices.
    weights : Tensor
        Weights of its points.
    slopes : Tensor
        ``(batch, copies)``: :math:`(x - t) / \eta`, see :mod:`blocklp.methods.admm`.
    eta : Tensor
        ``(batch,)``: proximal weights.
    repeats : int
        Pairwise steps.
    points : Tensor
        ``(batch, copies)``: points of the blocks.
    """
    fused = fused_loops(plan)
    assert fused is not None
    rest = (*_masked(group, points), eta, torch.zeros_like(eta), repeats, atom.ruled_out(points.dtype))
    vertices, units = (table.table, table.gram), len(points) * tiles(group.blocks)
    fused.advance(units, slopes, group.start, *vertices, *rest, weights, weights, points)


def renew(
    plan: Plan,
    group: Group,
    cache: atom.VertexCache,
    weights: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    repeats: int,
) -> None:
    r"""Ask one group's oracle and take pairwise steps towards its proximal points, by the loops.

    The active set, weights and points are written over.

    Parameters
    ----------
    plan : Plan
        The problem, and how it is executed.
    group : Group
        The group.
    cache : VertexCache
        The last answers of its oracle.
    weights : Tensor
        Weights of its points.
    state : tuple of Tensor
        Points and slopes :math:`\lambda + (x - z) / \eta` ``(batch, copies)``, and proximal weights
        ``(batch,)``.
    repeats : int
        Pairwise steps.
    """
    loops = cache_loops(plan)
    assert loops is not None
    points, slopes, eta = state
    found, least = group.min_oracle(group.view(slopes))
    answers = (found.transpose(1, 2).contiguous(), least.contiguous(), cache.curved[:, 0])
    rest = (eta, repeats, atom.ruled_out(points.dtype), cache.points, weights, points)
    loops.renew(len(points) * tiles(group.blocks), slopes, group.start, *answers, *rest)


def cache_loops(plan: Plan) -> ModuleType | None:
    """The compiled loops for blocks that keep the last answers of their oracle: of any type, on a CPU."""
    return plan.backend.loops("blocklp.kernels.fused_kernels")


def fused_loops(plan: Plan) -> ModuleType | None:
    """The compiled loops, where some blocks have vertex tables for them."""
    short = any(group.few_vertices is not None for group in plan.problem.groups)
    if plan.problem.coupling.maps or not short:
        return None
    return plan.backend.loops("blocklp.kernels.fused_kernels")


def _masked(group: Group, like: Tensor) -> tuple[Tensor, float]:
    """The mask of vertices that bounds exclude, and their cost."""
    assert group.few_vertices is not None
    table, mask = group.few_vertices
    if mask is None:
        return torch.empty(1, 0, len(table), dtype=torch.bool), struck_out(like.dtype)
    return mask.expand(-1, group.blocks, -1).contiguous(), struck_out(like.dtype)
