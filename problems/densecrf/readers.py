"""Images and unaries from files.

An image is ``(height, width, channels)`` float64 with colours from 0 to 255; unaries are costs ``(height, width, labels)``.

Every reader has ``max_bytes``, the most bytes that the file may hold once decompressed, whatever it is compressed with, and that
what is made of it may take; sizes in headers are checked before anything is allocated for them.
"""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import BlocklpError, FormatError, NonFiniteError, OptionError, ShapeError, needed
from blocklp.problems.densecrf.pydensecrf_utils import unary_from_labels, unary_from_softmax
from blocklp.problems.files import MAX_BYTES, format_suffix, read_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

CLIP = 1e-3
"""The least probability: unaries are minus the logarithm of at least this."""
PIXEL, DECODING = 32, 3e-8
"""Bytes that a pixel of a picture takes while it is read, and seconds."""
LOSSY = ("AVIF", "JPEG", "JPEG2000", "MPO")
"""Formats of Pillow that change colours, as a rule at least."""
COLOURS = 256
"""Most labels that scribbles may have; pictures with soft edges have more colours."""


def check_memory(path: Path, size: int, what: str, max_bytes: int) -> None:
    """Raise FormatError if the contents of a file would take more than so many bytes.

    Parameters
    ----------
    path : Path
        The file, for the message.
    size, max_bytes : int
        Bytes that its contents take, and may take.
    what : str
        Plural name of the contents, for the message.
    """
    if size > max_bytes:
        raise FormatError(f"{path}: {what} take {size} bytes, more than {max_bytes}; raise max_bytes (--max-bytes) if they may")


def read_image(path: Path, *, max_bytes: int = MAX_BYTES, deadline: Deadline | None = None, lossless: bool = False) -> Tensor:
    """Read a picture.

    Parameters
    ----------
    path : Path
        A picture that Pillow reads, of 8 or (grey only) 16 bits; what is transparent is seen on white.
    max_bytes : int
        Most bytes of the file, and of its pixels: 32 each.
    deadline : Deadline, optional
        When to give up.
    lossless : bool
        Whether every number counts, as in a picture of labels: formats that change them are refused.

    Returns
    -------
    Tensor
        ``(height, width, 1)`` grey or ``(height, width, 3)`` colours, float64 from 0 to 255.

    Raises
    ------
    FormatError
        The file is no picture, a damaged one, too large, of a format that is refused, or has numbers of unknown range.
    FileNotFoundError
        There is no such file.
    MissingDependencyError
        Pillow is missing.
    TimeLimitError
        The deadline passes.
    """
    picture = _open(path, max_bytes, deadline, lossless)
    if picture.mode in ("I;16", "I;16L", "I;16B", "I;16N", "I"):
        grey = np.asarray(picture).astype(np.float64)
        if grey.min() < 0 or grey.max() > 65535:
            raise FormatError(f"{path}: numbers of 32 bits have no known range; save it with 8 or 16 bits")
        return torch.from_numpy(grey / 257)[:, :, None]
    if picture.mode == "F":
        raise FormatError(f"{path}: floating-point colours have no known range; save it with 8 or 16 bits")
    if picture.has_transparency_data:
        rgba = np.asarray(picture.convert("RGBA")).astype(np.float64)
        opacity = rgba[:, :, 3:] / 255
        colours = rgba[:, :, :3] * opacity + 255 * (1 - opacity)
        return torch.from_numpy(colours[:, :, :1] if picture.mode in ("L", "LA", "1") else colours)
    pixels = np.asarray(picture.convert("L" if picture.mode in ("L", "1") else "RGB")).astype(np.float64)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1))


def _open(path: Path, max_bytes: int, deadline: Deadline | None, lossless: bool = False) -> Image:
    """Open a picture and read all of it; with ``lossless`` refuse formats that change colours."""
    with needed("pictures need Pillow", "densecrf"):
        from PIL import Image, UnidentifiedImageError
    data = read_bytes(path, max_bytes=max_bytes, deadline=deadline)
    try:
        # What Pillow warns of (odd metadata, large files) is nothing that the caller could act on.
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data)) as picture:
            if lossless and _is_lossy(picture.format, data):
                raise FormatError(f"{path}: {picture.format} changes colours, which are labels here; save it as PNG")
            pixels = picture.width * picture.height
            check_memory(path, PIXEL * pixels, f"its {picture.width} x {picture.height} pixels", max_bytes)
            if deadline is not None:
                deadline.check(f"reading {path}", DECODING * pixels)
            picture.load()
            return picture
    except BlocklpError:
        raise
    except Image.DecompressionBombError as error:
        raise FormatError(f"{path}: {error}; raise PIL.Image.MAX_IMAGE_PIXELS if it may") from error
    except UnidentifiedImageError as error:
        raise FormatError(f"{path}: not a picture of a known kind") from error
    except Exception as error:  # Damage shows in many ways.
        raise FormatError(f"{path}: not a picture, or a damaged one ({error})") from error


def _is_lossy(kind: str | None, data: bytes) -> bool:
    """Whether a picture of this format has lost colours; a WebP file says so by the name of its first chunk of pixels."""
    if kind != "WEBP":
        return kind in LOSSY
    at = 12
    while data[at : at + 4] not in (b"VP8 ", b"VP8L", b""):
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        at += 8 + size + size % 2
    return data[at : at + 4] != b"VP8L"


def read_unary(
    path: Path,
    size: tuple[int, int],
    probabilities: bool = False,
    *,
    max_bytes: int = MAX_BYTES,
    deadline: Deadline | None = None,
) -> Tensor:
    """Read unaries of every pixel.

    Parameters
    ----------
    path : Path
        A ``.npy`` array ``(height, width, labels)``, or a ``.c_unary`` file of Kraehenbuehl & Koltun (2011).
    size : pair of int
        Height and width of the image.
    probabilities : bool
        Whether a ``.npy`` array holds probabilities rather than costs; they are clipped at 0.001.
    max_bytes : int
        Most bytes of the file, once decompressed, and of the costs: 8 each.
    deadline : Deadline, optional
        When to give up.

    Returns
    -------
    Tensor
        Costs ``(height, width, labels)``, float32 if that holds all numbers of the array's type, else float64.

    Raises
    ------
    FormatError
        The file is damaged, too large, or of neither kind.
    ShapeError
        It is of another size, or its axes are in another order.
    OptionError
        It holds probabilities and ``probabilities`` is not given, or the other way round.
    NonFiniteError
        It holds NaN or infinities.
    FileNotFoundError
        There is no such file.
    TimeLimitError
        The deadline passes.
    """
    if format_suffix(path) == ".c_unary":
        return torch.from_numpy(_read_c_unary(path, size, max_bytes, deadline))
    if format_suffix(path) != ".npy":
        raise FormatError(f"{path}: unaries are .npy or .c_unary files; save an array (height, width, labels) with numpy.save")
    array = _read_npy(path, max_bytes, deadline)
    _check_axes(path, array.shape, size)
    if not np.isfinite(array).all():
        raise NonFiniteError(f"{path}: unaries hold NaN or infinities; clip probabilities before taking -log")
    looks = array.shape[2] > 1 and array.min() >= 0 and np.allclose(array.sum(2, dtype=np.float64), 1, atol=5e-3)
    if looks and not probabilities:
        raise OptionError(
            f"{path}: all numbers are in [0, 1] and every pixel's sum to 1: probabilities, not costs; give --probabilities "
            "(probabilities=True), or save -log of them"
        )
    if probabilities and not looks:
        raise OptionError(
            f"{path}: no probabilities: some are negative, or a pixel's do not sum to 1; give costs without --probabilities"
        )
    costs = -np.log(array.clip(CLIP, 1)) if probabilities else array
    precision = np.float32 if np.result_type(array.dtype, np.float32) == np.float32 else np.float64
    return torch.from_numpy(np.array(costs, precision, order="C"))


def _read_npy(path: Path, max_bytes: int, deadline: Deadline | None) -> NDArray[Any]:
    """Read an array of real numbers that numpy.save has written; its header is believed only if it fits the file."""
    data = read_bytes(path, max_bytes=max_bytes, deadline=deadline)
    file = io.BytesIO(data)
    try:
        with warnings.catch_warnings(action="ignore"):
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, by_columns, kind = read(file)
    except Exception as error:  # Damage shows in many ways.
        raise FormatError(f"{path}: not an array, or a damaged one ({error}); save it with numpy.save") from error
    if kind.kind not in "fiu":
        raise FormatError(f"{path}: not an array of real numbers; save one (height, width, labels) with numpy.save")
    there, count = len(data) - file.tell(), math.prod(shape)
    if min(shape, default=0) < 0 or count * kind.itemsize != there:
        raise FormatError(f"{path}: {there} bytes instead of those of the {shape} numbers that its header says; get it again")
    check_memory(path, 8 * count, f"its {count} costs", max_bytes)
    return np.frombuffer(data, kind, count, file.tell()).reshape(shape, order="F" if by_columns else "C")


def _by(shape: tuple[int, ...]) -> str:
    """Width x height, as people say it."""
    return f"{shape[1]} x {shape[0]}"


def _check_axes(path: Path, shape: tuple[int, ...], size: tuple[int, int]) -> None:
    """Raise unless the axes are (height, width, labels), and say how to bring them there."""
    if len(shape) == 3 and shape[:2] == size and shape[2] > 0:
        return
    height, width = size
    order = f"unaries have the shape {shape}"
    if len(shape) == 3 and shape[1:] == size:
        order += ": labels come first; save numpy.moveaxis(u, 0, 2)"
    elif len(shape) == 3 and shape[:2] == (width, height):
        order += ": width comes first; save u.swapaxes(0, 1)"
    elif len(shape) == 2 and shape[1] == height * width:
        order += f": labels come first and pixels are in one axis; save u.T.reshape({height}, {width}, -1)"
    elif len(shape) == 2 and shape[0] == height * width:
        order += f": pixels are in one axis; save u.reshape({height}, {width}, -1)"
    else:
        order += f"; an image of {_by(size)} pixels needs ({height}, {width}, labels)"
    raise ShapeError(f"{path}: {order}")


def _read_c_unary(path: Path, wanted: tuple[int, int], max_bytes: int, deadline: Deadline | None) -> NDArray[np.float32]:
    """Read the compressed unaries that were released with Kraehenbuehl & Koltun (2011): ``(height, width, labels)``.

    All is big-endian: uint32 width, height, labels, keys; float32 eps; int32 keys ``(keys, labels)``; uint32 the key of every pixel.
    A key times eps holds probabilities.
    """
    data = read_bytes(path, max_bytes=max_bytes, deadline=deadline)
    if len(data) < 20:
        raise FormatError(f"{path}: the file ends within its header of 20 bytes; get it again")
    width, height, labels, count = (int(n) for n in np.frombuffer(data, ">u4", 4))
    eps = float(np.frombuffer(data, ">f4", 1, 16)[0])
    size = 20 + 4 * (count * labels + width * height)
    if 0 in (width, height, labels, count) or not 0 < eps < 1:
        raise FormatError(f"{path}: the header says {width} x {height}, {labels} labels, {count} keys, eps {eps}; no .c_unary file")
    if len(data) != size:
        raise FormatError(f"{path}: {len(data)} bytes instead of the {size} that its header says; get it again")
    if (height, width) != wanted:
        raise ShapeError(f"{path}: unaries of {width} x {height} pixels, and the image has {_by(wanted)}; give those of this image")
    check_memory(path, 8 * labels * max(width * height, count), f"its {labels} labels of {width} x {height} pixels", max_bytes)
    keys = np.frombuffer(data, ">i4", count * labels, 20).reshape(count, labels) * eps
    pixels = np.frombuffer(data, ">u4", width * height, 20 + 4 * count * labels)
    if pixels.max() >= count:
        raise FormatError(f"{path}: a pixel has the key {pixels.max()}, and there are {count}; the file is damaged")
    if keys.min() < 0 or not np.abs(keys.sum(1) - 1).max() <= 0.05:
        raise FormatError(f"{path}: the keys times eps are no probabilities; the file is damaged")
    costs: NDArray[np.float32] = -np.log(keys.clip(CLIP, 1)).astype(np.float32)
    return costs[pixels.astype(np.int64)].reshape(height, width, labels)


def read_scribbles(
    path: Path, size: tuple[int, int], *, max_bytes: int = MAX_BYTES, deadline: Deadline | None = None
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Read a picture whose colours are labels; black and transparent pixels are unknown.

    Parameters
    ----------
    path : Path
        A picture without loss, such as a PNG.
    size : pair of int
        Height and width of the image.
    max_bytes : int
        Most bytes of the file, of its pixels (32 each), and of one cost of 4 bytes for every pixel and label.
    deadline : Deadline, optional
        When to give up.

    Returns
    -------
    labels : ndarray
        ``(height, width)``: 0 for unknown, else 1 and up in the order of pydensecrf's example (blue, then green, then red).
    colours : ndarray
        ``(labels, 3)``: red, green, blue of labels 1 and up.

    Raises
    ------
    FormatError
        The file is damaged, too large, of a format that changes colours, or has fewer than 2 or more than 256 of them.
    ShapeError
        It is of another size.
    FileNotFoundError
        There is no such file.
    """
    picture = _open(path, max_bytes, deadline, lossless=True)
    pixels: NDArray[Any] = np.asarray(picture.convert("RGBA")).astype(np.int64)
    if pixels.shape[:2] != size:
        raise ShapeError(f"{path}: scribbles of {_by(pixels.shape)} pixels, and the image has {_by(size)}; draw them on this image")
    code = pixels[:, :, 0] + (pixels[:, :, 1] << 8) + (pixels[:, :, 2] << 16)
    codes, labels = np.unique(np.where(pixels[:, :, 3] == 0, 0, code), return_inverse=True)
    labels = labels.reshape(size)
    if codes[0] == 0:
        codes = codes[1:]
    else:
        labels = labels + 1
    if len(codes) < 2:
        raise FormatError(f"{path}: scribbles have {len(codes)} colours besides black, which is unknown; draw each label in its own")
    if len(codes) > COLOURS:
        raise FormatError(
            f"{path}: scribbles have {len(codes)} colours; every colour is a label: draw without soft edges and save as PNG"
        )
    check_memory(path, 4 * labels.size * len(codes), f"costs of {len(codes)} labels", max_bytes)
    return labels.astype(np.int64), np.stack([codes & 255, codes >> 8 & 255, codes >> 16], 1).astype(np.uint8)


def scribble_unary(labels: NDArray[np.int64], count: int, gt_prob: float = 0.7) -> Tensor:
    """Unaries of scribbles: where one is, it is right with probability ``gt_prob``; elsewhere all labels cost the same.

    Parameters
    ----------
    labels : ndarray
        ``(height, width)``: 0 for unknown, else 1 to ``count``.
    count : int
        Number of labels.
    gt_prob : float
        Between 0 and 1.

    Returns
    -------
    Tensor
        ``(height, width, count)`` float32.

    Raises
    ------
    OptionError
        A number is out of its range.
    """
    return torch.from_numpy(unary_from_labels(labels, count, gt_prob).T.reshape(*labels.shape, count).copy())


def read_probability(path: Path, size: tuple[int, int], *, max_bytes: int = MAX_BYTES, deadline: Deadline | None = None) -> Tensor:
    """Read a grey picture of the probability of label 1, white for certain; label 0 has the rest.

    Parameters
    ----------
    path, max_bytes, deadline
        As in :func:`read_image`.
    size : tuple of int
        Height and width that the picture must have.

    Returns
    -------
    Tensor
        Costs ``(height, width, 2)`` float32; probabilities are clipped at 0.001.

    Raises
    ------
    FormatError
        The file is damaged, or has colours.
    ShapeError
        It is of another size.
    FileNotFoundError
        There is no such file.
    """
    pixels = read_image(path, max_bytes=max_bytes, deadline=deadline)
    if not bool((pixels == pixels[:, :, :1]).all()):
        raise FormatError(f"{path}: a probability is grey, and this picture has colours; scribbles are given by --scribbles")
    if tuple(pixels.shape[:2]) != size:
        raise ShapeError(f"{path}: probabilities of {_by(tuple(pixels.shape))} pixels, and the image has {_by(size)}")
    one = pixels[:, :, 0].numpy() / 255
    return torch.from_numpy(unary_from_softmax(np.stack([1 - one, one]), clip=CLIP).T.reshape(*size, 2).copy())
