"""Certified radii: for every image, how far its pixels may change before a network's answer does, by bisection.

All images are decided side by side, each at a radius of its own (:func:`blocklp.problems.verification.robustness.decide`).  A proof
raises the certified radius of its image; a counterexample is drawn towards the image for as long as it is one, and lowers the other
end to its distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.options import real
from blocklp.problems.verification.attack import confirm, runtime_of
from blocklp.problems.verification.images import Image, image_ball, image_box
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.properties import Property
from blocklp.problems.verification.robustness import ImageResult, checked_images, checked_norm, decide
from blocklp.problems.verification.verify import Runtime

Box = tuple[Tensor, Tensor, Tensor]

HALVINGS = 12
"""Steps by which a counterexample is drawn towards its image."""


@dataclass(frozen=True)
class CertifiedRadius:
    """How far the pixels of one image may change.

    Attributes
    ----------
    image : int
        Its number.
    label, predicted : int
        Its class, and what the network, in float64, makes of it.
    certified : float
        Largest radius, in the norm of the changes of pixels in [0, 1], at which it is proved that there is no counterexample; 0
        where none was proved; NaN if the image is misclassified.
    attacked : float
        Distance of the nearest counterexample known, infinite where none is; NaN if the image is misclassified.
    nodes : int
        Of all searches.
    seconds : float
        Its share of all radii that were tried.
    x : ndarray or None
        That counterexample, ``(inputs,)`` float32.
    finished : bool
        Whether no radius is left to try; False after an interrupt.
    """

    image: int
    label: int
    predicted: int
    certified: float
    attacked: float
    nodes: int
    seconds: float
    x: NDArray[np.float32] | None = None
    finished: bool = False


def certified_radii(
    network: Network,
    images: ArrayLike,
    labels: ArrayLike,
    *,
    most: float = 1.0,
    precision: float = 1 / 1024,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    norm: str = "linf",
    timeout: float = 10.0,
    runtime: Runtime | None = None,
    callback: Callable[[tuple[CertifiedRadius, ...]], Any] | None = None,
) -> tuple[CertifiedRadius, ...]:
    """Find the largest radius at which each image is proved to stay in its class.

    Parameters
    ----------
    network, images, labels
        As in :func:`blocklp.problems.verification.robust_accuracy`.
    most : float
        Largest radius that is tried.
    precision : float
        Up to which the largest radius is sought; positive, and below ``most``.
    mean, std : sequence of float
        One number, or one a channel.
    norm : str
        "linf": radii are those of every pixel; "l2": Euclidean lengths of the change of the image.
    timeout : float
        Seconds for an image and a radius; where they do not suffice, smaller radii are tried, and nothing is claimed about this one.
        Bisection ends at the radii that are hardest to decide, so that few images end before.
    runtime : callable, optional
        Evaluates float32 inputs ``(inputs,)``; what counterexamples are confirmed by.  Without one the network in float32.
    callback : callable, optional
        Gets what is known of all images after each round.

    Returns
    -------
    tuple of CertifiedRadius
        Of all images; after an interrupt, with what was known then.

    Raises
    ------
    ShapeError
        If images, labels and network do not fit each other.
    ModelError
        If a pixel or a class is out of range, or there are fewer than two classes.
    OptionError
        If ``most``, the norm, the precision, the timeout, the runtime, ``mean`` or ``std`` is wrong.

    Examples
    --------
    >>> from blocklp.problems.verification import certified_radii, digits
    >>> network, images, labels = digits.load()
    >>> found = certified_radii(network, images[:2], labels[:2], most=1 / 4, precision=1 / 64, timeout=0.2)
    >>> all(0 <= one.certified < one.attacked for one in found)
    True
    """
    pixels, classes = checked_images(network, images, labels, timeout, runtime)
    if real(most, "most") > (longest := 1.0 if checked_norm(norm) == "linf" else math.sqrt(network.inputs)):
        raise OptionError(f"most is {most}, and pixels are in [0, 1]; give a radius of at most {longest:.9g}")
    if real(precision, "precision") >= most:
        raise OptionError(f"precision is {precision}, and the largest radius {most}; give a precision below it")
    replay = runtime_of(network) if runtime is None else runtime
    searches = [_Search(CertifiedRadius(i, int(label), -1, 0.0, math.inf, 0, 0.0), most, most) for i, label in enumerate(classes)]
    try:
        while open_ := [own.found.image for own in searches if own.open(precision)]:
            boxes = [_box(network, pixels[i], searches[i].next, mean, std) for i in open_]
            balls = None
            if norm == "l2":
                balls = [image_ball(box[2], searches[i].next, mean, std) for i, box in zip(open_, boxes, strict=True)]
            for result in decide(network, boxes, balls, classes[open_], None, timeout, replay):
                i, far = open_[result.image], math.inf
                if result.x is not None:
                    x, far = _drawn(network, replay, result.x, _box(network, pixels[i], 1.0, mean, std), result.label, norm)
                    result = replace(result, x=x)
                searches[i] = searches[i].after(result, far)
            if callback is not None:
                callback(tuple(own.found for own in searches))
    except KeyboardInterrupt:  # those that are open say so
        pass
    return tuple(replace(own.found, finished=not own.open(precision)) for own in searches)


@dataclass(frozen=True)
class _Search:
    """What is known of an image, the radius from which on nothing is tried, and the next one to try."""

    found: CertifiedRadius
    most: float
    next: float

    def open(self, precision: float) -> bool:
        """Whether there is a radius to try; an image that is misclassified has none."""
        return self.most - self.found.certified > precision

    def after(self, result: ImageResult, far: float) -> _Search:
        """Return what is known after one more result, with the distance of its counterexample or infinity."""
        nodes, seconds = self.found.nodes + result.nodes, self.found.seconds + result.seconds
        found = replace(self.found, predicted=result.predicted, nodes=nodes, seconds=seconds)
        if result.status == "misclassified":
            return _Search(replace(found, certified=math.nan, attacked=math.nan), math.nan, math.nan)
        most = self.most
        if result.status == "verified":
            found = replace(found, certified=self.next)
        else:
            most = min(self.next, far)
        if far < found.attacked:
            found = replace(found, attacked=far, x=result.x)
        return _Search(found, most, (found.certified + most) / 2)


def _box(network: Network, pixels: NDArray[Any], radius: float, mean: Sequence[float], std: Sequence[float]) -> Box:
    """Ends of the box of inputs around an image, and the image itself: ``input_shape`` each."""
    return image_box(Image(pixels), network.input_shape, radius, mean, std, "pixel")


def _drawn(
    network: Network, runtime: Runtime, x: NDArray[np.float32], every: Box, label: int, norm: str
) -> tuple[NDArray[np.float32], float]:
    """The counterexample nearest to an image, of some on the way from one to the image.

    Parameters
    ----------
    network : Network
        The network.
    runtime : callable
        Confirms counterexamples.
    x : ndarray
        ``(inputs,)``: a counterexample.
    every : tuple of Tensor
        Ends of the box of all images, and the image itself, ``input_shape`` each.
    label : int
        The image's class.
    norm : str
        That of its changes.

    Returns
    -------
    x, far : ndarray, float
        ``(inputs,)`` float32, and the norm of its change of the pixels in [0, 1].
    """
    lower, upper, point = (end.flatten().cpu().numpy() for end in every)
    prop = Property.robustness(lower, upper, label, network.outputs)
    near, far, found = 0.0, 1.0, x
    for _ in range(HALVINGS):
        middle = (near + far) / 2
        drawn = np.clip(point + middle * (x - point), lower, upper).astype(np.float32)
        if confirm(runtime, drawn, prop):
            far, found = middle, drawn
        else:
            near = middle
    change = np.abs(found.astype(np.float64) - point) / (upper - lower)
    return found, float(change.max() if norm == "linf" else np.sqrt(change @ change))
