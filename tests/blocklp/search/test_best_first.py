import itertools
import math
import random
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from blocklp import deadline
from blocklp.errors import OptionError, OracleError
from blocklp.search import best_first as search
from blocklp.search.best_first import Expansion, Node, branch_and_bound
from blocklp.status import Status

INF = math.inf


class Knapsack:
    """The least negative value of items that fit; the bound fills up with the fraction of an item."""

    def __init__(self, seed, items=9):
        draw = random.Random(seed)
        ratio = [(draw.randint(5, 30), draw.randint(3, 20)) for _ in range(items)]
        self.items = sorted(ratio, key=lambda item: -item[0] / item[1])
        self.room = sum(size for _, size in ratio) // 2
        self.size = items

    def value(self, x):
        fits = sum(size * t for (_, size), t in zip(self.items, x, strict=False)) <= self.room
        return -float(sum(value * t for (value, _), t in zip(self.items, x, strict=False))) if fits else INF

    def bound(self, x):
        value = self.value(x + (0,) * (self.size - len(x)))
        room = self.room - sum(size * t for (_, size), t in zip(self.items, x, strict=False))
        for gain, size in self.items[len(x) :]:
            part = max(0, min(1, room / size))
            value, room = value - part * gain, room - part * size
        return value


class Qpbo:
    """x'Qx over {0, 1}^n; the bound takes the negative part of every product that is not fixed."""

    def __init__(self, seed, size=8):
        self.matrix = np.random.default_rng(seed).integers(-9, 10, (size, size))
        self.size = size

    def value(self, x):
        return float(np.array(x) @ self.matrix @ np.array(x))

    def bound(self, x):
        k = len(x)
        fixed = np.array(x, dtype=int)
        linear = np.diag(self.matrix)[k:] + fixed @ self.matrix[:k, k:] + self.matrix[k:, :k] @ fixed
        pairs = np.minimum(self.matrix[k:, k:], 0)
        return float(fixed @ self.matrix[:k, :k] @ fixed + np.minimum(0, linear + pairs.sum(1) - np.diag(pairs)).sum())


class Tree:
    """Fix the variables one after the other; ``expand`` records what it was given."""

    def __init__(self, problem, slack=None):
        self.problem, self.calls = problem, []
        self.slack = random.Random(slack) if slack is not None else None

    def node(self, x):
        # With slack, bounds are valid and not monotone.
        loose = self.slack.randint(0, 30) if self.slack else 0
        return Node(self.problem.bound(x) - loose, len(x), x, bytes=1)

    def expand(self, nodes):
        self.calls.append([node.state for node in nodes])
        states = [(*node.state, t) for node in nodes for t in (0, 1)]
        leaves = [(self.problem.value(x), x) for x in states if len(x) == self.problem.size]
        children = [self.node(x) for x in states if len(x) < self.problem.size]
        return Expansion(children, *min(leaves, default=(INF, None)))

    def search(self, expand=None, **options):
        return branch_and_bound([self.node(())], expand or self.expand, **options)


PROBLEMS = [kind(seed) for kind in (Knapsack, Qpbo) for seed in range(6)]


def truth(problem):
    return min(problem.value(x) for x in itertools.product((0, 1), repeat=problem.size))


def scripted(children, values=None):
    """Make roots and an expand of a tree written down: names to children ``{name: bound}``, and to values of leaves."""

    def nodes(bounds, depth):
        return [Node(bound, depth, name, bytes=1) for name, bound in bounds.items()]

    def expand(batch):
        new = [child for node in batch for child in nodes(children.get(node.state, {}), node.depth + 1)]
        found = min(((values or {}).get(node.state, INF), node.state) for node in batch)
        calls.append([node.state for node in batch])
        return Expansion(new, *found)

    calls = []
    return nodes(children["roots"], 0), expand, calls


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_the_optimum_is_that_of_brute_force(problem, batch):
    tree = Tree(problem)
    result = tree.search(batch=batch)
    assert result.status is Status.OPTIMAL and result.proven
    assert result.incumbent == result.bound == problem.value(result.point) == truth(problem)
    assert max(map(len, tree.calls)) <= batch
    assert result.nodes == sum(map(len, tree.calls)) and result.open == 0
    # A bound was used: nodes worse than the optimum were not all looked at.
    assert result.nodes < 2**problem.size - 1


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("batch", [1, 3, 64])
@pytest.mark.parametrize("memory", [4, INF])
def test_at_every_event_the_bound_is_one_and_rises(problem, batch, memory):
    best, events = truth(problem), []
    result = Tree(problem, slack=1).search(batch=batch, memory=memory, callback=events.append)
    assert [e.bound for e in events] == sorted(e.bound for e in events)
    assert [e.incumbent for e in events] == sorted((e.incumbent for e in events), reverse=True)
    assert all(e.bound <= best <= e.incumbent for e in events)
    assert result.incumbent == result.bound == best
    assert [e.nodes for e in events] == sorted({e.nodes for e in events}) and events[-1].nodes == result.nodes


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_cutoff_is_proven_if_it_is_true(problem):
    best = truth(problem)
    for cutoff in (best - 50, best - 1, best, best + 1, best + 50):
        result = Tree(problem).search(cutoff=cutoff, batch=4)
        assert result.proven
        assert (result.bound >= cutoff) == (best >= cutoff)
        assert result.bound <= best
        if best < cutoff:
            assert result.status is Status.OPTIMAL and result.incumbent == best


def test_the_status_of_a_cutoff():
    assert branch_and_bound([Node(3.0), Node(2.0)], None, cutoff=2.0).status is Status.CUTOFF
    roots, expand, _ = scripted({"roots": {"a": 0.0}, "a": {"b": 2.5, "c": 1.0}}, {"c": 4.0})
    result = branch_and_bound(roots, expand, cutoff=2.0)
    assert (result.status, result.bound, result.incumbent) == (Status.CUTOFF, 2.5, 4.0)
    roots, expand, _ = scripted({"roots": {"a": 0.0}}, {"a": 4.0})
    assert branch_and_bound(roots, expand, cutoff=2.0).status is Status.OPTIMAL


@pytest.mark.parametrize("tol", [0.5, 5.0, 20.0])
def test_within_the_tolerance_the_bound_counts_what_was_pruned(tol):
    gaps = []
    for problem in PROBLEMS:
        result, best = Tree(problem).search(tol=tol, batch=2), truth(problem)
        assert result.status is Status.OPTIMAL
        assert result.incumbent - tol <= result.bound <= best <= result.incumbent
        gaps.append(result.incumbent - best)
    assert tol < 20 or max(gaps) > 0  # the tolerance was used


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_unresolved_leaf_prevents_the_proof_if_it_matters(problem):
    values = {x: problem.value(x) for x in itertools.product((0, 1), repeat=problem.size)}
    best = min(values.values())
    for lost in itertools.islice(itertools.product((0, 1), repeat=problem.size - 1), 0, None, 3):
        tree = Tree(problem)

        def expand(nodes, tree=tree, lost=lost):
            doubtful = [node for node in nodes if node.state == lost]
            done = tree.expand([node for node in nodes if node.state != lost])
            return Expansion(done.children, done.incumbent, done.point, doubtful)

        result = tree.search(expand)
        assert result.bound <= best <= result.incumbent
        met = result.unresolved == 1
        assert met or result.incumbent == best
        found = min(value for x, value in values.items() if not (met and x[:-1] == lost))
        assert result.incumbent == found
        assert result.proven == (not met or problem.bound(lost) >= found)
        if not result.proven:
            assert result.status is Status.STALLED and result.bound == problem.bound(lost) and result.open == 0


def test_unresolved_nodes_may_be_given_back_with_better_bounds():
    def expand(nodes):
        return Expansion(incumbent=3.0, unresolved=[Node(node.state) for node in nodes])

    result = branch_and_bound([Node(0.0, state=1.0), Node(0.0, state=2.0)], expand)
    assert (result.status, result.bound, result.unresolved) == (Status.STALLED, 1.0, 2)
    result = branch_and_bound([Node(0.0, state=3.0)], expand)
    assert (result.status, result.bound) == (Status.OPTIMAL, 3.0)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_at_a_deadline_the_bound_is_valid(problem, monkeypatch):
    best = truth(problem)
    for limit in (0.5, 3.0, 7.5):
        tree, clock = Tree(problem), [100.0]
        for module in (deadline, search):
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda clock=clock: clock[0]))

        def expand(nodes, tree=tree, clock=clock):
            clock[0] += 1
            return tree.expand(nodes)

        result = tree.search(expand, batch=2, time_limit=limit)
        assert result.status is Status.TIME_LIMIT and not result.proven
        assert result.bound <= best <= result.incumbent and result.bound < result.incumbent
        assert result.seconds == math.ceil(limit) == len(tree.calls)
        assert result.open > 0


def test_a_node_not_reached_in_time_may_come_back():
    tree = Tree(PROBLEMS[0])

    def expand(nodes):
        done = tree.expand(nodes[:1])
        return Expansion([*done.children, *nodes[1:]], done.incumbent, done.point)

    assert tree.search(expand, batch=5).incumbent == truth(tree.problem)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_at_the_node_limit_the_bound_is_valid(problem):
    whole = Tree(problem).search(batch=1)
    for batch, most in ((5, 1), (5, 7), (3, 7), (1, whole.nodes - 1)):
        result = Tree(problem).search(batch=batch, max_nodes=most)
        assert result.status is Status.PASS_LIMIT and result.nodes == most and "max_nodes" in result.reason
        assert result.bound <= truth(problem) <= result.incumbent
    assert Tree(problem).search(batch=1, max_nodes=whole.nodes).proven


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_interrupt_in_expand_returns_the_best_so_far(problem):
    whole, best = Tree(problem), truth(problem)
    whole.search(batch=3)
    for last in range(len(whole.calls)):
        tree, events = Tree(problem), []

        def expand(nodes, tree=tree, last=last):
            if len(tree.calls) == last:
                raise KeyboardInterrupt
            return tree.expand(nodes)

        result = tree.search(expand, batch=3, callback=events.append)
        assert result.status is Status.INTERRUPTED and not result.proven
        assert result.bound <= best <= result.incumbent and result.bound < result.incumbent
        if events:
            assert (result.bound, result.incumbent) == (events[-1].bound, events[-1].incumbent)


def test_an_interrupt_at_any_line_of_the_search_leads_to_no_false_proof():
    problem = Qpbo(0, size=4)
    best = truth(problem)
    statuses = set()
    for stop in itertools.count(1):
        lines = 0

        def trace(frame, kind, _, stop=stop):
            nonlocal lines
            lines += kind == "line"
            if lines == stop:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(lambda frame, *_, trace=trace: trace if frame.f_globals is vars(search) else None)
        try:
            result = Tree(problem).search(batch=2, memory=2)
        except KeyboardInterrupt:
            continue  # before or after the search proper
        finally:
            sys.settrace(before)
        assert result.bound <= best <= result.incumbent
        assert result.point is None or problem.value(result.point) == result.incumbent
        assert not result.proven or result.incumbent == best == result.bound
        statuses.add(result.status)
        if lines < stop:
            break
    assert stop > 100 and statuses == {Status.INTERRUPTED, Status.OPTIMAL}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_memory_limit_turns_to_depth_first(problem):
    def peak(memory):
        tree, events = Tree(problem, slack=3), []
        assert tree.search(batch=1, memory=memory, callback=events.append).incumbent == truth(problem)
        return max(e.open for e in events)

    free = peak(INF)
    for memory in (1, 5, 10):
        # Depth first, an open node leaves at most one sibling on each level below it.
        assert peak(memory) <= memory + problem.size
    assert free > 1 + problem.size


def test_above_the_memory_limit_the_deepest_come_first_and_below_it_the_best():
    tree = {"roots": {"a": 0.0}, "a": {"b": 1.0, "c": 2.0, "d": 3.0}, "d": {"e": 4.0}, "c": {"f": 9.0, "g": 8.0}}
    roots, expand, calls = scripted(tree)
    branch_and_bound(roots, expand, batch=1)
    assert calls == [[name] for name in "abcdegf"]
    roots, expand, calls = scripted(tree)
    branch_and_bound(roots, expand, batch=1, memory=2)
    # After a, three are open and equally deep: b; then two: c; then f, g, d: g; then two: d; then f, e: e.
    assert calls == [[name] for name in "abcgdef"]
    roots, expand, calls = scripted(tree)
    branch_and_bound(roots, expand, batch=1, memory=1)
    assert calls == [[name] for name in "abcgfde"]


def test_pruned_nodes_take_no_memory():
    # The incumbent of a prunes d and e; with b and c, four would be open.
    tree = {"roots": {"a": 0.0, "d": 5.0, "e": 5.0}, "a": {"b": 1.0, "c": 2.0}, "b": {"f": 3.0}}
    roots, expand, calls = scripted(tree, {"a": 4.0})
    branch_and_bound(roots, expand, batch=1, memory=2)
    assert calls == [["a"], ["b"], ["c"], ["f"]]


def test_among_equals_the_deepest_then_the_oldest_comes_first():
    tree = {"roots": {"a": 1.0, "b": 0.0, "c": 0.0}, "b": {"d": 1.0, "e": 1.0}, "c": {"f": 1.0}, "e": {"g": 1.0}}
    roots, expand, calls = scripted(tree)
    branch_and_bound(roots, expand, batch=2)
    assert calls == [["b", "c"], ["d", "e"], ["g", "f"], ["a"]]


def test_a_search_repeats_itself():
    def run():
        tree, events = Tree(Qpbo(3)), []
        result = tree.search(batch=3, memory=9, callback=events.append)
        return tree.calls, [(e.nodes, e.open, e.bound, e.incumbent) for e in events], result.point

    assert run() == run()


@pytest.mark.parametrize("cutoff", [INF, 7.0])
def test_an_infeasible_problem(cutoff):
    roots, expand, _ = scripted({"roots": {"a": 0.0, "b": INF}, "a": {"c": INF, "d": 1.0}})
    for result in (
        branch_and_bound(roots, expand, cutoff=cutoff),
        branch_and_bound([Node(INF)], None, cutoff=cutoff),
        branch_and_bound([], None, cutoff=cutoff),
    ):
        assert result.status is Status.INFEASIBLE and result.proven
        assert (result.bound, result.incumbent, result.point) == (INF, INF, None)


def test_an_unresolved_node_is_not_infeasible():
    result = branch_and_bound([Node(0.0), Node(-INF)], lambda nodes: Expansion(unresolved=nodes))
    assert result.status is Status.STALLED and not result.proven and result.bound == -INF


def test_a_callback_stops():
    problem = PROBLEMS[-1]
    events = []
    result = Tree(problem).search(batch=2, callback=lambda event: events.append(event) or len(events) == 3)
    assert len(events) == 3 and result.nodes == events[-1].nodes == 5
    assert result.status is Status.INTERRUPTED and not result.proven
    assert result.bound == events[-1].bound <= truth(problem)


def test_a_callback_that_stops_at_the_last_batch_does_not_undo_the_proof():
    roots, expand, _ = scripted({"roots": {"a": 0.0}}, {"a": 2.0})
    assert branch_and_bound(roots, expand, callback=lambda event: True).status is Status.OPTIMAL


def test_without_a_bound_every_node_is_looked_at():
    problem = PROBLEMS[0]
    tree = Tree(problem)
    tree.node = lambda x: Node(-INF, len(x), x)
    result = tree.search()
    assert result.proven and result.incumbent == truth(problem) and result.nodes == 2**problem.size - 1


def test_the_search_ends_at_an_incumbent_that_an_earlier_bound_proves():
    roots, expand, calls = scripted({"roots": {"a": 5.0}, "a": {"b": 1.0, "c": 2.0}}, {"a": 5.0})
    result = branch_and_bound(roots, expand)
    assert result.status is Status.OPTIMAL and result.bound == 5.0 and calls == [["a"]]


def test_a_bound_above_the_incumbent_by_rounding_is_lowered_to_it():
    roots, expand, _ = scripted({"roots": {"a": 0.1 + 0.2}}, {"a": 0.3})
    result = branch_and_bound(roots, expand)
    assert result.bound == result.incumbent == 0.3 and result.proven


def test_an_error_of_expand_is_not_hidden():
    def expand(nodes):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        branch_and_bound([Node(0.0)], expand)


@pytest.mark.parametrize(
    "answer",
    [Expansion([Node(math.nan)]), Expansion(incumbent=math.nan), Expansion(unresolved=[Node(math.nan)])],
)
def test_nan_is_an_error(answer):
    with pytest.raises(OracleError, match="NaN"):
        branch_and_bound([Node(0.0)], lambda nodes: answer)


@pytest.mark.parametrize(
    "options",
    [{"batch": 0}, {"max_nodes": 0}, {"tol": -1.0}, {"tol": INF}, {"cutoff": math.nan}, {"time_limit": 0.0}, {"memory": math.nan}],
)
def test_options_out_of_range(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        branch_and_bound([Node(0.0)], lambda nodes: Expansion(), **options)


def test_every_status_has_a_reason_and_an_event_is_a_line():
    roots, expand, _ = scripted({"roots": {"a": 0.0}, "a": {"b": 1.5}}, {"b": 2.0})
    events = []
    result = branch_and_bound(roots, expand, callback=events.append)
    assert str(events[0]).startswith("1 nodes | 1 open | 0.0 s | bound 1.5 | incumbent inf")
    assert str(result).endswith("bound 2 | incumbent 2") and result.reason == search.REASONS[Status.OPTIMAL]


def test_the_frontier_goes_on_where_a_limit_stopped() -> None:
    """Half a search and its continuation from the frontier find what one search finds."""

    def node(a: int, b: int, depth: int = 0) -> Node:
        return Node(float(a * a - 50 * b), depth, (a, b))

    def expand(nodes: list[Node]) -> Expansion:
        split = [(a, (a + b) // 2, b, n.depth + 1) for n in nodes for a, b in [n.state]]
        children = [node(*half) for a, m, b, d in split if a < b for half in ((a, m, d), (m + 1, b, d))]
        return Expansion(children, *min((float(m * m - 50 * m), m) for _, m, _, _ in split))

    whole = branch_and_bound([node(0, 1000)], expand, batch=1)
    half = branch_and_bound([node(0, 1000)], expand, batch=1, max_nodes=5)
    rest = branch_and_bound(half.frontier, expand, batch=1)
    assert not half.proven and len(half.frontier) == half.open > 0
    assert min(half.incumbent, rest.incumbent) == whole.incumbent == -625.0
    assert whole.frontier == ()


def test_what_was_pruned_is_told_where_a_limit_stopped() -> None:
    def expand(nodes: list[Node]) -> Expansion:
        return Expansion([Node(2.0, 1), Node(0.5, 1), Node(-1.0, 1)])

    stopped = branch_and_bound([Node(-2.0)], expand, cutoff=0.25, max_nodes=1)
    assert stopped.status is Status.PASS_LIMIT and stopped.bound == -1.0
    assert stopped.closed == 0.5
    assert branch_and_bound([Node(-2.0)], expand, max_nodes=1).closed == INF
