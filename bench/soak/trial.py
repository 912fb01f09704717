"""Trials: functions of a seed that state a property and raise a finding where it does not hold."""

from __future__ import annotations

import importlib
import pkgutil
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")

SIZES = (0.1, 0.25, 0.5)
"""What a failing trial is repeated with, so that its finding is as small as can be."""

SHRINKING_SEEDS, SHRINKING_SECONDS = 4, 4.0
"""Seeds tried at each size, and seconds spent on them all."""


class Finding(Exception):
    """A property does not hold; the message says which numbers say so."""


class Skipped(Exception):
    """The trial cannot be made here: a package is missing, or the truth could not be found."""


@dataclass(frozen=True)
class Draw:
    """What a trial takes its random numbers from.

    Attributes
    ----------
    random : numpy.random.Generator
        The numbers.
    size : float
        At most 1: instances have so much of their usual size.
    """

    random: np.random.Generator
    size: float

    def count(self, least: int, most: int) -> int:
        """A random number of things, from ``least`` to a share of ``most``."""
        return int(self.random.integers(least, max(least, round(least + (most - least) * self.size)) + 1))

    def chance(self, share: float) -> bool:
        """Whether something happens that happens in such a share of the trials."""
        return bool(self.random.random() < share)

    def pick(self, *options: T) -> T:
        """One of several things."""
        return options[int(self.random.integers(len(options)))]


@dataclass(frozen=True)
class Trial:
    """A trial: ``function(draw)`` returns if the property holds, and raises :class:`Finding` if not."""

    name: str
    family: str
    claim: str
    function: Callable[[Draw], None]
    weight: float
    seconds: float

    def run(self, seed: int, size: float = 1.0) -> str | None:
        """Return what was found, or None; any error but :class:`Skipped` is a finding."""
        try:
            self.function(Draw(np.random.default_rng([zlib.crc32(self.name.encode()), seed]), size))
        except Finding as finding:
            return str(finding)
        except Skipped:
            raise
        except Exception as error:
            places = [f for f in traceback.extract_tb(error.__traceback__)]
            where = " < ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in places[:-4:-1])
            return f"{type(error).__name__} at {where}: {str(error).splitlines()[0][:200] if str(error) else ''}"
        return None

    def smallest(self, seed: int, message: str) -> tuple[int, float, str]:
        """Seed, size and message of the smallest instance that fails too, as far as a few seconds find one."""
        began = time.perf_counter()
        for size in SIZES:
            for other in range(seed, seed + SHRINKING_SEEDS):
                if time.perf_counter() - began > SHRINKING_SECONDS:
                    return seed, 1.0, message
                try:
                    found = self.run(other, size)
                except Skipped:
                    continue
                if found is not None:
                    return other, size, found
        return seed, 1.0, message

    def command(self, seed: int, size: float = 1.0) -> str:
        """The line that repeats a trial."""
        return f"python -m bench.soak {self.name} {seed}" + ("" if size == 1 else f" --size {size:g}")


TRIALS: dict[str, Trial] = {}


def trial(family: str, claim: str, *, weight: float = 1.0, seconds: float = 60.0) -> Callable[..., Callable[[Draw], None]]:
    """Register a trial under the name of its function, with dashes.

    Parameters
    ----------
    family : str
        What it belongs to; the page counts by family.
    claim : str
        The property, a sentence.
    weight : float
        How often it is run beside others.
    seconds : float
        It is a finding that a trial takes longer.
    """

    def register(function: Callable[[Draw], None]) -> Callable[[Draw], None]:
        name = function.__name__.replace("_", "-")
        TRIALS[name] = Trial(name, family, claim, function, weight, seconds)
        return function

    return register


def load() -> dict[str, Trial]:
    """Import every family and return all trials by name."""
    import bench.soak

    for module in pkgutil.iter_modules(bench.soak.__path__):
        if not module.name.startswith("__"):
            importlib.import_module(f"bench.soak.{module.name}")
    return TRIALS


def claim(holds: object, message: Callable[[], str] | str) -> None:
    """Raise a finding unless something holds."""
    if not holds:
        raise Finding(message() if callable(message) else message)
