"""Selection of photographs of a satellite, ``.bep`` of toulbar2.

Two lines of text, a line of parameters whose first number is n, then a line ``i x y duration earliest latest
revenue`` for each photograph and a matrix of n x n delays between the end of one and the beginning of
another.  Label 0 is the time ``earliest`` of a photograph, the last one says that it is not taken, which
costs its revenue, n - 1 times as toulbar2 counts it; two that are taken do not overlap.

Source: toulbar2's reader of the format (tb2bep.cpp).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.formats import InputFile
from blocklp.problems.lines import NODE
from blocklp.problems.mrf.cost_networks.cost_network import CostNetwork
from blocklp.problems.mrf.cost_networks.counting import Tabulated
from blocklp.problems.mrf.cost_networks.languages import apart
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import Words
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

SUFFIXES = (".bep",)


def read(file: InputFile) -> Mrf:
    """Read an energy: see :func:`blocklp.problems.mrf.formats.uai.read`."""
    lines = file.lines
    if len(lines) < 3:
        raise FormatError(f"{lines.path}: two lines of text and one of parameters should come first; the file is cut off")
    words = Words.of(lines.select(list(range(2, len(lines)))))
    n = words.integer("the number of photographs", least=1, most=10**6)
    while words.at < len(words.texts) and words.lines[words.at] == words.lines[0]:
        words.take(1, "a parameter")
    words.allowance.take(NODE * n + 8 * n * n, f"{n} photographs")
    rows = []
    for _ in range(n):
        number = words.integer("the number of a photograph", 1, n)
        numbers = words.integers(6, "a coordinate, a time or a revenue", -(10**9), 10**9)
        rows.append((number, *numbers[2:]))
    rows.sort()
    if [row[0] for row in rows] != list(range(1, n + 1)):
        raise words.error(words.at - 1, "each photograph has one line; number them from 1 without gaps")
    delay = np.array(words.integers(n * n, "a delay", 0, 10**9)).reshape(n, n)
    words.end()
    duration = [row[1] for row in rows]
    earliest = [max(0, row[2]) for row in rows]
    counts = [row[3] - row[1] + 2 - begin for row, begin in zip(rows, earliest, strict=True)]
    if min(counts) < 1:
        raise FormatError(f"{lines.path}: photograph {1 + counts.index(min(counts))} ends before it can begin; correct its times")
    words.allowance.take(2 * 8 * n * max(counts), f"times of {n} photographs")
    network = CostNetwork(words.allowance, counts)
    for i in range(n):
        unary = np.zeros(counts[i])
        unary[-1] = (n - 1) * rows[i][4]
        network.add([i], unary)
        for j in range(i + 1, n):
            after = (duration[i] + int(delay[i, j]), duration[j] + int(delay[j, i]))
            Tabulated(
                f"photographs {i + 1} and {j + 1}", [i, j], _separate((earliest[i], earliest[j]), after, (counts[i], counts[j]))
            ).add(network)
    return network.finish(file.name)


def _separate(earliest: tuple[int, int], after: tuple[int, int], counts: tuple[int, int]) -> Callable[[IntArray], FloatArray]:
    """Return the cost of two photographs that overlap."""

    def evaluate(labels: IntArray) -> FloatArray:
        left_out = (labels == np.array(counts) - 1).any(axis=1)
        return np.where(left_out | apart(labels + np.array(earliest), *after), 0.0, np.inf)

    return evaluate
