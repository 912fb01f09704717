"""
Verify a network
================

Does a network read a digit the same way, whatever each pixel does within a radius?
You learn to bound all neurons of a network, to ask for a verdict, and to look at a
counterexample.
"""

# %%
# A network and a box of inputs
# -----------------------------
#
# A small network that reads digits of 8 x 8 pixels comes with the package. Yours may
# be a ``torch`` module (``from_torch``) or an ONNX file (``read_onnx``). The box has
# every picture whose pixels differ by at most 1/16 from this one.

import matplotlib.pyplot as plt

from blocklp.problems.verification import Property, digits, network_bounds, verify

network, images, labels = digits.load()
image = images[3]
low, high = (image - 1 / 16).clamp(0, 1), (image + 1 / 16).clamp(0, 1)
print(network)

# %%
# Bounds of all neurons
# ---------------------
#
# Every bound holds for every picture in the box. Intervals are the cheapest bounds;
# those of the LP are much tighter.

tight = network_bounds(network, low, high)
plain = network_bounds(network, low, high, method="interval")

figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=(1, 2.2)
)
left.imshow(image.reshape(8, 8), cmap="gray_r")
left.set(xticks=[], yticks=[], title=f"read as {labels[3].item()}")
classes = range(10)
for bounds, name, color, width in (
    (plain, "intervals", "lightgray", 9),
    (tight, "LP (slopes)", "tab:blue", 5),
):
    right.vlines(
        classes,
        bounds.output.lower,
        bounds.output.upper,
        color=color,
        linewidth=width,
        label=name,
    )
right.plot(classes, network(image[None])[0], "k.", label="output of the picture itself")
right.set(xticks=list(classes), xlabel="class", ylabel="output", ylim=(-60, 60))
right.set_title("bounds of the ten outputs")
right.legend(loc="upper right")
assert (plain.output.lower <= tight.output.lower + 1e-9).all()

# %%
# A verdict
# ---------
#
# ``unsat`` means that no counterexample exists: every picture in the box is read as
# the same digit.

robust = Property.robustness(low.flatten(), high.flatten(), label=3, classes=10)
verdict = verify(network, robust, timeout=60)
print(f"{verdict.status}: {verdict.reason}")
print(f"the right class wins by at least {verdict.bound:.2f}, whatever the pixels do")
assert verdict.status == "unsat"

# %%
# A counterexample
# ----------------
#
# Another digit with twice the radius. ``sat`` comes with an input that shows it.

image = images[8]
low, high = (image - 2 / 16).clamp(0, 1), (image + 2 / 16).clamp(0, 1)
verdict = verify(
    network,
    Property.robustness(low.flatten(), high.flatten(), label=8, classes=10),
    timeout=60,
)
assert verdict.status == "sat" and verdict.y.argmax() != 8

figure, axes = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
for axis, picture, title in zip(
    axes,
    (image.flatten(), verdict.x),
    ("read as 8", f"read as {verdict.y.argmax()}"),
    strict=True,
):
    axis.imshow(picture.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
    axis.set(xticks=[], yticks=[], title=title)

# %%
# Next: :doc:`/verification` has robust accuracy of data sets, VNN-LIB files, proofs,
# and what exactly a verdict claims.

# sphinx_gallery_thumbnail_number = 1
