"""One LP over processes that are killed at random times and resumed by others."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.cases.distributed import measured, started
from bench.registry import Record, case


@case(
    "distributed_kills",
    "One LP over processes: killed at random times, resumed by others",
    "Roof duality of a random graph, saved every 20 passes at least. In every row one process of two or three is killed "
    "(SIGKILL) at a random time, the others end, and the next row's processes go on in the same folder. The last two rows "
    "are the solve that goes on to the end, and one that nobody disturbed.",
)
def run(quick: bool) -> Iterator[Record]:
    pairs, count, draw = 4000, 2 if quick else 20, random.Random(0)
    given = {"graph": "random", "pairs": pairs, "sums": "fixed", "save_every": 20}
    with tempfile.TemporaryDirectory() as folder:
        save, best = Path(folder) / "saved", -float("inf")
        for number in range(count):
            world = 2 + number % 2
            running = started(world, folder, **given, passes=10**6, save=str(save))
            before = _saved(save)[0]
            while _saved(save)[0] == before:
                time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.5))
            lost = draw.randrange(world)
            running[lost].kill()
            for process in running:
                process.communicate()
            passes, bound = _saved(save)
            answered = all(process.returncode == 1 for rank, process in enumerate(running) if rank != lost)
            fine = answered and bound >= best
            yield {"processes": world, "killed": lost, "passes": passes, "bound": bound, "as it must be": "yes" if fine else "no"}
            best = bound
        last = passes + 40
        found = measured(1, folder, **given, passes=last, save=str(save))
        right = measured(2, folder, **given, passes=last)
        for world, answer in ((1, found), (2, right)):
            fine = answer["bound"] >= best and answer["hash"] == right["hash"]
            record = {"processes": world, "killed": None, "passes": last, "bound": answer["bound"]}
            yield record | {"as it must be": "yes" if fine else "no"}


def _saved(folder: Path) -> tuple[int, float]:
    """Passes and bound of what was saved last; none before that."""
    from blocklp.results import saved

    try:
        latest = json.loads((folder / "latest.json").read_text())
        numbers = saved.read(folder / latest["folder"] / f"0-of-{latest['world']}", ("checkpoint",))[1]
    except OSError:  # before the first one, or while the next one takes its place
        return 0, -float("inf")
    return int(numbers["number_place"][0]), float(numbers["number_bound"])
