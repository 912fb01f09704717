"""Block-bounded linear programs: batched, certified lower bounds from min-oracles.

Declare variables and blocks, give each block type its min-oracle, and solve; see :class:`Model`.
"""

from blocklp.lazy import publish

__version__ = "0.1.0"

# As in typing, whose import would take longer than all that comes before the command line answers an interrupt.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from blocklp.block import BlockType as BlockType
    from blocklp.block import Constraints as Constraints
    from blocklp.box import Box as Box
    from blocklp.certificate import Certificate as Certificate
    from blocklp.certificate import verify_certificate as verify_certificate
    from blocklp.check import check as check
    from blocklp.deadline import Deadline as Deadline
    from blocklp.errors import BlocklpError as BlocklpError
    from blocklp.expression import Expression as Expression
    from blocklp.expression import Parameter as Parameter
    from blocklp.expression import Variable as Variable
    from blocklp.expression import View as View
    from blocklp.factored import FactoredBlock as FactoredBlock
    from blocklp.finite import FiniteVertices as FiniteVertices
    from blocklp.handles import Blocks as Blocks
    from blocklp.linear_program import LinearProgram as LinearProgram
    from blocklp.lp.faces import CVXPY as CVXPY
    from blocklp.lp.faces import PuLP as PuLP
    from blocklp.lp.from_cvxpy import from_cvxpy as from_cvxpy
    from blocklp.lp.linprog import linprog as linprog
    from blocklp.lp.solve import LinearSolution as LinearSolution
    from blocklp.lp.solve import solve_linear_program as solve_linear_program
    from blocklp.methods import METHODS as METHODS
    from blocklp.methods import Adam as Adam
    from blocklp.methods import Admm as Admm
    from blocklp.methods import Bundle as Bundle
    from blocklp.methods import DantzigWolfe as DantzigWolfe
    from blocklp.methods import MinMarginals as MinMarginals
    from blocklp.methods import Pdhg as Pdhg
    from blocklp.methods import Polyak as Polyak
    from blocklp.methods import Prox as Prox
    from blocklp.methods import ProxBC as ProxBC
    from blocklp.methods import ProxFW as ProxFW
    from blocklp.methods import Race as Race
    from blocklp.methods import Smooth as Smooth
    from blocklp.methods import Supergradient as Supergradient
    from blocklp.model import Model as Model
    from blocklp.nodes import NodeBounds as NodeBounds
    from blocklp.nodes import Nodes as Nodes
    from blocklp.progress import Progress as Progress
    from blocklp.ragged import Ragged as Ragged
    from blocklp.raw import RawSolution as RawSolution
    from blocklp.raw import solve_raw as solve_raw
    from blocklp.records import Event as Event
    from blocklp.reference import reference as reference
    from blocklp.soft import soft_bound as soft_bound
    from blocklp.solution import Solution as Solution
    from blocklp.solve_exact import ExactSolution as ExactSolution
    from blocklp.solve_exact import solve_exact as solve_exact
    from blocklp.solver import Solver as Solver
    from blocklp.solver import compile as compile
    from blocklp.state import Saddle as Saddle
    from blocklp.state import State as State
    from blocklp.status import Status as Status
    from blocklp.tightening import Budget as Budget
    from blocklp.tightening import Clusters as Clusters
    from blocklp.tightening import tighten as tighten
    from blocklp.weight import Fixed as Fixed
    from blocklp.weight import InexactRule as InexactRule
    from blocklp.weight import RatioRule as RatioRule
else:
    publish(
        __name__,
        {
            "blocklp.block": ["BlockType", "Constraints"],
            "blocklp.box": ["Box"],
            "blocklp.certificate": ["Certificate", "verify_certificate"],
            "blocklp.check": ["check"],
            "blocklp.deadline": ["Deadline"],
            "blocklp.errors": ["BlocklpError"],
            "blocklp.expression": ["Expression", "Parameter", "Variable", "View"],
            "blocklp.factored": ["FactoredBlock"],
            "blocklp.finite": ["FiniteVertices"],
            "blocklp.linear_program": ["LinearProgram"],
            "blocklp.lp.faces": ["CVXPY", "PuLP"],
            "blocklp.lp.from_cvxpy": ["from_cvxpy"],
            "blocklp.lp.linprog": ["linprog"],
            "blocklp.lp.solve": ["LinearSolution", "solve_linear_program"],
            "blocklp.methods": [
                "METHODS",
                "Adam",
                "Admm",
                "Bundle",
                "DantzigWolfe",
                "MinMarginals",
                "Pdhg",
                "Polyak",
                "Prox",
                "ProxBC",
                "ProxFW",
                "Race",
                "Smooth",
                "Supergradient",
            ],
            "blocklp.handles": ["Blocks"],
            "blocklp.model": ["Model"],
            "blocklp.nodes": ["NodeBounds", "Nodes"],
            "blocklp.progress": ["Progress"],
            "blocklp.ragged": ["Ragged"],
            "blocklp.raw": ["RawSolution", "solve_raw"],
            "blocklp.records": ["Event"],
            "blocklp.reference": ["reference"],
            "blocklp.soft": ["soft_bound"],
            "blocklp.solution": ["Solution"],
            "blocklp.solve_exact": ["ExactSolution", "solve_exact"],
            "blocklp.solver": ["Solver", "compile"],
            "blocklp.state": ["Saddle", "State"],
            "blocklp.status": ["Status"],
            "blocklp.tightening": ["Budget", "Clusters", "tighten"],
            "blocklp.weight": ["Fixed", "InexactRule", "RatioRule"],
        },
    )
