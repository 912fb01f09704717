"""The modelling language: variables, a linear objective, and blocks of few types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from blocklp.block import BlockType, difference
from blocklp.box import BOX
from blocklp.coupling import Linear
from blocklp.deadline import Deadline
from blocklp.errors import BlocklpError, ModelError, NonFiniteError, ScopeError, ShapeError, UnknownNameError
from blocklp.expression import Expression, Parameter, Variable, View, coefficients
from blocklp.options import flag, hook, lengths, named, numbers, of_type, real, shown, text, without_gradients
from blocklp.oracle_answers import ask, ask_known
from blocklp.ragged import Ragged
from blocklp.row_constraint import RowConstraint
from blocklp.scopes import scope_of
from blocklp.tables import as_html, as_text, listed, of_model

if TYPE_CHECKING:
    from blocklp.linear_program import LinearProgram
    from blocklp.solution import Solution
    from blocklp.solver import Solver

ROWS = "rows"
"""Name of the prices of all rows beside the blocks, in states and multipliers."""


def name_of_size(name: str, size: int) -> str:
    """Name of the group of those blocks of a name that have so many variables, where they differ in it."""
    return f"{name}[{size}]"


PrimalRepair = Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Blocks:
    """The handle of added blocks: key of ``Solution.duals``.

    Attributes
    ----------
    name : str
        Unique in the model.
    type : BlockType
        Their type.
    scope : Tensor
        ``(blocks, dim)`` int64: the variables of each block, as columns of an instance's row.
    """

    name: str
    type: BlockType
    scope: Tensor
    maps: tuple[Linear, Linear] | None = None

    def __repr__(self) -> str:
        return f"{self.name}: {self.scope.shape[0]} x {self.type!r}"


@dataclass(frozen=True, eq=False)
class Rows:
    """The handle of added rows.

    Attributes
    ----------
    name : str
        Unique in the model; key of :meth:`Solution.price` and :meth:`Solution.slack`.
    constraint : RowConstraint
        The rows, and their sides.
    """

    name: str
    constraint: RowConstraint

    @property
    def first(self) -> int:
        """Number of the first one among all rows that the model has now."""
        rows = self.constraint.model.rows
        if self not in rows:
            raise UnknownNameError(f"rows {self.name!r} were removed from the model")
        return sum(r.count for r in rows[: rows.index(self)])

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.constraint.matrix.shape[0])

    def __repr__(self) -> str:
        return f"{self.name}: {self.count} rows, {self.constraint.matrix.nnz} entries"


class Model:
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

    def __init__(self, batch: int = 1) -> None:
        if isinstance(batch, bool) or not isinstance(batch, Integral) or batch < 1:
            raise ModelError(f"batch is {shown(batch)}; it is the number of instances, an integer from 1 on")
        self.batch: int = int(batch)
        self.size: int = 0
        self.variables: dict[str, Variable] = {}
        self.blocks: list[Blocks] = []
        self.rows: list[Rows] = []
        self.removed: set[str] = set()
        self.objective: Expression | None = None
        self.maximizing: bool = False
        self.repair: PrimalRepair | None = None

    def variable(
        self,
        name: str,
        shape: int | Sequence[int] = (),
        *,
        lower: object,
        upper: object,
        grid: float = 0.0,
        integer: bool = False,
    ) -> Variable:
        """Declare an array of variables.

        Parameters
        ----------
        name : str
            Unique in the model.
        shape : int or sequence of int
            Shape of one instance's array; ``()`` for a scalar.
        lower, upper : array_like
            Finite bounds that broadcast to ``shape`` or ``(batch, *shape)``.
        grid : float
            Where optima are known to lie at multiples of a number, as those of roof duality do at halves: primal points are also
            tried with these variables rounded to it.  0 for no such number.
        integer : bool
            Whether only integers count.  :func:`blocklp.solve_exact` keeps to that; all other solves bound the relaxation without it,
            whose bound holds for integers too.

        Raises
        ------
        ModelError
            If the name is taken, a bound is infinite, NaN or no number, or a lower bound is above its upper bound.
        ShapeError
            If the shape is none, or a bound does not fit it.
        OptionError
            If ``grid`` is no such number.
        """
        if text(name, "the name of a variable") in self.variables:
            raise ModelError(f"the model already has a variable {name!r}; choose another name")
        shape = lengths(shape, f"variable {name!r}")
        low, high = (self._bound(v, shape, name, side) for v, side in ((lower, "lower"), (upper, "upper")))
        if bool((low > high).any()):
            i, *where = (low > high).nonzero()[0].tolist()
            least, most = (float(side[(i % len(side), *where)]) for side in (low, high))
            raise ModelError(
                f"variable {name!r}: the lower bound {least:g} of {named(name, where)} is above its upper bound {most:g}"
                + f" in instance {i}" * (len(low) > 1 or len(high) > 1)
            )
        step = real(grid, f"grid of variable {name!r}", positive=False)
        columns, whole = slice(self.size, self.size + math.prod(shape)), flag(integer, f"integer of variable {name!r}")
        made = Variable(self, name, columns, low, high, step, whole)
        self.variables[name] = made
        self.size = made.columns.stop
        return made

    def _bound(self, value: object, shape: tuple[int, ...], name: str, side: str) -> Tensor:
        try:
            if value is not None:
                return coefficients(value, shape, self.batch, f"{side} bound of {name!r}")
            where = ""
        except NonFiniteError:
            data = numbers(value, side)
            bad = (~torch.isfinite(data)).nonzero()[0].tolist()
            where = f" at {named(name, bad[-len(shape) :])}" if shape and data.dim() >= len(shape) else ""
        raise ModelError(
            f"variable {name!r} is unbounded: its {side} bound holds None, NaN or an infinity{where}; "
            f"certified bounds need finite variable bounds, give the tightest that you know"
        )

    def linear_program(self, instance: int = 0) -> LinearProgram:
        """Write out the LP of one instance, with the present values of parameters; all types must state their constraints.

        Raises
        ------
        ModelError
            If the model has no objective, or a block type states no constraints.
        """
        from blocklp.linear_program import export

        return export(self, instance)

    def parameter(self, name: str, shape: int | Sequence[int] = ()) -> Parameter:
        """Declare a cost that may change between solves; multiply it with a variable of the same shape.

        Raises
        ------
        ModelError, ShapeError
            If the name or the shape is none.
        """
        return Parameter(text(name, "the name of a parameter"), lengths(shape, f"parameter {name!r}"), self.batch)

    def add(
        self,
        block_type: Any,
        scope: View | Sequence[View] | None = None,
        *,
        name: str | None = None,
        to_dual: Linear | None = None,
        to_primal: Linear | None = None,
    ) -> Any:
        """Add blocks of one type, or rows that couple blocks.

        ``m.add(A @ x <= b)`` takes a comparison, as :meth:`add_rows` takes its parts, and returns :class:`Rows`.  Blocks of several
        lengths (:class:`Ragged`) take a scope ``(entries,)``; a handle for each length is returned.

        Parameters
        ----------
        block_type : BlockType, Ragged or RowConstraint
            The type, with its block data; or a comparison of linear expressions, which takes no scope.
        scope : View or sequence of View
            Either one view per position, each ``(blocks,)`` (or several positions at once, ``(blocks, k)``), or a single
            view ``(blocks, dim)``; a view ``(dim,)`` alone is one block.
        name : str, optional
            Name of the handle; the type's name, numbered, by default.
        to_dual, to_primal : callable, optional
            For structured scopes: ``to_dual`` takes the variables ``(batch, variables)`` to the copies of these blocks,
            ``(batch, dim * blocks)`` with the block index fastest; ``to_primal`` is its adjoint.  They must describe the
            same scope and replace the index maps.

        Raises
        ------
        ScopeError
            If views have different lengths, come from another model, repeat a variable in a block, or do not fit the type.
        ModelError, OptionError, ShapeError
            If the type is none, its data do not fit the number of blocks, the name is taken, or the maps are no pair of functions.
        OracleError
            If the type's oracle gives wrong answers, see :func:`blocklp.check`.
        """
        if isinstance(block_type, RowConstraint):
            if scope is not None or to_dual is not None or to_primal is not None:
                raise ModelError("rows say themselves which variables they hold; leave the scope and maps out")
            return self._add_constraint(block_type, name)
        if isinstance(block_type, Ragged):
            return self._add_ragged(block_type, scope, name)
        of_type(block_type, BlockType, "the type given to add()", "an instance of a subclass of BlockType", ModelError)
        hook(to_dual, "to_dual")
        hook(to_primal, "to_primal")
        index = scope_of(self, scope if scope is not None else (), block_type)
        taken = self._names()
        name = next(own for own in _bases(name, block_type.name) if name is not None or own not in taken)
        if name in (BOX, ROWS):
            what = "the box of variables that need one" if name == BOX else "the prices of rows"
            raise ModelError(f"the name {name!r} is kept for {what}; choose another name")
        if name in taken:
            raise ModelError(f"the model already has blocks or rows named {name!r}; choose another name")
        if (to_dual is None) != (to_primal is None):
            raise ModelError(f"{name}: to_dual and to_primal are a pair; give both or neither")
        self._check_data(name, block_type, len(index))
        maps = None if to_dual is None or to_primal is None else (to_dual, to_primal)
        made = Blocks(name, block_type, index, maps)
        self._ask_once(made)
        self.blocks.append(made)
        self.removed.discard(name)
        return made

    def _add_ragged(self, blocks: Ragged, scope: View | Sequence[View] | None, name: str | None) -> tuple[Blocks, ...]:
        """Blocks of every length under a name of its own."""
        of_type(scope, View, "the scope of blocks of several lengths", "a variable or a view of one", ScopeError)
        assert isinstance(scope, View)
        if scope.shape != (blocks.entries,):
            raise ScopeError(f"{blocks.name}: the sizes of the blocks add up to {blocks.entries}, the scope has shape {scope.shape}")
        sizes, taken = [places.shape[1] for _, _, places in blocks.parts], self._names().keys()
        bases = _bases(name, blocks.name)
        base = next(own for own in bases if name is not None or not taken & {name_of_size(own, size) for size in sizes})
        before = len(self.blocks)
        try:
            return tuple(self.add(kind, scope[places], name=name_of_size(base, places.shape[1])) for kind, _, places in blocks.parts)
        except BlocklpError:  # all of them or none
            del self.blocks[before:]
            raise

    def add_rows(
        self, matrix: object, variables: View, lower: object = None, upper: object = None, *, name: str | None = None
    ) -> Rows:
        r"""Add rows :math:`l \le A x \le u` that couple blocks, each with one price.

        ``m.add_rows(A, x, upper=b)`` and ``m.add_rows(A, x, b, b)`` are ``A @ x <= b`` and ``A @ x == b``.

        Parameters
        ----------
        matrix : array_like or sparse matrix
            ``(rows, n)``: numpy, scipy.sparse or torch, dense or sparse.
        variables : View
            ``(n,)``.
        lower, upper : array_like, optional
            A number, ``(rows,)`` or ``(batch, rows)``; None and infinities for no such side.
        name : str, optional
            Name of the handle; ``rows``, numbered, by default.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError
            If the parts are no numbers, do not fit together, hold NaN, or leave no value between the sides of a row.
        """
        of_type(variables, View, "the variables of rows", "a variable or a view of one", ModelError)
        if variables.model is not self:
            raise ModelError("the rows hold variables of another model; build them from this model's variables")
        from blocklp.row_expression import constraint

        what = "rows" if name is None else f"rows {name!r}"
        return self._add_constraint(constraint(self, matrix, variables, lower, upper, what), name)

    def _add_constraint(self, stated: RowConstraint, name: str | None) -> Rows:
        if stated.model is not self:
            raise ModelError("the rows hold variables of another model; build them from this model's variables")
        taken = self._names()
        if name is None:
            name = next(free for n in count(len(self.rows) + 1) if (free := f"rows_{n}") not in taken)
        elif text(name, "the name of rows") in taken:
            raise ModelError(f"the model already has rows or blocks named {name!r}; choose another name")
        batch = max(len(stated.lower), len(stated.upper))
        lower, upper = (side.expand(batch, -1) for side in (stated.lower, stated.upper))
        none = (lower > upper) | (lower == torch.inf) | (upper == -torch.inf)
        if bool(none.any()):
            i, r = none.nonzero()[0].tolist()
            instance = f" in instance {i}" * (batch > 1)
            raise ModelError(f"row {name}[{r}] leaves no value between {float(lower[i, r]):g} and {float(upper[i, r]):g}{instance}")
        made = Rows(name, stated)
        self.rows.append(made)
        self.removed.discard(name)
        return made

    def extend(self, blocks: Blocks | str, scope: View | Sequence[View]) -> Blocks:
        """Add more blocks under a handle, after those that it has; a warm start gives them multipliers zero.

        Compile again before the next solve.

        Parameters
        ----------
        blocks : Blocks or str
            The handle that :meth:`add` returned, or its name; its type must hold no data of single blocks.
        scope : View or sequence of View
            As in :meth:`add`.

        Returns
        -------
        Blocks
            The handle of all of them, in place of the one given.

        Raises
        ------
        ScopeError
            As in :meth:`add`.
        ModelError
            If the model has no such blocks, or if they have data or maps of their own.
        """
        place = self._place(blocks, "extend()")
        before = self.blocks[place]
        if before.maps is not None or any(data.shape[1] > 1 for data in before.type.tensors().values()):
            raise ModelError(f"{before.name!r} have data or maps of single blocks; add the new ones as blocks of another name")
        index = scope_of(self, scope, before.type)
        if index.shape[1] != before.scope.shape[1]:
            raise ScopeError(f"{before.name!r} have {before.scope.shape[1]} variables a block, the scope gives {index.shape[1]}")
        made = Blocks(before.name, before.type, torch.cat([before.scope, index]))
        self._ask_once(Blocks(before.name, before.type, index))
        self.blocks[place] = made
        return made

    def replace(self, blocks: Blocks | str, block_type: BlockType) -> Blocks:
        """Give blocks other data, such as another capacity: compiled solvers take them up, as they do another objective.

        Parameters
        ----------
        blocks : Blocks or str
            The handle that :meth:`add` returned, or its name.
        block_type : BlockType
            A type of the same class that differs in its data only.

        Returns
        -------
        Blocks
            The handle in place of the one given.

        Raises
        ------
        ModelError, ShapeError
            If the model has no such blocks, the type differs in more than data, or these do not fit the number of blocks.
        OracleError
            If the type's oracle gives wrong answers, see :func:`blocklp.check`.
        """
        place = self._place(blocks, "replace()")
        before = self.blocks[place]
        of_type(block_type, BlockType, "the type given to replace()", "an instance of a subclass of BlockType", ModelError)
        if what := difference(before.type, block_type):
            raise ModelError(f"{before.name!r} differ from the type given in {what}; only data may, else add blocks of another name")
        self._check_data(before.name, block_type, len(before.scope))
        made = replace(before, type=block_type)
        self._ask_once(made)
        self.blocks[place] = made
        return made

    def _place(self, blocks: Blocks | str, verb: str) -> int:
        """Where blocks stand among those of the model."""
        of_type(blocks, Blocks | str, f"the blocks given to {verb}", "the handle that add() returned, or its name", ModelError)
        name = blocks if isinstance(blocks, str) else blocks.name
        place = next((i for i, b in enumerate(self.blocks) if b.name == name), None)
        if place is None:
            raise ModelError(f"the model has no blocks named {name!r}; add them first")
        return place

    def _check_data(self, name: str, block_type: BlockType, count: int) -> None:
        """Refuse data of a type that do not fit the instances and so many blocks."""
        for key, data in block_type.tensors().items():
            without_gradients(data, f"{name}: {key}")
            if data.shape[0] not in (1, self.batch) or data.shape[1] not in (1, count):
                raise ShapeError(
                    f"{name}: {key} has leading dimensions {tuple(data.shape[:2])}; it needs (1 or batch={self.batch}, "
                    f"1 or blocks={count})"
                )

    def remove(self, handle: Blocks | Rows | str) -> None:
        """Take blocks or rows out of the model again.

        Compile again before the next solve; a state of an earlier one still starts it, without the multipliers of what was removed.

        Parameters
        ----------
        handle : Blocks, Rows or str
            The handle that :meth:`add` returned, or its name.

        Raises
        ------
        UnknownNameError
            If the model has no such blocks or rows.
        """
        of_type(handle, Blocks | Rows | str, "what is given to remove()", "the handle that add() returned, or its name", ModelError)
        name = handle if isinstance(handle, str) else handle.name
        blocks = [b for b in self.blocks if b is handle or handle == b.name]
        rows = [r for r in self.rows if r is handle or handle == r.name]
        for b in blocks:
            self.blocks.remove(b)
        for r in rows:
            self.rows.remove(r)
        self.removed |= {name} if blocks or rows else set()
        if blocks or rows:
            return
        raise UnknownNameError(f"the model has no blocks or rows {name!r}; it has {listed(map(repr, self._names())) or 'none'}")

    def _names(self) -> dict[str, None]:
        """Names of blocks and rows, in order."""
        return dict.fromkeys([*(b.name for b in self.blocks), *(r.name for r in self.rows)])

    def entry(self, column: int) -> str:
        """Return the name of the variable in a column of an instance's row, as ``x[2, 1]``."""
        of = next(v for v in self.variables.values() if column < v.columns.stop)
        return named(of.name, np.unravel_index(column - of.columns.start, of.shape))

    def _ask_once(self, blocks: Blocks) -> None:
        """Call the oracle on two costs, so that a wrong one is refused where it is declared."""
        kind, (count, dim) = blocks.type, blocks.scope.shape
        if kind.stateless and not kind.tensors():
            ask_known(kind, 2, 3, dim)
        else:
            ask(kind, self.batch, count, dim)

    def minimize(self, objective: Expression | View) -> None:
        """Set the objective, a linear expression of shape ``()``, in place of any other; compiled solvers take it up.

        Raises
        ------
        ModelError, ShapeError
            If it is none, of another model, or of another shape.
        """
        self._objective(objective, maximizing=False)

    def maximize(self, objective: Expression | View) -> None:
        """Set the objective to be maximised, see :meth:`minimize`; bounds are then upper bounds."""
        self._objective(objective, maximizing=True)

    def _objective(self, objective: Expression | View, maximizing: bool) -> None:
        if isinstance(objective, View):
            objective = objective.expression()
        if not isinstance(objective, Expression) or objective.model is not self:
            raise ModelError(f"the objective is {shown(objective)}; it must be a linear expression in this model's variables")
        if objective.shape != ():
            raise ShapeError(f"the objective has shape {objective.shape}; sum it to a scalar with .sum() or @")
        self.objective, self.maximizing = objective, maximizing

    def repair_with(self, repair: PrimalRepair | None) -> None:
        """Give a map from an approximate primal point to one that satisfies all blocks.

        It takes and returns ``{name: (batch, *shape)}`` for every variable; the result is checked against bounds and, where
        the block types state them, constraints, before its value counts.  Points are also looked for as without it.

        Raises
        ------
        OptionError
            If it is no function; None takes the hook away.
        """
        hook(repair, "repair")
        self.repair = repair

    def compile(self, **options: Any) -> Solver:
        """Fix shapes and indices once; see :func:`blocklp.compile`."""
        from blocklp.solver import compile

        return compile(self, **options)

    def solve(self, **options: Any) -> Solution:
        """Compile with ``device``, ``dtype`` and solve with the other options; see :meth:`blocklp.Solver.solve`.

        The time to compile counts.
        """
        if "time_limit" in options:
            options["time_limit"] = Deadline.of(options["time_limit"])
        build = {k: options.pop(k) for k in ("device", "dtype") if k in options}
        return self.compile(**build).solve(**options)

    def sizes(self) -> dict[str, Any]:
        """Numbers of variables, of blocks by type, of copies, of variables by how many blocks share them, and of rows."""
        shared = torch.zeros(self.size, dtype=torch.long)
        for b in self.blocks:
            shared.index_add_(0, b.scope.reshape(-1), torch.ones(b.scope.numel(), dtype=torch.long))
        counts = torch.bincount(shared).tolist()
        return {
            "batch": self.batch,
            "variables": self.size,
            "blocks": {b.name: b.scope.shape[0] for b in self.blocks},
            "copies": int(shared.sum()),
            "coupling": {shares: number for shares, number in enumerate(counts) if number},
            "rows": sum(r.count for r in self.rows),
        }

    def __repr__(self) -> str:
        return as_text(*of_model(self))

    def _repr_html_(self) -> str:
        return as_html(*of_model(self))


def _bases(name: str | None, kind: str) -> Iterator[str]:
    """A name that was given, or that of the type, then numbered from two on."""
    if name is not None:
        yield text(name, "the name of blocks")
        return
    yield kind
    yield from (f"{kind}_{n}" for n in count(2))
