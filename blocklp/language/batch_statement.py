"""Models of one structure and different sizes, stated together from concatenated arrays.

Nothing here is done for single instances: a batch of thousands takes a fixed number of tensor operations,
on the device where its arrays lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.blocks.contract import BlockType, Stateless
from blocklp.blocks.oracle_answers import ask, ask_known
from blocklp.errors import ModelError, NonFiniteError, ScopeError, ShapeError, UnknownNameError
from blocklp.language.coefficients import all_finite
from blocklp.language.expression import View
from blocklp.language.handles import ROWS
from blocklp.language.offsets import Offsets
from blocklp.language.ragged import RaggedBlocks, RaggedVariable, RaggedView
from blocklp.language.scopes import refuse_beyond_default
from blocklp.language.statement import SUBCLASS, Statement
from blocklp.options import as_tensor, instance_number, of_type, real, shown, text, without_gradients

TRIED = 16
"""Blocks with data of their own that the oracle is tried on where a type is declared."""


class BatchStatement(Sequence[Statement]):
    """A batch as it is stated; :class:`blocklp.ModelBatch` adds methods that solve it.

    As a sequence it holds the models of its instances, each of which is made when it is asked for.
    """

    model_class: type[Statement] = Statement

    def __init__(self) -> None:
        self.variables: dict[str, RaggedVariable] = {}
        self.blocks: list[RaggedBlocks] = []
        self.maximizing = False
        self.cost: Tensor | None = None
        self.constant: Tensor | None = None
        self.sizes: Tensor | None = None
        self.largest = 0  # variables of the largest instance
        self._models: dict[int, Statement] = {}

    def variable(
        self, name: str, offsets: object, *, lower: object, upper: object, grid: float = 0.0
    ) -> RaggedVariable:
        """Declare an array of variables with a length of its own in every instance.

        Parameters
        ----------
        name : str
            Unique in the batch.
        offsets : array_like of int
            ``(count + 1,)``: where the entries of each instance begin in concatenated arrays ``(total,)``,
            from 0 to their number.
        lower, upper : float or array_like
            Finite bounds: a number, or ``(total,)`` of them.
        grid : float
            As in :meth:`blocklp.Model.variable`.

        Returns
        -------
        RaggedVariable
            The array; ``x[index]`` are entries by their numbers in their own instance, for scopes.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError, OptionError
            If the name is taken, the offsets or bounds do not fit, or a bound is infinite or above another.
        """
        if text(name, "the name of a variable") in self.variables:
            raise ModelError(f"the batch already has a variable {name!r}; choose another name")
        own = self._offsets(offsets, f"offsets of {name!r}")
        low, high = (
            _kept(self._numbers(side, own, f"{which} bound of {name!r}"))
            for side, which in ((lower, "lower"), (upper, "upper"))
        )
        tightest = _extreme(low, torch.amax), _extreme(high, torch.amin)
        crossed = low > high
        if bool(crossed) if isinstance(crossed, bool) else bool(crossed.any()):
            raise ModelError(f"variable {name!r}: a lower bound is above its upper bound")
        step = real(grid, f"grid of variable {name!r}", positive=False)
        start = torch.zeros_like(own.sizes) if self.sizes is None else self.sizes
        before = list(self.variables.values())
        same = all(v.offsets.uniform for v in before)
        made = RaggedVariable(
            name, own, start, sum(v.offsets.most for v in before) if same else None, low, high, tightest, step
        )
        self.sizes = start + own.sizes
        self.largest = sum(v.offsets.most for v in (*before, made))
        if not (same and own.uniform):
            self.largest = int(self.sizes.max())
        self.variables[name] = made
        self._models.clear()
        return made

    def add(
        self,
        block_type: BlockType,
        scope: Sequence[RaggedVariable | RaggedView],
        *,
        offsets: object = None,
        name: str | None = None,
    ) -> RaggedBlocks:
        """Add blocks of one type.

        Parameters
        ----------
        block_type : BlockType
            The type; data of single blocks are ``(1, blocks of all instances, ...)``.
        scope : sequence of RaggedVariable or RaggedView
            One for each position of a block, or ``x[index]`` with an index ``(blocks, k)`` for several: the
            entries of the blocks of all instances, one after the other.  A whole variable is one entry for
            each block.
        offsets : array_like of int, optional
            ``(count + 1,)``: where the blocks of each instance begin; by default those of the first whole
            variable of the scope.
        name : str, optional
            Name of the blocks; that of the type by default.

        Returns
        -------
        RaggedBlocks
            The handle.

        Raises
        ------
        ModelError, ShapeError, ScopeError, OracleError
            As :meth:`blocklp.Model.add`.
        """
        of_type(block_type, BlockType, "the type given to add()", SUBCLASS, ModelError)
        name = block_type.name if name is None else text(name, "the name of blocks")
        if name in (BOX, ROWS) or name in [b.name for b in self.blocks]:
            raise ModelError(f"the name {name!r} is taken; choose another name")
        whole = [s for s in scope if isinstance(s, RaggedVariable)]
        if offsets is None and not whole:
            raise ModelError(f"{name}: give offsets=, where the blocks of each instance begin")
        own = whole[0].offsets if offsets is None else self._offsets(offsets, f"offsets of {name!r}")
        if not own.total:
            raise ScopeError(f"{name}: there are no blocks; leave them out")
        parts = [self._entries(part, own, name) for part in scope]
        variables, columns = [p[0] for p in parts for _ in range(p[1])], self._columns(parts, own)
        if block_type.dim not in (None, len(variables)):
            what = f"{block_type.name} has {block_type.dim} variables a block"
            raise ScopeError(f"{what}, the scope gives {len(variables)}")
        for j in range(len(variables)):
            for i in range(j):
                if variables[i] is variables[j] and bool((columns[:, i] == columns[:, j]).any(1).any()):
                    self._refuse_twice(columns, own, name)
        for key, data in block_type.tensors().items():
            without_gradients(data, f"{name}: {key}")
            if data.shape[0] != 1 or data.shape[1] not in (1, own.total):
                need = f"it needs (1, 1 or blocks={own.total})"
                raise ShapeError(f"{name}: {key} has leading dimensions {tuple(data.shape[:2])}; {need}")
        self._refuse_beyond_defaults(block_type, scope, own)
        self._ask_once(block_type, own.total, len(variables))
        made = RaggedBlocks(name, block_type, own, columns)
        self.blocks.append(made)
        self._models.clear()
        return made

    def minimize(self, costs: Mapping[Any, object], constant: object = 0.0) -> None:
        """Set the objective in place of any other.

        Compiled solvers use it from the next solve on.

        Parameters
        ----------
        costs : mapping
            Variables, or their names, to numbers ``(total,)`` each, or one number.
        constant : float or array_like
            Constant of the objective, a number or ``(count,)``.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError, UnknownNameError
            If a variable is unknown, or numbers do not fit or are not finite.
        """
        if self.sizes is None:
            raise ModelError("the batch has no variables; declare at least one")
        width = self.largest + (len(self) > 1)
        cost = torch.zeros(len(self), width, dtype=torch.float64, device=self.sizes.device)
        for key, given in costs.items():
            variable = self.known(key)
            variable.lay_out(self._numbers(given, variable.offsets, f"cost of {variable.name!r}"), cost)
        each = Offsets(torch.arange(len(self) + 1, device=cost.device), len(self), 1, 1)
        const = self._numbers(constant, each, "the constant of the objective")
        self.cost = cost
        self.constant = cost.new_full((len(self),), const) if isinstance(const, float) else const.clone()
        self.maximizing = False
        self._models.clear()

    def maximize(self, costs: Mapping[Any, object], constant: object = 0.0) -> None:
        """Set the objective to be maximised, see :meth:`minimize`; bounds are then upper bounds."""
        self.minimize(costs, constant)
        self.maximizing = True

    @property
    def device(self) -> torch.device:
        """Where its arrays lie."""
        return torch.device("cpu") if self.sizes is None else self.sizes.device

    def known(self, key: object) -> RaggedVariable:
        """The variable of the batch that is given, by itself or by its name.

        Raises
        ------
        UnknownNameError
            If there is none.
        """
        found = self.variables.get(key) if isinstance(key, str) else key
        if not isinstance(found, RaggedVariable) or self.variables.get(found.name) is not found:
            raise UnknownNameError(f"the batch has no variable {shown(key)}; it has {list(self.variables)}")
        return found

    def values(self, key: object, x: Tensor) -> Tensor:
        """Concatenated values ``(total,)`` of a variable at points ``(count, width)``."""
        variable = self.known(key)
        columns = torch.arange(variable.offsets.most, device=x.device) + variable.start.to(x.device)[:, None]
        rows = x.gather(1, columns.clamp_(max=x.shape[1] - 1))
        return rows.flatten() if variable.offsets.uniform else rows[variable.offsets.valid.to(x.device)]

    def size_of(self, instance: int) -> int:
        """Number of variables of an instance."""
        return sum(v.offsets.counts[instance] for v in self.variables.values())

    def __len__(self) -> int:
        return 0 if self.sizes is None else len(self.sizes)

    @overload
    def __getitem__(self, index: int) -> Statement: ...
    @overload
    def __getitem__(self, index: slice) -> list[Statement]: ...
    def __getitem__(self, index: int | slice) -> Statement | list[Statement]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = instance_number(index, len(self))
        if i not in self._models:
            self._models[i] = self._model(i)
        return self._models[i]

    def _model(self, i: int) -> Statement:
        """The model of an instance, without what is empty in it."""
        m, views = self.model_class(), []
        for v in self.variables.values():
            size = v.offsets.counts[i]
            if size:
                lower, upper = v.part(v.lower, i), v.part(v.upper, i)
                views.append(m.variable(v.name, size, lower=lower, upper=upper, grid=v.grid))
        for b in self.blocks:
            count = b.offsets.counts[i]
            if count:
                columns = b.columns[i, :, :count].T.cpu()
                m.add(b.data_of(i), View(m, b.name, columns), name=b.name)
        if self.cost is not None and self.constant is not None:
            cost = self.cost[i, : m.size].cpu()
            terms = [view @ cost[view.columns] for view in views]
            objective = sum(terms[1:], terms[0]) + float(self.constant[i])
            (m.maximize if self.maximizing else m.minimize)(objective)
        return m

    def __repr__(self) -> str:
        blocks = ", ".join(f"{b.offsets.total} x {b.type!r}" for b in self.blocks) or "no blocks"
        variables = ", ".join(map(repr, self.variables.values())) or "no variables"
        return f"Batch of {len(self)} models: {variables}; {blocks}"

    def _offsets(self, given: object, what: str) -> Offsets:
        """Offsets with as many instances as the batch has, on its device."""
        for v in self.variables.values():  # a tensor that was read before
            if given is v.offsets.first:
                return v.offsets
        own = Offsets.of(given, what)
        if self.sizes is None:
            return own
        if own.count != len(self):
            raise ShapeError(f"{what} are for {own.count} instances, the batch has {len(self)}")
        return replace(own, first=own.first.to(self.sizes.device))

    def _numbers(self, given: object, offsets: Offsets, what: str) -> float | Tensor:
        """One finite number, or ``(total,)`` of them as float64 on the device of the offsets."""
        if isinstance(given, int | float) and math.isfinite(given):
            return float(given)
        try:
            data = as_tensor(given)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ModelError(f"{what}: cannot read {type(given).__name__} as numbers") from error
        if data.is_complex():
            raise ModelError(f"{what} holds complex numbers; give real ones")
        if data.shape not in ((), (offsets.total,)):
            need = f"give a number, or ({offsets.total},) of them"
            raise ShapeError(f"{what} has shape {tuple(data.shape)}; {need}")
        data = data.to(offsets.first.device, torch.float64)
        if not all_finite(data):
            raise NonFiniteError(f"{what} holds NaN or infinite entries; every one must be finite")
        return data if data.dim() else float(data)

    def _refuse_beyond_defaults(
        self, block_type: BlockType, scope: Sequence[RaggedVariable | RaggedView], own: Offsets
    ) -> None:
        """Refuse variables whose bounds reach beyond those that blocks have by default."""
        for side in block_type.default_sides:
            for part in scope:
                variable = self.known(part.variable if isinstance(part, RaggedView) else part)
                values = getattr(variable, side)
                bounds = values if isinstance(values, Tensor) else torch.tensor([values], dtype=torch.float64)
                if isinstance(part, RaggedView) and isinstance(values, Tensor):
                    first = variable.offsets.first[:-1].repeat_interleave(own.sizes)
                    at = part.index.reshape(len(part.index), -1).to(first.device) + first[:, None]
                    bounds = values[at.reshape(-1)]
                refuse_beyond_default(block_type, side, bounds, repr(variable.name))

    def _entries(
        self, part: RaggedVariable | RaggedView, own: Offsets, name: str
    ) -> tuple[RaggedVariable, int, Tensor | None]:
        """A part of a scope: its variable, its number of positions, and its numbers ``(count, most, k)``."""
        if isinstance(part, RaggedVariable):
            variable = self.known(part)
            if variable.offsets is not own and not torch.equal(variable.offsets.first, own.first):
                raise ScopeError(f"{name}: {variable.name!r} has not one entry for each block")
            return variable, 1, None
        need = "a variable, or x[index]"
        of_type(part, RaggedView, f"a part of the scope of {name}", need, ScopeError)
        variable, index = self.known(part.variable), part.index.to(own.first.device)
        if index.dim() not in (1, 2) or len(index) != own.total:
            need = f"it needs one entry, or one row of them, for each of {own.total} blocks"
            raise ScopeError(f"{name}: an index of {variable.name!r} has shape {tuple(index.shape)}; {need}")
        index = index[:, None] if index.dim() == 1 else index
        rows = own.padded(index)
        if own.uniform:
            inside = (rows.amin() >= 0) & (rows.amax((1, 2)) < variable.offsets.sizes).all()
        else:
            high = torch.where(own.valid[..., None], rows, -1).amax((1, 2))
            inside = (index.amin() >= 0) & (high < variable.offsets.sizes.clamp(min=1)).all()
            inside &= ((variable.offsets.sizes > 0) | (own.sizes == 0)).all()
        if not bool(inside):
            raise ScopeError(f"{name}: an index of {variable.name!r} is out of range of its instance")
        return variable, index.shape[1], rows

    @staticmethod
    def _columns(parts: Sequence[tuple[RaggedVariable, int, Tensor | None]], own: Offsets) -> Tensor:
        """Columns ``(count, dim, most)`` of the parts of a scope."""
        dim, at = sum(width for _, width, _ in parts), 0
        columns = own.first.new_empty(own.count, dim, own.most)
        for variable, width, rows in parts:
            if rows is None:
                rows = torch.arange(own.most, device=own.first.device)[None, :, None]
            torch.add(rows.transpose(1, 2), variable.start[:, None, None], out=columns[:, at : at + width])
            at += width
        return columns

    @staticmethod
    def _refuse_twice(columns: Tensor, own: Offsets, name: str) -> None:
        """Refuse blocks that name a variable twice, padding aside."""
        ordered = columns.sort(1).values
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(1) & own.valid
        if bool(twice.any()):
            i, block = twice.nonzero()[0].tolist()
            need = "every position needs its own variable"
            raise ScopeError(f"block {block} of {name} in instance {i} names a variable twice; {need}")

    @staticmethod
    def _ask_once(kind: BlockType, count: int, dim: int) -> None:
        """Call the oracle on two costs, so that a wrong one is refused where it is declared."""
        if kind.stateless and not kind.tensors():
            ask_known(Stateless(kind), 2, 3, dim)
            return
        few = min(count, TRIED)
        own = {k: t[:, :few] for k, t in kind.tensors().items()}
        ask(kind.with_data(**own).to(torch.float64, torch.device("cpu")), 1, few, dim)


class InstanceModel(Sequence[Statement]):
    """The model of one instance of a batch, made when it is asked for."""

    def __init__(self, batch: BatchStatement, number: int) -> None:
        self.batch, self.number = batch, number

    def values(self, variable: RaggedVariable, x: Tensor) -> Tensor:
        """Values ``(1, size)`` of a variable at a point ``(1, columns)`` of the instance."""
        names = list(self.batch.variables)
        before = names[: names.index(variable.name)]
        first = sum(self.batch.variables[name].offsets.counts[self.number] for name in before)
        return x[:, first : first + variable.offsets.counts[self.number]].clone()

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, index: int) -> Statement: ...
    @overload
    def __getitem__(self, index: slice) -> list[Statement]: ...
    def __getitem__(self, index: int | slice) -> Statement | list[Statement]:
        return [self.batch[self.number]][index]


def _kept(values: float | Tensor) -> float | Tensor:
    """A copy of what the caller may write to."""
    return values if isinstance(values, float) else values.clone()


def _extreme(values: float | Tensor, of: Any) -> float:
    """The largest or least of some numbers."""
    return values if isinstance(values, float) else float(of(values))
