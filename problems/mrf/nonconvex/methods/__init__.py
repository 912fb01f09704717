"""Nonconvex methods for Markov random fields, one module each, named as the method is.

A module states ``METHOD``, a function of a :class:`blocklp.problems.mrf.nonconvex.NonconvexRun` whose keyword arguments are the
options of the method, and ``MOST_VARIABLES`` if it takes factors of so many variables at most; there
:func:`blocklp.problems.mrf.nonconvex.minimise` finds it.
"""
