"""Proofs of minima of discrete functions: quadratic ones, energies of Markov random fields, and independent sets."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.proofs.check import ProofVerdict as ProofVerdict
    from blocklp.problems.proofs.check import check_proof as check_proof
    from blocklp.problems.proofs.files import read_proof as read_proof
    from blocklp.problems.proofs.files import write_proof as write_proof
    from blocklp.problems.proofs.proving import proof_from_log as proof_from_log
    from blocklp.problems.proofs.proving import prove_minimum as prove_minimum
    from blocklp.problems.proofs.steps import Branch as Branch
    from blocklp.problems.proofs.steps import Decomposition as Decomposition
    from blocklp.problems.proofs.steps import Eliminate as Eliminate
    from blocklp.problems.proofs.steps import Parts as Parts
    from blocklp.problems.proofs.steps import Semidefinite as Semidefinite
    from blocklp.problems.proofs.steps import Split as Split
    from blocklp.problems.proofs.steps import Step as Step
else:
    publish(
        __name__,
        {
            "blocklp.problems.proofs.check": ["ProofVerdict", "check_proof"],
            "blocklp.problems.proofs.files": ["read_proof", "write_proof"],
            "blocklp.problems.proofs.proving": ["proof_from_log", "prove_minimum"],
            "blocklp.problems.proofs.steps": ["Branch", "Decomposition", "Eliminate", "Parts", "Semidefinite", "Split", "Step"],
        },
    )
