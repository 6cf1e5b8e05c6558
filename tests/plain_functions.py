"""Plain functions, one for each way in which arrays are handed over, each with only the options that it is for.

They find their way through the memory by themselves, as a user's kernel would, and leave the arithmetic
to the oracle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn import attention
from refattn.dtypes import FORMATS, format_of, round_to

Array = np.ndarray[Any, Any]


def stored(x: Any, dtype: Any) -> Array:
    name = format_of(dtype).name
    return round_to(x, name).astype(FORMATS[name].numpy)


def dense(q: Array, k: Array, v: Array, *, mask: Any = None, scale: float | None = None) -> tuple[Array, Array]:
    """Of any strides; v may be a part of k."""
    out, lse = attention(q, k, v, mask=mask, scale=scale)
    return stored(out, q.dtype), lse


def modified(
    q: Array, k: Array, v: Array, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, score_mod: Any,
) -> Array:  # fmt: skip
    """score_mod(s, b, h, i, j): a function of scores and indices that broadcast."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1).astype(np.float64) for x in (k, v))
    s = q.astype(np.float64) @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    s = score_mod(s, *np.ogrid[tuple(slice(n) for n in s.shape)])
    identity = np.broadcast_to(np.eye(k.shape[2]), (*k.shape[:3], k.shape[2]))
    return stored(attention(s, identity, v, mask=mask, bias=bias, scale=1.0).out, q.dtype)


def dropped(
    q: Array, k: Array, v: Array, *, mask: Any = None, scale: float | None = None, dropout: float, keep: Array
) -> Array:  # fmt: skip
    """keep (B, H, Lq, Lk), True = kept."""
    if keep.dtype != np.bool_:
        raise TypeError(f"keep is {keep.dtype}")
    identity = np.broadcast_to(np.eye(k.shape[2]), (*k.shape[:3], k.shape[2]))
    weights = attention(q, k, identity, mask=mask, scale=scale).out
    weights = np.where(keep, weights, 0) * (1 / (1 - dropout) if dropout < 1 else 0)
    return stored(weights @ np.repeat(v, q.shape[1] // v.shape[1], axis=1).astype(np.float64), q.dtype)


def rotated(
    q: Array, k: Array, v: Array, *,
    mask: Any = None, scale: float | None = None, cos: Array, sin: Array, interleaved: bool,
) -> Array:  # fmt: skip
    """cos and sin (Lk, dim / 2); query i stands at i + Lk - Lq."""
    last = k.shape[2] - q.shape[2]
    q_turned = turned(q, cos[last:], sin[last:], interleaved)
    out = attention(q_turned, turned(k, cos, sin, interleaved), v, mask=mask, scale=scale).out
    return stored(out, q.dtype)


def turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Complex numbers, times cos + i sin."""
    x = x.astype(np.float64)
    half = cos.shape[-1]
    pairs = x[..., : 2 * half].reshape(*x.shape[:-1], *((half, 2) if interleaved else (2, half)))
    if not interleaved:
        pairs = pairs.swapaxes(-1, -2)
    z = (pairs[..., 0] + 1j * pairs[..., 1]) * (cos.astype(np.float64) + 1j * sin.astype(np.float64))
    pairs = np.stack([z.real, z.imag], -1 if interleaved else -2)
    return np.concatenate([pairs.reshape(*x.shape[:-1], 2 * half), x[..., 2 * half :]], -1)


def coded(
    q: Array, k: Array, v: Array, *,
    mask: Any = None, scale: float | None = None, kind: str, k_scale: Array, v_scale: Array, q_scale: Any = None,
    out_dtype: str | None = None,
) -> Array:  # fmt: skip
    """Codes times scales; q has codes too where there is a q_scale, and then out_dtype says what is returned."""
    dtype = q.dtype if out_dtype is None else out_dtype
    made = {"q": q, "k": decoded(k, k_scale, kind), "v": decoded(v, v_scale, kind)}
    if q_scale is not None:
        made["q"] = decoded(q, q_scale, kind)
    return stored(attention(**made, mask=mask, scale=scale).out, dtype)


def decoded(codes: Array, scale: Array, kind: str) -> Array:
    wide = scale.astype(np.float64)
    if kind == "q4_0":
        blocks = codes.reshape(*codes.shape[:3], -1, 16).astype(np.int64)
        codes = (np.concatenate([blocks % 16, blocks // 16], -1) - 8).reshape(*codes.shape[:3], -1)
    if kind in ("q8_0", "q4_0"):
        wide = np.repeat(wide, 32, axis=3)
    elif wide.shape[2] > 1:
        wide = np.repeat(wide, 64, axis=2)[:, :, : codes.shape[2]]
    return codes.astype(np.float64) * wide


def packed(
    q: Array, k: Array, v: Array, *, mask: Any = None, scale: float | None = None,
    cu_seqlens_q: Array, cu_seqlens_k: Array, seqused_q: Any = None, seqused_k: Any = None,
) -> tuple[Array, Array]:  # fmt: skip
    """q (tokens, H, D), out likewise, lse (H, tokens)."""
    out = np.zeros((*q.shape[:2], v.shape[2]), q.dtype)
    lse = np.zeros((q.shape[1], q.shape[0]), np.float64 if q.dtype == np.float64 else np.float32)
    for b in range(len(cu_seqlens_q) - 1):
        rows, keys = (slice(*starts[b : b + 2]) for starts in (cu_seqlens_q, cu_seqlens_k))
        rows = rows if seqused_q is None else slice(rows.start, rows.start + seqused_q[b])
        keys = keys if seqused_k is None else slice(keys.start, keys.start + seqused_k[b])
        one = [x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
        seen = None if mask is None else mask[b : b + 1, :, : one[0].shape[2], : one[1].shape[2]]
        found = attention(*one, mask=seen, scale=scale)
        out[rows], lse[:, rows] = stored(found.out[0].swapaxes(0, 1), q.dtype), found.lse[0]
    return out, lse


def paged(
    q: Array, k: Array, v: Array, *, mask: Any = None, scale: float | None = None, block_table: Array, seqused_k: Array
) -> Array:  # fmt: skip
    """k (pages, page_size, Hkv, D)."""
    out = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    for b, n in enumerate(seqused_k):
        token = np.arange(n)
        page, slot = block_table[b, token // k.shape[1]], token % k.shape[1]
        one = [x[page, slot].swapaxes(0, 1)[None] for x in (k, v)]
        seen = None if mask is None else mask[b : b + 1, ..., :n]
        out[b] = stored(attention(q[b : b + 1], *one, mask=seen, scale=scale).out[0], q.dtype)
    return out


def cached(
    q: Array, k: Array, v: Array, *,
    mask: Any = None, scale: float | None = None, k_cache: Array, v_cache: Array, cache_lens: Array,
    cos: Any = None, sin: Any = None, interleaved: bool = False,
) -> dict[str, Array]:  # fmt: skip
    """k and v are new, and go to the slots from cache_lens[b] on; k_cache (B, slots, Hkv, D) holds rotated keys."""
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    out = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    for b, past in enumerate(cache_lens):
        n = past + q.shape[2]
        queries, new = q[b], k[b]
        if cos is not None:
            queries, new = (turned(x, cos[past:n], sin[past:n], interleaved) for x in (queries, new))
        k_cache[b, past:n] = stored(new, k.dtype).swapaxes(0, 1)
        v_cache[b, past:n] = v[b].swapaxes(0, 1)
        one = [x[b, :n].swapaxes(0, 1)[None] for x in (k_cache, v_cache)]
        seen = None if mask is None else mask[b : b + 1, ..., :n]
        out[b] = stored(attention(queries[None], *one, mask=seen, scale=scale).out[0], q.dtype)
    return {"out": out, "k_cache": k_cache, "v_cache": v_cache}
