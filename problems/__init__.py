"""Problem modules: readers, models, primal heuristics, exact solvers; and the command line over them, ``command_line``."""
