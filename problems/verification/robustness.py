"""Robust accuracy: how many images of a data set a network classifies rightly, whatever happens to their pixels within a radius.

Images are worked on side by side.  Each is dropped from the batch as soon as it is decided: by interval bounds of the hidden
layers, by an attack, by the LPs of the hidden layers of all images left (thesis, 4.1.7.2: all LPs of a layer over a test set), by
an ascent over the slopes of their margins.  What is left then goes to :func:`verify`, one by one, with the bounds of hidden layers
that are there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, OptionError, ShapeError, TimeLimitError
from blocklp.problems.qpbo.arrays import as_real
from blocklp.problems.verification.attack import confirm, find_counterexamples, runtime_of
from blocklp.problems.verification.balls import Ball, Balls
from blocklp.problems.verification.given import check_network, check_runtime
from blocklp.problems.verification.images import Image, image_ball, image_box
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.properties import Property, detached
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.slopes import SlopeDual, out_of_time
from blocklp.problems.verification.tightener import BATCH, CHUNK, Tightener
from blocklp.problems.verification.verify import Runtime, verify
from blocklp.search.parameter_ascent import ascend
from blocklp.tables import Table, Tabled, plural

STATUSES = ("misclassified", "verified", "attacked", "undecided")
"""What an image can be."""

NORMS = ("linf", "l2")
"""Norms of the change of an image."""

POLISH = 50
"""Evaluations of every margin by ascent."""


@dataclass(frozen=True)
class ImageResult:
    """What is known of one image.

    Attributes
    ----------
    image : int
        Its number.
    label, predicted : int
        Its class, and what the network, in float64, makes of it.
    status : str
        "misclassified", before anything happens to it; "verified": there is no counterexample, as with "unsat" of :func:`verify`;
        "attacked": there is one, as with "sat"; "undecided".
    bound : float
        What the output of the class is proved to exceed all others by, or that of the target alone; NaN if the image is
        misclassified or attacked.
    nodes : int
        Of the search.
    seconds : float
        Its own, and its share of those of the batch.
    x : ndarray or None
        The counterexample, ``(inputs,)`` float32.
    """

    image: int
    label: int
    predicted: int
    status: str
    bound: float
    nodes: int
    seconds: float
    x: NDArray[np.float32] | None = None


@dataclass(frozen=True, repr=False)
class RobustAccuracy(Tabled):
    """Results of some images.

    Attributes
    ----------
    results : tuple of ImageResult
        By number.
    interrupted : bool
        Whether the user ended the run, so that some images have no result.
    """

    results: tuple[ImageResult, ...]
    interrupted: bool = False

    def _tables(self) -> tuple[str, list[Table]]:
        title = f"Robust accuracy of {plural(len(self.results), 'image')}: between {self.verified:.4g} and {self.upper:.4g}"
        rows = [(status, str(self.count(status)), f"{self._share(status):.4g}") for status in STATUSES]
        return title + ", interrupted" * self.interrupted, [Table(("status", "images", "share"), rows, len(rows))]

    def count(self, status: str) -> int:
        """Number of images with a status."""
        return sum(result.status == status for result in self.results)

    @property
    def natural(self) -> float:
        """Share of the images that are classified rightly as they are."""
        return 1 - self._share("misclassified")

    @property
    def verified(self) -> float:
        """Share of the images that are proved to stay in their class: robust accuracy is at least this."""
        return self._share("verified")

    @property
    def upper(self) -> float:
        """Share of the images that are verified or undecided: robust accuracy is at most this."""
        return self.verified + self._share("undecided")

    def _share(self, status: str) -> float:
        return self.count(status) / len(self.results) if self.results else math.nan


def robust_accuracy(
    network: Network,
    images: ArrayLike,
    labels: ArrayLike,
    eps: float | NDArray[Any],
    *,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    norm: str = "linf",
    targets: ArrayLike | None = None,
    timeout: float = math.inf,
    runtime: Runtime | None = None,
    callback: Callable[[ImageResult], Any] | None = None,
) -> RobustAccuracy:
    """Decide of every image whether its class survives every change of its pixels by at most a radius.

    Parameters
    ----------
    network : Network
        Float64, from :func:`read_onnx` or :func:`from_torch`; it takes ``(pixels - mean) / std``.
    images : array_like
        ``(images, *input_shape)``, or ``(images, height, width, channels)``: pixels in [0, 1].  Changed pixels stay there.
    labels : array_like of int
        ``(images,)``: their classes.
    eps : float or ndarray
        Radius, at least 0; an array that goes with one image is one for each pixel, and 0 where nothing may change.
    mean, std : sequence of float
        One number, or one a channel.
    norm : str
        "linf": every pixel may change by the radius.  "l2": the change as a vector may have that length; with radii of pixels, the
        vector of the changes divided by these the length 1.
    targets : array_like of int, optional
        ``(images,)``: for each image the only class that a counterexample may have, not its own; else any other will do.
    timeout : float
        Seconds for an image: a batch of images has so many for each of them together, and every search so many of its own.
    runtime : callable, optional
        Evaluates float32 inputs ``(inputs,)``; what "attacked" is said about.  Without one the network in float32.
    callback : callable, optional
        Gets every :class:`ImageResult` when it is there.

    Returns
    -------
    RobustAccuracy
        Of all images; after an interrupt, of those that were done.

    Raises
    ------
    ShapeError
        If images, labels, radii and network do not fit each other.
    ModelError
        If a pixel, a class or a target is out of range or no number, or there are fewer than two classes.
    OptionError
        If the radius, the norm, the timeout, the runtime, ``mean`` or ``std`` is wrong.

    Examples
    --------
    >>> from blocklp.problems.verification import digits, robust_accuracy
    >>> network, images, labels = digits.load()
    >>> found = robust_accuracy(network, images, labels, 1 / 16)
    >>> bool(0 <= found.verified <= found.upper <= found.natural <= 1)
    True
    """
    pixels, classes = checked_images(network, images, labels, timeout, runtime)
    wanted = None if targets is None else _checked_targets(network, targets, classes)
    radius = checked_radius(network, eps)
    boxes = [image_box(Image(own), network.input_shape, radius, mean, std, "pixel") for own in pixels]
    balls = [image_ball(box[2], radius, mean, std) for box in boxes] if checked_norm(norm) == "l2" else None
    results: list[ImageResult] = []
    interrupted = False
    try:
        for result in decide(network, boxes, balls, classes, wanted, timeout, runtime):
            results.append(result)
            if callback is not None:
                callback(result)
    except KeyboardInterrupt:
        interrupted = True
    return RobustAccuracy(tuple(sorted(results, key=lambda result: result.image)), interrupted)


def checked_images(
    network: Network, images: ArrayLike, labels: ArrayLike, timeout: float, runtime: Runtime | None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return pixels in [0, 1] ``(images, ...)`` and classes ``(images,)``, or refuse them.

    Parameters
    ----------
    network, images, labels, timeout, runtime
        As in :func:`robust_accuracy`.

    Raises
    ------
    ShapeError, ModelError, OptionError
        As in :func:`robust_accuracy`.
    """
    check_network(network)
    check_runtime(runtime)
    Deadline.of(timeout)  # refuses what is no positive number
    pixels, classes = as_real(detached(images), "images"), np.asarray(detached(labels))
    if classes.dtype.kind not in "iu" or classes.shape != pixels.shape[:1] or not pixels.size:
        raise ShapeError(f"images has shape {pixels.shape} and labels {classes.shape}; give one whole number for each image")
    if network.outputs < 2 or classes.min() < 0 or classes.max() >= network.outputs:
        raise ModelError(f"labels are {classes.min()} to {classes.max()}, and {network.name} has classes 0 to {network.outputs - 1}")
    if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
        raise ModelError("images holds numbers outside of [0, 1]; give pixels before mean and std are applied")
    return pixels, classes.astype(np.int64)


def checked_radius(network: Network, eps: float | NDArray[Any]) -> NDArray[Any]:
    """Return a radius, or one for each pixel of an image, or refuse it as :func:`robust_accuracy` does."""
    try:
        radius = as_real(detached(eps), "eps")
    except ModelError as error:
        raise OptionError(str(error)) from None
    if not (np.isfinite(radius).all() and (radius >= 0).all()):
        raise OptionError(f"eps is {eps}; give finite numbers of at least 0")
    try:
        np.broadcast_to(radius, network.input_shape)
    except ValueError:
        raise ShapeError(
            f"eps has shape {radius.shape}; give a number, or an array that goes with inputs {network.input_shape}"
        ) from None
    return radius


def checked_norm(norm: str) -> str:
    """Return the name of a norm, or refuse it."""
    if norm not in NORMS:
        raise OptionError(f"norm {norm!r} is unknown; use one of {', '.join(map(repr, NORMS))}")
    return norm


def _checked_targets(network: Network, targets: ArrayLike, classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the targets of images, or refuse them."""
    wanted = np.asarray(detached(targets))
    if wanted.dtype.kind not in "iu" or wanted.shape != classes.shape:
        raise ShapeError(f"targets has shape {wanted.shape}; give one whole number for each of {len(classes)} images")
    wrong = (wanted < 0) | (wanted >= network.outputs) | (wanted == classes)
    if wrong.any():
        at = int(wrong.argmax())
        raise ModelError(
            f"the target of image {at} is {wanted[at]}; give a class from 0 to {network.outputs - 1} that is not its own"
        )
    return wanted.astype(np.int64)


def decide(
    network: Network,
    boxes: Sequence[tuple[Tensor, Tensor, Tensor]],
    balls: Sequence[Ball] | None,
    classes: NDArray[np.int64],
    targets: NDArray[np.int64] | None,
    timeout: float,
    runtime: Runtime | None,
) -> Iterator[ImageResult]:
    """Decide images, in batches; each is handed over when its result is there.

    Parameters
    ----------
    network : Network
        Float64.
    boxes : sequence of tuple
        For each image ends of its box and the image itself, ``input_shape`` each (:func:`image_box`).
    balls : sequence of Ball, optional
        For each image a ball that inputs are in, too.
    classes : ndarray
        ``(images,)``.
    targets, timeout, runtime
        As in :func:`robust_accuracy`.
    """
    lower, upper, points = (torch.stack(ends).to(network.device) for ends in zip(*boxes, strict=True))
    own = torch.as_tensor(classes, device=network.device)
    wanted = None if targets is None else torch.as_tensor(targets, device=network.device)
    replay = runtime_of(network) if runtime is None else runtime
    most = max(1, BATCH // sum(math.prod(op.shape) for op in network.ops))
    for first in range(0, len(classes), most):
        part = slice(first, first + most)
        given = None if wanted is None else wanted[part]
        around = None if balls is None else balls[part]
        batch = _ImageBatch(network, lower[part], upper[part], around, points[part], own[part], given, timeout, replay)
        for result in batch.results():
            yield replace(result, image=first + result.image)


@dataclass
class _ImageBatch:
    """Some images at work; ``margins`` ``(images, outputs)`` are proved, and infinite where no counterexample is asked for."""

    network: Network
    lower: Tensor
    upper: Tensor
    balls: Sequence[Ball] | None
    points: Tensor
    labels: Tensor
    targets: Tensor | None
    timeout: float
    runtime: Runtime
    attacked: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    properties: dict[int, Property] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.deadline = Deadline(self.timeout * len(self.labels))
        self.predicted = self.network(self.points).argmax(1)
        self.margins = self.lower.new_full((len(self.labels), self.network.outputs), -torch.inf)
        self.margins.scatter_(1, self.labels[:, None], torch.inf)
        if self.targets is not None:
            self.margins = torch.full_like(self.margins, torch.inf).scatter_(1, self.targets[:, None], -torch.inf)
        self.left = (self.predicted == self.labels).nonzero()[:, 0]
        self.relaxation: Relaxation | None = None
        self.rows = self.left  # the images of the relaxation

    def results(self) -> Iterator[ImageResult]:
        """Hand over every image when it is decided, those that are not at last."""
        for image in (self.predicted != self.labels).nonzero()[:, 0].tolist():
            yield self._result(image, "misclassified")
        stages: tuple[Callable[[], None], ...] = (
            lambda: self._bound("interval", 1),
            lambda: self._attack(1, 10),
            lambda: self._bound("slopes", 1),
            lambda: self._attack(2, 40),
            lambda: self._margins(POLISH),
        )
        try:
            for stage in stages:
                if len(self.left):
                    stage()
                    yield from self._decided()
        except TimeLimitError:
            yield from self._decided()
        for image in self.left.tolist():
            yield self._search(image)

    def _result(self, image: int, status: str, nodes: int = 0, seconds: float = 0.0) -> ImageResult:
        bound = float(self.margins[image].min()) if status in ("verified", "undecided") else math.nan
        share = self._shared / len(self.labels) + seconds
        numbers = int(self.labels[image]), int(self.predicted[image])
        return ImageResult(image, *numbers, status, bound, nodes, share, self.attacked.get(image))

    @property
    def _shared(self) -> float:
        """Seconds of the batch so far, but for searches."""
        return time.perf_counter() - self.began

    def _decided(self) -> Iterator[ImageResult]:
        done = [(image, "attacked") for image in self.left.tolist() if image in self.attacked]
        proved = self.left[(self.margins[self.left] > 0).all(1)].tolist()
        done += [(image, "verified") for image in proved if image not in self.attacked]
        gone = {image for image, _ in done}
        self.left = torch.tensor([i for i in self.left.tolist() if i not in gone], dtype=torch.int64, device=self.labels.device)
        for image, status in done:
            yield self._result(image, status)

    def _bound(self, method: str, steps: int) -> None:
        """Bound the hidden layers, and then the margins by CROWN."""
        rows = self.left
        options: dict[str, Any] = {"deadline": self.deadline, "output": False, "method": method}
        if self.balls is not None:
            around = [self.balls[image] for image in rows.tolist()]
            options["balls"] = Balls.stacked(around, self.network.input_shape, rows.device)
        tightener = Tightener(self.network, self.lower[rows], self.upper[rows], steps, **options)
        tightener.run()
        self.relaxation, self.rows = tightener.relaxation(), rows
        self._margins(1)

    def _margins(self, steps: int) -> None:
        """Bound the margins that are not above zero; more than one step is an ascent over slopes."""
        assert self.relaxation is not None
        place = torch.full_like(self.labels, -1)
        place[self.rows] = torch.arange(len(self.rows), device=place.device)
        images, rivals = (self.margins[self.left] <= 0).nonzero().unbind(1)
        images = self.left[images]
        last = len(self.network.ops) - 1
        relus = [r for r in self.network.activations if r in self.network.ancestors(last)]
        most = max(1, CHUNK // sum(math.prod(op.shape) for op in self.network.ops))
        for image, rival in zip(torch.split(images, most), torch.split(rivals, most), strict=True):
            exact = self.relaxation.select(place[image])
            one = torch.eye(self.network.outputs, dtype=torch.float64, device=image.device)
            cost = (one[self.labels[image]] - one[rival]).view(-1, *self.network.ops[last].shape)
            slopes = exact.start(relus, len(cost))
            if steps > 1 and relus:
                dual = SlopeDual(exact.to(torch.float32), last, cost.float(), relus, {})
                reached = ascend(dual, dual.start(), steps, lambda value: value > 1e-5, out_of_time(self.deadline))
                slopes, _ = dual.named([p.double() for p in reached.parameters])
            value = exact.backward(last, cost, slopes, charge=True).value
            self.margins[image, rival] = torch.maximum(self.margins[image, rival], value)

    def _property(self, image: int) -> Property:
        """The counterexamples of an image by classes that are not excluded yet."""
        shape = (self.lower[image].flatten().cpu(), self.upper[image].flatten().cpu())
        if image not in self.properties:
            ball = None if self.balls is None else self.balls[image]
            self.properties[image] = Property.robustness(*shape, int(self.labels[image]), self.network.outputs, ball=ball)
        rivals = (rival for rival in range(self.network.outputs) if rival != int(self.labels[image]))
        left = [bool(self.margins[image, rival] <= 0) for rival in rivals]
        clauses = self.properties[image].clauses
        return Property(tuple(clause for clause, wanted in zip(clauses, left, strict=True) if wanted))

    def _attack(self, restarts: int, steps: int) -> None:
        """Search for counterexamples of all images left, side by side; only what the runtime confirms counts."""
        properties = {image: self._property(image) for image in self.left.tolist()}
        clauses = tuple(clause for prop in properties.values() for clause in prop.clauses)
        owner = [image for image, prop in properties.items() for _ in prop.clauses]
        found = find_counterexamples(
            self.network, Property(clauses), owner, restarts=restarts, steps=steps, seed=restarts, deadline=self.deadline
        )
        self.attacked |= {
            image: candidate.x for image, candidate in found.items() if confirm(self.runtime, candidate.x, properties[image])
        }

    def _search(self, image: int) -> ImageResult:
        """Decide one image by branch and bound, from the bounds that are there."""
        known = None
        if self.relaxation is not None and bool((self.rows == image).any()):
            known = self.relaxation.select((self.rows == image).nonzero()[:, 0])
        verdict = verify(self.network, self._property(image), timeout=self.timeout, runtime=self.runtime, known=known)
        if verdict.reason == "Interrupted.":
            raise KeyboardInterrupt
        self.began += verdict.seconds  # its own, no share of the others
        if verdict.status == "sat":
            assert verdict.x is not None
            self.attacked[image] = verdict.x
        status = {"sat": "attacked", "unsat": "verified"}.get(verdict.status, "undecided")
        if status == "verified":
            proved = self.margins[image] <= 0
            self.margins[image, proved] = verdict.bound
        return self._result(image, status, verdict.nodes, verdict.seconds)
