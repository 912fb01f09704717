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


def test_infeasible_and_unbounded_have_scipys_statuses() -> None:
    for data in (
        {"c": [1.0], "A_ub": [[1.0], [-1.0]], "b_ub": [0.0, -1.0]},
        {"c": [-1.0]},
        {"c": [1.0, 0.0], "bounds": (None, None)},
    ):
        ours, theirs = bl.linprog(**data), scipy.optimize.linprog(**data)  # type: ignore[arg-type]
        assert ours.status == theirs.status != 0 and not ours.success and ours.x is None and ours.fun is None


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"c": [[1, 2], [3, 4]]}, "c has shape"),
        ({"c": [1, np.nan]}, "c holds NaN"),
        ({"c": [1, 2], "A_ub": [[1, 2, 3]], "b_ub": [1]}, "A_ub has shape"),
        ({"c": [1, 2], "A_ub": [[1, 2]], "b_ub": [1, 2]}, "b_ub has shape"),
        ({"c": [1, 2], "A_eq": [[1, 2]]}, "A_eq and b_eq"),
        ({"c": [1, 2], "bounds": [(0, 1)] * 3}, "bounds has shape"),
        ({"c": [1, 2], "bounds": (2, 1)}, "bounds leave no value"),
        ({"c": "ab"}, "c is"),
        ({"c": [1], "method": "highs"}, "scipy.optimize.linprog"),
        ({"c": [1], "integrality": 1}, "integrality"),
        ({"c": [1], "options": {"presolv": True}}, "presolv"),
    ],
)
def test_wrong_data_are_value_errors_that_name_them(data: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        bl.linprog(**data)  # type: ignore[arg-type]
