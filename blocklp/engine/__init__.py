"""The engine: passes of a method; of every instance the best bound and primal point, and reasons to stop."""
