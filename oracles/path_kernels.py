"""Compiled paths and flows: :mod:`blocklp.oracles.path_search`, compiled on first use and cached."""

from __future__ import annotations

from blocklp.kernels.compiled import kernel
from blocklp.oracles import path_search

walk = kernel(grain=4)(path_search.walk)
send = kernel(grain=4)(path_search.send)
