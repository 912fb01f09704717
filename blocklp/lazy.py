"""Packages that import their public names when these are first asked for."""

from __future__ import annotations

import importlib
import sys
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
        return sorted({*self.__dict__, *self.__dict__["_module_of"]})


def publish(package: str, names: dict[str, list[str]]) -> None:
    """Make names, listed by module, the ``__all__`` of a package; each is imported on first use.

    The package states the same imports under ``if TYPE_CHECKING`` for type checkers and editors.
    """
    module_of = {name: module for module, listed in names.items() for name in listed}
    this = sys.modules[package]
    this.__dict__.update(_module_of=module_of, __all__=sorted(module_of))
    this.__class__ = LazyPackage
