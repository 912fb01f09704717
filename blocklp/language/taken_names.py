"""Names of blocks and rows that are taken, and the next free one, quickly where a model only grows."""

from __future__ import annotations

from itertools import count as count_from
from typing import Any


class TakenNames:
    """Names of handles in lists, most of which only get longer: others are read again.

    A loop may add thousands of blocks one by one, and each asks for a name.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._read: list[tuple[int, Any]] = []
        self._next: dict[str, int] = {}

    def among(self, *lists: list[Any]) -> set[str]:
        """The names of all handles of the lists, which are always given in one order."""
        last = self._read or [(0, None)] * len(lists)
        if not all(_grown(own, *end) for own, end in zip(lists, last, strict=True)):
            last, self._names, self._next = [(0, None)] * len(lists), set(), {}
        for own, (n, _) in zip(lists, last, strict=True):
            self._names.update(handle.name for handle in own[n:])
        self._read = [(len(own), own[-1] if own else None) for own in lists]
        return self._names

    def free(self, base: str, *lists: list[Any]) -> str:
        """A name that no handle of the lists has: the base, or the base and a number from two on."""
        taken = self.among(*lists)
        if base not in taken:
            return base
        number = next(n for n in count_from(self._next.get(base, 2)) if f"{base}_{n}" not in taken)
        self._next[base] = number
        return f"{base}_{number}"


def _grown(handles: list[Any], count: int, last: Any) -> bool:
    """Whether a list still begins with so many handles, the last of which is known."""
    return not count or (len(handles) >= count and handles[count - 1] is last)
