"""Block-bounded linear programs: batched, certified lower bounds from min-oracles.

Declare variables and blocks, give each block type its min-oracle, and solve; see :class:`Model`.
"""

from blocklp.lazy import publish

__version__ = "0.1.0"

# As in typing, whose import would take longer than all that comes before an interrupt is answered.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from blocklp import blocks as blocks
    from blocklp import campaigns as campaigns
    from blocklp import certify as certify
    from blocklp import declarative as declarative
    from blocklp import distributed as distributed
    from blocklp import errors as errors
    from blocklp import language as language
    from blocklp import learning as learning
    from blocklp import losses as losses
    from blocklp import lp as lp
    from blocklp import methods as methods
    from blocklp import raw as raw
    from blocklp import results as results
    from blocklp import search as search
    from blocklp import testing as testing
    from blocklp.blocks.box import Box as Box
    from blocklp.blocks.contract import BlockType as BlockType
    from blocklp.blocks.contract import Constraints as Constraints
    from blocklp.blocks.factored import FactoredBlock as FactoredBlock
    from blocklp.blocks.finite import FiniteVertices as FiniteVertices
    from blocklp.blocks.ragged import Ragged as Ragged
    from blocklp.certify.certificate import verify_certificate as verify_certificate
    from blocklp.deadline import Deadline as Deadline
    from blocklp.engine.records import Event as Event
    from blocklp.errors import BlocklpError as BlocklpError
    from blocklp.general_solvers.solvers import reference as reference
    from blocklp.gradients.value import value as value
    from blocklp.language.expression import Parameter as Parameter
    from blocklp.language.variable import Variable as Variable
    from blocklp.learning.layer import Layer as Layer
    from blocklp.lp.detection.detect import detect as detect
    from blocklp.lp.faces import CVXPY as CVXPY
    from blocklp.lp.faces import PuLP as PuLP
    from blocklp.lp.from_cvxpy import from_cvxpy as from_cvxpy
    from blocklp.lp.linprog import linprog as linprog
    from blocklp.model import Model as Model
    from blocklp.model import ModelBatch as ModelBatch
    from blocklp.progress import Progress as Progress
    from blocklp.results.solution import Solution as Solution
    from blocklp.results.state import State as State
    from blocklp.search.linear_nodes import LinearNodes as LinearNodes
    from blocklp.search.nodes import Nodes as Nodes
    from blocklp.search.solve_exact import solve_exact as solve_exact
    from blocklp.search.tightening import tighten as tighten
    from blocklp.soft import soft_bound as soft_bound
    from blocklp.solver import Solver as Solver
    from blocklp.solver import compile as compile
    from blocklp.status import Status as Status
    from blocklp.testing.check import check as check
else:
    publish(
        __name__,
        {
            "blocklp.blocks.box": ["Box"],
            "blocklp.blocks.contract": ["BlockType", "Constraints"],
            "blocklp.blocks.factored": ["FactoredBlock"],
            "blocklp.blocks.finite": ["FiniteVertices"],
            "blocklp.blocks.ragged": ["Ragged"],
            "blocklp.certify.certificate": ["verify_certificate"],
            "blocklp.deadline": ["Deadline"],
            "blocklp.engine.records": ["Event"],
            "blocklp.errors": ["BlocklpError"],
            "blocklp.general_solvers.solvers": ["reference"],
            "blocklp.language.expression": ["Parameter"],
            "blocklp.language.variable": ["Variable"],
            "blocklp.learning.layer": ["Layer"],
            "blocklp.lp.detection.detect": ["detect"],
            "blocklp.lp.faces": ["CVXPY", "PuLP"],
            "blocklp.lp.from_cvxpy": ["from_cvxpy"],
            "blocklp.lp.linprog": ["linprog"],
            "blocklp.model": ["Model", "ModelBatch"],
            "blocklp.progress": ["Progress"],
            "blocklp.results.solution": ["Solution"],
            "blocklp.results.state": ["State"],
            "blocklp.search.linear_nodes": ["LinearNodes"],
            "blocklp.search.nodes": ["Nodes"],
            "blocklp.search.solve_exact": ["solve_exact"],
            "blocklp.search.tightening": ["tighten"],
            "blocklp.soft": ["soft_bound"],
            "blocklp.solver": ["Solver", "compile"],
            "blocklp.status": ["Status"],
            "blocklp.testing.check": ["check"],
            "blocklp.gradients.value": ["value"],
        },
        submodules=[
            "blocks",
            "campaigns",
            "certify",
            "declarative",
            "distributed",
            "errors",
            "language",
            "learning",
            "losses",
            "lp",
            "methods",
            "raw",
            "results",
            "search",
            "testing",
        ],
    )
