"""Files of the UAI competitions, ``.uai`` and ``.LG``.

``MARKOV`` (or ``BAYES``), the number of variables, their numbers of labels, the number of factors, a line
``order i j ..`` for each (variables from 0), then for each factor the number of entries and the table, the
last variable fastest.  Entries are potentials, the energy is minus the sum of their logarithms, and zeros
forbid.  In the *log domain* (``.LG``) entries are the logarithms themselves.
"""

from __future__ import annotations

import numpy as np

from blocklp.problems.formats import InputFile
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.words import MOST_VARIABLES, Words, label_counts, table_size

SUFFIXES = (".uai.lg", ".uai", ".lg")


def read(file: InputFile, log: bool | None = None) -> Mrf:
    """Read an energy.

    Parameters
    ----------
    file : InputFile
        The file.
    log : bool, optional
        Whether tables hold logarithms of potentials; by default in ``.LG``.

    Returns
    -------
    Mrf
        The sum of minus the logarithms; infinite where a potential is 0.

    Raises
    ------
    FormatError
        If the file is not of this form, or its tables would take more memory than allowed.
    """
    words = Words.of(file.lines)
    log = file.suffix == ".lg" if log is None else log
    if words.word("the kind of network") not in ("MARKOV", "BAYES"):
        raise words.error(0, "a UAI file begins with MARKOV or BAYES")
    n = words.integer("the number of variables", least=1)
    counts = label_counts(words, n)
    scopes = []
    for _ in range(words.integer("the number of factors")):
        begin = words.at
        order = words.integer("the number of variables of a factor", most=MOST_VARIABLES)
        scopes.append(words.integers(order, "a variable of a factor", most=n - 1))
        if len(set(scopes[-1])) < order:
            raise words.error(begin, "this factor names a variable twice; name each once")
    factors = []
    for scope in scopes:
        shape = [counts[i] for i in scope]
        begin, size = words.at, table_size(words, shape)
        if words.integer("the size of a table") != size:
            raise words.error(begin, f"the variables {scope} of this factor have {size} joint labels; correct the size of its table")
        values = words.numbers(size, "an entry of a table")
        wrong = (values == np.inf) if log else (values < 0) | (values == np.inf)
        if wrong.any():
            allowed = (
                "a logarithm that is finite or -inf" if log else "a potential that is finite and not negative (or pass log=True)"
            )
            raise words.error(words.at - size + int(wrong.argmax()), f"give {allowed}")
        with np.errstate(divide="ignore"):
            energies = -(values if log else np.log(values))
        if not scope and np.isinf(energies).any():
            raise words.error(words.at - 1, "this factor without variables forbids every labelling; leave it out")
        factors.append((scope, energies.reshape(shape)))
    words.end()
    return Mrf(counts, factors, name=file.name)
