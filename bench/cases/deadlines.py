"""Time limits of calls and commands, beside two busy processes."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.cases.general import cover, unit_commitment
from bench.registry import Record, case
from bench.soak import clock, networks, readers
from bench.soak.trial import Draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORTEST, LONGEST = 0.5, 30.0

STARTED = 5.0
"""Shortest limit of a command: to import torch beside busy processes takes longer than less."""

COUNT = 200

BUSY = 2
"""Processes that calculate meanwhile."""

LOST = 120.0
"""Seconds beyond the limit after which a process is ended."""

CLI = [sys.executable, "-m", "blocklp"]

NOTE = f"""Lateness of calls and commands: seconds beyond their limit, from {SHORTEST:g} ({STARTED:g} for commands) to
{LONGEST:g} s, beside {BUSY} processes that calculate all the time.  The bar is 5 % of the limit or {clock.SECONDS} s.  Calls are
timed inside their process without imports; commands from the start of their process to its end, imports included.  In every second
round numba finds an empty cache.  What ends before its limit is in time.  Each row is one kind of call: `findings` counts those
beyond the bar."""

Command = Callable[[Draw, Path], list[str]]


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _maxcut(draw: Draw, folder: Path) -> str:
    """A max-cut file of a few hundred or some ten thousand edges."""
    n = draw.pick(60, 300, 2000)
    pairs = {tuple(sorted(draw.random.choice(n, 2, replace=False).tolist())) for _ in range(draw.pick(4, 20) * n)}
    body = "\n".join(f"{i + 1} {j + 1} {int(draw.random.integers(-9, 10)) or 1}" for i, j in sorted(pairs))
    return _write(folder / "g.mc", f"{n} {len(pairs)}\n{body}\n")


def _graph(draw: Draw, folder: Path) -> str:
    n = draw.pick(100, 300, 600)
    pairs = np.argwhere(np.triu(draw.random.random((n, n)) < draw.pick(0.05, 0.3), 1)) + 1
    return _write(folder / "g.mis", f"p edge {n} {len(pairs)}\n" + "".join(f"e {i} {j}\n" for i, j in pairs.tolist()))


def _field(draw: Draw, folder: Path) -> str:
    n, labels = draw.pick(20, 60, 200), draw.pick(4, 12, 30)
    pairs = [(i, j) for i in range(n) for j in range(i) if draw.chance(6 / n)]
    lines = ["MARKOV", str(n), " ".join([str(labels)] * n), str(len(pairs)), *(f"2 {i} {j}" for i, j in pairs)]
    for _ in pairs:
        lines += [str(labels**2), " ".join(f"{v:.4f}" for v in draw.random.random(labels**2) + 0.01)]
    return _write(folder / "f.uai", "\n".join(lines) + "\n")


def _verify(draw: Draw, folder: Path) -> list[str]:
    sizes = [draw.pick(5, 30), *[draw.pick(20, 60)] * draw.pick(2, 4), 5]
    layers = [
        (draw.random.normal(size=(b, a)).astype(np.float32) / math.sqrt(a), draw.random.normal(size=b).astype(np.float32) / 10)
        for a, b in itertools.pairwise(sizes)
    ]
    networks.write_onnx(layers, folder / "n.onnx")
    centre = draw.random.integers(-99, 99, sizes[0])
    box = [[networks._decimal(int(v), 2) for v in side] for side in (centre - 60, centre + 60)]
    networks.Query(box[0], box[1], [([1, -1, 0, 0, 0], "-4.5"), ([1, 0, -1, 0, 0], "-4.5")]).write(folder / "q.vnnlib")
    return ["verify", str(folder / "q.vnnlib"), "--network", str(folder / "n.onnx"), "--quiet", "--timeout"]


def _bounds(draw: Draw, folder: Path) -> list[str]:
    _verify(draw, folder)
    return ["verify", str(folder / "q.vnnlib"), "--network", str(folder / "n.onnx"), "--no-attack", "--quiet", "--timeout"]


def _densecrf(draw: Draw, folder: Path) -> list[str]:
    from PIL import Image

    height, width = draw.pick(60, 240), draw.pick(80, 320)
    Image.fromarray(draw.random.integers(0, 256, (height, width, 3)).astype(np.uint8)).save(folder / "i.png")
    np.save(folder / "u.npy", draw.random.normal(size=(height, width, draw.pick(3, 21))))
    method = draw.pick("mean-field", "prox-lp", "qp-cvx", "dc-neg", "sg-lp")
    return ["densecrf", str(folder / "i.png"), "--unary", str(folder / "u.npy"), "--method", method, "--time-limit"]


def _large(draw: Draw, folder: Path) -> list[str]:
    """A file that takes its time to read."""
    n = draw.pick(20_000, 200_000)
    pairs = draw.random.integers(1, n + 1, (3 * n, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    text = "".join(f"{i} {j} 1\n" for i, j in pairs.tolist())
    path = folder / "large.mc.gz"
    path.write_bytes(readers.COMPRESSIONS[".gz"](f"{n} {len(pairs)}\n{text}".encode()))
    return ["qpbo", str(path), "--quiet", *(["--exact"] if draw.chance(0.5) else []), "--time-limit"]


def _linear_program(draw: Draw, folder: Path) -> list[str]:
    """A covering LP, or one of unit commitment."""
    model = cover(draw.pick(300, 30_000), 1e6) if draw.chance(0.5) else unit_commitment(draw.pick(50, 1500), 24)
    model.linear_program().to_mps(folder / "p.mps")
    return ["lp", str(folder / "p.mps"), "--time-limit"]


COMMANDS: dict[str, Command] = {
    "blocklp qpbo": lambda draw, folder: ["qpbo", _maxcut(draw, folder), "--quiet", "--tol", "1e-9", "--time-limit"],
    "blocklp qpbo --tighten": lambda draw, folder: ["qpbo", _maxcut(draw, folder), "--quiet", "--tighten", "--time-limit"],
    "blocklp qpbo --exact": lambda draw, folder: ["qpbo", _maxcut(draw, folder), "--quiet", "--exact", "--time-limit"],
    "blocklp qpbo, large file": _large,
    "blocklp mis": lambda draw, folder: ["mis", _graph(draw, folder), "--quiet", "--tol", "1e-9", "--time-limit"],
    "blocklp mis --exact": lambda draw, folder: ["mis", _graph(draw, folder), "--quiet", "--exact", "--time-limit"],
    "blocklp mrf": lambda draw, folder: ["mrf", _field(draw, folder), "--quiet", "--tol", "1e-9", "--time-limit"],
    "blocklp mrf --rounds": lambda draw, folder: ["mrf", _field(draw, folder), "--quiet", "--rounds", "20", "--time-limit"],
    "blocklp mrf --exact": lambda draw, folder: ["mrf", _field(draw, folder), "--quiet", "--exact", "--time-limit"],
    "blocklp lp": _linear_program,
    "blocklp verify": _verify,
    "blocklp verify --no-attack": _bounds,
    "blocklp densecrf": _densecrf,
}
"""Commands: each takes a draw and a folder to arguments that end where the limit goes."""


def draw_picture(records: list[Record], figure: Figure) -> None:
    """Lateness against the limit, with the bar."""
    axes = figure.subplots(1, 2, sharey=True)
    for ax, kind in zip(axes, ("calls", "commands"), strict=True):
        for record in records:
            if record["kind"] == kind:
                limits, late = zip(*record["runs"]["all"], strict=True)
                ax.plot(limits, [max(v, 1e-3) for v in late], "o", ms=4, label=record["what"])
        line = np.geomspace(SHORTEST, LONGEST, 50)
        ax.plot(line, np.maximum(clock.SHARE * line, clock.SECONDS), "k--", lw=1)
        ax.set(xscale="log", yscale="log", xlabel="limit in seconds", title=kind)
        ax.legend(fontsize=6, ncols=2)
    axes[0].set_ylabel("seconds late (0.001: in time)")


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes calculating."""
    own = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10**6))"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in own:
            process.kill()
            process.wait()


@case("deadlines", "Time limits", NOTE, draw=draw_picture, count=COUNT, seed=0)
def run(quick: bool, count: float, seed: float) -> list[Record]:
    names = [("calls", name) for name in clock.CALLS] + [("commands", name) for name in COMMANDS]
    runs: dict[tuple[str, str], list[tuple[float, float]]] = {name: [] for name in names}
    with busy(BUSY), tempfile.TemporaryDirectory() as known:
        for number in range(4 if quick else int(count)):
            kind, name = names[(5 * number if quick else number) % len(names)]
            random = np.random.default_rng([int(seed), number])
            least = SHORTEST if kind == "calls" else STARTED
            limit = float(np.exp(random.uniform(math.log(least), math.log(2 * least if quick else LONGEST))))
            cold = (number // len(names)) % 2 == 1
            over = _call(name, number, limit, known, cold) if kind == "calls" else _command(name, random, limit, known, cold)
            runs[kind, name].append((limit, over))
            allowed = max(clock.SHARE * limit, clock.SECONDS)
            mark = "LATE" if over > allowed else "in time"
            print(f"{number:4} {kind} {name}, limit {limit:.2f} s, late by {over:.2f} s: {mark}", file=sys.stderr, flush=True)
    records = []
    for (kind, name), own in runs.items():
        if not own:
            continue
        wrong = [over for limit, over in own if over > max(clock.SHARE * limit, clock.SECONDS)]
        records.append(
            {
                "kind": kind,
                "what": name,
                "runs": {"shown": len(own), "all": own},
                "findings": len(wrong),
                "median seconds late": max(0.0, float(np.median([over for _, over in own]))),
                "most": max(0.0, *(over for _, over in own)),
                "limit there": max(own, key=lambda pair: pair[1])[0],
            }
        )
    return records


def _environment(known: str, fresh: str, cold: bool) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": fresh if cold else known}


def _call(name: str, seed: int, limit: float, known: str, cold: bool) -> float:
    """Seconds beyond the limit of a call in a process of its own."""
    command = [sys.executable, "-m", "bench.deadline_call", name, str(seed), str(limit)]
    with tempfile.TemporaryDirectory() as fresh:
        try:
            # Building what is given takes its time before.
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, timeout=limit + 3 * LOST, env=_environment(known, fresh, cold)
            )
        except subprocess.TimeoutExpired:
            return LOST
    return float(json.loads(done.stdout)["seconds"]) - limit


def _command(name: str, random: np.random.Generator, limit: float, known: str, cold: bool) -> float:
    """Seconds beyond the limit of a command, from the start of its process to its end."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as fresh:
        arguments = COMMANDS[name](Draw(random, 1.0), Path(folder))
        began = time.perf_counter()
        try:
            done = subprocess.run(
                [*CLI, *arguments, str(limit)],
                capture_output=True,
                text=True,
                timeout=limit + LOST,
                cwd=folder,
                env=_environment(known, fresh, cold),
            )
        except subprocess.TimeoutExpired:
            return LOST
        over = time.perf_counter() - began - limit
    if "Traceback" in done.stderr:
        raise RuntimeError(f"{name} ends with a trace: {done.stderr[-500:]}")
    return over
