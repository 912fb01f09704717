r"""The Planet relaxation of a network, solved exactly by an LP code: the truth for bounds, and multipliers for leaves.

A ReLU with pre-activation bounds :math:`l < 0 < u` becomes two columns, :math:`x` and :math:`p = x - z`, the relaxed positive
and negative part of :math:`z`.  With them the triangle (Ehlers 2017) is

.. math:: x \ge 0, \quad p \ge 0, \quad -l\, x + u\, p \le -l u

and :math:`l \le z \le u` follows.  Affine results are substituted: the only wide rows are :math:`x - p = z`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError, needed
from blocklp.general_solvers.linear_program import Array, LinearProgram, loaded_highs
from blocklp.general_solvers.solvers import Answer, lp_solver
from blocklp.oracles.curves import BESIDE_ZERO
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operation_matrices import array_of, sparse_matrix
from blocklp.problems.verification.operations import Add, Affine, Input, Relu, SmoothActivation

Algorithm = Literal["simplex", "ipm"]

UNBOUNDED = 1e30
"""Infinite for HiGHS."""

STATED = 5e6
"""Coefficients of operations that become sparse matrices in a second."""


class Optimum(NamedTuple):
    """Answer of :meth:`PlanetLP.minimise`.

    Attributes
    ----------
    value : float
        Optimal value, within the tolerance 1e-9 of the solver and not certified; ``inf`` if infeasible, NaN if it gave up.
    x : ndarray
        ``(inputs,)`` float64: the input at the optimum; NaN where there is none.
    status : str
        ``"optimal"``, ``"infeasible"`` or what else the solver said (``"time limit reached"``).
    """

    value: float
    x: Array
    status: str


class PlanetLP:
    """The LP of one node; made by :func:`planet_lp`.

    Attributes
    ----------
    rows, columns : int
        Size of the LP.
    """

    def __init__(self, stated: _Stated, solve: Callable[[Array], Answer]) -> None:
        self._stated, self._solve = stated, solve
        self.rows, self.columns = stated.program.A.shape

    def linear_program(self, c: Tensor | Array) -> LinearProgram:
        """The LP that :meth:`minimise` solves, whose variables have bounds, for other solvers.

        Parameters
        ----------
        c : Tensor or ndarray
            As there.
        """
        own = _flat(c, len(self._stated.shift), "the objective")
        return replace(self._stated.program, c=self._stated.matrix.T @ own, offset=float(own @ self._stated.shift))

    def minimise(self, c: Tensor | Array) -> Optimum:
        """Minimise ``<c, result of the node>``; the simplex method continues from the last basis.

        Parameters
        ----------
        c : Tensor or ndarray
            The node's shape, or flat; finite.

        Raises
        ------
        ShapeError, NonFiniteError
            If ``c`` does not fit or is not finite.
        """
        matrix, shift, inputs = self._stated.matrix, self._stated.shift, self._stated.inputs
        c = _flat(c, len(shift), "the objective")
        costs = matrix.T @ c
        status, point = self._solve(costs)
        if point is not None:
            return Optimum(float(costs @ point + c @ shift), point[:inputs], status)
        return Optimum(math.inf if status == "infeasible" else math.nan, np.full(inputs, np.nan), status)

    def maximise(self, c: Tensor | Array) -> Optimum:
        """Maximise, as :meth:`minimise`; the value is ``-inf`` if infeasible."""
        found = self.minimise(-_flat(c, len(self._stated.shift), "the objective"))
        return found._replace(value=-found.value)


def planet_lp(
    network: Network,
    lower: Tensor | Array,
    upper: Tensor | Array,
    bounds: Mapping[int, tuple[Tensor, Tensor]],
    node: int,
    *,
    boxes: bool | Collection[int] = False,
    solver: str = "highs",
    algorithm: Algorithm = "simplex",
    time_limit: float | Deadline = math.inf,
) -> PlanetLP:
    """State the Planet LP of everything that a node depends on.

    Parameters
    ----------
    network : Network
        The network.
    lower, upper : Tensor or ndarray
        Box of the input: the input's shape, or flat.
    bounds : mapping
        Position of every ReLU before ``node`` to its pre-activation bounds ``(l, u)``, the ReLU's shape, l <= u.
    node : int
        Position of the operation whose result is optimised.
    boxes : bool or collection of int
        ReLUs (True: all) of which every neuron is held in l <= z <= u.  That matters where neurons were split; elsewhere it
        changes nothing, and rounding may make the LP infeasible.
    solver : str
        One of :func:`blocklp.reference`.  All but "highs" start every objective afresh.
    algorithm : {"simplex", "ipm"}
        The method of "highs"; "ipm" starts every objective afresh, and crosses over to a vertex.
    time_limit : float or Deadline
        Seconds of "highs" for one objective; a deadline is one of all together, stating the LP included.

    Raises
    ------
    ModelError
        If bounds are missing or crossed, or the node depends on smooth activations; its subclasses ``ShapeError`` and
        ``NonFiniteError`` if they do not fit.
    OptionError
        If the solver or the algorithm is unknown, the time limit is not positive, or these two are given for another solver.
    MissingDependencyError
        If highspy is not installed; packages of other solvers are missed when they run.
    TimeLimitError
        If the deadline comes before the LP is stated.
    NonFiniteError
        Also if its coefficients are not finite.
    """
    if algorithm not in ("simplex", "ipm"):
        raise OptionError(f"unknown algorithm {algorithm!r}; choose 'simplex' or 'ipm'")
    deadline = time_limit if isinstance(time_limit, Deadline) else Deadline()
    if solver == "highs":
        if time_limit is not deadline:
            Deadline.of(time_limit)  # refuses what is not positive
        stated = _state(network, lower, upper, bounds, node, boxes, deadline)
        return PlanetLP(stated, _Highs(stated.program, algorithm, time_limit))
    if algorithm != "simplex" or time_limit not in (deadline, math.inf):
        raise OptionError(f"solver {solver!r} takes no algorithm and no time limit")
    solve, stated = lp_solver(solver), _state(network, lower, upper, bounds, node, boxes, deadline)

    def answer(costs: Array) -> Answer:
        return ("time limit reached", None) if deadline.over() else solve(replace(stated.program, c=costs))

    return PlanetLP(stated, answer)


def exact_bounds(
    network: Network,
    lower: Tensor | Array,
    upper: Tensor | Array,
    bounds: Mapping[int, tuple[Tensor, Tensor]],
    node: int,
    neurons: Sequence[int],
    **options: Any,
) -> tuple[Array, Array]:
    """Least and greatest values in the Planet relaxation of some neurons of ``node``, within the solver's tolerance.

    Parameters
    ----------
    network, lower, upper, bounds, node
        As in :func:`planet_lp`, which also states what is raised.
    neurons : sequence of int
        Flat positions in the node's result.
    **options
        Those of :func:`planet_lp`.

    Returns
    -------
    tuple of ndarray
        ``(len(neurons),)`` float64 each; ``inf`` and ``-inf`` if the LP is infeasible, NaN where the solver gave up.
    """
    lp, size = planet_lp(network, lower, upper, bounds, node, **options), math.prod(network.ops[node].shape)
    if any(not 0 <= j < size for j in neurons):
        raise ShapeError(f"{network.ops[node].name} has the neurons 0 to {size - 1}; {list(neurons)} go beyond")
    ends, cost = np.empty((2, len(neurons))), np.zeros(size)
    for row, j in enumerate(neurons):
        cost[j] = 1
        ends[:, row] = lp.minimise(cost).value, lp.maximise(cost).value
        cost[j] = 0
    return ends[0], ends[1]


class LeafResult(NamedTuple):
    """Answer of :func:`solve_leaf`.

    Attributes
    ----------
    optimum : Optimum
        As :meth:`PlanetLP.minimise` gives it.
    mix : ndarray
        ``(results,)`` float64: weights of at least zero, of sum 1, with which a mix of the results is as large everywhere;
        zeros where there is no optimum.
    betas : dict or None
        Position of every ReLU to multipliers ``(neurons,)`` of its signs, positive for z >= 0 and negative for z <= 0: those of
        the optimum or, if there is none because the signs contradict each other, a direction in which the dual grows without
        end.  None if the solver gave up.
    """

    optimum: Optimum
    mix: Array
    betas: dict[int, Array] | None


def solve_leaf(
    network: Network,
    lower: Tensor | Array,
    upper: Tensor | Array,
    on: Mapping[int, Tensor],
    node: int,
    chosen: Tensor,
    time_limit: float | Deadline = math.inf,
    beside: float = BESIDE_ZERO,
) -> LeafResult:
    """Minimise the greatest of some results of ``node`` where all signs are known, so that the network is affine.

    The only constraints of this LP are the box and the signs, z >= 0 or z <= 0, or z = 0 before a sign.  HiGHS's multipliers
    are no proof, but what :meth:`Relaxation.backward` makes of them is: the optimum, but for rounding and tolerances.

    Parameters
    ----------
    network, lower, upper, node, time_limit
        As in :func:`planet_lp`, which also states what is raised.
    on : mapping
        Position of every ReLU before ``node`` to a mask, the ReLU's shape: whether z >= 0.  Of a sign to its values.
    chosen : Tensor
        ``(results,)`` bool, not all False: which of them.
    beside : float
        Least magnitude of arguments of signs of -1 and 1.
    """
    signs = {}
    for r, mask in on.items():
        sign, least = (2.0 * mask - 1, 0.0) if mask.dtype == torch.bool else (mask, beside)
        signs[r] = torch.where(sign > 0, least, UNBOUNDED * sign), torch.where(sign < 0, -least, UNBOUNDED * sign)
    deadline = time_limit if isinstance(time_limit, Deadline) else Deadline()
    stated = _state(network, lower, upper, signs, node, True, deadline)
    rows, plain = chosen.nonzero()[:, 0].numpy(), stated.program
    below = np.full(len(rows), -math.inf)
    # The last column is above all of them.
    program = LinearProgram(
        np.append(plain.c, 1.0),
        sp.csr_array(sp.block_array([[plain.A, None], [stated.matrix[rows], np.full((len(rows), 1), -1.0)]])),
        np.append(plain.row_lower, below),
        np.append(plain.row_upper, -stated.shift[rows]),
        np.append(plain.lower, -math.inf),
        np.append(plain.upper, math.inf),
    )
    highs = _Highs(program, "simplex", time_limit)
    status, point = highs(program.c)
    value = math.inf if status == "infeasible" else math.nan
    found = Optimum(value, np.full(stated.inputs, np.nan), status)
    mix = np.zeros(len(chosen))
    prices = highs.prices(status)
    if prices is None:
        return LeafResult(found, mix, None)
    columns, multipliers = prices
    if point is not None:
        found = Optimum(float(point[-1]), point[: stated.inputs], status)
        mix[rows] = -multipliers[-len(rows) :].clip(max=0)
    betas = {}
    for r, first in stated.columns.items():
        # One of the two is fixed to zero, and in no row; both before a sign that is zero.
        x, p = columns[first : first + 2 * on[r].numel()].clip(min=0).reshape(2, -1)
        betas[r] = x - p
    return LeafResult(found, mix, betas)


@dataclass(frozen=True)
class _Stated:
    """An LP without an objective; the node's result is ``matrix @ columns + shift``.

    The first ``inputs`` columns are the input.  Columns of a ReLU, by its position: x from ``columns``, and then p.
    """

    program: LinearProgram
    matrix: sp.csr_array
    shift: Array
    inputs: int
    columns: Mapping[int, int]


def _state(
    network: Network,
    lower: Tensor | Array,
    upper: Tensor | Array,
    bounds: Mapping[int, tuple[Tensor, Tensor]],
    node: int,
    boxes: bool | Collection[int],
    deadline: Deadline,
) -> _Stated:
    if not 0 <= node < len(network.ops):
        raise ModelError(f"{network.name} has {len(network.ops)} results, and no number {node}")
    wanted = network.ancestors(node)
    relus = [at for at in wanted if isinstance(network.ops[at], (Relu, SmoothActivation))]
    sizes = [network.inputs] + [math.prod(network.ops[at].shape) for at in relus for _ in range(2)]
    starts = list(itertools.accumulate(sizes, initial=0))
    total = starts[-1]
    low, high = np.zeros(total), np.zeros(total)
    low[: sizes[0]], high[: sizes[0]] = _box(lower, upper, sizes[0], "the input")
    rows = [(sp.csr_array((0, total)), np.zeros(0), np.zeros(0))]
    found: dict[int, tuple[sp.csr_array, Array]] = {}  # every result as an affine map of the columns
    for at in wanted:
        op = network.ops[at]
        if isinstance(op, Input):
            found[at] = _columns(np.arange(sizes[0]), np.ones(sizes[0]), total), np.zeros(sizes[0])
            continue
        if isinstance(op, SmoothActivation) and not op.curve.jumps:
            raise ModelError(f"{op.name}: the hull of {op.curve.name} is no polytope; LPs are of piecewise-linear networks")
        deadline.check(f"stating the LP of {op.name}", op.products / STATED)
        matrix, shift = found[op.inputs[0]]
        if isinstance(op, Add):
            other = found[op.inputs[1]]
            found[at] = matrix + other[0], shift + other[1]
        elif isinstance(op, Affine):
            linear, own = sparse_matrix(op), np.broadcast_to(array_of(op.shift()), (1, *op.shape)).reshape(-1)
            found[at] = linear @ matrix, linear @ shift + own
        else:
            if at not in bounds:
                raise ModelError(f"{network.name}: no pre-activation bounds for {op.name}, operation {at}")
            least, most = _box(*bounds[at], len(shift), f"the bounds of {op.name}")
            boxed, signed = boxes if isinstance(boxes, bool) else at in boxes, isinstance(op, SmoothActivation)
            fixed = (least == 0) & (most == 0) & signed
            if signed and not bool(((least > 0) | (most < 0) | fixed).all()):
                raise ModelError(f"{op.name}: an LP has no sign that is not known; split it")
            x = starts[2 * relus.index(at) + 1] + np.arange(len(least))
            p = x + len(least)
            on, off = (least >= 0) & ~fixed, (most <= 0) & (least < 0)
            split = np.flatnonzero(~on & ~off & ~fixed)
            low[x], high[x] = np.where(on, least if boxed else -math.inf, 0), np.where(on & (not boxed), math.inf, most.clip(0))
            low[p], high[p] = np.where(off, -most, 0), np.where(on, 0, -least)
            positive = _columns(x, ~off, total)
            stated = ~off | boxed
            rows.append(((positive - _columns(p, ~on, total) - matrix)[stated], shift[stated], shift[stated]))
            # Scaled by the larger coefficient: HiGHS drops one below 1e-9, which then only loosens the LP, by as much.
            small, large = least[split], most[split]
            scale = np.maximum(-small, large)
            triangle = _columns(x[split], -small / scale, total) + _columns(p[split], large / scale, total)
            rows.append((triangle, np.full(len(split), -math.inf), -small * (large / scale)))
            found[at] = (0 * positive, np.sign(least + most)) if signed else (positive, np.zeros(len(least)))
    parts = list(zip(*rows, strict=True))
    table = sp.csr_array(sp.vstack(parts[0]))
    lows, highs = np.concatenate(parts[1]), np.concatenate(parts[2])
    matrix, shift = found[node]
    if not all(np.isfinite(part).all() for part in (table.data, lows[lows > -math.inf], highs, matrix.data, shift)):
        raise NonFiniteError(f"{network.name}: coefficients of the LP leave the range of float64; rescale the network")
    program = LinearProgram(np.zeros(total), table, lows, highs, low, high)
    return _Stated(program, matrix, shift, sizes[0], dict(zip(relus, starts[1::2], strict=False)))


class _Highs:
    """HiGHS on one LP with different costs: it continues from the last basis; it gives up on coefficients above 1e15."""

    def __init__(self, program: LinearProgram, algorithm: Algorithm, time_limit: float | Deadline) -> None:
        _highspy()
        self._program, self._time_limit = program, time_limit
        # The dual simplex method even though a change of costs leaves a basis primal feasible: the primal one, measured on
        # networks of MNIST and CIFAR-10, took up to six times longer and at times gave up.
        self._highs = loaded_highs(program, solver=algorithm, simplex_strategy=1)

    def __call__(self, costs: Array) -> Answer:
        import highspy

        self._highs.changeColsCost(len(costs), np.arange(len(costs), dtype=np.int32), costs)
        status = self._run()
        if status == highspy.HighsModelStatus.kUnknown:
            # Seldom, a basis of the last objective is too ill-conditioned to continue from.
            self._highs.clearSolver()
            status = self._run()
        if status == highspy.HighsModelStatus.kOptimal:
            return "optimal", np.array(self._highs.getSolution().col_value)
        # The input is bounded and everything else follows from it.
        empty = (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
        return ("infeasible" if status in empty else self._highs.modelStatusToString(status).lower()), None

    def _run(self) -> Any:
        # HiGHS counts the seconds of all runs of a model.
        seconds = self._time_limit.left() if isinstance(self._time_limit, Deadline) else self._time_limit
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + seconds)
        self._highs.run()
        return self._highs.getModelStatus()

    def prices(self, status: str) -> tuple[Array, Array] | None:
        """Reduced costs and multipliers of rows: at the optimum, or of a ray that proves infeasibility; None without one."""
        if status == "optimal":
            found = self._highs.getSolution()
            return np.array(found.col_dual), np.array(found.row_dual)
        _, there, ray = self._highs.getDualRay() if status == "infeasible" else (None, False, None)
        return (-(self._program.A.T @ np.asarray(ray)), np.asarray(ray)) if there else None


def _highspy() -> Any:
    with needed("exact LPs of networks need the package highspy", "highs"):
        import highspy
    return highspy


def _flat(given: Tensor | Array, size: int, what: str) -> Array:
    flat = (array_of(given) if isinstance(given, Tensor) else np.asarray(given, dtype=np.float64)).reshape(-1)
    if len(flat) != size:
        raise ShapeError(f"{what}: {len(flat)} numbers where {size} are needed")
    if not np.isfinite(flat).all():
        raise NonFiniteError(f"{what}: NaN or infinite numbers")
    return flat


def _box(lower: Tensor | Array, upper: Tensor | Array, size: int, what: str) -> tuple[Array, Array]:
    low, high = _flat(lower, size, what), _flat(upper, size, what)
    if (crossed := np.flatnonzero(low > high)).size:
        at = crossed[0]
        raise ModelError(f"{what}: the lower bound {low[at]} of number {at} is above the upper bound {high[at]}")
    return low, high


def _columns(index: NDArray[Any], value: NDArray[Any], total: int) -> sp.csr_array:
    """A row for every index, with that value in that column if it is not zero."""
    there = value != 0
    entries = value[there].astype(np.float64), index[there], np.concatenate([[0], there.cumsum()])
    return sp.csr_array(entries, (len(index), total))
