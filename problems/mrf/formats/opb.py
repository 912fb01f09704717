"""Pseudo-Boolean optimisation, ``.opb``, and with soft constraints, ``.wbo``.

``* ..`` is a comment; ``min: +1 x1 -2 x2 x3 ..;`` or ``max: ..;`` the objective, if any, whose terms are
products of variables; each other statement ``+1 x1 -2 x2 .. >= 3;`` a linear constraint, by ``>=``, ``<=``,
``=`` or ``!=``.  ``~x1`` is 1 - x1.  ``soft: top;`` (or ``soft: ;``) begins a file where constraints ``[w]
..`` may be violated for w, all together for less than ``top``.

Variables are numbered in the order of their first occurrence; label 1 is 1.  The energy is the objective, or
minus it where it is maximised.

Source: O. Roussel and V. Manquinho, Input/output format and solver requirements for the competitions of
pseudo-Boolean solvers (2012); the documentation of the format at toulbar2.github.io.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.formats import InputFile
from blocklp.problems.lines import NODE, WORD, Lines
from blocklp.problems.mrf.cost_networks.cost_network import CostNetwork
from blocklp.problems.mrf.cost_networks.counting import Counted
from blocklp.problems.mrf.cost_networks.global_functions import FARTHEST
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import Words
from blocklp.problems.qpbo.arrays import IntArray

SUFFIXES = (".opb", ".wbo")

TOKEN = re.compile(r"(?:min|max|soft):|\[|\]|;|>=|<=|!=|=|[+-](?!\d)|[^\s;=<>!\[\]]+")
OPERATORS: dict[str, Callable[[int, int], bool]] = {
    ">=": lambda total, side: total >= side,
    "<=": lambda total, side: total <= side,
    "=": lambda total, side: total == side,
    "!=": lambda total, side: total != side,
}

Term = tuple[int, list[str]]
"""A coefficient and the literals of its product."""


def read(file: InputFile) -> Mrf:
    """Read an energy: see :func:`blocklp.problems.mrf.formats.uai.read`."""
    words = _words(file.lines)
    network, known, sign = CostNetwork(words.allowance, []), dict[str, int](), 1
    first = words.texts[0] if words.texts else ""
    if first == "soft:":
        words.take(1, "soft:")
        if words.texts[words.at : words.at + 1] != [";"]:
            network.top = words.integer("the cost that is forbidden", 1)
        _semicolon(words)
    elif first in ("min:", "max:"):
        words.take(1, "the objective")
        sign = -1 if first == "max:" else 1
        while (term := _term(words)) is not None:
            _add_term(network, known, words, sign * term[0], term[1])
        _semicolon(words)
    constraints: list[Counted] = []
    while words.at < len(words.texts):
        constraints += _constraint(network, known, words, first == "soft:")
    if not network.counts:
        raise FormatError(f"{words.path}: no variable; an instance needs at least one")
    network.given = len(network.counts)
    network.allowance.take((NODE + 2 * 8 * 2) * network.given, f"{network.given} variables")
    for constraint in constraints:
        constraint.add(network)
    return network.finish(file.name)


def _words(lines: Lines) -> Words:
    """Return the words of a file, operators and signs apart, joined where a sign is followed by its number."""
    texts: list[str] = []
    numbers: list[int] = []
    for row, fields in enumerate(lines.fields):
        if fields[0].startswith("*"):
            continue
        for found in TOKEN.findall(" ".join(fields)):
            if texts and texts[-1] in ("+", "-") and found.isdigit():
                texts[-1] += found
            else:
                texts.append(found)
                numbers.append(lines.numbers[row])
        lines.allowance.check()
    lines.allowance.take(WORD * max(len(texts) - sum(map(len, lines.fields)), 0), "its words")
    return Words(lines.allowance, texts, numbers)


def _semicolon(words: Words) -> None:
    if words.word("a semicolon") != ";":
        raise words.error(words.at - 1, "a semicolon should end the statement here")


def _is_number(text: str) -> bool:
    return text.lstrip("+-")[:1].isdigit()


def _number(words: Words) -> int:
    """Return the next whole number, which may have a plus sign."""
    text = words.texts[words.at] if words.at < len(words.texts) else ""
    if text.startswith("+"):
        words.texts[words.at] = text[1:]
    return words.integer("a whole number", -FARTHEST, FARTHEST)


def _term(words: Words) -> Term | None:
    """Return the next coefficient and its literals; None at the end of a sum."""
    if words.at >= len(words.texts):
        words.take(1, "the end of a statement")
    text = words.texts[words.at]
    if text == ";" or text in OPERATORS:
        return None
    coefficient = 1
    if _is_number(text):
        coefficient = _number(words)
    elif text in ("+", "-"):
        words.take(1, "a sign")
        coefficient = -1 if text == "-" else 1
    literals = []
    while (
        words.at < len(words.texts)
        and not _is_number(words.texts[words.at])
        and words.texts[words.at] not in (";", "+", "-", *OPERATORS)
    ):
        literal = words.word("a variable")
        if literal in ("[", "]", "~", "min:", "max:", "soft:"):
            raise words.error(words.at - 1, "the name of a variable should be here")
        literals.append(literal)
    return coefficient, literals


def _variable(network: CostNetwork, known: dict[str, int], literal: str) -> tuple[int, bool]:
    """Return the number of a literal's variable, and whether it is negated."""
    name = literal.removeprefix("~")
    if name not in known:
        known[name] = len(network.counts)
        network.counts.append(2)
    return known[name], literal != name


def _product(network: CostNetwork, known: dict[str, int], literals: list[str]) -> dict[int, bool] | None:
    """Return the variables of a product and whether each is negated; None if it is 0."""
    found: dict[int, bool] = {}
    zero = False
    for literal in literals:
        variable, negated = _variable(network, known, literal)
        zero |= found.setdefault(variable, negated) != negated
    return None if zero else found


def _add_term(network: CostNetwork, known: dict[str, int], words: Words, coefficient: int, literals: list[str]) -> None:
    """Add a term of the objective."""
    product = _product(network, known, literals)
    if product is None:
        return
    weights = [np.array([1, 0] if negated else [0, 1]) for negated in product.values()]
    size = len(weights)
    line = words.lines[words.at - 1]
    Counted(f"the product of line {line}", list(product), weights, lambda ones: float(coefficient) if ones == size else 0.0).add(
        network
    )


def _constraint(network: CostNetwork, known: dict[str, int], words: Words, soft: bool) -> list[Counted]:
    """Read a constraint."""
    begin, price = words.at, math.inf
    if words.texts[words.at] == "[":
        if not soft:
            raise words.error(words.at, "soft constraints need a first statement 'soft: top;'")
        words.take(1, "a bracket")
        price = float(words.integer("the cost of a violation", 1, FARTHEST))
        if words.word("a bracket") != "]":
            raise words.error(words.at - 1, "the bracket of the cost should be closed here")
    side, weights = 0, dict[int, int]()
    while (term := _term(words)) is not None:
        coefficient, literals = term
        if len(literals) != 1:
            problem = "products are read in the objective only; give each term of a constraint one variable"
            raise words.error(words.at - 1, problem)
        variable, negated = _variable(network, known, literals[0])
        side -= coefficient if negated else 0
        weights[variable] = weights.get(variable, 0) + (-coefficient if negated else coefficient)
    operator = words.word("an operator")
    if operator not in OPERATORS:
        raise words.error(words.at - 1, "an operator >=, <=, = or != should be here")
    side += _number(words)
    _semicolon(words)
    holds = OPERATORS[operator]
    arrays: list[IntArray] = [np.array([0, w]) for w in weights.values()]
    name = f"the constraint of line {words.lines[begin]}"
    return [Counted(name, list(weights), arrays, lambda total: 0.0 if holds(total, side) else price)]
