"""Compiled minimum cuts: :mod:`blocklp.oracles.cut_search`, compiled on first use and cached."""

from __future__ import annotations

from blocklp.kernels.compiled import kernel
from blocklp.oracles import cut_search

separate = kernel(grain=4)(cut_search.separate)
