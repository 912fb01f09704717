"""Linear programs written out, and the general solvers that answer them."""
