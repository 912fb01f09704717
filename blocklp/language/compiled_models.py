"""Models as a solver holds them: a list of them, or a batch stated from arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.blocks.type_difference import difference
from blocklp.deadline import Deadline
from blocklp.decomposition.problem import Decomposition
from blocklp.errors import InstanceError, ModelError
from blocklp.language.batch_statement import BatchStatement, InstanceModel
from blocklp.language.expression import Values
from blocklp.language.handles import ROWS, Blocks, Rows, name_of_size
from blocklp.language.instances import BUILDING, Instances
from blocklp.language.lowering import assemble, costs, unblocked
from blocklp.language.ragged_instances import RaggedInstances
from blocklp.language.shard import SOLVE
from blocklp.language.small_groups import Together
from blocklp.language.statement import Statement
from blocklp.language.variable_bounds import Bounds, carry_gradients
from blocklp.options import numbers, of_type

CHANGED = (
    "the model was changed since it was compiled, in its sense, variables, bounds or blocks; compile it "
    "again, or give tighter bounds as bounds="
)


class CompiledModels(Protocol):
    """What a solver asks of the models that were compiled together.

    Attributes
    ----------
    batch, width : int
        Number of all instances, and of variables of each, padding included.
    """

    batch: int
    width: int

    @property
    def models(self) -> Sequence[Statement]:
        """The models."""

    @property
    def maximizing(self) -> bool:
        """Whether the objective is maximised."""

    @property
    def rows(self) -> tuple[Rows, ...]:
        """Rows beside the blocks, which all instances share."""

    @property
    def shard(self) -> Statement | None:
        """The model, where other processes state parts of it too."""

    def owner(self, instance: int) -> tuple[Statement, int]:
        """Return the model of an instance and the instance's number in it."""

    def part(self, instance: int) -> tuple[Sequence[Statement], int]:
        """A sequence of the model of an instance alone, and how many variables it has."""

    def counts(self, instance: int) -> dict[str, tuple[str, int]]:
        """Blocks and rows of an instance by names of groups: names of their own, and numbers."""

    def replaced(self) -> bool:
        """Whether block data were replaced since the last call; other changes raise :class:`ModelError`."""

    def assembled(self, bounds: Bounds, device: torch.device, deadline: Deadline) -> Decomposition:
        """The decomposition for some bounds, with zero costs (:func:`assemble`).

        Parameters
        ----------
        bounds : Bounds
            Bounds of variables beside those of the models, as :meth:`blocklp.Model.solve` takes them.
        device : torch.device
            Where its tensors are.
        deadline : Deadline
            Checked before it is built.
        """

    def unblocked(self, bounds: Bounds, device: torch.device) -> Decomposition:
        """The decomposition without blocks (:func:`unblocked`)."""

    def objectives(self) -> list[object]:
        """Objects that are others once the objective is, or empty where parameters may change it."""

    def costs(self, values: Values | None) -> tuple[Tensor, Tensor]:
        """Costs ``(batch, width)`` and constants ``(batch,)``, in the sense of the models."""

    def bounds_with_gradients(self, bounds: Bounds) -> tuple[Tensor, Tensor] | None:
        """Bounds ``(batch or 1, width)`` with their gradients, or None where none requires any."""

    def with_gradients(self) -> Sequence[tuple[int, Statement]]:
        """The models whose blocks or rows hold data that require gradients, after their first instances."""

    def hooked(self) -> Tensor:
        """Which instances have a repair hook: ``(batch,)`` bool."""

    def repair(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Wrap the repair hooks: points ``(k, width)`` of instances ``(k,)``; NaN where there is no hook."""


class ModelList:
    """Models that were stated one by one.

    Raises
    ------
    ModelError
        If a model has no objective or no variables, or the models do not fit together.
    """

    def __init__(self, models: list[Statement]) -> None:
        first = models[0]
        for m in models:
            if m.objective is None:
                raise ModelError("the model has no objective; call minimize() or maximize() first")
            if not m.size:
                raise ModelError("the model has no variables; declare at least one")
            if m.maximizing != first.maximizing:
                raise ModelError("models compiled together need the same sense, minimize() or maximize()")
            _check_names(m, first)
            if list(m.variables) != list(first.variables):
                raise ModelError("models compiled together need the same variables by name, in one order")
        if len(models) > 1 and any(m.part is not None for m in models):
            raise ModelError(f"models of which processes state parts compile alone; {SOLVE}")
        if len(models) > 1 and any(m.rows for m in models):
            need = "instances that share the rows are a batch of one model"
            raise ModelError(f"models with rows compile alone; {need}")
        for b in (b for m in models for b in m.blocks if len(models) > 1 and b.maps is not None):
            need = "models with such blocks compile alone"
            raise ModelError(f"blocks {b.name!r} have maps of their own; {need}")
        _check_types(models)
        self.models = models
        self.batch = sum(m.batch for m in models)
        self.width = max(m.size for m in models) + (len(models) > 1)
        self._built, self._blocks = [_built(m) for m in models], [_blocks(m) for m in models]
        self._groups: Sequence[Together] | None = None

    @property
    def maximizing(self) -> bool:
        """Whether the objective is maximised."""
        return self.models[0].maximizing

    @property
    def rows(self) -> tuple[Rows, ...]:
        """Rows beside the blocks, which all instances share."""
        return tuple(self.models[0].rows)

    @property
    def shard(self) -> Statement | None:
        """The model, where other processes state parts of it too."""
        return None if self.models[0].part is None else self.models[0]

    def owner(self, instance: int) -> tuple[Statement, int]:
        """Return the model of an instance and the instance's number in it."""
        for m in self.models:
            if instance < m.batch:
                return m, instance
            instance -= m.batch
        raise InstanceError(f"instance {instance} is out of range of a batch of {self.batch}")

    def part(self, instance: int) -> tuple[Sequence[Statement], int]:
        """A sequence of the model of an instance alone, and how many variables it has."""
        model, _ = self.owner(instance)
        return [model], model.size

    def counts(self, instance: int) -> dict[str, tuple[str, int]]:
        """Blocks and rows of an instance by names of groups: names of their own, and numbers."""
        model, _ = self.owner(instance)
        blocks = {b.name: (b.name, len(b.scope)) for b in model.blocks} | {BOX: (BOX, model.size)}
        blocks[ROWS] = (ROWS, sum(r.count for r in model.rows))
        sized = {name_of_size(b.name, b.scope.shape[1]): (b.name, len(b.scope)) for b in model.blocks}
        return blocks | sized

    def replaced(self) -> bool:
        """Whether block data were replaced since the last call; other changes raise :class:`ModelError`."""
        blocks = [_blocks(m) for m in self.models]
        same = [_built(m) for m in self.models] == self._built
        if not same or not all(map(_same_places, blocks, self._blocks)):
            raise ModelError(CHANGED)
        if blocks == self._blocks:
            return False
        _check_types(self.models)
        self._blocks, self._groups = blocks, None
        return True

    def assembled(self, bounds: Bounds, device: torch.device, deadline: Deadline) -> Decomposition:
        """The decomposition for some bounds, with zero costs (:func:`assemble`).

        Parameters
        ----------
        bounds, device, deadline
            As in :meth:`CompiledModels.assembled`.
        """
        deadline.check(BUILDING)
        instances = Instances(self.models, self.width, deadline, self._groups)
        self._groups = instances.groups
        return assemble(instances, bounds, device)

    def unblocked(self, bounds: Bounds, device: torch.device) -> Decomposition:
        """The decomposition without blocks (:func:`unblocked`)."""
        return unblocked(Instances(self.models, self.width, Deadline()), bounds, device)

    def objectives(self) -> list[object]:
        """Objects that are others once the objective is, or empty where parameters may change it."""
        expressions = [m.objective for m in self.models if m.objective is not None]
        free = all(t.parameter is None for e in expressions for t in e.terms)
        return list(expressions) if free else []

    def costs(self, values: Values | None) -> tuple[Tensor, Tensor]:
        """Costs ``(batch, width)`` and constants ``(batch,)``, in the sense of the models."""
        return costs([m.objective for m in self.models if m.objective is not None], self.width, values)

    def bounds_with_gradients(self, bounds: Bounds) -> tuple[Tensor, Tensor] | None:
        """Bounds ``(batch or 1, width)`` with their gradients, or None where none requires any."""
        if not carry_gradients(self.models, bounds):
            return None
        return Instances(self.models, self.width, Deadline()).bounds(bounds)

    def with_gradients(self) -> Sequence[tuple[int, Statement]]:
        """The models whose blocks or rows hold data that require gradients, after their first instances."""
        first = accumulate((m.batch for m in self.models), initial=0)
        return [
            (i, m)
            for i, m in zip(first, self.models, strict=False)
            if any(b.given is not None for b in m.blocks) or any(r.given is not None for r in m.rows)
        ]

    def hooked(self) -> Tensor:
        """Which instances have a repair hook: ``(batch,)`` bool."""
        hooks = torch.tensor([m.repair is not None for m in self.models])
        return hooks.repeat_interleave(torch.tensor([m.batch for m in self.models]))

    def repair(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Wrap the repair hooks: points ``(k, width)`` of instances ``(k,)``; NaN where there is no hook."""
        if all(m.repair is None for m in self.models):
            return None
        first = torch.tensor([0, *(m.batch for m in self.models)]).cumsum(0)

        def repair(x: Tensor, rows: Tensor) -> Tensor:
            fixed = torch.full_like(x, torch.nan)
            for m, start in zip(self.models, first.tolist(), strict=False):
                mine = ((rows >= start) & (rows < start + m.batch)).nonzero()[:, 0]
                if len(mine) and m.repair is not None:
                    parts = {k: x[mine][:, v.index.to(x.device)] for k, v in m.variables.items()}
                    shapes = {k: tuple(part.shape) for k, part in parts.items()}
                    for k, value in _repaired(m.repair(parts), shapes).items():
                        at = m.variables[k].index.reshape(1, -1).to(x.device)
                        fixed[mine[:, None], at] = value.to(x).reshape(len(mine), -1)
            return fixed

        return repair


class BatchModels:
    """Models that were stated together from concatenated arrays.

    Raises
    ------
    ModelError
        If the batch has no objective.
    """

    def __init__(self, batch: BatchStatement) -> None:
        if batch.cost is None:
            raise ModelError("the batch has no objective; call minimize() or maximize() first")
        self.models = self.stated = batch
        self.batch = len(batch)
        self.width = batch.largest + (len(batch) > 1)
        self._built = self._parts()

    def _parts(self) -> tuple[object, ...]:
        return self.stated.maximizing, list(self.stated.variables.values()), list(self.stated.blocks)

    @property
    def maximizing(self) -> bool:
        """Whether the objective is maximised."""
        return self.stated.maximizing

    @property
    def rows(self) -> tuple[Rows, ...]:
        """None: a batch has no rows beside its blocks."""
        return ()

    @property
    def shard(self) -> None:
        """None: one process states a batch."""

    def owner(self, instance: int) -> tuple[Statement, int]:
        """Return the model of an instance, which it has alone."""
        return self.stated[instance], 0

    def part(self, instance: int) -> tuple[Sequence[Statement], int]:
        """A sequence of the model of an instance alone, and how many variables it has."""
        return InstanceModel(self.stated, instance), self.stated.size_of(instance)

    def counts(self, instance: int) -> dict[str, tuple[str, int]]:
        """Blocks of an instance by names of groups: the same names, and numbers."""
        blocks = {b.name: (b.name, b.offsets.counts[instance]) for b in self.stated.blocks}
        return blocks | {BOX: (BOX, self.stated.size_of(instance))}

    def replaced(self) -> bool:
        """Refuse changes but those of the objective: False."""
        if self._parts() != self._built:
            raise ModelError(CHANGED)
        return False

    def assembled(self, bounds: Bounds, device: torch.device, deadline: Deadline) -> Decomposition:
        """The decomposition for some bounds, with zero costs (:func:`assemble`).

        Where bounds cut off parts of blocks, instances may get groups of their own: they are lowered one by
        one then.

        Parameters
        ----------
        bounds, device, deadline
            As in :meth:`CompiledModels.assembled`.
        """
        instances = RaggedInstances(self.stated, self.width, deadline)
        if bounds or instances.cuts_blocks():
            return assemble(Instances(list(self.stated), self.width, deadline), bounds, device)
        return assemble(instances, bounds, device)

    def unblocked(self, bounds: Bounds, device: torch.device) -> Decomposition:
        """The decomposition without blocks (:func:`unblocked`)."""
        own = list(self.stated) if bounds else None
        none = Deadline()
        ragged = RaggedInstances(self.stated, self.width, none)
        return unblocked(ragged if own is None else Instances(own, self.width, none), bounds, device)

    def objectives(self) -> list[object]:
        """Objects that are others once the objective is."""
        return [self.stated.cost]

    def costs(self, values: Values | None) -> tuple[Tensor, Tensor]:
        """Costs ``(batch, width)`` and constants ``(batch,)``, in the sense of the batch."""
        cost, constant = self.stated.cost, self.stated.constant
        assert cost is not None and constant is not None
        more = self.width - cost.shape[1]
        return torch.nn.functional.pad(cost, (0, more)) if more else cost, constant

    def bounds_with_gradients(self, bounds: Bounds) -> None:
        """None: bounds of a batch carry no gradients."""

    def with_gradients(self) -> Sequence[tuple[int, Statement]]:
        """None: data of the blocks of a batch carry no gradients."""
        return ()

    def hooked(self) -> Tensor:
        """Which instances have a repair hook: none."""
        return torch.zeros(self.batch, dtype=torch.bool)

    def repair(self) -> None:
        """There are no repair hooks."""


def _repaired(answer: object, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Check the answer of a repair hook: a tensor of a known shape for every variable.

    Raises
    ------
    ModelError
        If it is anything else.
    """
    must = "the repair hook must return a dict of tensors, one for each variable: " + ", ".join(
        f"{k!r} {s}" for k, s in shapes.items()
    )
    of_type(answer, Mapping, "what the repair hook returned", must, ModelError)
    assert isinstance(answer, Mapping)
    if answer.keys() != shapes.keys():
        raise ModelError(f"{must}; it returned {', '.join(map(repr, answer)) or 'none'}")
    found = {}
    for name, shape in shapes.items():
        with torch.no_grad():
            found[name] = numbers(answer[name], f"{name!r} of the repair hook")
        if found[name].shape != shape:
            raise ModelError(f"{must}; its {name!r} has shape {tuple(found[name].shape)}")
    return found


def _check_names(model: Statement, first: Statement) -> None:
    """Refuse a model whose blocks have other names than those of the first one."""
    for a, b in zip_longest(
        *([repr(own.name) for own in m.blocks] for m in (first, model)), fillvalue="none"
    ):
        if a != b:
            what = f"the first has {a} where another has {b}"
            need = "add blocks whose number differs in one call, or by extend()"
            raise ModelError(
                f"models compiled together need the same names of blocks, in one order: {what}; {need}"
            )


def _check_types(models: Sequence[Statement]) -> None:
    """Refuse blocks of one name and size that differ in more than their data."""
    for same in zip(*(m.blocks for m in models), strict=True):
        for a in same:
            b = next(other for other in same if other.scope.shape[1] == a.scope.shape[1])
            if what := difference(a.type, b.type):
                raise ModelError(
                    f"blocks {a.name!r} differ in {what} between models compiled together; a type may differ "
                    f"in its block_data only: give the others another name of blocks, or compile them alone"
                )


def _same_places(now: Sequence[tuple[Blocks, list[int]]], before: Sequence[tuple[Blocks, list[int]]]) -> bool:
    """Whether handles differ at most in types, as :meth:`Model.replace` does, and no data was written to."""
    return len(now) == len(before) and all(
        a.name == b.name and a.scope is b.scope and a.maps is b.maps and (a is not b or written == earlier)
        for (a, written), (b, earlier) in zip(now, before, strict=True)
    )


def _blocks(model: Statement) -> list[tuple[Blocks, list[int]]]:
    """The handles, which are not changed but replaced, and how often their data were written to."""
    return [(b, _writes([b.scope, *b.type.tensors().values()])) for b in model.blocks]


def _writes(data: Sequence[Tensor]) -> list[int]:
    return [0 if t.is_inference() else t._version for t in data]


def _built(model: Statement) -> tuple[Any, ...]:
    """The parts of a model, beside its blocks, whose change makes it another one than was compiled."""
    bounds = [t for v in model.variables.values() for t in (v.lower, v.upper)]
    return model.batch, model.size, model.maximizing, list(model.rows), _writes(bounds)
