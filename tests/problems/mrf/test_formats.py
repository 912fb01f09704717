"""Formats of energies, from small files written by hand, against their definitions on every labelling."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from blocklp.errors import FormatError
from blocklp.problems.mrf import Mrf, read_mrf

Value = Callable[..., float]


def read(folder: Path, name: str, text: str) -> Mrf:
    file = folder / name
    file.write_text(text)
    return read_mrf(file)


def agrees(mrf: Mrf, sizes: list[int], value: Value) -> None:
    """On every labelling of the variables of the file, with the best labels of those that were added."""
    counts = [int(k) for k in mrf.counts]
    assert counts[: len(sizes)] == sizes
    added = list(product(*map(range, counts[len(sizes) :])))
    for x in product(*map(range, sizes)):
        every = np.array([[*x, *rest] for rest in added])
        assert mrf.energy(every).min() == pytest.approx(value(*x), abs=1e-9), x


CLAUSES = "c three clauses\np cnf 3 3\n1 -2 0\n2 3 0\n-1 -3 0\n"
WEIGHTED = "p wcnf 3 3 10\n4 1 -2 0\n10 2 3 0\n3 -1 -3 0\n"
NEW = "c without a header\n4 1 -2 0\nh 2 3 0\n3 -1 -3 0\n"


def test_clauses(tmp_path: Path) -> None:
    def broken(a: int, b: int, c: int) -> list[bool]:
        return [not (a or not b), not (b or c), not (not a or not c)]

    agrees(read(tmp_path, "a.cnf", CLAUSES), [2] * 3, lambda *x: sum(broken(*x)))

    def weighed(*x: int) -> float:
        first, hard, last = broken(*x)
        return np.inf if hard else 4.0 * first + 3.0 * last

    agrees(read(tmp_path, "a.wcnf", WEIGHTED), [2] * 3, weighed)
    agrees(read(tmp_path, "b.wcnf", NEW), [2] * 3, weighed)


def test_pseudo_boolean(tmp_path: Path) -> None:
    text = "* a comment\nmin: +3 x1 -2 x2 x3 +1 x3;\n+2 x1 +1 ~x2 -1 x3 >= 0;\n+1 x1 +1 x2 +1 x3 <= 2;\n"

    def value(a: int, b: int, c: int) -> float:
        return 3 * a - 2 * b * c + c if 2 * a + (1 - b) - c >= 0 and a + b + c <= 2 else np.inf

    agrees(read(tmp_path, "a.opb", text), [2] * 3, value)
    most = read(tmp_path, "b.opb", text.replace("min:", "max:"))
    agrees(most, [2] * 3, lambda *x: -value(*x) if np.isfinite(value(*x)) else np.inf)
    soft = "soft: 6;\n[2] +1 x1 +1 x2 >= 1;\n[5] +1 x1 <= 0;\n+1 x1 +1 x2 <= 1;\n"
    mrf = read(tmp_path, "a.wbo", soft)
    agrees(mrf, [2, 2], lambda a, b: np.inf if a + b > 1 else 2.0 * (a + b < 1) + 5.0 * a)


CFN = """{ problem: { name: example, mustbe: "<12.50" },
  variables: { x: [a b c], y: 2, z: 3 },
  functions: {
    f: { scope: [x y], costs: [0.5 1 2 3.25 0 inf] },
    g: { scope: [y z], defaultcost: 0.25, costs: [0 1 7.5] },
    h: { scope: [x z], costs: [0 1 2 1 0 1 2 1 0] },
    w: { scope: [x z], type: walldiff, params: { metric: hard, cost: 2.5 } } } }
"""


def test_cost_function_networks(tmp_path: Path) -> None:
    def value(x: int, y: int, z: int, forbidden: float = np.inf) -> float:
        table = [[0.5, 1], [2, 3.25], [0, forbidden]]
        return table[x][y] + (7.5 if (y, z) == (0, 1) else 0.25) + abs(x - z)

    def limited(x: int, y: int, z: int) -> float:
        total = value(x, y, z) + 2.5 * (x == z)
        return total if total < 12.5 else np.inf

    agrees(read(tmp_path, "a.cfn", CFN), [3, 2, 3], limited)
    most = "".join(line for line in CFN.splitlines(keepends=True) if "walldiff" not in line).replace("0] },\n", "0] } } }\n")
    most = most.replace("<12.50", ">-99.00").replace("inf", "4")
    agrees(read(tmp_path, "b.json", most), [3, 2, 3], lambda *x: -value(*x, forbidden=4))


GLOBALS: dict[str, tuple[str, Value]] = {
    "all different": ("3 0 1 2 -1 salldiff var 3", lambda *x: 3.0 * (3 - len(set(x)))),
    "pairs that are equal": ("3 0 1 2 -1 salldiff dec 2", lambda a, b, c: 2.0 * ((a == b) + (a == c) + (b == c))),
    "among": ("3 0 1 2 -1 samong var 4 1 2 1 0", lambda *x: 4.0 * max(0, 1 - x.count(0), x.count(0) - 2)),
    "sum": ("3 0 1 2 -1 wsum lin 2 <= 3", lambda *x: 2.0 * max(0, sum(x) - 3)),
    "knapsack": (
        "3 0 1 2 -1 knapsackp 3 1 1 2 1 2 2 1 1 1",
        lambda a, b, c: 0.0 if 2 * (a == 1) + 2 * (b == 2) + (c == 1) >= 3 else np.inf,
    ),
    "at most one": ("3 0 1 2 -1 clique 1 1 0 1 1 2 0 1", lambda a, b, c: 0.0 if (a == 0) + (b == 1) + (c in (0, 1)) <= 1 else np.inf),
    "less": ("2 0 1 -1 >= 1 0", lambda a, b, c: 0.0 if a >= b + 1 else np.inf),
}


@pytest.mark.parametrize("name", GLOBALS)
def test_global_cost_functions(name: str, tmp_path: Path) -> None:
    line, value = GLOBALS[name]
    text = f"small 3 3 2 1000\n3 3 3\n{line}\n1 0 0 2\n1 5\n2 7\n"
    agrees(read(tmp_path, "a.wcsp", text), [3] * 3, lambda *x: value(*x) + (0, 5, 7)[x[0]])


def test_tables_are_shared_and_costs_add_up_to_the_bound(tmp_path: Path) -> None:
    text = "small 3 2 2 10\n2 2 2\n-2 0 1 1 1\n1 1 6\n2 1 2 1 -1\n"

    def value(*x: int) -> float:
        total = sum(6.0 if x[i] and x[i + 1] else 1.0 for i in range(2))
        return total if total < 10 else np.inf

    agrees(read(tmp_path, "a.wcsp", text), [2] * 3, value)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.cnf", CLAUSES.replace("2 3 0", "2 4 0"), "line 4"),
        ("a.cnf", CLAUSES[:-2], "cut off|ends"),
        ("a.opb", "min: +1 x1;\n+1 x1 > 0;\n", "line 2"),
        ("a.cfn", CFN.replace("[x y]", "[x v]"), "line 4.*v"),
        ("a.wcsp", "small 2 2 1 9\n2 2\n2 0 1 -1 wregularly 3\n", "line 3.*known are"),
    ],
)
def test_broken_files_are_refused_with_their_line(tmp_path: Path, name: str, text: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read(tmp_path, name, text)
