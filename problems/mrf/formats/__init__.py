"""Readers of the file formats of discrete energies, one module a format; :func:`blocklp.problems.mrf.read_mrf` chooses."""
