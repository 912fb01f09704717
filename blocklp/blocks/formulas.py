"""Formulas that a block type states about its polytope, and classes that inherit those of another one."""

from __future__ import annotations

from blocklp.blocks.capabilities import (
    HasCompleteBlock,
    HasCompletion,
    HasConstraints,
    HasExtendedFormulation,
    HasIntegerConstraints,
    HasIntervals,
    HasMaskedTable,
    HasMinBlock,
    HasMinMarginals,
    HasOverlap,
    HasParts,
    HasProx,
    HasProxBlock,
    HasRestriction,
    HasSoftMin,
    HasValueAt,
    HasValueError,
    HasVertices,
)
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError

PROTOCOLS = (
    HasConstraints,
    HasExtendedFormulation,
    HasIntegerConstraints,
    HasValueError,
    HasRestriction,
    HasProx,
    HasProxBlock,
    HasMinBlock,
    HasCompleteBlock,
    HasCompletion,
    HasMinMarginals,
    HasOverlap,
    HasSoftMin,
    HasVertices,
    HasMaskedTable,
    HasIntervals,
    HasParts,
    HasValueAt,
)

FORMULAS = frozenset({"min_value"}).union(
    *({n for n, own in vars(p).items() if n[0] != "_" and callable(own)} for p in PROTOCOLS),
)
"""Methods that are about the polytope which :meth:`BlockType.min_oracle` minimises over."""


def check_formulas(kind: type[BlockType]) -> None:
    """Refuse a class whose min-oracle overrides that of a type whose formulas it inherits.

    They would be formulas for another polytope, and bounds would be wrong. A class without a min-oracle may
    state what holds for all types that derive from it.

    Parameters
    ----------
    kind : type
        The class.

    Raises
    ------
    ModelError
        With the names of the methods.
    """
    order = kind.__mro__[: kind.__mro__.index(BlockType)]
    asked = next((n for n, c in enumerate(order) if "min_oracle" in vars(c)), len(order))
    overridden = next((c for c in order[asked + 1 :] if "min_oracle" in vars(c)), None)
    if overridden is None:
        return
    stated, after = order[: asked + 1], order[asked + 1 :]
    left = FORMULAS.difference(*map(vars, stated)).intersection(name for c in after for name in vars(c))
    wrong = sorted(name for name in left if callable(getattr(kind, name)))
    if wrong:
        what = f"{order[asked].__name__} overrides min_oracle of {overridden.__name__}"
        raise ModelError(
            f"{what}, and {kind.__name__} inherits formulas for another polytope: {', '.join(wrong)}; derive "
            f"from BlockType and ask {overridden.__name__} inside min_oracle, or state each in the class: "
            f"anew, as `{wrong[0]} = {overridden.__name__}.{wrong[0]}` where it holds, or as None to do "
            f"without (`min_value = BlockType.min_value`)"
        )
