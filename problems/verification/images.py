"""Images, and the boxes of inputs around them.

An image is an array ``(height, width, channels)`` of pixels in [0, 1].  A network takes it as ``(channels, height, width)``, as
``(height, width, channels)``, or flattened in the first of these orders; 1 or 3 channels tell them apart.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.errors import FormatError, OptionError, ShapeError, needed
from blocklp.problems.files import MAX_BYTES, read_bytes, read_text
from blocklp.problems.verification.balls import Ball
from blocklp.problems.verification.onnx_refusals import batch_of

Array = NDArray[np.float64]
CHANNELS = (1, 3)


@dataclass(frozen=True)
class Image:
    """Pixels in [0, 1], ``(height, width, channels)`` or in the shape of an input, and the class if the file has it."""

    pixels: Array
    label: int | None = None


def read_image(path: Path, row: int = 0, max_bytes: int = MAX_BYTES) -> Image:
    """Read an image.

    Parameters
    ----------
    path : Path
        A ``.csv`` file (a row has the class and then pixels from 0 to 255, channels last), a ``.npy`` file (pixels in [0, 1]
        or whole numbers from 0 to 255), or a picture that matplotlib reads.
    row : int
        Of a ``.csv`` file, from 0.
    max_bytes : int
        Most bytes of a ``.csv`` or ``.npy`` file, decompressed.

    Raises
    ------
    FormatError
        The file is damaged or too large, or its pixels are out of their range.
    OptionError
        There is no such row.
    MissingDependencyError
        A picture needs matplotlib.
    FileNotFoundError
        There is no such file.
    """
    label = None
    if path.suffix.lower() == ".csv":
        label, pixels = _read_row(path, row, max_bytes)
    elif path.suffix.lower() == ".npy":
        pixels = _unit(_read_array(path, max_bytes))
    else:
        pixels = _read_picture(path)
    _check_range(path, pixels)
    return Image(pixels, label)


def read_images(path: Path, labels: Path | None = None, max_bytes: int = MAX_BYTES) -> tuple[Array, NDArray[np.int64]]:
    """Read many images and their classes.

    Parameters
    ----------
    path : Path
        A ``.csv`` file (every row has the class and then pixels from 0 to 255, channels last), or a ``.npy`` file of
        ``(images, ...)`` pixels in [0, 1] or whole numbers from 0 to 255.
    labels : Path, optional
        A ``.npy`` file of classes ``(images,)``, with a ``.npy`` file of images.
    max_bytes : int
        Most bytes of a file, decompressed.

    Returns
    -------
    pixels : ndarray
        ``(images, ...)`` float64 in [0, 1].
    labels : ndarray
        ``(images,)`` int64.

    Raises
    ------
    FormatError
        A file is damaged or too large, rows have different lengths, or pixels are out of their range.
    OptionError
        Classes are missing, or given twice.
    FileNotFoundError
        There is no such file.
    """
    table = path.suffix.lower() == ".csv"
    if table != (labels is None):
        raise OptionError(f"{path}: a .csv file has the classes in its first column, a .npy file needs a file of --labels beside it")
    if labels is None:
        found = [_parse_row(path, number, cells) for number, cells in enumerate(_read_rows(path, max_bytes))]
        if len({len(pixels) for _, pixels in found}) != 1:
            raise FormatError(f"{path}: rows have different numbers of pixels, or there are none; give images of one size")
        pixels, classes = np.stack([own for _, own in found]), np.array([label for label, _ in found])
    else:
        pixels, classes = _unit(_read_array(path, max_bytes)), _read_array(labels, max_bytes)
        if classes.dtype.kind not in "iu":
            raise FormatError(f"{labels}: classes of type {classes.dtype}; give whole numbers")
    _check_range(path, pixels)
    return pixels, classes.astype(np.int64)


def _read_array(path: Path, max_bytes: int) -> NDArray[Any]:
    try:
        # From memory: the header of a file on disk is believed before anything is read.
        array = np.load(io.BytesIO(read_bytes(path, max_bytes=max_bytes)), allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "buif":
            raise ValueError("no array of real numbers")
    except (ValueError, EOFError, MemoryError) as error:
        raise FormatError(f"{path}: not an array of numbers ({error}); save it with numpy.save") from error
    return array


def _check_range(path: Path, pixels: Array) -> None:
    if not np.isfinite(pixels).all() or pixels.size == 0 or pixels.min() < 0 or pixels.max() > 1:
        need = "give numbers in [0, 1], or whole numbers from 0 to 255, or state other inputs in a query for blocklp verify"
        raise FormatError(f"{path}: pixels are outside of their range; {need}")


def _unit(array: NDArray[Any]) -> Array:
    return array / 255.0 if np.issubdtype(array.dtype, np.integer) else array.astype(np.float64)


def _read_rows(path: Path, max_bytes: int) -> list[list[str]]:
    try:
        return [cells for cells in csv.reader(io.StringIO(read_text(path, max_bytes=max_bytes), newline="")) if cells]
    except csv.Error as error:
        raise FormatError(f"{path}: not a csv file ({error}); give one") from error


def _read_row(path: Path, row: int, max_bytes: int) -> tuple[int, Array]:
    rows = _read_rows(path, max_bytes)
    if not 0 <= row < len(rows):
        raise OptionError(f"{path} has rows 0 to {len(rows) - 1}, not {row}; correct --row")
    return _parse_row(path, row, rows[row])


def _parse_row(path: Path, row: int, cells: Sequence[str]) -> tuple[int, Array]:
    try:
        label, *pixels = (int(float(cell)) for cell in cells)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{path}: row {row} is not a class and its pixels ({error})") from error
    return label, np.array(pixels) / 255.0


def _read_picture(path: Path) -> Array:
    with needed("pictures need matplotlib", "plot"):
        from matplotlib import image
    try:
        found = _unit(np.asarray(image.imread(path)))
    except FileNotFoundError:
        raise
    except Exception as error:  # Damage shows in many ways.
        raise FormatError(f"{path}: not a picture, or a damaged one ({error})") from error
    return found[..., :3] if found.ndim == 3 else found


def _layout(shape: Sequence[int]) -> tuple[str, tuple[int, int, int]]:
    """Order of an input's axes, and the height, width and channels of its images."""
    if len(shape) == 3 and shape[0] in CHANNELS:
        return "first", (shape[1], shape[2], shape[0])
    if len(shape) == 3 and shape[2] in CHANNELS:
        return "last", (shape[0], shape[1], shape[2])
    size = math.prod(shape)
    for channels in CHANNELS[::-1]:
        side = math.isqrt(size // channels)
        if side * side * channels == size:
            return "flat", (side, side, channels)
    return "flat", (size, 1, 1)


def arrange(image: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Bring an array ``(height, width, channels)`` into the shape and order of an input."""
    return (image if _layout(shape)[0] == "last" else image.transpose(2, 0, 1)).reshape(shape)


def as_picture(values: Array, shape: Sequence[int]) -> Array:
    """Return an input ``(inputs,)`` of a shape as an image ``(height, width, channels)``: what :func:`arrange` undoes."""
    order, size = _layout(shape)
    return values.reshape(size) if order == "last" else values.reshape(size[2], *size[:2]).transpose(1, 2, 0)


def as_input(image: Image, shape: Sequence[int]) -> Array:
    """Return the pixels in the shape and order of an input.

    Raises
    ------
    ShapeError
        They do not fit.
    """
    pixels, (_, size) = image.pixels, _layout(shape)
    if pixels.shape == tuple(shape) and pixels.ndim > 1:
        return pixels
    if pixels.ndim == 4 and len(pixels) == 1:
        return as_input(Image(pixels[0]), shape)
    if pixels.size != math.prod(shape) or (pixels.ndim > 1 and pixels.shape not in (size, size[:2])):
        need = f"an image of {size}" if pixels.ndim > 1 else f"{math.prod(shape)} numbers a row, in a .csv file after the class"
        need += batch_of(shape) if len(shape) > 3 else ""
        raise ShapeError(f"the image has shape {pixels.shape}, the input of the network {tuple(shape)}; give {need}")
    return arrange(pixels.reshape(size), shape)


def read_epsilon(text: str) -> float:
    """Read a radius such as ``0.03`` or ``8/255``.

    Raises
    ------
    OptionError
        It is no number, or negative.
    """
    try:
        epsilon = float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        epsilon = -1.0
    if epsilon < 0:
        raise OptionError(f"the radius {text!r} is not a number of at least 0; write 0.03 or 8/255")
    return epsilon


def read_numbers(text: str, name: str) -> list[float]:
    """Read numbers with commas between them.

    Raises
    ------
    OptionError
        One is not finite.
    """
    try:
        numbers = [float(Fraction(part.strip())) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise OptionError(f"{name} is {text!r}; give numbers with commas between them, one or one a channel") from None
    return numbers


def _normalisation(shape: Sequence[int], mean: Sequence[float], std: Sequence[float]) -> tuple[Array, Array]:
    """What is subtracted from every pixel, and what it is then divided by, in the shape of an input."""
    _, size = _layout(shape)
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) not in (1, size[2]):
            raise OptionError(f"{name} has {len(numbers)} numbers, and the image {size[2]} channels; give one, or one a channel")
    if min(std) <= 0:
        raise OptionError(f"std is {list(std)}; give positive numbers")
    channel = arrange(np.broadcast_to(np.arange(size[2]), size), shape)
    return np.resize(mean, size[2])[channel], np.resize(std, size[2])[channel]


def image_ball(point: Tensor, epsilon: float | NDArray[Any], mean: Sequence[float], std: Sequence[float]) -> Ball:
    """Return the ball of inputs that stand for pixels within a Euclidean distance of an image.

    Parameters
    ----------
    point : Tensor
        The image as an input, as :func:`image_box` returns it.
    epsilon : float or ndarray
        Radius, of pixels in [0, 1]; or one for each pixel, the others being left as they are.
    mean, std
        As there, which also says what is raised.
    """
    _, factor = _normalisation(point.shape, mean, std)
    axes = (np.broadcast_to(epsilon, tuple(point.shape)) / factor).reshape(-1)
    centre = point.flatten().numpy()
    # The centre and the quotients are rounded: the ball is larger by as much.
    off = np.divide(np.spacing(np.abs(centre)), axes, out=np.zeros_like(axes), where=axes > 0)
    return Ball(centre, axes * (1 + 8 * np.finfo(np.float64).eps + 2 * np.linalg.norm(off)))


def image_box(
    image: Image, shape: Sequence[int], epsilon: float | NDArray[Any], mean: Sequence[float], std: Sequence[float], space: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the box of inputs around an image that stand for valid pixels, and the image itself.

    The input of the network is ``(pixels - mean) / std``, channel by channel.

    Parameters
    ----------
    image : Image
        The image.
    shape : sequence of int
        Of the network's input.
    epsilon : float
        Radius.
    mean, std : sequence of float
        One number, or one a channel.
    space : str
        ``"pixel"``: the radius is one of pixels in [0, 1]; ``"input"``: one of the network's input.

    Returns
    -------
    lower, upper, centre : Tensor, ``shape``
        Float64.

    Raises
    ------
    ShapeError
        The image does not fit the network.
    OptionError
        ``mean`` or ``std`` has a wrong number of entries, or ``std`` one that is not positive.
    """
    pixels = as_input(image, shape)
    centre, factor = _normalisation(shape, mean, std)
    radius = epsilon if space == "pixel" else epsilon * factor
    ends = (np.clip(pixels - radius, 0, 1), np.clip(pixels + radius, 0, 1), pixels)
    lower, upper, point = (torch.from_numpy((end - centre) / factor) for end in ends)
    return lower, upper, point
