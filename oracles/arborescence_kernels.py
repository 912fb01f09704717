"""Compiled arborescences: :mod:`blocklp.oracles.arborescence_search`, compiled on first use and cached."""

from __future__ import annotations

from blocklp.kernels.compiled import kernel
from blocklp.oracles import arborescence_search

contract = kernel(grain=4)(arborescence_search.contract)
