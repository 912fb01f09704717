"""A statement, and who solves it: the front door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blocklp.deadline import Deadline
from blocklp.language.statement import Statement

if TYPE_CHECKING:
    from blocklp.general_solvers.linear_program import LinearProgram
    from blocklp.results.solution import Solution
    from blocklp.solver import Solver

# To state a model takes a fraction of what it takes to import who solves it.


class Model(Statement):
    r"""A batch of block-bounded LPs that share variables, blocks and scopes.

    .. math:: \min c^\top x \quad \text{s.t.} \quad x_{C_b} \in X_b \; \forall b, \quad lower \le x \le upper

    Costs, bounds and block data may differ by instance.  Models with different graphs are solved together by
    ``blocklp.compile([model, ...])``.

    Parameters
    ----------
    batch : int
        Number of instances.

    Examples
    --------
    >>> import blocklp as bl
    >>> from blocklp.oracles import Edge
    >>> m = bl.Model()
    >>> y = m.variable("y", 2, lower=0, upper=1)
    >>> z = m.variable("z", 1, lower=0, upper=1)
    >>> pair = m.add(Edge(), scope=[y[[0]], y[[1]], z])
    >>> m.minimize(-(y.sum()) + 3 * z.sum())
    >>> round(m.solve().bound.item(), 6)
    -1.0
    """

    def linear_program(self, instance: int = 0) -> LinearProgram:
        """Write out the LP of one instance, with the present values of parameters.

        Raises
        ------
        ModelError
            If the model has no objective, or a block type states no constraints.
        """
        from blocklp.general_solvers.linear_program import export

        return export(self, instance)

    def compile(self, **options: Any) -> Solver:
        """Fix shapes and indices once; see :func:`blocklp.compile`."""
        from blocklp.solver import compile

        return compile(self, **options)

    def solve(self, **options: Any) -> Solution:
        """Compile with ``device``, ``dtype`` and ``backend``, solve with all other options.

        See :meth:`blocklp.Solver.solve`.  A time limit includes the time to compile.
        """
        if "time_limit" in options:
            options["time_limit"] = Deadline.of(options["time_limit"])
        build = {k: options.pop(k) for k in ("device", "dtype", "backend") if k in options}
        return self.compile(**build).solve(**options)
