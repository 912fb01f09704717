"""Trees that worker processes expand; they import this module by its name, and neither torch nor numpy."""

import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from blocklp.search.best_first import Expansion, Node

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)


@dataclass
class Items:
    """The least negative value of items that fit; the bound fills up with the fraction of an item.

    ``deadly`` names fixings whose expansion ends the process, ``pause`` is the time that a call takes.
    """

    items: list
    room: int
    deadly: tuple = ()
    mark: str = ""
    pause: float = 0.0

    def value(self, x):
        fits = sum(size * t for (_, size), t in zip(self.items, x, strict=False)) <= self.room
        return -float(sum(value * t for (value, _), t in zip(self.items, x, strict=False))) if fits else math.inf

    def bound(self, x):
        value = self.value(x)
        room = self.room - sum(size * t for (_, size), t in zip(self.items, x, strict=False))
        for gain, size in self.items[len(x) :]:
            part = max(0, min(1, room / size))
            value, room = value - part * gain, room - part * size
        return value

    def root(self):
        return Node(self.bound(()), 0, (), 1)

    def expand(self, nodes, incumbent, deadline):
        time.sleep(self.pause)
        for node in nodes:
            if node.state in self.deadly and not (self.mark and os.path.exists(self.mark)):
                if self.mark:
                    Path(self.mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        states = [(*node.state, t) for node in nodes for t in (0, 1)]
        points = [(self.value(x), x) for x in states]  # without the items that are left
        inner = [Node(self.bound(x), len(x), x, 1) for x in states if len(x) < len(self.items)]
        log = [(node.state, incumbent) for node in nodes]
        return Expansion(inner, *min(points), log=log)
