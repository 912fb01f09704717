"""What quadratic functions, independent sets and discrete energies have in common: exact minimisation, tightening, batches."""
