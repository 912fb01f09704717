"""Cost function networks, toulbar2's ``.cfn`` (and ``.json``).

::

    { problem: { name: example, mustbe: "<12.50" },
      variables: { x: [a b c], y: 2, z: -100 },
      functions: {
        f: { scope: [x y], costs: [0.5 1 2 -3.25 0 inf] },
        g: { scope: [y z], defaultcost: 0, costs: [0 1 7.5] },
        h: { scope: [x z], costs: other },
        k: { scope: [x y z], type: walldiff, params: { metric: hard, cost: inf } } } }

JSON in which quotes, commas and colons may be missing, ``{}`` and ``[]`` are one, and the order of fields is
fixed; comments are lines of ``#`` and what follows ``//``.  ``<`` minimises, ``>`` maximises (the energy is
then minus the value); values from the bound on are forbidden.  The bound's decimals are those of all costs,
further ones are cut off.  Variables and functions may have no names; variables and values are named or
numbered from 0, and a negative number of values -k stands for 0 .. k-1.  Costs are a table, the last variable
fastest, or values and a cost for each entry that is not the default, or the name of a function with the same
table.

Parameters of functions are listed in :mod:`blocklp.problems.mrf.cost_networks.cfn_parameters`.

Source: the documentation of the format at toulbar2.github.io.
"""

from __future__ import annotations

import math
import re

import numpy as np

from blocklp.problems.formats import InputFile
from blocklp.problems.lines import NODE
from blocklp.problems.mrf.cost_networks.cfn_fields import MOST_DIGITS, NUMBER, OPEN, FieldReader, cfn_words
from blocklp.problems.mrf.cost_networks.cfn_parameters import NESTED, TEMPLATES, parameters
from blocklp.problems.mrf.cost_networks.counting import Piece
from blocklp.problems.mrf.cost_networks.global_functions import FUNCTIONS, Parameters
from blocklp.problems.mrf.cost_networks.languages import ARITHMETIC, LANGUAGES
from blocklp.problems.mrf.formats.wcsp import limited
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import MOST_VARIABLES, Words, table_size
from blocklp.problems.qpbo.arrays import FloatArray

SUFFIXES = (".cfn", ".json")


class CfnReader(FieldReader):
    """A network while it is read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tables: dict[str, FloatArray] = {}
        self.sharing: list[tuple[str, int, list[int]]] = []
        self.functions: list[tuple[str, Words, list[int]]] = []
        self.pieces: list[Piece] = []

    def read(self) -> None:
        """Read a network, its outer brackets included."""
        self.open("a network")
        self.tag("problem")
        self.open("the problem")
        self.tag("name")
        self.words.word("the name of the problem")
        self.tag("mustbe")
        self._bound()
        self.close("the problem")
        self.tag("variables")
        self.open("the list of variables")
        while self.until_closed():
            self._variable()
        if not self.costs.counts:
            raise self.words.error(self.words.at - 1, "no variable; a network needs at least one")
        self.costs.given = len(self.costs.counts)
        counts = self.costs.counts
        self.words.allowance.take(NODE * len(counts) + 2 * 8 * len(counts) * max(counts), "the variables")
        self.tag("functions")
        self.open("the list of functions")
        while self.until_closed():
            self._function()
        self.close("the network")
        self._share()
        self._globals()

    def _bound(self) -> None:
        text = self.words.word("the bound")
        found = NUMBER.fullmatch(text[1:])
        if text[0] not in "<>" or found is None or not (found[2] or found[3]):
            raise self.words.error(self.words.at - 1, "the bound is < or > and a decimal number, without a blank; correct it")
        self.costs.digits = len(found[3] or "")
        if self.costs.digits > MOST_DIGITS:
            raise self.words.error(self.words.at - 1, f"costs have at most {MOST_DIGITS} decimals; give the bound fewer")
        value = int((found[2] or "0") + (found[3] or ""))
        self.sign = 1 if text[0] == "<" else -1
        self.costs.top = self.sign * (-value if found[1] == "-" else value)

    def _variable(self) -> None:
        begin, name = self.words.at, str(len(self.costs.counts))
        named = self.peek() not in OPEN and re.fullmatch(r"[+-]?\d+", self.peek()) is None
        if named:
            name = self.words.word("a variable")
        if name in self.variables:
            raise self.words.error(begin, "a second variable of this name; rename one")
        labels: dict[str, int] = {}
        if self.peek() in OPEN:
            self.open("a domain")
            while self.until_closed():
                label = self.words.word("a value")
                if label in labels:
                    raise self.words.error(self.words.at - 1, "this value is listed twice; name each once")
                labels[label] = len(labels)
            size = len(labels)
        else:
            size = abs(self.words.integer("the number of values", -(10**9), 10**9))
        if size == 0:
            raise self.words.error(self.words.at - 1, "a variable has at least one value")
        self.variables[name] = len(self.costs.counts)
        self.values.append(labels)
        self.costs.counts.append(size)

    def _function(self) -> None:
        self.words.allowance.check()
        begin, name = self.words.at, ""
        if self.peek() not in OPEN:
            name = self.words.word("the name of a function")
        self.open("a function")
        self.tag("scope")
        self.open("a scope")
        scope = []
        while self.until_closed():
            scope.append(self.variable())
        if len(set(scope)) < len(scope):
            raise self.words.error(begin, "this function names a variable twice; name each once")
        default, kind = None, self.tag("defaultcost", "costs", "type")
        if kind == "defaultcost" or (not kind and NUMBER.fullmatch(self.peek() or "x") is not None):
            default = self.cost("the default cost")
            kind = self.tag("costs", "type")
        if kind != "type" and self.peek() in OPEN:
            table = self._table(scope, default)
            self.costs.add(scope, table)
            if name:
                self.tables[name] = table
        else:
            at, word = self.words.at, self.words.word("the type of a function, or the name of one")
            if kind == "type" or (not kind and self.peek() in OPEN):
                self._typed(word, at, scope)
            else:
                self.sharing.append((word, at, scope))
        self.close("a function")

    def _table(self, scope: list[int], default: float | None) -> FloatArray:
        if len(scope) > MOST_VARIABLES:
            raise self.words.error(self.words.at, f"a table has at most {MOST_VARIABLES} variables; split the function")
        shape = self.costs.sizes(scope)
        size = table_size(self.words, shape)
        self.open("a table")
        if default is None:
            values = np.array([self.cost("a cost") for _ in range(size)], dtype=np.float64)
            self.close(f"a table of {size} costs")
            return values.reshape(shape)
        table = np.full(shape, default)
        while self.until_closed():
            labels = tuple(self.value(i) for i in scope)
            table[labels] = self.cost("a cost")
        return table

    def _share(self) -> None:
        """Add the functions that have the table of another one."""
        for name, at, scope in self.sharing:
            if name not in self.tables:
                raise self.words.error(at, "no function of this name has a table; correct the name")
            if list(self.tables[name].shape) != self.costs.sizes(scope):
                raise self.words.error(at, "the table of that function has other numbers of labels; give this one its own")
            self.costs.add(scope, self.tables[name])

    def _typed(self, name: str, at: int, scope: list[int]) -> None:
        """Read the parameters of a function, for later."""
        if name != NESTED and name not in TEMPLATES and not (name in ARITHMETIC and len(scope) == 2):
            known = ", ".join(sorted({*(key for key in TEMPLATES if " " not in key), *ARITHMETIC, NESTED}))
            raise self.words.error(at, f"this cost function is not read; known are {known}")
        if self.sign < 0 and (name == NESTED or name in ARITHMETIC):
            raise self.words.error(at, "this function is not read in maximisation; negate the costs and minimise")
        if self.costs.digits and name in ARITHMETIC:
            raise self.words.error(at, "differences of values are whole costs, and those of this file are decimals; state a table")
        self.tag("params")
        self.open("the parameters")
        if name == NESTED:
            self.tag("cfn")
            inner = CfnReader(self.words)
            inner.read()
            self.tag("lb")
            least = inner.units("the least cost")
            self.tag("ub")
            top = inner.units("the upper bound")
            for flag in ("duplicatehard", "strongduality"):
                self.tag(flag)
                self.words.integer(f"the flag {flag}", most=1)
            self.pieces.append(limited(self.words, at, scope, inner.costs, least, top))
        else:
            flat = parameters(self, name, len(scope))
            self.functions.append((name, Words(self.words.allowance, flat, [self.words.lines[at]] * len(flat)), scope))
        self.close("the parameters")

    def _globals(self) -> None:
        """Add the functions that have a name, when what all others cost at least is known."""
        negative = any(text.startswith("-") for name, flat, _ in self.functions if name == "wregular" for text in flat.texts)
        barrier = math.inf if negative else self.costs.top - self.costs.floor()
        for name, flat, scope in self.functions:
            read = (FUNCTIONS | LANGUAGES | ARITHMETIC)[name]
            self.pieces += read(Parameters(name, flat, scope, self.costs, barrier))
            flat.end()
        for piece in self.pieces:
            piece.add(self.costs)


def read(file: InputFile) -> Mrf:
    """Read an energy: see :func:`blocklp.problems.mrf.formats.uai.read`."""
    network = CfnReader(cfn_words(file.lines))
    network.read()
    network.words.end()
    return network.costs.finish(file.name)
