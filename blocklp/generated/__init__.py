"""Modules that :mod:`blocklp.kernels.block_source` writes, one for each block type.

They hold the source of these functions and loops over blocks, so that numba can keep what it compiles from
one process to the next.  ``BLOCKLP_CACHE_DIR`` says where; the default is ``blocklp`` in the user's cache
folder.
"""

import os
from pathlib import Path


def folder() -> Path:
    """Where the modules are written."""
    if given := os.environ.get("BLOCKLP_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blocklp"


__path__.append(str(folder()))
