"""Modules that :mod:`blocklp.kernels.prox_source` writes, one for each proximal point of a block.

They hold the source of the function and a loop over blocks, so that numba can keep what it compiles from one
process to the next.  ``BLOCKLP_CACHE_DIR`` says where; the default is ``blocklp`` in the user's cache folder.
"""

import os
from pathlib import Path


def folder() -> Path:
    """Where the modules are written."""
    if given := os.environ.get("BLOCKLP_CACHE_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blocklp"


__path__.append(str(folder()))
