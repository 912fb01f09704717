"""Receptive fields: the small network that a neuron of a convolutional layer depends on.

The LP of one neuron of an early layer involves a window of the layers before it, not all of them.  Windows of one layer have
one size, so all neurons of the layer still are one batch; what sticks out over the border of the image is a neuron fixed to
zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from blocklp.problems.verification.balls import Balls
from blocklp.problems.verification.network import Builder, Network
from blocklp.problems.verification.operations import Conv, Input, Relu, Scale
from blocklp.problems.verification.relaxation import Relaxation

SMALLER = 0.5
"""Windows are used if they hold at most this share of the neurons; cutting them out is not free."""


def window_sizes(network: Network, node: int) -> list[tuple[int, int]] | None:
    """Height and width of the window of one neuron of ``node`` in every result before it, or ``None``.

    There are windows where ``node`` hangs on the input by a single chain of convolutions, ReLUs and channel-wise scalings.
    """
    sizes = [(1, 1)] * (node + 1)
    for at in range(node, 0, -1):
        op = network.ops[at]
        height, width = sizes[at]
        if op.inputs != (at - 1,) or len(op.shape) != 3:
            return None
        if isinstance(op, Conv):
            if any(op.padding) and not isinstance(network.ops[at - 1], (Relu, Input)):
                return None  # zeros around anything else are no neurons that can be fixed to zero
            k, s, d = op.weight.shape[2:], op.stride, op.dilation
            sizes[at - 1] = ((height - 1) * s[0] + (k[0] - 1) * d[0] + 1, (width - 1) * s[1] + (k[1] - 1) * d[1] + 1)
        elif isinstance(op, Relu) or (isinstance(op, Scale) and _channelwise(op)):
            sizes[at - 1] = sizes[at]
        else:
            return None
    if len(network.ops[0].shape) != 3:
        return None
    whole = sum(op.shape[1] * op.shape[2] * op.shape[0] for op in network.ops[:node])
    window = sum(h * w * op.shape[0] for (h, w), op in zip(sizes, network.ops[:node], strict=False))
    return sizes if window <= SMALLER * whole else None


def _channelwise(op: Scale) -> bool:
    return all(t.dim() == 0 or t.numel() == 1 or (t.dim() == 3 and t.shape[1:] == (1, 1)) for t in (op.weight, op.bias))


def windowed(
    relaxation: Relaxation, node: int, boxes: Tensor, neurons: Tensor, sizes: list[tuple[int, int]], signs: Mapping[int, Tensor]
) -> tuple[Relaxation, Tensor, dict[int, Tensor]]:
    """Cut out the windows of some neurons.

    Parameters
    ----------
    relaxation : Relaxation
        Of the whole network.
    node : int
        Position of the result they belong to.
    boxes, neurons : Tensor
        ``(k,)`` int64: instances of the relaxation, and flat indices into the result.
    sizes : list
        From :func:`window_sizes`.
    signs : mapping
        Signs of split neurons by ReLU, ``(1 or instances, *shape)``.

    Returns
    -------
    relaxation : Relaxation
        ``k`` instances of the network of one window; ``node`` is at the same position in it.
    channel : Tensor
        ``(k,)`` int64: the channel of each neuron in the result, whose height and width are now 1.
    signs : dict
        Those of the windows.
    """
    network = relaxation.network
    _, height, width = network.ops[node].shape
    channel, row, column = neurons // (height * width), neurons // width % height, neurons % width
    builder = Builder((network.ops[0].shape[0], *sizes[0]), network.name)
    for op in network.ops[1 : node + 1]:
        last = len(builder.ops) - 1
        if isinstance(op, Conv):
            builder.conv(last, op.weight, op.bias, op.stride, (0, 0, 0, 0), op.dilation, op.groups, op.name)
        elif isinstance(op, Scale):
            builder.scale(last, op.weight, op.bias, op.name)
        else:
            builder.relu(last, op.name)
    small = replace(builder.build(), unit=network.unit).to(network.dtype, network.device)
    bounds, cut, balls = {}, {}, None
    lower = upper = relaxation.lower
    for at in range(node, -1, -1):
        op = network.ops[at]
        if isinstance(op, Relu):
            low, high = relaxation.bounds[at]
            bounds[at] = (_cut(low, boxes, row, column, sizes[at]), _cut(high, boxes, row, column, sizes[at]))
            if at in signs:
                cut[at] = _cut(signs[at], boxes, row, column, sizes[at])
        elif isinstance(op, Input):
            lower, upper = (_cut(b, boxes, row, column, sizes[0]) for b in (relaxation.lower, relaxation.upper))
            if (of := relaxation.balls) is not None:  # what some inputs are within a ball is a ball again
                balls = Balls(*(_cut(b, boxes, row, column, sizes[0]) for b in (of.centre, of.axes)))
        elif isinstance(op, Conv):
            row, column = _corner(op, row, column)
    return Relaxation(small, lower, upper, bounds, relaxation.deadline, balls), channel, cut


def uncut(
    network: Network, node: int, neurons: Tensor, sizes: list[tuple[int, int]], found: Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """Put windows of ReLUs back where :func:`windowed` cut them out, with zeros elsewhere.

    Parameters
    ----------
    network, node, neurons, sizes
        As there.
    found : mapping
        ``(k, channels, height, width)`` by position of the ReLU.

    Returns
    -------
    dict
        ``(k, *shape)`` by position of the ReLU.
    """
    _, height, width = network.ops[node].shape
    row, column = neurons // width % height, neurons % width
    whole = {}
    for at in range(node, 0, -1):
        op = network.ops[at]
        if at in found:
            (channels, height, width), (high, wide) = op.shape, sizes[at]
            rows = row[:, None] + torch.arange(high, device=row.device)
            columns = column[:, None] + torch.arange(wide, device=row.device)
            # What sticks out over the border goes to a margin that is cut off.
            padded = found[at].new_zeros(len(neurons), height + 2 * high, width + 2 * wide, channels)
            each = torch.arange(len(neurons), device=row.device)[:, None, None]
            rows, columns = (rows + high).clamp(0, height + 2 * high - 1), (columns + wide).clamp(0, width + 2 * wide - 1)
            padded[each, rows[:, :, None], columns[:, None, :]] = found[at].permute(0, 2, 3, 1)
            whole[at] = padded[:, high : high + height, wide : wide + width].permute(0, 3, 1, 2)
        elif isinstance(op, Conv):
            row, column = _corner(op, row, column)
    return whole


def _corner(op: Conv, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """The corners of windows before a convolution, of those with given corners behind it."""
    return row * op.stride[0] - op.padding[2], column * op.stride[1] - op.padding[0]


def _cut(images: Tensor, which: Tensor, row: Tensor, column: Tensor, size: tuple[int, int]) -> Tensor:
    """Windows of ``(images, channels, height, width)`` with given corners, zero outside: ``(k, channels, *size)``.

    One image stands for all.
    """
    rows = row[:, None] + torch.arange(size[0], device=row.device)
    columns = column[:, None] + torch.arange(size[1], device=row.device)
    inside = ((rows >= 0) & (rows < images.shape[2]))[:, :, None] & ((columns >= 0) & (columns < images.shape[3]))[:, None]
    rows, columns = rows.clamp(0, images.shape[2] - 1), columns.clamp(0, images.shape[3] - 1)
    at = torch.zeros_like(which) if len(images) == 1 else which
    found = images[at[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # (k, *size, channels)
    return (found * inside[..., None]).permute(0, 3, 1, 2).contiguous()
