"""Layers of networks that minimise models, for training with decisions (:class:`blocklp.Layer`)."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.learning.layer import Layer as Layer
    from blocklp.learning.modes import Identity as Identity
    from blocklp.learning.modes import Lpgd as Lpgd
    from blocklp.learning.modes import Perturbed as Perturbed
    from blocklp.learning.modes import ProximalTerm as ProximalTerm
    from blocklp.learning.neighbours import cvxpylayers_solver as cvxpylayers_solver
    from blocklp.learning.neighbours import pyepo_model as pyepo_model
    from blocklp.learning.structure import Exactness as Exactness
else:
    publish(
        __name__,
        {
            "blocklp.learning.layer": ["Layer"],
            "blocklp.learning.modes": ["Identity", "Lpgd", "Perturbed", "ProximalTerm"],
            "blocklp.learning.neighbours": ["cvxpylayers_solver", "pyepo_model"],
            "blocklp.learning.structure": ["Exactness"],
        },
    )
