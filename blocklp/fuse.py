"""Oracles and proximal points that users write as tensor operations, compiled by torch where that pays.

On a CPU the rest of a pass runs in loops (:mod:`blocklp.fused`, :mod:`blocklp.plan`); what a type does
itself are some ten or thirty operations, each of which reads and writes the memory of all blocks.
``torch.compile`` makes one of them. The size of an instance and the number of the pass decide when, never a
clock, and compiled code that gives other bits is not used: so neither runs on one device nor instances of one
batch can tell.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WORTH = 5e8
"""Copies of a group times passes after which to compile: an elementwise oracle has then taken some four
seconds more than a compiled one would have, about as long as it takes to compile it (three to seven; the
first one on a machine up to eighteen)."""

MOST = 6
"""Times that one function is compiled: for one instance and for several, on all threads and on one, in both
precisions."""

OPTIONS = {"cpp.enable_floating_point_contract_flag": "off", "emulate_precision_casts": True}
"""Options of the compiler with which compiled code rounds as torch does without it."""

_log = logging.getLogger("blocklp")
_known: dict[Any, Fused] = {}
_said: list[str] = []


def compiled(verb: Callable[..., Any], spent: int) -> Callable[..., Any]:
    """A method of a block type, compiled once ``spent``, its copies times passes, says that this pays.

    The types of this package have loops where these pay; what takes the time of their other formulas is
    sorting, which torch does not compile.
    """
    function: Any = getattr(verb, "__func__", None)
    if spent < WORTH or function is None or function.__module__.startswith("blocklp."):
        return verb
    kind = verb.__self__  # type: ignore[attr-defined]
    known = _known.get(function) or _known.setdefault(function, Fused(function))
    return lambda *arguments: known(kind, *arguments)


class Fused:
    """A pure function ``(type, *tensors)``, compiled; as it is where it cannot be compiled."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.graphs = function, 0
        self.name = function.__qualname__
        self.run: Callable[..., Any] | None = torch.compile(function, backend=self._compile, fullgraph=True)

    def __call__(self, kind: Any, *arguments: Tensor) -> Any:
        """Call it; what goes wrong in a compiler never gets out."""
        if self.run is None:
            return self.function(kind, *arguments)
        for tensor in (*arguments, *kind.tensors().values()):
            if tensor.dim() >= 2:  # (batch, blocks, ...): instances leave, problems differ in blocks
                for dim in (0, 1):
                    torch._dynamo.maybe_mark_dynamic(tensor, dim)
        before, began = self.graphs, time.perf_counter()
        try:
            found = self.run(kind, *arguments)
        except Exception as error:
            # No compiler, Python that depends on data, a bug: if it is the function's own, it comes again.
            return self._without(f"cannot be compiled ({type(error).__name__})", kind, *arguments)
        if self.graphs > before:
            _log.info("compiled %s in %.1f s", self.name, time.perf_counter() - began)
            same = self.function(kind, *arguments)
            if not _equal(found, same):
                return self._without("rounds in another way when compiled", kind, *arguments)
            if self.graphs >= MOST:
                often = f"was compiled {MOST} times, each time for other shapes"
                return self._without(often, kind, *arguments)
        return found

    def _compile(self, graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        return compile_fx(graph, inputs, config_patches=OPTIONS)

    def _without(self, why: str, *arguments: Any) -> Any:
        """Say so, once for each function, and go on without."""
        if self.name not in _said:
            _said.append(self.name)
            _log.warning("%s %s: it runs as written", self.name, why)
        self.run = None
        return self.function(*arguments)


def _equal(found: Any, same: Any) -> bool:
    pairs = zip(found, same, strict=True) if isinstance(same, tuple) else ((found, same),)
    return all(a is b or torch.equal(a, b) for a, b in pairs)
