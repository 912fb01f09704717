"""Compiled tables of integer knapsacks: :mod:`blocklp.oracles.knapsack_tables`, compiled on first use."""

from __future__ import annotations

from blocklp.kernels.compiled import kernel
from blocklp.oracles import knapsack_tables

fill = kernel(grain=4)(knapsack_tables.fill)
fix_each = kernel(grain=1)(knapsack_tables.fix_each)
