"""PyEPO with HiGHS and cvxpylayers on a task in a file: ``python -m bench.learning_process FILE`` prints JSON.

It runs in an environment that has pyepo[pyomo], cvxpylayers and highspy, such as the one that ``BLOCKLP_RIVALS`` names.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Given = dict[str, Any]


def main(path: str) -> None:
    """Read, train, time, print."""
    given = dict(np.load(path))
    torch.set_num_threads(int(given["threads"]))
    answer = by_pyepo(given)
    if not bool(given["integer"]):
        answer |= by_cvxpylayers(given)
    print(json.dumps(answer))


def by_pyepo(given: Given) -> dict[str, float | None]:
    """SPO+ and perturbed Fenchel-Young: seconds of an epoch at batch 256, the best of one and two processes; regret of SPO+."""
    import highspy
    import pyepo
    from pyepo.data.dataset import optDataset
    from pyepo.func import SPOPlus, perturbedFenchelYoung
    from pyepo.metric import regret
    from pyepo.model.opt import optModel
    from torch.utils.data import DataLoader

    maximize, rows, n = bool(given["maximize"]), given["A"], given["A"].shape[1]

    class Highs(optModel):  # type: ignore[misc]
        """The LP or integer program, loaded once; costs change in place."""

        def _getModel(self) -> tuple[Any, list[int]]:
            self.modelSense = pyepo.EPO.MAXIMIZE if maximize else pyepo.EPO.MINIMIZE
            lp = highspy.HighsLp()
            lp.num_row_, lp.num_col_ = rows.shape
            lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.zeros(n), given["lower"], given["upper"]
            lp.row_lower_, lp.row_upper_ = given["row_lower"], given["row_upper"]
            lp.sense_ = highspy.ObjSense.kMaximize if maximize else highspy.ObjSense.kMinimize
            lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
            i, j = np.nonzero(rows)
            lp.a_matrix_.start_ = np.searchsorted(i, np.arange(rows.shape[0] + 1)).astype(np.int32)
            lp.a_matrix_.index_, lp.a_matrix_.value_ = j.astype(np.int32), rows[i, j]
            if bool(given["integer"]):
                lp.integrality_ = [highspy.HighsVarType.kInteger] * n
            highs = highspy.Highs()
            highs.setOptionValue("output_flag", False)
            highs.setOptionValue("threads", 1)
            highs.passModel(lp)
            return highs, list(range(n))

        def setObj(self, c: Any) -> None:
            cost = np.asarray(c, dtype=np.float64).reshape(-1)
            self._model.changeColsCost(n, np.arange(n, dtype=np.int32), cost)

        def solve(self) -> tuple[Any, float]:
            self._model.run()
            return np.array(self._model.getSolution().col_value), self._model.getInfo().objective_function_value

    model = Highs()
    train = optDataset(model, given["train_x"], given["train_c"])
    test = optDataset(model, given["test_x"], given["test_c"])
    scale, batch, count = float(given["scale"]), int(given["batch"]), int(given["epochs"])

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(train.feats.shape[1], n)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * scale

    def trained(loss: Callable[..., Tensor], size: int, epochs: int) -> tuple[torch.nn.Module, float]:
        torch.manual_seed(int(given["seed"]))
        net = Scaled()
        optimizer = torch.optim.Adam(net.parameters(), lr=float(given["rate"]), fused=True)
        loader, seconds = DataLoader(train, batch_size=size, shuffle=True), []
        for _ in range(epochs):
            began = time.perf_counter()
            for x, c, w, z in loader:
                optimizer.zero_grad()
                (loss(net(x), c, w, z) / scale).backward()
                optimizer.step()
            seconds.append(time.perf_counter() - began)
        return net, min(seconds)

    times: dict[str, list[float]] = {"SPO+": [], "Fenchel-Young": []}
    for processes in (1, 2):
        spo = SPOPlus(model, processes=processes)
        young = perturbedFenchelYoung(model, n_samples=int(given["samples"]), sigma=float(given["sigma"]), processes=processes)
        times["SPO+"].append(trained(spo, 256, 2)[1])
        times["Fenchel-Young"].append(trained(lambda p, c, w, z, loss=young: loss(p, w), 256, 2)[1])
    pyomo = through_pyomo(given)
    times["Pyomo"] = [trained(SPOPlus(pyomo, processes=1), 256, 1)[1]]
    net, _ = trained(SPOPlus(model, processes=1), batch, count)
    lost = 100 * float(regret(net, model, DataLoader(test, batch_size=256)))
    return {name: min(own) for name, own in times.items()} | {"regret": lost}


def through_pyomo(given: Given) -> Any:
    """PyEPO's own way to HiGHS: a model of Pyomo."""
    import pyepo
    import pyomo.environ as pe
    from pyepo.model.omo import optOmoModel

    rows, n = given["A"], given["A"].shape[1]

    class Pyomo(optOmoModel):  # type: ignore[misc]
        """The same program."""

        def _getModel(self) -> tuple[Any, Any]:
            self.modelSense = pyepo.EPO.MAXIMIZE if bool(given["maximize"]) else pyepo.EPO.MINIMIZE
            made = pe.ConcreteModel()
            ends = [(float(low), float(high)) for low, high in zip(given["lower"], given["upper"], strict=True)]
            domain = pe.Integers if bool(given["integer"]) else pe.Reals
            made.x = pe.Var(range(n), domain=domain, bounds=lambda _, j: ends[j])
            made.rows = pe.ConstraintList()
            for row, low, high in zip(rows, given["row_lower"], given["row_upper"], strict=True):
                terms = sum(float(row[j]) * made.x[j] for j in np.flatnonzero(row).tolist())
                if low == high:
                    made.rows.add(terms == float(high))
                    continue
                if np.isfinite(low):
                    made.rows.add(terms >= float(low))
                if np.isfinite(high):
                    made.rows.add(terms <= float(high))
            return made, made.x

    return Pyomo(solver="appsi_highs")


def by_cvxpylayers(given: Given) -> dict[str, float]:
    """The layer with a proximal term: seconds of an epoch at batch 256, forward and backward, and its points for a check."""
    import cvxpy
    from cvxpylayers.torch import CvxpyLayer

    n, sign = given["A"].shape[1], -1.0 if bool(given["maximize"]) else 1.0
    x, c = cvxpy.Variable(n), cvxpy.Parameter(n)
    equal = given["row_lower"] == given["row_upper"]
    above, below = np.isfinite(given["row_upper"]) & ~equal, np.isfinite(given["row_lower"]) & ~equal
    rows = [x >= given["lower"], x <= given["upper"]]
    if equal.any():
        rows.append(given["A"][equal] @ x == given["row_upper"][equal])
    if above.any():
        rows.append(given["A"][above] @ x <= given["row_upper"][above])
    if below.any():
        rows.append(given["A"][below] @ x >= given["row_lower"][below])
    objective = cvxpy.Minimize(sign * c @ x + float(given["rho"]) / 2 * cvxpy.sum_squares(x))
    layer = CvxpyLayer(cvxpy.Problem(objective, rows), parameters=[c], variables=[x])
    costs = torch.from_numpy(given["predicted"]).double()
    seconds, points = [], []
    for _ in range(2):
        began, points = time.perf_counter(), []
        for part in costs.split(256):
            own = part.clone().requires_grad_()
            (found,) = layer(own)
            (found * part).sum().backward()
            points.append(found.detach())
        seconds.append(time.perf_counter() - began)
    apart = float((torch.cat(points) - torch.from_numpy(given["points"])).abs().max())
    return {"cvxpylayers": min(seconds), "apart": apart}


if __name__ == "__main__":
    main(*sys.argv[1:])
