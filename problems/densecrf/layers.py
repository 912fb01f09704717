r"""A dense CRF as a layer of a network: unrolled mean field and regularised Frank-Wolfe, with every parameter learnable.

.. math:: p_k = \arg\min_{p \in M} \; \langle \nabla E(y_k), p \rangle + r(p), \qquad y_{k+1} = y_k + \alpha \, (p_k - y_k)

from :math:`y_0 = \mathrm{softmax}(-\phi)` (Le-Huu & Alahari 2021, Algorithm 1 with f = E).  The regulariser decides:
:math:`r = -\lambda H` gives :math:`p = \mathrm{softmax}(-\nabla E / \lambda)` ("efw", equation 12; mean field is the case
:math:`\lambda = \alpha = 1`), :math:`r = \lambda |\cdot|^2 / 2` gives the projection of :math:`-\nabla E / \lambda` on the simplices
("l2fw", equation 11).  The energy is a :class:`DenseCRF` whose numbers are functions of the parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from blocklp.errors import OptionError, ShapeError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf.compatibility import check_compatibility
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.images import image_features
from blocklp.problems.densecrf.kernel import Kernel
from blocklp.problems.densecrf.prox_lp import project_to_simplex

METHODS = ("mean-field", "efw", "l2fw")


class DenseCRFLayer(torch.nn.Module):
    r"""Marginals of a dense CRF over images and a network's logits.

    All parameters are learned except the widths, whose gradients cost as much again; ``layer.log_stretch.requires_grad_()`` adds
    them, and ``requires_grad_(False)`` fixes any other.  What must be positive is the exponential of its parameter.

    Parameters
    ----------
    labels : int
        Number of labels, at least 2.
    smooth : pair of float or None
        ``(sxy, weight)`` of the smoothness kernel, as in pydensecrf; None for none.
    bilateral : triple of float or None
        ``(sxy, srgb, weight)`` of the bilateral kernel, srgb in units of the images' channels; None for none.
    compatibility : Tensor, optional
        ``(labels, labels)``, symmetric: what a pair of labels costs at first; the Potts model by default.
    method : str
        "mean-field", "efw" or "l2fw".
    steps : int
        Unrolled steps, at least 1.
    step : float, optional
        The step size :math:`\alpha` of Frank-Wolfe at first, above 0 and at most 1; 0.5 by default.  A step of 1 is not learned.
    regularisation : float, optional
        The weight :math:`\lambda` of Frank-Wolfe's regulariser at first, positive; 1 by default.
    exact : bool
        Whether the kernels are the Gaussians themselves, for up to some thousand points a batch.
    recompute : bool
        Whether steps are computed again in the backward pass (``torch.utils.checkpoint``): less memory, a third more time.
    device, dtype : optional
        Of the parameters.

    Attributes
    ----------
    log_unary : Parameter
        ``()``: logits are multiplied by its exponential.
    log_weights : Parameter
        ``(kernels,)``.
    first_widths : Tensor
        ``(1 to 3,)``, a buffer: sxy of the smoothness kernel, then sxy and srgb of the bilateral one.
    log_stretch : Parameter
        ``(1 to 3,)``: the first widths are multiplied by its exponential.
    compatibility : Parameter
        ``(labels, labels)``: only its symmetric part counts.
    logit_step, log_regularisation : Parameter or None
        ``()``; None for mean field.

    Raises
    ------
    OptionError, ShapeError, NonFiniteError, ModelError
        If an option is unknown or out of range, or the compatibility is not a symmetric, finite matrix of the labels.
    """

    first_widths: Tensor

    def __init__(
        self,
        labels: int,
        *,
        smooth: tuple[float, float] | None = (3.0, 3.0),
        bilateral: tuple[float, float, float] | None = (80.0, 13.0, 10.0),
        compatibility: Tensor | None = None,
        method: str = "mean-field",
        steps: int = 5,
        step: float | None = None,
        regularisation: float | None = None,
        exact: bool = False,
        recompute: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if method not in METHODS:
            raise OptionError(f"there is no layer for {method!r}; choose one of {', '.join(METHODS)}")
        if labels < 2 or steps < 1:
            raise OptionError(f"labels is {labels} and steps {steps}; give at least 2 labels and 1 step")
        given = [kernel for kernel in (smooth, bilateral) if kernel is not None]
        if not given or not all(0 < value < math.inf for kernel in given for value in kernel):
            raise OptionError(
                f"smooth is {smooth} and bilateral {bilateral}; give at least one, with widths and a weight that are positive and "
                "finite (weights are learned as logarithms: leave a kernel out by None)"
            )
        self.labels, self.method, self.steps, self.exact, self.recompute = labels, method, steps, exact, recompute
        self.has_smooth, self.has_bilateral = smooth is not None, bilateral is not None

        def parameter(value: float | list[float]) -> Parameter:
            return Parameter(torch.tensor(value, device=device, dtype=dtype or torch.get_default_dtype()))

        self.log_unary = parameter(0.0)
        self.log_weights = parameter([math.log(kernel[-1]) for kernel in given])
        # Not the widths' logarithms: rounding of exp(log(width)) moves pixels across the lattice's faces, on which many lie.
        widths = [float(width) for kernel in given for width in kernel[:-1]]
        self.register_buffer("first_widths", parameter(widths).detach())
        self.log_stretch = parameter([0.0] * len(widths)).requires_grad_(False)
        if compatibility is None:
            compatibility = 1 - torch.eye(labels)
        elif compatibility.shape != (labels, labels):
            raise ShapeError(f"a compatibility has shape {tuple(compatibility.shape)}; give ({labels}, {labels}), that of the labels")
        self.compatibility = parameter(check_compatibility(compatibility.detach()).tolist())
        if method == "mean-field":
            if step is not None or regularisation is not None:
                raise OptionError("mean field has neither step nor regularisation; take the method 'efw', which has both")
            self.logit_step = self.log_regularisation = None
        else:
            step = 0.5 if step is None else step
            regularisation = 1.0 if regularisation is None else regularisation
            if not 0 < step <= 1 or not 0 < regularisation < math.inf:
                raise OptionError(
                    f"step is {step} and regularisation {regularisation}; give a step above 0 and at most 1 and a positive weight"
                )
            self.logit_step = parameter(math.log(step / (1 - step)) if step < 1 else math.inf).requires_grad_(step < 1)
            self.log_regularisation = parameter(math.log(regularisation))

    @property
    def widths(self) -> Tensor:
        """The widths now, ``(1 to 3,)`` float64."""
        return self.first_widths.double() * self.log_stretch.double().exp()

    def extra_repr(self) -> str:
        """The options, and the parameters' values now."""
        text = f"labels={self.labels}, method={self.method!r}, steps={self.steps}"
        weights, widths = self.log_weights.exp().tolist(), self.widths.tolist()
        if self.has_smooth:
            text += f", smooth=({widths[0]:.3g}, {weights[0]:.3g})"
        if self.has_bilateral:
            text += f", bilateral=({widths[-2]:.3g}, {widths[-1]:.3g}, {weights[-1]:.3g})"
        if self.logit_step is not None and self.log_regularisation is not None:
            text += f", step={self.logit_step.sigmoid():.3g}, regularisation={self.log_regularisation.exp():.3g}"
        return text + f", exact={self.exact}, recompute={self.recompute}"

    def forward(self, images: Tensor, logits: Tensor) -> Tensor:
        """Marginals after all steps.

        Parameters
        ----------
        images : Tensor
            ``(batch, channels, height, width)`` floating point: colours from 0 to 255 for the usual widths, or any features.
        logits : Tensor
            ``(batch, labels, height, width)`` float32 or float64: scores as for ``cross_entropy``, or minus costs.

        Returns
        -------
        Tensor
            ``(batch, labels, height, width)`` in the precision of the logits: not negative, with sums of 1 over the labels.

        Raises
        ------
        ShapeError, NonFiniteError, ModelError
            If images or logits are not of this form.
        """
        # Half precision would lose the lattice; autocast would bring it into the products with the compatibility.
        with torch.autocast(images.device.type, enabled=False):
            crf = self.energy(images, logits)
            for kernel in crf.kernels:
                _ = kernel.weighted  # once, before steps that may be recomputed
            y = (-crf.unary).softmax(1)
            for _ in range(self.steps):
                if self.recompute:
                    y = checkpoint(self._advance, crf, y, use_reentrant=False, preserve_rng_state=False)
                else:
                    y = self._advance(crf, y)
        batch, _, height, width = logits.shape
        # Contiguous: the gradient of torch's nll_loss refuses other layouts.
        return y.view(batch, height, width, self.labels).permute(0, 3, 1, 2).contiguous()

    def energy(self, images: Tensor, logits: Tensor) -> DenseCRF:
        """The energy with the parameters as they are, for all images of the batch.

        Differentiable; under ``torch.no_grad()`` any method of :func:`solve_densecrf` takes it.  Parameters, result and errors are
        those of :meth:`forward`; the points are image by image and row by row.
        """
        self._check(images, logits)
        batch, channels, height, width = images.shape
        image = torch.arange(batch, device=images.device).repeat_interleave(height * width) if batch > 1 else None
        unary = -self.log_unary.exp().to(logits) * logits.permute(0, 2, 3, 1).flatten(0, 2)
        positions = image_features(height, width, 1.0).to(images.device).repeat(batch, 1)
        widths = self.widths
        features = []
        if self.has_smooth:
            features.append(positions / widths[0])
        if self.has_bilateral:
            colours = images.permute(0, 2, 3, 1).flatten(0, 2).double()
            features.append(torch.cat([positions / widths[-2], colours / widths[-1]], 1))
        compatibility = (self.compatibility + self.compatibility.T) / 2
        kernels = []
        for weight, points in zip(self.log_weights.exp(), features, strict=True):
            filter: Lattice | Gaussian
            if self.exact:
                filter = Gaussian(points, image)
            else:
                filter = Lattice.build(points, image)
                filter = replace(filter, weights=filter.weights.to(logits))  # one copy for all steps
            # The weight goes with the compatibility: gradients reach it there.
            kernels.append(Kernel(filter, compatibility=weight * compatibility))
        return DenseCRF(unary, tuple(kernels), image)

    def _advance(self, crf: DenseCRF, y: Tensor) -> Tensor:
        """One step from y ``(points, labels)``."""
        costs = crf.unary + crf.message(y)
        if self.logit_step is None or self.log_regularisation is None:
            return (-costs).softmax(1)
        # Shifting a row changes neither answer; differences keep their digits where the weight is small.
        down = (costs.amin(1, keepdim=True) - costs) / self.log_regularisation.exp().to(y)
        return y.lerp(project_to_simplex(down) if self.method == "l2fw" else down.softmax(1), self.logit_step.sigmoid().to(y))

    def _check(self, images: Tensor, logits: Tensor) -> None:
        mend = "give images (batch, channels, height, width) and logits (batch, labels, height, width)"
        shapes = f"images have shape {tuple(images.shape)} and logits {tuple(logits.shape)}"
        if images.dim() != 4 or logits.dim() != 4 or 0 in images.shape:
            raise ShapeError(f"{shapes}; {mend}; tensor[None] makes a batch of one")
        if images.shape[0] != logits.shape[0] or images.shape[2:] != logits.shape[2:]:
            raise ShapeError(f"{shapes}; {mend}; tensor.permute(0, 3, 1, 2) puts channels that come last into their place")
        if logits.shape[1] != self.labels:
            raise ShapeError(f"{shapes}: {logits.shape[1]} labels for a layer of {self.labels}; give one channel a label")
        if not images.is_floating_point():
            raise ShapeError(f"images are {images.dtype}; give floating-point colours, images.float()")
        if logits.dtype not in (torch.float32, torch.float64):
            raise ShapeError(f"logits are {logits.dtype}; give float32 or float64, logits.float()")
