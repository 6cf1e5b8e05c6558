"""A flash forward in Triton, as its tutorial writes one: a tile of queries against all tiles of keys, online softmax.

q, k, v, out are contiguous (B, heads, L, D), lse is (B, H, Lq).  Query head h reads key head h // group.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = ["attention"]


@triton.jit
def forward(  # type: ignore[no-untyped-def]
    Q, K, V, OUT, LSE, scale, H, group, Lq, Lk, D, Dv, offset,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; with CAUSAL query i sees the keys up to i + offset."""
    head = tl.program_id(1).to(tl.int64)  # b * H + h
    key_head = head // H * (H // group) + head % H // group
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    e = tl.arange(0, BLOCK_DV)
    q = tl.load(Q + (head * Lq + i[:, None]) * D + d, mask=(i[:, None] < Lq) & (d < D), other=0.0)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for start in range(0, Lk, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        k = tl.load(K + (key_head * Lk + j[None, :]) * D + d[:, None], mask=(j < Lk) & (d[:, None] < D), other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        seen = j[None, :] < Lk
        if CAUSAL:
            seen = seen & (j[None, :] <= i[:, None] + offset)
        s = tl.where(seen, s, float("-inf"))
        highest = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(highest == float("-inf"), 0.0, highest)  # a row that has seen no key yet
        p = tl.exp(s - shift[:, None])
        rescale = tl.exp(m - shift)
        v = tl.load(V + (key_head * Lk + j[:, None]) * Dv + e, mask=(j[:, None] < Lk) & (e < Dv), other=0.0)
        total = total * rescale + tl.sum(p, 1)
        out = out * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = highest
    empty = total == 0.0
    out = out / tl.where(empty, 1.0, total)[:, None]
    lse = tl.where(empty, float("-inf"), m + tl.log(tl.where(empty, 1.0, total)))
    tl.store(OUT + (head * Lq + i[:, None]) * Dv + e, out.to(q.dtype), mask=(i[:, None] < Lq) & (e < Dv))
    tl.store(LSE + head * Lq + i, lse, mask=i < Lq)


def attention(q: Any, k: Any, v: Any, scale: float, offset: int | None) -> tuple[Any, Any]:
    """out and lse; `offset` is None without a mask, 0 for a causal one top left, Lk - Lq for one bottom right."""
    q, k, v = (x.contiguous() for x in (q, k, v))
    (B, H, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
    out, lse = q.new_empty((B, H, Lq, Dv)), q.new_empty((B, H, Lq), dtype=torch.float32)
    tile, least = 64, 16  # the smallest side of a tensor core's product
    widths = (max(least, triton.next_power_of_2(n)) for n in (D, Dv))
    forward[triton.cdiv(Lq, tile), B * H](
        q, k, v, out, lse, scale, H, H // Hkv, Lq, Lk, D, Dv, offset or 0, offset is not None, tile, tile, *widths
    )
    return out, lse
