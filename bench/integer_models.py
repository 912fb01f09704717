"""Integer programs with knapsacks as blocks: made ones, and those of files by the pattern of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array, kron

import blocklp as bl
from blocklp.general_solvers.linear_program import LinearProgram, program_of
from blocklp.general_solvers.small_lp import quiet_highs
from blocklp.oracles import Knapsack

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Instance:
    """Rows of an integer program all of whose variables are integers, some of them rows of blocks.

    Attributes
    ----------
    name : str
    program : LinearProgram
    blocks : ndarray
        ``(k,)`` int64: rows that become blocks, no two of which have a variable in common.
    """

    name: str
    program: LinearProgram
    blocks: NDArray[np.int64]

    def model(self) -> bl.Model:
        """The model, with an integer knapsack for each of these rows."""
        p = self.program
        m = bl.Model()
        x = m.variable("x", len(p.c), lower=p.lower, upper=p.upper, integer=True)
        own = csr_array(p.A[self.blocks])
        sides = {"capacity": p.row_upper[self.blocks], "least": p.row_lower[self.blocks]}
        stated = {name: side for name, side in sides.items() if np.isfinite(side).all()}
        bounds = {"lower": p.lower[own.indices], "upper": p.upper[own.indices]}
        kinds = Knapsack.ragged(own.data, np.diff(own.indptr), integer=True, **stated, **bounds)
        m.add(kinds, scope=x[own.indices], name="knapsack")
        others = np.setdiff1d(np.arange(len(p.row_lower)), self.blocks)
        m.add_rows(csr_array(p.A[others]), x, p.row_lower[others], p.row_upper[others])
        (m.maximize if p.maximize else m.minimize)(torch.from_numpy(p.c) @ x + p.offset)
        return m


def assignment(kind: str, agents: int, jobs: int, seed: int = 0) -> Instance:
    """A generalised assignment problem by the laws of Chu and Beasley (1997), classes A to D."""
    rng = np.random.default_rng(seed)
    if kind == "D":
        load = rng.integers(1, 101, (agents, jobs))
        cost = 111 - load + rng.integers(-10, 11, (agents, jobs))
    else:
        load, cost = rng.integers(5, 26, (agents, jobs)), rng.integers(10, 51, (agents, jobs))
    if kind in "AB":
        cheapest = cost.argmin(0)
        most = max(int(load[i][cheapest == i].sum()) for i in range(agents))
        room = np.full(agents, (0.6 * (jobs / agents) * 15 + 0.4 * most) * (1.0 if kind == "A" else 0.7))
    else:
        room = 0.8 * load.sum(1) / agents
    once = kron(np.ones((1, agents)), eye_array(jobs))
    bins = kron(eye_array(agents), np.ones((1, jobs))).multiply(load.reshape(1, -1))
    sides = np.ones(jobs), np.ones(jobs), np.full(agents, -np.inf), np.floor(room)
    return _instance(f"gap {kind} {agents}x{jobs}", cost.ravel(), once, bins, sides)


def median(places: int, medians: int, seed: int) -> Instance:
    """A capacitated p-median problem: customers in the unit square times 100, each also a place; as Ceselli's."""
    rng = np.random.default_rng(seed)
    at = rng.integers(1, 101, (places, 2))
    distance = np.floor(np.sqrt(((at[:, None] - at[None]) ** 2).sum(-1)))
    need = rng.integers(1, 21, places).astype(float)
    room = float(max(need.max(), np.ceil(need.sum() / (0.8 * medians))))
    # Variables of a place: its customers, then whether it is open.
    cost = np.concatenate([distance, np.zeros((places, 1))], 1).ravel()
    once = kron(np.ones((1, places)), eye_array(places + 1))
    bins = kron(eye_array(places), np.append(need, -room)[None])
    once_each = np.append(np.ones(places), medians)
    sides = once_each, once_each, np.full(places, -np.inf), np.zeros(places)
    return _instance(f"p-median {places}/{medians} {seed}", cost, once, bins, sides)


def packing(items: int, room: int, bins: int, seed: int) -> Instance:
    """Bin packing of items between 20 and 100."""
    size = np.sort(np.random.default_rng(seed).integers(20, 101, items))[::-1].astype(float)
    cost = np.tile(np.append(np.zeros(items), 1.0), bins)
    once = kron(np.ones((1, bins)), eye_array(items, items + 1))
    own = kron(eye_array(bins), np.append(size, -room)[None])
    sides = np.ones(items), np.full(items, np.inf), np.full(bins, -np.inf), np.zeros(bins)
    return _instance(f"bin packing {items} in {room}", cost, once, own, sides)


def _instance(name: str, cost: Array, once: Any, bins: Any, sides: tuple[Array, Array, Array, Array]) -> Instance:
    """Rows between blocks, then those of blocks, over bits."""
    from scipy.sparse import vstack

    rows = csr_array(vstack([once, bins], format="csr"))
    lower, upper = np.append(sides[0], sides[2]), np.append(sides[1], sides[3])
    bounds = np.zeros(len(cost)), np.ones(len(cost))
    program = LinearProgram(cost.astype(float), rows, lower, upper, *bounds)
    return Instance(name, program, np.arange(once.shape[0], len(lower)))


def of_file(path: Path) -> Instance | None:
    """An integer program of a file, whose rows of several weights are knapsacks; None if there are no such rows.

    Bounds that rows of nonnegative entries imply are stated, since blocks need finite ones.
    """
    import highspy

    highs = quiet_highs()
    highs.readModel(str(path))
    lp = highs.getLp()
    program = program_of(lp)
    kinds = list(lp.integrality_)
    if not kinds or any(kind != highspy.HighsVarType.kInteger for kind in kinds):
        return None
    rows, upper = csr_array(program.A), program.upper.copy()
    rows.sort_indices()
    used, blocks = np.zeros(len(program.c), dtype=bool), []
    for i in range(rows.shape[0]):
        part = slice(rows.indptr[i], rows.indptr[i + 1])
        entry, column = rows.data[part], rows.indices[part]
        if (entry > 0).all() and (program.lower[column] >= 0).all() and np.isfinite(program.row_upper[i]):
            upper[column] = np.minimum(upper[column], np.floor(program.row_upper[i] / entry + 1e-9))
        if len(np.unique(np.abs(entry))) > 1 and not used[column].any():
            blocks.append(i)
            used[column] = True
    if not blocks or not np.isfinite(upper).all():
        return None
    stated = LinearProgram(**{**vars(program), "upper": upper})
    return Instance(path.name.split(".")[0], stated, np.array(blocks))
