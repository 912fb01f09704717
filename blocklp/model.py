"""The modelling language: variables, a linear objective, and blocks of few types."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from blocklp.block import BlockType
from blocklp.coupling import Linear
from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, OracleError, ScopeError, ShapeError
from blocklp.expression import Expression, Parameter, Variable, View, coefficients
from blocklp.options import hook, lengths, of_type, real, shown, text, without_gradients

if TYPE_CHECKING:
    from blocklp.linear_program import LinearProgram
    from blocklp.row_expression import RowConstraint
    from blocklp.solution import Solution
    from blocklp.solver import Solver

BOX = "box"
"""Name of the blocks that the compiler adds for variables whose bounds no block implies."""

ROWS = "rows"
"""Name of the prices of all rows beside the blocks, in states and multipliers."""

LOST = 1e-10
"""Relative error of a value that is no rounding of double precision."""

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
        Unique in the model.
    first : int
        Number of the first one among all rows of the model, which is where its price stands in ``Solution.duals["rows"]``.
    constraint : RowConstraint
        The rows, and their sides.
    """

    name: str
    first: int
    constraint: RowConstraint

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
        self.objective: Expression | None = None
        self.maximizing: bool = False
        self.repair: PrimalRepair | None = None

    def variable(self, name: str, shape: int | Sequence[int] = (), *, lower: object, upper: object, grid: float = 0.0) -> Variable:
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
            where = tuple(int(i) for i in (low > high).nonzero()[0][1:])
            raise ModelError(f"variable {name!r}: the lower bound is above the upper bound at {where}")
        step = real(grid, f"grid of variable {name!r}", positive=False)
        made = Variable(self, name, slice(self.size, self.size + math.prod(shape)), low, high, step)
        self.variables[name] = made
        self.size = made.columns.stop
        return made

    def _bound(self, value: object, shape: tuple[int, ...], name: str, side: str) -> Tensor:
        try:
            if value is not None:
                return coefficients(value, shape, self.batch, f"{side} bound of {name!r}")
        except NonFiniteError:
            pass
        raise ModelError(
            f"variable {name!r} is unbounded: its {side} bound holds None, NaN or an infinity; "
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

        ``m.add(A @ x <= b)`` takes a comparison, as :meth:`add_rows` takes its parts, and returns :class:`Rows`.

        Parameters
        ----------
        block_type : BlockType or RowConstraint
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
        from blocklp.row_expression import RowConstraint

        if isinstance(block_type, RowConstraint):
            if scope is not None or to_dual is not None or to_primal is not None:
                raise ModelError("rows say themselves which variables they hold; leave the scope and maps out")
            return self._add_constraint(block_type, name)
        of_type(block_type, BlockType, "the type given to add()", "an instance of a subclass of BlockType", ModelError)
        hook(to_dual, "to_dual")
        hook(to_primal, "to_primal")
        index = self._scope(scope if scope is not None else (), block_type)
        if name is not None:
            text(name, "the name of blocks")
        else:
            taken = Counter(b.type.name for b in self.blocks)[block_type.name]
            name = block_type.name if taken == 0 else f"{block_type.name}_{taken + 1}"
        if name in (BOX, ROWS):
            what = "the box of variables that need one" if name == BOX else "the prices of rows"
            raise ModelError(f"the name {name!r} is kept for {what}; choose another name")
        if any(b.name == name for b in self.blocks):
            raise ModelError(f"the model already has blocks named {name!r}; choose another name")
        if (to_dual is None) != (to_primal is None):
            raise ModelError(f"{name}: to_dual and to_primal are a pair; give both or neither")
        for key, data in block_type.tensors().items():
            without_gradients(data, f"{name}: {key}")
            if data.shape[0] not in (1, self.batch) or data.shape[1] not in (1, len(index)):
                raise ShapeError(
                    f"{name}: {key} has leading dimensions {tuple(data.shape[:2])}; it needs (1 or batch={self.batch}, "
                    f"1 or blocks={len(index)})"
                )
        maps = None if to_dual is None or to_primal is None else (to_dual, to_primal)
        made = Blocks(name, block_type, index, maps)
        self._ask_once(made)
        self.blocks.append(made)
        return made

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

        return self._add_constraint(constraint(self, matrix, variables, lower, upper), name)

    def _add_constraint(self, stated: RowConstraint, name: str | None) -> Rows:
        if stated.model is not self:
            raise ModelError("the rows hold variables of another model; build them from this model's variables")
        name = text(name, "the name of rows") if name is not None else f"rows_{len(self.rows) + 1}"
        if any(r.name == name for r in self.rows):
            raise ModelError(f"the model already has rows named {name!r}; choose another name")
        batch = max(len(stated.lower), len(stated.upper))
        lower, upper = (side.expand(batch, -1) for side in (stated.lower, stated.upper))
        none = (lower > upper) | (lower == torch.inf) | (upper == -torch.inf)
        if bool(none.any()):
            i, r = none.nonzero()[0].tolist()
            raise ModelError(f"{name}: row {r} leaves no value between {float(lower[i, r]):g} and {float(upper[i, r]):g}")
        made = Rows(name, sum(r.count for r in self.rows), stated)
        self.rows.append(made)
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
        of_type(blocks, Blocks | str, "the blocks given to extend()", "the handle that add() returned, or its name", ModelError)
        name = blocks if isinstance(blocks, str) else blocks.name
        place = next((i for i, b in enumerate(self.blocks) if b.name == name), None)
        if place is None:
            raise ModelError(f"the model has no blocks named {name!r}; add them first")
        before = self.blocks[place]
        if before.maps is not None or any(data.shape[1] > 1 for data in before.type.tensors().values()):
            raise ModelError(f"{name!r} have data or maps of single blocks; add the new ones as blocks of another name")
        index = self._scope(scope, before.type)
        if index.shape[1] != before.scope.shape[1]:
            raise ScopeError(f"{name!r} have {before.scope.shape[1]} variables a block, the scope gives {index.shape[1]}")
        made = Blocks(name, before.type, torch.cat([before.scope, index]))
        self._ask_once(Blocks(name, before.type, index))
        self.blocks[place] = made
        return made

    def _scope(self, scope: View | Sequence[View], block_type: BlockType) -> Tensor:
        views = [scope] if isinstance(scope, View) else list(scope) if isinstance(scope, Iterable) else []
        if not views or not all(isinstance(v, View) for v in views):
            raise ScopeError(f"the scope is {shown(scope)}; it must be a variable, an indexed variable or a list of them")
        if any(v.model is not self for v in views):
            raise ScopeError("the scope holds variables of another model; build the blocks from this model's variables")
        if isinstance(scope, View):
            index = scope.index.clone()  # the handle's own
            index = index[None] if index.dim() == 1 and block_type.dim != 1 else index
            index = index[:, None] if index.dim() == 1 else index
        else:
            columns = [v.index[:, None] if v.index.dim() == 1 else v.index for v in views]
            lengths = {len(c) for c in columns if c.dim() == 2}
            if len(lengths) != 1 or any(c.dim() != 2 for c in columns):
                raise ScopeError(
                    f"the views of a scope need one entry a block, got shapes {[v.shape for v in views]}; index scalars as x[[i]]"
                )
            index = torch.cat(columns, 1)
        if index.dim() != 2 or 0 in index.shape:
            raise ScopeError(f"a scope needs shape (blocks, dim), got {tuple(index.shape)}")
        if block_type.dim is not None and index.shape[1] != block_type.dim:
            raise ScopeError(f"{block_type.name} has {block_type.dim} variables a block, the scope gives {index.shape[1]}")
        ordered = np.sort(index.numpy(), axis=1)  # rows are short, and numpy quicker at them than torch
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if repeated.any():
            raise ScopeError(
                f"block {repeated.argmax()} of {block_type.name} names a variable twice; "
                f"every position of a block needs its own variable"
            )
        return index

    def _ask_once(self, blocks: Blocks) -> None:
        """Call the oracle on two costs, so that a wrong one is refused where it is declared."""
        kind, (count, dim) = blocks.type, blocks.scope.shape
        if kind.stateless and not kind.tensors():
            _ask_known(kind, 2, 3, dim)
        else:
            _ask(kind, self.batch, count, dim)

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
        """Numbers of variables, of blocks by type, of copies, and of variables by how many blocks share them."""
        shared = torch.zeros(self.size, dtype=torch.long)
        for b in self.blocks:
            shared.index_add_(0, b.scope.reshape(-1), torch.ones(b.scope.numel(), dtype=torch.long))
        counts = Counter(shared.tolist())
        return {
            "batch": self.batch,
            "variables": self.size,
            "blocks": {b.name: b.scope.shape[0] for b in self.blocks},
            "copies": int(shared.sum()),
            "coupling": dict(sorted(counts.items())),
        }

    def __str__(self) -> str:
        sizes = self.sizes()
        sense = "no objective" if self.objective is None else "maximize" if self.maximizing else "minimize"
        lines = [f"Model of {self.batch} instance{'s' * (self.batch > 1)}, {sense}"]
        lines += [
            f"  variable {v.name}{list(v.shape)} in [{float(v.lower.min()):g}, {float(v.upper.max()):g}]"
            for v in self.variables.values()
        ]
        lines += [f"  blocks {b!r}" for b in self.blocks] + [f"  rows {r!r}" for r in self.rows]
        alone = sizes["coupling"].get(0, 0) + sizes["coupling"].get(1, 0)
        lines.append(f"  {self.size} variables, {self.size - alone} of them shared by several blocks; {sizes['copies']} copies")
        return "\n".join(lines)

    __repr__ = __str__


def _ask(kind: BlockType, batch: int, count: int, dim: int) -> None:
    # Sevenths are no floats, and tell an oracle that calculates in single precision.
    sevenths = (1.0 - 2.0 * (torch.arange(batch * count * dim) % 3)).double().reshape(batch, count, dim) / 7
    largest = 0.0
    for cost in (sevenths, torch.zeros_like(sevenths)):
        answer = kind.min_oracle(cost)
        largest = max(largest, check_answer(kind, cost, answer, largest))
        if type(kind).min_value is not BlockType.min_value:
            _check_value(kind, cost, answer[0], kind.min_value(cost), "min_value")


_ask_known = functools.lru_cache(16)(_ask)  # thousands of models may share a type


def check_answer(kind: BlockType, cost: Tensor, answer: object, largest: float = 0.0) -> float:
    """Refuse an oracle's answer that cannot be right.

    Points are off by a part of their largest entry, of all blocks and of other answers (``largest``); it is returned.

    Raises
    ------
    OracleError
        If shapes or dtypes are wrong, entries are not finite, the value is not the point's cost, or was calculated in single
        precision, or the point violates the type's constraints.
    """
    who = f"min_oracle of {kind.name}"
    if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(a, Tensor) for a in answer)):
        raise OracleError(f"{who} must return the tensors (point, value), got {type(answer).__name__}")
    point, value = answer
    if point.shape != cost.shape or value.shape != cost.shape[:2]:
        raise OracleError(
            f"{who} returned point {tuple(point.shape)} and value {tuple(value.shape)}; for a cost {tuple(cost.shape)} it "
            f"must return {tuple(cost.shape)} and {tuple(cost.shape[:2])}"
        )
    if point.dtype != cost.dtype or value.dtype != cost.dtype:
        raise OracleError(
            f"{who} got a cost of {cost.dtype} and returned point and value of {point.dtype} and {value.dtype}; "
            f"calculate in the dtype of the cost: bounds are as exact as the values that they sum"
        )
    if not (bool(torch.isfinite(point).all()) and bool(torch.isfinite(value).all())):
        raise OracleError(f"{who} returned NaN or infinite entries for a finite cost")
    if point.requires_grad or value.requires_grad:
        raise OracleError(
            f"{who} returned tensors that require gradients, and bounds are not differentiable in the data of a type; "
            f"detach() the data"
        )
    _check_value(kind, cost, point, value, "min_oracle")
    largest = max(largest, float(point.abs().max()))
    if (constraints := kind.constraints()) is not None:
        worst = float(constraints.violation(point, torch.full_like(value, largest)).max())
        if worst > 1e-6:
            raise OracleError(f"{who} returned a point that violates its own constraints by {worst:.3g} of the size of a row")
    return largest


def _check_value(kind: BlockType, cost: Tensor, point: Tensor, value: Tensor, verb: str) -> None:
    """The value is the cost of the point, in the precision of the cost; what ``value_error`` admits may be missing."""
    terms = cost * point
    size, above = 1 + terms.abs().sum(-1), value - terms.sum(-1)
    off = above.abs() > LOST * size
    if not bool(off.any()):
        return
    if (error := kind.value_error(cost)) is not None:
        off &= above.abs() > error
    if not bool(off.any()):
        return
    # A value that single precision holds, of a point whose cost it does not hold, was calculated in it.
    single = torch.equal(value, value.float().double()) and bool((value[off] != 0).all())
    worst, where = (above.abs() / size).where(off, 0.0).flatten().max(0)
    if cost.dtype == torch.float64 and single and float(worst) < 1e-4:
        raise OracleError(
            f"{verb} of {kind.name} calculates in single precision: its value {float(value.flatten()[where])!r} is a float32 "
            f"and differs by {float(above.flatten()[where]):.1e} from the cost of its point in float64, and bounds would be off "
            f"as much; calculate in the dtype of the cost (no .float(), no float32 tables or arrays)"
        )
    # A value may lie below the cost of its point, which then is no minimiser; above it the value is no minimum.
    if bool((off & ((above > 0) | (-above > 1e-6 * size))).any()):
        raise OracleError(
            f"{verb} of {kind.name} returned a value that is not the cost of its point; return value = (cost * point).sum(-1)"
        )
