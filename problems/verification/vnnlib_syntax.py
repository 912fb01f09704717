"""The syntax of VNN-LIB files: parentheses, tokens, and messages that name a line.

Reference: VNN-LIB standard 2.0, chapter "Query language" (https://www.vnnlib.org).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from blocklp.deadline import Deadline
from blocklp.errors import FormatError

DEEPEST_NESTING = 200

PIECE = 4096
"""Tokens between two looks at the clock."""

# A tensor's name keeps its indices ("X [0,1]"), as an element type keeps its shape ("float32 [1,3]"); comments match
# outside the group and so give "".
TOKEN = re.compile(r';[^\n]*|("[^"\n]*"|[()]|[A-Za-z]\w*\s*\[[^\[\]();]*\]|[^\s();]+)')


@dataclass(slots=True)
class Parenthesis:
    """A parenthesis.

    Attributes
    ----------
    token : int
        The number of its opening token in the file.
    items : list of str or Parenthesis
        The words and parentheses that it holds.
    """

    token: int
    items: list[str | Parenthesis]

    @property
    def head(self) -> str:
        """The first word; empty where there is none."""
        return self.items[0] if self.items and isinstance(self.items[0], str) else ""


@dataclass
class VnnlibText:
    """A text, and what is said about it.

    Attributes
    ----------
    path : Path
        The file, for messages.
    text : str
        What it holds.
    deadline : Deadline
        When to give up.
    """

    path: Path
    text: str
    deadline: Deadline

    def error(self, group: Parenthesis, problem: str) -> FormatError:
        """Build the error that names this file, the line of a parenthesis and its text; of a long line from the parenthesis on."""
        start = next(match.start() for number, match in enumerate(TOKEN.finditer(self.text)) if number == group.token)
        line, rest = (self.text[begin:].split("\n", 1)[0].strip() for begin in (self.text.rfind("\n", 0, start) + 1, start))
        shown = line if len(line) <= 80 else rest if len(rest) <= 80 else rest[:77] + "..."
        return FormatError(f"{self.path}, line {self.text.count(chr(10), 0, start) + 1} ({shown!r}): {problem}")

    def look(self) -> None:
        """Raise a TimeLimitError if time is up."""
        self.deadline.check(f"reading {self.path}")

    def groups(self) -> list[Parenthesis]:
        """Return the outermost parentheses."""
        outermost = inner = Parenthesis(-1, [])
        stack: list[Parenthesis] = []
        for number, match in enumerate(TOKEN.finditer(self.text)):
            token = match[1]
            if number % PIECE == 0:
                self.look()
            if token == "(":
                group = Parenthesis(number, [])
                inner.items.append(group)
                stack.append(inner)
                inner = group
                if len(stack) > DEEPEST_NESTING:
                    raise self.error(group, f"more than {DEEPEST_NESTING} nested parentheses; flatten the formula")
            elif token == ")":
                if not stack:
                    raise self.error(Parenthesis(number, []), "unbalanced ')'; remove it or open it")
                inner = stack.pop()
            elif token:
                if not stack:
                    raise self.error(Parenthesis(number, []), f"{token!r} stands outside of parentheses; commands are '(...)'")
                inner.items.append(token)
        if stack:
            # The last outermost one swallowed all that follows, and so it is the one to look at.
            last = outermost.items[-1]
            assert isinstance(last, Parenthesis)
            raise self.error(last, "unbalanced '(': the file ends before it is closed; it is cut off or lacks a ')'")
        return [group for group in outermost.items if isinstance(group, Parenthesis)]

    def integers(self, text: str, group: Parenthesis) -> tuple[int, ...]:
        """Read a shape or indices, without their brackets."""
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        if not all(re.fullmatch(r"\d{1,9}", part, re.ASCII) for part in parts):
            raise self.error(group, f"[{text}] is not a list of whole numbers with commas between them; correct it")
        return tuple(map(int, parts))
