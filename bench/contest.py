"""Solvers in processes of their own, one thread each and two at a time, and what their answers are worth."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench.exact_forms import decimals
from bench.qpbo_data import Instance
from blocklp.problems.mis import WeightedGraph
from blocklp.problems.mrf import Mrf
from blocklp.problems.qpbo import Qubo

GRACE = 15.0
"""Seconds after its limit, and those of its start, at which a solver is killed."""
SLACK = 1e-6
"""Of the size of a value: what bounds and values may be off by; rounded coefficients add to it."""
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

Answer = dict[str, Any]


class Ours:
    """Our own methods, in a process that stays, since torch and compiled loops take seconds to load."""

    def __enter__(self) -> Ours:
        self._pool = _pool()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def __call__(self, method: Callable[..., Answer], *given: Any) -> Answer:
        """Call a function of a module; if its process dies or it raises, the answer holds a fault."""
        try:
            return self._pool.submit(method, *given).result()
        except BrokenExecutor:
            self._pool = _pool()
            return {"fault": "crashed"}
        except Exception as error:
            return {"fault": f"failed: {error}"}


def _pool() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with _one_thread():
        # The process starts with the first call.
        pool.submit(os.getpid).result()
    return pool


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let a process that starts meanwhile use one thread."""
    before = {key: os.environ.get(key) for key in THREADS}
    os.environ.update(THREADS)
    try:
        yield
    finally:
        for key, number in before.items():
            if number is None:
                del os.environ[key]
            else:
                os.environ[key] = number


def rival(solver: str, file: Path, seconds: float) -> Answer:
    """What a solver of :mod:`bench.exact_process` answers: labels, bound, nodes, seconds, done; or a fault."""
    command = [sys.executable, "-m", "bench.exact_process", str(file), solver, str(seconds)]
    environment = {**os.environ, **THREADS}
    try:
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + GRACE, env=environment)
        # Some solvers write a line of their own first.
        answer: Answer = json.loads(ran.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"fault": "killed"}
    except (subprocess.CalledProcessError, json.JSONDecodeError, IndexError):
        return {"fault": "crashed"}
    return answer


def together(jobs: dict[str, Callable[[], Answer]]) -> dict[str, Answer]:
    """Run jobs two at a time, one for each core."""
    with ThreadPoolExecutor(2) as pool:
        futures = {name: pool.submit(job) for name, job in jobs.items()}
        try:
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def write(instance: Instance, file: Path) -> None:
    """Write an instance for :mod:`bench.exact_process`."""
    none = np.zeros((0, 2), dtype=np.int64)
    given: dict[str, Any] = {}
    if isinstance(instance, WeightedGraph):
        given |= {"linear": -instance.weights, "edges": none, "quadratic": np.zeros(0), "offset": 0.0, "conflicts": instance.edges}
    qubo = instance.to_qubo() if isinstance(instance, Mrf) else instance if isinstance(instance, Qubo) else None
    if isinstance(instance, Mrf):
        given |= {"counts": instance.counts, "constant": instance.constant, "groups": len(instance.groups)}
        for k, group in enumerate(instance.groups):
            given |= {f"scopes{k}": group.scopes, f"tables{k}": group.tables}
    if qubo is not None:
        given |= {"linear": qubo.linear, "edges": qubo.edges, "quadratic": qubo.quadratic, "offset": qubo.offset, "conflicts": none}
    np.savez(file, **given)


def value(instance: Instance, labels: Any) -> float:
    """Energy of labels, recomputed; of a set minus its weight, and infinite if it is not independent."""
    point = np.asarray(labels)
    if isinstance(instance, WeightedGraph):
        return -float(instance.weight(point)) if instance.independent(point) else math.inf
    return float(instance.energy(point))


def slack(instance: Instance, size: float) -> float:
    """What values of an instance may be off by: nearly nothing if coefficients are whole, else what rounding them comes to."""
    if isinstance(instance, WeightedGraph):
        arrays = [instance.weights]
    elif isinstance(instance, Qubo):
        arrays = [instance.linear, instance.quadratic]
    else:
        arrays = [group.tables for group in instance.groups]
    digits = decimals(arrays)
    terms = sum(len(array) for array in arrays)
    return SLACK * max(1.0, abs(size)) + (terms * 10.0**-digits if digits else 0.0)


def judged(instance: Instance, answers: dict[str, Answer], best: float | None) -> tuple[dict[str, Answer], float, list[str]]:
    """Check answers against each other and a known value.

    Returns the answers with the energies of their labels and a text to show, the least energy, and what does not agree.
    """
    best = math.inf if best is None else best
    for answer in answers.values():
        labels = answer.pop("labels", None)
        answer["energy"] = None if labels is None else value(instance, labels)
        best = min(best, math.inf if answer["energy"] is None else answer["energy"])
    wrong = []
    off = slack(instance, best)
    for name, answer in answers.items():
        if "fault" in answer:
            answer["shown"] = answer["fault"]
            continue
        energy, bound = answer["energy"], answer["bound"]
        if bound > best + off:
            wrong.append(f"{name}: bound {bound:.6f} above {best:.6f}")
        if answer["done"] and (energy is None or energy > best + off):
            wrong.append(f"{name}: says {energy} is optimal, not {best:.6f}")
        if answer["done"]:
            answer["shown"] = f"{answer['seconds']:.2f} s"
        elif energy is None or not math.isfinite(energy):
            answer["shown"] = "no labels"
        else:
            gap = 100 * max(0.0, energy - bound) / max(1.0, abs(energy), abs(bound))
            answer["gap"] = gap
            answer["shown"] = f"{gap:.3g} %"
    return answers, best, wrong
