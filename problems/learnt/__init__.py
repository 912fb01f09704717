"""Solvers that learn from instances of a family: starts of a solve, and branching scores."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.learnt.branching import LearntBranching as LearntBranching
    from blocklp.problems.learnt.branching import train_branching as train_branching
    from blocklp.problems.learnt.families import BRANCHING as BRANCHING
    from blocklp.problems.learnt.families import FAMILIES as FAMILIES
    from blocklp.problems.learnt.families import BranchingFamily as BranchingFamily
    from blocklp.problems.learnt.families import Family as Family
    from blocklp.problems.learnt.passes import LearntPasses as LearntPasses
    from blocklp.problems.learnt.start import LearntStart as LearntStart
    from blocklp.problems.learnt.training import TrainingEvent as TrainingEvent
    from blocklp.problems.learnt.training import train_start as train_start
else:
    publish(
        __name__,
        {
            "blocklp.problems.learnt.branching": ["LearntBranching", "train_branching"],
            "blocklp.problems.learnt.families": ["BRANCHING", "FAMILIES", "BranchingFamily", "Family"],
            "blocklp.problems.learnt.passes": ["LearntPasses"],
            "blocklp.problems.learnt.start": ["LearntStart"],
            "blocklp.problems.learnt.training": ["TrainingEvent", "train_start"],
        },
    )
