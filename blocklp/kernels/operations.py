"""The operations of a solve: each is defined in tensor operations, and backends bring faster implementations.

A definition stands in the source file of what it belongs to, a method or a part of the engine, and runs on
any device:

    @operation
    def row_products(program, problem, rows, x): ...

An implementation is registered under the operation's name and a backend's, in whatever file:

    @implements("row_products", "mine")
    def row_products(program, problem, rows, x): ...

The first argument of every operation is the plan or the program that it works on, which knows its backend
(:mod:`blocklp.kernels.backend`).  An implementation takes the arguments of the definition and returns what it
returns, up to rounding; where it serves some cases alone, ``serves`` says which.  All other cases, and all
operations that a backend does not implement, go to the backends that it builds on, then to the definition.
docs/extending.md lists the operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from blocklp.kernels.backend import known

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Implementation:
    """A backend's implementation of an operation.

    Attributes
    ----------
    function : callable
        Takes the arguments of the definition, and returns what it returns.
    serves : callable
        Takes the same arguments, and tells whether it serves them.
    """

    function: Callable[..., Any]
    serves: Callable[..., bool]


OPERATIONS: dict[str, Operation[..., Any]] = {}
"""All operations whose definitions have been imported, by name."""

IMPLEMENTATIONS: dict[tuple[str, str], list[Implementation]] = {}
"""Implementations by names of operation and backend, the last one registered first."""

LAYOUTS: dict[str, Callable[[Any, bool], Any]] = {}
"""What backends lay out before passes, by name; see :func:`lays_out`."""


class Operation(Generic[P, R]):
    """An operation; calling it runs the implementation of the backend of its first argument.

    Parameters
    ----------
    definition : callable
        Its definition in tensor operations.

    Attributes
    ----------
    name : str
        Name of the definition.
    definition : callable
        The definition, which tests compare implementations with.
    """

    def __init__(self, definition: Callable[P, R]) -> None:
        functools.update_wrapper(self, definition)
        self.name, self.definition = definition.__name__, definition

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the first implementation that serves these arguments, else the definition."""
        found = self.implementation(*args, **kwargs)
        return self.definition(*args, **kwargs) if found is None else found(*args, **kwargs)

    def implementation(self, *args: P.args, **kwargs: P.kwargs) -> Callable[P, R] | None:
        """Return the implementation that serves these arguments; None where the definition does."""
        for backend in args[0].backend.builds_on:  # type: ignore[attr-defined]
            for found in IMPLEMENTATIONS.get((self.name, backend), ()):
                if found.serves(*args, **kwargs):
                    return found.function
        return None


def operation(definition: Callable[P, R]) -> Operation[P, R]:
    """Make an operation of its definition."""
    made = Operation(definition)
    OPERATIONS[made.name] = made
    return made


def implements(
    name: str, backend: str, serves: Callable[..., bool] = lambda *_, **__: True
) -> Callable[[Function], Function]:
    """Register a backend's implementation of an operation.

    Parameters
    ----------
    name : str
        Name of the operation; its definition may be imported later.
    backend : str
        Name of the backend (:func:`blocklp.kernels.backend.add_backend`).
    serves : callable
        Takes the arguments of the operation, and tells whether this implementation serves them; by default
        it serves all.

    Returns
    -------
    callable
        A decorator, which returns its function as it is.

    Raises
    ------
    OptionError
        If there is no such backend.
    """
    known(backend)

    def register(function: Function) -> Function:
        IMPLEMENTATIONS.setdefault((name, backend), []).insert(0, Implementation(function, serves))
        return function

    return register


def unknown_names(backends: tuple[str, ...]) -> list[str]:
    """Names under which backends have implementations, and no operation has been defined."""
    return sorted({name for name, backend in IMPLEMENTATIONS if backend in backends} - OPERATIONS.keys())


def lays_out(backend: str) -> Callable[[Function], Function]:
    """Register what a backend lays out for a plan before passes, which its implementations find there.

    Parameters
    ----------
    backend
        As in :func:`implements`, and so are errors.

    Returns
    -------
    callable
        A decorator of a function that takes a plan, and whether passes may take whole instances, and returns
        tables (:class:`blocklp.kernels.plan.Tables`), or None where the backend has none for the problem.
    """
    known(backend)

    def register(function: Function) -> Function:
        LAYOUTS[backend] = function
        return function

    return register
