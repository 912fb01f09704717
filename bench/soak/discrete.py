"""Exact solvers, bounds and persistencies of discrete problems against all labellings, in fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

from bench.soak.trial import Draw, Skipped, claim, trial
from blocklp.errors import BlocklpError
from blocklp.problems.mis import WeightedGraph, solve_mis, solve_mis_exactly
from blocklp.problems.mrf import Mrf, solve_mrf, solve_mrf_exactly
from blocklp.problems.qpbo import Qubo, solve_qpbo, solve_qpbo_exactly
from blocklp.problems.qpbo.persistency import verified_persistency

Exact = Fraction | float
"""Infinity for what is forbidden."""


def numbers(draw: Draw, count: int) -> list[float]:
    """Coefficients of one kind."""
    kind = draw.pick("integers", "decimals", "normal", "spread", "huge", "tiny")
    if kind == "integers":
        found = draw.random.integers(-9, 10, count).astype(float)
    elif kind == "decimals":
        found = draw.random.integers(-999, 1000, count) / 100
    else:
        found = draw.random.normal(size=count)
        found *= {"spread": 10.0 ** draw.random.integers(-6, 7, count), "huge": 1e12, "tiny": 1e-12}.get(kind, 1.0)
    return [float(v) for v in found]


def random_qubo(draw: Draw) -> Qubo:
    """A function of a few variables."""
    n = draw.count(2, 10)
    pairs = [p for p in itertools.combinations(range(n), 2) if draw.chance(0.5)] or [(0, 1)]
    offset = draw.pick(0.0, 0.0, 0.1, -1e6, 1e15)
    return Qubo.from_terms(numbers(draw, n), pairs, numbers(draw, len(pairs)), offset=offset)


def energies(qubo: Qubo) -> dict[tuple[int, ...], Fraction]:
    """Every labelling's value."""
    linear, quadratic = [[Fraction(v) for v in part.tolist()] for part in (qubo.linear, qubo.quadratic)]
    edges, found = qubo.edges.tolist(), {}
    for y in itertools.product((0, 1), repeat=qubo.n):
        total = Fraction(qubo.offset) + sum((v for v, k in zip(linear, y, strict=True) if k), Fraction(0))
        found[y] = total + sum((v for v, (i, j) in zip(quadratic, edges, strict=True) if y[i] and y[j]), Fraction(0))
    return found


def rounded(value: Exact, size: float) -> float:
    """What an energy that is rounded once may differ by."""
    return 4e-16 * (abs(float(value)) + size)


@trial("exact solvers", "solve_qpbo_exactly finds the least energy, and says so only then.", weight=2)
def qpbo_exactly(draw: Draw) -> None:
    qubo = random_qubo(draw)
    known = energies(qubo)
    best = min(known.values())
    found = solve_qpbo_exactly(qubo)
    own = known[tuple(found.labels.tolist())]
    size = float(np.abs(qubo.linear).sum() + np.abs(qubo.quadratic).sum())
    claim(Fraction(found.bound) <= best, f"the bound {found.bound!r} is above the least energy {float(best)!r}, n = {qubo.n}")
    claim(abs(found.energy - float(own)) <= rounded(own, 0), f"the energy {found.energy!r} is not that of the labels, {float(own)!r}")
    close = float(own - best) <= 4e-9 * size
    claim(close or not found.proven, f"{float(own)!r} is called optimal, and {float(best)!r} is the least energy, n = {qubo.n}")
    claim(found.proven or size > 1e6, f"no proof for {qubo.n} variables: energy {found.energy!r}, bound {found.bound!r}")


@trial("relaxations", "Bounds of qpbo are below the least energy, and proved labels are in minimisers.", weight=2)
def qpbo_bounds(draw: Draw) -> None:
    qubo = random_qubo(draw)
    known = energies(qubo)
    best = min(known.values())
    found = solve_qpbo(qubo, tighten=draw.chance(0.3), passes=draw.pick(20, 500))
    bound = float(found.relaxation.bound)
    claim(
        Fraction(bound) <= best, f"the bound {bound!r} is above the least energy {float(best)!r}, n = {qubo.n}, offset {qubo.offset}"
    )
    fixed = verified_persistency(qubo, draw.random.random(qubo.n))
    minimisers = [y for y, value in known.items() if value == best]
    weak = [y for y in minimisers if all(w in (-1, a) for w, a in zip(fixed.weak.tolist(), y, strict=True))]
    claim(weak, f"no minimiser has the labels {fixed.weak.tolist()}")
    strong = fixed.strong.tolist()
    claim(all(s in (-1, a) for y in minimisers for s, a in zip(strong, y, strict=True)), f"a minimiser has not the labels {strong}")


@trial("exact solvers", "solve_mis_exactly finds the heaviest independent set; bounds are above it.")
def independent_sets(draw: Draw) -> None:
    n = draw.count(2, 11)
    edges = [p for p in itertools.combinations(range(n), 2) if draw.chance(0.4)]
    graph = WeightedGraph(np.abs(numbers(draw, n)), np.array(edges, dtype=np.int64).reshape(-1, 2))
    weights = [Fraction(v) for v in graph.weights.tolist()]
    free = (y for y in itertools.product((0, 1), repeat=n) if not any(y[i] and y[j] for i, j in edges))
    best = max(sum((w for w, k in zip(weights, y, strict=True) if k), Fraction(0)) for y in free)
    found = solve_mis_exactly(graph)
    y = found.labels.tolist()
    own = sum((w for w, k in zip(weights, y, strict=True) if k), Fraction(0))
    claim(not any(y[i] and y[j] for i, j in edges), f"the set {y} is not independent")
    claim(Fraction(found.bound) >= best, f"the bound {found.bound!r} is below the largest weight {float(best)!r}, n = {n}")
    claim(
        not found.proven or float(best - own) <= 4e-9 * float(sum(weights)),
        f"{float(own)!r} is called optimal, and {float(best)!r} is",
    )
    relaxed = solve_mis(graph, draw.pick("edges", "cliques"), passes=draw.pick(20, 500))
    bound = float(relaxed.relaxation.bound)
    claim(Fraction(abs(bound)) >= best, f"the bound {bound!r} of the relaxation is below the largest weight {float(best)!r}, n = {n}")


def random_mrf(draw: Draw) -> Mrf:
    """A field of a few variables, with forbidden labels and factors of up to three variables."""
    counts = draw.random.integers(1, 4, draw.count(2, 5))
    factors = []
    for _ in range(draw.count(1, 7)):
        order = min(len(counts), int(draw.random.integers(1, 4)))
        scope = draw.random.permutation(len(counts))[:order].tolist()
        table = np.array(numbers(draw, int(np.prod(counts[scope])))).reshape(counts[scope])
        if draw.chance(0.2):
            table[draw.random.random(table.shape) < 0.3] = np.inf
        factors.append((scope, table))
    size = max((np.abs(t[np.isfinite(t)]).max() for _, t in factors if np.isfinite(t).any()), default=1.0)
    return Mrf(counts, factors, constant=float(draw.pick(0.0, 0.0, 0.1, -1e3, 1e17) * size))


def field_energies(mrf: Mrf) -> dict[tuple[int, ...], Exact]:
    """Every labelling's value."""
    found: dict[tuple[int, ...], Exact] = {}
    for x in itertools.product(*(range(int(c)) for c in mrf.counts)):
        entries = [float(table[tuple(x[i] for i in scope)]) for scope, table in mrf.factors]
        infinite = any(np.isinf(v) for v in entries)
        found[x] = np.inf if infinite else sum(map(Fraction, entries), Fraction(mrf.constant))
    return found


@trial("exact solvers", "solve_mrf_exactly finds the least energy, or that everything is forbidden.", weight=2)
def fields_exactly(draw: Draw) -> None:
    mrf = random_mrf(draw)
    known = field_energies(mrf)
    best = min(known.values())
    found = solve_mrf_exactly(mrf)
    if best == np.inf:
        claim(found.energy == np.inf, f"everything is forbidden, and {found.labels.tolist()} is returned with energy {found.energy}")
        return
    own = known[tuple(found.labels.tolist())]
    size = sum(float(np.abs(t[np.isfinite(t)]).sum()) for _, t in mrf.factors)
    claim(found.bound <= best, f"the bound {found.bound!r} is above the least energy {float(best)!r}, labels {mrf.counts.tolist()}")
    claim(
        not found.proven or float(own - best) <= 4e-9 * size,
        f"{float(own)!r} is called optimal, and {float(best)!r} is the least energy",
    )


@trial("relaxations", "Bounds of Markov random fields are below the least energy, whatever the constant.", weight=2)
def field_bounds(draw: Draw) -> None:
    mrf = random_mrf(draw)
    best = min(field_energies(mrf).values())
    blocks = draw.pick("auto", "edges", "chains")
    found = solve_mrf(mrf, blocks, tighten=blocks == "edges" and draw.chance(0.5), passes=draw.pick(20, 500))
    claim(
        found.bound <= best,
        f"the bound {found.bound!r} of {blocks} is above the least energy {float(best)!r}, labels {mrf.counts.tolist()}, "
        f"constant {mrf.constant!r}",
    )


@trial("interfaces", "Models of dimod and matrices are taken as they are, or refused.")
def other_forms(draw: Draw) -> None:
    n = draw.count(2, 4)
    matrix = np.array(numbers(draw, n * n)).reshape(n, n)
    if draw.chance(0.4):
        try:
            Qubo.from_matrix(matrix + draw.pick(1j, 1e-3j) * draw.random.integers(-3, 4, (n, n)).clip(-1))
        except BlocklpError:
            return
        claim(False, "a complex matrix is taken, and its imaginary part is lost")
    try:
        import dimod
    except ImportError as error:
        raise Skipped("dimod is not installed") from error
    if draw.chance(0.5):
        model = dimod.ConstrainedQuadraticModel()
        x = [dimod.Binary(f"x{i}") for i in range(n)]
        model.set_objective(sum(x))
        model.add_constraint(sum(x) >= 1, label="one")
    else:
        model = dimod.BinaryQuadraticModel(
            {i: float(matrix[i, i]) for i in range(n)}, {(0, 1): 1.5}, 0.25, draw.pick("BINARY", "SPIN")
        )
    try:
        qubo = Qubo.from_bqm(model)
    except BlocklpError:
        claim(not isinstance(model, dimod.BinaryQuadraticModel), "a binary quadratic model is refused")
        return
    claim(isinstance(model, dimod.BinaryQuadraticModel), "the constraints of a model are lost")
    binary = model.change_vartype("BINARY", inplace=False)
    for y in itertools.product((0, 1), repeat=n):
        want = binary.energy(dict(enumerate(y)))
        claim(
            abs(float(qubo.energy(np.array(y))) - want) <= 1e-9 * (1 + abs(want) + np.abs(matrix).sum()),
            "an energy differs from dimod's",
        )
