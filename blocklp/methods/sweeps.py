"""Passes over blocks with active sets: ask the oracles, then advance the blocks' points.

Blocks with a vertex table, and in ADMM those that keep the last answers of their oracle, are swept by the
compiled loops of :mod:`blocklp.kernels.fused_kernels` on a CPU; all others by tensor operations.  Runs of
both agree in quality, not in numbers: a step of the best length makes two atoms tie, and rounding chooses
which of them is next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blocklp.blocks.finite import struck_out
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.row_sums import dot
from blocklp.kernels.compiled import tiles
from blocklp.kernels.operations import implements, operation
from blocklp.kernels.plan import Plan
from blocklp.methods import active_set as atom

FUSED = "blocklp.kernels.fused_kernels"
"""Module of compiled loops over vertex tables, and over blocks that keep the last answers of any oracle."""


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
    answers : tuple of OracleAnswer
        One a group; values are left out where loops find them again.
    """

    duals: Tensor
    model: Tensor
    value: Tensor
    cost: Tensor
    answers: tuple[atom.OracleAnswer, ...]


class PairwiseSteps(NamedTuple):
    """Steps that all groups take.

    Attributes
    ----------
    duals : Tensor
        ``(batch, copies)``: multipliers.
    eta, momentum : Tensor
        ``(batch,)``: proximal weights, and factors of extrapolation.
    repeats : int
        Number of pairwise steps.
    """

    duals: Tensor
    eta: Tensor
    momentum: Tensor
    repeats: int


@dataclass(frozen=True)
class OracleQuery:
    r"""The multipliers :math:`\beta + P x / \eta` at which all oracles are asked.

    Attributes
    ----------
    problem : Decomposition
        The problem.
    points, centre : Tensor
        ``(batch, copies)``: x and :math:`\beta`.
    eta : Tensor
        ``(batch,)``: proximal weights.
    duals : Tensor
        ``(batch, copies)``: the multipliers, written group by group as their oracles are asked.
    """

    problem: Decomposition
    points: Tensor
    centre: Tensor
    eta: Tensor
    duals: Tensor

    @cached_property
    def mean(self) -> Tensor:
        """Means of the copies of each variable ``(batch, variables)``."""
        return self.problem.mean(self.points)

    @cached_property
    def disagreement(self) -> Tensor:
        """P x: how far the copies are from their means ``(batch, copies)``."""
        return self.problem.disagreement(self.points)


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
    query = OracleQuery(plan.problem, points, centre, eta, torch.empty_like(points))
    found = points.new_zeros(len(points), 3)
    answers: tuple[atom.OracleAnswer, ...] = ()
    for group, a, w, e in zip(plan.problem.groups, atoms, weights, earlier, strict=True):
        answer, values = ask_group(plan, group, query, a, w, e)
        answers += (answer,)
        found += values
    model, value, cost = found.unbind(1)
    return Asked(query.duals, model, value, cost, answers)


@operation
def ask_group(
    plan: Plan, group: Group, query: OracleQuery, atoms: atom.Atoms, weights: Tensor, earlier: Tensor
) -> tuple[atom.OracleAnswer, Tensor]:
    """Ask the oracles of one group, and write its multipliers.

    Parameters
    ----------
    plan, group : Plan, Group
        The problem and how it is executed, and the group.
    query : OracleQuery
        Where it is asked; its multipliers of the group are written.
    atoms : Atoms
        Active set of the group, which may be written over.
    weights, earlier : Tensor
        ``(batch, atoms, blocks)``: weights of its points, and those of the last pass, likewise.

    Returns
    -------
    answer, values : OracleAnswer, Tensor
        The answers; the values of the atoms may be left out where :func:`advance_group` finds them again.
        ``(batch, 3)``: squared disagreement, least cost, and cost of the points.
    """
    part, own = slice(group.start, group.stop), group.rows(query.disagreement)
    query.duals[:, part] = query.disagreement[:, part].div(query.eta[:, None]).add_(query.centre[:, part])
    answer = atoms.answer(group, query.duals, weights, earlier)
    costs = dot(own, own), answer.best.sum(1), dot(answer.weights, answer.values)
    return answer, torch.stack(costs, 1)


def advance(
    plan: Plan,
    asked: Asked,
    points: Tensor,
    eta: Tensor,
    momentum: Tensor,
    repeats: int,
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Step each block, and extrapolate; points and weights given are used up.

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
    steps, found = PairwiseSteps(asked.duals, eta, momentum, repeats), []
    for group, answer in zip(plan.problem.groups, asked.answers, strict=True):
        found.append(advance_group(plan, group, answer, steps, points))
    stepped, extrapolated = (tuple(weights) for weights in zip(*found, strict=True))
    return points, stepped, extrapolated


@operation
def advance_group(
    plan: Plan, group: Group, answer: atom.OracleAnswer, steps: PairwiseSteps, points: Tensor
) -> tuple[Tensor, Tensor]:
    """Take pairwise steps on the blocks of one group, and extrapolate.

    Parameters
    ----------
    plan, group
        As in :func:`ask_group`.
    answer : OracleAnswer
        Answers of its oracles, whose weights may be written over.
    steps : PairwiseSteps
        Which steps.
    points : Tensor
        ``(batch, copies)``: points of the blocks, written.

    Returns
    -------
    stepped, extrapolated : Tensor
        ``(batch, atoms, blocks)``: weights of its points after the steps, and after the extrapolation.
    """
    _, eta, momentum, repeats = steps
    new = atom.pairwise_steps(answer.atoms, answer.weights, answer.values, eta, repeats)
    ahead = atom.extrapolated(new, answer.earlier, momentum[:, None, None])
    group.rows(points).copy_(answer.atoms.combine(ahead))
    return new, ahead


@operation
def steps_to_points(
    plan: Plan,
    group: Group,
    atoms: atom.Atoms,
    weights: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    repeats: int,
) -> tuple[atom.Atoms, Tensor]:
    r"""Ask the oracles of one group, and take pairwise steps towards its proximal points.

    Parameters
    ----------
    plan, group
        As in :func:`ask_group`.
    atoms : Atoms
        Its active set, which may be written over.
    weights : Tensor
        ``(batch, atoms, blocks)``: weights of its points, which may be written over.
    state : tuple of Tensor
        Points of all blocks ``(batch, copies)``, written; slopes :math:`(x - t) / \eta` ``(batch, copies)``,
        see :mod:`blocklp.methods.admm`; and proximal weights ``(batch,)``.
    repeats : int
        Pairwise steps.

    Returns
    -------
    atoms, weights : Atoms, Tensor
        The active set and the weights after the steps.
    """
    points, slopes, eta = state
    answer = atoms.answer(group, slopes, weights, weights)
    new = atom.pairwise_steps(answer.atoms, answer.weights, answer.values, eta, repeats)
    group.rows(points).copy_(answer.atoms.combine(new))
    return answer.atoms, new


def fused_loops(plan: Plan) -> ModuleType | None:
    """The compiled loops, where some blocks have vertex tables for them."""
    short = any(group.few_vertices is not None for group in plan.problem.groups)
    if plan.problem.coupling.maps or not short:
        return None
    return plan.backend.loops(FUSED)


def _asked_in_loops(plan: Plan, group: Group, query: OracleQuery, atoms: atom.Atoms, *_: Tensor) -> bool:
    return isinstance(atoms, atom.VertexTable) and fused_loops(plan) is not None


@implements("ask_group", "numba", _asked_in_loops)
def _ask_group(
    plan: Plan, group: Group, query: OracleQuery, atoms: atom.VertexTable, weights: Tensor, earlier: Tensor
) -> tuple[atom.OracleAnswer, Tensor]:
    fused, points = fused_loops(plan), query.points
    assert fused is not None
    sums = points.new_empty(len(points), tiles(group.blocks), 3)
    valid = points.new_empty(1, 0) if group.valid is None else group.valid
    state = points, query.centre, plan.problem.coupling.places, query.mean, query.eta
    table = group.start, atoms.table, *_masked(group, points), valid
    fused.ask(sums.shape[0] * sums.shape[1], *state, *table, weights, query.duals, sums)
    none = points.new_empty(0)
    return atom.OracleAnswer(atoms, weights, earlier, none, none), sums.sum(1)


def _advanced_in_loops(plan: Plan, group: Group, answer: atom.OracleAnswer, *_: Any) -> bool:
    return isinstance(answer.atoms, atom.VertexTable) and fused_loops(plan) is not None


@implements("advance_group", "numba", _advanced_in_loops)
def _advance_group(
    plan: Plan, group: Group, answer: atom.OracleAnswer, steps: PairwiseSteps, points: Tensor
) -> tuple[Tensor, Tensor]:
    """Points and weights are written over: fresh memory takes as long as the work."""
    assert isinstance(answer.atoms, atom.VertexTable)
    duals, eta, momentum, repeats = steps
    rest = eta, momentum, repeats, answer.weights, answer.earlier, points
    _fused_steps(plan, group, answer.atoms, duals, rest)
    return answer.earlier, answer.weights


def _table_in_loops(plan: Plan, group: Group, atoms: atom.Atoms, *_: Any) -> bool:
    return isinstance(atoms, atom.VertexTable) and fused_loops(plan) is not None


@implements("steps_to_points", "numba", _table_in_loops)
def _table_steps(
    plan: Plan,
    group: Group,
    atoms: atom.VertexTable,
    weights: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    repeats: int,
) -> tuple[atom.Atoms, Tensor]:
    points, slopes, eta = state
    _fused_steps(plan, group, atoms, slopes, (eta, torch.zeros_like(eta), repeats, weights, weights, points))
    return atoms, weights


def _fused_steps(
    plan: Plan,
    group: Group,
    atoms: atom.VertexTable,
    slopes: Tensor,
    rest: tuple[Tensor, Tensor, int, Tensor, Tensor, Tensor],
) -> None:
    """Pairwise steps on blocks with a vertex table, and extrapolation; weights and points are written."""
    fused = fused_loops(plan)
    assert fused is not None
    eta, momentum, repeats, ahead, new, points = rest
    given = *_masked(group, points), eta, momentum, repeats, atom.ruled_out(points.dtype)
    units = len(points) * tiles(group.blocks)
    fused.advance(units, slopes, group.start, atoms.table, atoms.gram, *given, ahead, new, points)


def _cache_in_loops(plan: Plan, group: Group, atoms: atom.Atoms, *_: Any) -> bool:
    return isinstance(atoms, atom.VertexCache) and plan.backend.loops(FUSED) is not None


@implements("steps_to_points", "numba", _cache_in_loops)
def _cache_steps(
    plan: Plan,
    group: Group,
    atoms: atom.VertexCache,
    weights: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    repeats: int,
) -> tuple[atom.Atoms, Tensor]:
    loops, (points, slopes, eta) = plan.backend.loops(FUSED), state
    assert loops is not None
    found, least = group.min_oracle(group.view(slopes))
    answers = found.transpose(1, 2).contiguous(), least.contiguous(), atoms.coupled[:, 0]
    rest = eta, repeats, atom.ruled_out(points.dtype), atoms.points, weights, points
    loops.renew(len(points) * tiles(group.blocks), slopes, group.start, *answers, *rest)
    return atoms, weights


def _masked(group: Group, like: Tensor) -> tuple[Tensor, float]:
    """The mask of vertices that bounds exclude, and their cost."""
    assert group.few_vertices is not None
    table, mask = group.few_vertices
    if mask is None:
        return torch.empty(1, 0, len(table), dtype=torch.bool), struck_out(like.dtype)
    return mask.expand(-1, group.blocks, -1).contiguous(), struck_out(like.dtype)
