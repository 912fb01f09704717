"""Solves that are killed go on from what was saved, on other numbers of processes, with the bits of an undisturbed one."""

import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

import blocklp as bl
from blocklp.distributed import Mesh, solution_hash
from blocklp.errors import FormatError, ModelError, OptionError, ProcessError
from blocklp.oracles import Knapsack
from blocklp.problems.mis import WeightedGraph, clique_model
from blocklp.problems.qpbo import shard_of
from blocklp.results import saved

from .processes import model, random_qubo, together
from .test_rows import knapsacks
from .test_shards import capacities

STATED = {
    "whole": lambda: model(200, 800, seed=5),
    "parts": lambda: shard_of(random_qubo(200, 800, seed=5), dist.get_rank(), dist.get_world_size()),
    "rows": knapsacks,  # by PDHG; blocks of several processes share variables
    "parts with rows": lambda: capacities(dist.get_rank(), dist.get_world_size()),
}
OPTIONS = {"tol": 0.0, "patience": 10**6, "check_every": 5}


def killing(folder, seconds):
    """Kill this process some seconds after the solve has saved something.

    Only the name of what was saved last is read: its files may be replaced by the next ones at any moment.
    """
    path = folder / "latest.json"
    before = path.read_text() if path.exists() else ""
    while not path.exists() or path.read_text() == before:
        time.sleep(0.005)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def solved(kind, folder, passes, killed=-1, seconds=0.0):
    """Hash, bound and passes of a solve in which a process may be killed."""
    if dist.get_rank() == killed:
        threading.Thread(target=killing, args=(folder, seconds), daemon=True).start()
    mesh, part = Mesh(save=folder, save_every=10, timeout=60.0), kind in ("parts", "parts with rows")
    found = STATED[kind]().compile(backend="torch").solve(mesh=mesh, passes=passes, **OPTIONS)
    return solution_hash(found, mesh=True if part else None), float(found.bound[0]), int(found.passes[0])


def last(folder):
    """Passes and bound of what was saved last; none before that."""
    path = folder / "latest.json"
    if not path.exists():
        return 0, -np.inf
    latest = json.loads(path.read_text())
    numbers = saved.read(folder / latest["folder"] / f"0-of-{latest['world']}", ("checkpoint",))[1]
    return int(numbers["number_place"][0]), float(numbers["number_bound"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", STATED)
def test_a_solve_goes_on_with_the_same_bits_on_other_processes(kind, tmp_path):
    (right,) = together(solved, 1, kind, None, 90)
    bounds = []
    for world, passes in ((2, 35), (3, 71), (1, 90)):
        answers = together(solved, world, kind, tmp_path, passes)
        assert len(set(answers)) == 1
        bounds.append(answers[0][1])
        assert len(list(tmp_path.glob("passes-*"))) == 1
    assert answers[0] == right
    better = np.diff(bounds) * (-1 if "rows" in kind else 1)  # those with rows maximise
    assert better[0] > 0 and better[1] >= 0


def test_kills_lose_no_bound(tmp_path):
    """At three random times; the processes that are left say who is gone, and others go on."""
    random, passes, known = np.random.default_rng(0), 10**5, (0, -np.inf)
    for world, killed in ((2, 0), (3, 1), (2, 1)):
        answers = together(solved, world, "parts", tmp_path, passes, killed, random.uniform(0, 0.3), silent=1)
        assert answers[killed] is None
        assert all(isinstance(answer, ProcessError) for rank, answer in enumerate(answers) if rank != killed)
        now = last(tmp_path)
        assert now[0] > known[0] and now[1] >= known[1]
        known = now
    end = known[0] + 40
    (found,) = together(solved, 1, "parts", tmp_path, end)
    (right,) = together(solved, 1, "parts", None, end)
    assert found[1] >= known[1]
    assert found == right


def independent(folder):
    """A solve of another model in the same folder."""
    edges = np.array([[0, 1], [1, 2]])
    stated = clique_model(WeightedGraph(np.ones(3), edges), "edges")
    return stated.solve(mesh=Mesh(save=folder), backend="torch").bound


def test_other_models_and_damaged_files_are_refused(tmp_path):
    together(solved, 1, "whole", tmp_path, 40)
    for answer in together(independent, 2, tmp_path):
        assert isinstance(answer, ModelError)
        assert "another model" in str(answer)
    (file,) = tmp_path.glob("passes-*/0-of-1")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (answer,) = together(solved, 1, "whole", tmp_path, 80)
    assert isinstance(answer, FormatError)
    with pytest.raises(OptionError, match="save_every"):
        Mesh(save=tmp_path, save_every=0)
    with pytest.raises(OptionError, match="the path of a folder"):
        Mesh(save=3)


def part_of(capacity, entry, bound):
    """Knapsacks of which this process states all, a bound of a private variable, and a row."""
    model = bl.Model.shard(0, 1)
    x = model.variable("x", 6, lower=0, upper=1)
    y = model.variable("y", 2, lower=0, upper=torch.tensor([1.0, bound]), private=True)
    model.add(Knapsack(np.ones((2, 3)), np.array([capacity, 1.0])), x[[[0, 1, 2], [2, 3, 4]]])
    model.add_rows(np.array([[entry, 1.0]]), y, None, 1.5)
    model.maximize(x.sum() + y.sum())
    return model


def resumed(folder):
    """Passes of a solve and of one that goes on from it, and what is said of other models."""
    mesh, said = Mesh(save=folder, save_every=10), []
    for passes, *data in ((30, 0.5, 1.0, 1.0), (60, 0.5, 1.0, 1.0), (60, 2.0, 1.0, 1.0), (60, 0.5, 2.0, 1.0), (60, 0.5, 1.0, 0.5)):
        try:
            said.append(int(part_of(*data).solve(mesh=mesh, passes=passes, tol=0.0, check_every=10, patience=10**6).passes[0]))
        except ModelError as error:
            said.append(str(error))
    return said


def test_data_of_parts_are_compared(tmp_path):
    """Those of blocks, of bounds of private variables and of entries of rows."""
    ((first, second, *others),) = together(resumed, 1, tmp_path)
    assert 0 < first < second
    assert len(others) == 3 and all("another model" in other for other in others)
