r"""Verified persistency: which variables can be fixed without losing the minimum, proved in integer arithmetic.

Take a set F of variables with labels x in {0, 1}^F.  Let y be any labelling and let t_i = 1 where y_i differs from x_i
(i in F), so that y_i = x_i + s_i t_i with s_i = 1 - 2 x_i.  Writing c for ``linear`` and p for ``quadratic``,

    E(y) - E(y with x on F) = sum_{i in F} s_i (c_i + sum_{j in F} p_ij x_j + sum_{j not in F} p_ij y_j) t_i
                              + sum_{ij in F} s_i s_j p_ij t_i t_j.

Replace each term of an edge that leaves F by its worst case over y_j in {0, 1}, and drop the products t_i t_j with a
positive coefficient.  What remains does not depend on y outside F and is a lower bound:

    h(t) = sum_{i in F} a_i t_i - sum_{ij in F} d_ij t_i t_j,       d_ij = max(0, -s_i s_j p_ij),
    a_i  = s_i c_i + sum_{j in F} s_i p_ij x_j + sum_{j not in F} min(0, s_i p_ij).

*Weak persistency.*  If h >= 0, replacing y by x on F never raises E, so some minimiser has the labels x.
*Strong persistency.*  If h(t) >= eps sum_i t_i with eps > 0, it lowers E unless y agrees with x on F already, so every
minimiser has the labels x.

*Certificate.*  If each d_ij is split into shares d_ij = f_ij + f_ji >= 0 such that sum_j f_ij <= a_i for every i in F,
then h(t) >= 0, because t_i t_j <= t_i and t_i t_j <= t_j.  The shares are a flow: source -> pair ij (capacity d_ij),
pair -> i and pair -> j, i -> sink (capacity a_i), where every arc from the source is saturated.  By max-flow min-cut
they exist if and only if h >= 0.  For strong persistency each a_i is lessened by eps.

*Search.*  If a_i < 0, or if i is reachable from the source in the residual graph of a maximum flow, i leaves F and the
test is repeated.  Let S be the smallest minimiser of h on F; those are exactly the nodes of S.  No certified part F' of
F with the same labels is lost: h(S) - h(S without F') is a worst case that F' has already passed, hence not negative,
so the smaller set S without F' is a minimiser too and must be S.  The result is therefore the largest certified subset
of the candidates, whatever they are.  Started from the labels of an optimal half-integral point of the roof dual, it
keeps them all: the optimal dual splits E into terms that are each smallest at x.

*Rounding.*  Coefficients are scaled by a power of two and each is enclosed between its floor and its ceiling, which is
exact in float64.  a_i is summed in int64 from the ends that make it smaller and d_ij from the end that makes it larger,
so a certificate holds for E exactly as stated by its float64 coefficients.  The flow runs in int32: if need be,
capacities are divided by a power of two, those at the source rounded up and those at the sink rounded down.  Integer
data whose scaled capacities fit lose nothing.

References: E. Boros, P. L. Hammer, Pseudo-Boolean optimization, Discrete Applied Mathematics 123 (2002) (autarkies,
roof duality); A. Shekhovtsov, Maximum persistency in energy minimization, CVPR 2014 (improving mappings).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklp.deadline import Deadline
from blocklp.errors import NonFiniteError, ShapeError
from blocklp.problems.discrete.minimum_cut import minimum_cut
from blocklp.problems.qpbo.arrays import FloatArray, IntArray, first_true
from blocklp.problems.qpbo.instance import Qubo

PER_TERM = 1e-5
"""Seconds for each variable and pair of a function that maximum flows take, at most in what was measured."""

BoolArray = NDArray[np.bool_]
LabelArray = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Persistency:
    """Proved labels of some or all minimisers.

    Parameters
    ----------
    weak : numpy.ndarray, shape (n,), int8
        0 or 1 where fixed, -1 elsewhere; some minimiser has all these labels at once.
    strong : numpy.ndarray, shape (n,), int8
        The part of ``weak`` that every minimiser has.
    """

    weak: LabelArray
    strong: LabelArray


@dataclass(frozen=True)
class _Instances:
    """Functions side by side, scaled by powers of two: ``low <= coefficient * 2^k <= high``.

    ``edges`` (m, 2) name the variables of all of them, ``owner`` (n,) says which function a variable belongs to.
    """

    edges: IntArray
    owner: IntArray
    linear_low: IntArray
    linear_high: IntArray
    quadratic_low: IntArray
    quadratic_high: IntArray


def verified_persistency(qubo: Qubo, y: ArrayLike) -> Persistency:
    """Fix the variables whose labels, as suggested by a point, can be proved; sound for any point.

    Candidates are ``y < 1/3`` (label 0) and ``y > 2/3`` (label 1).  The module's text states the test and its proof.

    Parameters
    ----------
    qubo : Qubo
        The function to be minimised.
    y : array_like, shape (n,)
        Typically the averaged solution of a relaxation, or the roof-dual labels with 1/2 for the unlabelled.

    Returns
    -------
    Persistency
        The largest certified subsets of the candidates, up to rounding on data that do not scale to int32.

    Raises
    ------
    ShapeError
        ``y`` has not shape (n,).
    NonFiniteError
        ``y`` has an entry that is not finite.
    """
    return verified_persistencies([qubo], [y])[0]


def verified_persistencies(qubos: Sequence[Qubo], points: Sequence[ArrayLike], together: int = 50_000) -> list[Persistency]:
    """:func:`verified_persistency` of several functions, some in one flow, each with its own scale.

    Parameters
    ----------
    qubos : sequence of Qubo
        The functions.
    points : sequence of array_like
        A point ``(n,)`` for each.
    together : int
        Pairs of functions that share a flow: fewer spend their time around it, more leave the cache.
    """
    checked = [_checked(qubo, y) for qubo, y in zip(qubos, points, strict=True)]
    pairs = np.cumsum([len(qubo.edges) for qubo in qubos])
    cuts = np.flatnonzero(np.diff(pairs // together)) + 1
    found = []
    for part in np.split(np.arange(len(qubos)), cuts):
        found += _verified([qubos[k] for k in part], [checked[k] for k in part])
    return found


def closing_time(n: int, edges: int) -> float:
    """Seconds that it takes to round a point of a function and to verify its persistencies, or about that."""
    return PER_TERM * (n + edges)


def persistency_in_time(qubos: Sequence[Qubo], points: Sequence[ArrayLike], deadline: Deadline) -> list[Persistency]:
    """:func:`verified_persistencies`, those of nothing where the deadline would not hold.

    Parameters
    ----------
    qubos : sequence of Qubo
        The functions.
    points : sequence of array_like
        A point ``(n,)`` of each relaxation.
    deadline : Deadline
        Asked once, for all of them.
    """
    if deadline.affords(PER_TERM * sum(qubo.n + len(qubo.edges) for qubo in qubos)):
        return verified_persistencies(qubos, points)
    nothing = [np.full(qubo.n, -1, dtype=np.int8) for qubo in qubos]
    return [Persistency(labels, labels) for labels in nothing]


def _verified(qubos: Sequence[Qubo], points: Sequence[FloatArray]) -> list[Persistency]:
    if not qubos:
        return []
    point, enclosures = np.concatenate(points), [_enclose(qubo) for qubo in qubos]
    sizes = np.array([qubo.n for qubo in qubos])
    ends = np.cumsum(sizes)
    instances = _Instances(
        np.concatenate([qubo.edges + first for qubo, first in zip(qubos, ends - sizes, strict=True)]),
        np.repeat(np.arange(len(qubos)), sizes),
        *(np.concatenate(part) for part in zip(*enclosures, strict=True)),
    )
    labels = (point > 2 / 3).astype(np.int8)
    weak = _largest_certified(instances, labels, (point < 1 / 3) | (point > 2 / 3), margin=0)
    strong = _largest_certified(instances, labels, weak, margin=1)
    found = (np.split(np.where(fixed, labels, np.int8(-1)), ends[:-1]) for fixed in (weak, strong))
    return [Persistency(*pair) for pair in zip(*found, strict=True)]


def _checked(qubo: Qubo, y: ArrayLike) -> FloatArray:
    point = np.asarray(y, dtype=np.float64)
    if point.shape != (qubo.n,):
        raise ShapeError(f"y has shape {point.shape}; give one value to each of the {qubo.n} variables")
    if (bad := first_true(~np.isfinite(point))) is not None:
        raise NonFiniteError(f"y[{bad}] is {point[bad]}; every entry must be finite")
    return point


def _enclose(qubo: Qubo) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Integers around the coefficients times 2^k: lower and upper ends of the linear ones, then of the quadratic ones."""
    coefficients = np.concatenate([qubo.linear, qubo.quadratic])
    # Sums in the test add each coefficient at most once; they must stay below 2^62.
    largest = 61 - int(np.frexp(np.abs(coefficients).max())[1]) - coefficients.size.bit_length()
    # If h > 0 for all t != 0, then h >= 2^-exact, which is more than n 2^-k once k exceeds exact by the bits of n: the
    # margin of one unit for each flip then costs no strong label.
    mantissa, exponent = np.frexp(coefficients)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    last_bit = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    exact = min(int((53 - last_bit - exponent)[coefficients != 0].max(initial=0)), largest)
    scaled = np.ldexp(coefficients, min(exact + qubo.n.bit_length(), largest))
    # A negative exponent may underflow to zero, yet the floor of a negative number is at most -1, and likewise above.
    low = np.where(coefficients < 0, np.minimum(np.floor(scaled), -1), np.floor(scaled)).astype(np.int64)
    high = np.where(coefficients > 0, np.maximum(np.ceil(scaled), 1), np.ceil(scaled)).astype(np.int64)
    return low[: qubo.n], high[: qubo.n], low[qubo.n :], high[qubo.n :]


def _largest_certified(instances: _Instances, labels: LabelArray, candidates: BoolArray, margin: int) -> BoolArray:
    """Shrink the candidates to the largest set with ``h(t) >= margin * sum(t)`` in scaled units."""
    inside = candidates.copy()
    low, high = instances.quadratic_low, instances.quadratic_high
    head, tail = instances.edges.T
    demand = np.maximum(0, -np.where(labels[head] == labels[tail], low, -high))

    # Each edge, seen from either end, grouped by the end ``near``: what it adds to the slack of the end ``far``.
    order = np.argsort(np.concatenate([head, tail]), kind="stable")
    near, far = np.concatenate([head, tail])[order], np.concatenate([tail, head])[order]
    signed = np.where(labels[far] == 0, np.tile(low, 2)[order], -np.tile(high, 2)[order])
    while_inside, while_outside = signed * labels[near], np.minimum(0, signed)
    slack = np.where(labels == 0, instances.linear_low, -instances.linear_high) - margin
    np.add.at(slack, far, np.where(inside[near], while_inside, while_outside))
    degree = np.bincount(near, minlength=len(labels))
    first = np.cumsum(degree) - degree

    leaving = np.flatnonzero(inside & (slack < 0))
    undecided = np.ones(instances.owner[-1] + 1, dtype=bool)
    while True:
        while leaving.size:
            inside[leaving] = False
            count = degree[leaving]
            entries = np.arange(count.sum()) + np.repeat(first[leaving] - np.cumsum(count) + count, count)
            np.add.at(slack, far[entries], while_outside[entries] - while_inside[entries])
            touched = np.unique(far[entries])
            leaving = touched[inside[touched] & (slack[touched] < 0)]
        pairs = np.flatnonzero(inside[head] & inside[tail] & (demand > 0) & undecided[instances.owner[head]])
        leaving = _overcharged(instances.edges[pairs], demand[pairs], slack, instances.owner)
        if not leaving.size:
            return inside
        undecided[:] = False
        undecided[instances.owner[leaving]] = True


def _overcharged(pairs: IntArray, demand: IntArray, slack: IntArray, owner: IntArray) -> IntArray:
    """Return the nodes reachable from the source once a maximum flow has charged the demands to the slacks.

    Nodes are the ``slack.size`` variables, then one for each pair, then source and sink.
    """
    if not len(pairs):
        return np.zeros(0, dtype=np.int64)
    nodes, place = np.unique(pairs, return_inverse=True)
    place = place.reshape(pairs.shape)
    largest = np.zeros(owner[-1] + 1, dtype=np.int64)
    np.maximum.at(largest, owner[nodes], np.minimum(slack[nodes], _charges(place, demand)))
    np.maximum.at(largest, owner[pairs[:, 0]], demand)
    # Capacities of each function are divided so that they fit into int32; frexp may count a bit too many, which is safe.
    shift = np.maximum(0, np.frexp(largest.astype(np.float64))[1] - 30).astype(np.int64)
    at_pairs, at_nodes = shift[owner[pairs[:, 0]]], shift[owner[nodes]]
    supply = -(-demand >> at_pairs)
    # A sink arc need not hold more than all that its node can be charged, which keeps it in int32.
    room = np.minimum(slack[nodes] >> at_nodes, _charges(place, supply))
    position = slack.size + np.arange(len(pairs))
    source = slack.size + len(pairs)
    sink = source + 1
    row = np.concatenate([np.full(len(pairs), source), position, position, nodes])
    column = np.concatenate([position, pairs[:, 0], pairs[:, 1], np.full(len(nodes), sink)])
    _, reached = minimum_cut(sink + 1, row, column, np.concatenate([supply, supply, supply, room]))
    return np.flatnonzero(reached[: slack.size])


def _charges(place: IntArray, amount: IntArray) -> IntArray:
    """Add up what each node is charged if every pair charges its amount to both of its nodes."""
    total = np.zeros(place.max() + 1, dtype=np.int64)
    np.add.at(total, place, amount[:, None])
    return total
