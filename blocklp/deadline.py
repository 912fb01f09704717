"""The moment at which work is given up: one object, passed down through every phase of a call."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from numbers import Real

from blocklp.errors import OptionError, TimeLimitError


class Deadline:
    """A time limit under way.

    A function that takes ``time_limit`` makes one of it at once (:meth:`of`) and hands it down; every loop
    that can take a tenth of a second asks it. A phase that cannot be divided is estimated, and left out where
    it cannot be afforded (:meth:`affords`).

    Parameters
    ----------
    seconds : float
        From now on, or from ``began``; positive, infinity for no limit.
    began : float, optional
        Reading of :func:`time.perf_counter` from which they count.

    Raises
    ------
    OptionError
        If ``seconds`` is not a positive number.

    Examples
    --------
    >>> import blocklp as bl
    >>> deadline = bl.Deadline(60.0)
    >>> deadline.over()
    False
    """

    def __init__(self, seconds: float = math.inf, *, began: float | None = None) -> None:
        try:
            number = isinstance(seconds, Real) and not isinstance(seconds, bool)
            limit = float(seconds) if number else math.nan
        except OverflowError:
            limit = math.nan
        if not limit > 0:
            must = "it must be a positive number of seconds, or infinity"
            raise OptionError(f"time_limit is {seconds!r}; {must}")
        self.seconds: float = limit
        self.interrupted = False
        self._answers: dict[Hashable, bool] = {}
        self.began: float = time.perf_counter() if began is None else began

    @classmethod
    def of(cls, limit: float | Deadline) -> Deadline:
        """Return the deadline given, or one for so many seconds from now on."""
        return limit if isinstance(limit, Deadline) else cls(limit)

    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began

    def left(self) -> float:
        """Seconds that are left, zero once it is over."""
        return max(self.seconds - self.elapsed(), 0.0)

    def over(self) -> bool:
        """Whether no time is left."""
        return self.elapsed() >= self.seconds

    def interrupt(self) -> None:
        """End it, for work that answers an interrupt by what it has; its caller asks ``interrupted``."""
        self.seconds, self.interrupted = 0.0, True

    def affords(self, seconds: float) -> bool:
        """Whether a phase that cannot be divided and takes about so long would end in time."""
        return self.left() >= seconds

    def affords_once(self, key: Hashable, seconds: float) -> bool:
        """Return what :meth:`affords` said when it was first asked about a phase, named by ``key``."""
        if key not in self._answers:
            self._answers[key] = self.affords(seconds)
        return self._answers[key]

    @property
    def afforded(self) -> list[Hashable]:
        """The phases of which :meth:`affords_once` said that they can be afforded."""
        return [key for key, answer in self._answers.items() if answer]

    def within(self, seconds: float) -> Deadline:
        """Return a deadline so many seconds from now on, or this one where it comes sooner."""
        return Deadline(max(min(seconds, self.left()), 1e-9))

    def check(self, doing: str, seconds: float = 0.0) -> None:
        """Give up where there is nothing to return yet, before a phase of about so many ``seconds``.

        Raises
        ------
        TimeLimitError
            If the deadline is over, or would be then; the message says what was being done.
        """
        if self.over() or not self.affords(seconds):
            verb = "was reached" if self.over() else "would be passed"
            limit = f"the time limit of {self.seconds:g} s"
            raise TimeLimitError(f"{limit} {verb} while {doing}; raise time_limit")

    def restart(self, other: Deadline) -> None:
        """Become another deadline: for what came from another process, and has that one's clock."""
        self.seconds, self.began, self._answers = other.seconds, other.began, {}

    def __repr__(self) -> str:
        return f"Deadline({self.seconds:g} s, {self.left():.3g} s left)"
