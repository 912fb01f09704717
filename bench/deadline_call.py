"""One call with a time limit: ``python -m bench.deadline_call NAME SEED SECONDS`` prints JSON.

Importing and building what is given do not count; the call does, with everything that it does.
"""

from __future__ import annotations

import json
import sys
import time
import zlib

import numpy as np
import torch

from bench.soak.clock import CALLS
from bench.soak.trial import Draw
from blocklp.errors import TimeLimitError


def main(name: str, seed: str, seconds: str) -> None:
    """Call, print."""
    torch.set_num_threads(1)
    draw = Draw(np.random.default_rng([zlib.crc32(name.encode()), int(seed)]), 1.0)
    call, limit = CALLS[name](draw), float(seconds)
    began, outcome = time.perf_counter(), "returned"
    try:
        found = call(limit)
        status = getattr(found, "status", None) or getattr(getattr(found, "relaxation", None), "status", "")
        several = status if isinstance(status, list | tuple) else [status]
        outcome = ", ".join(getattr(s, "name", str(s)) for s in several)
    except TimeLimitError:
        outcome = "nothing to return yet"
    print(json.dumps({"seconds": time.perf_counter() - began, "outcome": outcome.lower()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
