"""
Segment an image
================

A dense CRF connects every pair of pixels, and the price of different labels falls off
with their distance in position and colour. You learn to build one, to find a
labelling, and to say how far from the best it can be.
"""

# %%
# Costs of labels
# ---------------
#
# Three labels: dark, medium and bright. The cost of a label is the distance of a
# pixel's brightness from that of the label. Here noise is added, so that the cheapest
# label of each pixel alone is a poor labelling.

import matplotlib.pyplot as plt
import torch
from skimage.data import astronaut

from blocklp.problems.densecrf import image_crf, solve_densecrf

image = torch.from_numpy(astronaut()[::6, ::6].copy())
noise = torch.randn(image.shape[:2], generator=torch.Generator().manual_seed(0))
brightness = image.float().mean(2) / 255 + 0.15 * noise
unary = torch.stack(
    [(brightness - level).abs() * 4 for level in (0.1, 0.5, 0.9)], 2
)  # (height, width, labels)

# %%
# The energy and the labelling
# ----------------------------
#
# ``smooth`` is a kernel of position alone, ``bilateral`` one of position and colour;
# the numbers are widths and weights. PROX-LP is a method of the LP relaxation, whose
# bound is one on the energy of *every* labelling.

crf = image_crf(image, unary, smooth=(2.0, 1.0), bilateral=(20.0, 13.0, 3.0))
found = solve_densecrf(crf, "prox-lp")
assert found.bound.item() <= found.best_energy.item() <= found.energy.item()
found

# %%
# Mean field is quicker to start, and says nothing about how good its labelling is.
# Its energy can be compared, since the energy is one object.

mean_field = solve_densecrf(crf, "mean-field")
assert found.bound.item() <= mean_field.energy.item()

figure, axes = plt.subplots(1, 4, figsize=(11, 3.2), layout="constrained")
cheapest = unary.argmin(2)
pictures = (
    ("image", image),
    (f"cheapest labels\nenergy {crf.energy(cheapest.flatten()).item():.0f}", cheapest),
    (
        f"mean field\nenergy {mean_field.energy.item():.0f}",
        mean_field.labelling.view(cheapest.shape),
    ),
    (
        f"PROX-LP: energy {found.energy.item():.0f}\nat least {found.bound.item():.0f}",
        found.labelling.view(cheapest.shape),
    ),
)
for axis, (title, picture) in zip(axes, pictures, strict=True):
    axis.imshow(picture, cmap="viridis")
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=10)

# %%
# Next: :doc:`/densecrf` has all methods, superpixels, layers for training, and the
# names of pydensecrf.
