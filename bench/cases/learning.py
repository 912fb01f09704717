"""Training with decisions: regret and time of each mode, beside PyEPO with HiGHS and cvxpylayers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from bench.learning_tasks import TASKS, Task, made
from bench.registry import Record, case
from blocklp.general_solvers.linear_program import export

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RIVALS = "BLOCKLP_RIVALS"
EPOCHS, BATCH, RATE, SEEDS, SAMPLES = 30, 32, 0.01, 5, 4


@dataclass(frozen=True)
class Way:
    """A mode and a loss; settings that are named in ``scaled`` are in units of the mean cost."""

    mode: str
    loss: str
    scaled: dict[str, float] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)

    def settings(self, scale: float, seed: int) -> dict[str, Any]:
        """Settings of the layer."""
        own: dict[str, Any] = {name: value * scale for name, value in self.scaled.items()} | self.plain
        if self.mode == "perturbed":
            own["generator"] = torch.Generator().manual_seed(seed)
        return own


WAYS = {
    "two-stage (squared error of costs)": Way("identity", "error"),
    "SPO+": Way("identity", "spo"),
    "Fenchel-Young, perturbed": Way("perturbed", "young", {"sigma": 1.0}, {"samples": SAMPLES}),
    "Fenchel-Young, prox": Way("prox", "young", {"rho": 1.0}),
    "cost of the point, prox": Way("prox", "cost", {"rho": 1.0}),
    "cost of the point, lpgd (average)": Way("lpgd", "cost", {"tau": 5.0}, {"envelope": "average"}),
    "cost of the point, blackbox": Way("lpgd", "cost", {"tau": 5.0}),
    "cost of the point, identity": Way("identity", "cost"),
    "cost of the point, identity (norm)": Way("identity", "cost", plain={"projection": "norm"}),
    "cost of the point, identity (standard)": Way("identity", "cost", plain={"projection": "standard"}),
}


class Trained:
    """A linear network that predicts costs of a task."""

    def __init__(self, task: Task, way: Way, seed: int) -> None:
        self.task, self.way = task, way
        features, costs = task.train
        self.scale = float(costs.abs().mean())
        options = {"cost": task.price, "variables": task.x}
        self.layer = bl.Layer(task.model, mode=way.mode, **options, **way.settings(self.scale, seed))
        self.labels = self.layer.exact(costs)
        self.values = (costs * self.labels).flatten(1).sum(1)
        self.sign = -1.0 if self.layer.map.sense.maximizing else 1.0
        torch.manual_seed(seed)
        self.net = torch.nn.Linear(features.shape[1], costs[0].numel())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=RATE, fused=True)

    def predicted(self, features: Tensor) -> Tensor:
        """Costs of the task's shape, in its units."""
        found: Tensor = self.net(features) * self.scale
        return found.view(-1, *self.task.price.shape)

    def loss(self, rows: Tensor) -> Tensor:
        """Of some rows of the training set."""
        costs, own = self.task.train[1][rows], self.predicted(self.task.train[0][rows])
        if self.way.loss == "error":
            return ((own - costs) / self.scale).square().mean()
        if self.way.loss == "spo":
            return bl.losses.spo_plus(self.layer, own, costs, self.labels[rows], self.values[rows], index=rows) / self.scale
        if self.way.loss == "young":
            return bl.losses.fenchel_young(self.layer, own, self.labels[rows], index=rows) / self.scale
        return self.sign * (costs * self.layer(own, rows)).sum() / self.scale

    def epoch(self, batch: int) -> float:
        """Train on all rows once: seconds."""
        began = time.perf_counter()
        for rows in torch.randperm(len(self.labels)).split(batch):
            self.optimizer.zero_grad()
            self.loss(rows).backward()
            self.optimizer.step()
        return time.perf_counter() - began

    def regret(self) -> float:
        """On the test set, in per cent."""
        features, costs = self.task.test
        with torch.no_grad():
            return 100 * float(bl.losses.regret(self.layer, self.predicted(features), costs))


def draw_picture(records: list[Record], figure: Figure) -> None:
    """Regrets of all ways, and seconds of an epoch beside the rivals'."""
    left, right = figure.subplots(1, 2)
    tasks, ways = (list(dict.fromkeys(r[key] for r in records)) for key in ("task", "trained by"))
    for k, way in enumerate(ways):
        own = [r for r in records if r["trained by"] == way]
        place = [tasks.index(r["task"]) + (k + 0.5) / (len(ways) + 1) - 0.5 for r in own]
        left.bar(place, [r["regret"] for r in own], 1 / (len(ways) + 1), yerr=[r["+-"] or 0.0 for r in own], label=way)
    left.set(xticks=range(len(tasks)), ylabel="regret on the test set, per cent")
    left.set_xticklabels([t.replace(", ", "\n") for t in tasks])
    left.tick_params(axis="x", labelsize=7)
    left.set_ylim(0, 1.5 * max(r["regret"] for r in records))
    left.legend(fontsize=6, ncols=2, loc="upper left")
    shown = (("SPO+", "PyEPO"), ("Fenchel-Young, perturbed", "PyEPO"), ("cost of the point, prox", "cvxpylayers"))
    for k, (way, rival) in enumerate(shown):
        own = [r for r in records if r["trained by"] == way and r[rival] is not None]
        right.plot([r["task"] for r in own], [r["epoch"] for r in own], f"C{k}o-", label=way)
        right.plot([r["task"] for r in own], [r[rival] for r in own], f"C{k}x--", label=f"{way}, {rival}")
    right.set(yscale="log", ylabel="seconds of an epoch of 1,000 rows")
    right.tick_params(axis="x", labelrotation=20, labelsize=8)
    right.set_ylim(1e-3, 1e3)
    right.legend(fontsize=6, ncols=2, loc="upper left")


@case(
    "learning",
    "Training with decisions",
    "A linear network predicts costs from five features, by PyEPO's generators (1,000 rows to train on, 1,000 to test on, "
    "noise of a half; degree 4 but where it is said): shortest paths in a grid of 5 x 5; one integer knapsack of 16 items; "
    "a portfolio LP of 50 assets with bounds on five exposures; assignments of 6 x 6, as choices by rows and by columns. 30"
    " epochs of Adam at batch 32, rate 0.01; tau, rho and sigma are in units of the mean cost, the same for all tasks. "
    "`regret` is the test set's, in per cent of the optimal values, a mean of five seeds, and `+-` their standard "
    "deviation. `epoch` are seconds at batch 256 for 1,000 rows, forward, backward and step, halfway through the training, with "
    "warm starts from the epoch before; `cold` without. `PyEPO` are seconds of PyEPO 2.2.7's same loss by a model of our own on "
    "HiGHS, which keeps its basis, in one or two processes, whichever is faster, and `Pyomo` by PyEPO's own way to HiGHS, a "
    "model of Pyomo; `its regret` is of the first seed. `cvxpylayers` are those of the same layer by cvxpylayers 1.2 (forward "
    "and backward only), `apart` the largest difference between its points and ours. The rivals run in the environment whose "
    "Python `BLOCKLP_RIVALS` names.",
    draw=draw_picture,
)
def run(quick: bool) -> Iterator[Record]:
    seeds, epochs, rows = (1, 1, 64) if quick else (SEEDS, EPOCHS, 1000)
    for name in TASKS:
        tasks = [made(name, seed, rows, rows) for seed in range(seeds)]
        rivals = {} if quick else by_rivals(tasks[0])
        for label, way in WAYS.items():
            found = record(name, label, way, tasks, epochs, rivals)
            print(found, file=sys.stderr, flush=True)
            yield found


def record(name: str, label: str, way: Way, tasks: list[Task], epochs: int, rivals: dict[str, float]) -> Record:
    """One task by one way."""
    lost = []
    for seed, task in enumerate(tasks):
        trained = Trained(task, way, seed)
        for _ in range(epochs):
            trained.epoch(BATCH)
        lost.append(trained.regret())
    warm, cold = timed(tasks[0], way, epochs // 2)
    pyepo = {"spo": "SPO+", "young": "Fenchel-Young"}.get(way.loss) if way.mode != "prox" else None
    prox = way.mode == "prox" and way.loss == "cost"
    return {
        "task": name,
        "trained by": label,
        "regret": fmean(lost),
        "+-": stdev(lost) if len(lost) > 1 else None,
        "epoch": warm,
        "cold": cold,
        "PyEPO": rivals.get(pyepo) if pyepo else None,
        "Pyomo": rivals.get("Pyomo") if way.loss == "spo" else None,
        "its regret": rivals.get("regret") if way.loss == "spo" else None,
        "cvxpylayers": rivals.get("cvxpylayers") if prox else None,
        "apart": rivals.get("apart") if prox else None,
    }


def timed(task: Task, way: Way, epochs: int) -> tuple[float, float]:
    """Least seconds of an epoch at batch 256 from warm and from cold starts, halfway through the training."""
    trained = Trained(task, way, 0)
    for _ in range(epochs):
        trained.epoch(BATCH)
    warm, cold = [], []
    for _ in range(5):
        warm.append(trained.epoch(256))
        trained.layer.forget()
        cold.append(trained.epoch(256))
    return min(warm), min(cold)


def by_rivals(task: Task) -> dict[str, float]:
    """Seconds and regrets of the rivals on a task; empty where no environment has them."""
    python = os.environ.get(RIVALS)
    if python is None:
        print(f"set {RIVALS} to a Python that has pyepo, cvxpylayers and highspy: without, the page has no rivals", file=sys.stderr)
        return {}
    size = task.price.shape
    program = export(task.model, values={task.price: torch.zeros(size)}, integers=task.integer)
    scale = float(task.train[1].abs().mean())
    layer = bl.Layer(task.model, cost=task.price, variables=task.x, mode="prox", rho=scale)
    predicted = task.train[1].double() * 0.9
    arrays = {
        "A": program.A.toarray(),
        "row_lower": program.row_lower,
        "row_upper": program.row_upper,
        "lower": program.lower,
        "upper": program.upper,
        "maximize": program.maximize,
        "integer": task.integer,
        "predicted": predicted.flatten(1).numpy(),
        "points": layer(predicted).flatten(1).numpy(),
        **{"train_x": task.train[0].numpy(), "train_c": task.train[1].flatten(1).numpy()},
        **{"test_x": task.test[0].numpy(), "test_c": task.test[1].flatten(1).numpy()},
        **{"scale": scale, "rho": scale, "sigma": scale, "samples": SAMPLES, "seed": 0},
        **{"epochs": EPOCHS, "batch": BATCH, "rate": RATE, "threads": torch.get_num_threads()},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "task.npz"
        np.savez(path, **arrays)
        command = [python, "-m", "bench.learning_process", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print("rivals failed:", done.stderr[-2000:], file=sys.stderr)
        return {}
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
