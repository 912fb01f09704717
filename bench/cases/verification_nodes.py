"""Nodes a second of branch and bound over signs."""

from __future__ import annotations

import sys

import torch

from bench.cases.verification_instances import LEAST
from bench.data import data
from bench.registry import Record, case
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.onnx_reader import read_onnx
from blocklp.problems.verification.properties import Property
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.problems.verification.tightener import Tightener
from blocklp.problems.verification.verify import NODE_STEPS, verify
from blocklp.problems.verification.vnnlib_reader import read_property

INSTANCES = (
    ("cifar_base_kw", "img4631-eps0.016339869281045753"),
    ("cifar_deep_kw", "img386-eps0.024183006535947717"),
    ("cifar_wide_kw", "img6762-eps0.017908496732026144"),
)
THREADS = (1, 2)
SECONDS = 60.0


@case(
    "verification_nodes",
    "Networks: nodes a second of branch and bound",
    "Three instances of oval21 without attack, 60 seconds each. A node is one bound of one row under some signs: 20 steps in "
    "float32, one evaluation in float64. `batch` is the number of nodes bounded at once. `nodes/s` are those of the search "
    "alone; `overall` counts the bounds of all layers at the root too. `ratio`: `nodes/s` over that of one"
    " thread.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    threads = torch.get_num_threads()
    try:
        for net, image in INSTANCES[: 1 if quick else None]:
            network = read_onnx(data(f"verification/oval21/nets/{net}.onnx"))
            prop = read_property(data(f"verification/oval21/specs/{net}-{image}.vnnlib"), network.inputs, network.outputs)
            for number in THREADS:
                torch.set_num_threads(number)
                found = verify(network, prop, timeout=5.0 if quick else SECONDS, attack=False)
                search = found.phases.get("search", 0.0)
                speed = found.nodes / search if search > LEAST else None
                records.append(
                    {
                        "instance": f"{net} {image.partition('-')[0]}",
                        "threads": number,
                        "batch": batch_of(network, prop),
                        "verdict": found.status,
                        "nodes": found.nodes,
                        "seconds": found.seconds,
                        "search": search,
                        "nodes/s": speed,
                        "overall": found.nodes / found.seconds,
                        "ratio": speed / records[-1]["nodes/s"] if number > 1 and speed and records[-1]["nodes/s"] else None,
                    }
                )
                print(records[-1], file=sys.stderr, flush=True)
    finally:
        torch.set_num_threads(threads)
    return records


def batch_of(network: Network, prop: Property) -> int:
    """How many nodes of an instance are expanded at once, where the network is."""
    clause, there = prop.clauses[0], network.device
    lower, upper = (torch.tensor(b.copy(), device=there).view(1, *network.input_shape) for b in (clause.lower, clause.upper))
    layers = Tightener(network, lower, upper, 1, output=False, method="interval")
    layers.run()
    rows, right = (torch.tensor(own.copy(), device=there) for own in (clause.matrix, clause.right))
    return ReluSplits(layers.relaxation(), rows, right, NODE_STEPS, lambda x: None).batch
