"""Nonconvex continuous relaxation of MRFs: block coordinate descent, projected gradients, Frank-Wolfe, ADMM, and the convex QP."""

from blocklp.problems.mrf.nonconvex.admm import admm
from blocklp.problems.mrf.nonconvex.block_coordinate_descent import block_coordinate_descent
from blocklp.problems.mrf.nonconvex.convex_qp import convex_qp
from blocklp.problems.mrf.nonconvex.frank_wolfe import frank_wolfe
from blocklp.problems.mrf.nonconvex.minimise import METHODS, minimise
from blocklp.problems.mrf.nonconvex.multilinear import Multilinear
from blocklp.problems.mrf.nonconvex.projected_gradient import projected_gradient
from blocklp.problems.mrf.nonconvex.run import Minimised, NonconvexHistory, NonconvexRun

__all__ = [
    "METHODS",
    "Minimised",
    "Multilinear",
    "NonconvexHistory",
    "NonconvexRun",
    "admm",
    "block_coordinate_descent",
    "convex_qp",
    "frank_wolfe",
    "minimise",
    "projected_gradient",
]
