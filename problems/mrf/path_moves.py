"""Moves that relabel a whole path of states: exact along the path, while all other labels stay."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from blocklp.deadline import Deadline
from blocklp.problems.mrf.chains import StatePath, state_paths
from blocklp.problems.mrf.instance import Factor, Mrf
from blocklp.problems.qpbo.arrays import FloatArray, IntArray


def moved_along_paths(mrf: Mrf, starts: IntArray, deadline: Deadline) -> IntArray:
    """Relabel one path of states after the other (:func:`~blocklp.problems.mrf.chains.state_paths`) as long as the energy falls.

    The labels of a path are found by dynamic programming over its states.  Where a factor beside those of the path has several of its
    variables, each counts as if the others kept their labels; a move that does not lower the energy is not made.

    Parameters
    ----------
    mrf : Mrf
        The model, of factors of up to three variables.
    starts : array
        ``(batch, n)`` int64: labellings.
    deadline : Deadline
        When to stop.

    Returns
    -------
    array
        ``(n,)`` int64: the best labelling reached.
    """
    paths = state_paths(mrf)
    at: dict[int, list[Factor]] = defaultdict(list)
    for scope, table in mrf.factors:
        for i in scope:
            at[i].append((scope, table))
    energies = np.array(mrf.energy(starts))
    best: IntArray = starts[energies.argmin()].copy()
    least = float(energies.min())
    for start, begun in zip(starts, energies, strict=True):
        labels, energy, falls = start.copy(), float(begun), bool(paths)
        while falls and not deadline.over():
            falls = False
            for path in paths:
                other = _relabelled(path, at, labels, mrf.counts)
                value = float(mrf.energy(other))
                if value < energy:
                    labels, energy, falls = other, value, True
        if energy < least:
            best, least = labels, energy
    return best


def _relabelled(path: StatePath, at: dict[int, list[Factor]], labels: IntArray, counts: IntArray) -> IntArray:
    """A labelling whose labels along a path are the best ones for all others."""
    links = path.links
    inside = {tuple(sorted(link)) for link in links}

    def alone(i: int) -> FloatArray:
        """Costs of the labels of a variable by its factors beside those of the path."""
        cost = np.zeros(counts[i])
        for scope, table in at[i]:
            if scope not in inside:
                cost = cost + table[tuple(slice(None) if j == i else labels[j] for j in scope)]
        return cost

    cost, back = alone(path.row[0]), []
    for link in links:
        scope = tuple(sorted(link))
        table = next(found for known, found in at[link[1]] if known == scope).transpose([scope.index(i) for i in link])
        joint = cost[:, None, None] + table + alone(link[1])[None, :, None]
        flat = joint.reshape(-1, joint.shape[2])
        back.append((flat.argmin(0), joint.shape[1]))
        cost = flat.min(0) + alone(link[2])
    found, state = labels.copy(), int(cost.argmin())
    for (before, read, after), (choice, width) in zip(reversed(links), reversed(back), strict=True):
        found[after] = state
        state, found[read] = divmod(int(choice[state]), width)
        found[before] = state
    return found
