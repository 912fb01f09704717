"""Minimisers of any twice differentiable function, differentiable by its parameters (Gould et al. 2016)."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.declarative.barrier import barrier_jacobians as barrier_jacobians
    from blocklp.declarative.barrier import barrier_objective as barrier_objective
    from blocklp.declarative.barrier import log_barrier_derivatives as log_barrier_derivatives
    from blocklp.declarative.constraints import ball as ball
    from blocklp.declarative.constraints import box as box
    from blocklp.declarative.derivatives import Derivatives as Derivatives
    from blocklp.declarative.derivatives import second_derivatives as second_derivatives
    from blocklp.declarative.equality import lagrange_jacobians as lagrange_jacobians
    from blocklp.declarative.equality import null_space_jacobians as null_space_jacobians
    from blocklp.declarative.layer import ArgminLayer as ArgminLayer
    from blocklp.declarative.node import Minimum as Minimum
    from blocklp.declarative.node import argmax as argmax
    from blocklp.declarative.node import argmin as argmin
    from blocklp.declarative.node import implicit as implicit
    from blocklp.declarative.node import minimise as minimise
    from blocklp.declarative.optimality import kkt_jacobians as kkt_jacobians
    from blocklp.declarative.unconstrained import scalar_derivative as scalar_derivative
    from blocklp.declarative.unconstrained import unconstrained_jacobians as unconstrained_jacobians
else:
    publish(
        __name__,
        {
            "blocklp.declarative.barrier": [
                "barrier_jacobians",
                "barrier_objective",
                "log_barrier_derivatives",
            ],
            "blocklp.declarative.constraints": ["ball", "box"],
            "blocklp.declarative.derivatives": ["Derivatives", "second_derivatives"],
            "blocklp.declarative.equality": ["lagrange_jacobians", "null_space_jacobians"],
            "blocklp.declarative.layer": ["ArgminLayer"],
            "blocklp.declarative.node": ["Minimum", "argmax", "argmin", "implicit", "minimise"],
            "blocklp.declarative.optimality": ["kkt_jacobians"],
            "blocklp.declarative.unconstrained": ["scalar_derivative", "unconstrained_jacobians"],
        },
    )
