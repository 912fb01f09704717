"""The loop that all methods share: passes and checks, until every instance is done.

The method moves the multipliers; the loop never trusts it.  Every bound it records is evaluated in float64
and corrected for the residual of the multipliers (:mod:`blocklp.decomposition.valid_bounds`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import torch

from blocklp.deadline import Deadline
from blocklp.decomposition.valid_bounds import box_minimum
from blocklp.engine.chunk import Chunk, ChunkTask, FrozenChunk
from blocklp.engine.division import chunks, in_turn, within_memory, workers
from blocklp.engine.final_bounds import certify
from blocklp.engine.limits import Limits
from blocklp.engine.records import Event, Hooks, Results, Start, relative_gap
from blocklp.engine.reductions import SamePattern
from blocklp.errors import TimeLimitError
from blocklp.kernels.compiled import called, loops_only, mark, until
from blocklp.kernels.plan import Plan
from blocklp.kernels.settings import KEPT_BYTES
from blocklp.methods import Method
from blocklp.status import Status


def run(
    plan: Plan,
    method: Method,
    dtype: torch.dtype,
    limits: Limits,
    start: Start | None = None,
    hooks: Hooks | None = None,
) -> Results:
    """Solve the instances of a plan: lower it, run the method, and invert what was lowered.

    Parameters
    ----------
    plan : Plan
        The problem in float64, the backend asked for, and how work is divided.
    method : Method
        The method; weights that its settings fix come before those of ``start``.
    dtype : torch.dtype
        Precision of the iterates.
    limits : Limits
        Settings of the stop rules.
    start : Start, optional
        First multipliers, weights and primal-dual warm start; by default the method's own.
    hooks : Hooks, optional
        Functions of the caller.

    Returns
    -------
    Results
        The best of every instance, also at a limit or an interrupt.
    """
    start, hooks, problem = start or Start(), hooks or Hooks(), plan.problem
    given = method.weights(problem.batch)
    if given is not None:
        start = replace(start, eta=given.to(problem.cost.device, dtype))
    try:
        with until(limits.deadline), within_memory(problem.cost.device):
            plan = replace(plan, deadline=limits.deadline).settled(dtype, method.usual, method.knows_rows)
            return run_settled(plan, method, dtype, limits, start, hooks)
    except KeyboardInterrupt:  # before the first pass
        least = box_minimum(problem)
        return Results.unsolved(problem, least, Status.INTERRUPTED).on(least.device)


def run_settled(
    plan: Plan, method: Method, dtype: torch.dtype, limits: Limits, start: Start, hooks: Hooks
) -> Results:
    """Solve the instances of a plan whose backend has been chosen.

    Parameters
    ----------
    plan : Plan
        The problem in float64 with its deadline (:meth:`Plan.settled`).
    method, dtype, limits, start, hooks
        As in :func:`run`.

    Returns
    -------
    Results
        The best of every instance.
    """
    lowered = SamePattern.of(plan)
    limits, start, hooks = lowered.apply(limits), lowered.apply(start), lowered.hooks(hooks)
    results = lowered.inverse(_solve(lowered, method, dtype, limits, start, hooks))
    results.backend = plan.backend.name
    return results


def _solve(
    lowered: SamePattern,
    method: Method,
    dtype: torch.dtype,
    limits: Limits,
    start: Start,
    hooks: Hooks,
) -> Results:
    """Solve instances in the order of their parts, each of which shares the same coordinates."""
    parts, whole = lowered.parts, lowered.parts[0][1].problem.totals.whole
    status = Status.TIME_LIMIT if limits.deadline.over() else Status.RUNNING
    results = Results.unsolved(parts[0][1].problem, lowered.least, status)
    device = lowered.least.device
    if status:
        return results.on(device)
    torch.empty(KEPT_BYTES, dtype=torch.uint8)  # and freed: passes then reuse memory
    if method.uses_tables:
        parts = [(rows, part.laid_out(whole and hooks.repair is None)) for rows, part in parts]
    pieces: list[tuple[Plan, slice]] = []
    settings = parts[0][1].settings
    for rows, part in parts:
        most = settings.looped_copies if part.in_place else settings.cached_copies
        pieces += chunks(part, rows.start, most)
    on_device = device.type != "cpu"
    rounds = 1.0 if on_device else max(1.0, len(pieces) / torch.get_num_threads())
    observed = hooks.callback is not None or hooks.record is not None
    task = ChunkTask(method, dtype, limits, hooks.repair, rounds, observed, results)
    if on_device:
        _run_in_turn(pieces, task, start, hooks)
    else:
        _run([_chunk(*piece, task) for piece in pieces], results, start, hooks)
    known = [results.remembered[at] for at in sorted(results.remembered)]
    if sum(len(own[0]) for own in known) == len(results.bound):
        x, y, weight = map(torch.cat, zip(*known, strict=True))
        results.memory = x, y, weight
    results.passes += results.passes > 0
    results = results.on(device)
    try:
        most = settings.cached_copies
        certify([piece for own, at in pieces for piece in chunks(own, at.start, most)], results)
        backend = parts[0][1].backend
        for name in filter(called, backend.modules):
            if (module := backend.loops(name)) is not None:
                mark(module, dtype)
    except KeyboardInterrupt:  # the bounds of the last checks are valid
        if not whole:
            raise
        results.status.masked_fill_(results.status == Status.OPTIMAL, int(Status.INTERRUPTED))
    return results


def _chunk(plan: Plan, rows: slice, task: ChunkTask) -> Chunk:
    """The chunk of some instances."""
    return (FrozenChunk if plan.in_place else Chunk)(plan, rows, task)


def _run_in_turn(pieces: list[tuple[Plan, slice]], task: ChunkTask, start: Start, hooks: Hooks) -> None:
    """Iterate on chunks one after the other, each of which may fill the memory of a device.

    Each gets the share of the time that is left that its instances are of those left.
    """
    interrupted = False

    def work(plan: Plan, rows: slice, after: int) -> None:
        nonlocal interrupted
        deadline, count = task.limits.deadline, plan.problem.batch
        if after:
            share = deadline.elapsed() + deadline.left() * count / (count + after)
            deadline = Deadline(share, began=deadline.began)
        own = replace(task, limits=replace(task.limits, deadline=deadline))
        running = _chunk(replace(plan, deadline=deadline), rows, own)
        if interrupted:
            running.drop(torch.ones_like(task.results.status, dtype=torch.bool))
        else:
            interrupted = _run([running], task.results, start, hooks)

    in_turn(pieces, work)


def _run(running: list[Chunk], results: Results, start: Start, hooks: Hooks) -> bool:
    """Iterate on chunks, check after check, until no instance is active; say whether an interrupt ended it.

    Chunks are independent: they run side by side, one core each, which splits better than the operations of
    one chunk do. Loops deal the instances of a single chunk out to threads themselves, and one that is small
    gains nothing from threads.
    """
    active = [(chunk, _iterate(chunk, start)) for chunk in running]
    pool = workers()
    try:
        with loops_only() if len(running) == 1 and _on_one_thread(running[0]) else nullcontext():
            while active:
                passes = [own for _, own in active]
                list(map(next, passes) if len(passes) == 1 else pool.map(next, passes))
                if hooks.callback is not None or hooks.record is not None:
                    _send(results, running, hooks)
                active = [(chunk, own) for chunk, own in active if len(chunk.rows)]
                for chunk, _ in active if hooks.save is not None else ():
                    assert hooks.save is not None
                    hooks.save(chunk.schedule.passes, chunk.snapshot)
    except KeyboardInterrupt:
        pool.shutdown()  # let the passes that are under way end
        if not running[0].problem.totals.whole:  # other processes go on, and wait for this one
            raise
        for chunk in running:
            chunk.drop(torch.ones_like(results.status, dtype=torch.bool))
        return True
    finally:
        pool.shutdown()
        results.remembered |= {chunk.part.start: m for chunk in running if (m := chunk.memory) is not None}
    return False


def _on_one_thread(chunk: Chunk) -> bool:
    """Whether the tensor operations of a chunk, the only one, run on one thread."""
    problem = chunk.problem
    return chunk.swept or problem.batch * problem.copies < chunk.plan.settings.threaded_copies


def _iterate(chunk: Chunk, start: Start) -> Iterator[None]:
    """Make passes; yields after every check, and is not resumed once no instance is active."""
    method, schedule, deadline = chunk.method, chunk.schedule, chunk.limits.deadline
    try:
        chunk.begin(start)
    except TimeLimitError:
        chunk.give_up()
        yield
    while True:
        if schedule.known:
            chunk.best.update(chunk.plan, chunk.state.duals, chunk.state.value)
        if schedule.due or method.due(chunk.state) or schedule.out_of_time or schedule.out_of_passes:
            began = deadline.elapsed()
            chunk.state = method.finish(chunk.iterated, chunk.state)
            chunk.check()
            schedule.note_check(deadline.elapsed() - began)
            yield
            chunk.advise()
            if method.due(chunk.state):
                continue
        began = deadline.elapsed()
        chunk.state, passes = method.run(chunk.iterated, chunk.state, schedule.next_passes())
        schedule.note_passes(passes, deadline.elapsed() - began)


def _send(results: Results, running: list[Chunk], hooks: Hooks) -> None:
    """Send the event; a callback's answer may stop instances."""
    passes, seconds = max(chunk.schedule.passes for chunk in running), running[0].limits.deadline.elapsed()
    known = results.bound, results.primal, results.floor, results.status
    bound, primal, least, status = (t.to(results.x.device, copy=True) for t in known)
    event = Event(passes, seconds, bound, primal, relative_gap(primal, bound, least), status)
    if hooks.record is not None:
        hooks.record(event)
    answer = None if hooks.callback is None else hooks.callback(event)
    if answer is not None and answer is not False:
        stop = torch.as_tensor(answer, dtype=torch.bool).cpu().expand(len(status))
        for chunk in running:
            chunk.drop(stop)
