"""Matchings of which every process holds the edges of its own sources: the same bits in any number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

import blocklp as bl
from blocklp.problems.matching import Matching, MatchingPart, matching_model, matching_shard, part_of, solve_matching

from ...blocklp.distributed.processes import together
from .test_matching import optimum, random


def in_parts(seeds: list[tuple[int, bool]], folder: str | None = None) -> list[dict[str, Any]]:
    """What each matching comes to, in this process."""
    told = []
    for seed, general in seeds:
        part = part_of(random(seed, general), dist.get_rank(), dist.get_world_size())
        model = matching_shard(part)
        if isinstance(model, bl.Status):
            told.append({"status": model})
            continue
        found = model.solve(mesh=True, tol=1e-3, passes=20_000, backend="torch")
        answer = {"hash": bl.distributed.solution_hash(found, mesh=True), "status": found.status[0], "blocks": len(model.blocks)}
        answer |= {"bound": float(found.bound[0]), "safe": float(found.safe_bound[0]), "primal": float(found.primal[0])}
        told.append(answer | {"x": found.x["x"][0].numpy(), "price": found.price("capacity")[0].numpy()})
        if folder is not None:
            path = Path(folder) / str(dist.get_rank())
            found.save(path)
            again = bl.Solution.load(path, model)
            assert (again.x["x"] == found.x["x"]).all() and float(again.bound[0]) == float(found.bound[0])
    return told


@pytest.mark.slow
def test_parts_have_the_same_bits_in_any_number_of_processes(tmp_path: Path) -> None:
    """Degrees of sources differ between processes, so that most have no block of some of them."""
    seeds = [(seed, general) for seed in range(2) for general in (False, True)]
    (alone,) = together(in_parts, 1, seeds)
    for world, count in ((2, len(seeds)), (3, 1)):  # three on two cores take their time
        answers = together(in_parts, world, seeds[:count], str(tmp_path))
        for k, (seed, general) in enumerate(seeds[:count]):
            d, right, mine = random(seed, general), alone[k], [own[k] for own in answers]
            truth = optimum(d)
            assert {own["status"] for own in mine} == {right["status"]}
            if truth is None:
                assert right["status"] is bl.Status.INFEASIBLE
                continue
            assert {own["hash"] for own in mine} == {right["hash"]} and right["status"] is bl.Status.OPTIMAL
            assert right["safe"] >= truth - 1e-8 * (1 + abs(truth))
            assert right["primal"] == pytest.approx(truth, rel=2e-3, abs=1e-6)
            x = np.concatenate([own["x"] for own in mine])
            assert np.array_equal(x, right["x"]) and all(np.array_equal(own["price"], right["price"]) for own in mine)
            assert d.value[np.argsort(d.source, kind="stable")] @ x == pytest.approx(right["primal"], rel=1e-9)


def test_a_process_states_the_kinds_of_blocks_of_all() -> None:
    """One process: its part is the model itself, whose edges are sorted."""
    d = Matching([0, 1, 1, 2, 2, 2], [0, 0, 1, 0, 1, 2], np.ones(6), np.ones(6), np.ones(3))
    parts = [part_of(d, rank, 2).matching for rank in range(2)]
    assert [sorted(np.bincount(p.source).tolist()) for p in parts] == [[1, 2], [3]]
    (alone,) = together(stated, 1, MatchingPart(d, 0))
    assert alone == [(block.name, len(block.scope)) for block in matching_model(d).blocks]
    for found, counts in zip(together(half, 2, d), ((1, 1, 0), (0, 0, 1)), strict=True):
        assert found == [(f"sources of {k + 1}", count) for k, count in enumerate(counts)]
    assert solve_matching(d).primal == pytest.approx(3.0, rel=1e-3)


def stated(part: MatchingPart) -> list[tuple[str, int]]:
    """Names and numbers of blocks."""
    return [(block.name, len(block.scope)) for block in matching_shard(part).blocks]


def half(d: Matching) -> list[tuple[str, int]]:
    """Those of this process's part."""
    return stated(part_of(d, dist.get_rank(), dist.get_world_size()))
