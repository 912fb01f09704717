"""Gaussian filters on the permutohedral lattice, their ordered form, and exact references."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.oracles.filters.divide_and_conquer import divide_and_conquer as divide_and_conquer
    from blocklp.oracles.filters.gaussian import Gaussian as Gaussian
    from blocklp.oracles.filters.ordered import ordered_error as ordered_error
    from blocklp.oracles.filters.ordered import ordered_filter as ordered_filter
    from blocklp.oracles.filters.permutohedral import Lattice as Lattice
else:
    publish(
        __name__,
        {
            "blocklp.oracles.filters.divide_and_conquer": ["divide_and_conquer"],
            "blocklp.oracles.filters.gaussian": ["Gaussian"],
            "blocklp.oracles.filters.ordered": ["ordered_error", "ordered_filter"],
            "blocklp.oracles.filters.permutohedral": ["Lattice"],
        },
    )
