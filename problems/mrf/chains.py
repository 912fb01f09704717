"""Decomposition of a model into chains: of edges, and of factors that hand a state on."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass

from blocklp.problems.mrf.instance import Mrf

LARGEST_PATH = 100_000
"""Entries of all tables of a path of states; longer ones are cut."""

LONGEST_PATH = 200
"""Factors of a path of states; longer ones are cut."""


@dataclass(frozen=True)
class StatePath:
    """Factors of three variables in a row, each of which hands a state on to the next.

    Attributes
    ----------
    row : list of int
        The first variable, the states, and the last variable.
    read : list of int
        The third variable of each factor.
    """

    row: list[int]
    read: list[int]

    @property
    def links(self) -> list[tuple[int, int, int]]:
        """Variables of each factor: before, read, after."""
        return list(zip(self.row, self.read, self.row[1:], strict=False))


def state_paths(mrf: Mrf) -> list[StatePath]:
    """Find paths of factors such as automata and counters become.

    A state is a variable of two factors of three variables that have nothing else in common.  All variables of a path are
    different, so that its factors are a tree, and the polytope of all together is that of each and of what they share.  Variables
    of large numbers are states first, since readers of files add theirs behind those of the file.

    Parameters
    ----------
    mrf : Mrf

    Returns
    -------
    list of StatePath
        Of two factors at least.
    """
    scopes = [scope for scope, _ in mrf.factors if len(scope) > 1]
    known = set(scopes)
    at: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for scope in scopes:
        for i in scope:
            at[i].append(scope)
    alone: set[tuple[int, ...]] = {scope for scope in scopes if len(scope) == 3 and not known & set(itertools.combinations(scope, 2))}
    states = (i for i, two in at.items() if len(two) == 2 and alone.issuperset(two) and len(set(two[0]) & set(two[1])) == 1)
    entries = {scope: math.prod(mrf.counts[list(scope)].tolist()) for scope in alone}
    paths = {scope: ([scope], set(scope)) for scope in alone}
    for state in sorted(states, reverse=True):
        one, other = at[state]
        (before, seen), (after, others) = paths[one], paths[other]
        joins = one in (before[0], before[-1]) and other in (after[0], after[-1]) and seen & others == {state}
        if not joins or len(before + after) > LONGEST_PATH or sum(entries[scope] for scope in before + after) > LARGEST_PATH:
            continue
        joined = (before if before[-1] == one else before[::-1]) + (after if after[0] == other else after[::-1])
        paths |= dict.fromkeys(joined, (joined, seen | others))
    whole = {path[0]: path for path, _ in paths.values() if len(path) > 1}
    return [_path(whole[first]) for first in sorted(whole)]


def _path(factors: list[tuple[int, ...]]) -> StatePath:
    states = [next(i for i in one if i in other) for one, other in itertools.pairwise(factors)]
    first, last = (max(i for i in factors[k] if i != states[k]) for k in (0, -1))
    row = [first, *states, last]
    return StatePath(row, [next(i for i in scope if i not in row[k : k + 2]) for k, scope in enumerate(factors)])


def edge_chains(mrf: Mrf) -> list[list[int]]:
    """Cover every pair factor once by paths of 1, 2, 4, 8, .. edges.

    Paths are taken greedily, straight on where the numbers of variables go straight on (the rows and columns of a numbered grid), and
    cut into powers of two, so that few kinds of blocks arise.

    Parameters
    ----------
    mrf : Mrf

    Returns
    -------
    list of list of int
        The variables of each path in their order.
    """
    left: dict[int, set[int]] = {i: set() for i in range(mrf.n)}
    for scope, _ in mrf.factors:
        if len(scope) == 2:
            left[scope[0]].add(scope[1])
            left[scope[1]].add(scope[0])
    chains: list[list[int]] = []
    for start in range(mrf.n):
        while left[start]:
            path = [start]
            step = 0  # leads nowhere ahead, since a path does not come back
            while ahead := left[path[-1]] - set(path):
                following = path[-1] + step
                if following not in ahead:
                    if len(path) > 2 and 2 * path[-2] == path[-1] + path[-3]:
                        break  # the end of a row
                    following = min(ahead)
                left[path[-1]].discard(following)
                left[following].discard(path[-1])
                step = following - path[-1]
                path.append(following)
            chains += _powers(path)
    return chains


def _powers(path: list[int]) -> list[list[int]]:
    """Cut a path into pieces of powers of two of edges, the longest first."""
    pieces, first = [], 0
    while first < len(path) - 1:
        edges = 1 << (len(path) - 1 - first).bit_length() - 1
        pieces.append(path[first : first + edges + 1])
        first += edges
    return pieces
