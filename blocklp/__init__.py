"""Block-bounded linear programs: batched, certified lower bounds from min-oracles.

Declare variables and blocks, give each block type its min-oracle, and solve; see :class:`Model`.
"""

from blocklp.lazy import publish

__version__ = "0.1.0"

# As in typing, whose import would take longer than all that comes before an interrupt is answered.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from blocklp import ascent as ascent
    from blocklp import capabilities as capabilities
    from blocklp import certificate as certificate
    from blocklp import errors as errors
    from blocklp import expression as expression
    from blocklp import handles as handles
    from blocklp import lp as lp
    from blocklp import methods as methods
    from blocklp import nodes as nodes
    from blocklp import raw as raw
    from blocklp import search as search
    from blocklp import state as state
    from blocklp import testing as testing
    from blocklp import tightening as tightening
    from blocklp.block import BlockType as BlockType
    from blocklp.block import Constraints as Constraints
    from blocklp.box import Box as Box
    from blocklp.certificate import verify_certificate as verify_certificate
    from blocklp.check import check as check
    from blocklp.deadline import Deadline as Deadline
    from blocklp.errors import BlocklpError as BlocklpError
    from blocklp.expression import Parameter as Parameter
    from blocklp.expression import Variable as Variable
    from blocklp.factored import FactoredBlock as FactoredBlock
    from blocklp.finite import FiniteVertices as FiniteVertices
    from blocklp.lp.faces import CVXPY as CVXPY
    from blocklp.lp.faces import PuLP as PuLP
    from blocklp.lp.from_cvxpy import from_cvxpy as from_cvxpy
    from blocklp.lp.linprog import linprog as linprog
    from blocklp.model import Model as Model
    from blocklp.nodes import Nodes as Nodes
    from blocklp.progress import Progress as Progress
    from blocklp.ragged import Ragged as Ragged
    from blocklp.records import Event as Event
    from blocklp.reference import reference as reference
    from blocklp.soft import soft_bound as soft_bound
    from blocklp.solution import Solution as Solution
    from blocklp.solve_exact import solve_exact as solve_exact
    from blocklp.solver import Solver as Solver
    from blocklp.solver import compile as compile
    from blocklp.state import State as State
    from blocklp.status import Status as Status
    from blocklp.tightening import tighten as tighten
else:
    publish(
        __name__,
        {
            "blocklp.block": ["BlockType", "Constraints"],
            "blocklp.box": ["Box"],
            "blocklp.certificate": ["verify_certificate"],
            "blocklp.check": ["check"],
            "blocklp.deadline": ["Deadline"],
            "blocklp.errors": ["BlocklpError"],
            "blocklp.expression": ["Parameter", "Variable"],
            "blocklp.factored": ["FactoredBlock"],
            "blocklp.finite": ["FiniteVertices"],
            "blocklp.lp.faces": ["CVXPY", "PuLP"],
            "blocklp.lp.from_cvxpy": ["from_cvxpy"],
            "blocklp.lp.linprog": ["linprog"],
            "blocklp.model": ["Model"],
            "blocklp.nodes": ["Nodes"],
            "blocklp.progress": ["Progress"],
            "blocklp.ragged": ["Ragged"],
            "blocklp.records": ["Event"],
            "blocklp.reference": ["reference"],
            "blocklp.soft": ["soft_bound"],
            "blocklp.solution": ["Solution"],
            "blocklp.solve_exact": ["solve_exact"],
            "blocklp.solver": ["Solver", "compile"],
            "blocklp.state": ["State"],
            "blocklp.status": ["Status"],
            "blocklp.tightening": ["tighten"],
        },
        submodules=[
            "ascent",
            "capabilities",
            "certificate",
            "errors",
            "expression",
            "handles",
            "lp",
            "methods",
            "nodes",
            "raw",
            "search",
            "state",
            "testing",
            "tightening",
        ],
    )
