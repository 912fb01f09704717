"""The modelling language: variables, expressions, rows and blocks, and their lowering to a decomposition."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.language.expression import Expression as Expression
    from blocklp.language.expression import Term as Term
    from blocklp.language.expression import View as View
    from blocklp.language.handles import Blocks as Blocks
    from blocklp.language.handles import Rows as Rows
    from blocklp.language.ragged import RaggedBlocks as RaggedBlocks
    from blocklp.language.ragged import RaggedVariable as RaggedVariable
    from blocklp.language.statement import Statement as Statement
else:
    publish(
        __name__,
        {
            "blocklp.language.ragged": ["RaggedBlocks", "RaggedVariable"],
            "blocklp.language.expression": ["Expression", "Term", "View"],
            "blocklp.language.handles": ["Blocks", "Rows"],
            "blocklp.language.statement": ["Statement"],
        },
    )
