"""Words of ``.cfn`` files: brackets, names of fields, decimal costs, variables and values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from blocklp.errors import FormatError
from blocklp.problems.lines import STEP, WORD, Lines
from blocklp.problems.mrf.cost_networks.cost_network import CostNetwork
from blocklp.problems.mrf.words import EXACT, Words

TOKEN = re.compile(r"[][{}]|[^][{},:\"\s]+")
NUMBER = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?")
OPEN, CLOSE = "{[", "}]"
MOST_DIGITS = 15
"""Decimals of costs at most: their unit is a whole power of ten that float64 holds."""


def cfn_words(lines: Lines) -> Words:
    """Return the words and brackets of a file without comments, quotes, commas and colons.

    Raises
    ------
    FormatError
        There is none.
    """
    texts: list[str] = []
    numbers: list[int] = []
    for row, fields in enumerate(lines.fields):
        if not row % STEP:
            lines.allowance.check()
        if fields[0].startswith("#"):
            continue
        for word in fields:
            found = TOKEN.findall(word.split("//")[0])
            lines.allowance.take(WORD * max(len(found) - 1, 0), "its words")
            texts += found
            numbers += [lines.numbers[row]] * len(found)
            if "//" in word:
                break
    if not texts:
        raise FormatError(f"{lines.path}: the file is empty; fetch it again")
    return Words(lines.allowance, texts, numbers)


@dataclass
class FieldReader:
    """The words of a network, and what has been declared.

    Attributes
    ----------
    words : Words
        The words of the file, without quotes, commas and colons.
    sign : int
        -1 if the file maximises.
    """

    words: Words
    sign: int = 1
    variables: dict[str, int] = field(default_factory=dict)
    values: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.costs = CostNetwork(self.words.allowance, [])

    def peek(self) -> str:
        """Return the next word without taking it; empty at the end."""
        return self.words.texts[self.words.at] if self.words.at < len(self.words.texts) else ""

    def open(self, what: str) -> None:
        """Take an opening bracket."""
        if self.words.word(what) not in OPEN:
            raise self.words.error(self.words.at - 1, f"{what} begins with a bracket")

    def close(self, what: str) -> None:
        """Take a closing bracket."""
        if self.words.word(f"the end of {what}") not in CLOSE:
            raise self.words.error(self.words.at - 1, f"{what} should end here with a bracket; correct what comes before")

    def tag(self, *names: str) -> str:
        """Take the name of a field, if it is there."""
        if self.peek() in names:
            return self.words.word("a field")
        return ""

    def until_closed(self) -> bool:
        """Whether something is left within the bracket; takes the closing one."""
        if not self.peek():
            self.words.take(1, "a closing bracket")
        if self.peek() in CLOSE:
            self.words.take(1, "a bracket")
            return False
        return True

    def units(self, what: str) -> int | float:
        """Return the next cost in whole units; further decimals are cut off."""
        text = self.words.word(what)
        if text == "inf":
            return math.inf
        found = NUMBER.fullmatch(text)
        if found is None or not (found[2] or found[3]):
            raise self.words.error(self.words.at - 1, f"not a decimal number; {what} should be here")
        digits = (found[3] or "").ljust(self.costs.digits, "0")[: self.costs.digits]
        value = int((found[2] or "0") + digits)
        if value > EXACT and self.costs.rounded is None:
            unit = f" of {10.0**-self.costs.digits:g}" if self.costs.digits else ""
            problem = f"more than {EXACT} units{unit}, which float64 rounds; give the bound fewer decimals, or write inf"
            self.costs.rounded = self.words.error(self.words.at - 1, problem)
        return -value if found[1] == "-" else value

    def cost(self, what: str) -> float:
        """Return the next cost of a table, as an energy."""
        value = self.units(what)
        return math.inf if value == math.inf else float(self.sign * value)

    def variable(self) -> int:
        """Return the next variable, by name or number."""
        text = self.words.word("a variable")
        found = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else self.variables.get(text, -1)
        if not 0 <= found < len(self.costs.counts):
            raise self.words.error(self.words.at - 1, "no such variable; declare it before")
        return found

    def value(self, variable: int) -> int:
        """Return the next value of a variable, by name or number."""
        text, size = self.words.word("a value"), self.costs.counts[variable]
        known = self.values[variable]
        found = int(text) if text.isdecimal() and text.isascii() and len(text) < 10 else known.get(text, -1)
        if not 0 <= found < size:
            raise self.words.error(self.words.at - 1, f"variable {variable} has no such value; it has {size}")
        return found
