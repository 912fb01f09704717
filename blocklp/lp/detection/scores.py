"""By what structures are compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blocklp.errors import OptionError
from blocklp.lp.detection.pattern import Pattern, Split
from blocklp.lp.detection.row_classes import Form, RowFacts

EQUAL_COEFFICIENTS = (Form.PARTITION, Form.PACKING, Form.COVERING, Form.EQUAL)

Score = Callable[[Pattern, RowFacts, Split], float]


def white(pattern: Pattern, facts: RowFacts, found: Split) -> float:
    """White area, less where one block has most of the entries.

    Parameters
    ----------
    pattern, facts : Pattern, RowFacts
        Nonzeros of the matrix, and what its rows are like.
    found : Split
        The structure.

    Returns
    -------
    float
        The larger, the better.
    """
    return found.score


def set_partitioning(pattern: Pattern, facts: RowFacts, found: Split) -> float:
    """GCG's default score ``spfwh``, "ppc-max-white".

    Half of the white area once linking columns are copied into the blocks (:func:`foreseen_white_area`), and
    one half more where there are rows of the master, all with equal coefficients, and several blocks.

    Parameters
    ----------
    pattern, facts, found
        As in :func:`white`.

    Returns
    -------
    float
        The larger, the better.
    """
    forms = facts.form[(found.row_block < 0) & (facts.form != Form.EMPTY)]
    reward = found.blocks > 1 and len(forms) > 0 and bool(np.isin(forms, EQUAL_COEFFICIENTS).all())
    return 0.5 * foreseen_white_area(pattern, found) + 0.5 * reward


def foreseen_white_area(pattern: Pattern, found: Split) -> float:
    """White area of the matrix in which each block has copies of the linking columns that it uses.

    Each copy adds a column, and a row of the master that makes it equal (GCG's ``score_forswh.cpp``).
    """
    m, n = pattern.shape
    block, column = found.row_block[pattern.rows], pattern.columns
    outside = (block >= 0) & (found.column_block[column] < 0)
    copies = np.unique(block[outside] * n + column[outside]) // max(n, 1)
    high = np.bincount(found.row_block[found.row_block >= 0], minlength=found.blocks).astype(np.float64)
    wide = np.bincount(found.column_block[found.column_block >= 0], minlength=found.blocks)
    wide = wide + np.bincount(copies, minlength=found.blocks)
    height, width = float(m + len(copies)), float(n + len(copies))
    masters = float((found.row_block < 0).sum() + len(copies))
    return 1.0 - (float(high @ wide) + masters * width) / (height * width) if m and n else 0.0


SCORES: dict[str, Score] = {"white": white, "spfwh": set_partitioning}


def score_of(name: str) -> Score:
    """Return a score by its name.

    Raises
    ------
    OptionError
        If there is none.
    """
    if name not in SCORES:
        raise OptionError(f"score is {name!r}; it must be one of {', '.join(map(repr, SCORES))}")
    return SCORES[name]
