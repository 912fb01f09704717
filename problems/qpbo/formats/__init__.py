"""Formats of quadratic functions and max-cut graphs, one module each; :func:`blocklp.problems.qpbo.read_qubo` chooses."""
