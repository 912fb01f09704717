"""Functions that torch.compile leaves as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def untraced(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Let a graph break at a function, which runs as without torch.compile.

    ``torch.compiler.disable`` would import the compiler where nothing is compiled, which takes a second.
    """
    apart: Callable[Arguments, Answer] = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Answer:
        if torch.compiler.is_compiling():
            return apart(*arguments, **options)
        return function(*arguments, **options)

    return call
