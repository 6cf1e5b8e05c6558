"""Bugs planted in the kernels, one changed line each: what the executor and the tolerance must catch without a GPU.

A mutant is a file of gpu/kernels, a text in it that occurs once, what it becomes, and which check must catch it:
an error of `gpu.simt` in every schedule, or a result that `refattn` refuses ("bound").  `gpu.mutation` runs them.
"""

from __future__ import annotations

from typing import NamedTuple

from refattn.case import BiasSpec, Case, Strided
from refattn.masks import Causal, Window

__all__ = ["MUTANTS", "Mutant", "problems"]


def problems(kernel: str) -> tuple[Case, ...]:
    """The problems that mutants of a kernel are run on: several tiles, ragged, each feature once."""
    cases = FORWARDS
    return cases[:5]


FORWARDS = (
    Case("causal", "several tiles, ragged, GQA, keys from the right", B=2, H=4, Hkv=2, Lq=37, Lk=75, D=32, Dv=24,
         dtype="bfloat16", family="peaked", mask=Causal("bottom_right")),
    Case("window", "rows without keys, sinks, more queries than keys", H=2, Hkv=1, Lq=70, Lk=41, D=64, Dv=64,
         dtype="float16", family="peaked", mask=Window(9, 3, "bottom_right"), sinks="normal"),
    Case("empty", "rows without keys and sinks, in the middle of a tile", H=1, Lq=50, Lk=37, D=32, Dv=32,
         dtype="bfloat16", family="normal", mask=Causal("bottom_right")),
    Case("negative", "negative scale, large scores", Lq=33, Lk=65, D=24, Dv=16, dtype="float16", family="peaked", scale=-0.7),
    Case("modified", "softcap, bias, lengths", B=2, H=2, Hkv=2, Lq=20, Lk=50, D=40, Dv=40, dtype="bfloat16", family="peaked",
         softcap=2.0, bias=BiasSpec("HQK", "float32"), k_lens=(50, 33), q_lens=(17, 20)),
    Case("far", "rows far apart: offsets beyond 32 bits", B=1, H=1, Hkv=1, Lq=3, Lk=6, D=32, Dv=32, dtype="float16",
         family="peaked", storage=Strided(2**28)),
)  # fmt: skip


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
    ("the buffers are not exchanged", "k3_tensor_core", "            current, other = other, current\n", "", "bound"),
    ("the next tile overwrites this one", "k3_tensor_core", "load_k(other, k_first, k.row, int32(key", "load_k(current, k_first, k.row, int32(key", "Race"),
    ("outputs overwrite q while it is read", "k3_tensor_core", "        cuda.syncthreads()  # nobody reads q", "        # nobody reads q", "Race"),
    ("no syncwarp between save and store", "k3_tensor_core", "        cuda.syncwarp()\n", "", "Race"),
    ("barrier in a divergent branch", "k3_tensor_core", "        if lane & 3 == 0:\n", "        if lane & 3 == 0:\n            cuda.syncthreads()\n", "Divergence"),
    ("shuffle in a divergent branch", "k3_tensor_core", "        if lane & 3 == 0:\n", "        if lane & 3 == 0:\n            ptx.shuffle_xor(sink, 1)\n", "Divergence"),
    ("values without .trans", "tiles", "ptx.ldmatrix_x4_trans(", "ptx.ldmatrix_x4(", "bound"),
    ("fragments of keys exchanged", "tiles", "mma(a0, a1, a2, a3, b[0], b[1]", "mma(a0, a1, a2, a3, b[1], b[0]", "bound"),
    ("fragments a1 and a2 exchanged", "tiles", "mma(a0, a1, a2, a3, b[0], b[1]", "mma(a0, a2, a1, a3, b[0], b[1]", "bound"),
    ("rows of shared memory misaligned", "tiles", "return 2 * D + 16", "return 2 * D + 8", "Misaligned"),
    ("rows beyond the tail are read", "tiles", "exists = row < limit and left > 0", "exists = left > 0", "OutOfBounds"),
    ("columns beyond D are read", "tiles", "exists = row < limit and left > 0", "exists = row < limit", "OutOfBounds"),
    ("rows beyond the tail are written", "tiles", "if row + r < limit and chunk * 8 < used:\n                to", "if chunk * 8 < used:\n                to", "Race"),
    ("offsets in 32 bits", "tiles", "source, step = first + int64(row + r) * stride", "source, step = first + int64(int32(int32(row + r) * int32(stride & 0x7FFFFFFF)))", "OutOfBounds"),
    ("row of the second half off by one stripe", "tiles", "own + t * STEP16 + 8 * ROW + n * 16", "own + t * STEP16 + n * 16", "bound"),
    ("fragments before they are loaded", "k3_tensor_core", "                if key == begin:\n", "                if key != begin:\n", "UninitialisedRead"),
    ("maximum over two lanes instead of four", "softmax", "        new = max(new, ptx.shuffle_xor(new, 2))\n", "", "bound"),
    ("sum over two lanes instead of four", "softmax", "            total += ptx.shuffle_xor(total, 2)\n", "", "bound"),
    ("output not rescaled", "softmax", "                    o[i] *= shrink\n", "", "bound"),
    ("sum not rescaled", "softmax", "total = l[r] * shrink", "total = l[r]", "bound"),
    ("maximum forgets the tiles before", "softmax", "        new = m[r]\n", "        new = -INFINITE\n", "bound"),
    ("-inf - -inf where no key was seen", "softmax", "top = new * unit if new > -INFINITE else float32(0)", "top = new * unit", "bound"),
    ("tail keys score 0", "softmax", "min(int32(own + band.right), int32(Lk - 1))", "int32(own + band.right)", "bound"),
    ("lse in base 2", "softmax", "(top + ptx.lg2(total)) * LN2", "top + ptx.lg2(total)", "bound"),
    ("sink in base 2", "softmax", "ptx.ex2(sink * LOG2E - top)", "ptx.ex2(sink - top)", "bound"),
    ("sink not in the sum", "softmax", "total * shrink + ptx.ex2(sink * LOG2E - top)", "total * shrink", "bound"),
    ("softcap is lost", "softmax", "x = math.tanh(x / scores.softcap) * scores.softcap", "x = x * float32(1)", "bound"),
    ("scale without log2(e)", "k3_tensor_core", "unit = scores.scale * LOG2E", "unit = scores.scale", "bound"),
    ("largest score taken with a negative scale", "k3_tensor_core", "negative = unit < 0 and not modified", "negative = unit < -INFINITE", "bound"),
    ("key head h % Hkv", "k3_tensor_core", "k.ptr + int64(b) * k.batch + int64(h // shape.group)", "k.ptr + int64(b) * k.batch + int64(h % (shape.H // shape.group))", "bound"),
    ("causal aligned top left", "k3_tensor_core", "offset = int32(Lk - Lq) if band.bottom_right != 0 else int32(0)", "offset = int32(0)", "bound"),
    ("window one key wide too far", "softmax", "int32(own - band.left)", "int32(own - band.left - 1)", "bound"),
    ("partly hidden tiles are not compared", "places", "key + keys - int32(1) <= row + offset", "key <= row + offset", "bound"),
    ("the last tile is skipped", "places", "last = min(row + rows, Lq) - int32(1)", "last = row", "bound"),
    ("weights truncated, not rounded", "tiles", "            a[i] = pack_two(c[2 * i], c[2 * i + 1])", "            a[i] = pack_two(c[2 * i] * 0.998, c[2 * i + 1] * 0.998)", "bound"),
)  # fmt: skip

MUTANTS = tuple(
    Mutant(name, "tensor_core", file, old, new, caught) for name, file, old, new, caught in FORWARD
)
