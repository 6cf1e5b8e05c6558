"""Which rows a block has, and which keys they see: the geometry of tiles, bands and lengths."""

from __future__ import annotations

from numpy import int32, int64

from gpu import ptx
from gpu.target import device

from .arguments import Bias

__all__ = [
    "begin_key", "begin_row", "bias_of_head", "end_key", "end_row", "extent", "packed_tile", "place_of",
    "place_of_packed", "room", "whole",
]  # fmt: skip


@device
def extent(b, shape, lengths):  # type: ignore[no-untyped-def]
    """(first token of q, of k, lq, lk) of a batch entry."""
    start_q, start_k, Lq, Lk = int64(0), int64(0), shape.Lq, shape.Lk
    if lengths.start_q != 0:
        begin = ptx.load_global_b32(lengths.start_q + int64(b) * 4)
        start_q, Lq = int64(begin), ptx.load_global_b32(lengths.start_q + int64(b) * 4 + 4) - begin
    if lengths.start_k != 0:
        begin = ptx.load_global_b32(lengths.start_k + int64(b) * 4)
        start_k, Lk = int64(begin), ptx.load_global_b32(lengths.start_k + int64(b) * 4 + 4) - begin
    if lengths.used_q != 0:
        Lq = ptx.load_global_b32(lengths.used_q + int64(b) * 4)
    if lengths.used_k != 0:
        Lk = ptx.load_global_b32(lengths.used_k + int64(b) * 4)
    return start_q, start_k, Lq, Lk


@device
def room(b, starts, most):  # type: ignore[no-untyped-def]
    """How many rows of memory a batch entry has, used or not; `starts` is `Lengths.start_q` or `start_k`."""
    if starts != 0:
        return ptx.load_global_b32(starts + int64(b) * 4 + 4) - ptx.load_global_b32(starts + int64(b) * 4)
    return most


@device
def place_of(block, rows, shape, lengths):  # type: ignore[no-untyped-def]
    """(batch entry, head, first row, first token of q, of k, lq, lk) of a block; the last rows of a head come first.

    Under a causal mask the last rows have the most keys: the device begins with the long blocks.
    """
    tiles = ptx.divide(int32(shape.Lq + rows - int32(1)), rows)
    head = ptx.divide(block, tiles)
    row = int32((tiles - int32(1) - (block - head * tiles)) * rows)
    b = ptx.divide(head, shape.H)
    start_q, start_k, Lq, Lk = extent(b, shape, lengths)
    return b, int32(head - b * shape.H), row, start_q, start_k, int32(Lq), int32(Lk)


@device
def packed_tile(tile, rows, starts, B):  # type: ignore[no-untyped-def]
    """(batch entry, tile within it) of a tile of packed sequences; `starts` is `Lengths.start_q` or `start_k`.

    Entry b has the tiles from (starts[b] - starts[0]) // rows + b on, which are enough for its rows: at most one of
    them has none.  So a grid of tokens // rows + B tiles covers all sequences, and no host has to know their
    lengths.  Tiles beyond the end are given to the last entry, past its rows.
    """
    base = ptx.load_global_b32(starts)
    low, high = int32(0), int32(B)  # the last entry that begins at this tile or before it is in [low, high)
    while high - low > 1:
        middle = int32((low + high) >> 1)
        first = int32((ptx.load_global_b32(starts + int64(middle) * 4) - base) // rows + middle)
        if first <= tile:
            low = middle
        else:
            high = middle
    return low, int32(tile - (ptx.load_global_b32(starts + int64(low) * 4) - base) // rows - low)


@device
def place_of_packed(block, rows, shape, lengths):  # type: ignore[no-untyped-def]
    """As `place_of`, for packed queries: tile block // H of all sequences, head block % H.

    In each sequence the last rows come first.  A tile past its rows has row >= lq, and no keys.
    """
    tile = ptx.divide(block, shape.H)
    b, own = packed_tile(tile, rows, lengths.start_q, shape.B)
    start_q, start_k, Lq, Lk = extent(b, shape, lengths)
    tiles = int32((Lq + rows - int32(1)) // rows)
    row = int32((tiles - int32(1) - own if own < tiles else own) * rows)
    return b, int32(block - tile * shape.H), row, start_q, start_k, int32(Lq), int32(Lk)


@device
def place_of_keys(block, keys, shape, lengths):  # type: ignore[no-untyped-def]
    """(batch entry, key head, first key, first token of q, of k, lq, lk) of a block.

    The first keys of a head come first: under a causal mask they are seen by the most rows.
    """
    tiles = ptx.divide(int32(shape.Lk + keys - int32(1)), keys)
    place = ptx.divide(block, tiles)
    heads = ptx.divide(shape.H, shape.group)
    b = ptx.divide(place, heads)
    start_q, start_k, Lq, Lk = extent(b, shape, lengths)
    return (
        b, int32(place - b * heads), int32((block - place * tiles) * keys), start_q, start_k, int32(Lq), int32(Lk)
    )  # fmt: skip


@device
def place_of_packed_keys(block, keys, shape, lengths):  # type: ignore[no-untyped-def]
    """As `place_of_keys`, for packed keys: tile block // Hkv of all sequences, key head block % Hkv."""
    heads = ptx.divide(shape.H, shape.group)
    tile = ptx.divide(block, heads)
    b, own = packed_tile(tile, keys, lengths.start_k, shape.B)
    start_q, start_k, Lq, Lk = extent(b, shape, lengths)
    return b, int32(block - tile * heads), int32(own * keys), start_q, start_k, int32(Lq), int32(Lk)


@device
def begin_key(row, offset, band):  # type: ignore[no-untyped-def]
    """The first key that rows from `row` on see, or a smaller number."""
    return max(row + offset - band.left, int32(0))


@device
def end_key(row, rows, offset, band, Lq, Lk):  # type: ignore[no-untyped-def]
    """One more than the last key that the rows see; at most Lk; small or negative where there is none."""
    last = min(row + rows, Lq) - int32(1)
    return min(last + offset + band.right + int32(1), Lk) if row < Lq else int32(0)


@device
def begin_row(key, offset, band):  # type: ignore[no-untyped-def]
    """The first row that sees one of the keys from `key` on."""
    return max(key - offset - band.right, int32(0))


@device
def end_row(key, keys, offset, band, Lq, Lk):  # type: ignore[no-untyped-def]
    """One more than the last row that sees one of the keys; at most Lq; small or negative where there is none."""
    last = min(key + keys, Lk) - int32(1)
    return min(last - offset + band.left + int32(1), Lq) if key < Lk else int32(0)


@device
def whole(key, keys, row, rows, offset, band, Lk):  # type: ignore[no-untyped-def]
    """Whether all of the rows see all of the keys, so that nothing has to be compared."""
    return (
        key + keys <= Lk
        and key + keys - int32(1) <= row + offset + band.right
        and key >= row + rows - int32(1) + offset - band.left
    )


@device
def bias_of_head(bias, b, h):  # type: ignore[no-untyped-def]
    """The bias, its address moved to a batch entry and head."""
    return Bias(bias.ptr + int64(b) * bias.batch + int64(h) * bias.head, bias.batch, bias.head, bias.row, bias.column)
