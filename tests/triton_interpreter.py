"""Triton's interpreter, without the half of its time in which it patches what is patched already.

It replaces the functions of ``triton.language`` by those of numpy before every launch, and again at every call
of a device function, some hundreds a launch, although they stay replaced until the launch ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


def patch_once() -> None:
    """Have the interpreter patch each module once a launch, from now on."""
    from triton.runtime import interpreter

    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[int] = set()
    if hasattr(patch, "__wrapped__"):
        return

    @wraps(patch)
    def once(function: Any) -> Any:
        langs = {id(value) for value in function.__globals__.values() if value in (interpreter.tl, interpreter.tl.core)}
        if langs <= patched:
            return interpreter._LangPatchScope()
        patched.update(langs)
        return patch(function)

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return launch(self, *args, **kwargs)

    interpreter._patch_lang = once
    interpreter.GridExecutor.__call__ = launched


@contextmanager
def traffic() -> Iterator[list[int]]:
    """Bytes that lanes of interpreted kernels read and write, access by access."""
    from triton.runtime.interpreter import interpreter_builder as builder

    counted, before = (
        [0],
        {name: getattr(builder, name) for name in ("create_masked_load", "create_masked_store", "create_load", "create_store")},
    )

    def wrap(name: str, masked: int | None) -> Callable[..., Any]:
        def access(pointers: Any, *args: Any) -> Any:
            size = pointers.get_element_ty().primitive_bitwidth // 8
            counted[0] += size * int(args[masked].data.sum() if masked is not None else pointers.data.size)
            return before[name](pointers, *args)

        return access

    places = {"create_masked_load": 0, "create_masked_store": 1, "create_load": None, "create_store": None}
    for name, masked in places.items():
        setattr(builder, name, wrap(name, masked))
    try:
        yield counted
    finally:
        for name in before:
            delattr(builder, name)
