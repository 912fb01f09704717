"""Processes of a test: a server that has imported what they need forks them, so that each starts at once."""

import multiprocessing
import os
import queue
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch.distributed", "blocklp.distributed.solve", "blocklp.problems.qpbo"])


def together(work, world, *arguments, seconds=60):
    """What ``work(*arguments)`` returns or raises in each process of a group, by rank; None where it never ends."""
    with tempfile.TemporaryDirectory() as folder:
        answers = CONTEXT.Queue()
        given = os.path.join(folder, "store"), world, answers, work, arguments
        started = [CONTEXT.Process(target=_run, args=(rank, *given), daemon=True) for rank in range(world)]
        for process in started:
            process.start()
        found, until = [None] * world, time.monotonic() + seconds
        try:
            for _ in range(world):
                rank, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
                found[rank] = answer
        except queue.Empty:
            pass
        for process in started:
            process.kill()
            process.join()
        return found


def _run(rank, store, world, answers, work, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    try:
        answer = work(*arguments)
    except BaseException as error:
        traceback.print_exc()
        answer = error
    answers.put((rank, answer))
    answers.close()
    answers.join_thread()
    time.sleep(60)  # who ends closes connections, which others may still need
