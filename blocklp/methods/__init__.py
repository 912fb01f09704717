"""Ascent methods on the dual, for ``method=``, and the rules of their proximal weight, for ``eta=``."""

from __future__ import annotations

import logging

from blocklp.blocks.capabilities import HasIntervals, HasParts, supports
from blocklp.decomposition.problem import Decomposition
from blocklp.errors import OptionError
from blocklp.general_solvers.small_lp import available
from blocklp.methods.adam import Adam
from blocklp.methods.admm import Admm
from blocklp.methods.base import Method, MethodState
from blocklp.methods.bundle import Bundle
from blocklp.methods.dantzig_wolfe import DantzigWolfe
from blocklp.methods.min_marginals import MinMarginals
from blocklp.methods.pdhg import Pdhg
from blocklp.methods.polyak import Polyak
from blocklp.methods.prox import Prox
from blocklp.methods.proxbc import ProxBC
from blocklp.methods.proxfw import ProxFW
from blocklp.methods.proximal_newton import ProximalNewton
from blocklp.methods.proximal_weight import Fixed, InexactRule, SeriousStepRule
from blocklp.methods.race import Race
from blocklp.methods.smooth import Smooth
from blocklp.methods.supergradient import Supergradient

METHODS: dict[str, type[Method]] = {
    "prox": Prox,
    "admm": Admm,
    "bundle": Bundle,
    "pdhg": Pdhg,
    "race": Race,
    "newton": ProximalNewton,
    "dantzig-wolfe": DantzigWolfe,
    "proxbc": ProxBC,
    "proxfw": ProxFW,
    "polyak": Polyak,
    "supergradient": Supergradient,
    "adam": Adam,
    "min-marginals": MinMarginals,
    "smooth": Smooth,
}
"""Names accepted as ``method=`` beside ``"auto"``; an instance with settings of its own is accepted too."""

MASTERED = 20_000
"""Blocks of a batch up to which ``"auto"`` takes a restricted master for types that state no constraints."""


def as_method(method: str | Method, problem: Decomposition) -> Method:
    """Look a method up by name; ``"auto"`` chooses by what the block types of a problem can do.

    - Blocks made of parts (layers of networks): :class:`Prox`, which combines the steps of their parts.
    - Types that state no constraints, and not too many blocks: :class:`DantzigWolfe`, whose master gives a
      primal point for any oracle.
    - Rows or blocks that are dealt with by rows (:attr:`BlockType.by_rows`) beside blocks that are dealt with
      by points (:attr:`BlockType.by_points`), such as paths, not too many: :class:`DantzigWolfe` too.
    - Rows beside other blocks, or blocks that are dealt with by rows: :class:`Race`
      of :class:`Pdhg`, which takes a fraction of the time on choices, knapsacks and polytopes, and the
      simplex method where that is slow.
    - All else: :class:`Admm`.

    Raises
    ------
    OptionError
        If no method has this name, or it is no method.
    """
    if isinstance(method, Method):
        return _fitting(method, problem)
    if not isinstance(method, str):
        need = "give a name or an instance of a method such as blocklp.methods.Prox()"
        raise OptionError(f"method is {method!r}; {need}")
    if method == "auto":
        chosen, reason = _chosen(problem)
        logging.getLogger("blocklp").info("method auto: %s, %s", type(chosen).__name__, reason)
        return chosen
    if method not in METHODS:
        known = f"auto, {', '.join(METHODS)}"
        instead = "an instance such as blocklp.methods.Prox()"
        raise OptionError(f"unknown method {method!r}; choose {known}, or give {instead}")
    return _fitting(METHODS[method](), problem)


def _chosen(problem: Decomposition) -> tuple[Method, str]:
    """The method that ``"auto"`` stands for, and why, as the log says it."""
    if any(supports(g.type, HasParts) for g in problem.groups):
        return Prox(), "for there are blocks made of parts"
    silent = sorted({g.type.name for g in problem.groups if g.constraints is None})
    blocks = problem.batch * sum(g.blocks for g in problem.groups if not supports(g.type, HasIntervals))
    if silent:
        which = f"for {', '.join(silent)} state no constraints"
        if problem.rows is not None or (blocks <= MASTERED and available() and problem.coupling.indexed):
            return DantzigWolfe(), f"{which}, and a restricted master finds points for any oracle"
        without = f"for {blocks:,} blocks, for scopes by maps, or without HiGHS"
        return Admm(), f"{which}, and there is no restricted master {without}"
    by_rows = sorted({g.type.name for g in problem.groups if g.type.by_rows})
    if problem.rows is None and not by_rows:
        return Admm(), "for all types are dealt with by their oracles"
    by_points = sorted({g.type.name for g in problem.groups if g.type.by_points})
    if by_points and blocks <= MASTERED and available() and problem.coupling.indexed:
        return DantzigWolfe(), f"for a restricted master deals with points of {', '.join(by_points)} quickest"
    which = f"for {' and '.join(by_rows or ['rows beside the blocks'])} are dealt with by rows"
    if available():
        return Race(), f"{which}, with turns of the simplex method"
    return Pdhg(), f"{which}, and there is no HiGHS"


def _fitting(method: Method, problem: Decomposition) -> Method:
    """Refuse rows to methods that know blocks only, and maps to those that need scopes by index."""
    name = type(method).__name__
    if problem.rows is not None and not method.knows_rows:
        able = ", ".join(repr(key) for key, kind in METHODS.items() if kind.knows_rows)
        raise OptionError(f"method {name} knows blocks only, and the model has rows; choose 'auto', {able}")
    if method.by_index and not problem.coupling.indexed:
        given = "to_dual and to_primal are given alone; choose 'auto' or 'admm'"
        raise OptionError(f"method {name} needs scopes by index, and {given}")
    return method


__all__ = [
    "METHODS",
    "Adam",
    "Admm",
    "Bundle",
    "DantzigWolfe",
    "Fixed",
    "InexactRule",
    "Method",
    "MethodState",
    "MinMarginals",
    "Pdhg",
    "Polyak",
    "Prox",
    "ProxBC",
    "ProxFW",
    "ProximalNewton",
    "Race",
    "SeriousStepRule",
    "Smooth",
    "Supergradient",
    "as_method",
]
