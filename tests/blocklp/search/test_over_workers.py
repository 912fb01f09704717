"""Search trees over workers: the optimum of brute force, and the same nodes however many workers there are."""

import functools
import itertools
import math
import pickle
import random
import time
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from blocklp.campaigns import InProcess, LocalExecutor
from blocklp.errors import OptionError, ProcessError
from blocklp.search import Node, Sharing, branch_and_bound_over
from blocklp.search.parcels import Parcel
from blocklp.status import Status

from .worker_trees import Items


def drawn(seed, count=12, **more):
    draw = random.Random(seed)
    ratio = [(draw.randint(5, 30), draw.randint(3, 20)) for _ in range(count)]
    return Items(sorted(ratio, key=lambda item: -item[0] / item[1]), sum(size for _, size in ratio) // 2, **more)


def truth(tree):
    return min(tree.value(x) for x in itertools.product((0, 1), repeat=len(tree.items)))


class Shuffled(InProcess):
    """So many workers that end in another order every time, and lose a task now and then."""

    def __init__(self, workers, seed, losses=0.0):
        self.workers, self.draw, self.losses = workers, random.Random(seed), losses
        self.waiting = []

    def submit(self, function, /, *arguments):
        answer = Future()
        self.waiting.append((answer, function, arguments))
        if len(self.waiting) >= self.workers or self.draw.random() < 0.5:
            self.draw.shuffle(self.waiting)
            while self.waiting:
                future, call, given = self.waiting.pop()
                if not future.set_running_or_notify_cancel():
                    continue
                if self.draw.random() < self.losses:
                    future.set_exception(ProcessError("lost"))
                else:
                    future.set_result(call(*given))
        else:  # a thread would end it some time; here the next one that comes, or a clock
            import threading

            threading.Timer(0.001, self._flush).start()
        return answer

    def _flush(self):
        while self.waiting:
            future, call, given = self.waiting.pop()
            if future.set_running_or_notify_cancel():
                future.set_result(call(*given))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("deterministic", [True, False])
def test_the_optimum_is_that_of_brute_force(seed, deterministic):
    tree, events = drawn(seed), []
    best = truth(tree)
    sharing = Sharing(batch=3, parts=4, subtree=9, deterministic=deterministic)
    found = branch_and_bound_over(Shuffled(3, seed, losses=0.05), [tree.root()], tree.expand, sharing=sharing, callback=events.append)
    assert found.status is Status.OPTIMAL and found.incumbent == found.bound == tree.value(found.point) == best
    assert [e.bound for e in events] == sorted(e.bound for e in events)
    assert all(e.bound <= best <= e.incumbent for e in events) and found.nodes == events[-1].nodes


def test_the_same_nodes_for_any_number_of_workers():
    tree = drawn(2, 18)
    logs, results = [], []
    for workers in (1, 2, 5):
        logs.append([])
        executor = Shuffled(workers, workers) if workers > 1 else InProcess()
        sharing = Sharing(batch=2, parts=4, subtree=6)
        found = branch_and_bound_over(executor, [tree.root()], tree.expand, sharing=sharing, log=logs[-1].append)
        results.append((found.nodes, found.incumbent, found.point, found.bound))
        assert len(logs[-1]) == found.nodes and len({state for state, _ in logs[-1]}) == found.nodes  # none twice
    assert results[1:] == results[:-1] and logs[1:] == logs[:-1]
    assert results[0][0] > 50 and min(incumbent for _, incumbent in logs[0]) < math.inf  # workers know of points elsewhere


@pytest.mark.parametrize("tol", [5.0, 20.0])
def test_within_the_tolerance_the_bound_counts_what_workers_pruned(tol):
    for seed in range(4):
        tree = drawn(seed)
        found = branch_and_bound_over(InProcess(), [tree.root()], tree.expand, sharing=Sharing(batch=2, parts=3), tol=tol)
        assert found.status is Status.OPTIMAL and found.incumbent - tol <= found.bound <= truth(tree) <= found.incumbent


class Advised(Items):
    """Writes the advice that it gets beside its nodes."""

    def expand(self, nodes, incumbent, deadline, advice):
        found = super().expand(nodes, incumbent, deadline)
        return replace(found, log=[(node.state, advice) for node in nodes])


def test_advice_has_all_that_earlier_tasks_have_told():
    tree, told = Advised(**vars(drawn(2, 14))), []
    for workers in (1, 3):
        lines = []
        executor = Shuffled(workers, workers, losses=0.05) if workers > 1 else InProcess()
        sharing = Sharing(batch=2, parts=3, subtree=2)
        advice = functools.partial(len, lines)
        branch_and_bound_over(executor, [tree.root()], tree.expand, sharing=sharing, log=lines.append, advice=advice)
        told.append(lines)
    assert told[0] == told[1] and len(told[0]) > 20
    # In a round all know what is known before it.
    assert all(known <= number for number, (_, known) in enumerate(told[0])) and told[0][-1][1] >= len(told[0]) - 3 * 2


def test_a_parcel_has_no_more_than_the_entries_of_tensors():
    table = torch.arange(64000, dtype=torch.float64).view(64, 1000)
    rows = [Node(0.0, k, (table[k : k + 1], table[:, k])) for k in range(64)]
    data = pickle.dumps(Parcel(rows))
    assert len(data) < 1.2 * sum(t.numel() * t.element_size() for node in rows for t in node.state)
    back = pickle.loads(data).value
    assert all(torch.equal(*pair) for a, b in zip(rows, back, strict=True) for pair in zip(a.state, b.state, strict=True))
    back[0].state[0][0, 0] = 1.0  # can be written to
    half = torch.zeros(3, dtype=torch.bfloat16)
    assert pickle.loads(pickle.dumps(Parcel(half))).value.dtype == torch.bfloat16


def test_limits_leave_a_frontier_that_covers_the_rest():
    tree = drawn(3, 14)
    best = truth(tree)
    for most in (1, 7, 40):
        sharing = Sharing(batch=2, parts=4, subtree=4)
        found = branch_and_bound_over(InProcess(), [tree.root()], tree.expand, sharing=sharing, max_nodes=most)
        assert found.status is Status.PASS_LIMIT and found.nodes <= most and found.bound <= best <= found.incumbent
        rest = branch_and_bound_over(InProcess(), found.frontier, tree.expand)
        assert min(rest.incumbent, found.incumbent) == best
    stopped = branch_and_bound_over(InProcess(), [tree.root()], tree.expand, callback=lambda event: True)
    assert stopped.status is Status.INTERRUPTED and stopped.bound <= best
    with pytest.raises(OptionError, match="parts=0"):
        branch_and_bound_over(InProcess(), [tree.root()], tree.expand, sharing=Sharing(parts=0))


def test_processes_that_are_killed_lose_no_nodes(tmp_path):
    deadly = ((0, 1),)
    sharing = Sharing(batch=4, parts=4, subtree=8)
    with LocalExecutor(2, threads=1) as executor:
        once = drawn(5, 14, deadly=deadly, mark=str(tmp_path / "killed"))
        found = branch_and_bound_over(executor, [once.root()], once.expand, sharing=sharing)
        assert (tmp_path / "killed").exists()
        plain = drawn(5, 14)
        alone = branch_and_bound_over(InProcess(), [plain.root()], plain.expand, sharing=sharing)
        assert (found.incumbent, found.bound, found.nodes) == (truth(plain), truth(plain), alone.nodes)
        # Nodes that end every process are given up, and the bound counts them.
        always = drawn(5, 14, deadly=deadly)
        found = branch_and_bound_over(executor, [always.root()], always.expand, sharing=sharing)
        assert found.unresolved > 0 and found.bound <= truth(plain) <= found.incumbent


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_deadline_ends_a_search_that_workers_are_busy_with(deterministic):
    began = time.perf_counter()
    with LocalExecutor(2, threads=1) as executor:
        slow = drawn(7, 14, pause=0.3)
        sharing = Sharing(batch=1, parts=2, subtree=100, deterministic=deterministic)
        found = branch_and_bound_over(executor, [slow.root()], slow.expand, sharing=sharing, time_limit=1.5)
    assert time.perf_counter() - began < 15
    assert found.status is Status.TIME_LIMIT and found.bound <= truth(slow) <= found.incumbent and found.frontier
