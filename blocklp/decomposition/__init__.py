"""The Lagrangean decomposition of a batch of models: mathematics only."""
