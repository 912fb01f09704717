"""Satisfiability of clauses, ``.cnf``, and its weighted form, ``.wcnf``.

``p cnf n m``
    m clauses ``1 -2 .. 0``; each one that is violated costs 1.
``p wcnf n m top``
    m clauses ``w 1 -2 .. 0``; w or, where it is ``top`` or more, a hard clause.  Without ``top`` all are soft.
no line of ``p``
    ``h 1 -2 .. 0`` for a hard clause, otherwise ``w 1 -2 .. 0``; the variables are those named (from 2022).

Lines of ``c`` are comments, ``%`` ends a file.  Label 1 is true.  The energy is the weight of the violated
clauses; all that reach ``top`` together are forbidden.

Source: the rules of the MaxSAT evaluations, maxsat-evaluations.github.io.
"""

from __future__ import annotations

import math

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.formats import InputFile
from blocklp.problems.lines import NODE
from blocklp.problems.mrf.cost_networks.cost_network import CostNetwork
from blocklp.problems.mrf.cost_networks.counting import Counted
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import EXACT, Words

SUFFIXES = (".cnf", ".wcnf")

MOST = 10**9
"""Variables at most, so that their numbers are numbers."""


def read(file: InputFile) -> Mrf:
    """Read an energy: see :func:`blocklp.problems.mrf.formats.uai.read`."""
    lines = file.lines
    kept = [row for row, fields in enumerate(lines.fields) if not fields[0].startswith("c")]
    end = next((k for k, row in enumerate(kept) if lines.fields[row][0] == "%"), len(kept))
    words = Words.of(lines.select(kept[:end]))
    if not words.texts:
        raise FormatError(f"{lines.path}: no clause; the file is empty")
    header, kind, n, announced, top = words.texts[0] == "p", "", 0, 0, math.inf
    if header:
        words.take(1, "p")
        kind = words.word("cnf or wcnf")
        if kind not in ("cnf", "wcnf"):
            raise words.error(words.at - 1, "a file of clauses begins with 'p cnf' or 'p wcnf'")
        n = words.integer("the number of variables", most=MOST)
        announced = words.integer("the number of clauses")
        if kind == "wcnf" and words.at < len(words.texts) and words.lines[words.at] == words.lines[0]:
            top = _weight(words)
    clauses: list[tuple[float, list[int], int]] = []
    while words.at < len(words.texts):
        line = words.lines[words.at]
        hard = not header and words.texts[words.at] == "h"
        if hard:
            words.take(1, "h")
        weight = math.inf if hard else 1 if kind == "cnf" else _weight(words)
        literals = []
        while literal := words.integer("a literal, or 0 at the end of a clause", -n if header else -MOST, n if header else MOST):
            literals.append(literal)
        clauses.append((weight if weight < top else math.inf, literals, line))
    if header and len(clauses) != announced:
        raise FormatError(
            f"{words.path}: {announced} clauses are announced and {len(clauses)} follow; the file is cut off or miscounted"
        )
    n = n if header else max((abs(k) for _, literals, _ in clauses for k in literals), default=0)
    if n == 0:
        raise FormatError(f"{words.path}: no variable; an instance needs at least one")
    words.allowance.take((NODE + 2 * 8 * 2) * n, f"{n} variables")
    network = CostNetwork(words.allowance, [2] * n, top)
    for weight, literals, line in clauses:
        _clause(network, weight, literals, line)
    return network.finish(file.name)


def _weight(words: Words) -> float:
    """Return the next weight; numbers beyond those of float64 are hard ones in all files known."""
    text = words.word("a weight")
    if not (text.isascii() and text.isdigit() and len(text) <= 40):
        raise words.error(words.at - 1, "not a whole number; a weight should be here")
    value = int(text)
    if EXACT < value < 2**63 - 2**54:
        raise words.error(words.at - 1, f"weights above {EXACT} are rounded in float64; divide all of them by a constant")
    return float(value) if value <= EXACT else math.inf


def _clause(network: CostNetwork, weight: float, literals: list[int], line: int) -> None:
    """Add the cost of violating a clause."""
    given = set(literals)
    if any(-k in given for k in given):
        return
    # True literals count one each.
    scope = [abs(k) - 1 for k in sorted(given, key=abs)]
    weights = [np.array([0, 1] if k > 0 else [1, 0]) for k in sorted(given, key=abs)]
    Counted(f"the clause of line {line}", scope, weights, lambda true: 0.0 if true else weight).add(network)
