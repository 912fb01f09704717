"""Phase barriers and prefetching for compiled loops, by atomic operations that Python cannot express.

Waking a thread takes some hundred microseconds, as long as a pass over a hundred thousand edges.  So threads
are woken once for many passes, and wait for each other between the phases of a pass where they are.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from blocklp.kernels.compiled import compile

_DECLARE: Any = cgutils.get_or_insert_function
_CLAIMED, _DONE = 0, 8  # in cache lines of their own
_LOOKS, _MICROSECONDS = 20_000, 20
_LINE = 64  # bytes that memory gets at a time

_sleep: Any = types.ExternalFunction("usleep", types.int32(types.uint32))
_SLEEPS = os.name == "posix"


def _intrinsic(generator: Any) -> Any:
    """``numba.extending.intrinsic``, whose type is that of the generator, typing context included."""
    return intrinsic(generator)


@compile(nogil=True)
def claim(turns: Any, phases: int, parts: int) -> tuple[int, int]:
    """Take the next piece of work, as soon as all of the phase before is :func:`done`.

    A thread that others hold up delays only the part it has; one that never came, nothing.

    Parameters
    ----------
    turns : ndarray
        ``(blocklp.kernels.compiled.TURNS,)`` int64: the state of the barrier, zeros at first.
    phases, parts : int
        Phases, and parts of each.

    Returns
    -------
    phase, part : int
        Of the piece; from phase ``phases`` on there is no work left.
    """
    piece, looks = _add(turns, _CLAIMED), 0
    phase = piece // parts
    while phase < phases and _read(turns, _DONE) < phase * parts:
        looks += 1
        _pause()
        if _SLEEPS and looks > _LOOKS:  # somebody else may need the processor
            _sleep(_MICROSECONDS)
    return phase, piece % parts


@compile(nogil=True)
def done(turns: Any) -> None:
    """Say that a piece of work is done."""
    _add(turns, _DONE)


@compile(inline="always")
def fetch(values: Any, first: int, count: int) -> None:
    """Prefetch numbers of an array into the cache; beyond its end this does no harm.

    Parameters
    ----------
    values : ndarray
        A contiguous array.
    first, count : int
        The first of the numbers, and how many.
    """
    for at in range(first, first + count, _LINE // values.itemsize):
        _fetch(values, at)


@_intrinsic
def _add(typing: Any, array: Any, index: Any) -> Any:
    """Add one to a number that threads share; its value before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, place.type.pointee(1), "seq_cst")

    return array.dtype(array, index), generate


@_intrinsic
def _read(typing: Any, array: Any, index: Any) -> Any:
    """A number that threads share, and with it all that they wrote before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature, arguments), "acquire", 8)

    return array.dtype(array, index), generate


@_intrinsic
def _pause(typing: Any) -> Any:
    """Leave the processor's units to the other thread that may share them, for some forty cycles."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            pause = ir.FunctionType(ir.VoidType(), [])
            builder.call(_DECLARE(builder.module, pause, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.none(), generate


@_intrinsic
def _fetch(typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.bitcast(_place(context, builder, signature, arguments), cgutils.voidptr_t)
        flag = ir.IntType(32)
        ask = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        function = _DECLARE(builder.module, ask, "llvm.prefetch.p0")
        builder.call(function, [place, flag(0), flag(3), flag(1)])  # to read, into the nearest cache, data
        return context.get_dummy_value()

    return types.none(array, index), generate


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The address of an element of a contiguous array."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])
