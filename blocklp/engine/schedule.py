"""When a chunk makes passes and when it is checked, by counts and by the clock."""

from __future__ import annotations

import math

from blocklp.engine.limits import Limits
from blocklp.methods import Method

GLANCE = 0.1
"""Seconds between two looks at the clock, about; a pass is not divided.

Without a time limit a device makes all passes up to the next check: they are short there, and the first ones
wait for kernels to be compiled, which says nothing about the others.
"""

CLOSING = 3.0
"""Checks that it takes to end: one, and the final bounds."""


class CheckSchedule:
    """The passes of a chunk, and the next check.

    Parameters
    ----------
    method : Method
        The method.
    limits : Limits
        What the caller asked for.
    exact : bool
        Whether it iterates in double precision.
    rounds : float
        Chunks for each thread.
    on_device : bool
        Whether passes are made on a device, not on a CPU.

    Attributes
    ----------
    passes : int
        Passes so far, 0 before the first state.
    """

    def __init__(self, method: Method, limits: Limits, exact: bool, rounds: float, on_device: bool) -> None:
        self.passes, self._next = 0, 1
        self._limits, self._cadence, self._regular, self._rounds = (
            limits,
            method.cadence,
            method.regular,
            rounds,
        )
        self._exact, self._evaluated = exact, exact and method.evaluates
        self._longest, self._closing = 1, 0.0
        self._clocked = not on_device or math.isfinite(limits.deadline.seconds)

    @property
    def place(self) -> tuple[int, int]:
        """Passes so far, and the pass of the next check."""
        return self.passes, self._next

    @place.setter
    def place(self, place: tuple[int, int]) -> None:
        self.passes, self._next = place

    @property
    def known(self) -> bool:
        """Whether the state holds the float64 value of its multipliers; the first that is checked does."""
        return self._evaluated or (self._exact and self._next == 1)

    @property
    def due(self) -> bool:
        """Whether the next check is due; one that has to evaluate makes a pass of its own."""
        return self.passes + (not self.known) >= self._next

    @property
    def out_of_passes(self) -> bool:
        """Whether no passes may be made any more."""
        return self._left <= 0

    @property
    def out_of_time(self) -> bool:
        """Whether the time that is left is needed to end."""
        return self._limits.deadline.left() <= self._closing

    @property
    def _left(self) -> int:
        """Passes that may still be made; a check takes one where steps do not evaluate."""
        return self._limits.passes - self.passes - (not self._evaluated)

    def next_passes(self) -> int:
        """Passes to make before the next look at the clock or check."""
        most = 1 if self._evaluated else max(1, min(self._next - self.passes - 1, self._left))
        return min(most, self._longest) if self._clocked else most

    def note_passes(self, passes: int, seconds: float) -> None:
        """Count passes that took so many seconds."""
        self.passes += passes
        self._longest = max(1, int(GLANCE * passes / max(seconds, 1e-9)))

    def note_check(self, seconds: float) -> None:
        """Set the pass of the next check after one that took so many seconds."""
        if (every := self._limits.check_every) is not None:
            self._next = (self.passes // every + 1) * every
        else:
            last = self.passes if self._next > 1 else 0
            self._next = last + self._cadence * max(1, last // (self._regular * self._cadence)) + 1
        self._closing = CLOSING * self._rounds * seconds
