"""Every wrong option and every wrong answer of a hook raises an error of ours that names it; or it works."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import InstanceError, ModelError, OptionError, ShapeError, UnknownNameError
from blocklp.oracles import AtMostOne, Edge
from blocklp.search.tightening import Clusters

ODD: dict[str, Any] = {
    "str": "a",
    "empty": "",
    "None": None,
    "dict": {},
    "dict of str": {"a": 1},
    "object": object(),
    "NaN": math.nan,
    "inf": math.inf,
    "minus one": -1,
    "zero": 0,
    "half": 0.5,
    "true": True,
    "complex": 1j,
    "list": [1, 2],
    "nested": [[1.0], [2.0, 3.0]],
    "tuple": ("a", None),
    "huge": 10**400,
    "array": np.arange(7.0),
    "objects": np.array([None, "a"], dtype=object),
    "complex array": np.array([1j, 2.0, 3.0]),
    "tensor": torch.ones(5),
    "matrix": torch.ones(2, 2, 2, 2),
    "NaN tensor": torch.full((3,), math.nan),
    "bool tensor": torch.ones(3, dtype=torch.bool),
    "gradient": torch.ones(3, requires_grad=True),
    "function": lambda *given: None,
    "class": bl.methods.Prox,
    "set": {1},
    "bytes": b"a",
    "other view": bl.Model().variable("other", 3, lower=0, upper=1),
}

SMALL: dict[str, Any] = {"passes": 3}


def model(batch: int = 1) -> tuple[bl.Model, bl.Variable, bl.Variable, bl.Parameter]:
    m = bl.Model(batch)
    y, z = m.variable("y", 3, lower=0, upper=1), m.variable("z", 2, lower=0, upper=1)
    m.add(Edge(), [y[[0, 1]], y[[1, 2]], z], name="pairs")
    price = m.parameter("price", 3)
    price.value = [-1.0, -2.0, -3.0]
    m.minimize(price @ y + 2 * z.sum())
    return m, y, z, price


def solve(**options: Any) -> bl.Solution:
    return model(2)[0].solve(**{**SMALL, **options})


def raw(**options: Any) -> bl.raw.RawSolution:
    def oracle(c: Tensor) -> Tensor:
        return (c < 0).double()

    given = {"c": torch.tensor([[1.0, -1.0]]), "min_oracle": oracle, "to_dual": lambda x: x, "to_primal": lambda x: x}
    return bl.raw.solve_raw(**{**given, "lower": 0.0, "upper": 1.0, "passes": 3, **options})  # type: ignore[arg-type]


def hooked(answer: Any) -> bl.Solution:
    m, *_ = model()
    m.repair_with(lambda x: answer)
    return m.solve(**SMALL)


def nothing(solution: bl.Solution) -> list[Clusters]:
    return []


ENTRIES: dict[str, Callable[[Any], Any]] = {
    **{f"solve {k}": lambda v, k=k: solve(**{k: v}) for k in (
        "method", "tol", "cutoff", "passes", "time_limit", "bounds", "warm_start", "callback", "history", "check_every",
        "feasibility_tol", "patience", "project", "verbose", "device", "dtype",
    )},
    **{f"raw {k}": lambda v, k=k: raw(**{k: v}) for k in (
        "c", "min_oracle", "to_dual", "to_primal", "lower", "upper", "method", "tol", "cutoff", "passes", "time_limit",
        "callback", "check_every", "feasibility_tol", "patience", "verbose",
    )},
    "callback answers": lambda v: solve(callback=lambda event: v),
    "repair answers": hooked,
    "repair answers an entry": lambda v: hooked({"y": v, "z": torch.zeros(1, 2)}),
    "repair": lambda v: model()[0].repair_with(v),
    "raw oracle answers": lambda v: raw(min_oracle=lambda c: v),
    "raw to_dual answers": lambda v: raw(to_dual=lambda c: v),
    "raw to_primal answers": lambda v: raw(to_primal=lambda c: v),
    "bounds of a variable": lambda v: (lambda m: m[0].solve(bounds={m[1]: v}, **SMALL))(model()),
    "one bound": lambda v: (lambda m: m[0].solve(bounds={m[1]: (0, v)}, **SMALL))(model()),
    "key of bounds": lambda v: solve(bounds={v: 1}) if getattr(v, "__hash__", None) else None,
    "state duals": lambda v: solve(warm_start=bl.State(v, torch.ones(2))),
    "state of pairs": lambda v: solve(warm_start=bl.State({"pairs": v}, torch.ones(2))),
    "state eta": lambda v: solve(warm_start=bl.State({}, v)),
    "state saddle": lambda v: solve(method="pdhg", warm_start=bl.State({}, torch.ones(2), v)),
    "select": lambda v: solve().state.select(v),
    "repeat": lambda v: solve().state.repeat(v),
    "concatenate": lambda v: bl.State.concatenate(v),
    "instance": lambda v: solve().instance(v),
    "values": lambda v: solve().x[v],
    "duals": lambda v: solve().duals[v],
    "compile": lambda v: bl.compile(v),
    "batch": lambda v: bl.Model(v),
    "variable name": lambda v: bl.Model().variable(v, 2, lower=0, upper=1),
    "shape": lambda v: bl.Model().variable("x", v, lower=0, upper=1),
    "lower": lambda v: bl.Model().variable("x", 3, lower=v, upper=2),
    "grid": lambda v: bl.Model().variable("x", 3, lower=0, upper=1, grid=v),
    "parameter name": lambda v: bl.Model().parameter(v),
    "parameter shape": lambda v: bl.Model().parameter("p", v),
    "parameter value": lambda v: setattr(model()[3], "value", v),
    "block type": lambda v: (lambda m: m[0].add(v, m[1]))(model()),
    "scope": lambda v: model()[0].add(AtMostOne(3), v),
    "scopes": lambda v: model()[0].add(AtMostOne(3), [v, v, v]),
    "block name": lambda v: (lambda m: m[0].add(AtMostOne(3), m[1], name=v))(model()),
    "maps": lambda v: (lambda m: m[0].add(AtMostOne(3), m[1], to_dual=v, to_primal=v) and m[0].solve(**SMALL))(model()),
    "map answers": lambda v: (lambda m: m[0].add(AtMostOne(3), m[1], to_dual=lambda x: v, to_primal=lambda x: v)
                              and m[0].solve(**SMALL))(model()),
    "extend blocks": lambda v: (lambda m: m[0].extend(v, [m[1][[0]], m[1][[1]], m[2][[0]]]))(model()),
    "extend scope": lambda v: model()[0].extend("pairs", v),
    "minimize": lambda v: model()[0].minimize(v),
    "plus": lambda v: model()[1] + v,
    "times": lambda v: model()[1] * v,
    "divided": lambda v: model()[1] / v,
    "matmul": lambda v: model()[1] @ v,
    "of an expression": lambda v: (model()[1] * 2) / v,
    "parameter times": lambda v: model()[3] * v,
    "index": lambda v: model()[1][v],
    "reshape": lambda v: model()[1].reshape(v),
    "nodes model": lambda v: bl.Nodes(v),
    "nodes variables": lambda v: bl.Nodes(model()[0], v),
    **{f"nodes {k}": lambda v, k=k: bl.Nodes(model()[0], "y").solve(**{"fixings": [{}], k: v}) for k in (
        "fixings", "multipliers", "cutoff", "sweeps", "stall", "passes", "method", "time_limit",
    )},
    "nodes position": lambda v: bl.Nodes(model()[0], "y").solve([{v: 1}] if getattr(v, "__hash__", None) else [{}]),
    "nodes value": lambda v: bl.Nodes(model()[0], "y").solve([{0: v}]),
    **{f"tighten {k}": lambda v, k=k: bl.tighten(**{"model": model()[0], "search": nothing, "passes": 3, k: v}) for k in (
        "model", "search", "budget", "method", "cutoff", "passes", "time_limit", "warm_start", "told", "device", "dtype", "tol",
    )},
    "tighten proposal": lambda v: bl.tighten(model()[0], lambda solution: v, passes=3),
    "budget": lambda v: bl.search.Budget(blocks=v),
    "soft solver": lambda v: bl.soft_bound(v, solve().state, 1.0),
    "soft state": lambda v: bl.soft_bound(model()[0].compile(), v, 1.0),
    "soft temperature": lambda v: bl.soft_bound(model()[0].compile(), model()[0].solve(**SMALL).state, v),
    "soft values": lambda v: bl.soft_bound(model()[0].compile(), model()[0].solve(**SMALL).state, 1.0, v),
    "soft value": lambda v: (lambda m: bl.soft_bound(m[0].compile(), m[0].solve(**SMALL).state, 1.0, {m[3]: v}))(model()),
    **{f"reference {k}": lambda v, k=k: bl.reference(**{"model": model()[0], k: v}) for k in (
        "model", "solver", "instance", "bounds",
    )},
    **{f"check {k}": lambda v, k=k: bl.check(**{"model": model()[0], "trials": 1, "sample": 1, k: v}) for k in (
        "model", "trials", "sample", "seed",
    )},
    "certificate model": lambda v: bl.verify_certificate(v, {}),
    "certificate duals": lambda v: bl.verify_certificate(model()[0], v),
    "certificate of pairs": lambda v: bl.verify_certificate(model()[0], {"pairs": v}),
    "certificate bounds": lambda v: bl.verify_certificate(model()[0], {}, v),
    "deadline": lambda v: bl.Deadline(v),
}  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.filterwarnings("error")
def test_wrong_input_raises_an_error_of_ours_or_works(entry: str) -> None:
    others = []
    for name, value in ODD.items():
        if name == "class" and entry in ("tighten told", "raw to_dual", "raw to_primal", "raw min_oracle"):
            continue  # what a function of the caller raises is the caller's
        try:
            ENTRIES[entry](value)
        except bl.BlocklpError as error:
            assert len(str(error)) > 20
        except Exception as error:
            others.append(f"{name}: {type(error).__name__}: {error}")
    assert not others, "\n".join(others)


def optimum(m: bl.Model) -> float:
    return float(bl.reference(m).objective[0])


def test_a_solver_takes_up_a_new_objective_and_refuses_what_else_was_changed() -> None:
    m, y, z, price = model()
    solver, nodes = m.compile(), bl.Nodes(m, "y")
    assert solver.solve(tol=1e-9).bound.item() == pytest.approx(optimum(m), abs=1e-8)
    for objective in (y.sum() - 4 * z.sum(), price @ y, -z.sum()):
        m.minimize(objective)
        assert solver.solve(tol=1e-9).bound.item() == pytest.approx(optimum(m), abs=1e-8)
        assert nodes.solve([{}], passes=100).bound.item() <= optimum(m) + 1e-9
        fixed = bl.reference(m, bounds={y: 1}).objective.item()
        assert nodes.solve([[1, 1, 1]]).bound.item() == pytest.approx(fixed, abs=1e-6)
    kind = bl.Box(torch.zeros(3, 1).double(), torch.ones(3, 1).double())
    changes: list[Callable[[bl.Model, bl.Variable], Any]] = [
        lambda m, y: m.maximize(y.sum()),
        lambda m, y: m.variable("more", 2, lower=0, upper=1),
        lambda m, y: m.add(AtMostOne(3), y),
        lambda m, y: m.extend("pairs", [y[[0]], y[[2]], m.variables["z"][[1]]]),
        lambda m, y: y.upper[0, 0].zero_(),
        lambda m, y: m.blocks[0].scope[0].zero_(),
        lambda m, y: kind.upper.mul_(0.5),
    ]
    for change in changes:
        m = bl.Model()
        y, z = m.variable("y", 3, lower=0, upper=[1.0, 1.0, 1.0]), m.variable("z", 2, lower=0, upper=1)
        m.add(Edge(), [y[[0, 1]], y[[1, 2]], z], name="pairs")
        m.add(kind, y[:, None])
        m.minimize(y.sum())
        solver, nodes = m.compile(), bl.Nodes(m, "y")
        solver.solve(passes=3)
        change(m, y)
        with pytest.raises(ModelError, match="compile it again"):
            solver.solve(passes=3)
        with pytest.raises(ModelError, match="compile it again"):
            nodes.solve([{}])


@pytest.mark.parametrize("method", ["auto", *bl.methods.METHODS])
def test_a_solve_shares_no_tensor_with_its_caller(method: str) -> None:
    m, y, z, price = model(2)
    given = torch.tensor([[-1.0, 2.0, -3.0], [1.0, -1.0, 0.5]], dtype=torch.float64)
    low = torch.zeros(2, 3, dtype=torch.float64)
    price.value = given
    solver = m.compile()
    first = solver.solve(method=method, passes=40, bounds={y: (low, 1)})
    start = first.state
    tensors = [*start.duals.values(), start.eta, *([start.saddle.x, start.saddle.weight] if start.saddle else [])]
    before = [t.clone() for t in tensors]
    warm = solver.solve(method=method, passes=40, bounds={y: (low, 1)}, warm_start=first)
    assert all(torch.equal(a, b) or bool(a.isnan().all()) for a, b in zip(tensors, before, strict=True))
    again = bl.State({k: v.clone() for k, v in start.duals.items()}, start.eta.clone(), start.saddle)
    given.zero_()
    low.fill_(1)
    first.x["y"].fill_(7)
    for t in (first.bound, first.primal, first.raw_x, warm.bound, warm.raw_x, *warm.state.duals.values(), warm.state.eta):
        t.fill_(math.nan)
    second = solver.solve(method=method, passes=40, bounds={y: (0, 1)}, warm_start=again)
    cold = solver.solve(method=method, passes=40, bounds={y: (0, 1)})
    truth = torch.tensor([-4.0, -1.0], dtype=torch.float64)  # y = (1, 0, 1) and (0, 1, 0): no pair costs anything
    for found in (second, cold):
        assert bool((found.bound <= truth + 1e-9).all()) and bool(torch.isfinite(found.bound).all())
        assert bool((found.primal >= truth - 1e-6).all())


def test_gradients_are_refused_by_name_unless_autograd_is_off() -> None:
    m, y, z, price = model()
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    start = bl.State({"pairs": torch.zeros(1, 2, 3, dtype=torch.float64, requires_grad=True)}, torch.ones(1))
    wrong: list[tuple[str, Callable[[], Any]]] = [
        ("an entry of a row", lambda: m.add((leaf * y) <= 1)),
        ("warm start of 'pairs'", lambda: m.solve(warm_start=start)),
        ("tol", lambda: m.solve(tol=leaf[0])),
        ("c ", lambda: raw(c=leaf[None, :2])),
    ]
    for name, call in wrong:
        with pytest.raises((ModelError, OptionError), match=f"{name}.*gradients"):
            call()
    with torch.no_grad():
        price.value = leaf
        assert not price.value.requires_grad
        assert not m.solve(warm_start=start, passes=3).bound.requires_grad

    class Learned(bl.BlockType):
        dim = 3

        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            point = (cost < 0).to(cost) * leaf
            return point, (cost * point).sum(-1)

    with pytest.raises(bl.BlocklpError, match=r"Learned.*gradients"):
        m.add(Learned(), y)


def test_bounds_fix_and_name_variables() -> None:
    m, y, z, _ = model(2)
    for bounds in ({y: 1}, {"y": 1}, {"y": torch.ones(2, 3)}, {y: (1, 1)}, {y[:2]: (1, 1), "y": (np.array([0, 0, 1]), 1)}):
        found = m.solve(bounds=bounds, tol=1e-9)
        assert found.bound.tolist() == pytest.approx([-2.0, -2.0], abs=1e-8)  # -1 - 2 - 3 and two products at 2
        assert found.x["y"].tolist() == [[1.0] * 3] * 2
    with pytest.raises(OptionError, match="tuple"):
        m.solve(bounds={y: [0, 1]})
    with pytest.raises(UnknownNameError, match=r"'nope'.*'y', 'z'"):
        m.solve(bounds={"nope": 1})


def test_instances_count_from_the_end_and_others_are_named() -> None:
    m, y, z, price = model(3)
    price.value = [[-1.0, 0, 0], [-2.0, 0, 0], [-3.0, 0, 0]]
    solution = m.solve(tol=1e-9)
    assert [solution.instance(i).bound.item() for i in (-1, -3, 1)] == pytest.approx([-3, -1, -2], abs=1e-8)
    assert solution.state.select([-1]).duals["pairs"].equal(solution.state.duals["pairs"][2:])
    for i in (3, -4, 5):
        with pytest.raises(InstanceError, match="of 3") as caught:
            solution.instance(i)
        assert isinstance(caught.value, IndexError)
    other = bl.Model()
    w = other.variable("y", 5, lower=0, upper=1)
    other.variable("z", 1, lower=0, upper=1)
    several = bl.Model()
    u = several.variable("y", 2, lower=0, upper=1)
    several.variable("z", 1, lower=0, upper=1)
    other.minimize(-w.sum())
    several.minimize(-u.sum())
    ragged = bl.compile([other, several]).solve(tol=1e-9)
    second = ragged.instance(1)
    assert second.instance(0).x["y"].tolist() == second.x[u].tolist() == [[1.0, 1.0]]
    with pytest.raises(ModelError, match="instance"):
        ragged.x["y"]


def test_values_and_multipliers_are_mappings_that_name_what_they_have() -> None:
    m, y, z, _ = model()
    solution = m.solve(**SMALL)
    assert list(solution.x) == ["y", "z"] and len(solution.x) == 2 and solution.x.get("nope") is None
    assert dict(solution.duals.items())["pairs"].shape == (1, 2, 3) and "pairs" in solution.duals
    assert solution.duals[m.blocks[0]] is solution.duals["pairs"]
    for wrong in ("nope", bl.Model().variable("y", 3, lower=0, upper=1)):
        with pytest.raises(UnknownNameError, match="'y', 'z'") as caught:
            solution.x[wrong]
        assert isinstance(caught.value, KeyError) and not str(caught.value).startswith('"')
    with pytest.raises(UnknownNameError, match="'pairs'"):
        solution.duals["nope"]


def test_public_things_say_what_they_are() -> None:
    m, y, z, price = model()
    solution = m.solve(**SMALL)
    things = [m, y, y[0], y.sum(), price, m.compile(), solution, solution.x, solution.duals, solution.state, m.blocks[0]]
    for thing in [*things, bl.Nodes(m), raw(), bl.Progress(), bl.Deadline(), *(method() for method in bl.methods.METHODS.values())]:
        assert " object at 0x" not in repr(thing) and "<" not in repr(thing)[:1], repr(thing)
    assert repr(price) == "parameter price[3]"
    assert repr(price @ y + z.sum()) == "linear expression [] in 5 entries of y, z with parameters price"
    assert "1 instance" in repr(m.compile()) and "pairs" in repr(m.compile())
    assert (str(bl.Status.TIME_LIMIT), repr(bl.Status.OPTIMAL)) == ("time limit", "Status.OPTIMAL")
    assert f"{bl.Status.OPTIMAL:>9}" == "  optimal" and bl.Status.OPTIMAL == 1


def test_verbose_shows_the_solution_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    solution, quiet = solve(verbose=True), solve()
    assert torch.equal(solution.bound, quiet.bound)
    shown = capsys.readouterr()
    assert shown.out == "" and repr(solution) in shown.err and shown.err.count("Solution of 2") == 1


def test_a_model_that_takes_too_long_to_build_gives_the_bound_of_its_box() -> None:
    m, y, z, _ = model(2)
    found = m.solve(time_limit=1e-9)
    assert found.status == (bl.Status.TIME_LIMIT,) * 2
    assert found.bound.tolist() == pytest.approx([-6.0, -6.0]) and bool((found.bound <= -6).all())  # all y at 1 and z at 0
    assert m.solve(warm_start=found, tol=1e-9).bound.tolist() == pytest.approx([optimum(m)] * 2, abs=1e-8)


def test_costs_that_overflow_are_refused() -> None:
    m, y, z, price = model()
    m.minimize(1e300 * (1e300 * y.sum()))
    with pytest.raises(bl.BlocklpError, match="overflow"):
        m.solve()


@pytest.mark.parametrize(
    "product",
    [
        lambda x: x.T @ torch.ones(3),
        lambda x: x @ np.ones(4),
        lambda x: np.ones(4) @ x,
        lambda x: torch.ones(4) @ x,
        lambda x: (2.0 * x) @ torch.ones(4),
        lambda x: x @ x.model.parameter("price", 4),
    ],
)
def test_a_product_with_a_vector_does_not_silently_sum_over_all_rows(product: Callable[[bl.Variable], object]) -> None:
    x = bl.Model().variable("x", (3, 4), lower=0, upper=1)
    with pytest.raises(ShapeError):
        product(x)
