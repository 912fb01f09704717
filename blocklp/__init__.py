"""Block-bounded linear programs: batched, certified lower bounds from min-oracles.

Declare variables and blocks, give each block type its min-oracle, and solve; see :class:`Model`.
"""

from blocklp.block import BlockType, Constraints
from blocklp.box import Box
from blocklp.certificate import Certificate, verify_certificate
from blocklp.check import check
from blocklp.deadline import Deadline
from blocklp.errors import BlocklpError
from blocklp.expression import Expression, Parameter, Variable, View
from blocklp.factored import FactoredBlock
from blocklp.finite import FiniteVertices
from blocklp.methods import METHODS, Adam, Admm, Bundle, MinMarginals, Pdhg, Polyak, Prox, ProxBC, ProxFW, Smooth, Supergradient
from blocklp.model import Blocks, Model
from blocklp.nodes import NodeBounds, Nodes
from blocklp.progress import Progress
from blocklp.raw import RawSolution, solve_raw
from blocklp.records import Event
from blocklp.reference import reference
from blocklp.soft import soft_bound
from blocklp.solution import Solution
from blocklp.solver import Solver, compile
from blocklp.state import Saddle, State
from blocklp.status import Status
from blocklp.tightening import Budget, Clusters, tighten
from blocklp.weight import Fixed, InexactRule, RatioRule

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Adam",
    "Admm",
    "BlockType",
    "BlocklpError",
    "Blocks",
    "Box",
    "Budget",
    "Bundle",
    "Certificate",
    "Clusters",
    "Constraints",
    "Deadline",
    "Event",
    "Expression",
    "FactoredBlock",
    "FiniteVertices",
    "Fixed",
    "InexactRule",
    "MinMarginals",
    "Model",
    "NodeBounds",
    "Nodes",
    "Parameter",
    "Pdhg",
    "Polyak",
    "Progress",
    "Prox",
    "ProxBC",
    "ProxFW",
    "RatioRule",
    "RawSolution",
    "Saddle",
    "Smooth",
    "Solution",
    "Solver",
    "State",
    "Status",
    "Supergradient",
    "Variable",
    "View",
    "check",
    "compile",
    "reference",
    "soft_bound",
    "solve_raw",
    "tighten",
    "verify_certificate",
]
