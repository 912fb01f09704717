"""What exact solvers are given: a mixed-integer program, tables of costs, decimals.

An instance is a dictionary of arrays as :func:`bench.contest.write` makes it.  Nothing of blocklp is needed here, nor loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array

LARGEST = 2.0**50
"""Sum of the integers that CP-SAT and toulbar2 are given."""

Form = dict[str, Any]


def linearised(given: Form) -> Form:
    """A mixed-integer program, rows ``low <= A x <= high``, variables from 0 to ``upper``; the first ``labels`` are the labels."""
    if "linear" not in given:
        return _local_polytope(given)
    linear, edges, quadratic, conflicts = (given[key] for key in ("linear", "edges", "quadratic", "conflicts"))
    n, pairs = len(linear), np.arange(len(linear), len(linear) + len(quadratic))
    up, down = quadratic > 0, quadratic <= 0
    # A product that costs must be 1 where both are; one that pays only where each is.
    rows = [
        (np.column_stack([edges[up], pairs[up]]), [1.0, 1.0, -1.0], 1.0),
        *((np.column_stack([pairs[down], edges[down, end]]), [1.0, -1.0], 0.0) for end in (0, 1)),
        (conflicts, [1.0, 1.0], 1.0),
    ]
    columns = [c.ravel() for c, _, _ in rows]
    entries = [np.tile(values, len(c)) for c, values, _ in rows]
    widths = np.concatenate([np.full(len(c), len(values)) for c, values, _ in rows]).astype(int)
    high = np.concatenate([np.full(len(c), top) for c, _, top in rows])
    start = np.concatenate([[0], np.cumsum(widths)])
    size = n + len(pairs)
    return {
        "A": csr_array((np.concatenate(entries), np.concatenate(columns), start), shape=(len(high), size)),
        "low": np.full(len(high), -np.inf),
        "high": high,
        "c": np.concatenate([linear, quadratic]),
        "upper": np.ones(size),
        "whole": np.arange(size) < n,
        "offset": float(given["offset"]),
        "labels": n,
    }


def _local_polytope(given: Form) -> Form:
    counts, offset, factors = tables(given)
    first = np.concatenate([[0], np.cumsum(counts)])
    size = int(first[-1])
    cost, upper = [np.zeros(size)], [np.ones(size)]
    rows, columns, entries, high = [], [], [], [np.ones(len(counts))]
    rows.append(np.repeat(np.arange(len(counts)), counts))
    columns.append(np.arange(size))
    entries.append(np.ones(size))
    row = len(counts)
    for scopes, group in factors:
        for scope, table in zip(scopes.tolist(), group, strict=True):
            forbidden = np.isinf(table)
            priced = np.where(forbidden, 0.0, table)
            if len(scope) == 1:
                at = slice(first[scope[0]], first[scope[0] + 1])
                cost[0][at] += priced
                upper[0][at] = np.where(forbidden, 0.0, upper[0][at])
                continue
            places = size + np.arange(table.size).reshape(table.shape)
            for axis, i in enumerate(scope):
                own = row + np.arange(table.shape[axis])
                along = np.moveaxis(places, axis, 0).reshape(len(own), -1)
                rows += [np.repeat(own, along.shape[1]), own]
                columns += [along.ravel(), first[i] + np.arange(len(own))]
                entries += [np.ones(along.size), -np.ones(len(own))]
                high.append(np.zeros(len(own)))
                row += len(own)
            cost.append(priced.ravel())
            upper.append(np.where(forbidden, 0.0, 1.0).ravel())
            size += table.size
    right = np.concatenate(high)
    matrix = csr_array((np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))), shape=(row, size))
    return {
        "A": matrix,
        "low": right,
        "high": right,
        "c": np.concatenate(cost),
        "upper": np.concatenate(upper),
        "whole": np.arange(size) < first[-1],
        "offset": offset,
        "labels": int(first[-1]),
    }


def tables(given: Form) -> tuple[Any, float, list[tuple[Any, Any]]]:
    """Numbers of labels, the constant, and factors by the shape of their tables: scopes and tables."""
    if "counts" in given:
        groups = [(given[f"scopes{k}"], given[f"tables{k}"]) for k in range(int(given["groups"]))]
        return given["counts"], float(given["constant"]), groups
    linear, quadratic, conflicts = given["linear"], given["quadratic"], given["conflicts"]
    one, two = np.array([0.0, 1.0]), np.array([[0.0, 0.0], [0.0, 1.0]])
    hard = np.array([[0.0, 0.0], [0.0, np.inf]])
    some = np.flatnonzero(linear)
    groups = [
        (some[:, None], linear[some, None] * one),
        (given["edges"], quadratic[:, None, None] * two),
        (conflicts, np.broadcast_to(hard, (len(conflicts), 2, 2))),
    ]
    return np.full(len(linear), 2), float(given["offset"]), groups


def decimals(arrays: Any) -> int:
    """Decimals that are kept: none for integers, else six or as many as fit."""
    finite = [np.asarray(a)[np.isfinite(a)] for a in arrays]
    values = np.concatenate([a.ravel() for a in finite])
    if not np.any(values % 1):
        return 0
    return int(np.clip(np.floor(np.log10(LARGEST / max(1.0, float(np.abs(values).sum())))), 0, 6))
