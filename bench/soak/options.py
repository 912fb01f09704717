"""Wrong options and wrong data: an error of ours that names them, or a right answer; and how objects print."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import blocklp as bl
from bench.soak.trial import Draw, Finding, claim, trial
from blocklp.errors import BlocklpError
from blocklp.oracles import Knapsack, Pairwise, Polytope, Simplex

OPTIMUM = -5.0
"""Of the model below: the capacity lets two of three items in."""

JUNK: tuple[Any, ...] = ("a", None, -1, 0, -1.0, float("nan"), float("inf"), 3, 2.5, [1, 2, 3], [], {}, {"x": 1}, object(), True)
JUNK += (torch.zeros(7), torch.tensor([torch.nan]), np.zeros((2, 3)))


def small() -> tuple[bl.Model, bl.Variable]:
    """A knapsack of three items."""
    model = bl.Model()
    x = model.variable("x", 3, lower=0, upper=1)
    model.add(Knapsack([1.0, 1.0, 1.0], 2.0), x)
    model.minimize(-(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64) * x).sum())
    return model, x


@trial("options", "A wrong option of solve raises an error of ours, or the answer is right.", weight=3)
def options_of_solve(draw: Draw) -> None:
    names = ("method", "tol", "cutoff", "passes", "time_limit", "bounds", "warm_start", "callback", "history", "check_every")
    names += ("feasibility_tol", "patience", "project", "verbose", "device", "dtype")
    for _ in range(10):
        name, value = draw.pick(*names), draw.pick(*JUNK)
        if name == "passes" and isinstance(value, float) and value > 1e6:
            continue
        model, x = small()
        try:
            _right(model.solve(**{name: value}), f"{name}={value!r}")
        except BlocklpError as error:
            claim(
                name in str(error) or name in ("callback", "device", "bounds"),
                f"{name}={value!r}: the error does not name it: {error}",
            )
        except Exception as error:
            raise Finding(f"{name}={value!r}: {type(error).__name__} from inside: {str(error)[:150]}") from error


def _right(found: bl.Solution, what: str) -> None:
    bound, safe = float(found.bound), float(found.safe_bound)
    claim(bound <= OPTIMUM and (safe <= OPTIMUM), f"{what}: bound {bound!r}, safe_bound {safe!r}, and the optimum is {OPTIMUM}")


@trial("options", "Bounds, warm starts and callbacks are taken in every sensible form, and refused by name in others.", weight=3)
def forms_of_options(draw: Draw) -> None:
    junk = draw.pick(*JUNK)
    forms: dict[str, Callable[[bl.Model, Any, bl.Solution], Any]] = {
        "warm_start=solution": lambda m, x, s: m.solve(warm_start=s),
        "bounds={x: 1}": lambda m, x, s: m.solve(bounds={x: 1}),
        "bounds={'x': (0, 1)}": lambda m, x, s: m.solve(bounds={"x": (0, 1)}),
        "bounds={'nope': (0, 1)}": lambda m, x, s: m.solve(bounds={"nope": (0, 1)}),
        "bounds={x: (0, 1, 2)}": lambda m, x, s: m.solve(bounds={x: (0, 1, 2)}),
        "bounds={x: (None, 1)}": lambda m, x, s: m.solve(bounds={x: (None, 1)}),
        "bounds={x: (1, 0)}": lambda m, x, s: m.solve(bounds={x: (1, 0)}),
        f"bounds={{x: ({junk!r}, 1)}}": lambda m, x, s: m.solve(bounds={x: (junk, 1)}),
        "bounds={3: (0, 1)}": lambda m, x, s: m.solve(bounds={3: (0, 1)}),
        f"a callback that returns {junk!r}": lambda m, x, s: m.solve(callback=lambda event: junk),
        f"warm_start=State({junk!r}, ...)": lambda m, x, s: m.solve(warm_start=bl.State(junk, s.state.eta)),
        f"warm_start of multipliers {junk!r}": lambda m, x, s: m.solve(warm_start=bl.State({"Knapsack": junk}, s.state.eta)),
        f"warm_start with eta {junk!r}": lambda m, x, s: m.solve(warm_start=bl.State(s.state.duals, junk)),
        f"verify_certificate of {junk!r}": lambda m, x, s: bl.verify_certificate(m, junk),
        f"solution.instance({junk!r})": lambda m, x, s: s.instance(junk),
        "solution.instance(5)": lambda m, x, s: s.instance(5),
        "solution.instance(-1)": lambda m, x, s: s.instance(-1),
        f"solution.x[{junk!r}]": lambda m, x, s: s.x[junk],
        f"solution.duals[{junk!r}]": lambda m, x, s: s.duals[junk],
        f"check(model, trials={junk!r})": lambda m, x, s: bl.check(m, trials=junk),
        f"reference(model, {junk!r})": lambda m, x, s: bl.reference(m, junk),
    }
    for what in draw.random.permutation(list(forms))[:6].tolist():
        model, x = small()
        first = model.solve(passes=20)
        try:
            found = forms[what](model, x, first)
            if isinstance(found, bl.Solution) and "(1, 0)" not in what:
                _right(found, what)
        except BlocklpError:
            continue
        except Exception as error:
            raise Finding(f"{what}: {type(error).__name__} from inside: {str(error)[:150]}") from error


@trial("options", "Wrong data of models and block types raise an error of ours.", weight=3)
def data_of_models(draw: Draw) -> None:
    junk = draw.pick(*JUNK)

    def hook(answer: Any) -> Callable[[], Any]:
        def made() -> Any:
            model, _ = small()
            model.repair_with(answer)
            return model.solve(passes=50)

        return made

    forms: dict[str, Callable[[], Any]] = {
        f"Model(batch={junk!r})": lambda: bl.Model(batch=junk),
        f"a variable named {junk!r}": lambda: bl.Model().variable(junk, 2, lower=0, upper=1),
        f"a variable of shape {junk!r}": lambda: bl.Model().variable("x", junk, lower=0, upper=1),
        f"a lower bound {junk!r}": lambda: bl.Model().variable("x", 2, lower=junk, upper=1),
        f"an upper bound {junk!r}": lambda: bl.Model().variable("x", 2, lower=0, upper=junk),
        f"minimize({junk!r})": lambda: small()[0].minimize(junk),
        f"add({junk!r}, x)": lambda: (lambda m: m[0].add(junk, m[1]))(small()),
        f"add(Simplex(3), {junk!r})": lambda: small()[0].add(Simplex(3), junk),
        f"add(..., name={junk!r})": lambda: (lambda m: m[0].add(Simplex(3), m[1], name=junk))(small()),
        f"x[{junk!r}]": lambda: small()[1][junk],
        f"x * {junk!r}": lambda: (lambda m: m[0].minimize((m[1] * junk).sum()))(small()),
        f"compile(dtype={junk!r})": lambda: small()[0].compile(dtype=junk),
        f"compile(device={junk!r})": lambda: small()[0].compile(device=junk),
        f"compile({junk!r})": lambda: bl.compile(junk),
        f"Knapsack({junk!r}, 1)": lambda: Knapsack(junk, 1.0),
        f"Knapsack([1, 2], {junk!r})": lambda: Knapsack([1.0, 2.0], junk),
        f"Knapsack(..., lower={junk!r})": lambda: Knapsack([1.0, 2.0], 5.0, lower=junk),
        f"Simplex({junk!r})": lambda: Simplex(junk),
        f"Pairwise(2, {junk!r})": lambda: Pairwise(2, junk),
        f"Polytope({junk!r}, ...)": lambda: Polytope(junk, [0.0], [1.0], [0.0, 0.0], [1.0, 1.0]),
        "Polytope(..., None, ...)": lambda: Polytope([[1.0, 1.0]], None, [1.0], [0.0, 0.0], [1.0, 1.0]),
        f"Polytope(..., x_upper={junk!r})": lambda: Polytope([[1.0, 1.0]], [0.0], [1.0], [0.0, 0.0], junk),
        "a ragged table of vertices": lambda: bl.FiniteVertices([[0, 1], [1]]),
        f"FiniteVertices({junk!r})": lambda: bl.FiniteVertices([junk, junk]),
        "a hook that returns None": hook(lambda parts: None),
        "a hook that returns an array": hook(lambda parts: np.zeros(3)),
        f"a hook that returns {junk!r}": hook(lambda parts: {"x": junk}),
        "a hook that raises nothing but returns NaN": hook(lambda parts: {"x": parts["x"] * torch.nan}),
        f"method=Prox(eta={junk!r})": lambda: small()[0].solve(method=bl.methods.Prox(eta=junk), passes=20),
        f"method=ProxBC(inner={junk!r})": lambda: small()[0].solve(method=bl.methods.ProxBC(inner=junk), passes=20),
        "method=ProxBC(inner=1)": lambda: small()[0].solve(method=bl.methods.ProxBC(inner=1), passes=20),
        f"Deadline({junk!r})": lambda: bl.Deadline(junk),
    }
    for what in draw.random.permutation(list(forms))[:6].tolist():
        try:
            found = forms[what]()
            if isinstance(found, bl.Solution):
                _right(found, what)
        except BlocklpError:
            continue
        except Exception as error:
            raise Finding(f"{what}: {type(error).__name__} from inside: {str(error)[:150]}") from error


@trial("options", "Objects print as something that a reader can use.")
def texts(draw: Draw) -> None:
    model, x = small()
    price = model.parameter("price", 3)
    solver, found = model.compile(), model.solve(passes=20)
    shown = {"solver": solver, "parameter": price, "expression": (2 * x).sum() + 1, "duals": found.duals, "x": found.x}
    shown |= {"variable": x, "solution": found, "state": found.state, "model": model, "view": x[0]}
    for name, thing in shown.items():
        claim(not re.search(r" at 0x[0-9a-f]+>", repr(thing)), f"the {name} prints as {repr(thing)[:80]}")
    claim(not str(found.status[0]).isdigit(), f"str(status) is {str(found.status[0])!r}")
    claim(len(list(found.duals)) == 1, "the multipliers cannot be iterated over")
    try:
        found.x["nope"]
    except Exception as error:
        claim("'x'" in str(error) or " x" in str(error), f"solution.x['nope'] does not list the names: {error}")
