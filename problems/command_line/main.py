"""Where the process of a command starts and ends.

This module is the first of the command line that is imported, and it imports nothing that takes time, not even contextlib: an
interrupt of the imports that follow has to find somebody who answers it.
"""

from __future__ import annotations

import os
import time

from blocklp.problems.command_line.process import leave


def main() -> None:
    """Run the command line."""
    try:
        import signal

        # Whoever started this process may have it ignore interrupts; then it stays so.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, leave)
        # Torch reads it with its first tensor: pages of 2 MB for large ones, which passes over millions of blocks allocate.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
        from blocklp.problems.command_line.app import app

        app(obj=began())
    except KeyboardInterrupt:  # before there was a handler
        leave()
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
