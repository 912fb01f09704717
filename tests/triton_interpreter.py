"""Triton's interpreter, without the half of its time in which it patches what is patched already.

It replaces the functions of ``triton.language`` by those of numpy before every launch, and again at every call
of a device function, some hundreds a launch, although they stay replaced until the launch ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any


def compiled_without(call: str) -> list[str]:
    """What :mod:`bench.compile_triton` prints of the kernels of a call, in a process without the interpreter: a line each."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["BLOCKLP_BACKEND"] = "torch"  # what makes the arguments need not be compiled, too
    code = f"import torch; from bench.compile_triton import *; print(*{call}, sep='\\n')"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


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
    _keep_what_stays(interpreter)


def _keep_what_stays(interpreter: Any) -> None:
    """Look types of numpy up by name, make the shapes of tensors and the types of blocks once, and broadcast no equal shapes."""
    from triton.language.semantic import TritonSemantic

    core = interpreter.tl.core
    np_types: dict[str, Any] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    blocks: dict[tuple[str, tuple[int, ...]], Any] = {}
    np_type, tensor, equal = interpreter._get_np_dtype, core.tensor.__init__, core.tuple.__eq__
    with_element, broadcast = core.block_type.with_element_ty, TritonSemantic.broadcast_impl_value

    def known_np_type(kind: Any) -> Any:
        if (found := np_types.get(kind.name)) is None:
            found = np_types[kind.name] = np_type(kind)
        return found

    def known_shape(self: Any, handle: Any, type: Any) -> None:
        shape = type.shape if type.is_block() else ()
        if (known := shapes.get(shape)) is None:
            tensor(self, handle, type)
            shapes[shape] = self.numel, self.shape
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = known

    def known_block(self: Any, scalar: Any) -> Any:
        key = scalar.name, self.shape
        if (found := blocks.get(key)) is None:
            found = blocks[key] = with_element(self, scalar)
        return found

    def known_equal(self: Any, other: Any) -> Any:
        same = self is other or (type(other) is core.tuple and self.values == other.values)
        return core.constexpr(True) if same else equal(self, other)

    def broadcast_unless_alike(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        one, other = (kind.shape.values if kind.is_block() else None for kind in (lhs.type, rhs.type))
        return (lhs, rhs) if one == other else broadcast(self, lhs, rhs)

    interpreter._get_np_dtype, core.tensor.__init__ = known_np_type, known_shape
    core.block_type.with_element_ty, core.tuple.__eq__ = known_block, known_equal
    TritonSemantic.broadcast_impl_value = broadcast_unless_alike


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
