"""The day of a GPU: what matters within ten minutes on a fresh machine, correctness first."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import blocklp as bl
from bench.cases.verification_nodes import INSTANCES, batch_of
from bench.data import data
from bench.device_checks import Differs, compare
from bench.device_places import Place
from bench.instances import ba
from bench.registry import Record, case
from bench.rivals import highs, on_gpu, or_tools_pdlp_on
from blocklp.errors import BlocklpError
from blocklp.general_solvers.solvers import reference
from blocklp.problems.densecrf import DenseCRF, image_crf, solve_densecrf
from blocklp.problems.densecrf.mean_field import mean_field_update
from blocklp.problems.matching import Matching, matching_model
from blocklp.problems.qpbo import Qubo, QuboBatch, roof_duality_batch, roof_duality_model
from blocklp.problems.verification import Network, Property, digits, network_bounds, read_onnx, read_property, relu_splits, verify
from blocklp.problems.verification.verdict import VerificationEvent

BYTES_OF_EDGE = 600
"""Memory of the device for an edge, arrays and building included (docs/gpu.md)."""

GAP = 1e-3
LIMIT = 30.0
"""Seconds for a rival on one instance."""

COUNTED = (4_000, 6_000, 8_000)
"""Edges of the graphs that are counted on the simulated device."""

PASSES = 61
"""Passes that are counted there: those of a graph of 10,000 edges to a gap of 1e-3."""

CORNERS = (20, 30)
"""Pixels a side of the corners of a picture that are counted there."""

FEW = (16, 32)
"""Nodes of the batches that are counted there."""

LINEAR = 1.05
"""Most that bytes an edge or node may differ between sizes."""

SMALL = 200_000
"""Edges up to which HiGHS and OR-tools PDLP are asked."""

KNOWN = Path(__file__).parents[2] / "docs" / "benchmarks" / "device.json"


def predictions() -> dict[tuple[str, str], float]:
    """Seconds that the model of the simulated device predicts, by what and size, from the committed page."""
    if not KNOWN.exists():
        return {}
    records = json.loads(KNOWN.read_text())["records"]
    return {(r["what"], r["size"]): r["predicted"] for r in records if r.get("predicted") is not None}


def preferential(edges: int, device: torch.device) -> QuboBatch:
    """A weighted independent set on a graph of about so many edges, as in the page ``large``, made on the device."""
    n, draw = edges // 4, torch.Generator().manual_seed(0)
    later = torch.arange(4, n, device=device).repeat_interleave(4, output_size=4 * (n - 4))
    power = torch.rand(len(later), dtype=torch.float64, generator=draw).to(device).pow_(1.5)
    key = torch.unique((later * power).long() * n + later)
    ends = torch.stack([key // n, key % n], 1)
    del later, power, key
    weights = torch.rand(n, dtype=torch.float64, generator=draw).to(device)
    quadratic = torch.maximum(weights[ends[:, 0]], weights[ends[:, 1]])
    first = [torch.tensor([0, size], device=device) for size in (n, len(ends))]
    return QuboBatch(-weights, ends, quadratic, *first)


def on_host(qubos: QuboBatch) -> Qubo:
    """A batch of one as an instance, for the rivals."""
    return Qubo(qubos.linear.cpu().numpy(), qubos.edges.cpu().numpy(), qubos.quadratic.cpu().numpy())


class Table:
    """Rows of the page, which all have the same keys."""

    def __init__(self, place: Place, seconds: float) -> None:
        self.place, self.began, self.seconds, self.known = place, time.perf_counter(), seconds, predictions()

    def left(self) -> bool:
        """Whether there is time for another stage."""
        return time.perf_counter() - self.began < self.seconds

    def row(self, what: str, size: str, measured: dict[str, Any], passes: int | None, result: str, **more: Any) -> Record:
        """One row: seconds and passes apart, and what others take."""
        seconds = measured["seconds"]
        empty = dict.fromkeys(("build", "HiGHS", "OR-tools PDLP", "cuPDLPx", "cuOpt"))
        record = {
            "what": what,
            "size": size,
            "passes": passes,
            "seconds": seconds,
            "predicted": measured["predicted"] if seconds is None else self.known.get((what, size)),
            **(empty | more),
            "launches": measured["launches"],
            "waits": measured["waits"],
            "GB": measured["GB"],
            "result": result,
        }
        print(record, file=sys.stderr, flush=True)
        return record

    def rivals(self, model: bl.Model, edges: int, tol: float) -> Record:
        """Seconds of general solvers: on the CPU for what is small, on the device where they are installed."""
        found: Record = {}
        if edges <= SMALL and self.left():
            found["OR-tools PDLP"] = or_tools_pdlp_on(model, tol, LIMIT)["seconds"]
            found["HiGHS"] = reference(model, "highs-ipm").seconds if edges <= SMALL // 4 else None
        for name, solver in (("cuPDLPx", "cupdlpx"), ("cuOpt", "cuopt")):
            if self.place.real and self.left() and (answer := on_gpu(solver, model, tol, LIMIT)) is not None:
                found[name] = answer["seconds"]
        return found


def batch(table: Table, quick: bool) -> Iterator[Record]:
    """Many graphs from arrays on the device."""
    place = table.place
    count = 4 if quick else 4096
    some = count if place.real else min(count, 8)  # simulated: the others have as many bytes
    qubos = [ba(200, seed) for seed in range(some)]
    arrays = QuboBatch.of(qubos).to(place.device)
    scale = count / some
    with place.with_triton():
        solver, building = place.measured(partial(compiled, arrays), scale)
        _, first = place.measured(lambda: solver.solve(tol=GAP, passes=1), scale)
        _, again = place.measured(lambda: solver.solve(tol=GAP, passes=1), scale)
        found, measured = place.measured(lambda: solver.solve(tol=GAP), scale)
    yield table.row("building, batch of BA-200", f"{count}", building, None, "from arrays on the device")
    done = sum(s is bl.Status.OPTIMAL for s in found.status)
    cores = os.cpu_count() or 1
    theirs = sum(highs(q, "simplex")[1] for q in qubos[:8]) / len(qubos[:8]) * count / cores
    passes, result = int(found.passes.max()), f"{done} of {some} optimal, {solver.backend}"
    if not place.real:
        result += f"; a first solve {first['predicted'] - again['predicted']:.1g} s more"
    yield table.row("batch of BA-200", f"{count}", measured, passes, result, build=building["seconds"], HiGHS=theirs)


def compiled(arrays: QuboBatch) -> bl.Solver:
    """Build the problem of graphs."""
    solver = roof_duality_batch(arrays).compile(dtype=torch.float32)
    solver.decomposition()
    return solver


def scaling(table: Table, quick: bool) -> Iterator[Record]:
    """One graph of growing size; simulated: what is counted at small sizes, with as many more bytes."""
    place = table.place
    sizes = (10_000,) if quick else (100_000, 1_000_000, 10_000_000, 100_000_000)
    if not place.real:
        yield from extrapolated(table, sizes, COUNTED[:2] if quick else COUNTED)
        return
    for edges in sizes:
        if not table.left() or edges * BYTES_OF_EDGE > place.free_bytes():
            return
        arrays = preferential(edges, place.device)
        solver, building = place.measured(partial(compiled, arrays))
        found, measured = place.measured(lambda solver=solver: solver.solve(tol=GAP))
        rivals: Record = {}
        if edges <= 1_000_000:
            rivals = table.rivals(roof_duality_model(on_host(arrays)), edges, GAP)
        yield table.row("building, one graph", f"{edges} edges", building, None, "from arrays on the device")
        result = f"gap {float(found.gap):.1e}, {solver.backend}"
        passes = int(found.passes)
        yield table.row("one graph", f"{edges} edges", measured, passes, result, build=building["seconds"], **rivals)
        del arrays, solver, found


@contextmanager
def as_large() -> Iterator[None]:
    """Let small instances take the kernels and index tables of large ones, whose launches do not depend on the size."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from blocklp.kernels import triton_admm, triton_check_operations, triton_checks

    with (
        mock.patch.object(triton_admm, "_together", lambda plan, tables: False),
        mock.patch.object(triton_check_operations, "is_small", lambda size: False),
        mock.patch.multiple(triton_checks, is_small=lambda size: False, INDICES=(torch.int32, torch.int64)),
    ):
        yield


def same_but_for_bytes(traces: list[tuple[int, Any]], most: float = 1.0) -> None:
    """Check that what was counted for several sizes may be extrapolated.

    Parameters
    ----------
    traces : list
        Sizes, and what was counted.
    most : float
        Factor by which launches and waits may differ.

    Raises
    ------
    RuntimeError
        If these differ by more, or bytes do not grow with the size.
    """
    counts = [trace.launches + trace.syncs for _, trace in traces]
    rates = [trace.bytes / size for size, trace in traces]
    if max(counts) > most * min(counts) or max(rates) > LINEAR * min(rates):
        raise RuntimeError(f"launches and waits {counts}, bytes by size {rates}: they depend on the size")


def extrapolated(table: Table, sizes: tuple[int, ...], small: tuple[int, ...]) -> Iterator[Record]:
    """Graphs whose launches and waits are those of small ones, and whose bytes grow by the edge.

    Raises
    ------
    RuntimeError
        If that is not so.
    """
    place, kept, traces = table.place, {}, []
    for edges in small:
        arrays = preferential(edges, place.device)
        with place.with_triton(), as_large():
            solver, building = place.counted(partial(compiled, arrays))
            solver.solve(tol=0, passes=1)  # lays out the tables
            found, solve = place.counted(lambda s=solver: s.solve(tol=0, passes=PASSES, patience=10**6))
        exact = len(arrays.edges)
        traces.append((exact, building, solve))
        kept[edges] = f"gap {float(found.gap):.1e} of {exact} edges, {solver.backend}, {int(found.passes)} passes"
        print(exact, solve.launches, solve.syncs, solve.bytes / exact, file=sys.stderr, flush=True)
    same_but_for_bytes([(exact, solve) for exact, _, solve in traces])
    exact, building, solve = traces[-1]
    for edges in sizes:
        build = place.predicted(building, edges / exact)
        yield table.row("building, one graph", f"{edges} edges", build, None, "from arrays on the device")
        row = place.predicted(solve, edges / exact)
        yield table.row("one graph", f"{edges} edges", row, PASSES, kept[small[-1]])


def matching(table: Table, quick: bool) -> Iterator[Record]:
    """Rows beside the blocks: primal-dual passes."""
    place = table.place
    sizes = [(300, 30, 0.1), (10_000, 100, 0.05), (100_000, 1_000, 0.01)]
    for size in sizes[:1] if quick or not place.real else sizes[1:]:
        if not table.left():
            return
        data = Matching.random(*size)
        model = matching_model(data)
        tol, passes = (1e-4, 100_000) if place.real else (1e-2, 400)
        with place.with_triton():
            solver = model.compile(device=place.device)
            work = partial(solver.solve, method="pdhg", tol=tol, passes=passes)
            first = None if place.real else place.measured(work)[1]["predicted"]  # lays out the tables
            found, measured = place.measured(work)
        rivals = table.rivals(model, data.edges, tol)
        result = f"gap {float(found.gap):.1e}, {solver.backend}"
        if first is not None:
            result += f"; a first solve {first - measured['predicted']:.1g} s more"
        yield table.row(f"matching to {tol:g}", f"{data.edges} edges", measured, int(found.passes), result, **rivals)


def verification(table: Table, quick: bool) -> Iterator[Record]:
    """Bounds of all layers of the network that reads digits."""
    place = table.place
    network, images, _ = digits.load()
    there = network.to(torch.float64, place.device)
    low, high = (side.to(place.device) for side in ((images[3] - 1 / 16).clamp(0, 1), (images[3] + 1 / 16).clamp(0, 1)))
    for method in ("crown",) if quick else ("crown", "slopes"):
        found, measured = place.measured(lambda method=method: network_bounds(there, low, high, method=method))
        width = float((found.layers[-1].upper - found.layers[-1].lower).mean())
        yield table.row(f"network_bounds, {method}", "digits, 1 image", measured, None, f"mean width of outputs {width:.4g}")


def nodes(table: Table, quick: bool) -> Iterator[Record]:
    """Branch and bound over signs; simulated: a batch of as many nodes as a device takes, from batches of few."""
    place, (name, image) = table.place, INSTANCES[0]
    try:
        network = read_onnx(data(f"verification/oval21/nets/{name}.onnx"))
    except FileNotFoundError as error:
        nothing = dict.fromkeys(("seconds", "predicted", "launches", "waits", "GB"))
        yield table.row("nodes of oval21", name, nothing, None, f"not measured: {error}")
        return
    prop = read_property(data(f"verification/oval21/specs/{name}-{image}.vnnlib"), network.inputs, network.outputs)
    network = network.to(torch.float64, place.device)
    most = batch_of(network, prop)
    if place.real:
        found, measured = place.measured(partial(verify, network, prop, timeout=5.0 if quick else LIMIT, attack=False))
        speed = found.nodes / found.phases["search"]
    else:
        traces = [(few, full_batch(network, prop, few)) for few in FEW[: 1 if quick else None]]
        same_but_for_bytes(traces, LINEAR)  # leaves take some launches more
        measured = place.predicted(traces[-1][1], most / traces[-1][0])
        speed = most / measured["predicted"]
    yield table.row("nodes of oval21", f"{name}, {most} a batch", measured, None, f"{speed:.3g} nodes a second")


def full_batch(network: Network, prop: Property, most: int) -> Any:
    """Count the first batch of as many nodes as there may be on the simulated device."""
    from tests import simulated_device

    found: list[Any] = []
    with simulated_device.watch("blocklp") as trace:
        before = 0, 0

        def tell(progress: VerificationEvent) -> None:
            nonlocal before
            count = 0 if progress.search is None else progress.search.nodes
            if count - before[1] == most:
                found.append(trace.events[before[0] :])
                raise KeyboardInterrupt
            before = len(trace.events), count

        with mock.patch.object(relu_splits, "MOST_NODES", most):
            verify(network, prop, attack=False, callback=tell)
    return simulated_device.Trace(trace.prefix, events=found[0])


def picture(side: int, labels: int, device: torch.device) -> DenseCRF:
    """The energy of a corner of a picture of shades with noise, with random costs in single precision."""
    draw = torch.Generator().manual_seed(0)
    shades = 255 * torch.rand(1, 3, 21, 21, generator=draw)
    image = torch.nn.functional.interpolate(shades, (500, 500), mode="bilinear")[0].movedim(0, 2)
    image = (image + 4 * torch.randn(image.shape, generator=draw)).clamp(0, 255)[:side, :side]
    return image_crf(image.to(device), 3 * torch.rand(side, side, labels, generator=draw).to(device))


def lattice(table: Table, quick: bool) -> Iterator[Record]:
    """Mean field of a dense CRF on lattices: a solve, and one iteration; simulated: counted in corners of the picture."""
    place, steps, labels = table.place, 3 if quick else 10, 3 if quick else 21
    sides, some = ((500,), labels) if place.real else (CORNERS, 3)
    crf, building = place.measured(partial(picture, sides[0], some, place.device))
    found, measured = place.measured(partial(solve_densecrf, crf, "mean-field", steps=steps))
    size = f"{sides[0]} x {sides[0]}, {some} labels"
    result = f"energy {float(found.energy):.6g}"
    yield table.row("dense CRF, mean field", size, measured, steps, result, build=building["seconds"])
    iterations = []
    with place.with_triton():
        for side in sides:
            crf = picture(side, labels, place.device)
            q = mean_field_update(crf, crf.unary.softmax(1))  # the first one finds what kernels are normalised by
            iterations.append(partial(mean_field_update, crf, q))
        if place.real:
            measured, result = place.measured(iterations[0])[1], "two kernels"
        else:
            traces = [(side**2, place.counted(work)[1]) for side, work in zip(sides, iterations, strict=True)]
            pixels, trace = traces[-1]
            measured = place.predicted(trace, 500**2 / pixels)
            result = "two kernels; bytes a pixel: " + ", ".join(f"{t.bytes / size:.0f} of {size}" for size, t in traces)
    yield table.row("one iteration of mean field", f"500 x 500, {labels} labels", measured, 1, result)


STAGES: tuple[Callable[[Table, bool], Iterator[Record]], ...] = (batch, scaling, matching, verification, nodes, lattice)


@case(
    "device",
    "A GPU: correctness first, then what matters",
    "**`seconds` are measured on the device that the line below names; where the result of the first row says `simulated`, there "
    "was none: no second was measured, and `predicted` are seconds of a model** of an H100 that counts launches, memory traffic and "
    "waits of the operations "
    "that would run there (3.35 TB/s, 4 us a launch, 10 us a wait), nothing of which was calibrated; sizes beyond those that the "
    "simulation runs have as many more bytes. Of one graph, launches and waits are counted at 4,000, 6,000 and 8,000 edges "
    "by the kernels of large graphs, "
    "where they must be equal and bytes an edge agree to 5 %; passes are those of 10,000 edges. Kernels of Triton are counted in its "
    "interpreter for the batch, one graph, matching and an iteration of mean field, bytes being all that they load and store, though "
    "caches serve some; the other rows are torch's own kernels. A solve is a later one of its solver, whose tables are laid out. "
    "Nodes of oval21: one batch as large as a device takes, with the launches of a batch of 32 and its bytes a node, which those of "
    "16 agree with to 5 %; what the host does beside launching and waiting, and arithmetic, take no time in the model. An "
    "iteration of mean field: bytes a pixel of a corner of 900 pixels of shades with noise, which still grow with the corner. "
    "float32 with bounds in float64, to a certified gap of 1e-3. `build`: seconds from "
    "arrays on the device to a compiled solver. Others on the machine's CPU, without building their LP but for PDLP's own "
    "data: HiGHS's simplex method on all cores for batches (extrapolated from eight instances), else its interior point; OR-tools "
    "PDLP; cuPDLPx and cuOpt on the device, where they are installed. `-`: not measured, not asked for its size, or not there.",
    minutes=15.0,
)
def run(quick: bool, minutes: float) -> Iterator[Record]:
    place = Place.of_this_machine()
    table = Table(place, 60 * minutes)
    began = time.perf_counter()
    try:
        count = compare(place.device, quick)
    except Differs as error:
        raise SystemExit(f"wrong answers, so that nothing was measured: {error}") from error
    nothing = dict.fromkeys(("seconds", "predicted", "launches", "waits", "GB"))
    spent = nothing | {"seconds": time.perf_counter() - began if place.real else None}
    yield table.row("checks against the CPU", f"{count} answers", spent, None, f"all agree on {place.name}")
    for stage in STAGES:
        try:
            if table.left():
                yield from stage(table, quick)
        except (BlocklpError, RuntimeError) as error:  # the others are worth knowing
            yield table.row(stage.__name__, "-", nothing, None, f"failed: {type(error).__name__}: {error}".partition("\n")[0])
