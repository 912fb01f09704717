"""Files: those that are right are read right under any compression and suffix, others are refused in little time and memory."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import math
import re
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from bench.soak import child
from bench.soak.child import Refused
from bench.soak.trial import Draw, Finding, claim, trial

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}

SECONDS = 20.0
"""Longest time that a small file may take, on a busy machine."""


def _texts(values: object) -> str:
    return " ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)  # type: ignore[attr-defined]


def sparse(draw: Draw) -> tuple[str, object]:
    """A matrix, and what is read: the number of variables and all energies."""
    n = draw.count(2, 6)
    pairs = [(i, j) for i in range(1, n + 1) for j in range(i, n + 1) if draw.chance(0.6)] or [(1, 2)]
    entries = [float(v) for v in draw.random.integers(-99, 100, len(pairs)) / 2]
    text = "\n".join([f"{n} {len(pairs)}", *(f"{i} {j} {v:g}" for (i, j), v in zip(pairs, entries, strict=True))])
    found = []
    for y in itertools.product((0, 1), repeat=n):
        found.append(sum(v * y[i - 1] * y[j - 1] * (1 if i == j else 2) for (i, j), v in zip(pairs, entries, strict=True)))
    return text, (n, found)


def maxcut(draw: Draw) -> tuple[str, object]:
    """A graph with weights, and minus the weights of all cuts."""
    n = draw.count(2, 6)
    pairs = [p for p in itertools.combinations(range(1, n + 1), 2) if draw.chance(0.7)] or [(1, 2)]
    weights = draw.random.integers(-9, 10, len(pairs)).tolist()
    text = "\n".join([f"{n} {len(pairs)}", *(f"{i} {j} {w}" for (i, j), w in zip(pairs, weights, strict=True))])
    cuts = []
    for y in itertools.product((0, 1), repeat=n):
        cuts.append(-float(sum(w for (i, j), w in zip(pairs, weights, strict=True) if y[i - 1] != y[j - 1])))
    return text, (n, cuts)


def dimacs(draw: Draw) -> tuple[str, object]:
    """A graph: weights and edges."""
    n = draw.count(2, 7)
    edges = [p for p in itertools.combinations(range(1, n + 1), 2) if draw.chance(0.6)]
    weights = draw.random.integers(1, 9, n).astype(float).tolist() if draw.chance(0.5) else [1.0] * n
    lines = ["c a graph", f"p edge {n} {len(edges)}"]
    if draw.chance(0.5) or weights != [1.0] * n:
        lines += [f"n {i + 1} {w:g}" for i, w in enumerate(weights)]
    lines += [f"e {i} {j}" for i, j in edges]
    return "\n".join(lines) + "\n", (weights, [[i - 1, j - 1] for i, j in edges])


def _field(draw: Draw) -> tuple[list[int], list[tuple[list[int], np.ndarray]]]:
    counts = draw.random.integers(1, 4, draw.count(2, 4)).tolist()
    factors = []
    for _ in range(draw.count(1, 5)):
        scope = draw.random.permutation(len(counts))[: draw.count(1, min(3, len(counts)))].tolist()
        factors.append((scope, draw.random.integers(0, 9, [counts[i] for i in scope])))
    return counts, factors


def uai(draw: Draw) -> tuple[str, object]:
    """Potentials, zeros included, and their energies."""
    counts, factors = _field(draw)
    lines = ["MARKOV", str(len(counts)), _texts(counts), str(len(factors))]
    lines += [f"{len(scope)} {_texts(scope)}" for scope, _ in factors]
    for _, table in factors:
        lines += ["", str(table.size), _texts(table.ravel().tolist())]
    found = []
    for x in itertools.product(*map(range, counts)):
        values = [float(table[tuple(x[i] for i in scope)]) for scope, table in factors]
        found.append(math.inf if 0.0 in values else -sum(map(math.log, values)))
    return "\n".join(lines) + "\n", (counts, found)


def wcsp(draw: Draw) -> tuple[str, object]:
    """Costs below an upper bound, and all sums of them, infinite from the upper bound on."""
    counts, factors = _field(draw)
    top = draw.count(3, 40)
    lines = [f"random {len(counts)} {max(counts)} {len(factors)} {top}", _texts(counts)]
    for scope, table in factors:
        default = int(draw.random.integers(0, 9))
        entries = [(k, v) for k, v in np.ndenumerate(table) if v != default]
        lines.append(f"{len(scope)} {_texts(scope)} {default} {len(entries)}")
        lines += [f"{_texts(k)} {v}" for k, v in entries]
    found = []
    for x in itertools.product(*map(range, counts)):
        total = sum(int(table[tuple(x[i] for i in scope)]) for scope, table in factors)
        found.append(float(total) if total < top else math.inf)
    return "\n".join(lines) + "\n", (counts, found)


def quadratic(draw: Draw) -> tuple[str, object]:
    """A toulbar2 ``.qpbo`` file."""
    n, maximise, signs = draw.count(2, 5), draw.chance(0.3), draw.chance(0.3)
    pairs = [(i, j) for i in range(1, n + 1) for j in range(i, n + 1) if draw.chance(0.6)] or [(1, 2)]
    weights = draw.random.integers(-9, 10, len(pairs)).tolist()
    lines = [f"{-n if signs else n} {-len(pairs) if maximise else len(pairs)}"]
    lines += [f"{i} {j} {w}" for (i, j), w in zip(pairs, weights, strict=True)]
    found = []
    for labels in itertools.product((0, 1), repeat=n):
        x = [1 - 2 * v if signs else v for v in labels]
        parts = [w * (x[i - 1] if i == j else 2 * x[i - 1] * x[j - 1]) for (i, j), w in zip(pairs, weights, strict=True)]
        found.append(float(sum(parts)) * (-1 if maximise else 1))
    return "\n".join(lines) + "\n", ([2] * n, found)


def vnnlib(draw: Draw) -> tuple[str, object]:
    """A box and rows."""
    inputs, outputs = draw.count(1, 4), draw.count(1, 3)
    lines = [f"(declare-const X_{i} Real)" for i in range(inputs)] + [f"(declare-const Y_{i} Real)" for i in range(outputs)]
    for i in range(inputs):
        low = int(draw.random.integers(-9, 9)) / 4
        lines += [f"(assert (>= X_{i} {low}))", f"(assert (<= X_{i} {low + 0.5}))"]
    for i in range(outputs):
        lines.append(f"(assert ({draw.pick('<=', '>=')} Y_{i} {int(draw.random.integers(-9, 9)) / 8}))")
    if outputs > 1:
        lines.append("(assert (or (and (<= Y_0 Y_1)) (and (>= Y_0 (+ Y_1 0.5)))))")
    return "\n".join(lines) + "\n", None


def evidence(draw: Draw) -> tuple[str, object]:
    """Observed labels."""
    n = draw.count(1, 5)
    labels = draw.random.integers(0, 3, n).tolist()
    return f"{n} " + " ".join(f"{i} {a}" for i, a in enumerate(labels)) + "\n", dict(enumerate(labels))


TEXTS: dict[str, tuple[Callable[[Draw], tuple[str, object]], tuple[str, ...], str]] = {
    "sparse": (sparse, (".sparse",), "qubo"),
    "maxcut": (maxcut, (".mc", ".txt", ""), "qubo"),
    "dimacs": (dimacs, (".clq", ".col", ".mis", ".mwvc"), "graph"),
    "uai": (uai, (".uai",), "field"),
    "wcsp": (wcsp, (".wcsp",), "field"),
    "qpbo": (quadratic, (".qpbo",), "field"),
    "evid": (evidence, (".evid",), "evidence"),
    "vnnlib": (vnnlib, (".vnnlib",), "query"),
}
"""Text formats: a writer, suffixes, and the function of :mod:`bench.soak.reading`."""


def read(name: str, data: bytes, function: str, *more: object, seconds: float = SECONDS) -> object:
    """Write data to a file of this name and have the child read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        return child.ask(f"bench.soak.reading:{function}", str(path), *more, seconds=seconds)


def same(first: object, second: object) -> bool:
    """Whether two answers agree but for rounding of numbers."""
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return first == second or abs(first - second) <= 1e-9 * (1 + abs(first))
    return first == second


@trial(
    "readers", "A file is read right whatever its compression and the case of its suffix, or refused for want of a format.", weight=2
)
def files_of_any_suffix(draw: Draw) -> None:
    kind = draw.pick(*TEXTS)
    write, suffixes, function = TEXTS[kind]
    text, truth = write(draw)
    suffix, packed = draw.pick(*suffixes), draw.pick(*COMPRESSIONS)
    name = "instance" + (suffix.upper() if draw.chance(0.4) else suffix) + (packed.upper() if draw.chance(0.2) else packed)
    try:
        found = read(name, COMPRESSIONS[packed](text.encode()), function)
    except Refused as error:
        certain = suffix not in ("", ".txt", ".evid") and name == name.lower()
        claim("format" in str(error) or not certain, f"{name} is refused: {error}")
        return
    except Finding as finding:
        raise Finding(f"{name}: {finding}") from finding
    if function == "graph":
        assert isinstance(found, tuple) and isinstance(truth, tuple)
        asked = "clique" if suffix == ".clq" else "independent-set"
        claim(found[2] == asked, f"{name} is read as a file that asks for the heaviest {found[2]}")
        found = found[:2]
    if function == "query" or truth is None:
        return
    wrong = f"{name} is read as {str(found)[:120]}, and it is {str(truth)[:120]}"
    claim(same(found, truth), wrong)


NUMBERS = ("100000000", "1000000000000", "18446744073709551616", "-1", "0", "nan", "inf", "1e400", "1e-400", "٣", "1_0", "0x10", "")
"""What a number is replaced by."""


def mutated(draw: Draw, data: bytes) -> bytes:
    """Damage done to bytes or to words and lines."""
    for _ in range(draw.count(1, 3)):
        kind = draw.pick("flip", "cut", "number", "number", "line", "swap", "double", "insert")
        if not data:
            return data
        at = int(draw.random.integers(len(data)))
        lines = data.split(b"\n")
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ (1 << int(draw.random.integers(8)))]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "number":
            places = list(re.finditer(rb"-?\d+(\.\d+)?", data))[:400]
            if places:
                # Numbers at the front say how much there is of everything.
                place = places[int(len(places) * draw.random.random() ** 2)]
                data = data[: place.start()] + draw.pick(*NUMBERS).encode() + data[place.end() :]
        elif kind == "insert":
            data = data[:at] + draw.random.bytes(draw.count(1, 8)) + data[at:]
        else:
            i, j = draw.random.integers(0, len(lines), 2).tolist()
            if kind == "line":
                del lines[i]
            elif kind == "swap":
                lines[i], lines[j] = lines[j], lines[i]
            else:
                lines.insert(i, lines[j])
            data = b"\n".join(lines)
    return data


@trial("readers", "A damaged file is refused by an error of ours or read, within seconds and a little memory.", weight=8, seconds=90)
def damaged_files(draw: Draw) -> None:
    kind = draw.pick(*TEXTS, *BINARIES)
    more: tuple[object, ...] = ()
    if kind in TEXTS:
        write, suffixes, function = TEXTS[kind]
        data, suffix = write(draw)[0].encode(), draw.pick(*suffixes)
    else:
        make, suffix, function, more = BINARIES[kind]
        data = make(draw)
    data = mutated(draw, data)
    packed = draw.pick("", "", "", *COMPRESSIONS) if kind in TEXTS or kind == "onnx" else ""
    data = COMPRESSIONS[packed](data)
    if packed and draw.chance(0.3):
        data = mutated(draw, data)
    try:
        read("damaged" + suffix + packed, data, function, *more)
    except Refused:
        return
    except Finding as finding:
        shown = data[:200] if kind in TEXTS and not packed else f"{len(data)} bytes"
        raise Finding(f"damaged{suffix}{packed}: {finding}; the file: {shown!r}") from finding


@trial("readers", "A header that promises more than the file holds, and a file that unpacks to gigabytes, are refused.", seconds=90)
def promises_and_bombs(draw: Draw) -> None:
    kind = draw.pick("header", "bomb")
    big = draw.pick(10**8, 10**9, 10**12, 10**17)
    if kind == "header":
        texts = {
            ".mc": (f"{big} 1\n1 2 1\n", "qubo"),
            ".sparse": (f"{big} 1\n1 2 1\n", "qubo"),
            ".clq": (f"p edge {big} 1\ne 1 2\n", "graph"),
            ".mis": (f"p edge {big} 1\ne 1 {big}\n", "graph"),
            ".uai": (f"MARKOV\n2\n{big} {big}\n1\n2 0 1\n\n{big}\n0 1\n", "field"),
            ".wcsp": (f"a 2 {big} 1 10\n{big} {big}\n2 0 1 0 0\n", "field"),
            ".qpbo": (f"{big} 1\n1 2 3\n", "field"),
            ".evid": (f"{big} 0 1\n", "evidence"),
            ".vnnlib": (f"(declare-const X_{big} Real)\n(assert (>= X_{big} 0))(assert (<= X_{big} 1))\n", "query"),
        }
        suffix = draw.pick(*texts)
        text, function = texts[suffix]
        data = text.encode()
    else:
        suffix, function = draw.pick((".mc", "qubo"), (".clq", "graph"), (".uai", "field"), (".wcsp", "field"), (".vnnlib", "query"))
        packed = draw.pick(".gz", ".bz2", ".xz")
        if function == "query" and packed != ".gz":
            packed = ".gz"
        suffix, data = suffix + packed, _bomb(packed)
    try:
        found = read("large" + suffix, data, function, seconds=60.0)
        claim(function not in ("qubo", "graph", "field"), f"it is read: {str(found)[:80]}")
    except Refused:
        return
    except Finding as finding:
        raise Finding(f"large{suffix}, {len(data)} bytes, a {kind} of {big if kind == 'header' else BOMB}: {finding}") from finding


BOMB = 6 << 30
"""Bytes that a bomb unpacks to."""


def _bomb(packed: str) -> bytes:
    """A few megabytes that unpack to gigabytes: members of blanks, one after the other."""
    member = COMPRESSIONS[packed](b" " * (1 << 26))
    return member * (BOMB >> 26)


@trial("readers", "Costs of a .wcsp file that sum to its upper bound or more are forbidden.", weight=2)
def sums_up_to_the_upper_bound(draw: Draw) -> None:
    text, truth = wcsp(draw)
    assert isinstance(truth, tuple)
    counts, known = truth
    best = min(known)
    try:
        found = read("top.wcsp", text.encode(), "exact_field")
    except Refused as error:
        claim("format" not in str(error), f"a .wcsp file is refused: {error}")
        return
    energy, bound, proven, labels = found  # type: ignore[misc]
    if not math.isinf(best):
        claim(energy == best, f"the least energy is {best}, and {energy} is found (proven: {proven})")
        return
    claim(
        math.isinf(energy), f"all labellings reach the upper bound, and {labels} with energy {energy} is returned (proven: {proven})"
    )


def _onnx(draw: Draw) -> bytes:
    """A small network, sometimes with constants that grow while they are folded."""
    from onnx import TensorProto, helper

    n, hidden = draw.count(1, 4), draw.count(1, 4)
    arrays = {
        "W1": draw.random.normal(size=(n, hidden)),
        "b1": draw.random.normal(size=hidden),
        "W2": draw.random.normal(size=(hidden, 2)),
    }
    weights = [helper.make_tensor(k, TensorProto.FLOAT, v.shape, v.astype(np.float32).ravel()) for k, v in arrays.items()]
    nodes = [
        helper.make_node("Gemm", ["X", "W1", "b1"], ["z"]),
        helper.make_node("Relu", ["z"], ["a"]),
        helper.make_node("MatMul", ["a", "W2"], ["o"]),
    ]
    grown = draw.pick("", "", "ConstantOfShape", "Expand", "Range", "Tile")
    large = draw.pick(10**5, 10**9, 10**12)
    if grown:
        ints = {"size": [large], "one": [1], "zero": [0]}
        weights += [helper.make_tensor(k, TensorProto.INT64, [len(v)], v) for k, v in ints.items()]
        scalars = {"from": 0, "to": large, "step": 1}
        weights += [helper.make_tensor(k, TensorProto.INT64, [], [v]) for k, v in scalars.items()]
        given = {"ConstantOfShape": ["size"], "Expand": ["one", "size"], "Range": ["from", "to", "step"], "Tile": ["one", "size"]}[
            grown
        ]
        value = {"value": helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])} if grown == "ConstantOfShape" else {}
        nodes.append(helper.make_node(grown, given, ["g"], **value))
        nodes.append(helper.make_node("Cast", ["g"], ["f"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("ReduceMean", ["f"], ["s"], keepdims=0))
        nodes.append(helper.make_node("Add", ["o", "s"], ["Y"]))
    else:
        nodes.append(helper.make_node("Identity", ["o"], ["Y"]))
    ends = [helper.make_tensor_value_info(k, TensorProto.FLOAT, [1, size]) for k, size in (("X", n), ("Y", 2))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(made.SerializeToString())


def _npy(draw: Draw) -> bytes:
    held = io.BytesIO()
    np.save(held, draw.random.normal(size=(4, 5, 3)).astype(np.float32))
    return held.getvalue()


def _c_unary(draw: Draw) -> bytes:
    head = np.array([5, 4, 2, 3], dtype=">u4").tobytes() + np.array([0.1], dtype=">f4").tobytes()
    keys = np.array([[5, 5], [2, 8], [10, 0]], dtype=">i4").tobytes()
    return head + keys + draw.random.integers(0, 3, 20).astype(">u4").tobytes()


def _png(draw: Draw) -> bytes:
    from PIL import Image

    held = io.BytesIO()
    colours = draw.random.integers(0, 2, (4, 5, 3)).astype(np.uint8) * 255
    Image.fromarray(colours).save(held, draw.pick("PNG", "BMP", "GIF", "TIFF"))
    return held.getvalue()


BINARIES: dict[str, tuple[Callable[[Draw], bytes], str, str, tuple[object, ...]]] = {
    "onnx": (_onnx, ".onnx", "network", ()),
    "npy": (_npy, ".npy", "unary", (4, 5)),
    "c_unary": (_c_unary, ".c_unary", "unary", (4, 5)),
    "image": (_png, ".png", "image", ()),
    "scribbles": (_png, ".png", "scribbles", (4, 5)),
}


@trial(
    "readers", "Constants of a network that grow to gigabytes while they are folded are refused, or the network is read.", seconds=90
)
def constants_that_grow(draw: Draw) -> None:
    data = _onnx(draw)
    try:
        found = read("grown.onnx", data, "network")
    except Refused:
        return
    except Finding as finding:
        raise Finding(f"grown.onnx, {len(data)} bytes: {finding}") from finding
    assert isinstance(found, tuple)
    claim(found[1] == 2, f"a network with 2 outputs is read with {found[1]}")


@trial("readers", "Boxes of a query contain the stated decimals, and no more than rounding beyond them.")
def boxes_of_queries(draw: Draw) -> None:
    n = draw.count(1, 4)
    sides = [sorted(draw.random.integers(-999, 999, 2).tolist()) for _ in range(n)]
    digits = 10 ** draw.count(1, 9)
    texts = [[f"{Fraction(v, digits).numerator / Fraction(v, digits).denominator:.12f}" for v in pair] for pair in sides]
    lines = [f"(declare-const X_{i} Real)" for i in range(n)] + ["(declare-const Y_0 Real)"]
    for i, (low, high) in enumerate(texts):
        lines += [f"(assert (>= X_{i} {low}))", f"(assert (<= X_{i} {high}))"]
    lines.append("(assert (<= Y_0 0.1))")
    found = read("box.vnnlib", "\n".join(lines).encode(), "query")
    for i, pair in enumerate(texts):
        low, high = (found[0][k][i] for k in (0, 1))  # type: ignore[index]
        claim(
            Fraction(low) <= Fraction(pair[0]) and Fraction(pair[1]) <= Fraction(high), f"the box {low!r}, {high!r} cuts {pair} off"
        )
        room = max(abs(low), abs(high)) * 3e-16
        claim(Fraction(pair[0]) - Fraction(low) <= Fraction(room), f"the box begins at {low!r}, and the file says {pair[0]}")
