"""Chordless cycles, the candidates of tightening, against networkx and counts by matrices."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

import blocklp as bl
from blocklp.problems.mrf import Mrf, cycles


def of_graph(graph: networkx.Graph, labels: int = 2) -> Mrf:
    return Mrf(np.full(len(graph), labels), [(ends, np.ones((labels, labels))) for ends in graph.edges])


@pytest.mark.parametrize("seed", range(30))
def test_all_short_cycles_are_found_once_the_shortest_first(seed: int) -> None:
    random = np.random.default_rng(seed)
    graph = networkx.gnp_random_graph(int(random.integers(3, 16)), random.random(), seed=seed)
    short = {tuple(sorted(c)) for c in networkx.chordless_cycles(graph, length_bound=4) if len(c) > 2}
    found = cycles(of_graph(graph))
    assert not short or found == sorted(short, key=lambda c: (len(c), c))
    triangles = [c for c in sorted(short) if len(c) == 3]
    assert not triangles or cycles(of_graph(graph, 3), 27) == triangles  # cycles of four have 81 joint labels


def test_large_graphs_are_listed_piece_by_piece() -> None:
    """Of half a million paths of two edges and more, counted by products of the adjacency matrix."""
    n = 700
    graph = networkx.gnp_random_graph(n, 0.04, seed=0)
    joined = networkx.to_numpy_array(graph, dtype=int)
    assert (joined.sum(0) ** 2).sum() > 500_000
    found = cycles(of_graph(graph))
    three, four = (np.array([c for c in found if len(c) == length]) for length in (3, 4))
    assert len(np.unique(three, axis=0)) == len(three) == np.trace(joined @ joined @ joined) // 6
    assert joined[three[:, :, None], three[:, None]].sum((1, 2)).tolist() == [6] * len(three)
    around = joined[four[:, :, None], four[:, None]].sum(2)  # of a cycle without a chord all degrees are two
    assert len(np.unique(four, axis=0)) == len(four) and (around == 2).all()
    shared = joined @ joined
    paths = (shared * (shared - 1) // 2)[np.triu(joined == 0, 1)].sum()  # two between ends that are not joined
    chords = 0
    for i, j in graph.edges:
        ends = np.flatnonzero(joined[i] & joined[j])
        chords += len(ends) * (len(ends) - 1) // 2 - joined[np.ix_(ends, ends)].sum() // 2
    assert len(four) == (paths - chords) // 2  # each has two pairs of opposite variables


def test_longer_ones_are_listed_where_there_are_no_short_ones() -> None:
    assert cycles(of_graph(networkx.cycle_graph(6))) == [tuple(range(6))]
    assert cycles(of_graph(networkx.cycle_graph(9))) == [] == cycles(of_graph(networkx.path_graph(4)))


def test_deadlines_and_sizes_end_the_list() -> None:
    crowded = networkx.gnp_random_graph(400, 0.5, seed=0)  # millions of cycles of four
    found = cycles(of_graph(crowded))
    assert 200_000 <= len(found) <= 400_000 and len(set(found)) == len(found)
    assert len(cycles(of_graph(crowded), time_limit=bl.Deadline(1e-9))) < len(found)
