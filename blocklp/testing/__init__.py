"""Conformance tests that any block type can be put through."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.testing.conformance import BlockTypeConformance as BlockTypeConformance
else:
    publish(
        __name__,
        {
            "blocklp.testing.conformance": ["BlockTypeConformance"],
        },
    )
