"""Sums over the copies of variables for :mod:`blocklp.methods.admm`, compiled for the CPU.

They do what the tensor operations do, in the same order and without liberties, so that both give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.compiled import compile, kernel

CHUNK = 4096
"""Variables that a thread takes at a time."""


def chunks(variables: int) -> int:
    """The units of work of an instance in :func:`follow`."""
    return -(-variables // CHUNK)


@compile(nogil=True, error_model="numpy")
def collect_row(place: Any, segments: Any, copy: Any, sums: Any) -> None:
    """One instance of :func:`collect`."""
    sums[:] = 0
    for s in range(len(segments)):
        for k in range(segments[s, 0], segments[s, 1]):
            sums[place[k]] += copy[k]


@compile(nogil=True, error_model="numpy")
def follow_row(counts: Any, speed: Any, mean: Any, consensus: Any) -> None:
    """Some variables of an instance in :func:`follow`."""
    one = mean.dtype.type(1)
    for v in range(len(mean)):
        moved = (mean[v] - consensus[v]) * speed + consensus[v]
        consensus[v] = moved if counts[v] > one else mean[v]


@compile(nogil=True, error_model="numpy")
def share_row(place: Any, segments: Any, value: Any, copy: Any) -> None:
    """One instance of :func:`share`."""
    for s in range(len(segments)):
        for k in range(segments[s, 0], segments[s, 1]):
            copy[k] += value[place[k]]


@compile(nogil=True, error_model="numpy")
def pull_row(anchor: Any, age: int, value: Any) -> None:
    """Draw values towards an anchor, ever less, or set it; one instance of :func:`blocklp.methods.admm.pull`."""
    kind = value.dtype.type
    if age == 0:
        anchor[:] = value
        return
    share = kind(age) / kind(age + 1)
    for k in range(len(value)):
        value[k] = (value[k] - anchor[k]) * share + anchor[k]


@kernel()
def collect(begin: int, stop: int, used: int, places: Any, segments: Any, copies: Any, sums: Any) -> None:
    """Sum copies of the first ``used`` variables, from ``segments[k, 0]`` to before ``segments[k, 1]`` for every k.

    An instance is a unit.
    To scatter beats to gather: there are fewer variables than copies, so that their sums stay in the cache.
    """
    for row in range(begin, stop):
        collect_row(places[row % len(places)], segments, copies[row], sums[row, :used])


@kernel()
def share(begin: int, stop: int, places: Any, segments: Any, values: Any, copies: Any) -> None:
    """Add the value of its variable to every copy of the segments."""
    for row in range(begin, stop):
        share_row(places[row % len(places)], segments, values[row], copies[row])


@kernel()
def settle(
    begin: int,
    stop: int,
    live: Any,
    used: int,
    places: Any,
    segments: Any,
    cost: Any,
    counts: Any,
    duals: Any,
    points: Any,
    mean: Any,
    consensus: Any,
    apart: Any,
    moved: Any,
) -> None:
    """:func:`blocklp.methods.admm.settle` for live instances, where the segments are all copies of what blocks share."""
    rest = np.empty(used, duals.dtype)
    one = counts.dtype.type(1)
    for row in live[begin:stop]:
        place, point, number, m, z = places[row % len(places)], points[row], counts[row % len(counts)], mean[row], consensus[row]
        collect_row(place, segments, duals[row], rest)
        for v in range(used):
            rest[v] = (cost[row, v] - rest[v]) / number[v]
        share_row(place, segments, rest, duals[row])
        between, ahead = 0.0, 0.0
        for s in range(len(segments)):
            for k in range(segments[s, 0], segments[s, 1]):
                own = np.float64(point[k] - m[place[k]])
                between += own * own
        for v in range(used):
            step = np.float64(m[v] - z[v])
            if number[v] > one:
                ahead += step * step * np.float64(number[v])
        apart[row], moved[row] = between, ahead


@kernel(grain=16)
def follow(
    begin: int, stop: int, rows: Any, used: int, counts: Any, rate: float, mean: Any, consensus: Any, base: Any, age: Any
) -> None:
    """``consensus += rate * (mean - consensus)``, and the mean itself for what is not shared, of the first ``used`` variables.

    Then it is drawn towards ``base``, if there is one.
    """
    parts = (used + CHUNK - 1) // CHUNK
    speed = mean.dtype.type(rate)
    for unit in range(begin, stop):
        row, first = rows[unit // parts], unit % parts * CHUNK
        last = min(first + CHUNK, used)
        follow_row(counts[row % len(counts), first:last], speed, mean[row, first:last], consensus[row, first:last])
        if base.shape[1]:
            pull_row(base[row, first:last], age[row], consensus[row, first:last])
