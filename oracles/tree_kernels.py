"""Compiled spanning trees: :mod:`blocklp.oracles.tree_search`, compiled on first use and cached."""

from __future__ import annotations

from blocklp.kernels.compiled import kernel
from blocklp.oracles import tree_search

grow = kernel(grain=4)(tree_search.grow)
