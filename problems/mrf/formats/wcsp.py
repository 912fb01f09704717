"""Weighted constraint satisfaction problems, toulbar2's ``.wcsp``.

``name n labels constraints top``, the numbers of labels (negative for an interval: -k stands for 0 .. k-1),
then the constraints, all words and whole numbers:

``order i j .. default entries``, entries ``a b .. cost``
    A table; all other labels have the default cost.  A negative order says that others may share the table:
    the first is number 1.
``order i j .. default -k``
    The table of the k-th constraint that is shared.
``order i j .. -1 name parameters``
    A global cost function (:mod:`blocklp.problems.mrf.cost_networks.global_functions`), an automaton, a grammar or
    a comparison (:mod:`blocklp.problems.mrf.cost_networks.languages`), or ``wcsp least top 0 0`` and a problem of
    this format on the same variables, whose cost must be at least ``least`` and below ``top``.

Costs of ``top`` or more forbid, and so do those that add up to as much.

Source: the description of the format at toulbar2.github.io.
"""

from __future__ import annotations

import math
import re

import numpy as np

from blocklp.problems.formats import InputFile
from blocklp.problems.mrf.cost_networks.cost_network import WHOLE_TABLE, CostNetwork
from blocklp.problems.mrf.cost_networks.counting import Piece, Tabulated
from blocklp.problems.mrf.cost_networks.global_functions import FUNCTIONS, Parameters
from blocklp.problems.mrf.cost_networks.languages import ARITHMETIC, LANGUAGES
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import EXACT, MOST_VARIABLES, Words, label_counts, table_size
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

SUFFIXES = (".wcsp",)

JOINED = re.compile(r"\d+-\d+")
"""Two numbers without a blank between them, as C++ reads them."""

NESTED = "wcsp"


def read(file: InputFile, whole_table: int = WHOLE_TABLE) -> Mrf:
    """Read an energy.

    Parameters
    ----------
    file : InputFile
        The file.
    whole_table : int
        Entries up to which a global cost function is one table, if it could also be a chain of smaller ones.
    """
    words = Words.of(file.lines)
    _separate(words)
    network = _problem(words, whole_table)
    words.end()
    return network.finish(file.name)


def _separate(words: Words) -> None:
    """Cut words like ``29-1`` in two."""
    for at in range(len(words.texts) - 1, -1, -1):
        text = words.texts[at]
        if "-" in text and JOINED.fullmatch(text):
            first, second = text.split("-")
            words.texts[at : at + 1] = [first, f"-{second}"]
            words.lines.insert(at, words.lines[at])


def _problem(words: Words, whole_table: int) -> CostNetwork:
    """Read a problem, up to its last constraint."""
    words.word("the name of the problem")
    n = words.integer("the number of variables", least=1)
    largest = words.integer("the largest number of labels", least=1)
    constraints = words.integer("the number of constraints")
    top = words.integer("the upper bound", least=1)
    network = CostNetwork(words.allowance, label_counts(words, n, largest, intervals=True), top, whole_table=whole_table)
    shared: list[FloatArray] = []
    pieces: list[Piece] = []
    for _ in range(constraints):
        order = words.integer("the number of variables of a constraint", least=-MOST_VARIABLES)
        begin = words.at
        scope = words.integers(abs(order), "a variable of a constraint", most=n - 1)
        if len(set(scope)) < len(scope):
            raise words.error(begin, "this constraint names a variable twice; name each once")
        if words.at < len(words.texts) and words.texts[words.at] == "-1":
            words.take(1, "a default cost")
            if order < 0:
                raise words.error(begin - 1, "only tables are shared; give the number of variables without sign")
            pieces += _function(words, scope, network)
            continue
        table = _table(words, scope, network, shared)
        if order < 0:
            shared.append(table)
        network.add(scope, table)
    for piece in pieces:
        piece.add(network)
    return network


def _cost(words: Words, top: float, what: str) -> float:
    value = words.integer(what)
    if value < top and value > EXACT:
        raise words.error(words.at - 1, f"costs above {EXACT} are rounded in float64; divide all of them by a constant")
    return float(value) if value < top else math.inf


def _table(words: Words, scope: list[int], network: CostNetwork, shared: list[FloatArray]) -> FloatArray:
    """Read a table, or find the shared one."""
    if len(scope) > MOST_VARIABLES:
        raise words.error(words.at - 1, f"a table has at most {MOST_VARIABLES} variables; split the constraint")
    default = _cost(words, network.top, "the default cost")
    shape = network.sizes(scope)
    table_size(words, shape)
    entries = words.integer("the number of entries of a constraint", least=-len(shared))
    if entries < 0:
        table = shared[-entries - 1]
        if list(table.shape) != shape:
            raise words.error(words.at - 1, f"the shared table has labels {list(table.shape)}, this constraint {shape}; correct one")
        return table
    table = np.full(shape, default)
    if _filled(words, table, entries, network.top):
        return table
    for _ in range(entries):
        labels = [words.integer("a label", most=size - 1) for size in shape]
        table[tuple(labels)] = _cost(words, network.top, "a cost")
    return table


def _filled(words: Words, table: FloatArray, entries: int, top: float) -> bool:
    """Read all entries of a table at once; False, and nothing read, if one of them is wrong."""
    width = table.ndim + 1
    texts = words.texts[words.at : words.at + entries * width]
    if len(texts) < entries * width or not entries:
        return False
    # Digits only: int() alone would also take signs, blanks and "1_000".
    joined = "".join(texts)
    if not (joined.isascii() and joined.isdigit()) or max(map(len, texts)) > 18:
        return False
    numbers = np.array(list(map(int, texts)), dtype=np.int64).reshape(entries, width)
    labels, costs = numbers[:, :-1], numbers[:, -1]
    if (labels >= np.array(table.shape)).any() or ((costs > EXACT) & (costs < top)).any():
        return False
    words.take(len(texts), "entries")
    flat = np.ravel_multi_index(tuple(labels.T), table.shape) if table.ndim else np.zeros(entries, dtype=np.int64)
    # The last one of several on the same labels counts.
    table.reshape(-1)[flat] = np.where(costs < top, costs, np.inf)
    return True


def _function(words: Words, scope: list[int], network: CostNetwork) -> list[Piece]:
    """Read a function by its name."""
    name = words.word("the name of a function")
    if name == NESTED:
        return [_nested(words, scope, network)]
    known = FUNCTIONS | LANGUAGES | (ARITHMETIC if len(scope) == 2 else {})
    if name not in known:
        raise words.error(words.at - 1, f"this cost function is not read; known are {', '.join(sorted(known))}")
    return known[name](Parameters(name, words, scope, network, network.top))


def _nested(words: Words, scope: list[int], network: CostNetwork) -> Tabulated:
    """Read a problem whose cost is limited."""
    begin = words.at - 1
    least, top = words.integer("the least cost", -EXACT), words.integer("the upper bound", -EXACT)
    words.integers(2, "a flag of the propagation", most=1)
    inner = _problem(words, network.whole_table)
    return limited(words, begin, scope, inner, least, top)


def limited(words: Words, at: int, scope: list[int], inner: CostNetwork, least: float, top: float) -> Tabulated:
    """Return the constraint that another problem on the same variables costs at least ``least`` and less than ``top``.

    Parameters
    ----------
    words, at
        The place of the function, for messages.
    scope : list of int
    inner : CostNetwork
        The problem, whose variables are those of the scope in their order.
    least, top : float
        The limits, in the problem's unit.

    Raises
    ------
    FormatError
        The problem has other variables, or functions that need auxiliary ones.
    """
    if inner.given != len(scope):
        raise words.error(at, f"the nested problem has {inner.given} variables, the scope {len(scope)}; they must be the same")
    if len(inner.counts) > inner.given:
        raise words.error(at, "a nested problem with cost functions on many variables is not read; state them as tables")

    def evaluate(labels: IntArray) -> FloatArray:
        costs = np.full(len(labels), float(inner.constant))
        for part, table in inner.factors:
            costs = costs + table[tuple(labels[:, part].T)]
        return np.where((costs >= least) & (costs < min(top, inner.top)), 0.0, np.inf)

    return Tabulated(f"the nested problem of line {words.lines[at]}", scope, evaluate)
