"""Problem modules: readers, models, primal heuristics and the command line."""
