"""Capabilities of block types: who has which, and that none is inherited by a type with another polytope."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.blocks import capabilities
from blocklp.blocks.capabilities import HasMaskedTable, HasMinMarginals, HasProx, supports
from blocklp.blocks.formulas import FORMULAS, PROTOCOLS, check_formulas
from blocklp.errors import ModelError
from blocklp.oracles import AtMostOne, Chain, Edge, Joint, Knapsack, Pairwise, Polytope, Simplex, Transport
from blocklp.oracles.relu import ReluHull
from blocklp.testing import probes

ROOT = Path(__file__).parents[3]

Answer = tuple[Tensor, Tensor]

TYPES: dict[str, Callable[[], bl.BlockType]] = {
    "Edge": Edge,
    "FiniteVertices": lambda: bl.FiniteVertices([[0.0, 1.0], [1.0, 0.5]]),
    "Pairwise": lambda: Pairwise(2, 3),
    "Joint": lambda: Joint([2, 2, 2], [(0,), (1,), (2,)]),
    "Chain": lambda: Chain([2, 2, 2]),
    "Simplex": lambda: Simplex(3),
    "AtMostOne": lambda: AtMostOne(3),
    "Box": lambda: bl.Box([0.0, 0.0], [1.0, 2.0]),
    "Knapsack": lambda: Knapsack([1.0, 2.0, 1.0], 2.0),
    "Polytope": lambda: Polytope([[1.0, 2.0]], [0.0], [2.0], [0, 0], [1, 1]),
    "Transport": lambda: Transport([1.0, 1.0], [1.0, 1.0]),
    "ReluHull": lambda: ReluHull(-1.0, 1.0),
}


class Bare(bl.BlockType):
    """The unit cube, by an oracle alone."""

    def min_oracle(self, cost: Tensor) -> Answer:
        point = (cost < 0).to(cost)
        return point, (cost * point).sum(-1)


@pytest.mark.parametrize("name", TYPES)
def test_a_capability_is_that_of_the_protocol(name: str) -> None:
    kind = TYPES[name]()
    assert [supports(kind, p) for p in PROTOCOLS] == [isinstance(kind, p) for p in PROTOCOLS]
    stated = {method for method in FORMULAS if callable(getattr(kind, method, None))}
    for p in PROTOCOLS:
        assert supports(kind, p) == all(m in stated for m in vars(p) if m in FORMULAS), p


def test_an_oracle_alone_has_no_capability() -> None:
    assert not any(supports(Bare(), p) for p in PROTOCOLS)


@pytest.mark.parametrize("name", TYPES)
def test_an_oracle_of_its_own_inherits_no_formula(name: str) -> None:
    """All methods about the polytope are named, where the type is added and where it is examined."""
    kind = TYPES[name]()

    class Other(type(kind)):  # type: ignore[misc]
        def min_oracle(self, cost: Tensor) -> Answer:
            point = torch.ones_like(cost)
            return point, cost.sum(-1)

    kind.__class__ = Other
    inherited = {m for m in FORMULAS if callable(getattr(kind, m, None)) and m != "min_value"}
    inherited |= {"min_value"} if type(kind).min_value is not bl.BlockType.min_value else set()
    assert inherited
    dim = kind.dim or 2
    m = bl.Model()
    x = m.variable("x", dim, lower=0, upper=1)
    with pytest.raises(ModelError, match="Other overrides min_oracle of") as told:
        m.add(kind, x[None])
    named = str(told.value).split("another polytope: ")[1].split(";")[0]
    assert set(named.split(", ")) == inherited
    with pytest.raises(ModelError, match="derive from BlockType"):
        probes.answer(kind, torch.zeros(1, 1, dim, dtype=torch.float64))


def test_formulas_are_stated_anew_or_left_out() -> None:
    """The even vertices of a cube in a type that derives from the whole cube: bounds are those of the even ones."""
    cube = np.array(list(itertools.product((0.0, 1.0), repeat=3)))
    even = torch.from_numpy(cube[cube.sum(1) % 2 == 0])

    class Cube(bl.FiniteVertices):
        vertices = cube.tolist()

    class Even(Cube):
        def min_oracle(self, cost: Tensor) -> Answer:
            value, best = (cost @ even.T.to(cost)).min(-1)
            return even.to(cost)[best], value

        def vertex_table(self) -> Tensor:
            return even

        min_value = bl.BlockType.min_value
        overlap = Cube.overlap  # the largest number of coordinates is one that holds
        constraints = masked_table = min_marginals = restrict = soft_min = value_error = vertex_values = None  # type: ignore[assignment]

    check_formulas(Even)
    assert not supports(Even(), HasMaskedTable) and not supports(Even(), HasMinMarginals)
    draw = np.random.default_rng(0)
    for _ in range(5):
        cost = draw.normal(size=(4, 3))
        m = bl.Model()
        x = m.variable("x", (4, 3), lower=0, upper=1)
        m.add(Even(), x)
        m.minimize((cost * x).sum())
        truth = (cost @ even.numpy().T).min(1).sum()
        assert m.solve(tol=1e-6).bound.item() == pytest.approx(truth, abs=1e-6)


def test_a_class_without_an_oracle_may_state_what_holds_for_all_below() -> None:
    class Scaled(bl.BlockType):
        def value_error(self, cost: Tensor) -> Tensor:
            return cost.abs().sum(-1)

    class Cube(Scaled):
        min_oracle = Bare.min_oracle

    class Named(Cube):
        """A derived type with the same oracle keeps all formulas."""

    class Nearest:
        def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor:
            return (centre - step * cost).clamp(0, 1)

    class Mixed(Nearest, Cube):
        """A formula mixed in stands before the oracle, and is meant for it."""

    for kind in (Cube, Named, Mixed):
        check_formulas(kind)
    assert supports(Mixed(), HasProx) and not supports(Cube(), HasProx)


def test_an_oracle_that_is_mixed_in_inherits_no_formula_either() -> None:
    class Corner:
        def min_oracle(self, cost: Tensor) -> Answer:
            return torch.zeros_like(cost), torch.zeros_like(cost[..., 0])

    class Mixed(Corner, bl.Box):
        pass

    with pytest.raises(ModelError, match="Corner overrides min_oracle of Box, and Mixed inherits"):
        check_formulas(Mixed)


def test_long_tables_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(_: Pairwise) -> Tensor:
        raise AssertionError

    monkeypatch.setattr(Pairwise, "table", property(written))
    kind = Pairwise(20, 20)
    assert supports(kind, HasMaskedTable) and kind.masked_table(most=32) is None
    m = bl.Model()
    sizes = 20, 20, 400
    views = [m.variable(f"x{k}", size, lower=0, upper=1) for k, size in enumerate(sizes)]
    m.add(kind, [v[None] for v in views])
    m.minimize(2 * views[0].sum() - views[2].sum())
    assert m.solve(method="prox", passes=2, tol=0).bound.item() == pytest.approx(1.0, abs=1e-9)


def test_the_core_asks_for_no_concrete_type() -> None:
    """Neither by isinstance nor by the identity of a class."""
    concrete = {"Box", "FiniteVertices", "FactoredBlock", *(name for name in TYPES)}
    found = []
    for path in (p for folder in ("blocklp", "blocklp/methods", "blocklp/lp") for p in (ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            parts: list[ast.expr] = []
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                parts = node.args[1:]
            elif isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot | ast.Eq) for op in node.ops):
                parts = node.comparators
            names = {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}
            found += [f"{path.name}:{node.lineno}"] if names & concrete else []
    assert not found


def test_every_protocol_is_listed_and_says_what_it_takes() -> None:
    made = {n for n, own in vars(capabilities).items() if n.startswith("Has")}
    assert made == {p.__name__ for p in PROTOCOLS}
    for p in PROTOCOLS:
        assert p.__doc__
        for name in (n for n in vars(p) if n in FORMULAS):
            assert getattr(p, name).__doc__, f"{p.__name__}.{name}"
