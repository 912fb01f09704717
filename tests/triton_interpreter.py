"""Triton's interpreter, without the half of its time in which it patches what is patched already.

It replaces the functions of ``triton.language`` by those of numpy before every launch, and again at every call
of a device function, some hundreds a launch, although they stay replaced until the launch ends.
"""

from __future__ import annotations

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
