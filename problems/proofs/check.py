"""Checking proofs of minima in integers, trusting nothing that they say.

Nothing here knows how proofs are found (:func:`blocklp.problems.proofs.prove_minimum` is one way).  A leaf is bounded by
:mod:`blocklp.problems.proofs.bounds` or :mod:`blocklp.problems.proofs.semidefinite`; a branch covers what it splits, because its
cases hold all labels of a variable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from numpy.typing import ArrayLike

from blocklp.errors import FormatError
from blocklp.problems.proofs.bounds import Decomposed
from blocklp.problems.proofs.function import Discrete, ExactFunction, IntegerFunction
from blocklp.problems.proofs.semidefinite import semidefinite
from blocklp.problems.proofs.steps import Branch, Decomposition, Eliminate, Semidefinite, Split, Step


@dataclass(frozen=True)
class ProofVerdict:
    """What a proof proves.

    Attributes
    ----------
    value : Fraction, optional
        The value of the labels, without rounding; of a graph, minus the weight of the set.  None where there are none.
    bound : Fraction
        No labelling has a smaller value: the bound of the tree, raised to the next value that is possible, as are those of parts.
    infeasible : bool
        Whether all labellings are proved to be forbidden.
    leaves : int
        Number of leaves.
    """

    value: Fraction | None
    bound: Fraction
    infeasible: bool
    leaves: int

    @property
    def optimal(self) -> bool:
        """Whether the labels are proved to be a minimiser."""
        return self.value is not None and self.bound >= self.value

    @property
    def gap(self) -> Fraction | None:
        """By how much other labels may be better at most; None without labels."""
        return None if self.value is None else max(Fraction(0), self.value - self.bound)


def check_proof(problem: Discrete, labels: ArrayLike | None, proof: Iterable[Step]) -> ProofVerdict:
    """Evaluate a proof in integers.

    Parameters
    ----------
    problem : Qubo, Mrf or WeightedGraph
        What it is about; of a graph, that no independent set is heavier.
    labels : array_like of int, shape (n,), or None
        The labels that are claimed to be a minimiser; None where there are said to be none.
    proof : iterable of Branch, Split, Eliminate, Decomposition or Semidefinite
        The steps of a tree, each before those below it.

    Returns
    -------
    ProofVerdict
        What is proved, which may be less than what is claimed.

    Raises
    ------
    FormatError
        The steps are no tree of the problem: a variable that does not exist or is not free, labels that are left out, multipliers
        that do not fit; or the tree ends too soon or too late.
    ShapeError, ScopeError
        The labels do not fit the problem.
    ModelError
        The labels are forbidden, or no independent set.
    """
    exact = ExactFunction(problem)
    value = None if labels is None else exact.value(labels)
    least, leaves = _evaluated(exact.function, proof)
    bound = exact.function.raised(least) * exact.function.unit
    return ProofVerdict(value, bound, bound >= exact.ceiling, leaves)


@dataclass(eq=False)
class _Open:
    """A step whose subtrees are not all bounded: the least of their bounds, or the sum of those of ``parts``."""

    above: _Open | None
    left: int
    parts: list[IntegerFunction]
    bound: int | None = None

    def told(self, bound: int) -> None:
        """Count the bound of the next subtree."""
        if self.parts:
            self.bound = (self.bound or 0) + self.parts[-self.left].raised(bound)
        else:
            self.bound = bound if self.bound is None else min(self.bound, bound)
        self.left -= 1


@dataclass(frozen=True, eq=False)
class _Case:
    """A case of a branch, below other cases: labels that are left of a variable."""

    variable: int
    labels: tuple[int, ...]
    above: _Case | None


def _left(function: IntegerFunction, case: _Case | None) -> dict[int, tuple[int, ...]]:
    """Labels that cases leave of the variables that they name."""
    kept: dict[int, tuple[int, ...]] = {}
    while case is not None:
        kept.setdefault(case.variable, case.labels)  # the last case is the narrowest
        case = case.above
    return kept


def _removed(function: IntegerFunction, step: Decomposition) -> tuple[int, dict[int, tuple[int, ...]]]:
    """The bound of labellings with a label that is removed, and the labels that are left of these variables."""
    removed = dict(step.removed)
    bounds = Decomposed(function, step).bounds_of(removed)
    left = {v: tuple(label for label in function.labels[v] if label not in own) for v, own in removed.items()}
    fits = all(own and set(own) <= set(function.labels[v]) for v, own in removed.items())
    if len(removed) < len(step.removed) or not fits or not all(left.values()):
        raise FormatError("a step removes labels that are not there, none, or all of a variable, or names one twice")
    costs = (zip(function.labels[v], own, strict=True) for v, own in bounds.items())
    return min(bound for v, own in zip(bounds, costs, strict=True) for label, bound in own if label in removed[v]), left


def _evaluated(function: IntegerFunction, proof: Iterable[Step]) -> tuple[int, int]:
    """The bound of a tree, and its number of leaves, by a stack of subtrees instead of calls: forged trees may be deep."""
    root = _Open(None, 1, [])
    waiting: list[tuple[IntegerFunction, _Case | None, _Open]] = [(function, None, root)]
    leaves = 0
    for step in proof:
        if not waiting:
            raise FormatError("the proof goes on after its last leaf")
        base, case, above = waiting.pop()
        kept = _left(base, case)
        if isinstance(step, Branch):
            labels = kept.get(step.variable, base.labels.get(step.variable, ()))
            if len(labels) < 2:
                raise FormatError(f"the proof branches on variable {step.variable}, which does not exist or is not free there")
            if set().union(*step.cases) != set(labels) or not all(step.cases):
                raise FormatError(f"the cases of variable {step.variable} are not the labels that it is left with, {labels}")
            own = _Open(above, len(step.cases), [])
            waiting += [(base, _Case(step.variable, tuple(sorted(set(some))), case), own) for some in reversed(step.cases)]
            continue
        here = base.with_labels(kept) if kept else base
        if isinstance(step, Eliminate):
            waiting.append((here.without(step.variables), None, above))
        elif isinstance(step, Split):
            parts = here.parts(step.parts)
            own = _Open(above, len(parts), parts)
            waiting += [(part, None, own) for part in reversed(parts)]
        elif isinstance(step, Decomposition | Semidefinite):
            if isinstance(step, Decomposition) and step.removed:
                least, left = _removed(here, step)
                for v, own_labels in left.items():
                    case = _Case(v, own_labels, case)
                waiting.append((base, case, _Open(above, 1, [], least)))
                continue
            bound = semidefinite(here, step) if isinstance(step, Semidefinite) else Decomposed(here, step).bound
            leaves += 1
            done: _Open | None = above
            while done is not None:
                done.told(bound)
                if done.left:
                    break
                assert done.bound is not None
                bound, done = done.bound, done.above
        else:
            raise FormatError(f"the proof holds {step!r}, which is no step")
    if waiting:
        raise FormatError("the proof ends before its tree does")
    assert root.bound is not None
    return root.bound, leaves
