"""Where the data sets of the benchmarks are."""

from __future__ import annotations

import os
from pathlib import Path

from blocklp.problems.datasets import located
from blocklp.problems.datasets.catalogue import VARIABLE

BESIDE = Path(__file__).parents[2] / "shared" / "data"
"""A folder of all data sets beside the checkout, which is taken unless ``BLOCKLP_DATA`` names one."""


def data(path: str) -> Path:
    """A file or folder of the data sets, such as ``qpbo/maxcut/G1.txt``.

    Raises
    ------
    FileNotFoundError
        It is not there; the message says which command fetches it.
    """
    return located(path, BESIDE if BESIDE.is_dir() and not os.environ.get(VARIABLE) else None)
