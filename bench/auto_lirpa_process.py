"""alpha-CROWN of auto_LiRPA on a described network: ``python -m bench.auto_lirpa_process JOB.pt`` prints JSON last.

The package is found through PYTHONPATH; nothing of it is installed beside blocklp or copied.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm


def network(layers: list[dict[str, Any]]) -> torch.nn.Sequential:
    """Build the module."""
    modules: list[torch.nn.Module] = []
    for layer in layers:
        if layer["kind"] == "relu":
            modules.append(torch.nn.ReLU())
            continue
        weight = layer["weight"]
        if layer["kind"] == "conv":
            sizes = (weight.shape[1] * layer["groups"], weight.shape[0], tuple(weight.shape[2:]))
            made = torch.nn.Conv2d(*sizes, stride=layer["stride"], padding=layer["padding"], groups=layer["groups"])
        else:
            if not any(isinstance(m, torch.nn.Linear) for m in modules):
                modules.append(torch.nn.Flatten())
            made = torch.nn.Linear(weight.shape[1], weight.shape[0])
        made.weight.data, made.bias.data = weight, layer["bias"]
        modules.append(made)
    return torch.nn.Sequential(*modules)


def main(file: str) -> None:
    """Read, run, print."""
    job = torch.load(file, weights_only=True)
    torch.set_num_threads(job["threads"])
    lower, upper, rows = job["lower"], job["upper"], job["rows"]
    options = dict(job["options"])
    module = BoundedModule(network(job["layers"]).eval(), lower, bound_opts=options.pop("module", {}), device="cpu")
    x = BoundedTensor((lower + upper) / 2, PerturbationLpNorm(norm=float("inf"), x_L=lower, x_U=upper))
    relus = [node for node in module.nodes() if type(node).__name__ == "BoundRelu"]
    names = [node.inputs[0].name for node in relus]
    fixed = dict(zip(names, job["bounds"], strict=True)) if job["bounds"] else None

    def once(iterations: int) -> dict[str, Any]:
        settings = {"iteration": iterations, "fix_interm_bounds": fixed is not None, "init_alpha": fixed is None, **options}
        module.set_bound_opts({"optimize_bound_args": settings})
        began = time.perf_counter()
        if fixed is not None:
            # Else it would bound the intermediate layers again to make the alphas.
            module.init_alpha((x,), method="backward", c=rows, bound_upper=False, interm_bounds=fixed)
        low, _ = module.compute_bounds(x=(x,), C=rows, method="CROWN-Optimized", bound_upper=False, interm_bounds=fixed)
        seconds = time.perf_counter() - began
        unstable = [int(((n.inputs[0].lower < 0) & (n.inputs[0].upper > 0)).sum()) for n in relus]
        return {"values": low.flatten().tolist(), "seconds": seconds, "unstable": unstable}

    once(2)  # what is made once and kept is not timed
    answers = []
    for iterations in job["iterations"]:
        runs = [once(iterations) for _ in range(job["repeats"])]
        answers.append(runs[0] | {"seconds": statistics.median(r["seconds"] for r in runs)})
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
