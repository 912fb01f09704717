"""Sums of sparse rows over lanes, for compiled loops that work on several instances side by side.

A sum of one row adds a vector for each of its entries.  LLVM keeps such a sum in registers only where it
knows that the result lies elsewhere than what is read, which no loop in Python can tell it: written as a loop
this takes three to five times as long.  So the row's loop is stated in LLVM's own terms.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from blocklp.kernels.compiled import compile

LANES = 32
"""Instances side by side: two to eight registers of single precision."""

STEP = 4
"""Entries of a row that are added in one round: the length of a row is a multiple of this."""

CHAINS = 2
"""Two sums of a row are added up side by side, so that an addition need not wait for the one before."""


def _stated(
    typing: Any, first: Any, last: Any, columns: Any, entries: Any, source: Any, result: Any, row: Any
) -> tuple[Any, Any]:
    """State the loop of :func:`row_sums`."""
    signature = types.void(first, last, columns, entries, source, result, row)

    def generate(context: Any, build: Any, signature: Any, given: Any) -> Any:
        where, factors, source, result = (
            context.make_array(signature.args[k])(context, build, given[k]).data for k in (2, 3, 4, 5)
        )
        long, vector = ir.IntType(64), ir.VectorType(ir.FloatType(), LANES)
        zero, same = (
            ir.Constant(vector, [0.0] * LANES),
            ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES),
        )

        def lanes(of: Any, place: Any) -> Any:
            start = build.gep(of, [build.mul(place, ir.Constant(long, LANES))])
            return build.bitcast(start, vector.as_pointer())

        before = build.block
        loop, after = (build.function.append_basic_block(f"row_sums.{name}") for name in ("loop", "after"))
        build.cbranch(build.icmp_signed("<", given[0], given[1]), loop, after)
        build.position_at_end(loop)
        at, sums = build.phi(long), [build.phi(vector) for _ in range(CHAINS)]
        at.add_incoming(given[0], before)
        added = list(sums)
        for k in range(STEP):
            entry = build.add(at, ir.Constant(long, k))
            place = build.zext(build.load(build.gep(where, [entry])), long)
            factor = build.insert_element(
                zero, build.load(build.gep(factors, [entry])), ir.Constant(ir.IntType(32), 0)
            )
            product = build.fmul(
                build.shuffle_vector(factor, zero, same),
                build.load(lanes(source, place), align=4),
                flags=("contract",),
            )
            added[k % CHAINS] = build.fadd(added[k % CHAINS], product, flags=("contract",))
        following = build.add(at, ir.Constant(long, STEP))
        at.add_incoming(following, loop)
        build.cbranch(build.icmp_signed("<", following, given[1]), loop, after)
        build.position_at_end(after)
        totals = []
        for chain, end in zip(sums, added, strict=True):
            totals.append(build.phi(vector))
            for phi in (chain, totals[-1]):
                phi.add_incoming(zero, before)
                phi.add_incoming(end, loop)
        build.store(build.fadd(*totals), lanes(result, given[6]), align=4)
        return context.get_dummy_value()

    return signature, generate


_row_sums: Any = intrinsic(_stated)


@compile(nogil=True, error_model="numpy")
def row_sums(first: int, last: int, columns: Any, entries: Any, source: Any, result: Any, row: int) -> None:
    """Write the sums of ``entries[e] * source[columns[e], :]`` to ``result[row, :]``.

    Parameters
    ----------
    first, last : int64
        Entries of the row, e from the first to before the last: a multiple of STEP, maybe none.
    columns, entries : (entries,) uint32 and float32
        Places and factors, C-contiguous, and in range: nothing is checked.
    source : (n, LANES) float32
        What is added up, C-contiguous.
    result : (m, LANES) float32
        C-contiguous; may be ``source``.
    row : int64
        Where the sums go.
    """
    _row_sums(first, last, columns, entries, source, result, row)
