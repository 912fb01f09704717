"""Proofs of minima: what it costs to find and to check them."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.qpbo_data import Instance, read
from bench.registry import Record, case, threads
from blocklp.errors import OptionError, TimeLimitError
from blocklp.problems.mis.exact import solve_mis_exactly
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mrf.exact import solve_mrf_exactly
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.proofs import check_proof, prove_minimum, read_proof, write_proof
from blocklp.problems.qpbo.exact import solve_qpbo_exactly
from blocklp.problems.qpbo.instance import Qubo

QUICK = "qubo/gka1b.sparse", "mis/col/2-Insertions_4.col", "mrf/ObjectDetection_28.uai"
INSTANCES = (
    *QUICK,
    "qubo/bqp100-1.sparse",
    "qubo/be120.3.1.sparse",
    "qubo/gka1e.sparse",
    "maxcut/g05_60.0",
    "maxcut/pw01_100.0",
    "maxcut/t2g15_5555",
    "maxcut/t3g5_5555",
    "maxcut/t3g6_5555",
    "mis/col/2-FullIns_4.col",
    "mis/col/DSJC125.1.col",
    "mis/col/DSJR500.1.col",
    "mis/frb/frb30-15-1.mis",
    "mis/dimacs_weighted/brock200_2.clq",
    "mis/dimacs_weighted/C125.9.clq",
    "mis/dimacs_weighted/c-fat200-1.clq",
    "mis/dimacs_weighted/keller4.clq",
    "mis/dimacs_weighted/hamming8-4.clq",
    "mis/mwvc/DBN_11.mwvc",
    "mis/mwvc/MMAP_Grids_26.mwvc",
    "mis/mwvc/relational_3.mwvc",
    "mrf/grids_wrap20/Grids_26.uai",
    "mrf/grids_wrap20/Grids_28.uai",
    "mrf/DBN_13.uai",
    "mrf/ObjectDetection_14.uai",
    "mrf/multilabel/Segmentation_11.uai",
    "toulbar2/GeomSurf-7-gm256.uai.xz",
)
LIMIT = 200.0
SOLVERS = {Qubo: solve_qpbo_exactly, WeightedGraph: solve_mis_exactly, Mrf: solve_mrf_exactly}


@case(
    "minimum_proofs",
    "Proofs of minima",
    "Quadratic functions, independent sets and Markov random fields of the shared data set, one thread; CPU seconds. `solve`: the "
    f"exact search, at most {LIMIT:g} seconds; `prove`: finding a proof, at most as long; `check`: reading and checking "
    "it in integers. `leaves`, `bytes`: those of the proof. `open`: what the proof leaves, relative to the value; nothing where "
    "coefficients are multiples of a common number on the checker's grid. `findings`: minima whose proof proves less than that.",
)
def run(quick: bool) -> Iterator[Record]:
    with threads(1):
        for name in QUICK if quick else INSTANCES:
            yield _measure(name)


def _measure(name: str) -> Record:
    instance = _stated(read(name))
    began = time.process_time()
    found = SOLVERS[type(instance)](instance, time_limit=LIMIT)
    record: Record = {
        "instance": Path(name).stem if name.startswith("mis") else Path(name).name,
        "n": instance.n,
        "pairs": len(instance.edges),
        "minimum": found.energy,
        "solve": time.process_time() - began,
        "prove": None,
        "leaves": None,
        "bytes": None,
        "check": None,
        "open": None,
        "findings": 0,
    }
    began = time.process_time()
    try:
        proof = prove_minimum(instance, found.labels, time_limit=LIMIT) if found.proven else None
    except (TimeLimitError, OptionError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        proof = None
    if proof is not None:
        record["prove"] = time.process_time() - began
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "proof.gz"
            record["bytes"], began = write_proof(file, instance, found.labels, proof), time.process_time()
            verdict = check_proof(instance, *read_proof(file, instance))
            record["check"] = time.process_time() - began
        assert verdict.gap is not None
        left = float(verdict.gap) / max(1.0, abs(found.energy))
        record |= {"leaves": verdict.leaves, "open": left or None, "findings": int(left > 1e-6)}
    print(record, file=sys.stderr, flush=True)
    return record


def _stated(instance: Instance) -> Instance:
    """Heaviest cliques as heaviest independent sets of the complement."""
    asks_for_cliques = isinstance(instance, WeightedGraph) and instance.objective == "clique"
    return instance.complement() if asks_for_cliques else instance
