"""Settings of the engine: how work is divided on the machine at hand."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_BYTES = 31 * 2**20
"""The C library gives freed blocks of this size back to the system at once, unless it has seen one as large
freed before."""


@dataclass(frozen=True)
class EngineSettings:
    """How a solve divides its work among chunks of instances and among threads.

    Attributes
    ----------
    cached_copies : int
        Copies of the instances that a CPU iterates on in turn by tensor operations: the tensors of a pass
        then stay in its cache.
    looped_copies : int
        Copies of the instances in a chunk of compiled loops, which take one instance after the other: as many
        as memory is kept for in double precision.
    threaded_copies : int
        Copies of the instances of a single chunk from which on its tensor operations have several threads.
        Below it two idle cores gain next to nothing, and where another program wants one of them every
        operation waits for it: a pass may take fifty times as long.
    divided_copies : int
        Copies from which on threads share the blocks of one instance, by parts with partial sums.
    divided_numbers : int
        Numbers read by a pass of PDHG from which on they share its rows.
    cached_tiles : int
        Runs of blocks and variables up to which one program of a device makes all passes of ADMM over an
        instance: its cache holds them from pass to pass.
    cached_row_tiles : int
        Tiles of rows and variables up to which it makes those of PDHG.
    launched_tiles : int
        Tiles up to which it does so because launches would take longer, as long as the tiles of all instances
        together are not more than a device is busy with.
    busy_tiles : int
        Tiles that a device is busy with.
    """

    cached_copies: int = 320_000
    looped_copies: int = KEPT_BYTES // 12
    threaded_copies: int = 65_536
    divided_copies: int = 300_000
    divided_numbers: int = 300_000
    cached_tiles: int = 8
    cached_row_tiles: int = 16
    launched_tiles: int = 32
    busy_tiles: int = 4096


DEFAULT = EngineSettings()
