"""Nonconvex continuous relaxation of MRFs: block coordinate descent, projected gradients, Frank-Wolfe, ADMM, and the convex QP."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.mrf.nonconvex.methods.admm import admm as admm
    from blocklp.problems.mrf.nonconvex.methods.bcd import block_coordinate_descent as block_coordinate_descent
    from blocklp.problems.mrf.nonconvex.methods.cqp import convex_qp as convex_qp
    from blocklp.problems.mrf.nonconvex.methods.fw import frank_wolfe as frank_wolfe
    from blocklp.problems.mrf.nonconvex.methods.pgd import projected_gradient as projected_gradient
    from blocklp.problems.mrf.nonconvex.minimise import METHODS as METHODS
    from blocklp.problems.mrf.nonconvex.minimise import minimise as minimise
    from blocklp.problems.mrf.nonconvex.multilinear import Multilinear as Multilinear
    from blocklp.problems.mrf.nonconvex.run import Minimised as Minimised
    from blocklp.problems.mrf.nonconvex.run import NonconvexHistory as NonconvexHistory
    from blocklp.problems.mrf.nonconvex.run import NonconvexRun as NonconvexRun
else:
    publish(
        __name__,
        {
            "blocklp.problems.mrf.nonconvex.methods.admm": ["admm"],
            "blocklp.problems.mrf.nonconvex.methods.bcd": ["block_coordinate_descent"],
            "blocklp.problems.mrf.nonconvex.methods.cqp": ["convex_qp"],
            "blocklp.problems.mrf.nonconvex.methods.fw": ["frank_wolfe"],
            "blocklp.problems.mrf.nonconvex.methods.pgd": ["projected_gradient"],
            "blocklp.problems.mrf.nonconvex.minimise": ["METHODS", "minimise"],
            "blocklp.problems.mrf.nonconvex.multilinear": ["Multilinear"],
            "blocklp.problems.mrf.nonconvex.run": ["Minimised", "NonconvexHistory", "NonconvexRun"],
        },
    )
