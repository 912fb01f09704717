"""The plan of execution: which backend runs an operation, and loops compiled for the CPU."""
