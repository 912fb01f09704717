"""Certificates: bounds checked by code that shares nothing with the engine."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.certify.certificate import Certificate as Certificate
else:
    publish(
        __name__,
        {
            "blocklp.certify.certificate": ["Certificate"],
        },
    )
