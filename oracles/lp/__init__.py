"""The dual simplex method on many small LPs at once."""
