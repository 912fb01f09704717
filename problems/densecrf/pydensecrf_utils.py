"""The functions of ``pydensecrf.utils``: unaries from labels and probabilities, features of kernels.

Unaries are ``(labels, points)`` float32, features ``(features, points)``, points row by row, as pydensecrf has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklp.errors import NonFiniteError, OptionError, ShapeError

Array = NDArray[np.float32]


def unary_from_labels(labels: ArrayLike, n_labels: int, gt_prob: float, zero_unsure: bool = True) -> Array:
    """Costs of an annotation that is right with a probability.

    Parameters
    ----------
    labels : array
        Whole numbers, of any shape.
    n_labels : int
        Number of labels, at least 2; an unsure 0 is none of them.
    gt_prob : float
        Probability that an annotation is right, between 0 and 1; the other labels share the rest.
    zero_unsure : bool
        Whether 0 means any label, so that the labels are 1 to ``n_labels``; else they are 0 to ``n_labels - 1``.

    Returns
    -------
    ndarray
        ``(n_labels, points)`` float32.

    Raises
    ------
    OptionError
        If a number is out of its range.
    """
    given = np.asarray(labels).reshape(-1)
    if n_labels < 2 or not 0 < gt_prob < 1:
        raise OptionError(f"n_labels is {n_labels} and gt_prob {gt_prob}; give at least 2 labels and a probability between 0 and 1")
    last = n_labels if zero_unsure else n_labels - 1
    if given.dtype.kind not in "iub" or given.size == 0 or given.min() < 0 or given.max() > last:
        raise OptionError(f"annotations must be whole numbers from 0 to {last}; correct them or n_labels")
    at = given.astype(np.int64)
    own = np.eye(n_labels, dtype=bool)[:, at - 1 if zero_unsure else at]
    costs: Array = np.where(own, -np.log(gt_prob), -np.log((1 - gt_prob) / (n_labels - 1))).astype(np.float32)
    if zero_unsure:
        costs[:, at == 0] = np.log(n_labels)
    return costs


def unary_from_softmax(sm: ArrayLike, scale: float | None = None, clip: float | None = 1e-5) -> Array:
    """Costs of probabilities, minus their logarithms.

    Parameters
    ----------
    sm : array
        ``(labels, ...)``: probabilities.
    scale : float, optional
        Weight of the probabilities, above 0 and at most 1; the uniform distribution has the rest.
    clip : float, optional
        The least probability; None for none: then a probability of 0 costs an infinity, which forbids the label.

    Returns
    -------
    ndarray
        ``(labels, points)`` float32.

    Raises
    ------
    OptionError
        If a number is out of its range, or the array holds no probabilities.
    """
    given = np.asarray(sm, np.float64)
    if given.ndim < 1 or given.size == 0 or not (given >= -1e-6).all() or not (given <= 1 + 1e-6).all():
        raise OptionError("probabilities must be from 0 to 1; take the softmax of a network's scores first")
    if scale is not None:
        if not 0 < scale <= 1:
            raise OptionError(f"scale is {scale}; give a number above 0 and at most 1")
        given = scale * given + (1 - scale) / len(given)
    if clip is not None:
        given = given.clip(clip, 1)
    with np.errstate(divide="ignore"):
        costs: Array = -np.log(given.clip(0, None)).reshape(len(given), -1).astype(np.float32)
    return costs


def compute_unary(labels: ArrayLike, M: int, GT_PROB: float = 0.5) -> Array:
    """Costs of an annotation: the older name of :func:`unary_from_labels`.

    Parameters
    ----------
    labels, M, GT_PROB
        As ``labels``, ``n_labels`` and ``gt_prob`` there.
    """
    return unary_from_labels(labels, M, GT_PROB)


def softmax_to_unary(sm: ArrayLike, GT_PROB: float = 1.0) -> Array:
    """Costs of probabilities: the older name of :func:`unary_from_softmax`, with ``clip=None``; a scale of 1 is none."""
    return unary_from_softmax(sm, None if GT_PROB == 1 else GT_PROB, clip=None)


def create_pairwise_gaussian(sdims: Sequence[float], shape: Sequence[int]) -> Array:
    """Positions on a grid of any dimension, in units of the widths ``sdims`` of its axes: ``(axes, points)`` float32.

    Raises
    ------
    OptionError
        If a width is not positive.
    ShapeError
        If there is not one for every axis.
    """
    widths = feature_widths(sdims, "sdims", len(shape))
    return (np.indices(tuple(shape)).reshape(len(shape), -1) / widths[:, None]).astype(np.float32)


def create_pairwise_bilateral(sdims: Sequence[float], schan: ArrayLike, img: ArrayLike, chdim: int = -1) -> Array:
    """Positions and colours of an image of any dimension, in units of their widths.

    Parameters
    ----------
    sdims : sequence of float
        Width along every axis but that of the channels.
    schan : float or one for every channel
        Width in units of the colours.
    img : array
        The image.
    chdim : int
        The axis of its channels; -1 if there is one channel and no axis.

    Returns
    -------
    ndarray
        ``(axes + channels, points)`` float32.

    Raises
    ------
    OptionError
        If a width is not positive.
    ShapeError
        If there are too few or too many.
    """
    image = real_numbers(img, "the image")
    if not -1 <= chdim < image.ndim:
        raise OptionError(f"chdim is {chdim}, and the image has {image.ndim} axes; give one of them, or -1 for no channels")
    image = image[None] if chdim == -1 else np.moveaxis(image, chdim, 0)
    colours = image.reshape(len(image), -1) / feature_widths(schan, "schan", len(image))[:, None]
    return np.concatenate([create_pairwise_gaussian(sdims, image.shape[1:]), colours.astype(np.float32)])


def feature_widths(given: ArrayLike, name: str, count: int) -> NDArray[np.float64]:
    """Check the widths of features.

    Parameters
    ----------
    given : array
        One width for all features, or one each.
    name : str
        Of the argument, for messages.
    count : int
        Features.

    Returns
    -------
    ndarray
        ``(count,)`` float64.

    Raises
    ------
    ShapeError, OptionError
        If there is another number of them, or one is not positive and finite.
    """
    widths = np.asarray(given, np.float64)
    if widths.ndim != 0 and widths.shape != (count,):
        raise ShapeError(f"{name} has the shape {widths.shape}; give one number, or {count}")
    if not ((widths > 0) & (widths < np.inf)).all():
        raise OptionError(f"{name} is {widths.tolist()}; a kernel's width must be positive and finite")
    return np.broadcast_to(widths, (count,))


def real_numbers(given: ArrayLike, name: str, allowed: float = 0.0) -> NDArray[np.float64]:
    """Check an array of real numbers.

    Parameters
    ----------
    given : array
        Of any layout and real type.
    name : str
        Of the argument, for messages.
    allowed : float
        An infinity that it may hold; 0 for none.

    Returns
    -------
    ndarray
        In float64.

    Raises
    ------
    ShapeError, NonFiniteError
        If it is no such array, or holds NaN or infinities other than the one that is ``allowed``.
    """
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{name}: an array of {array.dtype}; give real numbers")
    if not (np.isfinite(array) | (array == allowed)).all():
        raise NonFiniteError(f"{name}: NaN or infinities; clip probabilities before taking -log")
    return array.astype(np.float64)
