"""4. The backward on tensor cores, for float16 and bfloat16: gradients without atomics, the same bits in every run.

Added to k3: gradients.  Weights are made again from the scores and lse (`weights`), so that nothing of the size of
Lq x Lk is stored.  No two blocks add to the same number: a block either has keys, and goes through all queries of
all heads that read them (`k4_keys`), or has queries, and goes through their keys (`k4_queries`).  The scores are
made twice, then; that is the price of sums in a fixed order, and of dq in float32 registers.

    p   the weights, rounded to 16 bits             ds  the gradients of the scores, rounded to 16 bits
    dv = sum_i p_ij dout_i                          dk = scale sum_i ds_ij q_i      over rows of all heads of a group
    dq = scale sum_j ds_ij k_j                      sums in float32, each result rounded once

Launch, the first before the others, which may be in any order (`spec.rows` is what a block has, `spec.keys` what it
goes through at a time; specs of one problem may differ in their tiles; bytes are of dynamic shared memory):

    k4_delta.delta(spec)        what each query knows, `rows`: see there
    keys_kernel(spec, outputs)  blocks(Lk, B, Hkv, spec) of spec.threads threads, keys_bytes(spec, outputs) bytes;
        (q, k, v, dout, rows, dk, dv, shape, band, lengths, scores, bias).  For each (spec, outputs) of `usual_keys`:
        "both", or "dk" and "dv" in two launches, where sums of both would not fit in registers.
    queries_kernel(spec)        blocks(Lq, B, H, spec) of spec.threads threads, queries_bytes(spec) bytes;
        (q, k, v, dout, rows, dq, shape, band, lengths, scores, bias)
    k4_delta.sink_gradients     dsinks: see there

With spec.varlen, for packed sequences whose lengths only the device knows, Lk and Lq are k.shape[0] and q.shape[0].
Without it, they and `shape` hold the longest of what a sequence has memory for, gaps included.  Sinks act through
lse alone.  All rows of dq, dk, dv that a sequence has memory for are written: 0 where they are beyond a used
length, or nothing sees them.  Tokens behind the last sequence are not written.

Source: Dao 2023, FlashAttention-2, algorithm 2, with two loops in place of its atomics.
"""

from __future__ import annotations

from typing import Any

from .arguments import Specialisation, dtypes_of
from .k4_keys import KEYS_SIGNATURE, keys_bytes, keys_kernel
from .k4_queries import QUERIES_SIGNATURE, queries_bytes, queries_kernel
from .spec import HEAD_SIZES, Spec

__all__ = [
    "KEYS_SIGNATURE", "QUERIES_SIGNATURE", "blocks", "keys_bytes", "keys_kernel", "queries_bytes", "queries_kernel",
    "specialisations", "usual_keys", "usual_queries",
]  # fmt: skip


def blocks(rows: int, B: int, heads: int, spec: Spec) -> int:
    """Blocks that cover `rows` rows of each of B entries, or, with spec.varlen, `rows` rows of B sequences together."""
    if spec.varlen:
        return (rows // spec.rows + B) * heads if rows else 0
    return -(-rows // spec.rows) * heads * B


def usual_keys(dtype: str, D: int, Dv: int, **features: Any) -> list[tuple[Spec, str]]:
    """Tiles and outputs of the launches for dk and dv.

    No registers are spilled (gpu/sass.json).  Two stripes a warp halve what is read from shared memory, which binds on
    paper (`gpu.cost`): at D = 128 dk and dv apart, which take 5 products instead of 4, still read a fifth less than
    both with one stripe.
    """
    size, plain = max(D, Dv), not Spec(dtype, D, Dv, **features).modified
    warps, row_tiles = 8 if size > 192 else 4, 2 if size <= 128 else 1
    keys = 64 if size <= 32 else 16 if 64 < size <= 96 else 32
    keys = keys if plain else max(16, keys // 2)
    together = size <= 64 or size <= 96 and plain
    spec = Spec(dtype, D, Dv, **{"warps": warps, "row_tiles": row_tiles, "keys": keys, **features})
    return [(spec, outputs) for outputs in (("both",) if together else ("dk", "dv"))]


def usual_queries(dtype: str, D: int, Dv: int, **features: Any) -> Spec:
    """The tile for dq: no registers are spilled (gpu/sass.json)."""
    size, plain = max(D, Dv), not Spec(dtype, D, Dv, **features).modified
    warps, row_tiles = 8 if size > 192 else 4, 2 if size <= 128 else 1
    keys = (64 if size <= 64 else 32) // (1 if plain else 2)
    return Spec(dtype, D, Dv, **{"warps": warps, "row_tiles": row_tiles, "keys": keys, **features})




def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles; head sizes whose usual tile an A100 cannot hold go with half the warps there."""
    every = {"softcap": True, "bias": "float32", "alibi": True}
    kinds: list[tuple[str, int, str, dict[str, Any]]] = [
        (dtype, D, "", {}) for D in HEAD_SIZES for dtype in dtypes_of(D)
    ]
    for D in (64, 128):
        kinds += [("bfloat16", D, " softcap bias alibi", every), ("bfloat16", D, " element", {"vector": False})]
    kinds.append(("bfloat16", 256, " 4 warps", {"warps": 4}))
    found = []
    for dtype, D, name, features in kinds:
        large = D == 256 and not name
        archs = ("sm_90",) if large else ("sm_80",) if "warps" in features else ("sm_80", "sm_90")
        for spec, outputs in usual_keys(dtype, D, D, **features):
            what = "dk, dv" if outputs == "both" else outputs
            products = {"both": 4, "dk": 3, "dv": 2}[outputs] * spec.row_tiles * spec.keys * D // 128
            function, shared = keys_kernel(spec, outputs).py_func, keys_bytes(spec, outputs)
            title = f"{what} {dtype} D={D}{name}"
            found.append(Specialisation(title, function, KEYS_SIGNATURE, spec.threads, shared, archs, products))
        spec = usual_queries(dtype, D, D, **features)
        products = 3 * spec.row_tiles * spec.keys * D // 128
        function, shared = queries_kernel(spec).py_func, queries_bytes(spec)
        title = f"dq {dtype} D={D}{name}"
        found.append(Specialisation(title, function, QUERIES_SIGNATURE, spec.threads, shared, archs, products))
    return found
