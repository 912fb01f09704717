r"""Proofs about networks, checked in integers and without the verifier; docs/verification.md has their format.

A part of a proof is a region, bounds of all results there, and clauses.  A step splits it, improves bounds, or closes it because a
mix of a clause's rows is above zero.  Both rest on one bound, for any multipliers :math:`\rho` of results z before ReLUs, where
:math:`\mu` is what later operations charge for x, the result after one, between max(z, 0) and the line above it (Ehlers 2017):

.. math:: \langle c, y \rangle \ge \sum \text{biases} + \min_{x_0} \langle \mu_0, x_0 \rangle
          + \sum_j \min_{l_j \le z_j \le u_j} \bigl(\mu_j x_j - \rho_j z_j\bigr)

The proof gives slopes from 0 to 1, :math:`\rho / \mu`, and where signs are known what is subtracted (Wang et al. 2021).  Multipliers
are integers times a power of two, for which the bound is exact; what is cut off a cost is paid for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from blocklp.errors import FormatError
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operation_matrices import array_of, sparse_matrix
from blocklp.problems.verification.operations import Add, Affine, Relu
from blocklp.problems.verification.properties import Clause, Property

BITS, UNIT, ONE = 29, 2**11, 2**16 - 1
"""Bits of multipliers and of bounds (sums of weights have 31, so that products fit into int64); sums in 2^-UNIT; the slope 1."""

Array = NDArray[Any]
Given = Mapping[str, Any]
Parts = list[tuple[Array, Array]]  # costs y * 2^-e that are added up, (results, columns) and (columns,)


class _Region(NamedTuple):
    """Clauses, and flat bounds of all results by position; none at first."""

    clauses: list[int]
    low: list[Array]
    high: list[Array]


def check_proof(network: Network, prop: Property, steps: Iterable[Given]) -> dict[str, Any]:
    """Check a proof in integers, trusting nothing that it says; return its status, and how many leaves and improved bounds it has.

    Parameters
    ----------
    network, prop, steps : Network, Property and iterable of mapping
        What it is about, and its steps, as :func:`blocklp.problems.verification.proof_files.read_proof` reads them.

    Raises
    ------
    FormatError
        It proves nothing, and the message names the step; or the network has smooth activations, or the property a ball.
    """
    if len(network.activations) > len(network.relus) or any(clause.ball is not None for clause in prop.clauses):
        raise FormatError(f"{network.name} has smooth activations, or the property a ball; proofs are of ReLUs and boxes")
    if network.head is not None:
        network.head.check(prop)
    checker, count = _Checker(network, prop), 0
    try:
        for count, step in enumerate(steps, 1):
            if not checker.open:
                raise FormatError(f"the proof has ended at step {count - 1}")
            checker.open += reversed(checker.parts(checker.open.pop(), step))
        if checker.open:
            raise FormatError(f"the proof ends, and parts of it are open: {len(checker.open)}")
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise FormatError(f"step {count}: {'' if isinstance(error, FormatError) else 'malformed: '}{error}") from error
    return {"status": checker.status, "leaves": checker.leaves, "bounds": checker.bounds}


class _Checker:
    def __init__(self, network: Network, prop: Property) -> None:
        self.ops, self.clauses, self.status, self.leaves, self.bounds = network.ops, prop.clauses, "unsat", 0, 0
        self.before = {0: 0} | {at: op.inputs[0] for at, op in enumerate(self.ops) if isinstance(op, Relu)}
        self.maps = {at: _Map(op) for at, op in enumerate(self.ops) if isinstance(op, Affine)}
        self.open = [_Region(list(range(len(self.clauses))), [], [])]

    def parts(self, region: _Region, step: Given) -> list[_Region]:
        """What is left to prove of a part after a step."""
        match dict(step):
            case {"counterexample": point} if not region.low and np.isfinite(point).all():
                self.status = self.counterexample(np.array([float(value) for value in point]))
            case {"clauses": groups} if sorted({c for group in groups for c in group}) == region.clauses and all(groups):
                return [region._replace(clauses=sorted(group)) if region.low else self.box(sorted(group)) for group in groups]
            case {"split": [relu, neuron, value]} if region.low and type(neuron) is int and relu * value == 0:
                return [self.within(region, self.before[relu], neuron, *ends) for ends in ((value, np.inf), (-np.inf, value))]
            case {"bounds": given} if region.low:
                for start, relu in itertools.pairwise([1, *given["relus"]]):
                    region = self.bounded(self.forward(region, start, relu), self.before[relu], given)
                return [self.forward(region, max([1, *given["relus"]]))]
            case {"leaf": given} if region.low and len(region.clauses) == 1:
                self.leaf(region, self.clauses[region.clauses[0]], given)
            case {"empty": [relu, neuron]} if region.low and region.low[at := self.before[relu]][neuron] > region.high[at][neuron]:
                pass
            case _:
                raise FormatError(f"{str(step)[:80]} is no step of this part, or does not close it")
        self.leaves += 1
        return []

    def box(self, group: list[int]) -> _Region:
        """The box of some clauses, which must be the same."""
        if len({(self.clauses[c].lower.tobytes(), self.clauses[c].upper.tobytes()) for c in group}) > 1:
            raise FormatError(f"the clauses {group} have different boxes")
        rest, clause = [np.full(math.prod(op.shape), np.inf) for op in self.ops[1:]], self.clauses[group[0]]
        return self.forward(_Region(group, [clause.lower, *(-r for r in rest)], [clause.upper, *rest]), 1)

    def within(self, region: _Region, at: int, some: Any, least: Any, most: Any) -> _Region:
        """The region with further bounds of some neurons of a result."""
        low, high = ([*ends[:at], ends[at].copy(), *ends[at + 1 :]] for ends in (region.low, region.high))
        low[at][some], high[at][some] = np.maximum(low[at][some], least), np.minimum(high[at][some], most)
        return _Region(region.clauses, low, high)

    def forward(self, region: _Region, start: int, stop: int | None = None) -> _Region:
        """Intervals of the results from a position on, and up to another one, within the bounds that are there."""
        for at, op in enumerate(self.ops[start:stop], start):
            ends = [(region.low[i], region.high[i]) for i in op.inputs]
            if isinstance(op, Relu):
                low, high = (end.clip(min=0) for end in ends[0])
            elif isinstance(op, Add):
                low, high = (np.nextafter(one + other, end) for one, other, end in zip(*ends, (-np.inf, np.inf), strict=True))
            else:
                low, high = self.maps[at].interval(*ends[0])
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                raise FormatError(f"results of {op.name} leave the range of float64; rescale the network")
            region = self.within(region, at, slice(None), low, high)
        return region

    def bounded(self, region: _Region, at: int, given: Given) -> _Region:
        """Improve the bounds of some neurons before a ReLU, by default of all that may have either sign."""
        neurons = np.array(given.get("neurons", ((region.low[at] < 0) & (region.high[at] > 0)).nonzero()), np.int64).reshape(-1)
        count, columns = len(neurons), np.arange(2 * len(neurons))
        cost = np.zeros((len(region.low[at]), 2 * count), dtype=np.int64)
        cost[np.tile(neurons, 2), columns] = np.where(columns < count, 1, -1)
        found = _below(self.backward(region, at, [(cost, 0 * columns)], given), UNIT)
        self.bounds += count
        return self.within(region, at, neurons, found[:count], -found[count:])

    def leaf(self, region: _Region, clause: Clause, given: Given) -> None:
        """Raise unless a mix of the rows of a clause is above its right-hand side everywhere."""
        mix, rows, cost = given.get("mix", [1]), clause.rows(), np.zeros((len(region.low[-1]) + 1, 1), dtype=object)
        if len(mix) != len(rows) or not all(type(weight) is int and 0 <= weight for weight in mix):
            raise FormatError(f"the mix {mix} is not one integer of at least zero for each of {len(rows)} rows")
        scale = math.lcm(*(c.denominator for row in rows for c in (*row.terms.values(), row.right)))
        for weight, row in zip(mix, rows, strict=True):
            for j, value in (*row.terms.items(), (-1, -row.right)):
                cost[j] += int(weight * value * scale)
        parts = [(y, np.array([-first])) for y, first in _split(cost[:-1])]
        # Multipliers are those of the mix of the rows as they are stated.
        betas = {at: [some, np.array(values, dtype=float) * scale] for at, [some, values] in given.get("betas", {}).items()}
        given = {**given, "betas": betas}
        if not (total := self.backward(region, len(self.ops) - 1, parts, given)[0] + (cost[-1, 0] << UNIT)) > 0:
            raise FormatError(f"the bound of the leaf is {total / (max(sum(mix), 1) * scale << UNIT)}, not above zero")

    def backward(self, region: _Region, node: int, cost: Parts, given: Given) -> Array:
        """Lower bounds of costs of a result, column by column, in units of 2^-UNIT."""
        pending, total = {node: cost}, np.zeros(len(cost[0][1]), dtype=object)
        while pending:
            at = max(pending)
            y, e = _merged(pending.pop(at), region.low[at], total)
            parts = self.maps[at].adjoint(y, e, total) if at in self.maps else [(y, e)]
            if isinstance(self.ops[at], Relu):
                parts = self.relu(region, at, y, e, total, given)
            for source in self.ops[at].inputs:
                pending[source] = pending.get(source, []) + parts
        (low, high), f = _integers(np.stack([region.low[0], region.high[0]]))
        j, column = y.nonzero()
        weight = y[j, column].astype(object)
        np.add.at(total, column, np.where(weight > 0, low[j], high[j]) * weight << (UNIT - f - e[column]).astype(object))
        return total

    def relu(self, region: _Region, at: int, y: Array, e: Array, total: Array, given: Given) -> Parts:
        """Multipliers of the result before a ReLU, for costs of that after it."""
        low, high = (ends[self.before[at]] for ends in (region.low, region.high))
        free, text = (low < 0) & (high > 0), given.get("slopes", {}).get(str(at))
        f = BITS - int(_bits(np.concatenate([low[free], high[free]])))
        a, b, mu, rho = _floor(low[free], f)[:, None], -_floor(-high[free], f)[:, None], y[free], np.where(low[:, None] >= 0, y, 0)
        slopes = np.where(b > -a, ONE, 0)
        if text is not None:
            slopes = np.frombuffer(bytes.fromhex(text), ">u2").astype(np.int64).reshape(-1, len(y)).T[free]
        rho[free] = r = np.where(mu > 0, mu * slopes // ONE, mu * b // (b - a))
        # The least at the corners (l, 0), (0, 0) and (u, u); where the sign is known, there is nothing below zero.
        _add(total, np.minimum(np.minimum(-r * a, (mu - r) * b), 0), e + f)
        if str(at) not in given.get("betas", {}):
            return [(rho, e)]
        neurons, betas = (np.array(part, dtype=float) for part in given["betas"][str(at)])
        neurons = neurons.astype(np.int64).reshape(-1)
        if free[neurons].any() or not ((betas >= 0) & (betas < np.inf)).all() or betas.shape != (len(neurons), len(e)):
            raise FormatError(f"multipliers before operation {at} are below zero, or of neurons of unknown sign")
        beta, exponent = np.zeros_like(y), BITS - _bits(betas)
        beta[neurons] = np.where(low[neurons] >= 0, -1, 1)[:, None] * _floor(betas, exponent)
        return [(rho, e), (beta, exponent)]

    def counterexample(self, x: Array) -> str:
        """Say "sat" if a point lies in the box of a clause, and its outputs, exact, satisfy it as it is stated."""
        values: list[tuple[Any, int]] = [_integers(x)]
        for at, op in enumerate(self.ops[1:], 1):
            given = [values[i] for i in op.inputs]
            if at in self.maps:
                given = [self.maps[at].product(self.maps[at].matrices, *given[0]), _integers(self.maps[at].bias)]
            finest = max(f for _, f in given)
            y = sum(part << finest - f for part, f in given)
            values.append((np.maximum(y, 0) if isinstance(op, Relu) else y, finest))
        y, f = values[-1]
        for clause in self.clauses:
            inside = x.shape == clause.lower.shape and (clause.box[0] <= x).all() and (x <= clause.box[1]).all()
            over = [(sum(c * y[j] for j, c in row.terms.items()) - row.right * 2**f, row.strict) for row in clause.rows()]
            if inside and all(value < 0 or (value == 0 and not strict) for value, strict in over):
                return "sat"
        raise FormatError("the point is no counterexample in real arithmetic")


class _Map:
    """An affine map: integer matrices in units of 2^-exponent, each finer than the one before by so many bits, and a bias."""

    def __init__(self, op: Affine) -> None:
        rows, columns, values = sp.find(sparse_matrix(op))
        self.bias = np.broadcast_to(array_of(op.shift()), (1, *op.shape)).reshape(-1)
        self.step = 31 - max(int(np.bincount(part, minlength=1).max()) for part in (rows, columns)).bit_length()
        self.exponent, self.matrices, self.sizes = self.step - int(_bits(values)), list[sp.csr_array](), list[sp.csr_array]()
        rest, shape = np.ldexp(values, self.exponent), (len(self.bias), math.prod(op.source))
        if (np.ldexp(rest, -self.exponent) != values).any():
            raise FormatError(f"weights of {op.name} leave the range of float64; rescale the network")
        while rest.any() or not self.matrices:  # every step is exact: the nearest integer, the distance to it, a power of two
            whole = np.rint(rest).astype(np.int64)
            self.matrices.append(sp.csr_array((whole, (rows, columns)), shape))
            self.sizes.append(sp.csr_array((whole * np.sign(values).astype(np.int64), (rows, columns)), shape))
            rest = np.ldexp(rest - whole, self.step)
        self.transposed = [matrix.T for matrix in self.matrices]

    def adjoint(self, y: Array, e: Array, total: Array) -> Parts:
        """Costs of the argument; the bias goes to the total."""
        (bias, f), there = _integers(self.bias), self.bias.nonzero()
        total += (y[there].astype(object) * bias[there][:, None]).sum(0) << (UNIT - e - f).astype(object)
        return [(matrix @ y, e + self.exponent + self.step * k) for k, matrix in enumerate(self.transposed)]

    def product(self, matrices: list[sp.csr_array], x: Array, f: int) -> tuple[Array, int]:
        """Product with integers in units of 2^-f, exact, in units of its own."""
        last, found = len(matrices) - 1, np.zeros(len(self.bias), dtype=object)
        for (part, first), (k, matrix) in itertools.product(_split(x), enumerate(matrices)):
            found += (matrix @ part).astype(object) << first + self.step * (last - k)
        return found, f + self.exponent + self.step * last

    def interval(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Bounds of the result."""
        (a, b), f = _integers(np.stack([low, high]))
        (centre, f), (radius, _) = self.product(self.matrices, a + b, f + 1), self.product(self.sizes, b - a, f + 1)
        below, above = (_below(sign * centre - radius, f) for sign in (1, -1))
        return np.nextafter(below + self.bias, -np.inf), np.nextafter(self.bias - above, np.inf)


def _add(total: Array, terms: Array, e: Array) -> None:
    """Add ``terms * 2^-e``, ``(results, columns)`` below 2^62, column by column."""
    total += ((terms >> 32).sum(0).astype(object) * 2**32 + (terms & (2**32 - 1)).sum(0)) << (UNIT - e).astype(object)


def _merged(parts: Parts, low: Array, total: Array) -> tuple[Array, Array]:
    """The sum of costs of one result, rounded down to BITS bits; its lower bounds pay for what is cut off."""
    to = np.min([np.where(y.any(0), e - _bits(y), UNIT) for y, e in parts], axis=0)
    to, found, f = np.where(to < UNIT, to + BITS - (len(parts) - 1).bit_length(), 0), 0 * parts[0][0], BITS - int(_bits(low))
    for y, e in parts:
        y, e, shift = y << (to - e).clip(0, BITS), np.maximum(e, to), (e - to).clip(0)
        while (step := shift.clip(0, BITS)).any():
            _add(total, (y & ((1 << step) - 1)) * _floor(low, f)[:, None], e + f)
            y, e, shift = y >> step, e - step, shift - step
        found += y
    return found, to


def _split(whole: Array) -> list[tuple[Array, int]]:
    """Integers as sums of ``part << first`` with parts of BITS bits."""
    sign, size, parts = np.sign(whole).astype(np.int64), np.abs(whole), list[tuple[Array, int]]()
    while size.any() or not parts:
        parts.append((sign * (size & (2**BITS - 1)).astype(np.int64), BITS * len(parts)))
        size = size >> BITS
    return parts


def _floor(values: Array, f: Array | int) -> Array:
    """The greatest integers up to ``values * 2^f``, which may underflow."""
    whole = np.floor(np.ldexp(values, f))
    return np.asarray((whole - ((whole == 0) & (values < 0))).astype(np.int64))


def _integers(values: Array) -> tuple[Array, int]:
    """Integers in units of 2^-f that are the numbers, and f."""
    part, exponent = np.frexp(values)
    least = int(exponent.min(initial=0))
    return np.ldexp(part, 53).astype(np.int64).astype(object) << (exponent - least).astype(object), 53 - least


def _below(whole: Array, e: int) -> Array:
    """Numbers of float64 below ``whole * 2^-e``."""
    cut = [max(int(value).bit_length() - 53, 0) for value in whole]
    return np.nextafter([math.ldexp(int(value) >> c, c - e) for value, c in zip(whole, cut, strict=True)], -np.inf)


def _bits(values: Array) -> Array:
    """The least k with all numbers of a column below 2^k, or one more."""
    return np.asarray(np.frexp(np.abs(values).max(0, initial=0).astype(float))[1].astype(np.int64))
