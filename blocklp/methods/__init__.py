"""Ascent methods on the dual: what may be given as ``method=``."""

from __future__ import annotations

from blocklp.errors import OptionError
from blocklp.methods.adam import Adam
from blocklp.methods.admm import Admm
from blocklp.methods.base import Method, MethodState
from blocklp.methods.prox import Prox
from blocklp.methods.proxbc import ProxBC
from blocklp.methods.proxfw import ProxFW
from blocklp.methods.supergradient import Supergradient

METHODS: dict[str, type] = {
    "prox": Prox,
    "admm": Admm,
    "proxbc": ProxBC,
    "proxfw": ProxFW,
    "supergradient": Supergradient,
    "adam": Adam,
}
"""Names accepted as ``method=``; an instance with settings of its own is accepted too."""


def as_method(method: str | Method) -> Method:
    """Look a method up by name.

    Raises
    ------
    OptionError
        If no method has this name.
    """
    if not isinstance(method, str):
        return method
    if method not in METHODS:
        raise OptionError(f"unknown method {method!r}; choose one of {', '.join(METHODS)}, or give an instance such as Prox()")
    made: Method = METHODS[method]()
    return made


__all__ = ["METHODS", "Adam", "Admm", "Method", "MethodState", "Prox", "ProxBC", "ProxFW", "Supergradient", "as_method"]
