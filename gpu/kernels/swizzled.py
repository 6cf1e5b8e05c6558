"""Tiles of 16-bit rows as wgmma reads them: 128-byte swizzle, at multiples of 1024 bytes (`gpu.ptx.wgmma`).

A tile of `rows` x D is a panel for each 64 columns: rows of 128 bytes, one after the other, the 16-byte chunk c of row
r at place c ^ (r % 8).  So eight neighbouring rows of one column of chunks lie in different banks, and none is padded.
The same tile is K-major for q and k (numbers go along d, which is summed over) and MN-major for v (rows are keys,
which are summed over).
"""

from __future__ import annotations

from typing import Any

from numpy import int32, int64

from gpu import ptx
from gpu.target import device

__all__ = ["ALIGNMENT", "PANEL", "loader", "panel_bytes", "step_along_d", "step_along_rows", "tile_bytes"]

ALIGNMENT = 1024
"""Tiles start at multiples of it; also the bytes of eight rows of a panel, after which the swizzle repeats."""
PANEL = 64
"""Columns of a panel."""


def panel_bytes(rows: int) -> int:
    """Bytes of a panel, 128 a row."""
    return rows * 2 * PANEL


def tile_bytes(rows: int, D: int) -> int:
    """Bytes of a tile."""
    return panel_bytes(rows) * D // PANEL


def step_along_d(k: int, rows: int) -> int:
    """What step k of 16 columns adds to a descriptor (units of 16 bytes)."""
    return (16 * k // PANEL * panel_bytes(rows) + 16 * k % PANEL * 2) // 16


def step_along_rows(k: int) -> int:
    """What step k of 16 rows adds to a descriptor."""
    return 16 * k * 2 * PANEL // 16


def loader(D: int, rows: int, threads: int, vector: bool) -> Any:
    """load(shared, first, stride, row, limit, used, thread), as `gpu.kernels.tiles.Tile.load`, into this layout.

    Eight neighbouring threads have the chunks of a row of a panel, threads / 8 is a multiple of 8: then a thread's
    place in the pattern is the same in all its rows, and its addresses go up by a constant.
    """
    if threads % 64:
        raise ValueError(f"threads={threads} must be a multiple of 64")
    AT_ONCE, PANELS, PANEL_BYTES = threads // 8, D // PANEL, panel_bytes(rows)
    PASSES, EVEN = (rows + AT_ONCE - 1) // AT_ONCE, rows % AT_ONCE == 0

    @device
    def load(shared, first, stride, row, limit, used, thread):  # type: ignore[no-untyped-def]
        r, chunk = thread >> 3, thread & 7
        to = int32(shared + r * int32(128) + ((chunk ^ r) & 7) * int32(16))
        source = first + int64(row + r) * stride + int64(chunk * 16)
        for i in range(PASSES):
            if EVEN or r + i * AT_ONCE < rows:
                for panel in range(PANELS):
                    exists = int32(row + r + i * AT_ONCE) < limit and panel * PANEL + chunk * 8 < used
                    here = int32(to + int32(i * AT_ONCE * 128 + panel * PANEL_BYTES))
                    if vector:
                        ptx.copy_async(here, source + panel * 128, int32(16) if exists else int32(0))
                    else:
                        for e in range(8):
                            x = int32(0)
                            if exists and panel * PANEL + chunk * 8 + e < used:
                                x = ptx.load_global_b16(source + (panel * 128 + e * 2))
                            ptx.store_shared_b16(here + e * 2, x)
            source += AT_ONCE * stride

    return load
