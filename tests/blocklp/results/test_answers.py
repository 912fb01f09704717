"""What a solution answers: values of what is stated, prices, reduced costs and slacks of rows, tables for people."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

import blocklp as bl
from blocklp.errors import ModelError, UnknownNameError
from blocklp.general_solvers.linear_program import export, loaded_highs
from blocklp.oracles import Edge, Simplex


def random_lp(seed: int) -> tuple[bl.Model, bl.Variable, dict[str, csr_array], list[bl.model.Rows]]:
    """A batch of LPs of rows alone, of all kinds, with a point strictly within their inequalities, and the handles."""
    rng = np.random.default_rng(seed)
    n, batch = int(rng.integers(6, 12)), int(rng.integers(1, 4))
    m = bl.Model(batch)
    x = m.variable("x", n, lower=0, upper=1)
    inside = rng.uniform(0.2, 0.8, (batch, n))
    matrices = {
        name: csr_array(rng.normal(size=(count, n))) for name, count in (("above", 2), ("below", 3), ("equal", 1), ("range", 1))
    }
    room = {name: rng.uniform(0.05, 0.3, (batch, matrix.shape[0])) for name, matrix in matrices.items()}
    at = {name: inside @ matrix.T for name, matrix in matrices.items()}
    handles = [
        m.add(matrices["above"] @ x <= at["above"] + room["above"], name="above"),
        m.add(matrices["below"] @ x >= at["below"] - room["below"], name="below"),
        m.add(matrices["equal"] @ x == at["equal"], name="equal"),
        m.add_rows(matrices["range"], x, at["range"] - room["range"], at["range"] + room["range"], name="range"),
    ]
    cost = m.parameter("cost", n)
    cost.value = rng.normal(size=(batch, n))
    (m.minimize if seed % 2 else m.maximize)((cost * x).sum() + 3)
    return m, x, matrices, handles


@pytest.mark.parametrize("seed", range(10))
def test_prices_and_reduced_costs_are_those_of_the_simplex_method(seed: int) -> None:
    m, x, matrices, handles = random_lp(seed)
    found = m.solve(tol=1e-10, passes=50_000)
    for i in range(m.batch):
        highs = loaded_highs(export(m, i))
        highs.run()
        solution = highs.getSolution()
        # HiGHS's duals have the sign of the change of the optimal value, too.
        prices = torch.cat([found.price(h)[i] for h in handles]).numpy()
        assert prices == pytest.approx(np.array(solution.row_dual), abs=1e-4)
        assert found.reduced_cost(x)[i].numpy() == pytest.approx(np.array(solution.col_dual), abs=1e-4)
        assert found[x][i].numpy() == pytest.approx(np.array(solution.col_value), abs=1e-4)
        assert found.objective[i].item() == pytest.approx(3 + highs.getInfo().objective_function_value, abs=1e-6)


def test_a_price_is_what_the_optimal_value_gains_by_a_unit_of_the_side() -> None:
    for sense in (1, -1):
        values, prices = [], []
        for side in (1.5, 1.5 + 1e-3):
            m = bl.Model()
            x = m.variable("x", 3, lower=0, upper=1)
            kept = m.add(sense * (x[0] + 2 * x[1] + x[2]) <= sense * side)
            objective = 3 * x[0] + 4 * x[1] + x[2]
            (m.maximize if sense > 0 else m.minimize)(objective)
            found = m.solve(tol=1e-11)
            values.append(found.objective.item())
            prices.append(found.price(kept).item())
        assert (values[1] - values[0]) / 1e-3 == pytest.approx(sense * prices[0], rel=1e-4)
        assert sense * prices[0] > 0.5


def test_slacks_are_distances_to_the_nearest_side() -> None:
    m, x, matrices, handles = random_lp(4)
    found = m.solve(tol=1e-6)
    point = found[x].numpy()
    for handle in handles:
        activity = point @ matrices[handle.name].T
        low, high = (np.broadcast_to(side.numpy(), activity.shape) for side in (handle.constraint.lower, handle.constraint.upper))
        expected = np.minimum(activity - low, high - activity)
        assert found.slack(handle).numpy() == pytest.approx(expected, abs=1e-12)
        assert torch.equal(found.slack(handle), found.slack(handle.name))
        assert bool((found.slack(handle) > -1e-5).all())


def test_values_of_expressions_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    m = bl.Model(batch=3)
    x, y = m.variable("x", (2, 4), lower=0, upper=1), m.variable("y", lower=-1, upper=2)
    price = m.parameter("price", (2, 4))
    price.value = rng.normal(size=(3, 2, 4))
    m.maximize((price * x).sum() - y)
    found = m.solve(tol=1e-6)
    at, low = found[x].numpy(), found["y"].numpy()
    weights, matrix = rng.normal(size=(3, 2, 4)), rng.normal(size=(5, 4))
    assert found.value(x[1, 2:]).shape == (3, 2) and torch.equal(found[x[1, 2:]], found[x][:, 1, 2:])
    assert found[weights * x + 1].numpy() == pytest.approx(weights * at + 1)
    assert found[(price * x).sum() + (weights * x).sum() - 2 * y].numpy() == pytest.approx(
        ((price.value.numpy() + weights) * at).sum((1, 2)) - 2 * low
    )
    assert found[matrix @ x[0] + 7].numpy() == pytest.approx(at[:, 0] @ matrix.T + 7)
    assert found.objective.numpy() == pytest.approx((price.value.numpy() * at).sum((1, 2)) - low)
    one = found.instance(2)
    assert torch.equal(one[weights * x], found[weights * x][2:]) and torch.equal(one.objective, found.objective[2:])
    assert torch.equal(one.reduced_cost(x), price.value[2:])
    late = m.variable("late", 2, lower=0, upper=1)
    for unknown in (late, late.sum(), matrix[:, :2] @ late):
        with pytest.raises(UnknownNameError, match=r"late|after the solve"):
            found[unknown]


def test_questions_to_the_wrong_solution_are_refused() -> None:
    m, x, _, handles = random_lp(1)
    other, z, _, others = random_lp(2)
    found = m.solve(passes=50)
    with pytest.raises(UnknownNameError, match=r"no rows .*'above', 'below'"):
        found.price(others[0])
    with pytest.raises(UnknownNameError, match="no rows 'nope'"):
        found.slack("nope")
    with pytest.raises(ModelError, match="another model"):
        found[2 * z]
    with pytest.raises(UnknownNameError, match="its variables are 'x'"):
        found.reduced_cost(z)
    with pytest.raises(ModelError, match="what to evaluate is 3"):
        found[3]
    pair = []
    for n in (2, 3):
        m = bl.Model()
        x = m.variable("x", n, lower=0, upper=1)
        m.minimize(x.sum() - 1)
        pair.append((m, x))
    both = bl.compile([m for m, _ in pair]).solve()
    with pytest.raises(ModelError, match=r"solution.instance\(i\)"):
        both[pair[0][1].sum()]
    assert both.instance(1)[pair[1][1].sum()].tolist() == [0.0] and both.objective.tolist() == [-1.0, -1.0]


def test_removed_rows_and_blocks_are_gone_and_what_is_left_keeps_its_multipliers() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)

        def build(drop: str | None, seed: int = seed) -> bl.Model:
            rng = np.random.default_rng(seed)
            m = bl.Model(2)
            x = m.variable("x", 8, lower=0, upper=1)
            parts = {name: (csr_array(rng.random((2, 8))), rng.uniform(1.5, 2.5, (2, 2))) for name in ("first", "second", "third")}
            if drop != "pick":
                m.add(Simplex(4), x.reshape(2, 4), name="pick")
            for name, (matrix, side) in parts.items():
                if name != drop:
                    m.add(matrix @ x <= side, name=name)
            m.maximize(torch.as_tensor(rng.random((2, 8))) @ x)
            return m

        drop = ("first", "second", "pick")[int(rng.integers(3))]
        m = build(None)
        before = m.solve(tol=1e-8)
        m.remove(drop if seed % 2 else next(h for h in (*m.blocks, *m.rows) if h.name == drop))
        fresh = build(drop).solve(tol=1e-8)
        cold, warm = m.solve(tol=1e-8), m.solve(tol=1e-8, warm_start=before)
        assert torch.equal(cold.bound, fresh.bound) and torch.equal(cold.state.duals["rows"], fresh.state.duals["rows"])
        assert torch.allclose(warm.bound, fresh.bound, atol=1e-6)
        kept = [r for r in m.rows if r.name != drop]
        once = m.solve(passes=1, warm_start=before)  # the first bound is that of the multipliers given
        for handle in kept:
            assert torch.allclose(once.price(handle), before.price(handle.name), atol=1e-12)
        assert bl.verify_certificate(m, before.state).bound.shape == (2,)


def test_what_was_never_there_is_not_removed_and_unknown_prices_are_refused() -> None:
    m, _, _, handles = random_lp(0)
    with pytest.raises(UnknownNameError, match="no blocks or rows 'nope'; it has 'above'"):
        m.remove("nope")
    state = m.solve(passes=20).state
    m.remove(handles[1])
    with pytest.raises(UnknownNameError, match="'below'"):
        m.remove(handles[1])
    fresh, _, _, others = random_lp(0)
    fresh.rows.remove(others[1])  # as if it had never been added
    with pytest.raises(ModelError, match=r"prices of rows .'below'."):
        fresh.solve(passes=20, warm_start=state)
    again = m.add_rows(np.ones((2, m.size)), m.variables["x"], upper=100.0, name="below")
    with pytest.raises(bl.errors.ShapeError, match="prices of 3 rows 'below', the model has 2"):
        m.solve(passes=20, warm_start=state)
    m.remove(again)
    m.remove("range")
    assert m.add(m.variables["x"].sum() <= 100.0).name not in {h.name for h in m.rows[:-1]}


def test_tables_are_short_and_escape_names() -> None:
    m = bl.Model(batch=300)
    name = "<script>alert(1)</script>"
    views = [m.variable(name if i == 0 else f"x{i}", 3, lower=0, upper=1) for i in range(200)]
    for i, x in enumerate(views):
        m.add(Simplex(3), x, name=f"pick {name}" if i == 0 else None)
        m.add(x[0] <= 0.5, name=f"cap {name}" if i == 0 else None)
    m.minimize(views[0].sum())
    found = m.solve(passes=2)
    for thing in (m, m.compile(), found, found.state, found.x, found.duals):
        assert len(repr(thing).splitlines()) <= 40 and len(repr(thing)) < 5000, thing
    for page in (m._repr_html_(), m.compile()._repr_html_(), found._repr_html_()):
        assert "<script>" not in page and len(page) < 10_000
    assert "&lt;script&gt;alert(1)" in m._repr_html_() and "... 192 more" in m._repr_html_()
    assert "... 292 more" in repr(found) and "600 variables" in repr(m) and "200 rows" in repr(m)


def test_edges_print_their_type() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Edge(), x)
    assert "Edge" in m._repr_html_() and "no objective" in repr(m)


def test_soft_bounds_count_the_prices_of_rows() -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        m = bl.Model()
        x = m.variable("x", 6, lower=0, upper=1)
        m.add(Simplex(3), x.reshape(2, 3))
        m.add(csr_array(rng.random((2, 6))) @ x <= 0.8)
        m.minimize(-torch.as_tensor(rng.random(6)) @ x)
        solver = m.compile()
        found = solver.solve(tol=1e-8)
        soft = bl.soft_bound(solver, found, 1e-5)
        assert found.primal.item() + 1e-9 >= soft.item() == pytest.approx(found.bound.item(), abs=1e-3)


def test_other_results_are_tables_in_notebooks_too() -> None:
    m = bl.Model(batch=12)
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(Simplex(3), x)
    m.minimize((torch.tensor([3.0, 1.0, 2.0]) * x).sum())
    found = m.solve(tol=1e-6)
    reference, proof = bl.reference(m), bl.verify_certificate(m, found.state)
    row = csr_array(np.ones((1, 2)))
    program = bl.lp.LinearProgram(np.ones(2), row, np.ones(1), np.full(1, 2.0), np.zeros(2), np.ones(2))
    lp = bl.lp.solve_linear_program(program)
    for thing, stated in ((reference, "optimal"), (proof, "optimum >= "), (lp, "optimal")):
        assert stated in repr(thing)
        page = thing._repr_html_()
        assert page.count("<table>") == 1 and "<script" not in page and len(page) < 5000
    assert repr(reference).count("optimal") == 8 and "... 4 more" in repr(reference) and "... 4 more" in repr(proof)
