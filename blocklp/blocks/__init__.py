"""The contract of block types, what they may state beside it, and types that others are made of."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.blocks.capabilities import HasCompleteBlock as HasCompleteBlock
    from blocklp.blocks.capabilities import HasCompletion as HasCompletion
    from blocklp.blocks.capabilities import HasConstraints as HasConstraints
    from blocklp.blocks.capabilities import HasExtendedFormulation as HasExtendedFormulation
    from blocklp.blocks.capabilities import HasIntegerConstraints as HasIntegerConstraints
    from blocklp.blocks.capabilities import HasIntervals as HasIntervals
    from blocklp.blocks.capabilities import HasMaskedTable as HasMaskedTable
    from blocklp.blocks.capabilities import HasMinBlock as HasMinBlock
    from blocklp.blocks.capabilities import HasMinMarginals as HasMinMarginals
    from blocklp.blocks.capabilities import HasOverlap as HasOverlap
    from blocklp.blocks.capabilities import HasParts as HasParts
    from blocklp.blocks.capabilities import HasProx as HasProx
    from blocklp.blocks.capabilities import HasProxBlock as HasProxBlock
    from blocklp.blocks.capabilities import HasRestriction as HasRestriction
    from blocklp.blocks.capabilities import HasSoftMin as HasSoftMin
    from blocklp.blocks.capabilities import HasValueAt as HasValueAt
    from blocklp.blocks.capabilities import HasValueError as HasValueError
    from blocklp.blocks.capabilities import HasVertices as HasVertices
    from blocklp.blocks.capabilities import supports as supports
    from blocklp.blocks.contract import ExtendedFormulation as ExtendedFormulation
    from blocklp.blocks.formulas import check_formulas as check_formulas
else:
    publish(
        __name__,
        {
            "blocklp.blocks.capabilities": [
                "HasConstraints",
                "HasExtendedFormulation",
                "HasValueError",
                "HasRestriction",
                "HasProx",
                "HasProxBlock",
                "HasMinBlock",
                "HasCompleteBlock",
                "HasCompletion",
                "HasMinMarginals",
                "HasOverlap",
                "HasSoftMin",
                "HasVertices",
                "HasMaskedTable",
                "HasIntegerConstraints",
                "HasIntervals",
                "HasParts",
                "HasValueAt",
                "supports",
            ],
            "blocklp.blocks.contract": ["ExtendedFormulation"],
            "blocklp.blocks.formulas": ["check_formulas"],
        },
    )
