"""The modelling language: variables, a linear objective, blocks of few types, and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.blocks.contract import BlockType, Stateless
from blocklp.blocks.data_gradients import refuse_without_gradients
from blocklp.blocks.oracle_answers import ask, ask_known
from blocklp.blocks.ragged import Ragged
from blocklp.blocks.type_difference import difference
from blocklp.decomposition.incidence import Linear
from blocklp.errors import BlocklpError, ModelError, ScopeError, ShapeError, UnknownNameError
from blocklp.language.declared import Declared
from blocklp.language.expression import Expression, View
from blocklp.language.handles import ROWS, Blocks, Rows, name_of_size
from blocklp.language.model_summary import summary
from blocklp.language.row_constraint import RowConstraint
from blocklp.language.scopes import refuse_beyond_defaults, scope_of
from blocklp.language.taken_names import TakenNames
from blocklp.options import hook, of_type, shown, text
from blocklp.tables import as_html, as_text, listed

SUBCLASS = "an instance of a subclass of BlockType"
HANDLE = "the handle that add() returned, or its name"
OTHER_MODEL = "the rows hold variables of another model; build them from this model's variables"

PrimalRepair = Callable[[dict[str, Tensor]], dict[str, Tensor]]


class Statement(Declared):
    """A model as it is stated; :class:`blocklp.Model` adds methods that solve it.

    Parameters
    ----------
    batch : int
        Number of instances.
    """

    def __init__(self, batch: int = 1) -> None:
        super().__init__(batch)
        self.blocks: list[Blocks] = []
        self.rows: list[Rows] = []
        self.removed: set[str] = set()
        self.objective: Expression | None = None
        self.maximizing: bool = False
        self.repair: PrimalRepair | None = None
        self._taken = TakenNames()

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

        ``m.add(A @ x <= b)`` takes a comparison, as :meth:`add_rows` takes its parts, and returns
        :class:`Rows`.  Blocks of several lengths (:class:`Ragged`) take a scope ``(entries,)``; a handle for
        each length is returned.

        Parameters
        ----------
        block_type : BlockType, Ragged or RowConstraint
            The type, with its block data; or a comparison of linear expressions, which takes no scope.
        scope : View or sequence of View
            Either one view per position, each ``(blocks,)`` (or several positions at once, ``(blocks, k)``),
            or a single view ``(blocks, dim)``; a view ``(dim,)`` alone is one block, and so are single
            variables, as ``[x[0], x[1]]``. Blocks of equal types that are added few at a time are solved
            together, as if added in one call.
        name : str, optional
            Name of the handle; the type's name, numbered, by default.
        to_dual, to_primal : callable, optional
            For structured scopes: ``to_dual`` takes the variables ``(batch, variables)`` to the copies of
            these blocks, ``(batch, dim * blocks)`` with the block index fastest; ``to_primal`` is its
            adjoint.  They must describe the same scope and replace the index maps.

        Returns
        -------
        Blocks, Rows or list of Blocks
            The handle, or one for each length of :class:`Ragged` blocks.

        Raises
        ------
        ScopeError
            If views have different lengths, come from another model, repeat a variable in a block, or do not
            fit the type; or if there are no blocks, but in the part that a process states of a model.
        ModelError, OptionError, ShapeError
            If the type is none, its data do not fit the number of blocks, the name is taken, or the maps are
            no pair of functions.
        OracleError
            If the type's oracle gives wrong answers, see :func:`blocklp.check`.
        """
        if isinstance(block_type, RowConstraint):
            if scope is not None or to_dual is not None or to_primal is not None:
                what = "rows say themselves which variables they hold"
                raise ModelError(f"{what}; leave the scope and maps out")
            return self._add_constraint(block_type, name)
        if isinstance(block_type, Ragged):
            return self._add_ragged(block_type, scope, name)
        if isinstance(block_type, list | tuple) and any(isinstance(t, RowConstraint) for t in block_type):
            raise ModelError("add() takes one constraint at a time; call it for each")
        of_type(block_type, BlockType, "the type given to add()", SUBCLASS, ModelError)
        hook(to_dual, "to_dual")
        hook(to_primal, "to_primal")
        index = scope_of(self, scope if scope is not None else (), block_type, none=self.part is not None)
        refuse_beyond_defaults(self, index, block_type)
        taken = self._taken.among(self.blocks, self.rows)
        if name is None:
            name = self._taken.free(block_type.name, self.blocks, self.rows)
        if text(name, "the name of blocks") in (BOX, ROWS):
            what = "the box of variables that need one" if name == BOX else "the prices of rows"
            raise ModelError(f"the name {name!r} is kept for {what}; choose another name")
        if name in taken:
            raise ModelError(f"the model already has blocks or rows named {name!r}; choose another name")
        if (to_dual is None) != (to_primal is None):
            raise ModelError(f"{name}: to_dual and to_primal are a pair; give both or neither")
        self._check_data(name, block_type, len(index))
        maps = None if to_dual is None or to_primal is None else (to_dual, to_primal)
        made = _blocks(name, block_type, index, maps)
        self._ask_once(made)
        self.blocks.append(made)
        self.removed.discard(name)
        return made

    def _add_ragged(
        self,
        blocks: Ragged,
        scope: View | Sequence[View] | None,
        name: str | None,
    ) -> tuple[Blocks, ...]:
        """Blocks of every length under a name of its own."""
        need = "a variable or a view of one"
        of_type(scope, View, "the scope of blocks of several lengths", need, ScopeError)
        assert isinstance(scope, View)
        if scope.shape != (blocks.entries,):
            what = f"the sizes of the blocks add up to {blocks.entries}"
            raise ScopeError(f"{blocks.name}: {what}, the scope has shape {scope.shape}")
        sizes, taken = [places.shape[1] for _, _, places in blocks.parts], self._names().keys()

        def free(own: str) -> bool:
            return not taken & {name_of_size(own, size) for size in sizes}

        base = next(own for own in _bases(name, blocks.name) if name is not None or free(own))
        before = len(self.blocks)
        try:
            return tuple(
                self.add(kind, scope[places], name=name_of_size(base, size))
                for size, (kind, _, places) in zip(sizes, blocks.parts, strict=True)
            )
        except BlocklpError:  # all of them or none
            del self.blocks[before:]
            raise

    def add_rows(
        self,
        matrix: object,
        variables: View,
        lower: object = None,
        upper: object = None,
        *,
        name: str | None = None,
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

        Returns
        -------
        Rows
            The handle, by which a solution gives prices and slacks.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError
            If the parts are no numbers, do not fit together, hold NaN, or leave no value between the sides of
            a row.
        """
        of_type(variables, View, "the variables of rows", "a variable or a view of one", ModelError)
        if variables.model is not self:
            raise ModelError(OTHER_MODEL)
        from blocklp.language.row_expression import RowExpression, constraint  # scipy takes long to import

        what = "rows" if name is None else f"rows {name!r}"
        rows = RowExpression.product(matrix, self, variables.index, repr(variables), what)
        return self._add_constraint(constraint(rows, lower, upper, what), name)

    def _add_constraint(self, stated: RowConstraint, name: str | None) -> Rows:
        if stated.model is not self:
            raise ModelError(OTHER_MODEL)
        taken = self._taken.among(self.blocks, self.rows)
        if name is None:
            name = next(free for n in count(len(self.rows) + 1) if (free := f"rows_{n}") not in taken)
        elif text(name, "the name of rows") in taken:
            raise ModelError(f"the model already has rows or blocks named {name!r}; choose another name")
        batch = max(len(stated.lower), len(stated.upper))
        lower, upper = (side.expand(batch, -1) for side in (stated.lower, stated.upper))
        none = (lower > upper) | (lower == torch.inf) | (upper == -torch.inf)
        if bool(none.any()):
            i, r = none.nonzero()[0].tolist()
            sides = f"{float(lower[i, r]):g} and {float(upper[i, r]):g}" + f" in instance {i}" * (batch > 1)
            raise ModelError(f"row {name}[{r}] leaves no value between {sides}")
        own = replace(stated, lower=stated.lower.detach(), upper=stated.upper.detach())
        given = stated if lower.requires_grad or upper.requires_grad else None
        made = Rows(name, own, given)
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
            need = "add the new ones as blocks of another name"
            raise ModelError(f"{before.name!r} have data or maps of single blocks; {need}")
        index = scope_of(self, scope, before.type)
        if index.shape[1] != before.scope.shape[1]:
            had, width = before.scope.shape[1], index.shape[1]
            raise ScopeError(f"{before.name!r} have {had} variables a block, the scope gives {width}")
        refuse_beyond_defaults(self, index, before.type)
        made = Blocks(before.name, before.type, torch.cat([before.scope, index]))
        self._ask_once(Blocks(before.name, before.type, index))
        self.blocks[place] = made
        return made

    def replace(self, blocks: Blocks | str, block_type: BlockType) -> Blocks:
        """Give blocks other data, such as another capacity; compiled solvers use them, as another objective.

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
            If the model has no such blocks, the type differs in more than data, or these do not fit the
            number of blocks.
        OracleError
            If the type's oracle gives wrong answers, see :func:`blocklp.check`.
        """
        place = self._place(blocks, "replace()")
        before = self.blocks[place]
        of_type(block_type, BlockType, "the type given to replace()", SUBCLASS, ModelError)
        if what := difference(before.type, block_type.detached()):
            need = "only data may, else add blocks of another name"
            raise ModelError(f"{before.name!r} differ from the type given in {what}; {need}")
        self._check_data(before.name, block_type, len(before.scope))
        refuse_beyond_defaults(self, before.scope, block_type)
        made = _blocks(before.name, block_type, before.scope, before.maps)
        self._ask_once(made)
        self.blocks[place] = made
        return made

    def _place(self, blocks: Blocks | str, verb: str) -> int:
        """The position of blocks among those of the model."""
        of_type(blocks, Blocks | str, f"the blocks given to {verb}", HANDLE, ModelError)
        name = blocks if isinstance(blocks, str) else blocks.name
        place = next((i for i, b in enumerate(self.blocks) if b.name == name), None)
        if place is None:
            raise ModelError(f"the model has no blocks named {name!r}; add them first")
        return place

    def _check_data(self, name: str, block_type: BlockType, count: int) -> None:
        """Refuse data of a type that do not fit the instances and ``count`` blocks."""
        for key, data in block_type.tensors().items():
            if data.shape[0] not in (1, self.batch) or data.shape[1] not in (1, count):
                need = f"it needs (1 or batch={self.batch}, 1 or blocks={count}), as data[None, None] of one"
                raise ShapeError(
                    f"{name}: {key} has leading dimensions {tuple(data.shape[:2])}; {need} block"
                )

    def remove(self, handle: Blocks | Rows | str) -> None:
        """Take blocks or rows out of the model again.

        Compile again before the next solve; a state of an earlier one still starts it, without the
        multipliers of what was removed.

        Parameters
        ----------
        handle : Blocks, Rows or str
            The handle that :meth:`add` returned, or its name.

        Raises
        ------
        UnknownNameError
            If the model has no such blocks or rows.
        """
        of_type(handle, Blocks | Rows | str, "what is given to remove()", HANDLE, ModelError)
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
        names = listed(map(repr, self._names())) or "none"
        raise UnknownNameError(f"the model has no blocks or rows {name!r}; it has {names}")

    def _names(self) -> dict[str, None]:
        """Names of blocks and rows, in order."""
        return dict.fromkeys([*(b.name for b in self.blocks), *(r.name for r in self.rows)])

    def _ask_once(self, blocks: Blocks) -> None:
        """Call the oracle on two costs, so that a wrong one is refused where it is declared."""
        kind, (count, dim) = blocks.type, blocks.scope.shape
        if blocks.given is not None:
            refuse_without_gradients(blocks.given, self.batch, count, dim)
        if kind.stateless and not kind.tensors():
            ask_known(Stateless(kind), 2, 3, dim)
        elif count:
            ask(kind, self.batch, count, dim)

    def minimize(self, objective: Expression | View) -> None:
        """Set the objective, a linear expression of shape ``()``, in place of any other.

        Compiled solvers use it from the next solve on.

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
            need = "it must be a linear expression in this model's variables"
            raise ModelError(f"the objective is {shown(objective)}; {need}")
        if objective.shape != ():
            shape = objective.shape
            raise ShapeError(f"the objective has shape {shape}; sum it to a scalar with .sum() or @")
        self.objective, self.maximizing = objective, maximizing

    def repair_with(self, repair: PrimalRepair | None) -> None:
        """Give a map from an approximate primal point to one that satisfies all blocks.

        It takes and returns ``{name: (batch, *shape)}`` for every variable; the result is checked against
        bounds and, where the block types state them, constraints, before its value counts.  Points are also
        looked for as without it.

        Raises
        ------
        OptionError
            If it is no function; None takes the hook away.
        """
        hook(repair, "repair")
        self.repair = repair

    def sizes(self) -> dict[str, Any]:
        """Numbers of variables, blocks by name, copies, variables by how many blocks share them, and rows."""
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
        return as_text(*summary(self))

    def _repr_html_(self) -> str:
        return as_html(*summary(self))


def _blocks(name: str, kind: BlockType, scope: Tensor, maps: tuple[Linear, Linear] | None) -> Blocks:
    """A handle, whose type carries no gradients."""
    own = kind.detached()
    return Blocks(name, own, scope, maps, None if own is kind else kind)


def _bases(name: str | None, kind: str) -> Iterator[str]:
    """A name that was given, or that of the type, then numbered from two on."""
    if name is not None:
        yield text(name, "the name of blocks")
        return
    yield kind
    yield from (f"{kind}_{n}" for n in count(2))
