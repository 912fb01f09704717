"""What an answer of a general LP solver is worth: the bound that its duals prove, and how feasible its point is."""

from __future__ import annotations

from typing import Any

import numpy as np


def worth(given: Any, rows: Any, x: Any, y: Any) -> dict[str, float]:
    """The value and largest violation of a point, and the bound of duals, by the bounds of variables."""
    sides = np.where(y > 0, given["above"], given["below"])
    y = np.where(np.isfinite(sides), y, 0.0)
    reduced = given["c"] - rows.T @ y
    bound = y @ np.where(np.isfinite(sides), sides, 0.0) + np.minimum(reduced * given["low"], reduced * given["high"]).sum()
    reached = rows @ x
    off = np.maximum(given["above"] - reached, reached - given["below"]).max(initial=0.0)
    return {"value": float(given["c"] @ x), "bound": float(bound), "violation": float(off)}
