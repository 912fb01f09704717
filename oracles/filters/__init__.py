"""Gaussian filters on the permutohedral lattice, their ordered form, and exact references."""
