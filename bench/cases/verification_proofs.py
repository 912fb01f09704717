"""Proofs of verdicts: what it costs to write and to check them."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.data import data
from bench.registry import Record, case, threads
from blocklp.errors import FormatError
from blocklp.problems.verification.onnx_files import Runtime
from blocklp.problems.verification.onnx_reader import read_onnx
from blocklp.problems.verification.proof import check_proof
from blocklp.problems.verification.proof_files import read_proof, write_proof
from blocklp.problems.verification.verify import verify
from blocklp.problems.verification.vnnlib_reader import read_property

QUICK = [
    ("acasxu", "ACASXU_run2a_1_1_batch_2000", "prop_3"),
    ("mnist_fc", "mnist-net_256x2", "prop_0_0.03"),
    ("oval21", "cifar_base_kw", "cifar_base_kw-img4549-eps0.00392156862745098"),
]
INSTANCES = [
    *QUICK,
    ("acasxu", "ACASXU_run2a_2_1_batch_2000", "prop_2"),
    ("acasxu", "ACASXU_run2a_1_1_batch_2000", "prop_5"),
    ("acasxu", "ACASXU_run2a_3_3_batch_2000", "prop_9"),
    ("mnist_fc", "mnist-net_256x2", "prop_1_0.03"),
    ("mnist_fc", "mnist-net_256x4", "prop_0_0.03"),
    ("oval21", "cifar_base_kw", "cifar_base_kw-img1697-eps0.0014379084967320263"),
    ("oval21", "cifar_base_kw", "cifar_base_kw-img2908-eps0.019869281045751634"),
    ("oval21", "cifar_base_kw", "cifar_base_kw-img4631-eps0.016339869281045753"),
    ("oval21", "cifar_deep_kw", "cifar_deep_kw-img5533-eps0.014379084967320262"),
    ("oval21", "cifar_wide_kw", "cifar_wide_kw-img19-eps0.007973856209150327"),
]
TIMEOUT = 120.0


@case(
    "verification_proofs",
    "Networks: proofs of verdicts",
    f"Instances of VNN-COMP 2021, one thread, at most {TIMEOUT:g} seconds each; CPU seconds. `alone`: the verdict without a proof; "
    "`with proof`: with one; `write`: making the file of it, of so many bytes; `check`: checking it in integers, reading of the "
    "proof included. `bounds`: neurons whose bounds the proof improves, counted once a region. `findings`: verdicts whose proof is "
    "refused.",
)
def run(quick: bool) -> Iterator[Record]:
    with threads(1):
        for family, net, spec in QUICK if quick else INSTANCES:
            yield _measure(family, net, spec)


def _measure(family: str, net: str, spec: str) -> Record:
    path = data(f"verification/{family}/nets/{net}.onnx")
    network, runtime = read_onnx(path), Runtime(path)
    prop = read_property(data(f"verification/{family}/specs/{spec}.vnnlib"), network.inputs, network.outputs)
    began = time.process_time()
    verify(network, prop, timeout=TIMEOUT, runtime=runtime)
    alone, began = time.process_time() - began, time.process_time()
    verdict = verify(network, prop, timeout=TIMEOUT, runtime=runtime, proof=True)
    record: Record = {
        "network": net,
        "query": spec,
        "verdict": verdict.status,
        "nodes": verdict.nodes,
        "alone": alone,
        "with proof": time.process_time() - began,
        "write": None,
        "bytes": None,
        "leaves": None,
        "bounds": None,
        "check": None,
        "findings": 0,
    }
    if verdict.proof is not None:
        with tempfile.TemporaryDirectory() as folder:
            file, began = Path(folder) / "proof.gz", time.process_time()
            record["bytes"] = write_proof(file, network, prop, verdict.proof.steps())
            record["write"], began = time.process_time() - began, time.process_time()
            try:
                found = check_proof(network, prop, read_proof(file, network, prop))
            except FormatError as error:
                print(f"{net} {spec}: {error}", file=sys.stderr)
                found = {"status": "refused", "leaves": None, "bounds": None}
            record["check"] = time.process_time() - began
        record |= {"leaves": found["leaves"], "bounds": found["bounds"], "findings": int(found["status"] != verdict.status)}
    print(record, file=sys.stderr, flush=True)
    return record
