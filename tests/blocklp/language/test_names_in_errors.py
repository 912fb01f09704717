"""Every error about a row or a variable says which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import blocklp as bl
from blocklp.errors import BlocklpError
from blocklp.oracles import Simplex


def model() -> tuple[bl.Model, bl.Variable]:
    m = bl.Model(batch=2)
    x = m.variable("x", (3, 2), lower=0, upper=1)
    m.add(sp.eye_array(6) @ x.reshape(6) <= 1, name="capacity")
    m.add(x.reshape(6).sum() <= 4, name="total")
    m.minimize(x.sum() * -1.0)
    return m, x


def spoilt(where: int) -> bl.State:
    m, _ = model()
    state = m.solve(passes=5).state
    prices = state.duals["rows"].clone()
    prices[1, where] = np.nan
    return replace(state, duals={**state.duals, "rows": prices})


NAN = [1, 1, 1, np.nan, 1, 1]
HALF = np.array([[0.0, 0], [0, 0], [0, 2.0]])
HOLED = sp.csr_array(([1.0, np.inf], ([0, 4], [2, 5])), shape=(7, 6))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda m, x: m.variable("y", (3, 2), lower=HALF, upper=1), r"lower bound 2 of y\[2, 1\] is above its upper bound 1$"),
        (lambda m, x: m.variable("y", 2, lower=[[0, 0], [0, 3]], upper=1), r"bound 3 of y\[1\] is above .* 1 in instance 1"),
        (lambda m, x: m.variable("y", (), lower=2, upper=1), r"bound 2 of y is above"),
        (lambda m, x: m.variable("y", (3, 2), lower=0, upper=HALF / 0), r"upper bound holds .* at y\[0, 0\]"),
        (lambda m, x: m.variable("y", 3, lower=[[0, 0, 0], [0, np.nan, 0]], upper=1), r"at y\[1\];"),
        (lambda m, x: m.add(Simplex(3), [x[:, 0], x[:, 1], x[[2, 1, 2], [0, 1, 1]]]), r"block 1 of Simplex names x\[1, 1\] twice"),
        (lambda m, x: m.add_rows(np.eye(6), x.reshape(6), [0, 0, 3, 0, 0, 0], 1, name="low"), r"row low\[2\] leaves no value"),
        (lambda m, x: m.add_rows(np.eye(6), x.reshape(6), np.full((2, 6), [[0], [2]]), 1), r"rows_3\[0\] .* in instance 1"),
        (lambda m, x: m.add_rows(HOLED, x.reshape(6), upper=1, name="hole"), r"rows 'hole' holds inf in row 4 at x\[2, 1\]"),
        (lambda m, x: HOLED @ x.reshape(6), r"holds inf in row 4 at x\[2, 1\]"),
        (
            lambda m, x: m.add_rows(np.eye(6), x.reshape(6), upper=NAN, name="n"),
            r"side of rows 'n' holds NaN at row 3",
        ),
        (lambda m, x: m.solve(bounds={x: (0, HALF - 1.5)}), r"leaves x\[0, 0\] no value between 0 and -1.5 in instance 0"),
        (lambda m, x: m.solve(bounds={x[2, 1]: [0.0, 1.0]}), r"bounds of x\[2, 1\] are"),
        (lambda m, x: m.solve(bounds={x[2, 1]: (0.9, 0.1)}), r"leaves x\[2, 1\] no value between 0.9 and 0.1"),
        (lambda m, x: m.solve(warm_start=spoilt(3)), r"price of capacity\[3\]"),
        (lambda m, x: m.solve(warm_start=spoilt(6)), r"price of total\[0\]"),
        (lambda m, x: bl.verify_certificate(m, {"rows": spoilt(6).duals["rows"]}), r"price of total\[0\]"),
        (lambda m, x: bl.linprog([1.0, np.nan]), "nan at 1"),
        (lambda m, x: bl.linprog([1.0, 1], A_ub=[[1, 1], [1, np.inf]], b_ub=[1, 1]), r"the first at \(1, 1\)"),
    ],
)
def test_errors_name_rows_and_variables(wrong: Callable[[bl.Model, bl.Variable], object], words: str) -> None:
    m, x = model()
    with pytest.raises(BlocklpError, match=words), np.errstate(all="ignore"):
        wrong(m, x)


def test_views_of_one_entry_have_its_name() -> None:
    m, x = model()
    y = m.variable("y", lower=0, upper=1)
    assert [repr(v) for v in (x, x[2, 1], x.T[1, 2], x[2], y)] == ["x[3, 2]", "x[2, 1]", "x[2, 1]", "x[...][2]", "y"]
    assert [m.entry(i) for i in (0, 5, 6)] == ["x[0, 0]", "x[2, 1]", "y"]
    assert torch.equal(x[2, 1].index, x.index[2, 1])
