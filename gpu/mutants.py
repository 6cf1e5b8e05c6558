"""Bugs planted in the kernels, one changed line each: what the executor and the tolerance must catch without a GPU.

A mutant is a file of gpu/kernels, a text in it that occurs once, what it becomes, and which check must catch it:
an error of `gpu.simt` in every schedule, or a result that `refattn` refuses ("bound").  `gpu.mutation` runs them.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """`kernel` is the door's name of the kernel whose problems it is run on."""

    name: str
    kernel: str
    file: str
    old: str
    new: str
    caught: str


FORWARD = (
    ("no barrier before a tile is read", "k3_tensor_core", "            cuda.syncthreads()  # this tile", "            # this tile", "Race"),
    ("copies are not waited for", "k3_tensor_core", "            ptx.wait_copies()\n", "", "Race"),
    ("one group too many is left in flight", "k3_tensor_core", "            ptx.wait_copies()\n", "            ptx.wait_copies_but_one()\n", "Race"),
    ("copies of the next tile are not committed", "k3_tensor_core", "                ptx.commit_copies()\n            for i", "            for i", "Race"),
    ("the buffers are not exchanged", "k3_tensor_core", "            current, other = other, current\n", "", "Race"),
    ("the next tile overwrites this one", "k3_tensor_core", "load_k(other, k_first, k.row, key", "load_k(current, k_first, k.row, key", "Race"),
    ("outputs overwrite q while it is read", "k3_tensor_core", "        cuda.syncthreads()  # nobody reads q", "        # nobody reads q", "Race"),
    ("no syncwarp between save and store", "k3_tensor_core", "        cuda.syncwarp()\n", "", "Race"),
    ("barrier in a divergent branch", "k3_tensor_core", "        if lane & 3 == 0:\n", "        if lane & 3 == 0:\n            cuda.syncthreads()\n", "Divergence"),
    ("shuffle in a divergent branch", "k3_tensor_core", "        if lane & 3 == 0:\n", "        if lane & 3 == 0:\n            ptx.shuffle_xor(sink, 1)\n", "Divergence"),
    ("values without .trans", "tiles", "ptx.ldmatrix_x4_trans(own", "ptx.ldmatrix_x4(own", "bound"),
    ("fragments of keys exchanged", "tiles", "mma(a0, a1, a2, a3, b[0], b[1]", "mma(a0, a1, a2, a3, b[1], b[0]", "bound"),
    ("fragments a1 and a2 exchanged", "tiles", "mma(a0, a1, a2, a3, b[0], b[1]", "mma(a0, a2, a1, a3, b[0], b[1]", "bound"),
    ("rows of shared memory misaligned", "tiles", "return 2 * D + 16", "return 2 * D + 8", "Misaligned"),
    ("rows beyond the tail are read", "tiles", "exists = row + r < limit and chunk", "exists = chunk", "OutOfBounds"),
    ("columns beyond D are read", "tiles", "limit and chunk * 8 < used\n        source", "limit\n        source", "bound"),
    ("rows beyond the tail are written", "tiles", "if row + r < limit and chunk * 8 < used:\n                to", "if chunk * 8 < used:\n                to", "OutOfBounds"),
    ("offsets in 32 bits", "tiles", "source = first + int64(row + r) * stride", "source = first + int64(int32(row + r) * int32(stride & 0x7FFFFFFF))", "OutOfBounds"),
    ("row of the second half off by one stripe", "tiles", "own + t * STEP16 + 8 * ROW + n * 16", "own + t * STEP16 + n * 16", "bound"),
    ("fragments before they are loaded", "k3_tensor_core", "                if key == begin:\n", "                if key != begin:\n", "UninitialisedRead"),
    ("maximum over two lanes instead of four", "softmax", "                new = max(new, ptx.shuffle_xor(new, 2))\n", "", "bound"),
    ("sum over two lanes instead of four", "softmax", "            total += ptx.shuffle_xor(total, 2)\n", "", "bound"),
    ("output not rescaled", "softmax", "                    o[i] *= shrink\n", "", "bound"),
    ("sum not rescaled", "softmax", "total = l[r] * shrink", "total = l[r]", "bound"),
    ("maximum forgets the tiles before", "softmax", "                new = m[r]\n", "                new = -INFINITE\n", "bound"),
    ("-inf - -inf where no key was seen", "softmax", "top = new * unit if new > -INFINITE else float32(0)", "top = new * unit", "bound"),
    ("tail keys score 0", "softmax", "min(own + band.right, Lk - int32(1))", "own + band.right", "bound"),
    ("lse in base 2", "softmax", "(top + ptx.lg2(total)) * LN2", "top + ptx.lg2(total)", "bound"),
    ("sink in base 2", "softmax", "top = max(m[r] * unit, sink * LOG2E)", "top = max(m[r] * unit, sink)", "bound"),
    ("sink not in the sum", "softmax", "total * shrink + ptx.ex2(sink * LOG2E - top)", "total * shrink", "bound"),
    ("softcap after the bias", "softmax", "s[(t * BLOCKS + n) * 4 + e] = x * LOG2E", "s[(t * BLOCKS + n) * 4 + e] = (x + slope) * LOG2E", "bound"),
    ("scale without log2(e)", "k3_tensor_core", "unit = scores.scale * LOG2E", "unit = scores.scale", "bound"),
    ("largest score taken with a negative scale", "k3_tensor_core", "negative = unit < 0 and not modified", "negative = unit < -INFINITE", "bound"),
    ("key head h % Hkv", "k3_tensor_core", "k.ptr + int64(b) * k.batch + int64(h // shape.group)", "k.ptr + int64(b) * k.batch + int64(h % (shape.H // shape.group))", "bound"),
    ("causal aligned top left", "k3_tensor_core", "offset = Lk - Lq if band.bottom_right != 0 else int32(0)", "offset = int32(0)", "bound"),
    ("window one key wide too far", "softmax", "first, last = own - band.left", "first, last = own - band.left - int32(1)", "bound"),
    ("partly hidden tiles are not compared", "places", "key + keys - int32(1) <= row + offset", "key <= row + offset", "bound"),
    ("the last tile is skipped", "places", "last = min(row + rows, Lq) - int32(1)", "last = row", "bound"),
    ("weights truncated, not rounded", "tiles", "            a[i] = pack_two(c[2 * i], c[2 * i + 1])", "            a[i] = pack_two(c[2 * i] * float32(0.998), c[2 * i + 1] * float32(0.998))", "bound"),
)  # fmt: skip

MUTANTS = tuple(
    Mutant(name, "tensor_core", file, old, new, caught) for name, file, old, new, caught in FORWARD
)
