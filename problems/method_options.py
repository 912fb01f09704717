"""Options of methods that are functions of a run and of their options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blocklp.errors import OptionError


def check_positive(**options: float) -> None:
    """Refuse options, given by their names, that are not positive and finite."""
    for name, value in options.items():
        if not 0 < value < math.inf:
            raise OptionError(f"{name} is {value}; it must be positive and finite")


def check_counts(**options: int) -> None:
    """Refuse options, given by their names, that are below 1."""
    for name, value in options.items():
        if not value >= 1:
            raise OptionError(f"{name} is {value}; give at least 1")


def check_options(methods: Mapping[str, Callable[..., Any]], method: str, options: Iterable[str]) -> None:
    """Refuse a method that there is not, and options that it does not have.

    Parameters
    ----------
    methods : mapping
        Functions by the names of methods; they take ``run`` and their options by name.
    method : str
        The method.
    options : iterable of str
        Names of the options given.

    Raises
    ------
    OptionError
        If there is no such method, or it has no option of one of these names.
    """
    if method not in methods:
        raise OptionError(f"there is no method {method!r}; choose one of {', '.join(methods)}")
    known = [name for name in inspect.signature(methods[method]).parameters if name != "run"]
    for name in options:
        if name not in known:
            raise OptionError(f"{method} has no option {name!r}; it takes {', '.join(known)}")
