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

from blocklp.errors import BlocklpError, FormatError
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
        The problem is none of these, or the labels are forbidden, or no independent set.
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
    """The bound of a tree, and its number of leaves."""
    tree = _Tree(function)
    for step in proof:
        try:
            tree.take(step)
        except BlocklpError:
            raise
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            raise FormatError(f"the proof holds {str(step)[:80]}, which is no step ({error})") from error
    if tree.waiting or tree.root.bound is None:
        raise FormatError("the proof ends before its tree does")
    return tree.root.bound, tree.leaves


class _Tree:
    """What of a tree is still to come, in a stack of subtrees instead of calls: forged trees may be deep."""

    def __init__(self, function: IntegerFunction) -> None:
        self.root = _Open(None, 1, [])
        self.waiting: list[tuple[IntegerFunction, _Case | None, _Open]] = [(function, None, self.root)]
        self.leaves = 0

    def take(self, step: Step) -> None:
        """Check the next step."""
        if not self.waiting:
            raise FormatError("the proof goes on after its last leaf")
        base, case, above = self.waiting.pop()
        kept = _left(base, case)
        if isinstance(step, Branch):
            labels = set(kept.get(step.variable, base.labels.get(step.variable, ())))
            if not labels:
                raise FormatError(f"the proof branches on variable {step.variable}, which does not exist or is not free there")
            cases = [set(some) for some in step.cases]
            if set().union(*cases) != labels or not all(cases) or labels in cases:
                raise FormatError(f"the cases of variable {step.variable} do not share out the labels that it is left with, {labels}")
            own = _Open(above, len(cases), [])
            self.waiting += [(base, _Case(step.variable, tuple(sorted(some)), case), own) for some in reversed(cases)]
            return
        here = base.with_labels(kept) if kept else base
        if isinstance(step, Eliminate):
            self.waiting.append((here.without(step.variables), None, above))
        elif isinstance(step, Split):
            parts = here.parts(step.parts)
            own = _Open(above, len(parts), parts)
            self.waiting += [(part, None, own) for part in reversed(parts)]
        elif isinstance(step, Decomposition) and step.removed:
            least, left = _removed(here, step)
            for v, labels_left in left.items():
                case = _Case(v, labels_left, case)
            self.waiting.append((base, case, _Open(above, 1, [], least)))
        elif isinstance(step, Decomposition | Semidefinite):
            self._close(above, semidefinite(here, step) if isinstance(step, Semidefinite) else Decomposed(here, step).bound)
        else:
            raise FormatError(f"the proof holds {step!r}, which is no step")

    def _close(self, above: _Open, bound: int) -> None:
        """Count a leaf, and all subtrees that end with it."""
        self.leaves += 1
        done: _Open | None = above
        while done is not None:
            done.told(bound)
            if done.left:
                return
            assert done.bound is not None
            bound, done = done.bound, done.above
