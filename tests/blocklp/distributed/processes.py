"""Processes of a test: a server that has imported what they need forks them, so that each starts at once."""

import multiprocessing
import os
import queue
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import blocklp as bl
from blocklp.problems.qpbo import Qubo, roof_duality_model

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:  # processes import the module of what they run by its name
    sys.path.append(ROOT)

CONTEXT = multiprocessing.get_context("forkserver")
WORK = [
    f"{__name__.rpartition('.')[0]}.test_{name}" for name in ("checkpoints", "failures", "integer_sums", "rows", "shards", "solve")
]
CONTEXT.set_forkserver_preload(["torch.distributed", "blocklp.distributed.solve", "blocklp.solver", *WORK])


def together(work, world, *arguments, seconds=120, silent=0):
    """What ``work(*arguments)`` returns or raises in each process of a group, by rank; None for those ``silent``."""
    with tempfile.TemporaryDirectory() as folder:
        answers = CONTEXT.Queue()
        given = os.path.join(folder, "store"), world, answers, work, arguments
        started = [CONTEXT.Process(target=_run, args=(rank, *given), daemon=True) for rank in range(world)]
        for process in started:
            process.start()
        found, until = [None] * world, time.monotonic() + seconds
        try:
            for _ in range(world - silent):
                rank, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
                found[rank] = answer
        except queue.Empty:
            pass
        for process in started:
            process.kill()
            process.join()
            process.close()
        answers.close()
        return found


def alike(answers):
    """What all processes said, who said the same."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None
    for name in ("hash", "bound", "safe", "primal", "status", "passes", "seconds"):
        assert len({answer[name] for answer in answers}) == 1, name
    return answers[0]


def _run(rank, store, world, answers, work, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    try:
        answer = work(*arguments)
    except BaseException as error:
        answer = error
    answers.put((rank, answer))
    answers.close()
    answers.join_thread()
    time.sleep(60)  # who ends closes connections, which others may still need


def random_qubo(nodes, pairs, seed=0):
    """Normal costs on about so many pairs; its last node has none, so that it is in a box of its own."""
    random = np.random.default_rng(seed)
    ends = random.integers(0, nodes - 1, (pairs, 2))
    edges = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], 1), axis=0)
    return Qubo.from_terms(random.normal(size=nodes), edges, random.normal(size=len(edges)))


def model(nodes=60, pairs=150, seed=0):
    """Its roof duality as a model."""
    return roof_duality_model(random_qubo(nodes, pairs, seed))


def told(found):
    """What processes say of a solution."""
    return {
        "hash": bl.distributed.solution_hash(found),
        "bound": float(found.bound[0]),
        "safe": float(found.safe_bound[0]),
        "primal": float(found.primal[0]),
        "status": found.status[0],
        "passes": int(found.passes[0]),
        "seconds": float(found.seconds[0]),
        "state": {name: own.numpy() for name, own in found.state.duals.items()},
        "x": found.raw_x.numpy(),
    }
