"""Campaigns over processes and over a cluster that loses a node: what it costs, and that nothing is lost."""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.campaign_tasks import sleep, write_queries
from bench.registry import Record, case
from blocklp.campaigns import Executor, InProcess, LocalExecutor, RayExecutor, Task, completed
from blocklp.problems.verification.answers import How
from blocklp.problems.verification.batch import InstanceResult, run_instances

NODES, LOCAL = 3, 2
"""Nodes of the simulated cluster, with one processor each, and processes without it."""
MEMORY = 200_000_000
"""Bytes of a node's object store."""


class Nodes:
    """A Ray cluster of three nodes on this machine; ``lose`` ends one as a power cut would."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._ray = ray
        own = {"num_cpus": 1, "object_store_memory": MEMORY}
        self._cluster = Cluster(initialize_head=True, head_node_args={**own, "include_dashboard": False})
        self._others = [self._cluster.add_node(**own) for _ in range(NODES - 1)]
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self._cluster.wait_for_nodes()

    def lose(self) -> None:
        """End a node."""
        self._cluster.remove_node(self._others.pop(), allow_graceful=False)

    def close(self) -> None:
        """End all."""
        self._ray.shutdown()
        self._cluster.shutdown()


def _queries(
    listed: Path, executor: Executor, lose: Callable[[], None] | None
) -> tuple[list[InstanceResult], list[InstanceResult], float]:
    """Answer queries, losing a node after a third of them; return rows as they came, those of the file, and seconds."""
    rows: list[InstanceResult] = []
    third = len(listed.read_text().split()) // 3

    def told(row: InstanceResult) -> None:
        rows.append(row)
        if lose is not None and len(rows) == third:
            threading.Thread(target=lose).start()

    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = run_instances(listed, Path(folder) / "results.csv", How(), executor, told)
        return rows, run.rows, time.perf_counter() - began


def _naps(executor: Executor, count: int, seconds: float) -> float:
    """Seconds for tasks that sleep, once all workers have started."""
    workers = executor.workers
    list(completed(executor, [Task(k, sleep, (0.5, k)) for k in range(4 * workers)]))
    began = time.perf_counter()
    found = [outcome.value for outcome in completed(executor, [Task(k, sleep, (seconds, k)) for k in range(count)])]
    assert sorted(found) == list(range(count))
    return time.perf_counter() - began


@case(
    "campaigns",
    "Campaigns: verification queries and pauses over processes and a Ray cluster",
    "Queries about the network of the demo (800 ReLUs) and ten digits, of growing radii, by `run_instances`, which carries "
    "`blocklp verify --instances`: in this process, in two processes, and on a Ray cluster of three nodes with one processor each, "
    "simulated on this machine, undisturbed and with a node ended without warning after a third of the queries. `lost` and "
    "`twice` count queries without a row and with more than one, `other verdicts` rows whose verdict is not that of this process. "
    "Starting the workers counts. The last rows are tasks that sleep for one second: `overhead` is what so many workers, "
    "once started, take beyond the time that is needed at least. The machine has two cores, which three workers share: so "
    "seconds of queries on the cluster say little about speed.",
)
def run(quick: bool) -> Iterator[Record]:
    queries, naps, pause = (12, 6, 0.2) if quick else (500, 60, 1.0)
    known: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        listed = write_queries(Path(folder), queries)
        kinds: list[tuple[str, Callable[[ExitStack], tuple[Executor, Any]]]] = [
            ("this process", lambda stack: (stack.enter_context(InProcess()), None)),
            ("processes", lambda stack: (stack.enter_context(LocalExecutor(LOCAL, 1)), None)),
            ("Ray", lambda stack: _on_nodes(stack)),
            ("Ray, a node lost", lambda stack: _on_nodes(stack)),
        ]
        kinds = kinds[:2] if quick else kinds  # a cluster takes long to start
        for name, make in kinds:
            with ExitStack() as stack:
                executor, nodes = make(stack)
                workers = executor.workers
                lose = nodes.lose if name.endswith("lost") else None
                told, rows, seconds = _queries(listed, executor, lose)
                verdicts = {row.key: row.status for row in rows}
                known = known or verdicts
                counts = Counter(row.key for row in told)
                yield {
                    "where": name,
                    "task": "query",
                    "tasks": queries,
                    "workers": workers,
                    "seconds": seconds,
                    "lost": queries - len(verdicts),
                    "twice": sum(count > 1 for count in counts.values()),
                    "other verdicts": sum(known[key] != status for key, status in verdicts.items()),
                    "verdicts": ", ".join(f"{count} {status}" for status, count in sorted(Counter(verdicts.values()).items())),
                    "overhead": None,
                }
        for name, make in kinds[1:3]:
            with ExitStack() as stack:
                executor, _ = make(stack)
                seconds = _naps(executor, naps, pause)
                least = pause * math.ceil(naps / executor.workers)
                yield {"where": name, "task": f"{pause:g} s", "tasks": naps, "workers": executor.workers, "seconds": seconds} | {
                    "lost": 0,
                    "twice": 0,
                    "other verdicts": None,
                    "verdicts": None,
                    "overhead": f"{100 * (seconds / least - 1):.2f} %",
                }


def _on_nodes(stack: ExitStack) -> tuple[Executor, Any]:
    nodes = Nodes()
    stack.callback(nodes.close)
    return stack.enter_context(RayExecutor("auto")), nodes
