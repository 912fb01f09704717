"""The process of a command: its exit codes, when its time ends, and what an interrupt does.

An interrupt may come before anything else is imported: this module imports nothing that takes time, not even contextlib.
"""

from __future__ import annotations

import os
import time

# As in typing, whose import would take longer than all that comes before the command line answers an interrupt.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from blocklp.deadline import Deadline

EXIT_STOPPED, EXIT_ERROR, EXIT_INTERRUPTED = 1, 2, 130
CLOSING, SHARE = 0.2, 0.05
"""Seconds of a time limit, and the largest part of it, that are kept for printing and leaving, beside other busy processes."""
_last_words = ""


def leave(*_: object) -> None:
    """End the process at once, with one line: what answers an interrupt where there is nothing to report.

    An exception will not do here: the initialisation of a compiled module, a destructor and the end of the interpreter may lose
    it, or make a trace of it.
    """
    try:
        os.write(1, _last_words.encode())
        os.write(2, b"interrupted\n")
    finally:
        os._exit(EXIT_INTERRUPTED)


class interruptible:
    """Within it an interrupt is a KeyboardInterrupt, for work that answers it by the best so far or has something to tidy up.

    Elsewhere in the process of a command, where nothing is found yet or all is told, it ends the process with one line.
    """

    def __enter__(self) -> None:
        import signal

        self._ours = signal.getsignal(signal.SIGINT) is leave
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *error: object) -> None:
        import signal

        if self._ours:
            signal.signal(signal.SIGINT, leave)


class leaving:
    """Within it an interrupt that ends the process prints ``last_words`` on standard output, as a standard may ask for."""

    def __init__(self, last_words: str) -> None:
        self._last_words = last_words

    def __enter__(self) -> None:
        global _last_words
        _last_words = self._last_words

    def __exit__(self, *error: object) -> None:
        global _last_words
        _last_words = ""


def until(seconds: float, began: float | None) -> Deadline:
    """Return when the work of a command ends, for a time limit of the whole process: it counts from a little before that began.

    Parameters
    ----------
    seconds : float
        The limit of the whole process.
    began : float, optional
        The reading of ``time.perf_counter()`` when the process began; now by default.

    Raises
    ------
    OptionError
        If ``seconds`` is not a positive number.
    """
    from blocklp.deadline import Deadline

    closing = min(CLOSING, SHARE * seconds) if 0 < seconds < float("inf") else 0.0
    return Deadline(seconds, began=(time.perf_counter() if began is None else began) - closing)
