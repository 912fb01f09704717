"""Kernels of :class:`blocklp.methods.Admm`; tuples are those of :mod:`blocklp.kernels.triton_admm_phases`.

Program p of a launch over tiles is tile ``p % tiles`` of active instance ``p // tiles``.  ``parts`` is
``(batch, slots)`` float64: sums of squares by tiles, ``slots`` to an instance.
"""

from __future__ import annotations

import triton
import triton.language as tl

from blocklp.kernels.triton_admm_phases import block_tile, variable_tile
from blocklp.kernels.triton_admm_residuals import dual_tile, primal_tile, total_of
from blocklp.kernels.triton_functions import divided, root
from blocklp.kernels.triton_launch import kernel


@kernel
def block_pass(
    active: tl.tensor,
    groups: tl.tuple,
    units: tl.tensor,
    state: tl.tuple,
    weights: tl.tuple,
    n: tl.tensor,
    last: tl.tensor,
    BLOCKS: tl.constexpr,
    ANCHORED: tl.constexpr,
    RELAXATION: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """A pass over the blocks of all groups, which do not depend on each other: tiles of one follow another's.

    Parameters
    ----------
    active, groups, state, weights, n, last
        As in :func:`leap` and :func:`blocklp.kernels.triton_admm_phases.block_tile`.
    units : int
        Tiles of an instance.
    """
    row, tile = tl.load(active + tl.program_id(0) // units), tl.program_id(0) % units
    first = 0
    for g in tl.static_range(len(BLOCKS)):
        tiles = tl.cdiv(groups[g][1], LANES)
        if (tile >= first) & (tile < first + tiles):
            block_tile(
                groups[g], state, weights, (n, last), row, tile - first,
                BLOCKS[g][0], BLOCKS[g][1], BLOCKS[g][2], BLOCKS[g][3], ANCHORED, RELAXATION, LANES,
            )  # fmt: skip
        first += tiles


@kernel
def variable_pass(
    active: tl.tensor,
    sums: tl.tuple,
    state: tl.tuple,
    cost: tl.tensor,
    eta: tl.tensor,
    last: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """The reflected consensus of a pass, a tile of variables a program.

    Parameters
    ----------
    active, sums, state, cost, eta, last
        As in :func:`leap` and :func:`blocklp.kernels.triton_admm_phases.variable_tile`.
    """
    tiles = tl.cdiv(sums[6], LANES) + sums[9]
    row, tile = tl.load(active + tl.program_id(0) // tiles), tl.program_id(0) % tiles
    variable_tile(sums, state, cost, eta, last, row, tile, LANES)


@kernel
def measure(
    active: tl.tensor,
    groups: tl.tuple,
    sums: tl.tuple,
    state: tl.tuple,
    eta: tl.tensor,
    parts: tl.tensor,
    slots: tl.tensor,
    COUPLED: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Multipliers after the last pass, and squared residuals by tiles: of groups, then of variables.

    Parameters
    ----------
    active, groups, sums, state, eta, parts, slots
        As in :func:`leap`; ``eta`` are the weights, ``(batch,)``.
    """
    row, slot = tl.load(active + tl.program_id(0) // slots), tl.program_id(0) % slots
    first = 0
    for g in tl.static_range(len(COUPLED)):
        tiles = tl.cdiv(groups[g][1], LANES)
        if (slot >= first) & (slot < first + tiles):
            found = primal_tile(groups[g], state, eta, row, slot - first, COUPLED[g], LANES)
            tl.store(parts + row * slots + slot, found)
        first += tiles
    if slot >= first:
        tl.store(parts + row * slots + slot, dual_tile(sums, state, row, slot - first, LANES))


@triton.jit
def totals(
    parts: tl.tensor,
    row: tl.tensor,
    groups: tl.tuple,
    slots: tl.tensor,
    found: tl.tuple,
    GROUPS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Write the squared primal and dual residuals of an instance, which its tiles have added up.

    Parameters
    ----------
    parts, groups, slots, found
        As in :func:`leap`; the first two pointers of ``found`` are written.
    row : int
        The instance.
    """
    own, first = parts + row * slots, 0
    primal = tl.full([], 0.0, tl.float64)
    for g in tl.static_range(GROUPS):
        tiles = tl.cdiv(groups[g][1], LANES)
        primal += total_of(own + first, tiles, LANES)
        first += tiles
    tl.store(found[0] + row, primal)
    tl.store(found[1] + row, total_of(own + first, slots - first, LANES))


@triton.jit
def aged(weights: tl.tuple, found: tl.tuple, row: tl.tensor, count: tl.tensor) -> None:
    """Write the age of the anchor after some passes, and that the iterate is to be updated.

    Parameters
    ----------
    weights, found, count
        As in :func:`leap`; the last two pointers of ``found`` are written.
    row : int
        The instance.
    """
    ready = tl.load(weights[2] + row).to(tl.int64)
    tl.store(found[2] + row, tl.load(weights[1] + row) + count - ready)
    tl.store(found[3] + row, ready != ready)


@kernel
def finish(
    active: tl.tensor,
    groups: tl.tuple,
    weights: tl.tuple,
    parts: tl.tensor,
    slots: tl.tensor,
    found: tl.tuple,
    count: tl.tensor,
    GROUPS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Squared residuals, ages, and what is ready, an instance a program.

    Parameters
    ----------
    active, groups, weights, parts, slots, found, count
        As in :func:`leap`.
    """
    row = tl.load(active + tl.program_id(0))
    totals(parts, row, groups, slots, found, GROUPS, LANES)
    aged(weights, found, row, count)


@kernel
def leap(
    active: tl.tensor,
    groups: tl.tuple,
    sums: tl.tuple,
    state: tl.tuple,
    cost: tl.tensor,
    weights: tl.tuple,
    parts: tl.tensor,
    slots: tl.tensor,
    found: tl.tuple,
    count: tl.tensor,
    BLOCKS: tl.constexpr,
    ANCHORED: tl.constexpr,
    RELAXATION: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Some passes, and all that follows them, an instance a program: phases are parted by barriers.

    ``BLOCKS`` has ``(function, dim, coupled, unrolled)`` of every group.

    Parameters
    ----------
    active, cost, parts : pointer
        ``(active,)`` int, ``(batch, variables)``, ``(batch, slots)`` float64.
    groups, sums, state, weights, found : tuple
        Pointers in ``found``, ``(batch,)``, written: squared residuals, ages, and what is ready.
    slots, count : int
        Slots of an instance, and passes.
    """
    row = tl.load(active + tl.program_id(0))
    for n in range(count):
        last = tl.where(n == count - 1, 1, 0)
        for g in tl.static_range(len(BLOCKS)):
            for tile in range(tl.cdiv(groups[g][1], LANES)):
                block_tile(
                    groups[g], state, weights, (n, last), row, tile,
                    BLOCKS[g][0], BLOCKS[g][1], BLOCKS[g][2], BLOCKS[g][3], ANCHORED, RELAXATION, LANES,
                )  # fmt: skip
        tl.debug_barrier()
        for tile in range(tl.cdiv(sums[6], LANES) + sums[9]):
            variable_tile(sums, state, cost, weights[0], last, row, tile, LANES)
        tl.debug_barrier()
    slot = 0
    for g in tl.static_range(len(BLOCKS)):
        for tile in range(tl.cdiv(groups[g][1], LANES)):
            square = primal_tile(groups[g], state, weights[0], row, tile, BLOCKS[g][2], LANES)
            tl.store(parts + row * slots + slot + tile, square)
        slot += tl.cdiv(groups[g][1], LANES)
    for tile in range(tl.cdiv(sums[6], LANES)):
        tl.store(parts + row * slots + slot + tile, dual_tile(sums, state, row, tile, LANES))
    tl.debug_barrier()
    totals(parts, row, groups, slots, found, len(BLOCKS), LANES)
    aged(weights, found, row, count)


@triton.jit
def balanced(
    eta: tl.tensor,
    first: tl.tensor,
    primal: tl.tensor,
    dual: tl.tensor,
    roots: tl.tensor,
    TARGET: tl.constexpr,
    MOST: tl.constexpr,
    REACH: tl.constexpr,
) -> tl.tensor:
    """The next weight: :meth:`blocklp.methods.proximal_weight.ResidualBalancing.update`.

    Parameters
    ----------
    eta, first, primal, dual, roots : float, float, float64, float64, int
        Weight now and at the start, squared residuals, and square roots to take.
    """
    KIND: tl.constexpr = eta.dtype
    ratio = divided(root(divided(primal, dual)), tl.full([], TARGET, tl.float64))
    for _ in range(roots):
        ratio = root(ratio)
    inverse = divided(tl.full([], 1.0, tl.float64), ratio)
    low, high = (
        divided(tl.full([], 1.0, tl.float64), tl.full([], MOST, tl.float64)),
        tl.full([], MOST, tl.float64),
    )
    factor = tl.where(inverse < low, low, tl.where(inverse > high, high, inverse)).to(KIND)
    reach = tl.full([], REACH, KIND)
    least, most, new = divided(first, reach), first * reach, eta * factor
    new = tl.where(new < least, least, new)
    new = tl.where(new > most, most, new)
    return tl.where(factor != factor, eta, new)


@kernel
def settle(
    active: tl.tensor,
    group: tl.tuple,
    state: tl.tuple,
    weights: tl.tuple,
    looks: tl.tuple,
    found: tl.tuple,
    anchor: tl.tensor,
    roots: tl.tensor,
    oldest: tl.tensor,
    RULE: tl.constexpr,
    COUPLED: tl.constexpr,
    ANCHORED: tl.constexpr,
    PLAIN: tl.constexpr,
    RELAXATION: tl.constexpr,
    WRITES: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Look at the weight and the anchor of an instance, and restart a tile of its blocks where that is due.

    Parameters
    ----------
    active, group, state, weights
        As in :func:`leap`, but for what is ready.
    looks : tuple of pointers
        ``(batch,)``: the weight at the start, squared primal and dual residual, and their sum when the anchor
        was set and at the last look.
    found : tuple of pointers
        ``(batch,)``, written by the first tile with ``WRITES``: weight, what is ready, age, and the last two.
    anchor, roots, oldest : pointer, int, int
        ``(batch, copies)``, written unless ``PLAIN``; as in :func:`balanced`; and the age at which the anchor
        is moved at the latest.
    RULE : tuple
        ``(decay, enough, held, target, most, reach)``.
    """
    tiles = tl.cdiv(group[1], LANES)
    row, tile = tl.load(active + tl.program_id(0) // tiles), tl.program_id(0) % tiles
    eta, age = tl.load(weights[0] + row), tl.load(weights[1] + row)
    primal, dual = tl.load(looks[1] + row), tl.load(looks[2] + row)
    origin, before = tl.load(looks[3] + row), tl.load(looks[4] + row)
    residual = primal + dual
    served = age == age
    if ANCHORED:
        worse = (residual <= tl.full([], RULE[0], tl.float64) * origin) & (residual > before)
        served = worse | (residual <= tl.full([], RULE[1], tl.float64) * origin) | (age >= oldest)
    new = eta
    if not RULE[2]:
        new = balanced(eta, tl.load(looks[0] + row), primal, dual, roots, RULE[3], RULE[4], RULE[5])
        new = tl.where(served, new, eta)
    due = served
    if PLAIN:
        due = new != eta
    if WRITES:
        if tile == 0:
            tl.store(found[0] + row, new)
            tl.store(found[1] + row, due)
            tl.store(found[2] + row, tl.where(due, tl.full([], 1, tl.int64), age))
            tl.store(found[3] + row, tl.where(served, residual, origin))
            tl.store(found[4] + row, tl.where(served, tl.full([], float("inf"), tl.float64), residual))
    if due:
        restart_tile(group, state, anchor, divided(new, eta), row, tile, COUPLED, PLAIN, RELAXATION, LANES)


@triton.jit
def restart_tile(
    group: tl.tuple,
    state: tl.tuple,
    anchor: tl.tensor,
    ratio: tl.tensor,
    row: tl.tensor,
    tile: tl.tensor,
    COUPLED: tl.constexpr,
    PLAIN: tl.constexpr,
    RELAXATION: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Update t of a tile for a weight that is ``ratio`` times as large, and set the anchor there.

    Parameters
    ----------
    group, state, row, tile, anchor, ratio
        As in :func:`leap`; anchors ``(batch, copies)``, and the new weight over the old one.
    """
    block = tile * LANES + tl.arange(0, LANES)
    mine = block < tl.load(group[4] + row * group[5])
    rate = tl.full([], RELAXATION, ratio.dtype)
    for i in range(COUPLED):
        at = row * state[6] + group[0] + block + i * group[1]
        place = tl.load(group[2] + row * group[3] + i * group[1] + block, mask=mine, other=0)
        mean = tl.load(state[5] + row * state[7] + place, mask=mine, other=0.0)
        target = tl.load(state[4] + row * state[7] + place, mask=mine, other=0.0)
        t, x = tl.load(state[0] + at, mask=mine, other=0.0), tl.load(state[1] + at, mask=mine, other=0.0)
        centre = (mean + mean) - target
        centre = (mean - centre) * rate + centre
        new = target * rate + (t - x * rate)
        new = (new - centre) * ratio + centre
        tl.store(state[0] + at, new, mask=mine)
        if not PLAIN:
            tl.store(anchor + at, new, mask=mine)


@kernel
def restart(
    active: tl.tensor,
    group: tl.tuple,
    state: tl.tuple,
    due: tl.tensor,
    ratio: tl.tensor,
    anchor: tl.tensor,
    COUPLED: tl.constexpr,
    PLAIN: tl.constexpr,
    RELAXATION: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Restart the blocks of one group, of the instances that are due.

    Parameters
    ----------
    active, group, state, anchor
        As in :func:`settle`.
    due, ratio : pointer
        ``(batch,)``: bool, and the new weight over the old one.
    """
    tiles = tl.cdiv(group[1], LANES)
    row, tile = tl.load(active + tl.program_id(0) // tiles), tl.program_id(0) % tiles
    if tl.load(due + row):
        own = tl.load(ratio + row)
        restart_tile(group, state, anchor, own, row, tile, COUPLED, PLAIN, RELAXATION, LANES)
