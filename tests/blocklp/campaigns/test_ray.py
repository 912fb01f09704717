"""Campaigns on a Ray cluster of three nodes, simulated on this machine."""

import logging
import random
import threading
import time

import pytest

from blocklp.campaigns import InProcess, RayExecutor, Task, completed
from blocklp.errors import ProcessError
from blocklp.search import Sharing, branch_and_bound_over

from ..search.worker_trees import Items
from . import tasks

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="campaigns on clusters need ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=node)
    ray.init(address=found.address, log_to_driver=False, logging_level=logging.ERROR)
    yield found
    ray.shutdown()
    found.shutdown()


def grown(cluster, executor):
    """Add nodes until there are three; return one that may go."""
    node = None
    while len(cluster.list_all_nodes()) < 3:
        node = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    deadline = time.monotonic() + 60
    while executor.workers != 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert executor.workers == 3
    return node


def test_a_node_that_goes_loses_nothing(cluster, tmp_path):
    with RayExecutor(cluster.address) as executor:
        node = grown(cluster, executor)
        (tmp_path / "net.txt").write_text("weights")
        file, absent = executor.share_file(tmp_path / "net.txt"), executor.share_file(tmp_path / "none.txt")
        wanted = [Task(k, tasks.wait, (0.2, k)) for k in range(40)]
        wanted[5:5] = [
            Task("crash", tasks.crash),
            Task("odd", tasks.odd),
            Task("file", tasks.text, (file,)),
            Task("absent", tasks.text, (absent,)),
        ]
        ended = {}
        for outcome in completed(executor, wanted):
            assert outcome.key not in ended
            ended[outcome.key] = outcome
            if len(ended) == 15:
                cluster.remove_node(node, allow_graceful=False)
        assert set(ended) == {task.key for task in wanted}
        assert [ended[k].value for k in range(40)] == list(range(40))
        assert isinstance(ended["crash"].error, ProcessError) and isinstance(ended["absent"].error, FileNotFoundError)
        assert "odd 3" in str(ended["odd"].error)
        assert ended["file"].value[0] == "weights"


def test_a_search_tree_outlives_a_node(cluster):
    draw = random.Random(2)
    ratio = sorted(((draw.randint(5, 30), draw.randint(3, 20)) for _ in range(18)), key=lambda item: -item[0] / item[1])
    room = sum(size for _, size in ratio) // 2
    sharing = Sharing(batch=2, parts=4, subtree=6)
    plain, slow = Items(ratio, room), Items(ratio, room, pause=0.1)
    here, there, lost = [], [], []
    alone = branch_and_bound_over(InProcess(), [plain.root()], plain.expand, sharing=sharing, log=here.append)
    with RayExecutor(cluster.address) as executor:
        node = grown(cluster, executor)

        def lose(event):
            if event.nodes > 20 and not lost:
                lost.append(threading.Thread(target=cluster.remove_node, args=(node, False)))
                lost[0].start()

        found = branch_and_bound_over(executor, [slow.root()], slow.expand, sharing=sharing, callback=lose, log=there.append)
        lost[0].join()
    assert (found.incumbent, found.point, found.bound, found.nodes) == (alone.incumbent, alone.point, alone.bound, alone.nodes)
    assert there == here and found.nodes > 40
