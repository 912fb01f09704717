"""Formats of graphs, one module each; :func:`blocklp.problems.mis.read_graph` chooses."""
