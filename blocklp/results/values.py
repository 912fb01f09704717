"""Points and multipliers of a solution, by variable and by blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from blocklp.errors import ModelError, UnknownNameError
from blocklp.language.batch_statement import BatchStatement, InstanceModel
from blocklp.language.expression import Expression, View
from blocklp.language.handles import Blocks
from blocklp.language.ragged import RaggedVariable
from blocklp.language.row_expression import RowExpression
from blocklp.language.statement import Statement
from blocklp.options import of_type, shown
from blocklp.results.state import State
from blocklp.tables import listed, plural


class Values(Mapping[str, Tensor]):
    """Primal values by variable, view or name: ``x[y]`` is ``(batch, *shape)``, a copy.

    Those of a :class:`blocklp.ModelBatch` are concatenated, ``(total,)``, as its arrays are.
    """

    def __init__(self, x: Tensor, models: Sequence[Statement]) -> None:
        self._x, self.models = x, models
        if not isinstance(models, BatchStatement | InstanceModel):  # a model may get more of them
            vars(self)["variables"] = dict(models[0].variables)

    @cached_property
    def variables(self) -> dict[str, Any]:
        """The variables by name."""
        return dict((self.models if isinstance(self.models, BatchStatement) else self.models[0]).variables)

    def __getitem__(self, key: View | RaggedVariable | str) -> Tensor:
        if isinstance(self.models, BatchStatement):
            return self.models.values(key, self._x)
        if isinstance(self.models, InstanceModel) and isinstance(key, str | RaggedVariable):
            return self.models.values(self.models.batch.known(key), self._x)
        key = key.name if isinstance(key, RaggedVariable) else key
        view = self.variables.get(key) if isinstance(key, str) else key
        mine = isinstance(view, View) and any(view.model is m for m in self.models)
        if view is None or not mine or bool((view.index >= self._x.shape[1]).any()):
            names = listed(map(repr, self.variables))
            raise UnknownNameError(f"the solution has no values of {shown(key)}; its variables are {names}")
        columns = [v.columns for v in self.variables.values()]
        if any([v.columns for v in m.variables.values()][: len(columns)] != columns for m in self.models[1:]):
            need = "ask one by solution.instance(i).x"
            raise ModelError(f"the models of this batch have variables of different sizes; {need}")
        return self._x[:, view.index.to(self._x.device)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __repr__(self) -> str:
        found = listed(f"{v.name}{list(v.shape)}" for v in self.variables.values())
        return f"values of {plural(len(self._x), 'instance')}: {found}"


def evaluated(
    of: View | Expression | RowExpression | str,
    x: Values,
    raw_x: Tensor,
    instances: list[int],
) -> Tensor:
    """Evaluate variables, an expression or rows at a solution.

    Parameters
    ----------
    of : View, Expression, RowExpression or str
        As in :meth:`Solution.value`.
    x : Values
        The values of variables.
    raw_x : Tensor
        ``(k, variables)`` float64: these values as rows.
    instances : list of int
        The numbers of the k instances in the model.

    Returns
    -------
    Tensor
        ``(k, *shape)`` float64.

    Raises
    ------
    ModelError, UnknownNameError
        As :meth:`Solution.value`.
    """
    if isinstance(of, View | str):
        return x[of]
    need = "a variable, a linear expression or rows, as A @ x"
    of_type(of, Expression | RowExpression, "what to evaluate", need, ModelError)
    if len(x.models) > 1:
        raise ModelError("expressions have one model, and the solution has several; ask solution.instance(i)")
    if of.model is not x.models[0]:
        need = "build it from this model's variables"
        raise ModelError(f"{of!r} is of another model than the solution; {need}")
    if of.width > raw_x.shape[1]:
        raise UnknownNameError(f"{of!r} holds variables that the model got after the solve; solve it again")
    return of.at(raw_x, instances)


class Multipliers(Mapping[str, Tensor]):
    """Multipliers by handle or name of blocks: ``duals[pairs]`` is the state's ``(batch, blocks, dim)``."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, key: Blocks | str) -> Tensor:
        name = key.name if isinstance(key, Blocks) else key
        if not isinstance(name, str) or name not in self._state.duals:
            names = listed(map(repr, self))
            raise UnknownNameError(f"the solution has no multipliers for {shown(key)}; it has {names}")
        return self._state.duals[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.duals)

    def __len__(self) -> int:
        return len(self._state.duals)

    def __repr__(self) -> str:
        return repr(self._state).replace("State", "multipliers", 1)
