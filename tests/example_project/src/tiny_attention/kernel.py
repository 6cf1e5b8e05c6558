"""Online softmax over tiles of 16 keys; q (B, H, Lq, D), k and v (B, Hkv, Lk, D)."""

import numpy as np

TILE = 16


def attention(q, k, v, mask=None, scale=None):
    """Softmax(scale * q @ k.T) @ v over the keys where mask is True, and its lse; q.dtype in, q.dtype out."""
    return _tiles(q, k, v, mask, scale, weights=np.float32)


def half_attention(q, k, v, mask=None, scale=None):
    """The same, with weights rounded to float16 before they meet v."""
    return _tiles(q, k, v, mask, scale, weights=np.float16)


def _tiles(q, k, v, mask, scale, weights):
    group = q.shape[1] // k.shape[1]
    wide = np.float64 if q.dtype == np.float64 else np.float32
    q, k, v, out_dtype = q.astype(wide), k.astype(wide), v.astype(wide), q.dtype
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    mask = np.broadcast_to(True if mask is None else mask, (*q.shape[:3], k.shape[2]))
    v = np.where(mask.any(2)[..., None], v, 0)  # what no query sees may be anything, even NaN
    top = np.full(q.shape[:3] + (1,), -np.inf, wide)
    total, out = np.zeros_like(top), np.zeros(q.shape[:3] + v.shape[-1:], wide)
    for first in range(0, k.shape[2], TILE):
        tile = slice(first, first + TILE)
        with np.errstate(invalid="ignore"):  # of keys that are hidden
            s = np.where(mask[..., tile], scale * (q @ k[:, :, tile].swapaxes(-1, -2)), -np.inf)
        new = np.maximum(top, s.max(-1, keepdims=True))
        finite = np.where(np.isneginf(new), 0, new)  # a row that has seen nothing yet
        p, old = np.exp(s - finite), np.exp(top - finite)
        total = old * total + p.sum(-1, keepdims=True)
        out = old * out + (p if wide == np.float64 else p.astype(weights).astype(wide)) @ v[:, :, tile]
        top = new
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    return np.divide(out, total, out=np.zeros_like(out), where=total != 0).astype(out_dtype), lse
