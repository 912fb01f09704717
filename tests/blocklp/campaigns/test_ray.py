"""Campaigns on a Ray cluster of three nodes, simulated on this machine."""

import logging
import time

import pytest

from blocklp.campaigns import RayExecutor, Task, completed
from blocklp.errors import ProcessError

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


def test_a_node_that_goes_loses_nothing(cluster, tmp_path):
    with RayExecutor(cluster.address) as executor:
        there = [cluster.add_node(num_cpus=1, object_store_memory=80_000_000) for _ in range(2)]
        deadline = time.monotonic() + 30
        while executor.workers < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert executor.workers == 3
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
                cluster.remove_node(there[0], allow_graceful=False)
        assert set(ended) == {task.key for task in wanted}
        assert [ended[k].value for k in range(40)] == list(range(40))
        assert isinstance(ended["crash"].error, ProcessError) and isinstance(ended["absent"].error, FileNotFoundError)
        assert "odd 3" in str(ended["odd"].error)
        assert ended["file"].value[0] == "weights"
