"""The examples of Gould et al. (2016), *On differentiating parameterized argmin and argmax problems*, and their figures."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.declarative.bilevel import Descent as Descent
    from blocklp.problems.declarative.bilevel import place_maxima as place_maxima
else:
    publish(
        __name__,
        {
            "blocklp.problems.declarative.bilevel": ["Descent", "place_maxima"],
        },
    )
