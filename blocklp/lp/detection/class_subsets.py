"""Classes of rows as the master: all subsets where there are few, else one class at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from blocklp.lp.detection.pattern import Mask, Numbers

FEW = 6
"""Classes of which all subsets are tried."""

MANY = 40
"""A rule that makes more classes says nothing about a matrix."""


def class_subsets(classes: Numbers, fixed: Mask, worth: Callable[[Mask], float], most: int) -> list[Mask]:
    """Masters made of whole classes of rows, the best first.

    Parameters
    ----------
    classes : ndarray
        ``(rows,)`` int64: the class of each row.
    fixed : ndarray
        ``(rows,)`` bool: rows that are never in the master, such as bounds of variables.
    worth : callable
        The score of a master ``(rows,)`` bool.
    most : int
        How many masters may be tried.

    Returns
    -------
    list of ndarray
        ``(rows,)`` bool each: the best of all subsets, or where each of two greedy searches ended.
    """
    names = np.unique(classes[~fixed])
    count = len(names)
    if not 2 <= count <= MANY or most < 2 * count:
        return []
    member = (classes[None] == names[:, None]) & ~fixed
    known: dict[tuple[bool, ...], float] = {}

    def score(chosen: tuple[bool, ...]) -> float:
        if chosen not in known:
            known[chosen] = worth(member[np.array(chosen)].any(0))
        return known[chosen]

    if count <= FEW and 2**count <= most:
        tried = itertools.product((False, True), repeat=count)
        ends = sorted((some for some in tried if any(some) and not all(some)), key=score, reverse=True)[:2]
    else:
        ends = [_greedy((start,) * count, score, known, most // 2 * (1 + start)) for start in (False, True)]
    return [member[np.array(chosen)].any(0) for chosen in ends if any(chosen)]


def _greedy(
    chosen: tuple[bool, ...],
    score: Callable[[tuple[bool, ...]], float],
    known: dict[tuple[bool, ...], float],
    most: int,
) -> tuple[bool, ...]:
    """Change one class at a time, whichever is best, as long as that is better and there is work left."""
    best = score(chosen)
    while len(known) + len(chosen) <= most:
        others = [(*chosen[:i], not chosen[i], *chosen[i + 1 :]) for i in range(len(chosen))]
        next_one = max(others, key=score)
        if score(next_one) <= best:
            # From all or from nothing the first step alone may be worth nothing.
            if best > 0 or all(score(other) == 0 for other in others):
                break
        chosen, best = next_one, score(next_one)
    return chosen
