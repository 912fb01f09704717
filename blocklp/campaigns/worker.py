"""A process of :class:`blocklp.campaigns.LocalExecutor`: ``python -m blocklp.campaigns.worker THREADS``.

It reads pickled tasks from standard input, and writes pickled answers to standard output; whatever tasks
print goes to standard error.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from contextlib import suppress
from pathlib import Path

MORE_LIKELY = 500
"""Raises the score by which Linux chooses whom to end where memory runs out: a worker, not the campaign."""


def main() -> None:
    """Answer tasks until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):  # before torch and numba are imported
        os.environ[name] = sys.argv[1]
    with suppress(OSError):  # there is no such file but on Linux
        Path("/proc/self/oom_score_adj").write_text(str(MORE_LIKELY))
    with suppress(EOFError, BrokenPipeError):  # whoever asks has gone
        sys.path[:] = pickle.loads(pickle.load(sys.stdin.buffer))
        while True:
            pickle.dump(answer(pickle.load(sys.stdin.buffer)), answers)
            answers.flush()
    os._exit(0)  # without taking torch down piece by piece


def answer(task: bytes) -> bytes:
    """Call a function; return whether it succeeded, and its value or exception, pickled."""
    try:
        function, arguments = pickle.loads(task)
        return pickle.dumps((True, function(*arguments)))
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        try:
            written = pickle.dumps((False, error))
            pickle.loads(written)
        except Exception:  # such as one whose class takes other arguments
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
        return written


if __name__ == "__main__":
    main()
