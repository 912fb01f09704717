"""Processes that make trials, one after another, until the time is over."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from bench.soak.trial import TRIALS, Skipped, Trial, load

SHRUNK = 3
"""Findings of a trial that are made small; more of them say little."""

SLOW = 2.0
"""Seconds from which on a trial is not repeated in order to make its finding small."""

GRACE = 30.0
"""Seconds beyond a trial's own that its process gets, to start and to make findings small."""


@dataclass
class Outcome:
    """What came of one trial: a message, or why it was skipped, or neither."""

    trial: Trial
    seed: int
    seconds: float = 0.0
    message: str | None = None
    skipped: str | None = None
    command: str = ""
    late: list[tuple[str, float, float]] = field(default_factory=list)


def serve(pipe: Connection) -> None:
    """Make trials that are asked for until the pipe closes."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load()
    from bench.soak.clock import lateness

    pipe.send("ready")
    while True:
        try:
            name, seed, shrink = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        began, message, skipped = time.perf_counter(), None, None
        trial, size, small = TRIALS[name], 1.0, seed
        try:
            message = trial.run(seed)
        except Skipped as error:
            skipped = str(error)
        seconds = time.perf_counter() - began
        if message is not None and shrink and seconds < SLOW:
            small, size, message = trial.smallest(seed, message)
        pipe.send((seconds, message, skipped, trial.command(small, size), list(lateness)))
        lateness.clear()


class Worker:
    """One such process, and what it is at."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,))
        self.process.start()
        theirs.close()
        self.busy: Outcome | None = None
        self.began, self.ready = time.perf_counter(), False

    def give(self, outcome: Outcome, shrink: bool) -> None:
        """Ask for a trial."""
        self.busy, self.began = outcome, time.perf_counter()
        self.pipe.send((outcome.trial.name, outcome.seed, shrink))

    def take(self) -> Outcome | None:
        """Return the outcome of the trial, None where the process says that it is ready."""
        outcome = self.busy
        try:
            answer: Any = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            return self._lost(f"the process died with code {self.process.exitcode}")
        self.ready = True
        if outcome is None:
            return None
        outcome.seconds, outcome.message, outcome.skipped, outcome.command, outcome.late = answer
        self.busy = None
        return outcome

    def overdue(self) -> Outcome | None:
        """End a process whose trial takes too long, and return that as the outcome."""
        if self.busy is None or time.perf_counter() - self.began < self.busy.trial.seconds + GRACE:
            return None
        return self._lost(f"no end within {self.busy.trial.seconds:g} s")

    def _lost(self, message: str) -> Outcome | None:
        self.stop()
        if self.busy is not None:
            self.busy.message, self.busy.seconds = message, time.perf_counter() - self.began
            self.busy.command = self.busy.trial.command(self.busy.seed)
        return self.busy

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def outcomes(seconds: float, seed: int, workers: int) -> Iterator[Outcome]:
    """Make trials for a time: of all that there are that which has had the least time for its weight.

    Every trial is made once, even where that takes longer.
    """
    trials = list(load().values())
    spent = dict.fromkeys(TRIALS, 0.0)
    made, found = dict.fromkeys(TRIALS, 0), dict.fromkeys(TRIALS, 0)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    began, crew = time.perf_counter(), [Worker() for _ in range(workers)]
    try:
        while True:
            over = time.perf_counter() - began > seconds
            for one in crew:
                if not one.ready or one.busy is not None:
                    continue
                due = [t for t in trials if not made[t.name]] if over else trials
                if not due:
                    continue
                trial = min(due, key=lambda t: (spent[t.name] / t.weight, made[t.name]))
                # Until it is known what a trial takes, no other process takes it up as well.
                spent[trial.name] += 1.0
                one.give(Outcome(trial, seed + made[trial.name]), found[trial.name] < SHRUNK)
                made[trial.name] += 1
            if over and all(one.busy is None for one in crew) and all(made.values()):
                return
            wait([one.pipe for one in crew], timeout=1.0)
            for k, one in enumerate(crew):
                outcome = one.take() if one.pipe.poll() else one.overdue()
                if outcome is not None:
                    spent[outcome.trial.name] += outcome.seconds - 1.0
                    found[outcome.trial.name] += outcome.message is not None
                    yield outcome
                if one.process.exitcode is not None:
                    crew[k] = Worker()
    finally:
        for one in crew:
            one.stop()
