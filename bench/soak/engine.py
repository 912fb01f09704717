"""Bounds and statuses of every method, on models of every block type, against exact optima."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

import blocklp as bl
from bench.soak.instances import Sketch, costs, full_knapsack, polytope, polytopes, random_sketch, rescaled
from bench.soak.trial import Draw, Finding, claim, trial
from blocklp.errors import BlocklpError

FLOOR = 2e-3
"""What gaps are relative to at least, as a share of the largest terms of the objective added up: twice what is documented."""

VIOLATION = 20.0
"""Largest violation of a row, in ``feasibility_tol`` of its largest term or side: the solver may measure a little otherwise."""

ROW_FLOOR = 1e-4
"""What violations are relative to at least: a share of a row's largest term at the bounds of its variables; 1 if its side is 0."""

BELIEVED = 1e-14
"""What the rounding of a user's oracle, which nothing states, may raise ``bound`` by, relative to the terms of the objective."""

SAME = 2.0**27
"""A factor that changes no digit of a float64."""


@dataclass(frozen=True)
class Settings:
    """How a model is solved."""

    method: str | bl.methods.Method
    dtype: torch.dtype
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.method}, {str(self.dtype).removeprefix('torch.')}, {self.options}"


def settings(draw: Draw) -> Settings:
    """A random method, precision, tolerance and number of passes."""
    methods: list[str | bl.methods.Method] = ["auto", "auto", *bl.methods.METHODS]
    methods += [
        bl.methods.ProxBC(inner=draw.count(2, 8)),
        bl.methods.ProxFW(eta=0.3),
        bl.methods.Prox(eta=bl.methods.SeriousStepRule()),
        bl.methods.Prox(eta=1.0),
    ]
    dtype = torch.float32 if draw.chance(0.25) else torch.float64
    options: dict[str, Any] = {"tol": 10.0 ** -draw.count(2, 8), "passes": draw.pick(1, 5, 60, 400, 2000)}
    if draw.chance(0.2):
        options["check_every"] = draw.count(1, 30)
    if draw.chance(0.2):
        options["project"] = False
    return Settings(draw.pick(*methods), dtype, options)


def solved(sketch: Sketch, how: Settings, **more: Any) -> tuple[bl.Model, bl.Solution | None]:
    """Solve a sketch; no solution where the method says by an error of ours that it is not for these types."""
    model = sketch.model()
    try:
        found = model.compile(dtype=how.dtype).solve(method=how.method, bounds=sketch.bounds(model), **how.options, **more)
    except BlocklpError:
        if how.method == "auto":
            raise
        return model, None
    return model, found


def above_truth(sketch: Sketch, bound: float, instance: int) -> Fraction:
    """How far a bound is on the wrong side of the optimum; at most zero for a valid one."""
    truth = sketch.truths[instance][1]
    return truth - Fraction(bound) if sketch.maximize else Fraction(bound) - truth


def check_bounds(sketch: Sketch, found: bl.Solution, how: object) -> None:
    """Raise unless bounds are bounds, finite where all types state the errors of their values, and nothing is called infeasible."""
    for i in range(sketch.batch):
        claim(found.status[i] is not bl.Status.INFEASIBLE, f"infeasible is said of a model with a feasible point: {sketch}; {how}")
        for name in ("bound", "safe_bound"):
            bound = float(getattr(found, name)[i])
            claim(bound == bound, f"{name} is NaN: {sketch}; {how}")
            if np.isinf(bound):
                claim(sketch.believed and (bound > 0) == sketch.maximize, f"{name} is {bound}: {sketch}; {how}")
                continue
            excess = above_truth(sketch, bound, i)
            if sketch.believed and name == "bound":
                excess -= Fraction(BELIEVED * (sketch.size(i) + abs(sketch.offset)))
            truth = float(sketch.truths[i][1])
            side = "below" if sketch.maximize else "above"
            claim(excess <= 0, f"{name} {bound!r} is {float(excess):.3g} {side} the optimum {truth!r}: {sketch}; {how}")


@trial("bounds", "No bound of any method, precision or number of passes is on the wrong side of the exact optimum.", weight=6)
def bounds_hold(draw: Draw) -> None:
    sketch, how = rescaled(draw, random_sketch(draw)), settings(draw)
    _, found = solved(sketch, how)
    if found is not None:
        check_bounds(sketch, found, how)


@trial("bounds", "Knapsacks whose lower bounds or fixings use up the capacity get no bound above the optimum.", weight=2)
def knapsacks_with_lower_bounds(draw: Draw) -> None:
    sketch = full_knapsack(draw, draw.count(2, 7))
    how = Settings(draw.pick("auto", "prox"), torch.float64, {"passes": draw.pick(1, 50)})
    _, found = solved(sketch, how)
    if found is not None:
        check_bounds(sketch, found, f"{how}; {sketch.groups[0].rows[0][-1]}")


@trial("bounds", "A polytope in a box far wider than its rows gets no bound above the optimum.", weight=2)
def polytopes_in_wide_boxes(draw: Draw) -> None:
    sketch = polytopes(draw, 1, reach=draw.count(4, 9))
    sketch.cost = costs(draw, 1, len(sketch.lower))
    how = Settings(draw.pick("auto", "prox", "admm"), torch.float64, {"passes": draw.pick(20, 300)})
    _, found = solved(sketch, how)
    if found is not None:
        check_bounds(sketch, found, how)


@trial("bounds", "The rounding of a large constant of the objective is charged.")
def large_constants(draw: Draw) -> None:
    sketch = random_sketch(draw, batch=1)
    size = float(np.abs(sketch.cost).max())
    sketch.offset = draw.pick(-1.0, 1.0) * size * 10.0 ** draw.count(3, 22) * (1 + draw.random.random())
    how = Settings(draw.pick("auto", "prox"), torch.float64, {"passes": 100})
    _, found = solved(sketch, how)
    if found is not None:
        check_bounds(sketch, found, how)


@trial("bounds", "Bounds of variables may differ by instance, whatever the block types.")
def bounds_by_instance(draw: Draw) -> None:
    sketch = random_sketch(draw, ["assignment", "assignment", "products", "polytopes"], batch=3)
    model = sketch.model()
    x = model.variables["x"]
    lower, upper = (np.repeat(side[None], 3, 0) for side in (sketch.lower, sketch.upper))
    some = draw.random.random(lower.shape) < 0.3
    lower[some] = np.repeat(sketch.point[None], 3, 0)[some]
    one_sided = draw.chance(0.5)
    if not one_sided:
        upper[some] = lower[some]
    most = sketch.upper if one_sided else upper  # that of all instances
    if draw.chance(0.5):
        found = model.solve(bounds={x: (lower, most)}, passes=200)
    else:
        model = bl.Model(batch=3)
        x = model.variable("x", lower.shape[1], lower=lower, upper=most)
        for group in sketch.groups:
            model.add(group.build(), x[group.scope])
        objective = (torch.as_tensor(sketch.cost) * x).sum()
        (model.maximize if sketch.maximize else model.minimize)(objective)
        found = model.solve(passes=200)
        bl.check(model)
        if all(b.type.constraints() is not None for b in model.blocks):
            bl.reference(model)
    for i in range(3):
        own = Sketch(sketch.lower, sketch.upper, sketch.point, sketch.cost[i : i + 1], sketch.groups, maximize=sketch.maximize)
        own.fixed = {j: (float(lower[i, j]), float(upper[i, j])) for j in range(lower.shape[1])}
        check_bounds(own, _one(found, i), "bounds by instance")


def _one(found: bl.Solution, instance: int) -> bl.Solution:
    return found.instance(instance) if len(found.status) > 1 else found


@trial("statuses", "Optimal means that primal and bound are within the tolerance, and that the point satisfies every row.", weight=4)
def optimal_is_optimal(draw: Draw) -> None:
    sketch, how = rescaled(draw, random_sketch(draw)), settings(draw)
    model, found = solved(sketch, how)
    if found is not None:
        check_optimal(sketch, model, found, how)


def check_optimal(sketch: Sketch, model: bl.Model, found: bl.Solution, how: Settings) -> None:
    """Raise unless what is called optimal is."""
    tol = how.options["tol"]
    for i in range(sketch.batch):
        if found.status[i] is not bl.Status.OPTIMAL:
            continue
        primal, bound = float(found.primal[i]), float(found.bound[i])
        allowed = tol * max(abs(primal), abs(bound), FLOOR * sketch.size(i))
        rounding = 1e-14 * max(abs(primal), abs(bound))
        claim(
            abs(primal - bound) <= 1.01 * allowed + rounding,
            (
                f"optimal at tol {tol:g} with |primal - bound| = {abs(primal - bound):.3g}, primal {primal:.9g}, bound "
                f"{bound:.9g}, largest terms {sketch.size(i):.3g}: {sketch}; {how}"
            ),
        )
        missing = -float(above_truth(sketch, bound, i))
        claim(
            missing <= 5 * allowed + 1e-5 * sketch.size(i) + rounding,
            f"optimal, and the bound is {missing:.3g} from the optimum {float(sketch.truths[i][0]):.9g}: {sketch}; {how}",
        )
        check_feasible(model, found, i, sketch, how)


def check_feasible(model: bl.Model, found: bl.Solution, instance: int, sketch: Sketch, how: object, tol: float = 1e-6) -> None:
    """Raise unless a point satisfies the rows that its block types state, each relative to its own size."""
    x = found.x["x"][instance].double().cpu()
    reach = torch.as_tensor(np.maximum(np.abs(sketch.lower), np.abs(sketch.upper)))
    for j, (low, high) in sketch.fixed.items():
        over = max(low - float(x[j]), float(x[j]) - high)
        claim(
            over <= VIOLATION * tol * float(reach[j]), f"variable {j} is {over:.3g} outside its bounds {low}, {high}: {sketch}; {how}"
        )
    for blocks in model.blocks:
        rows = blocks.type.constraints()
        if rows is None:
            continue
        rows, scope = rows.bounds_as_rows(), blocks.scope
        terms = rows.matrix[min(instance, len(rows.matrix) - 1)] * x[scope][:, None]
        activity, most = terms.sum(-1), (rows.matrix[0].abs() * reach[scope][:, None]).amax(-1)
        for side, sign in ((rows.lower, 1), (rows.upper, -1)):
            limit = side[min(instance, len(side) - 1)].expand_as(activity)
            over = torch.where(torch.isfinite(limit), sign * (limit - activity), -torch.inf)
            size = torch.maximum(terms.abs().amax(-1), torch.where(torch.isfinite(limit), limit.abs(), 0.0))
            worst = over - VIOLATION * tol * (size + torch.where(limit == 0, 1.0, ROW_FLOOR) * most)
            if bool((worst > 0).any()):
                b, r = divmod(int(worst.argmax()), worst.shape[1])
                raise Finding(
                    f"optimal, and a row of {blocks.name} with the side {float(limit[b, r]):.6g} is violated by "
                    f"{float(over[b, r]):.3g}: {sketch}; {how}"
                )


@trial("statuses", "Costs times a number change neither status nor relative gap nor passes.", weight=2)
def costs_of_any_size(draw: Draw) -> None:
    _compare_units(draw, random_sketch(draw, batch=1), 1.0, 1.0, draw.pick(SAME, 1 / SAME))


@trial("statuses", "Variables and rows times numbers change neither status nor relative gap nor passes.", weight=2)
def variables_and_rows_of_any_size(draw: Draw) -> None:
    sketch = random_sketch(draw, ["polytopes", "tables"], batch=1)
    variables, rows = draw.pick((SAME, 1.0), (1 / SAME, 1.0), (1.0, SAME), (1.0, 1 / SAME), (SAME, SAME), (1 / SAME, 1 / SAME))
    _compare_units(draw, sketch, variables, rows, 1.0)


def _compare_units(draw: Draw, sketch: Sketch, variables: float, rows: float, costs: float) -> None:
    """Solve an instance in two units; factors are powers of two, so that nothing but tolerances can tell them apart."""
    if costs == 1.0:
        other = sketch.rescaled(variables, rows, costs)
    else:
        other = Sketch(sketch.lower, sketch.upper, sketch.point, sketch.cost * costs, sketch.groups, maximize=sketch.maximize)
    how = settings(draw)
    how = Settings(draw.pick("auto", "prox", "admm", "pdhg"), torch.float64, how.options | {"passes": 1000})
    results = [solved(s, how)[1] for s in (sketch, other)]
    if results[0] is None or results[1] is None:
        return
    first, second = results[0], results[1]
    gaps = [_gap(r) for r in (first, second)]
    same = first.status == second.status and abs(int(first.passes) - int(second.passes)) <= 0.2 * int(first.passes) + 20
    claim(
        same and (max(gaps) <= 1.5 * min(gaps) + how.options["tol"] or first.status[0] is not bl.Status.OPTIMAL),
        lambda: (
            f"in one unit {first.status[0].name.lower()} with gap {gaps[0]:.3g} after {int(first.passes)} passes, in another "
            f"(variables times {variables:.3g}, rows times {rows:.3g}, costs times {costs:.3g}) {second.status[0].name.lower()} with "
            f"gap {gaps[1]:.3g} after {int(second.passes)}: {sketch}; {how}"
        ),
    )


def _gap(found: bl.Solution) -> float:
    primal, bound = float(found.primal), float(found.bound)
    size = max(abs(primal), abs(bound))
    return abs(primal - bound) / size if size > 0 else 0.0


@trial("statuses", "Where marginals are tiny, sums are still met relative to them.")
def tiny_marginals(draw: Draw) -> None:
    n, scale = draw.count(2, 4), 10.0 ** -draw.count(3, 9)
    plan = np.round(draw.random.random((n, n)), 2) + 0.01
    groups, place = [], np.arange(n * n).reshape(n, n)
    for lines, amounts in ((place, plan), (place.T, plan.T)):
        for scope, own in zip(lines, amounts, strict=True):
            total = float(own.sum() * scale)
            groups.append(polytope([([1.0] * n, total, total)], scope, np.zeros(n * n), np.full(n * n, scale)))
    sketch = Sketch(np.zeros(n * n), np.full(n * n, 2 * scale), plan.ravel() * scale, draw.random.random((1, n * n)), groups)
    how = Settings(draw.pick("auto", "admm", "pdhg"), torch.float64, {"tol": 1e-3, "passes": 2000})
    model, found = solved(sketch, how)
    if found is not None and found.status[0] is bl.Status.OPTIMAL:
        check_feasible(model, found, 0, sketch, how)
