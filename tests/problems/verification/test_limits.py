"""Files that would fill the memory are refused before anything of that size is allocated, and nothing is read twice."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import blocklp as bl
from blocklp.errors import FormatError
from blocklp.problems import files
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.verification import Runtime, images, onnx_reader, read_onnx, read_property
from blocklp.problems.verification.answers import How, Networks, answer

HUGE = 10**9
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
VNNLIB = "(declare-const X_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))(declare-const Y_0 Real)(assert (<= Y_0 0))"
CONSTANTS = {
    "n": np.array([HUGE]),
    "n2": np.array([30_000, 40_000]),
    "one": np.ones(1, np.float32),
    "start": np.array(0),
    "end": np.array(HUGE),
    "step": np.array(1),
    "pads": np.array([0, HUGE]),
    "column": np.ones((40_000, 1), np.float32),
    "row": np.ones((1, 40_000), np.float32),
    "depth": np.array(HUGE),
    "at": np.array([1, 2]),
    "ends": np.array([0.0, 1.0], np.float32),
    "image": np.ones((1, 1, 2, 2), np.float32),
    "sizes": np.array([1, 1, 30_000, 40_000]),
    "true": np.ones((1, 1), bool),
}
BOMBS = [
    ("ConstantOfShape", "n", {}), ("Expand", "one,n2", {}), ("Range", "start,end,step", {}), ("Tile", "one,n", {}),
    ("Pad", "one,pads", {}), ("OneHot", "at,depth,ends", {}), ("Resize", "image,,,sizes", {}), ("Add", "column,row", {}),
    ("MatMul", "column,row", {}), ("Where", "true,column,row", {}), ("HannWindow", "depth", {}),
    ("AveragePool", "image", {"kernel_shape": [2, 2], "pads": [20_000, 20_000, 20_000, 20_000]}),
]  # fmt: skip


def save(path: Path, nodes: list[Any], opset: int = 17, shape: tuple[int, ...] = (1, 1), sparse: Any = None) -> Path:
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items() if name in used],
        sparse_initializer=sparse or [],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def in_little_memory(read: Callable[[], object], message: str) -> None:
    """Whether it is refused, and before more than some megabytes were allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=message):
            read()
        assert tracemalloc.get_traced_memory()[1] < 5e7
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[0])
def test_constants_that_explode_are_refused(bomb: tuple[str, str, dict[str, Any]], tmp_path: Path) -> None:
    operator, arguments, attributes = bomb
    nodes = [
        helper.make_node(operator, arguments.split(","), ["big"], **attributes),
        helper.make_node("ReduceMax", ["big"], ["small"], keepdims=0),
        helper.make_node("Cast", ["small"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "cast"], ["y"]),
    ]
    net = save(tmp_path / "net.onnx", nodes)
    in_little_memory(lambda: read_onnx(net), rf"net\.onnx: with the result big .* more than {MAX_BYTES} bytes.*raise max_bytes")


@pytest.mark.parametrize("operator", ["Concat", "Add"])
def test_a_chain_that_doubles_is_refused(operator: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", [f"c{k}" if k else "one"] * 2, [f"c{k + 1}"], axis=0) for k in range(40)]
    nodes += [helper.make_node("ReduceMax", ["c40"], ["small"]), helper.make_node("Add", ["x", "small"], ["y"])]
    if operator == "Add":  # of results: sums of sums are no longer, and padding is looked at once each
        nodes = [helper.make_node("Relu", ["x"], ["c0"])]
        nodes += [helper.make_node("Add", [f"c{k}", f"c{k}"], [f"c{k + 1}"]) for k in range(40)]
        nodes += [helper.make_node("MaxPool", ["c40"], ["y"], kernel_shape=[2, 2], pads=[1, 1, 1, 1])]
        assert read_onnx(save(tmp_path / "net.onnx", nodes, shape=(1, 1, 4, 4)), time_limit=60).outputs == 25
        return
    in_little_memory(lambda: read_onnx(save(tmp_path / "net.onnx", nodes), max_bytes=2**20), "with the result c1[5-7]")


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        (helper.make_node("Relu", ["x"], ["y"]), (1, HUGE)),
        (
            helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[30_000, 40_000], pads=[15_000, 20_000, 15_000, 20_000]),
            (1, 1, 4, 4),
        ),
        (helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1, 1], pads=[30_000] * 4), (1, 1, 4, 4)),
        (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[400, 400]), (1, 1, 400, 400)),
        (helper.make_node("MatMul", ["column", "x"], ["y"]), (1, 40_000)),
        (helper.make_node("Add", ["column", "x"], ["y"]), (1, 40_000)),
        (helper.make_node("Expand", ["x", "n2"], ["y"]), (1, 1)),
        (helper.make_node("Pad", ["x", "pads"], ["y"]), (4,)),
        (helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear"), (1, 1, 4, 4)),
        (helper.make_node("ConvTranspose", ["x", "image"], ["y"], strides=[30_000, 40_000]), (1, 1, 4, 4)),
        (helper.make_node("ConvTranspose", ["x", "image"], ["y"], dilations=[30_000, 40_000]), (1, 1, 4, 4)),
    ],
    ids=["input", "kernel", "padding", "maximum", "product", "sum", "copies", "row", "image", "spread", "reach"],
)
def test_results_that_explode_are_refused(node: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    in_little_memory(lambda: read_onnx(save(tmp_path / "net.onnx", [node], shape=shape)), r"net\.onnx.*")


def test_control_flow_and_sparse_constants_are_refused(tmp_path: Path) -> None:
    body = helper.make_graph([], "body", [], [helper.make_tensor_value_info("one", TensorProto.FLOAT, None)])
    nodes = [helper.make_node("Loop", ["n", "true"], ["c"], body=body), helper.make_node("Add", ["x", "c"], ["y"])]
    with pytest.raises(FormatError, match="control flow"):
        read_onnx(save(tmp_path / "net.onnx", nodes))
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("at", TensorProto.INT64, [1], [0]), [HUGE])
    with pytest.raises(FormatError, match="sparse"):
        read_onnx(save(tmp_path / "net.onnx", [helper.make_node("Relu", ["x"], ["y"])], sparse=[sparse]))


def test_what_the_output_does_not_depend_on_is_not_evaluated(tmp_path: Path) -> None:
    """The runtime that replays it gets a file without such nodes."""
    nodes = [helper.make_node("ConstantOfShape", ["n"], ["big"]), helper.make_node("ReduceMax", ["big"], ["z"])]
    net = save(tmp_path / "net.onnx", [*nodes, helper.make_node("Relu", ["x"], ["y"])])
    _, runtime = onnx_reader.load_onnx(net, MAX_BYTES, bl.Deadline(60))
    assert [node.op_type for node in onnx.load_model_from_string(_source_of(runtime)).graph.node] == ["Relu"]
    assert runtime(np.float32([2.0])).tolist() == [2.0]


def _source_of(runtime: Runtime) -> bytes:
    return bytes(runtime._session._model_bytes)


def test_one_option_raises_the_limits(tmp_path: Path) -> None:
    nodes = [helper.make_node("ReduceMax", ["row"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    net = save(tmp_path / "net.onnx", nodes)
    with pytest.raises(FormatError, match="more than 300000 bytes in float64; raise max_bytes"):
        read_onnx(net, max_bytes=300_000)
    assert read_onnx(net, max_bytes=400_000).outputs == 1
    with pytest.raises(FormatError, match="holds more than 100000 bytes"):
        read_onnx(net, max_bytes=100_000)
    onnx.save(onnx.load(net), tmp_path / "beside.onnx", save_as_external_data=True, location="beside.bin", size_threshold=0)
    with pytest.raises(FormatError, match="files beside it hold more than 150000 bytes"):
        read_onnx(tmp_path / "beside.onnx", max_bytes=150_000)
    assert read_onnx(tmp_path / "beside.onnx").outputs == 1


@pytest.mark.parametrize("packer", PACKERS)
def test_compressed_files_are_read_as_far_as_they_may_reach(packer: str, tmp_path: Path) -> None:
    pack = PACKERS[packer]
    bomb = pack(b" " * 2**26)
    for name, read in (("net.onnx", read_onnx), ("a.vnnlib", read_property), ("photo.csv", images.read_image)):
        (tmp_path / f"{name}.{packer}").write_bytes(bomb)
        (tmp_path / name).write_bytes(bomb)
        for file in (tmp_path / name, tmp_path / f"{name}.{packer}"):
            if name != "photo.csv" or file.suffix == ".csv":
                in_little_memory(lambda read=read, file=file: read(file, max_bytes=2**22), "raise max_bytes")
    (tmp_path / "a.vnnlib").write_bytes(pack(VNNLIB.encode()))
    assert read_property(tmp_path / "a.vnnlib").inputs == 1


def test_nothing_is_decompressed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    whole = dict(files._OPENERS)
    monkeypatch.setitem(files._OPENERS, "gzip", lambda path, mode: opened.append(path) or whole["gzip"](path, mode))
    net = save(tmp_path / "net.onnx", [helper.make_node("Relu", ["x"], ["y"])])
    for name, data in (("net.onnx.gz", net.read_bytes()), ("a.vnnlib.gz", VNNLIB.encode())):
        (tmp_path / name).write_bytes(gzip.compress(data))
    found = answer(tmp_path / "a.vnnlib.gz", [str(tmp_path / "net.onnx.gz")], How(), Networks(), bl.Deadline(60))
    assert found.verdict.status == "sat"
    assert sorted(path.name for path in opened) == ["a.vnnlib.gz", "net.onnx.gz"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (VNNLIB + f"(assert (<= (+ {'(* 1e300 ' * 150} Y_0 {')' * 150} 0) 1))", "leaves the range of float64"),
        (VNNLIB + f"(assert (<= Y_0 0.{'1' * 2000}))", "a number of 2002 characters"),
        (VNNLIB + f"(declare-const Y_{HUGE - 1} Real)(assert (<= Y_{HUGE - 1} 1))", "numbers after expansion"),
        (f"(vnnlib-version <2.0>)(declare-network N (declare-input X real [{HUGE - 1}])(declare-output Y real [1]))", "too large"),
        (VNNLIB + "(assert (or (<= Y_0 1) (<= Y_0 2)))" * 30, f"{2**30} alternatives"),
    ],
    ids=["product", "digits", "output", "tensor", "alternatives"],
)
def test_texts_that_explode_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.vnnlib").write_text(text)
    in_little_memory(lambda: read_property(tmp_path / "a.vnnlib"), message)


def test_a_parse_takes_no_more_memory_than_it_is_allowed(tmp_path: Path) -> None:
    text = VNNLIB + "(assert (or " + "(and (<= Y_0 0.1)(<= Y_0 0.25))" * 1500 + "))"
    (tmp_path / "a.vnnlib").write_text(text)
    limit = 64 * len(text)
    tracemalloc.start()
    try:
        assert len(read_property(tmp_path / "a.vnnlib", max_bytes=max(limit, 8192 * 1500)).clauses) == 1500
        assert tracemalloc.get_traced_memory()[1] < max(limit, 8192 * 1500)
    finally:
        tracemalloc.stop()
