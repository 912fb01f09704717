"""Block structure of general matrices: classes of rows, growth, hypergraph partitions."""
