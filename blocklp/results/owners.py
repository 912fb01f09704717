"""Solvers and models as their solutions see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from blocklp.language.sense import Sense
from blocklp.language.statement import Statement
from blocklp.results.state import State


@runtime_checkable
class Compiled(Protocol):
    """The solver that found a solution, such as :class:`blocklp.Solver`."""

    models: Sequence[Statement]
    device: torch.device
    sense: Sense

    def owner(self, instance: int) -> tuple[Statement, int]:
        """Return the model of an instance and the instance's number in it."""
        ...

    def part(self, instance: int) -> tuple[Sequence[Statement], int]:
        """Return a sequence of the model of an instance alone, and how many variables it has."""
        ...

    def own_state(self, state: State, instance: int) -> State:
        """Cut the padding of a ragged batch off an instance's state."""
        ...

    def hooked(self) -> Tensor:
        """Which instances have a repair hook: ``(batch,)`` bool."""
        ...


@runtime_checkable
class Compilable(Protocol):
    """A model, which compiles to a solver."""

    def compile(self) -> Compiled:
        """Fix shapes and indices once."""
        ...
