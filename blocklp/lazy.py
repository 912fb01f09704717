"""Packages that import their public names when these are first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType


class LazyPackage(ModuleType):
    """A package whose public names and submodules are imported on first use."""

    def __getattr__(self, name: str) -> object:
        module = self.__dict__["_module_of"].get(name)
        if module is not None:
            value = getattr(importlib.import_module(module), name)
            setattr(self, name, value)
            return value
        submodule = f"{self.__name__}.{name}"
        if not name.startswith("_"):
            try:
                return importlib.import_module(submodule)
            except ModuleNotFoundError as error:
                if error.name != submodule:
                    raise
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        # Python binds every submodule to its package once it is imported; where a public name is that of a
        # submodule (the function ``check`` of ``blocklp.check``), the public name stays.
        if not (isinstance(value, ModuleType) and name in self.__dict__["_module_of"]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__dict__["_module_of"], *self.__dict__["_submodules"]})


def publish(package: str, names: dict[str, list[str]], submodules: Sequence[str] = ()) -> None:
    """Make names the ``__all__`` of a package, and import each of them on first use.

    The package states the same imports under ``if TYPE_CHECKING`` for type checkers and editors.

    Parameters
    ----------
    package : str
        The package that calls, which is being imported.
    names : dict
        Public names by the modules that define them.
    submodules : sequence of str
        Submodules that users are meant to find: ``dir()`` lists them before they are imported.
    """
    module_of = {name: module for module, listed in names.items() for name in listed}
    this = sys.modules[package]
    this.__dict__.update(_module_of=module_of, _submodules=tuple(submodules), __all__=sorted(module_of))
    this.__class__ = LazyPackage
