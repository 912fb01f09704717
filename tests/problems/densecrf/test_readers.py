"""Images, unaries, scribbles and probabilities from files that these tests write, and from the real ones where they are."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from blocklp.errors import BlocklpError, FormatError, NonFiniteError, OptionError, ShapeError
from blocklp.problems.densecrf import image_crf, readers, solve_densecrf

SHARED = Path(__file__).parents[4] / "shared" / "data" / "densecrf"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data of dense CRFs is not there")
DRAW = np.random.default_rng(0)


@pytest.fixture
def png(tmp_path: Path) -> Callable[..., Path]:
    def write(pixels: NDArray[Any], name: str = "image.png", mode: str | None = None) -> Path:
        picture = Image.fromarray(pixels)
        (picture if mode is None else picture.convert(mode)).save(tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def npy(tmp_path: Path) -> Callable[[NDArray[Any]], Path]:
    def write(array: NDArray[Any]) -> Path:
        np.save(tmp_path / "u.npy", array)
        return tmp_path / "u.npy"

    return write


def test_images_of_all_kinds(png: Callable[..., Path]) -> None:
    colour = DRAW.integers(0, 256, (4, 5, 3)).astype(np.uint8)
    assert torch.equal(readers.read_image(png(colour)), torch.from_numpy(colour).double())
    grey = colour[:, :, 0]
    assert torch.equal(readers.read_image(png(grey))[:, :, 0], torch.from_numpy(grey).double())
    deep = (grey.astype(np.uint16) * 257) + 100
    torch.testing.assert_close(readers.read_image(png(deep))[:, :, 0], torch.from_numpy(deep / 257))
    bits = readers.read_image(png((grey > 127).astype(np.uint8) * 255, mode="1"))
    assert torch.equal(bits[:, :, 0], torch.from_numpy((grey > 127) * 255.0))
    few = np.where(colour > 127, 204, 0).astype(np.uint8)  # of a palette
    assert torch.equal(readers.read_image(png(few, "few.png", "P")), torch.from_numpy(few).double())
    alpha = np.full((4, 5, 1), 255, np.uint8)
    alpha[0, 0], alpha[1, 1] = 0, 51
    seen = colour.astype(float)
    seen[0, 0], seen[1, 1] = 255, 0.2 * seen[1, 1] + 0.8 * 255
    torch.testing.assert_close(readers.read_image(png(np.concatenate([colour, alpha], 2))), torch.from_numpy(seen))
    both = readers.read_image(png(np.concatenate([colour, alpha], 2), "la.png", "LA"))
    assert tuple(both.shape) == (4, 5, 1) and both[0, 0, 0] == 255
    assert tuple(readers.read_image(png(colour, "c.jpg", "CMYK")).shape) == (4, 5, 3)


def test_broken_images_are_named(tmp_path: Path, png: Callable[..., Path]) -> None:
    whole = png(DRAW.integers(0, 256, (40, 50, 3)).astype(np.uint8))
    whole.write_bytes(whole.read_bytes()[:2000])
    text = tmp_path / "text.png"
    text.write_text("no picture")
    for file in (whole, text):
        with pytest.raises(FormatError, match=file.name):
            readers.read_image(file)
    with pytest.raises(FileNotFoundError):
        readers.read_image(tmp_path / "none.png")
    with pytest.raises(FormatError, match="8 or 16 bits"):
        readers.read_image(png(np.zeros((2, 2), np.float32), "deep.tif"))


def test_arrays_are_costs(npy: Callable[[NDArray[Any]], Path]) -> None:
    costs = DRAW.normal(size=(4, 5, 3))
    assert torch.equal(readers.read_unary(npy(costs), (4, 5)), torch.from_numpy(costs))
    found = readers.read_unary(npy(np.asfortranarray(costs.astype(">f4"))), (4, 5))
    assert found.dtype == torch.float32 and np.array_equal(found.numpy(), costs.astype(np.float32))
    assert readers.read_unary(npy((costs * 5).astype(np.int16)), (4, 5)).dtype == torch.float32


def test_probabilities_are_told_from_costs(npy: Callable[[NDArray[Any]], Path]) -> None:
    p = DRAW.dirichlet(np.ones(3), (4, 5))
    p[0, 0] = [1, 0, 0]
    with pytest.raises(OptionError, match="--probabilities"):
        readers.read_unary(npy(p), (4, 5))
    found = readers.read_unary(npy(p), (4, 5), probabilities=True)
    np.testing.assert_allclose(found, -np.log(np.maximum(p, 1e-3)))
    with pytest.raises(OptionError, match="no probabilities"):
        readers.read_unary(npy(-np.log(p + 0.1)), (4, 5), probabilities=True)


@pytest.mark.parametrize(
    ("change", "mend"),
    [
        (lambda u: np.moveaxis(u, 2, 0), lambda a: np.moveaxis(a, 0, 2)),
        (lambda u: u.swapaxes(0, 1), lambda a: a.swapaxes(0, 1)),
        (lambda u: u.reshape(20, 3).T, lambda a: a.T.reshape(4, 5, -1)),
        (lambda u: u.reshape(20, 3), lambda a: a.reshape(4, 5, -1)),
    ],
)
def test_other_orders_of_axes_are_refused_with_the_mend(
    npy: Callable[[NDArray[Any]], Path], change: Callable[..., Any], mend: Callable[..., Any]
) -> None:
    costs = DRAW.normal(size=(4, 5, 3))
    with pytest.raises(ShapeError, match=r"u\.npy: unaries have the shape .*; save ") as caught:
        readers.read_unary(npy(change(costs)), (4, 5))
    # What the message says is what mends.
    said = eval(str(caught.value).rpartition("save ")[2], {"numpy": np, "u": change(costs)})
    np.testing.assert_array_equal(said, costs)
    np.testing.assert_array_equal(mend(change(costs)), costs)


def test_broken_arrays_are_named(tmp_path: Path, npy: Callable[[NDArray[Any]], Path]) -> None:
    with pytest.raises(ShapeError, match="5 x 4"):
        readers.read_unary(npy(np.zeros((4, 6, 3))), (4, 5))
    with pytest.raises(NonFiniteError, match=r"u\.npy"):
        readers.read_unary(npy(np.full((4, 5, 3), np.nan)), (4, 5))
    with pytest.raises(FormatError, match=r"u\.npy"):
        readers.read_unary(npy(np.full((4, 5, 3), "a")), (4, 5))
    file = npy(np.zeros((4, 5, 3)))
    for damaged in (b"", file.read_bytes()[:200], b"\x93NUMPY", b"some text"):
        file.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"u\.npy"):
            readers.read_unary(file, (4, 5))
    with pytest.raises(FormatError, match=r"\.c_unary"):
        readers.read_unary(tmp_path / "u.txt", (4, 5))
    with pytest.raises(FileNotFoundError):
        readers.read_unary(tmp_path / "none.npy", (4, 5))


def test_compressed_unaries(tmp_path: Path) -> None:
    """Two keys, 3 x 2 pixels; the second pixel of the first row and the last of the second have the second key."""
    keys = [[1000, 0], [250, 750]]
    data = struct.pack(">4If", 3, 2, 2, 2, 0.001) + struct.pack(">4i", *keys[0], *keys[1]) + struct.pack(">6I", 0, 1, 0, 0, 0, 1)
    file = tmp_path / "a.c_unary"
    file.write_bytes(data)
    found = readers.read_unary(file, (2, 3))
    sure, torn = [0, -np.log(1e-3)], [-np.log(0.25), -np.log(0.75)]
    np.testing.assert_allclose(found, [[sure, torn, sure], [sure, sure, torn]], rtol=1e-6, atol=1e-7)
    with pytest.raises(ShapeError, match="3 x 2 pixels, and the image has 2 x 3"):
        readers.read_unary(file, (3, 2))
    outside = data[:-1] + b"\x02"
    negative = data[:20] + struct.pack(">i", -1000) + data[24:]
    for damaged in (b"", data[:30], data + b"\0", outside, negative, b"\0" * len(data)):
        file.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"a\.c_unary"):
            readers.read_unary(file, (2, 3))


def test_scribbles(png: Callable[..., Path]) -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 0], pixels[0, 1], pixels[1, 2] = (255, 0, 0), (0, 0, 9), (255, 0, 0)
    labels, colours = readers.read_scribbles(png(pixels), (2, 3))
    assert labels.tolist() == [[1, 2, 0], [0, 0, 1]] and colours.tolist() == [[255, 0, 0], [0, 0, 9]]
    found = readers.scribble_unary(labels, 2, 0.9)
    np.testing.assert_allclose(found[0], -np.log([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]]), rtol=1e-6)
    np.testing.assert_allclose(found[1, 2], -np.log([0.9, 0.1]), rtol=1e-6)
    full = np.array([[1, 2], [2, 1]], np.uint8)  # a map of classes: nothing is unknown
    assert readers.read_scribbles(png(full), (2, 2))[0].tolist() == [[1, 2], [2, 1]]
    clear = np.concatenate([pixels, np.full((2, 3, 1), 255, np.uint8)], 2)
    clear[1, 2, 3] = 0
    assert readers.read_scribbles(png(clear), (2, 3))[0].tolist() == [[1, 2, 0], [0, 0, 0]]
    with pytest.raises(ShapeError, match="draw them on this image"):
        readers.read_scribbles(png(pixels), (3, 2))
    with pytest.raises(FormatError, match="1 colours"):
        readers.read_scribbles(png(pixels[1:]), (1, 3))
    with pytest.raises(FormatError, match="soft edges"):
        readers.read_scribbles(png(DRAW.integers(0, 256, (40, 50, 3)).astype(np.uint8)), (40, 50))


@pytest.mark.parametrize(("kind", "lossless"), [("jpeg", None), ("webp", False), ("webp", True), ("png", None)])
def test_formats_that_change_labels_are_refused(tmp_path: Path, kind: str, lossless: bool | None) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4], pixels[6:] = (255, 0, 0), (0, 255, 0)
    file = tmp_path / f"marks.{kind}"
    Image.fromarray(pixels).save(file, **({} if lossless is None else {"lossless": lossless}))
    if kind == "png" or lossless:
        assert len(readers.read_scribbles(file, (8, 8))[1]) == 2
        return
    for read in (lambda: readers.read_scribbles(file, (8, 8)), lambda: readers.read_image(file, lossless=True)):
        with pytest.raises(FormatError, match="save it as PNG"):
            read()
    assert readers.read_image(file).shape == (8, 8, 3)


def test_probability(png: Callable[..., Path]) -> None:
    found = readers.read_probability(png(np.array([[0, 51, 255]], np.uint8)), (1, 3))
    np.testing.assert_allclose(found[0], -np.log([[1, 1e-3], [0.8, 0.2], [1e-3, 1]]), rtol=1e-6, atol=1e-7)
    with pytest.raises(FormatError, match="colours"):
        readers.read_probability(png(np.array([[[1, 2, 3]]], np.uint8)), (1, 1))
    with pytest.raises(ShapeError, match="3 x 1"):
        readers.read_probability(png(np.array([[0, 51, 255]], np.uint8)), (3, 1))


def claims(name: str) -> list[bytes]:
    """Files whose headers claim far more than they hold, or what nobody can have."""
    if name == "u.npy":
        shapes = [(10**9, 10**9, 10**9), (2**62, 4, 2), (-4, -5, 3), (4, 5, 10**12), (0, 5, 3), (4, 5, 0)]
        said = [f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}" for shape in shapes]
        said += [
            f"{{'descr': '{kind}', 'fortran_order': False, 'shape': (4, 5, 3), }}" for kind in ("|O", "|V1000000000", "<c16", "<U9")
        ]
        said += ["(" * 5000, "{'descr': '<f8'}", "9" * 9000]
        return [b"\x93NUMPY\x01\x00" + struct.pack("<H", len(t)) + t.encode() + bytes(480) for t in said]
    if name == "a.c_unary":
        huge = 2**32 - 1
        heads = [(huge, huge, huge, huge, 0.001), (5, 4, 2**31, 1, 0.001), (5, 4, 3, huge, 0.001), (5, 4, 3, 2, float("nan"))]
        return [struct.pack(">4If", *head) + bytes(300) for head in heads]
    size = struct.pack(">2I5B", 2**31 - 1, 2**31 - 1, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + size
    return [b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + bytes(50)]


@pytest.mark.parametrize("name", ["image.png", "image.bmp", "image.jpg", "u.npy", "a.c_unary", "marks.png"])
def test_mutated_files_are_read_or_refused(tmp_path: Path, png: Callable[..., Path], name: str) -> None:
    """Cut off, with bytes changed, with huge headers, compressed: a file is read, or an error of ours says so at once."""
    file, draw = tmp_path / name, np.random.default_rng(1)
    if name == "u.npy":
        np.save(file, draw.random((4, 5, 3)))
    elif name == "a.c_unary":
        keys = struct.pack(">6i", 1000, 0, 0, 250, 750, 0)
        file.write_bytes(struct.pack(">4If", 5, 4, 3, 2, 0.001) + keys + struct.pack(">20I", *draw.integers(0, 2, 20)))
    else:
        png((draw.integers(0, 3, (4, 5, 1)) * [100, 50, 20]).astype(np.uint8), name)

    def read() -> Tensor:
        if name == "marks.png":
            return readers.scribble_unary(*(lambda a, b: (a, len(b)))(*readers.read_scribbles(file, (4, 5))))
        return readers.read_unary(file, (4, 5)) if name in ("u.npy", "a.c_unary") else readers.read_image(file)

    whole, truth = file.read_bytes(), read()
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        file.write_bytes(compress(whole))
        assert torch.equal(read(), truth)
    mutants = [whole[: int(cut)] for cut in np.linspace(0, len(whole) - 1, 25)] + [whole + b"more", *claims(name)]
    for _ in range(150):
        changed = np.frombuffer(whole, np.uint8).copy()
        changed[draw.integers(0, len(whole), draw.integers(1, 4))] = draw.choice([0, 1, 127, 128, 255, draw.integers(256)])
        mutants.append(changed.tobytes())
    for mutant in mutants:
        file.write_bytes(mutant)
        began = time.process_time()
        try:
            found = read()
            assert found.numel() < 10**7 and bool(torch.isfinite(found).all())
        except BlocklpError as error:
            assert name in str(error) and "object at 0x" not in str(error)
        assert time.process_time() - began < 5


def test_bombs_are_refused_before_they_go_off(tmp_path: Path) -> None:
    """Small files that hold much: 10^9 pixels of one colour, and a gigabyte of zeros."""
    file = tmp_path / "bomb.npy.gz"
    with gzip.open(file, "wb") as packed:
        packed.write(bytes(2**22))
    with pytest.raises(FormatError, match="max_bytes"):
        readers.read_unary(file, (4, 5), max_bytes=2**21)
    Image.new("1", (30_000, 3_000)).save(tmp_path / "bomb.png")
    assert (tmp_path / "bomb.png").stat().st_size < 10**5
    tracemalloc.start()
    with pytest.raises(FormatError, match="30000 x 3000 pixels take 2880000000 bytes, more than 1073741824; raise max_bytes"):
        readers.read_image(tmp_path / "bomb.png")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()
    marks = np.zeros((20, 30, 3), np.uint8)
    marks[0, :9] = np.arange(1, 10)[:, None]
    Image.fromarray(marks).save(tmp_path / "marks.png")
    with pytest.raises(FormatError, match="costs of 9 labels take 21600 bytes"):
        readers.read_scribbles(tmp_path / "marks.png", (20, 30), max_bytes=20_000)


def test_costs_of_any_type_keep_their_digits(npy: Callable[[NDArray[Any]], Path]) -> None:
    for kind in (">f8", "<i4", "<u8"):
        costs = (DRAW.random((4, 5, 3)) * 2**30).astype(kind)
        found = readers.read_unary(npy(costs), (4, 5))
        assert found.dtype == torch.float64 and np.array_equal(found.numpy(), costs.astype(float))


@real
def test_released_unaries_agree_with_the_truth() -> None:
    """The unaries were made to fit these images: a loader with a wrong order or byte would not label them nine times out of ten."""
    image = readers.read_image(SHARED / "msrc" / "1_9_s.bmp")
    costs = readers.read_unary(SHARED / "msrc" / "1_9_s.c_unary", (image.shape[0], image.shape[1]))
    truth = readers.read_image(SHARED / "msrc" / "1_9_s_gt21.png")[:, :, 0]
    known = truth < 255
    assert costs.shape == (213, 320, 21)
    assert float((costs.argmin(2) == truth)[known].double().mean()) > 0.8


@real
def test_a_scribbled_example_comes_out_as_scribbled() -> None:
    image = readers.read_image(SHARED / "kk" / "im1.png")
    labels, colours = readers.read_scribbles(SHARED / "kk" / "anno1.png", (image.shape[0], image.shape[1]))
    assert len(colours) == 2
    result = solve_densecrf(image_crf(image, readers.scribble_unary(labels, 2)), "mean-field", steps=2)
    found = result.labelling.view(labels.shape).numpy()
    known = labels > 0
    assert (found == labels - 1)[known].mean() > 0.95
