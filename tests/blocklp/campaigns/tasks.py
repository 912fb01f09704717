"""Tasks that processes import by name; they need neither torch nor numpy, so that processes start at once."""

import os
import resource
import signal
import sys
import time
from pathlib import Path

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)


def square(k):
    return k * k, os.getpid()


def wait(seconds, k):
    time.sleep(seconds)
    return k


def forever():
    while True:
        pass


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def leave():
    os._exit(3)


def out_of_memory():
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    return bytearray(2**31)


class Odd(Exception):
    """Cannot be unpickled: its constructor takes another argument."""

    def __init__(self, number, text):
        super().__init__(f"{text} {number}")


def odd():
    raise Odd(3, "odd")


def read(shared, again):
    first = shared.get()
    return first, shared.get() is first, again


def text(shared):
    return shared.get().read_text(), os.getpid()
