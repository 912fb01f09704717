"""Compiled tables of integer knapsacks: :mod:`blocklp.oracles.knapsack_tables`, compiled on first use."""

from __future__ import annotations

from blocklp.kernels.compiled import kernel
from blocklp.oracles import knapsack_tables

fill = kernel(grain=4)(knapsack_tables.fill)
