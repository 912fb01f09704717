"""General linear programs, with or without bounds of variables, to a certified answer."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.general_solvers.linear_program import LinearProgram as LinearProgram
    from blocklp.lp.detection.block_structure import BlockKind as BlockKind
    from blocklp.lp.detection.block_structure import BlockStructure as BlockStructure
    from blocklp.lp.detection.detect import block_structure as block_structure
    from blocklp.lp.detection.detect import structures as structures
    from blocklp.lp.solve import LinearSolution as LinearSolution
    from blocklp.lp.solve import solve_linear_program as solve_linear_program
else:
    publish(
        __name__,
        {
            "blocklp.general_solvers.linear_program": ["LinearProgram"],
            "blocklp.lp.detection.block_structure": ["BlockKind", "BlockStructure"],
            "blocklp.lp.detection.detect": ["block_structure", "structures"],
            "blocklp.lp.solve": ["LinearSolution", "solve_linear_program"],
        },
    )
