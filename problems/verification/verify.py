"""Verdicts: attack, bounds, then branch and bound.

:data:`blocklp.problems.verification.verdict.CLAIMS` says what each verdict claims.
Everything that is neither *sat* nor *unsat* is *unknown*.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.campaigns import Executor
from blocklp.deadline import Deadline
from blocklp.errors import FormatError, ModelError, OptionError, ShapeError, TimeLimitError
from blocklp.options import of_type
from blocklp.problems.verification.attack import confirm, find_counterexample, runtime_of
from blocklp.problems.verification.balls import Ball, Balls
from blocklp.problems.verification.counterexample_bounds import bounds_at_counterexamples
from blocklp.problems.verification.given import check_query, check_runtime, holds, known_relaxation
from blocklp.problems.verification.input_splits import InputSplits
from blocklp.problems.verification.merging import merged
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operations import Conv, SmoothActivation
from blocklp.problems.verification.proof import check_proof
from blocklp.problems.verification.properties import Clause, Property
from blocklp.problems.verification.proving import Part, Proof
from blocklp.problems.verification.pruning import pruned
from blocklp.problems.verification.regions import ClauseBounds, Region
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.problems.verification.settings import VerifySettings
from blocklp.problems.verification.shared_search import SplitTree, candidates, search_shared
from blocklp.problems.verification.slope_loops import Effort
from blocklp.problems.verification.tightener import Tightener
from blocklp.problems.verification.verdict import PhaseTimer, Verdict, VerificationEvent
from blocklp.search.best_first import Node, SearchEvent, SearchResult, branch_and_bound
from blocklp.status import Status

if TYPE_CHECKING:
    from blocklp.problems.verification.bounds import NetworkBounds

ROOT_STEPS, NODE_STEPS = 20, 20
"""Evaluations of every LP at the root and in a node."""

HALF_STEPS = 5
"""The same for the halves of a region."""

REGION_STEPS = 25
"""The same over the counterexamples of a clause."""

SHORT_BATCH = 32
"""Nodes of a batch of the first search of a region that may be halved, at most."""

EARLY = 200
"""Nodes of the search that known bounds are used for as they are."""

MEMORY = 4e9
"""Bytes of open nodes at which the search turns to depth first."""

MOST_CLAUSES = 256
"""Clauses over one box that are searched together: each is compared with the rows of all."""

Runtime = Callable[[NDArray[np.float32]], NDArray[Any]]


DEFAULT = VerifySettings()


def verify(
    network: Network,
    prop: Property,
    *,
    timeout: float | Deadline = math.inf,
    runtime: Runtime | None = None,
    attack: bool = True,
    known: NetworkBounds | Relaxation | None = None,
    proof: bool = False,
    executor: Executor | None = None,
    callback: Callable[[VerificationEvent], None] | None = None,
    settings: VerifySettings = DEFAULT,
) -> Verdict:
    """Decide whether a property has a counterexample.

    Parameters
    ----------
    network : Network
        Float64, from :func:`read_onnx` or :func:`from_torch`; or its :meth:`~Network.in_float32`, for a verdict on that.
    prop : Property
        Boxes of inputs and what a counterexample's outputs satisfy.
    timeout : float or Deadline
        Seconds; the answer then is "timed-out".
    runtime : callable, optional
        Evaluates float32 inputs ``(inputs,)``; what "sat" is said about.  :class:`Runtime` of the file, as a rule; without one
        the network itself in float32.
    attack : bool
        Whether to search for counterexamples.  Without it the answer is never "sat".
    known : NetworkBounds or Relaxation, optional
        Bounds of all layers over one box that holds those of the clauses, as ``network_bounds`` returns them, in place of the quick
        ones.  A short search with them comes first, and better bounds start from them.
    proof : bool
        Write down a proof of the verdict, which :func:`blocklp.problems.verification.proof.check_proof` checks.  Counterexamples
        are then those of the network in real arithmetic too.
    executor : Executor, optional
        Whose workers split inputs and signs, in rounds: verdict and nodes are the same for any number of them.  Deep dense networks,
        whose regions are bounded anew, are searched in this process.
    callback : callable, optional
        Gets a :class:`VerificationEvent` at every phase and after every batch of nodes.
    settings : VerifySettings
        Where the search changes its ways; verdicts are as valid with any.

    Raises
    ------
    OptionError
        If an argument is of another type, the timeout is not a positive number, or if a proof is asked for of a verdict in float32,
        with ``known``, or about a network with smooth activations, signs or a ball.
    ShapeError
        If network and property do not fit.
    ModelError
        If the network ends in a softmax, and the property states more of its outputs than an order; or if ``known`` is of another
        network or several boxes, or of a box that does not hold that of a clause.
    """
    check_query(network, prop)
    check_runtime(runtime)
    of_type(settings, VerifySettings, "settings", "VerifySettings(few_inputs=..., patience=...)")
    relaxation = known_relaxation(known, network)
    try:
        deadline = Deadline.of(timeout)
    except OptionError as error:
        raise OptionError(str(error).replace("time_limit", "timeout", 1)) from None
    if (network.inputs, network.outputs) != (prop.inputs, prop.outputs):
        raise ShapeError(
            f"{network.name} has {network.inputs} inputs and {network.outputs} outputs, {prop.name or 'the property'} has "
            f"{prop.inputs} and {prop.outputs}; is it for another network?"
        )
    if network.head is not None:
        # The rows hold at the outputs where they hold at the results before the softmax: these are bounded and attacked.
        network.head.check(prop)
    if (balls := any(clause.ball is not None for clause in prop.clauses)) and (proof or not network.activations):
        raise OptionError("balls go with neither proofs nor networks without activations: ask for no proof, or state a box")
    if proof and len(network.activations) > len(network.relus):
        raise OptionError("proofs are of networks of ReLUs; this one has smooth activations or signs: ask for none")
    if proof and (network.unit or relaxation is not None):
        raise OptionError(
            "a proof speaks of real arithmetic, and has all bounds that it needs: ask for one without known=, and not of the network "
            "in float32 (give --real-semantics to have a query read as one of real numbers)"
        )
    running = runtime_of(network) if runtime is None else runtime
    written = Proof() if proof else None
    if not proof and relaxation is None and not network.unit and network.device.type == "cpu":  # it makes sparse matrices
        network = slim if (slim := merged(network)).activations or not balls else network
    run = _Verification(network, prop, deadline, running, attack, relaxation, written, executor, callback, settings)
    for number, clause in enumerate(prop.clauses if relaxation is not None else ()):
        low, high = run.box(clause)
        if relaxation is not None and not holds(relaxation, low[None], high[None], clause.ball):
            raise ModelError(f"known bounds are not those of one box or ball that holds clause {number}; compute them for it")
    return run.verdict()


@dataclass
class _Witness(Exception):
    """A confirmed counterexample; ends the run from wherever it is found."""

    x: NDArray[np.float32]


@dataclass
class _Verification:
    network: Network
    prop: Property
    deadline: Deadline
    runtime: Runtime
    attack: bool
    known: Relaxation | None
    proof: Proof | None
    executor: Executor | None
    callback: Callable[[VerificationEvent], None] | None
    settings: VerifySettings
    began: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)
    nodes: int = 0
    bound: float = math.inf
    effort: Effort = field(default_factory=Effort)
    whole: ClauseBounds = field(default_factory=ClauseBounds)

    def verdict(self) -> Verdict:
        """Run the phases; whatever ends them, say what is known."""
        x = None
        try:
            status, reason = self._decide()
        except _Witness as found:
            x, status, reason = found.x, "sat", "The counterexample was replayed, and satisfies the query as it is written."
        except TimeLimitError:
            status, reason = "timed-out", "Time is up."
        except KeyboardInterrupt:
            status, reason = "unknown", "Interrupted."
        seconds = time.perf_counter() - self.began
        if status == "unknown" and self.deadline.over():
            status, reason = "timed-out", "Time is up."
        y = None if x is None else np.asarray(self.runtime(x))
        bound = {"sat": -math.inf, "unsat": self.bound}.get(status, self.whole.least(len(self.prop.clauses)))
        if self.proof is not None:
            self.proof.counterexample = x
        proof = self.proof if status in ("sat", "unsat") else None
        return Verdict(status, x, y, bound, self.nodes, seconds, self.phases, reason, self.network.unit > 0, proof)

    def _decide(self) -> tuple[str, str]:
        proven: set[int] = set()
        groups: dict[tuple[bytes, bytes, Ball | None], list[int]] = {}
        for number, clause in enumerate(self.prop.clauses):
            groups.setdefault((clause.lower.tobytes(), clause.upper.tobytes(), clause.ball), []).append(number)
        parts = [group[at : at + MOST_CLAUSES] for group in groups.values() for at in range(0, len(group), MOST_CLAUSES)]
        # Without activations a box is decided by one linear bound; there is nothing else to split either.
        few = self.network.inputs <= self.settings.few_inputs or not self.network.activations
        few = few and not self.network.jumps and all(clause.ball is None for clause in self.prop.clauses)
        if not few:
            for group in parts:
                proven.update(self._quick(group) if self.known is None else self._early(group, self.known))
        left = [n for n in range(len(self.prop.clauses)) if n not in proven]
        if left and self.attack:
            with self._phase("attack"):
                self._attack(proven)
        if not left:
            return "unsat", "Bounds prove it."
        for group in parts:
            open_ = [n for n in group if n not in proven]
            if not open_:
                continue
            status = self._split_inputs(open_) if few else self._split_activations(open_)
            if status is Status.INTERRUPTED:
                return "unknown", "Interrupted."
            if status is Status.TIME_LIMIT:
                return "timed-out", "Time is up."
            if status not in (Status.CUTOFF, Status.INFEASIBLE, Status.OPTIMAL):
                return "unknown", "Some nodes could be neither proved nor refuted."
        return "unsat", "Bounds and branch and bound prove it."

    def _quick(self, group: list[int]) -> set[int]:
        """Clauses that CROWN proves."""
        part = self._part()
        root = self._root(group, {}, 1, 1, "quick bounds", part)
        proven = set(group) - root.clauses(root.nodes)
        if self.proof is not None and part is not None:
            part.keep(sorted(proven))
            self.proof.add(sorted(proven), part)
        return proven

    def _part(self) -> Part | None:
        """A part of the proof, if one is written."""
        return None if self.proof is None else Part()

    def _early(self, group: list[int], known: Relaxation) -> set[int]:
        """Clauses that a short search from the known bounds proves."""
        with self._phase("quick bounds"):
            root = self._rows(group, replace(known, deadline=self.deadline), {}, ROOT_STEPS, None)
        if not root.nodes or root.splits is None:
            return set(group)
        result = self._search(root.nodes, root.splits, group, root.splits.batch, EARLY, root.clauses(root.nodes))
        if result.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        return set(group) - root.clauses(root.nodes if result.unresolved else result.frontier)

    def _attack(self, proven: set[int]) -> None:
        # A quick round, then a thorough one; together at most a tenth of the time.
        for restarts, steps in ((4, 40), (24, 150)):
            until = self.deadline.within(min(0.1 * self.deadline.seconds, 5.0))
            found = find_counterexample(
                self.network, self.prop, restarts=restarts, steps=steps, seed=restarts, deadline=until, exclude=proven
            )
            if found is not None and self._confirmed(found.x):
                raise _Witness(found.x)

    def _confirmed(self, x: NDArray[np.float32]) -> bool:
        """Whether a point is a counterexample to the runtime and, where a proof is written, in real arithmetic."""
        if not confirm(self.runtime, x, self.prop):
            return False
        try:
            return self.proof is None or bool(check_proof(self.network, self.prop, Proof(counterexample=x).steps()))
        except FormatError:
            return False

    def _inspect(self, clauses: list[Clause], x: Tensor) -> None:
        """Raise if one of some points is a counterexample; all clauses have the same box or one around the points."""
        if not self.attack:
            return
        for point in candidates(self.network, clauses, x, self.deadline):
            self._require_none(point)

    def _require_none(self, point: NDArray[np.float32]) -> None:
        """Raise if a point is a counterexample."""
        if self._confirmed(point):
            raise _Witness(point)

    def box(self, clause: Clause) -> tuple[Tensor, Tensor]:
        shape = self.network.input_shape
        return self._there(clause.lower).view(shape), self._there(clause.upper).view(shape)

    def _there(self, values: NDArray[Any]) -> Tensor:
        """Numbers where the network lies."""
        return torch.tensor(np.array(values), device=self.network.device)

    def _root(self, group: list[int], signs: Mapping[int, Tensor], steps: int, polish: int, phase: str, part: Part | None) -> Region:
        """Bound all layers of a region of a box, and the rows of some clauses."""
        with self._phase(phase):
            lower, upper = (end[None] for end in self.box(self.prop.clauses[group[0]]))
            known = {} if self.known is None else self.known.bounds
            options: dict[str, Any] = {"deadline": self.deadline, "output": False, "signs": signs, "known": known, "part": part}
            if (ball := self.prop.clauses[group[0]].ball) is not None:
                options["balls"] = Balls.stacked([ball], self.network.input_shape, lower.device)
            tightener = Tightener(self.network, lower, upper, steps, **options)
            tightener.run()
            return Region(None, [], group) if tightener.empty else self._rows(group, tightener.relaxation(), signs, polish, part)

    def _rows(self, group: list[int], relaxation: Relaxation, signs: Mapping[int, Tensor], polish: int, part: Part | None) -> Region:
        """Bound the rows of some clauses."""
        clauses = [self.prop.clauses[n] for n in group]
        rows = self._there(np.concatenate([c.matrix for c in clauses]))
        right = self._there(np.concatenate([c.right for c in clauses]))
        whole = not signs
        if part is None and not self.network.unit:
            relaxation, signs = pruned(relaxation, signs)
        splits = ReluSplits(relaxation, rows, right, NODE_STEPS, lambda x: self._inspect(clauses, x), signs, part, self.effort)
        # A counterexample satisfies all rows of its clause: one of them, or a mix, that is impossible is enough.
        nodes = splits.roots([k for k, clause in enumerate(clauses) for _ in clause.right], polish, group)
        for number, node in zip(group, nodes, strict=True):
            self.whole.hold([number] if whole else [], node.bound)
        self.bound = min([self.bound, *(n.bound for n in nodes if n.bound > 0)])
        return Region(splits, [n for n in nodes if n.bound <= 0], group)

    def _split_activations(self, group: list[int]) -> Status:
        """Branch and bound over signs, at two levels.

        Nodes of a search inherit the bounds of all layers from their region.  In deep dense networks, where computing these anew is
        cheap, a search that does not end at once stops, and its open nodes become regions (measured on mnist-net_256x4: tens of
        regions do what 100,000 nodes did not).  A proof has no words for bounds over counterexamples; there a region is halved at
        one early sign.  In convolutional networks it costs more than it gives, and a region is searched to the end.
        """
        dense = len(self.network.relus) > 2 and not any(isinstance(op, (Conv, SmoothActivation)) for op in self.network.ops)
        part = self._part()
        if self.proof is not None and part is not None:
            self.proof.add(group, part)
        regions = [first := self._root(group, {}, ROOT_STEPS, 5 * ROOT_STEPS, "bounds", part)]
        while regions:
            root = regions.pop()
            nodes = root.nodes
            patience: float = self.settings.patience if dense else math.inf
            while nodes:
                assert root.splits is not None
                batch = min(root.splits.batch, SHORT_BATCH) if dense else root.splits.batch
                whole = root.clauses(nodes) if root is first else set()
                result = self._search(nodes, root.splits, root.clause, batch, patience * len(nodes), whole)
                if not result.proven and (result.status is Status.INTERRUPTED or self.deadline.over()):
                    return Status.INTERRUPTED if result.status is Status.INTERRUPTED else Status.TIME_LIMIT
                if result.unresolved:
                    return Status.STALLED  # these nodes are in no frontier: going on without them would be no proof
                if result.proven:
                    break
                # Clause by clause: the sign that helps one most is seldom the best for another.  What cannot be split goes on.
                patience *= 2
                if self.proof is None:
                    nodes = [n for n in result.frontier if not n.depth]
                    regions += [self._below(root, n) for n in result.frontier if n.depth]
                    continue
                nodes = []
                for clause in sorted(root.clauses(result.frontier)):
                    halves = root.splits.halves([n for n in root.nodes if root.clause[n.state.spec] == clause])
                    regions += [self._root([clause], signs, HALF_STEPS, 5 * HALF_STEPS, "bounds", own) for signs, own in halves]
                    if not halves:
                        nodes += [n for n in result.frontier if root.clause[n.state.spec] == clause]
        self.whole.hold(group, self.bound)
        return Status.CUTOFF

    def _below(self, root: Region, node: Node) -> Region:
        """Make a region of a node, and bound its layers over the counterexamples of its clause."""
        splits, group = root.splits, [root.clause[node.state.spec]]
        assert splits is not None
        with self._phase("bounds"):
            self.bound = min(self.bound, splits.margin)  # points above the margin are left out
            signs = splits.dense(node.state.signs[None])
            bounds = bounds_at_counterexamples(splits, node.state, signs, REGION_STEPS)
            if bounds is None:
                return Region(None, [], group)
            return self._rows(group, replace(splits.cuts.relaxation, bounds=bounds), signs, HALF_STEPS, None)

    def _split_inputs(self, group: list[int]) -> Status:
        clauses = [self.prop.clauses[n] for n in group]
        rows = [self._there(c.matrix) for c in clauses]
        right = [self._there(c.right) for c in clauses]
        parts = None if self.proof is None else [Part() for _ in group]
        for number, part in zip(group, parts or (), strict=False):
            assert self.proof is not None
            self.proof.add([number], part)
        splits = InputSplits(self.network, rows, right, lambda x: self._inspect(clauses, x), self.deadline, parts)
        root = splits.roots([(k, *self.box(c)) for k, c in enumerate(clauses)])
        return self._search(list(root.children), splits, group, splits.batch, whole=group).status

    def _search(
        self,
        roots: Sequence[Node],
        splits: InputSplits | ReluSplits,
        group: Sequence[int],
        batch: int,
        most: float = math.inf,
        whole: Collection[int] = (),
    ) -> SearchResult:
        """Search below nodes, all that is left of some whole clauses, with workers unless it may soon be given up."""
        with self._phase("search"):
            done = self.nodes

            def tell(event: SearchEvent) -> None:
                self.nodes = done + event.nodes
                self.whole.hold(whole, event.bound)
                if self.callback is not None:
                    self.callback(VerificationEvent("search", time.perf_counter() - self.began, event))

            # Past a limit the frontier comes back.
            count = None if math.isinf(most) else int(most)
            limits: dict[str, Any] = {"max_nodes": count, "time_limit": self.deadline, "memory": MEMORY, "callback": tell}
            limits |= {"cutoff": math.ulp(0.0)}
            if self.executor is None or math.isfinite(most):
                result = branch_and_bound(roots, splits.expand, batch=batch, **limits)
            else:
                tree = SplitTree(self.network, splits, [self.prop.clauses[n] for n in group] if self.attack else [])
                result = search_shared(self.executor, roots, tree, self._require_none, **limits)
        self.whole.hold(whole, result.bound)
        # What was closed stays proved when the search ends early; clauses that are closed by then are not looked at again.
        self.bound = min(self.bound, result.bound if result.proven else result.closed)
        return result

    def _phase(self, name: str) -> PhaseTimer:
        if self.callback is not None:
            self.callback(VerificationEvent(name, time.perf_counter() - self.began))
        return PhaseTimer(self.phases, name)
