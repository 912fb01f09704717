"""Blocks are dealt out in equal parts of work, in an order that follows connectivity where that shares fewer variables."""

import numpy as np
import pytest
import torch

from blocklp.distributed.partition import owners
from blocklp.problems.qpbo import Qubo, roof_duality_model

from .processes import model
from .test_rows import knapsacks

SIDE = 20


def grid(shuffled):
    """Roof duality of a square grid, whose nodes are numbered row by row or at random."""
    random, at = np.random.default_rng(0), np.arange(SIDE**2).reshape(SIDE, SIDE)
    pairs = np.concatenate([np.stack([at[:, :-1], at[:, 1:]], -1).reshape(-1, 2), np.stack([at[:-1], at[1:]], -1).reshape(-1, 2)])
    if shuffled:
        pairs = random.permutation(random.permutation(SIDE**2)[pairs])
    terms = random.normal(size=SIDE**2), np.sort(pairs, 1), random.normal(size=len(pairs))
    return roof_duality_model(Qubo.from_terms(*terms)).compile(backend="torch").decomposition()


def shared(problem, owner):
    """Variables that blocks of several processes hold, and the work of every process, counted one by one."""
    holders, work = [set() for _ in range(problem.cost.shape[1])], {}
    for group, mine in zip(problem.groups, owner, strict=True):
        for scope, process in zip(group.view(problem.coupling.index)[0].tolist(), mine.tolist(), strict=True):
            rows = 0 if problem.rows is None else torch.isin(problem.rows.column, torch.tensor(scope)).sum()
            work[process] = work.get(process, 0) + len(scope) + int(rows)
            for variable in scope:
                holders[variable].add(process)
    return sum(len(own) > 1 for own in holders), work


def test_a_grid_is_cut_along_few_nodes_however_it_is_numbered():
    for world in (2, 3, 4):
        for shuffled in (False, True):
            problem = grid(shuffled)
            count, work = shared(problem, owners(problem, world))
            assert count <= 2 * SIDE * (world - 1)
            assert len(work) == world and max(work.values()) <= min(work.values()) + 8


@pytest.mark.parametrize("kind", [model, knapsacks])
def test_parts_have_equal_work(kind):
    problem = kind().compile(backend="torch").decomposition()
    for world in (1, 2, 5):
        _, work = shared(problem, owners(problem, world))
        assert set(work) == set(range(world))
        assert max(work.values()) <= sum(work.values()) / world + 2 * 5 * 5  # blocks of five variables in five rows
