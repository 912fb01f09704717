"""The engine: passes of a method, and of every instance the best bound, the best primal point and reasons to stop."""
