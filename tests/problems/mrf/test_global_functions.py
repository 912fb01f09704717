"""Global cost functions of .wcsp and .cfn files against Python functions, as tables and as chains."""

import itertools
from collections import Counter

import numpy as np
import pytest

from blocklp.deadline import Deadline
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.mrf import read_mrf
from blocklp.problems.mrf.formats.wcsp import read as read_wcsp
from blocklp.problems.mrf.readers import FORMATS

INF = float("inf")


def count(x, values):
    return sum(v in values for v in x)


def outside(n, least, most):
    return max(0, least - n, n - most)


def repeats(x):
    return len(x) - len(set(x))


def edits(x, word):
    """Values to change, to drop and to insert until one word is another (Levenshtein)."""
    row = list(range(len(word) + 1))
    for i, value in enumerate(x, 1):
        before, row = row, [i]
        for j, other in enumerate(word):
            row.append(min(before[j] + (value != other), before[j + 1] + 1, row[j] + 1))
    return row[-1]


def hard(satisfied):
    return 0 if satisfied else INF


def bounded(x, cost):
    """Cost of value 0 that should come once or twice, and value 1 at most once."""
    return cost(outside(count(x, {0}), 1, 2)) + cost(outside(count(x, {1}), 0, 1))


def changes(x):
    n = Counter(x)
    return max(max(0, 1 - n[0]), max(0, n[0] - 2) + max(0, n[1] - 1))


def same(x, cost):
    left, right = Counter(x[:2]), Counter(x[2:])
    return sum(cost(abs(left[v] - right[v])) for v in range(3))


def path(x):
    """State 0 begins, 1 ends (2); 0 -> 1 by 0 costs 3, 1 -> 1 by 1 costs 1, 1 -> 0 by 2 is free."""
    best = {0: 0}
    for v in x:
        after = {}
        for state, cost in best.items():
            for before, value, to, price in [(0, 0, 1, 3), (1, 1, 1, 1), (1, 2, 0, 0), (0, 0, 0, 9)]:
                if (before, value) == (state, v):
                    after[to] = min(after.get(to, INF), cost + price)
        best = after
    return best.get(1, INF) + 2


def distance(x, language):
    return min(sum(a != b for a, b in zip(x, word, strict=True)) for word in language)


SORTED = [w for w in itertools.product(range(2), repeat=4) if list(w) == sorted(w)]
BOUNDS, JSON_BOUNDS = "2 0 1 2 1 0 1", "bounds: [[0 1 2] [1 0 1]]"

# Name, words of .wcsp, fields of .cfn, and the cost of a labelling x of four variables with three labels.
CASES = [
    ("salldiff", "var 7", "metric: var cost: 7", lambda x: 7 * repeats(x)),
    (
        "salldiff",
        "dec 7",
        "metric: dec cost: 7",
        lambda x: 7 * sum(a == b for a, b in itertools.combinations(x, 2)),
    ),
    ("salldiffkp", "hard 1000", "metric: hard cost: inf", lambda x: hard(not repeats(x))),
    (
        "alldiff",
        "1 0 0",
        "exceptedvalues: [0] deltacosts: []",
        lambda x: hard(all(x.count(v) < 2 for v in (1, 2))),
    ),
    (
        "walldiff",
        "quad 7",
        "metric: quad cost: 7",
        lambda x: 7 * sum(max(0, n - 1) ** 2 for n in Counter(x).values()),
    ),
    ("walldiff", "hard 7", "metric: hard cost: 7", lambda x: 7 * sum(n > 1 for n in Counter(x).values())),
    ("sgcc", f"var 7 {BOUNDS}", f"metric: var cost: 7 {JSON_BOUNDS}", lambda x: 7 * changes(x)),
    ("sgcc", f"dec 7 {BOUNDS}", f"metric: dec cost: 7 {JSON_BOUNDS}", lambda x: bounded(x, lambda g: 7 * g)),
    (
        "sgccdp",
        f"var 7 {BOUNDS}",
        f"metric: var cost: 7 {JSON_BOUNDS}",
        lambda x: bounded(x, lambda g: 7 * g),
    ),
    (
        "sgcc",
        "wdec 7 2 0 1 2 3 4 1 0 1 5 6",
        "metric: wdec cost: 7 bounds: [[0 1 2 3 4] [1 0 1 5 6]]",
        lambda x: 3 * (0 not in x) + 4 * max(0, x.count(0) - 2) + 6 * max(0, x.count(1) - 1),
    ),
    (
        "wgcc",
        f"quad 7 {BOUNDS}",
        f"metric: quad cost: 7 {JSON_BOUNDS}",
        lambda x: bounded(x, lambda g: 7 * g * g),
    ),
    ("gcc", BOUNDS, f"{JSON_BOUNDS} deltacosts: []", lambda x: bounded(x, lambda g: hard(not g))),
    (
        "ssame",
        "7 2 2 0 2 1 3",
        "cost: 7 vars1: [a c] vars2: [b d]",
        lambda x: 7 * sum(max(0, [x[0], x[2]].count(v) - [x[1], x[3]].count(v)) for v in range(3)),
    ),
    ("wsame", "quad 7", "metric: quad cost: 7", lambda x: same(x, lambda g: 7 * g * g)),
    (
        "wsamegcc",
        f"lin 7 {BOUNDS}",
        f"metric: lin cost: 7 {JSON_BOUNDS}",
        lambda x: same(x, lambda g: 7 * g) + bounded(x[:2], lambda g: 7 * g) + bounded(x[2:], lambda g: 7 * g),
    ),
    (
        "samong",
        "var 7 2 2 2 0 1",
        "metric: var cost: 7 min: 2 max: 2 values: [0 1]",
        lambda x: 7 * outside(count(x, {0, 1}), 2, 2),
    ),
    (
        "wamong",
        "lin 7 1 2 0 1",
        "metric: lin cost: 7 values: [2] min: 0 max: 1",
        lambda x: 7 * outside(count(x, {2}), 0, 1),
    ),
    (
        "wvaramong",
        "hard 7 1 1",
        "metric: hard cost: 7 values: [1]",
        lambda x: 7 * (count(x[:3], {1}) != x[3]),
    ),
    ("wsum", "lin 7 == 4", "metric: lin cost: 7 comparator: == to: 4", lambda x: 7 * abs(sum(x) - 4)),
    ("wsum", "quad 7 < 3", "metric: quad cost: 7 comparator: < to: 3", lambda x: 7 * max(0, sum(x) - 2) ** 2),
    ("wsum", "hard 7 > 4", "metric: hard cost: 7 comparator: > to: 4", lambda x: 7 * (sum(x) <= 4)),
    ("wsum", "lin 7 != 4", "metric: lin cost: 7 comparator: != to: 4", lambda x: 7 * (sum(x) == 4)),
    ("wvarsum", "lin 7 >=", "metric: lin cost: 7 comparator: >=", lambda x: 7 * max(0, x[3] - sum(x[:3]))),
    (
        "woverlap",
        "lin 7 > 1",
        "metric: lin cost: 7 comparator: > to: 1",
        lambda x: 7 * max(0, 2 - sum(a == b != 0 for a, b in zip(x[:2], x[2:], strict=True))),
    ),
    (
        "knapsackv",
        "3 4 0 1 1 1 2 2 3 0 1 3 2 -1",
        "capacity: 3 weightedvalues: [[a 1 1] [b 2 2] [d 0 1] [3 2 -1]]",
        lambda x: hard((x[0] == 1) + 2 * (x[1] == 2) + (x[3] == 0) - (x[3] == 2) >= 3),
    ),
    (
        "knapsackp",
        "3 1 1 1 2 1 2 2 4 0 1 1 3",
        None,
        lambda x: hard((x[0] == 1) + [0, 2, 4][x[1]] + 3 * (x[3] == 1) >= 3),
    ),
    (
        "knapsackc",
        "3 1 1 1 2 1 2 2 4 0 1 1 3 2 2 0 1 1 2 3 1 2 2 1 3 1",
        None,
        lambda x: hard(
            (x[0] == 1) + [0, 2, 4][x[1]] + 3 * (x[3] == 1) >= 3
            and (x[0] == 1) + (x[1] == 2) <= 1
            and (x[1] == 2) + (x[2] == 1) + (x[3] == 1) <= 1
        ),
    ),
    (
        "clique",
        "1 1 1 2 0 1 1 2 1 1",
        "rhs: 1 values: [[1] [0 1] [2] [1]]",
        lambda x: hard((x[0] == 1) + (x[1] < 2) + (x[2] == 2) + (x[3] == 1) < 2),
    ),
    (
        "wdiverse",
        "2 0 1 2 0",
        "distance: 2 values: [0 1 2 0]",
        lambda x: hard(distance(x, [(0, 1, 2, 0)]) >= 2),
    ),
    (
        "smaxdp",
        "3 4 0 0 4 1 1 3 2 2 2 3 0 9",
        "defaultcost: 3 tuples: [[a 0 4] [b 1 3] [c 2 2] [d 0 9]]",
        lambda x: max(4 if x[0] == 0 else 3, 3, 2 if x[2] == 2 else 3, 9 if x[3] == 0 else 3),
    ),
    (
        "wregular",
        "2 1 0 0 1 1 2 4 0 0 1 3 1 1 1 1 1 2 0 0 0 0 0 9",
        "nb_states: 2 starts: [[0 0]] ends: [[1 2]] transitions: [[0 0 1 3] [1 1 1 1] [1 2 0 0] [0 0 0 9]]",
        path,
    ),
    (
        "sregular",
        "var 7 2 1 0 2 0 1 3 0 0 0 0 1 1 1 1 1",
        "metric: var cost: 7 nb_states: 2 starts: [0] ends: [0 1] transitions: [[0 0 0] [0 1 1] [1 1 1]]",
        lambda x: 7 * distance(x, SORTED),
    ),
    (
        "sregular",
        "edit 7 6 1 0 1 5 5 0 1 1 1 1 2 2 0 3 3 0 4 4 1 5",
        "metric: edit cost: 7 nb_states: 6 starts: [0] ends: [5] transitions: [[0 1 1] [1 1 2] [2 0 3] [3 0 4] [4 1 5]]",
        lambda x: 7 * edits(x, (1, 1, 0, 0, 1)),
    ),
    (
        "sregular",
        "edit 7 2 1 0 1 0 2 0 0 1 1 1 0",
        None,
        lambda x: 7 * min(edits(x, (0, 1) * k) for k in range(5)),
    ),
    (
        "sgrammardp",
        "var 7 4 2 0 6 0 1 0 0 3 1 1 0 0 0 1 0 1 2 1 0 1 3 1 2 0 3",
        "metric: var cost: 7 nb_symbols: 4 nb_values: 2 start: 0 terminals: [[1 0] [3 1]] "
        "non_terminals: [[0 0 0] [0 1 2] [0 1 3] [2 0 3]]",
        lambda x: 7 * distance(x, [(0, 1, 0, 1), (0, 0, 1, 1)]),
    ),
]


def wcsp(name, words, labels=3):
    return f"t 4 {labels} 1 1000\n{f'{labels} ' * 4}\n4 0 1 2 3 -1 {name} {words}\n"


def best_of_auxiliary(mrf, given):
    """The least energy of all labels of the auxiliary variables, for each labelling of the given ones."""
    own = np.array(list(itertools.product(*(range(c) for c in mrf.counts[:given]))))
    rest = np.array(list(itertools.product(*(range(c) for c in mrf.counts[given:]))), dtype=np.int64)
    whole = np.concatenate([np.repeat(own, len(rest), axis=0), np.tile(rest, (len(own), 1))], axis=1)
    return own, mrf.energy(whole).reshape(len(own), len(rest)).min(axis=1)


@pytest.mark.parametrize(("name", "words", "fields", "cost"), CASES, ids=[f"{case[0]} {case[1]}"[:30] for case in CASES])
def test_values_as_tables_and_as_chains(tmp_path, name, words, fields, cost):
    (tmp_path / "a.wcsp").write_text(wcsp(name, words))
    every = np.array(list(itertools.product(range(3), repeat=4)))
    expected = np.array([cost(list(map(int, x))) for x in every], dtype=np.float64)
    mrf = read_mrf(tmp_path / "a.wcsp")
    assert mrf.n == 4 and np.array_equal(mrf.energy(every), expected)
    if fields is not None:
        text = "{problem: {name: t mustbe: <1000} variables: {a: 3 b: 3 c: 3 d: 3}\n"
        text += "functions: {f: {scope: [a b c d] type: "
        (tmp_path / "a.cfn").write_text(f"{text}{name} params: {{{fields}}}}}}}}}\n")
        assert np.array_equal(read_mrf(tmp_path / "a.cfn").energy(every), expected)
    chain = read_wcsp(FORMATS.opened(tmp_path / "a.wcsp", MAX_BYTES, Deadline()), whole_table=2)
    if np.prod(chain.counts[4:], dtype=np.float64) < 3000:
        own, found = best_of_auxiliary(chain, 4)
        assert np.array_equal(own, every) and np.array_equal(found, expected)


def test_weighted_grammar_and_trees(tmp_path):
    rules = "weight 9 4 2 0 6 2 1 0 1 2 3 1 2 3 0 0 0 3 3 0 1 2 1 3 0 1 3 4 3 2 0 3 5"
    (tmp_path / "a.wcsp").write_text(wcsp("sgrammar", rules, 2))
    every = np.array(list(itertools.product(range(2), repeat=4)))
    # A -> A A (3), A -> B D (4) twice; A -> B C (1), C -> A D (5), A -> B D (4); letters 1 and 2.
    expected = {(0, 1, 0, 1): 3 + 2 * 4 + 2 * 1 + 2 * 2, (0, 0, 1, 1): 1 + 5 + 4 + 2 * 1 + 2 * 2}
    assert read_mrf(tmp_path / "a.wcsp").energy(every).tolist() == [expected.get(tuple(x), INF) for x in every.tolist()]
    (tmp_path / "a.wcsp").write_text(wcsp("MST", "", 4))

    def tree(x):
        roots = [i for i in range(4) if x[i] == i]
        reached, size = set(roots), 0
        while len(reached) > size:
            size = len(reached)
            reached |= {i for i in range(4) if x[i] in reached}
        return hard(len(roots) == 1 and size == 4)

    every = np.array(list(itertools.product(range(4), repeat=4)))
    found = read_mrf(tmp_path / "a.wcsp").energy(every)
    assert found.tolist() == [tree(x) for x in every.tolist()]
    assert (found == 0).sum() == 4**3  # Cayley's formula, times the choice of a root


@pytest.mark.parametrize(
    ("words", "states"),
    [("clique 1 " + "1 1 " * 30, 0), ("knapsack 1 " + "1 " * 30, 2), ("wsum hard 1000 == 2", 3)],
)
def test_functions_of_many_variables_have_few_states(tmp_path, words, states):
    scope = " ".join(map(str, range(30)))
    (tmp_path / "a.wcsp").write_text(f"t 30 2 1 1000\n{'2 ' * 30}\n30 {scope} -1 {words}\n")
    mrf = read_mrf(tmp_path / "a.wcsp")
    # At most one: pairs, without auxiliary variables.  At least one: whether one is yet.  Two: how many.
    assert mrf.order == (3 if states else 2) and mrf.counts[30:].max(initial=0) == states and mrf.n <= 59
    if not states:
        ones = np.arange(31)[:, None] > np.arange(30)
        assert (mrf.energy(ones.astype(np.int64)) == 0).tolist() == [True, True] + [False] * 29
