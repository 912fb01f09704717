"""Bounds of a model's variables, tightened by those that are given for a solve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from blocklp.errors import ModelError, OptionError, UnknownNameError
from blocklp.language.coefficients import coefficients
from blocklp.language.expression import View
from blocklp.language.statement import Statement
from blocklp.options import of_type, shown

Bounds = Mapping[Any, object]
"""Variables, views or names to tuples (lower, upper), or to a number or tensor at which they are fixed."""


def variable_bounds(model: Statement, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Bounds of an instance's row of variables, ``(batch or 1, variables)``, tightened by what the user gave.

    They carry the gradients of both.

    Raises
    ------
    OptionError
        If these are no such mapping.
    ModelError, UnknownNameError
        If they name what the model does not have, are no finite numbers, or leave no value.
    """
    of_type(bounds, Mapping, "bounds", "a mapping {variable: (lower, upper)}")
    sides = [stated_bounds(model, side) for side in (0, 1)]
    if not bounds:
        return sides[0], sides[1]
    low, high = (s.expand(model.batch, -1).clone() for s in sides)
    for key, given in bounds.items():
        view = _named(model, key)
        if isinstance(given, list) or (isinstance(given, tuple) and len(given) != 2):
            need = "give a tuple (lower, upper), or one number or tensor to fix it"
            raise OptionError(f"bounds of {view!r} are {shown(given)}; {need}")
        both = given if isinstance(given, tuple) else (given, given)
        sides = [coefficients(t, view.shape, model.batch, f"bounds of {view!r}") for t in both]
        a, b = (t.reshape(len(t), -1) for t in sides)
        columns = view.index.reshape(-1)
        # Where both agree, the gradient is that of the bound given here.
        low[:, columns] = torch.where(a >= low[:, columns], a, low[:, columns])
        high[:, columns] = torch.where(b <= high[:, columns], b, high[:, columns])
    if bool((low > high).any()):
        i, column = (low > high).nonzero()[0].tolist()
        least, most = float(low[i, column]), float(high[i, column])
        between = f"between {least:g} and {most:g} in instance {i}"
        raise ModelError(f"bounds= leaves {model.entry(column)} no value {between}")
    return low, high


def carry_gradients(models: Sequence[Statement], bounds: Bounds) -> bool:
    """Whether a bound of a variable of some model, or one of those given, requires gradients."""
    if any(v.given is not None for m in models for v in m.variables.values()):
        return True
    return any(_requires_gradients(given) for given in bounds.values())


def with_gradients(model: Statement, bounds: Bounds) -> Tensor:
    """Which variables have bounds that require gradients: ``(variables,)`` bool.

    Parameters
    ----------
    model : Statement
        The model.
    bounds : mapping
        Tighter bounds of variables (:data:`Bounds`).

    Returns
    -------
    Tensor
        Of an instance's row of variables.
    """
    found = torch.zeros(model.size, dtype=torch.bool)
    for variable in model.variables.values():
        found[variable.columns] = variable.given is not None
    for key, given in bounds.items():
        if _requires_gradients(given):
            found[_named(model, key).index.reshape(-1)] = True
    return found


def _requires_gradients(given: object) -> bool:
    """Whether a side of bounds does."""
    both = given if isinstance(given, tuple) else (given,)
    return any(isinstance(side, Tensor) and side.requires_grad for side in both)


def _named(model: Statement, key: object) -> View:
    """The entries that a key of bounds speaks of."""
    if isinstance(key, str):
        if key not in model.variables:
            known = ", ".join(map(repr, model.variables))
            raise UnknownNameError(f"bounds= names {key!r}; the model has {known}")
        return model.variables[key]
    of_type(key, View, "a key of bounds", "a variable, a view of one, or its name")
    assert isinstance(key, View)
    if key.model is not model:
        raise ModelError(f"bounds= names {key!r} of another model")
    return key


def stated_bounds(model: Statement, side: int) -> Tensor:
    """Lower (0) or upper (1) bounds: ``(batch, variables)``, or ``(1, variables)`` where instances agree."""
    parts = [t.reshape(t.shape[0], -1) for t in _sides(model, side)]
    rows = max(p.shape[0] for p in parts)
    return torch.cat([p.expand(rows, -1) for p in parts], 1)


def flat_bounds(model: Statement, side: int) -> list[Tensor]:
    """Lower (0) or upper (1) bounds of all variables of all instances, one after the other, in parts."""
    if model.batch == 1:
        return [bound.reshape(-1) for bound in _sides(model, side)]
    return [stated_bounds(model, side).expand(model.batch, -1).reshape(-1)]


def _sides(model: Statement, side: int) -> list[Tensor]:
    """Bounds of every variable, ``(batch or 1, *shape)``, with their gradients."""
    return [(v.given or (v.lower, v.upper))[side] for v in model.variables.values()]
