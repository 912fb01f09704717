"""Bayesian networks in the format of Ergo, ``.erg``.

The number of variables, their numbers of values, and a line ``k p_1 .. p_k`` of parents for each; ``/*
Probabilities */``, and for each variable the number of entries and its table given its parents, the variable
itself fastest; then ``/* Names */``, ``/* Labels */`` and what else follows, which does not matter.  The
energy is minus the logarithm of the probability.

Source: the description of the format at graphmod.ics.uci.edu (group/Ergo_file_format).
"""

from __future__ import annotations

import numpy as np

from blocklp.problems.formats import InputFile
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import MOST_VARIABLES, Words, label_counts, table_size

SUFFIXES = (".erg",)


def read(file: InputFile) -> Mrf:
    """Read an energy: see :func:`blocklp.problems.mrf.formats.uai.read`."""
    words = Words.of(file.lines)
    n = words.integer("the number of variables", least=1)
    counts = label_counts(words, n)
    parents = []
    for i in range(n):
        begin = words.at
        parents.append(words.integers(words.integer("the number of parents", most=MOST_VARIABLES - 1), "a parent", most=n - 1))
        if len({i, *parents[-1]}) <= len(parents[-1]):
            raise words.error(begin, "this variable has a parent twice, or itself; name each once")
    for part in ("/*", "probabilities", "*/"):
        if words.word("/* Probabilities */").lower() != part:
            raise words.error(words.at - 1, "/* Probabilities */ should be here")
    factors = []
    for i, above in enumerate(parents):
        scope = [*above, i]
        shape = [counts[k] for k in scope]
        begin, size = words.at, table_size(words, shape)
        if words.integer("the size of a table") != size:
            raise words.error(begin, f"the table of variable {i} has {size} entries; correct the number")
        values = words.numbers(size, "a probability")
        if (wrong := (values < 0) | (values == np.inf)).any():
            raise words.error(words.at - size + int(wrong.argmax()), "a probability is finite and not negative")
        with np.errstate(divide="ignore"):
            factors.append((scope, -np.log(values).reshape(shape)))
    if words.at < len(words.texts) and words.texts[words.at] != "/*":
        words.end()
    return Mrf(counts, factors, name=file.name)
