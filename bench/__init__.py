"""Benchmarks: ``python -m bench list``, ``python -m bench run CASE [--quick]``, ``python -m bench all``.

Passes and seconds stand in columns of their own, rivals run in the same run, and results go to ``docs/benchmarks`` as
JSON and as a table with the command that made them.
"""
