"""A child process with limits on memory and time, for what may take too much of either."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import resource
import signal
import warnings
from multiprocessing.connection import Connection
from typing import Any

from bench.soak.trial import Finding

MEMORY = 4 << 30
"""Bytes that a call may take beyond what the process has after its imports."""

_running: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []


def ask(function: str, *given: Any, seconds: float = 30.0) -> Any:
    """Call ``module:name`` in a child and return its answer.

    Raises
    ------
    Finding
        If it does not answer in time, dies, runs out of memory, or raises anything but an error of ours or of the file system.
    Refused
        If it raises one of these.
    """
    if not _running:
        _running.append(_started())
    process, pipe = _running[0]
    pipe.send((function, given))
    try:
        if not pipe.poll(seconds):
            _stop()
            raise Finding(f"no answer within {seconds:g} s")
        kind, answer = pipe.recv()
    except (EOFError, ConnectionResetError) as error:
        process.join(5)
        code = process.exitcode
        _stop()
        raise Finding(f"the process died with code {code}") from error
    if kind == "refused":
        raise Refused(answer)
    if kind == "failed":
        raise Finding(answer)
    return answer


class Refused(Exception):
    """An error of ours, or of the file system, with its message."""


def _started() -> tuple[multiprocessing.process.BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    if not ours.poll(120):
        raise RuntimeError("the child process does not start")
    ours.recv()
    return process, ours


def _stop() -> None:
    process, pipe = _running.pop()
    process.kill()
    process.join()
    pipe.close()


def serve(pipe: Connection) -> None:
    """Answer calls until the other end closes."""
    import torch

    from bench.soak import reading
    from blocklp.errors import BlocklpError

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: not to outlive a parent that is ended
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    reading.warm()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    pipe.send("ready")
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            function, given = pipe.recv()
            module, _, name = function.partition(":")
            try:
                answer = "answer", getattr(importlib.import_module(module), name)(*given)
            except (BlocklpError, FileNotFoundError) as error:
                answer = "refused", f"{type(error).__name__}: {error}"
            except BaseException as error:
                trace = error.__traceback__
                while trace is not None and trace.tb_next is not None:
                    trace = trace.tb_next
                where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
                answer = "failed", f"{type(error).__name__} at {where}: {str(error)[:150]}"
            pipe.send(answer)
