"""The process of a command: where it starts, when it began, and what an interrupt does.

This module is the first of the command line that is imported, and it imports nothing that takes time, not even contextlib: an
interrupt of the imports that follow has to find somebody who answers it.
"""

from __future__ import annotations

import os
import time

# As in typing, whose import would take longer than all that comes before the command line answers an interrupt.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from blocklp.deadline import Deadline

EXIT_INTERRUPTED = 130
CLOSING, SHARE = 0.2, 0.05
"""Seconds of a time limit, and the largest part of it, that are kept for printing and leaving, beside other busy processes."""
_last_words = ""


def main() -> None:
    """Run the command line."""
    try:
        import signal

        # Whoever started this process may have it ignore interrupts; then it stays so.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _leave)
        from blocklp.problems.cli import app

        app(obj=began())
    except KeyboardInterrupt:  # before there was a handler
        _leave()
    except SystemExit as done:
        _end(done.code)


def _end(code: object) -> None:
    """End the process with all that was printed, but without taking torch down piece by piece: a tenth of a second or more."""
    import atexit
    import sys

    if isinstance(code, str):
        print(code, file=sys.stderr)
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads it any more
        code = 1
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _leave(*_: object) -> None:
    """End the process at once, with one line.

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

        self._ours = signal.getsignal(signal.SIGINT) is _leave
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *error: object) -> None:
        import signal

        if self._ours:
            signal.signal(signal.SIGINT, _leave)


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

    Raises
    ------
    OptionError
        If ``seconds`` is not a positive number.
    """
    from blocklp.deadline import Deadline

    closing = min(CLOSING, SHARE * seconds) if 0 < seconds < float("inf") else 0.0
    return Deadline(seconds, began=(time.perf_counter() if began is None else began) - closing)


def began() -> float:
    """Return the reading of ``time.perf_counter()`` when this process began, so that a time limit counts imports too."""
    now, least = time.perf_counter(), time.process_time()
    try:
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return now - least
    # In a container the two clocks may differ; what was computed is the least that has passed.
    return now - (age if least - 0.1 <= age < least + 60 else least)


if __name__ == "__main__":
    main()
