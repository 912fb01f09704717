"""Pieces of work that threads take in turn."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="numba is not installed")

from blocklp.kernels.compiled import TURNS, compile
from blocklp.kernels.turns import claim, done, fetch


@compile(nogil=True)
def _relay(turns: Any, phases: int, parts: int, numbers: Any, count: Any) -> None:
    """In every phase a part becomes the sum of all parts of the phase before, and its own number."""
    while True:
        phase, k = claim(turns, phases, parts)
        if phase >= phases:
            return
        total = k
        for j in range(parts):
            total += numbers[phase % 2, j]
        numbers[(phase + 1) % 2, k] = total % 1_000_003
        count[phase, k] += 1
        done(turns)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_every_piece_is_taken_once_and_after_all_of_the_phase_before(threads: int, parts: int) -> None:
    """More threads than cores among them."""
    phases, expected = 300, [0] * parts
    for _ in range(phases):
        expected = [(sum(expected) + k) % 1_000_003 for k in range(parts)]
    turns, numbers = np.zeros(TURNS, np.int64), np.zeros((2, parts), np.int64)
    count = np.zeros((phases, parts), np.int64)
    workers = [threading.Thread(target=_relay, args=(turns, phases, parts, numbers, count)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert numbers[phases % 2].tolist() == expected
    assert (count == 1).all()


def test_asking_for_memory_beyond_an_array_does_no_harm() -> None:
    """Loops ask for what comes next without looking where an array ends."""

    @compile(nogil=True)
    def ask(values: Any) -> float:
        fetch(values, len(values) - 1, 1000)
        fetch(values, 10**9, 1000)
        return values.sum()

    assert ask(np.ones(7, np.float32)) == 7
