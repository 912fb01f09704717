"""Real instances."""

from __future__ import annotations

from bench.data import data
from bench.registry import Record, case
from bench.rivals import highs, max_flow
from blocklp.errors import FormatError
from blocklp.problems.mis import read_graph
from blocklp.problems.qpbo import Qubo, read_qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


def instances(quick: bool) -> list[Qubo]:
    """All QUBOs and vertex-cover graphs."""
    files = sorted(data("qpbo/qubo").glob("*.sparse")) + sorted(data("qpbo/mis/mwvc").glob("*.mwvc"))
    found = []
    for file in files[:3] if quick else files:
        try:
            found.append(read_qubo(file) if file.suffix == ".sparse" else read_graph(file).to_qubo())
        except FormatError as error:
            print(f"refused: {file.name}, {str(error).partition(':')[2]}")
    return found


@case(
    "real",
    "Real instances: Biq Mac QUBOs and vertex covers of UAI models",
    "Roof duality at tol = 1e-5, float64. `error` is (max-flow value - bound) / max(1, |value|), never negative. HiGHS runs its "
    "interior point method.",
)
def run(quick: bool) -> list[Record]:
    records = []
    for qubo in instances(quick):
        truth, build, solve = max_flow(qubo)
        solution = roof_duality_model(qubo).solve(tol=1e-5)
        records.append(
            {
                "instance": qubo.name,
                "n": qubo.n,
                "pairs": len(qubo.edges),
                "status": solution.status[0].name.lower(),
                "bound": solution.bound.item(),
                "error": (truth - solution.bound.item()) / max(1.0, abs(truth)),
                "gap": solution.gap.item(),
                "passes": int(solution.passes.item()),
                "seconds": solution.seconds.item(),
                "max-flow": build + solve,
                "HiGHS ipm": highs(qubo, "ipm")[1],
            }
        )
    return records
