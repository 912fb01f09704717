"""Warm starts, batches, and a compiled solver as an object that lives on."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from bench.soak.engine import Settings, check_bounds, check_optimal, settings, solved
from bench.soak.instances import Sketch, assignment, costs, products, random_sketch, rescaled
from bench.soak.trial import Draw, claim, trial
from bench.soak.users import Single
from blocklp.errors import BlocklpError
from blocklp.oracles import Knapsack


@trial("warm starts", "Whatever a warm start holds, bounds are valid or the start is refused.", weight=2)
def warm_starts(draw: Draw) -> None:
    sketch, how = rescaled(draw, random_sketch(draw)), settings(draw)
    model, first = solved(sketch, how)
    if first is None:
        return
    state = first.state
    kind = draw.pick("as it is", "NaN", "infinite", "huge", "noise", "other method", "other instances", "eta", "saddle")
    name = draw.pick(*state.duals)
    duals = {k: v.clone() for k, v in state.duals.items()}
    some = torch.as_tensor(draw.random.random(tuple(duals[name].shape)) < 0.5)
    if kind in ("NaN", "infinite", "huge"):
        duals[name][some] = {"NaN": torch.nan, "infinite": draw.pick(-torch.inf, torch.inf), "huge": 1e300}[kind]
    if kind == "noise":
        scale = float(np.abs(sketch.cost).max()) * 10.0 ** draw.count(0, 9)
        duals[name] += scale * torch.as_tensor(draw.random.normal(size=tuple(duals[name].shape)))
    state = replace(state, duals=duals)
    if kind == "eta":
        state = replace(state, eta=torch.full_like(state.eta, draw.pick(0.0, -1.0, 1e-300, 1e300, torch.inf)))
    if kind == "saddle" and state.saddle is not None:
        state = replace(state, saddle=replace(state.saddle, x=state.saddle.x * draw.pick(torch.nan, 1e200)))
    if kind == "other instances":
        state = state.select(torch.as_tensor(draw.random.integers(0, sketch.batch, sketch.batch)))
    if kind == "other method":
        how = Settings(draw.pick(*bl.methods.METHODS), how.dtype, how.options)
    try:
        second = model.compile(dtype=how.dtype).solve(method=how.method, bounds=sketch.bounds(model), warm_start=state, **how.options)
    except BlocklpError:
        return
    check_bounds(sketch, second, f"{how}, a warm start with {kind}")


@trial("batches", "Models of different sizes compile together, and each gets its own answers.", weight=2)
def models_of_different_sizes(draw: Draw) -> None:
    layout = draw.pick(products, assignment)
    sketches = [layout(draw, draw.count(1, 2)) for _ in range(draw.count(2, 4))]
    for s in sketches:  # models compiled together have the same handles
        kept = s.groups if layout is assignment else [g for g in s.groups if g.build().name == "Edge"]
        s.groups = kept[:2]
    names = [[g.build().name for g in s.groups] for s in sketches]
    same = [s for s, own in zip(sketches, names, strict=True) if own == names[0]]
    how = Settings(draw.pick("auto", "prox", "admm", "polyak"), torch.float64, {"tol": 1e-4, "passes": 400})
    together = bl.compile([s.model() for s in same]).solve(method=how.method, **how.options)
    place = 0
    for s in same:
        for i in range(s.batch):
            own = Sketch(s.lower, s.upper, s.point, s.cost[i : i + 1], s.groups)
            check_bounds(own, together.instance(place), f"{how}, {len(same)} models together")
            claim(together.instance(place).x["x"].shape == (1, len(s.lower)), "a point has another size than its model")
            place += 1


@trial("batches", "An instance gets the bound that it gets alone, whatever is beside it.")
def alone_and_beside(draw: Draw) -> None:
    sketch = rescaled(draw, random_sketch(draw, batch=draw.count(2, 4)))
    how = Settings(draw.pick("auto", "prox", "polyak"), torch.float64, {"tol": 1e-6, "passes": 100})
    _, together = solved(sketch, how)
    assert together is not None
    check_bounds(sketch, together, how)
    i = int(draw.random.integers(sketch.batch))
    alone = solved(replace(sketch, cost=sketch.cost[i : i + 1]), how)[1]
    assert alone is not None
    size = sketch.size(i) + abs(float(alone.bound))
    differs = abs(float(alone.bound) - float(together.bound[i]))
    claim(
        differs <= 2e-2 * size,
        f"instance {i} has bound {float(together.bound[i]):.9g}, alone {float(alone.bound):.9g}: {sketch}; {how}",
    )


@trial("solver", "A compiled solver minimises the objective that the model has, or says that it was replaced.")
def replaced_objectives(draw: Draw) -> None:
    sketch = random_sketch(draw, batch=1)
    model = sketch.model()
    solver = model.compile()
    solver.solve(passes=50)
    other = replace(sketch, cost=costs(draw, 1, len(sketch.lower)), maximize=draw.chance(0.5))
    objective = (torch.as_tensor(other.cost) * model.variables["x"]).sum()
    (model.maximize if other.maximize else model.minimize)(objective)
    try:
        found = solver.solve(passes=300, tol=1e-4)
    except BlocklpError:
        return
    check_bounds(other, found, "a replaced objective")
    check_optimal(other, model, found, Settings("auto", torch.float64, {"tol": 1e-4}))


@trial("solver", "What is done to tensors after they were given as block data does not change the model.")
def block_data_are_copied(draw: Draw) -> None:
    n = draw.count(2, 5)
    weights, capacity = torch.as_tensor(draw.random.integers(1, 9, n) / 2), torch.tensor(2.5, dtype=torch.float64)
    low, high = torch.zeros(n, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    model = bl.Model()
    x = model.variable("x", n, lower=0, upper=1)
    kind = Knapsack(weights, capacity, low, high)
    model.add(kind, x)
    model.minimize(-(torch.as_tensor(draw.random.integers(1, 9, n) * 1.0) * x).sum())
    before = float(model.solve().bound)
    given = draw.pick(weights, capacity, low, high)
    given.mul_(3).add_(0.25)
    after = float(model.solve().bound)
    claim(
        abs(before - after) <= 1e-6 * abs(before),
        f"the bound was {before:.9g}, and is {after:.9g} after a tensor was changed that had been given as data",
    )


@trial("solver", "A repair hook that returns infeasible points hides none that are found without it.")
def hooks_hide_nothing(draw: Draw) -> None:
    sketch, how = random_sketch(draw, batch=1), Settings("auto", torch.float64, {"tol": 1e-3, "passes": 500})
    model, without = solved(sketch, how)
    assert without is not None
    outside = torch.as_tensor(sketch.upper + 1.0 + draw.random.random(len(sketch.upper)))
    shift = draw.pick(1.0, 0.3)
    model.repair_with(lambda parts: {"x": parts["x"] + shift * (outside - parts["x"])})
    found = model.solve(**how.options)
    worse = -1.0 if sketch.maximize else 1.0
    claim(
        not np.isfinite(float(without.primal))
        or worse * (float(found.primal) - float(without.primal)) <= 1e-2 * (sketch.size(0) + abs(float(without.primal))),
        lambda: (
            f"without the hook primal {float(without.primal):.9g}, with it {float(found.primal):.9g} "
            f"({found.status[0].name.lower()}): {sketch}"
        ),
    )


@trial("solver", "Gradients are right, or refused by an error of ours.")
def gradients(draw: Draw) -> None:
    n = draw.count(2, 5)
    weights = draw.random.integers(1, 9, n) / 2
    value = torch.tensor([float(draw.random.integers(-9, -1)) for _ in range(n)], dtype=torch.float64)
    capacity = torch.tensor(float(weights.sum()) * 0.4, dtype=torch.float64)
    leaf = draw.pick(value, capacity)
    leaf.requires_grad_()

    def bound(cost: Tensor, room: Tensor) -> Tensor:
        model = bl.Model()
        x = model.variable("x", n, lower=0, upper=1)
        model.add(Knapsack(weights, room), x)
        model.minimize((cost * x).sum())
        return model.solve(tol=1e-9).bound.sum()

    try:
        found = bound(value, capacity)
        claim(found.requires_grad, "a tensor that requires gradients was taken, and the bound has none, without a word")
        found.backward()
    except BlocklpError:
        return
    with torch.no_grad():
        step = torch.zeros_like(leaf)
        step.view(-1)[0] = 1e-6
        sides = [bound(*((v + s * step if v is leaf else v) for v in (value, capacity))) for s in (1, -1)]
    slope, grad = float(sides[0] - sides[1]) / 2e-6, float(leaf.grad.view(-1)[0]) if leaf.grad is not None else float("nan")
    claim(abs(slope - grad) <= 1e-3 * (1 + abs(slope)), f"the gradient is {grad:.6g}, finite differences give {slope:.6g}")


@trial("solver", "An oracle that calculates in float32 is refused by check with a message that says so, or the bound is valid.")
def single_precision_oracles(draw: Draw) -> None:
    n, model = draw.count(2, 4), bl.Model()
    x = model.variable("x", n, lower=-10, upper=10)
    table = np.unique(draw.random.integers(-99, 99, (draw.count(2, 6), n)) / 10, axis=0)
    cost = draw.random.integers(-999, 999, n) / 1000
    try:
        model.add(Single(table), x)
        model.minimize((torch.as_tensor(cost) * x).sum())
        bl.check(model)
    except BlocklpError as error:
        words = ("float32", "single precision", "precision")
        claim(any(w in str(error) for w in words), f"check refuses it, and does not say why: {error}")
        return
    found = model.solve(passes=100)
    least = min(sum(Fraction(float(c)) * Fraction(float(v)) for c, v in zip(cost, row, strict=True)) for row in table)
    for bound in (float(found.bound), float(found.safe_bound)):
        claim(
            bound == -np.inf or Fraction(bound) <= least,
            f"check passes, and a bound is {float(Fraction(bound) - least):.3g} too high",
        )
