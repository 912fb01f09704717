"""Block types: exact min-oracles over small polytopes."""
