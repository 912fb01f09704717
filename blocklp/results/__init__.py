"""Results of a solve: solutions, states, and their files."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.results.state import Saddle as Saddle
else:
    publish(
        __name__,
        {
            "blocklp.results.state": ["Saddle"],
        },
    )
