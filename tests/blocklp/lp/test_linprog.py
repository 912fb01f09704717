"""SciPy's contract: signature, shapes, statuses, marginals, errors."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp

import blocklp as bl

pytest.importorskip("highspy")


def random_data(seed: int) -> dict[str, object]:
    draw = np.random.default_rng(seed)
    n = int(draw.integers(2, 8))
    inside = draw.random(n)
    above, equal = draw.normal(size=(int(draw.integers(1, 6)), n)), draw.normal(size=(1, n))
    data: dict[str, object] = {"c": draw.normal(size=n), "A_ub": above, "b_ub": above @ inside + draw.random(len(above))}
    if seed % 2:
        data |= {"A_eq": sp.csr_array(equal), "b_eq": equal @ inside}
    return data | {"bounds": [(0, 1), [(0, 1)], np.array([[0.0, 1.0]] * n)][seed % 3]}


def test_the_signature_is_scipys() -> None:
    assert list(inspect.signature(bl.linprog).parameters) == list(inspect.signature(scipy.optimize.linprog).parameters)


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_scipys(seed: int) -> None:
    data = random_data(seed)
    ours, theirs = bl.linprog(**data, options={"tol": 1e-8}), scipy.optimize.linprog(**data)
    assert ours.status == theirs.status == 0 and ours.success
    assert ours.fun == pytest.approx(theirs.fun, rel=1e-6, abs=1e-7)
    assert ours.bound <= theirs.fun + 1e-12
    assert set(theirs) <= set(ours) | {"mip_node_count", "mip_dual_bound", "mip_gap"}
    assert ours.x == pytest.approx(theirs.x, abs=1e-4)
    for part in ("ineqlin", "eqlin", "lower", "upper"):
        assert ours[part].marginals == pytest.approx(theirs[part].marginals, abs=1e-4), part
        assert ours[part].residual == pytest.approx(theirs[part].residual, abs=1e-4), part
    assert ours.slack == pytest.approx(theirs.slack, abs=1e-4) and ours.con == pytest.approx(theirs.con, abs=1e-4)


@pytest.mark.parametrize("shard", range(3))
def test_statuses_are_scipys_whatever_the_units_of_variables(shard: int) -> None:
    """Of feasible, infeasible and unbounded LPs of small integers, of which a third has columns times 1e-3 to 1e3."""
    found = dict.fromkeys((0, 2, 3), 0)
    for seed in range(100 * shard, 100 * shard + 100):
        draw = np.random.default_rng(seed)
        rows, n = draw.integers(1, 12), draw.integers(1, 12)
        matrix = draw.integers(-3, 4, (rows, n)) * (draw.random((rows, n)) < draw.choice([0.3, 0.7, 1]))
        matrix = matrix * 10.0 ** draw.integers(-3, 4, (1, n)) if seed % 3 == 0 else matrix
        side, cost = draw.integers(-4, 8, rows), draw.integers(-4, 5, n)
        above = draw.integers(0, rows + 1) if seed % 2 else rows
        low, high = draw.integers(-3, 2, n), draw.integers(2, 6, n)
        bounds = [
            (None if below < 0.3 else int(a), None if beyond < 0.6 else int(b))
            for below, beyond, a, b in zip(draw.random(n), draw.random(n), low, high, strict=True)
        ]
        equal = {"A_eq": matrix[above:], "b_eq": side[above:]} if above < rows else {}
        data = {"c": cost, "A_ub": matrix[:above], "b_ub": side[:above], "bounds": bounds} | equal
        ours, theirs = bl.linprog(**data, options={"time_limit": 10}), scipy.optimize.linprog(**data)
        assert ours.status == theirs.status, seed
        found[theirs.status] += 1
        if theirs.status == 0:
            assert ours.bound <= theirs.fun + 1e-9 * abs(theirs.fun) and ours.fun == pytest.approx(theirs.fun, rel=1e-5, abs=1e-6)
    assert min(found.values()) >= 10


@pytest.mark.parametrize("most", [1e9, 1e12, 1e15, 1e18])
def test_bounds_far_from_the_optimum_neither_weaken_the_bound_nor_excuse_a_gap(most: float) -> None:
    """x + 2y + 3z, x + y >= pi and y + z >= 1: pi - 1 + 2, whatever the variables may be at most."""
    found = bl.linprog([1.0, 2, 3], [[-1, -1, 0], [0, -1, -1]], [-np.pi, -1], bounds=(0, most))
    assert found.status == 0 and found.fun == pytest.approx(np.pi + 1, rel=1e-12)
    assert (np.pi + 1) * (1 - 1e-9) <= found.bound <= np.pi + 1


def test_bounds_that_cross_by_rounding_are_one_value() -> None:
    found = bl.linprog([1.0, -2], bounds=[(1, 1 - 1e-12), (0, 1)])
    assert found.status == 0 and found.bound <= found.fun == pytest.approx(-1)
    assert bl.linprog([1.0, -2], bounds=[(1, 1 - 1e-6), (0, 1)]).status == 2


def test_rays_in_columns_of_very_different_scale_are_found() -> None:
    """Costs of the cone of recession differ by nine orders; HiGHS gives it up as it is."""
    found = bl.linprog(
        [-30000.0, -20000, -2e-05, -0.0001, -200, -1e-05],
        [[0, -0.3, 1e-6, -2e5, -0.2, -3e6], [0, 0.2, 2e-6, -2e5, 0, 0]],
        [-9799998.699996, -799998.799992],
        [[0.2, 0, 3000, 0.01, -20, 0.02], [0.3, 0.0003, 0, 0.01, -30, 0], [0.3, 0.0002, -1000, -0.02, 20, 0]],
        [11960.7, -59.0597, -3959.1798],
        bounds=[(2, None), (0, 2), (None, 6), (None, None), (None, None), (2, None)],
        options={"time_limit": 10},
    )
    assert found.status == 3


def test_infeasible_and_unbounded_have_scipys_statuses() -> None:
    for data in (
        {"c": [1.0], "A_ub": [[1.0], [-1.0]], "b_ub": [0.0, -1.0]},
        {"c": [-1.0]},
        {"c": [1.0, 0.0], "bounds": (None, None)},
    ):
        ours, theirs = bl.linprog(**data), scipy.optimize.linprog(**data)  # type: ignore[arg-type]
        assert ours.status == theirs.status != 0 and not ours.success and ours.x is None and ours.fun is None


FORMS = [
    {"c": [1, 2]},
    {"c": 5.0},
    {"c": [[1, 2]]},
    {"c": [[1], [2]]},
    {"c": [1, -2], "bounds": [(0, 1)]},
    {"c": [1, -2], "bounds": [0, 1]},
    {"c": [1, -2], "bounds": [[0, 1], [2, 3]]},
    {"c": [1, -2], "bounds": [(0,), (1,)]},
    {"c": [1, 2], "bounds": []},
    {"c": [1, 2], "bounds": None},
    {"c": [1, 2], "bounds": [(0, np.nan), (None, 1)]},
    {"c": [1, 2], "bounds": (2, 1)},
    {"c": [1, 2], "A_ub": [[-1, -1]], "b_ub": [[-1]]},
    {"c": [1, 2], "A_ub": [[-1, -1]], "b_ub": -1},
    {"c": [1, 2], "A_eq": [[1, 1]], "b_eq": 1, "integrality": [0, 0]},
    {"c": [1, 2], "b_ub": []},
]


@pytest.mark.parametrize("data", FORMS)
def test_forms_are_read_as_scipy_reads_them(data: dict[str, object]) -> None:
    ours, theirs = bl.linprog(**data), scipy.optimize.linprog(**data)  # type: ignore[arg-type]
    assert ours.status == theirs.status and ours.message.startswith(theirs.message.split(" (")[0])
    assert (ours.fun is None) == (theirs.fun is None)
    if theirs.fun is not None:
        assert ours.fun == pytest.approx(theirs.fun, rel=1e-6, abs=1e-9)
    for key in ("x", "slack", "con"):
        assert np.shape(ours[key]) == np.shape(theirs[key]), key
    for part in ("ineqlin", "eqlin", "lower", "upper"):
        assert np.shape(ours[part].marginals) == np.shape(theirs[part].marginals), part


def test_a_start_is_not_used_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(scipy.optimize.OptimizeWarning, match="x0"):
        bl.linprog([1.0], x0=[2.0], options={"disp": True})
    assert capsys.readouterr().out.startswith("Optimization terminated successfully.")


def test_the_iteration_limit_has_scipys_status() -> None:
    draw = np.random.default_rng(0)
    matrix = draw.random((20, 30))
    found = bl.linprog(-np.ones(30), A_ub=matrix, b_ub=np.ones(20), options={"maxiter": 1, "tol": 1e-9})
    assert found.status == 1 and not found.success and found.bound <= found.fun <= 0


@pytest.mark.parametrize("simplex", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_gives_what_its_lps_give_alone(seed: int, simplex: bool) -> None:
    draw, batch, n, m = np.random.default_rng(seed), 5, 8, 4
    matrix, equal, inside = draw.normal(size=(m, n)), draw.normal(size=(1, n)), draw.random((batch, n))
    parts = {
        "c": draw.normal(size=(batch, n)),
        "b_ub": inside @ matrix.T + draw.random((batch, m)),
        "b_eq": inside @ equal.T,
        "bounds": np.stack([-draw.random((batch, n)), 1 + draw.random((batch, n))], 2),
    }
    if seed == 1:  # what has no batch dimension is shared
        parts["c"] = parts["c"][0]
    if seed == 2:  # one is infeasible
        parts["b_eq"][3] = 1e3
    if seed == 3:
        parts["b_ub"], parts["b_eq"] = parts["b_ub"][0], parts["b_eq"][0]
        parts["bounds"] = np.broadcast_to(np.array([-1.0, 2.0]), (batch, n, 2)).copy()
    options = {"tol": 1e-8, "simplex": simplex}
    together = bl.linprog(parts["c"], matrix, parts["b_ub"], equal, parts["b_eq"], parts["bounds"], options=options)
    assert together.x.shape == (batch, n) and together.slack.shape == (batch, m) and together.upper.marginals.shape == (batch, n)
    assert together.fun.shape == together.bound.shape == together.status.shape == (batch,) and len(together.message) == batch
    for i in range(batch):
        own = [part[i] if part.ndim == dims else part for part, dims in zip(parts.values(), (2, 2, 2, 3), strict=True)]
        alone = scipy.optimize.linprog(own[0], matrix, own[1], equal, own[2], own[3])
        assert together.status[i] == alone.status
        if alone.status == 2:
            assert np.isnan(together.fun[i]) and np.isnan(together.x[i]).all()
            continue
        assert together.fun[i] == pytest.approx(alone.fun, rel=1e-6, abs=1e-7)
        assert together.bound[i] <= alone.fun + 1e-9
        assert together.ineqlin.marginals[i] == pytest.approx(alone.ineqlin.marginals, abs=1e-4)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"c": [[[1, 2], [3, 4]]] * 2}, "c has shape"),
        ({"c": []}, "c has shape"),
        ({"c": [[1, 2], [3, 4]], "bounds": [[(0, 1)] * 2] * 3}, "of 2, 1, 1, 3 instances"),
        ({"c": [1, 2], "A_ub": [1, 2], "b_ub": 1}, "A_ub has shape"),
        ({"c": [1, 2], "A_ub": [[1, 2]], "b_ub": [np.inf]}, "b_ub holds"),
        ({"c": [1, 2], "A_ub": [[1, np.nan]], "b_ub": [1]}, "A_ub holds"),
        ({"c": [1, 2], "b_eq": [1]}, "A_eq and b_eq"),
        ({"c": [1, 2], "bounds": "a"}, "bounds is"),
        ({"c": [1, 2], "bounds": [(0, 1), (2,)]}, "bounds is"),
        ({"c": [1], "callback": print}, "callback"),
        ({"c": [1], "options": {"maxiter": -1}}, "maxiter"),
        ({"c": [1, np.nan]}, "c holds NaN"),
        ({"c": [1, 2], "A_ub": [[1, 2, 3]], "b_ub": [1]}, "A_ub has shape"),
        ({"c": [1, 2], "A_ub": [[1, 2]], "b_ub": [1, 2]}, "b_ub has shape"),
        ({"c": [1, 2], "A_eq": [[1, 2]]}, "A_eq and b_eq"),
        ({"c": [1, 2], "bounds": [(0, 1)] * 3}, "bounds has shape"),
        ({"c": [1, 2], "bounds": [(0, 1), (np.inf, np.inf)]}, "bounds leave no value for variable 1"),
        ({"c": "ab"}, "c is"),
        ({"c": [1], "method": "highs"}, "scipy.optimize.linprog"),
        ({"c": [1], "integrality": 1}, "integrality"),
        ({"c": [1], "options": {"presolv": True}}, "presolv"),
    ],
)
def test_wrong_data_are_value_errors_that_name_them(data: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        bl.linprog(**data)  # type: ignore[arg-type]
