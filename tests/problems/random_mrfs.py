"""Random Markov random fields that several test files use."""

import itertools

import numpy as np

from blocklp.problems.mrf import Mrf


def random_mrf(seed, n=5, most=3, order=2, hard=0.0, least=1, density=0.7):
    """Whole-numbered tables, some entries infinite, on label counts ``least .. most``."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(least, most + 1, n)
    factors = []
    for size in range(1, order + 1):
        for scope in itertools.combinations(range(n), size):
            if rng.random() < (density if size < 3 else 0.3):
                table = rng.integers(-9, 10, counts[list(scope)]).astype(float)
                factors.append((scope, np.where(rng.random(table.shape) < hard, np.inf, table)))
    return Mrf(counts, factors, constant=float(rng.integers(-5, 6)))


def labellings(mrf):
    """All of them, ``(labellings, n)``."""
    return np.array(list(itertools.product(*(range(count) for count in mrf.counts))))
