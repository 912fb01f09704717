"""Verification of ReLU networks: LP bounds of every neuron, and complete verdicts."""
