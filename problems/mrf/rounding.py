"""Labellings from relaxed points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.oracles.chain import Chain
from blocklp.problems.discrete.tightening import Labelled
from blocklp.problems.mrf.heuristics import PER_COST, descend, flow_seconds, looked_at, moved_by_flow
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.path_moves import moved_along_paths
from blocklp.problems.mrf.relaxation import MrfRelaxation
from blocklp.problems.qpbo.heuristics import round_fractional

DESCENT = 0.5
"""Share of the time left for descents, at most; moves by flow or along paths have the rest, if they can begin by then."""

DRAWN = 62
"""Labellings drawn from the marginals, where there is time for them to descend."""

ROUNDS = 10
"""Rounds that a descent takes."""

FUSED = 20
"""Labellings, the best first, that are fused."""


def rounded(relaxation: MrfRelaxation, solution: bl.Solution, deadline: Deadline, labels: Sequence[Tensor] = ()) -> Labelled:
    """Round the point of a solved relaxation and improve it.

    Starts are the likeliest label of each variable, its label of least cost, and labels drawn by their marginals with a fixed seed;
    on chains the whole words that are likeliest, and draws of them; binary models without hard constraints add those of
    :func:`blocklp.problems.qpbo.round_fractional`.  All descend together.  In pairwise models the best one is improved by expansion
    moves and fused with the next ones; in models of factors of three variables the best ones are relabelled along paths of states.

    Parameters
    ----------
    relaxation : MrfRelaxation
        Of one instance.
    solution : Solution
        Of its model.
    deadline : Deadline
        When to stop improving.
    labels : sequence of Tensor
        ``(n,)`` int64: more labellings to start from.

    Returns
    -------
    Labelled
        Labels are int64; the energy is infinite where none was found that respects the hard constraints.
    """
    mrf, marginals = relaxation.mrf, relaxation.marginals(solution).cpu().to(torch.float64)[0]
    starts = [marginals.argmax(-1)[None], alone(mrf)[None], *drawn_in_time(mrf, marginals, deadline)]
    if not relaxation.views and (qubo := mrf.to_qubo()) is not None:
        starts.append(round_fractional(qubo, solution.x["y"].cpu(), time_limit=deadline).y.long())
    if any(isinstance(blocks.type, Chain) for blocks in relaxation.model.blocks):
        starts.append(words(relaxation, marginals))
    return improved(mrf, torch.cat(starts + [own[None] for own in labels]), deadline)


def words(relaxation: MrfRelaxation, marginals: Tensor) -> Tensor:
    """Labels of which those along each chain fit together: ``(drawn, n)`` int64.

    The likeliest ones by marginals ``(n, most labels)`` first, then those whose marginals are perturbed by Gumbel noise
    (G. Papandreou, A. Yuille, Perturb-and-MAP random fields, ICCV 2011), with a fixed seed.
    """
    noise = torch.rand(DRAWN, *marginals.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = -(-noise.clamp(min=1e-300).log()).log()
    noise[0] = 0
    cost = -marginals.clamp(min=1e-3).log() - noise
    labels = drawn(relaxation.mrf, marginals)
    owner, upper = relaxation.views.owner, relaxation.views.upper
    for blocks in relaxation.model.blocks:
        if not isinstance(blocks.type, Chain):
            continue
        lengths, count = blocks.type.lengths, len(blocks.type.sizes) + sum(size > 0 for size in blocks.type.read)
        begins = list(itertools.accumulate(lengths, initial=0))[:count]
        variables = owner[blocks.scope[:, begins]]
        allowed = upper[blocks.scope][None]
        kind = blocks.type.restrict(torch.zeros_like(allowed), allowed)
        assert kind is not None
        parts = [cost[:, nodes, :length] for nodes, length in zip(variables.T, lengths, strict=False)]
        links = torch.zeros(DRAWN, len(blocks.scope), sum(lengths[count:]), dtype=torch.float64)
        taken = torch.split(kind.min_oracle(torch.cat([*parts, links], -1))[0], lengths, -1)[:count]
        labels[:, variables] = torch.stack([part.argmax(-1) for part in taken], -1)
    return labels


def incumbent(mrf: Mrf, deadline: Deadline, labels: Sequence[Tensor] = ()) -> Labelled:
    """A labelling found without a solution, as by :func:`rounded`: from given labels, those of least cost and random ones.

    Parameters
    ----------
    mrf : Mrf
        The model.
    deadline : Deadline
        When to stop improving.
    labels : sequence of Tensor
        ``(n,)`` int64: labellings to start from, too.
    """
    random = drawn_in_time(mrf, torch.zeros(mrf.n, int(mrf.counts.max()), dtype=torch.float64), deadline)
    return improved(mrf, torch.cat([own[None] for own in (*labels, alone(mrf))] + random), deadline)


def alone(mrf: Mrf) -> Tensor:
    """The label of least cost of each variable: ``(n,)`` int64."""
    labels = torch.zeros(mrf.n, dtype=torch.long)
    for group in mrf.groups:
        if group.order == 1:
            labels[torch.tensor(group.scopes[:, 0])] = torch.tensor(group.tables.argmin(1))
    return labels


def drawn(mrf: Mrf, marginals: Tensor) -> Tensor:
    """Labels drawn by marginals ``(n, most labels)`` with a fixed seed: ``(drawn, n)`` int64."""
    # Far from convergence a variable may have no weight at all, or a little below zero.
    exists = torch.arange(marginals.shape[-1]) < torch.tensor(mrf.counts)[:, None]
    weights = marginals.clamp(min=0) + 1e-3 * exists
    return torch.multinomial(weights, DRAWN, replacement=True, generator=torch.Generator().manual_seed(0)).T


def drawn_in_time(mrf: Mrf, marginals: Tensor, deadline: Deadline) -> list[Tensor]:
    """As many of the labels that are :func:`drawn` as there is time for to descend: one batch of them, or none."""
    seconds = ROUNDS * PER_COST * looked_at(mrf)
    count = int(min(DRAWN, DESCENT * deadline.left() / seconds))
    return [drawn(mrf, marginals)[:count]] if count else []


def improved(mrf: Mrf, starts: Tensor, deadline: Deadline) -> Labelled:
    """The best labelling that descent, moves by flow in pairwise models, and moves along paths of states lead to from ``(batch, n)``.

    Parameters
    ----------
    mrf : Mrf
        The model.
    starts : Tensor
        ``(batch, n)`` int64: labellings.
    deadline : Deadline
        For descent and moves.
    """
    followed = mrf.order == 3 or (mrf.order <= 2 and deadline.affords(flow_seconds(mrf)))
    reached = descend(mrf, starts, time_limit=deadline.within(DESCENT * deadline.left()) if followed else deadline)
    ranked = reached.labels[reached.energy.argsort(stable=True)]
    labels = ranked[0]
    if mrf.order == 3:
        labels = torch.tensor(moved_along_paths(mrf, ranked[:FUSED].numpy(), deadline))
    elif mrf.order <= 2:
        labels = torch.tensor(moved_by_flow(mrf, labels.numpy(), ranked[1:FUSED].numpy(), deadline))
    return Labelled(labels, float(mrf.energy(labels.numpy())))
