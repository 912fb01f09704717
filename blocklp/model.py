"""A statement, and who solves it: the front door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blocklp.deadline import Deadline
from blocklp.language.batch_statement import BatchStatement
from blocklp.language.shard import Shard
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

    @classmethod
    def shard(cls, rank: int, world: int) -> Model:
        """Return a model of which this process states a part, solved by ``mesh=`` (docs/distributed.md).

        All processes declare the same variables, in one order, with the same bounds and costs; but for those
        with ``private=True``, of which each process has its own.  Each adds its own blocks under the same
        names, with a scope ``(0, dim)`` where it has none; ``part.own(count)`` is an equal part of so many.

        Parameters
        ----------
        rank, world : int
            Number of this process, from 0 on, and of processes.

        Raises
        ------
        OptionError, ModelError
            If there is no process of this number.
        """
        made = cls()
        made.part = Shard(rank, world)
        return made

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
        return _solved(self, options)


class ModelBatch(BatchStatement):
    """Models of one structure and different sizes, stated together from concatenated arrays.

    Nothing is done for single models: a batch of thousands is stated, compiled and solved in the time of its
    solve, on the device where the arrays lie.  The answers are those of ``blocklp.compile(list_of_models)``.
    As a sequence it holds the models of its instances, each of which is made when it is asked for.

    Examples
    --------
    Two graphs, a pair and a triangle, with a cost of -1 for every node and of 2 for every pair:

    >>> import torch
    >>> import blocklp as bl
    >>> from blocklp.oracles import Edge
    >>> ends = torch.tensor([[0, 1], [0, 1], [0, 2], [1, 2]])
    >>> m = bl.ModelBatch()
    >>> y = m.variable("y", torch.tensor([0, 2, 5]), lower=0, upper=1)
    >>> z = m.variable("z", torch.tensor([0, 1, 4]), lower=0, upper=1)
    >>> pairs = m.add(Edge(), [y[ends], z])
    >>> m.minimize({y: -1.0, z: 2.0})
    >>> solution = m.solve(tol=1e-6)
    >>> [round(b, 4) for b in solution.bound.tolist()]
    [-1.0, -1.5]
    >>> solution.x[y].shape
    torch.Size([5])
    """

    model_class = Model

    def compile(self, **options: Any) -> Solver:
        """Fix shapes and indices once; see :func:`blocklp.compile`."""
        from blocklp.solver import compile

        return compile(self, **options)

    def solve(self, **options: Any) -> Solution:
        """Compile with ``device``, ``dtype`` and ``backend``, solve with all other options.

        See :meth:`blocklp.Solver.solve`.  A time limit includes the time to compile.
        """
        return _solved(self, options)


def _solved(stated: Model | ModelBatch, options: dict[str, Any]) -> Solution:
    """Compile and solve within one time limit."""
    if "time_limit" in options:
        options["time_limit"] = Deadline.of(options["time_limit"])
    build = {k: options.pop(k) for k in ("device", "dtype", "backend") if k in options}
    return stated.compile(**build).solve(**options)
