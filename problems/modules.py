"""Modules of a package that need no list of their names: a file in a folder is a format, or a method."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType


def module_names(package: str) -> tuple[str, ...]:
    """Names of the modules of a package, in alphabetical order, without importing them."""
    found = importlib.util.find_spec(package)
    assert found is not None
    return tuple(sorted(module.name for module in pkgutil.iter_modules(found.submodule_search_locations)))


def modules(package: str) -> dict[str, ModuleType]:
    """Import the modules of a package: by name, in alphabetical order."""
    return {name: importlib.import_module(f"{package}.{name}") for name in module_names(package)}
