"""What the paper writes down: the textbook function, and multi-head attention with its projections."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import exact64
from .arguments import scale_of
from .attention import attention

__all__ = ["multi_head_attention", "scaled_dot_product_attention"]

Array = np.ndarray[Any, Any]


def scaled_dot_product_attention(Q: Any, K: Any, V: Any, mask: Any = None) -> tuple[Array, Array]:
    """The textbook function: (output, weights) with scores filled by -1e9 where mask == 0.

    Equation 1 of Vaswani et al. 2017 (section 3.2.1): softmax(Q Kᵀ / sqrt(d_k)) V, over any leading
    dimensions.  -1e9 is not -inf: a row whose every key is masked gives the *mean* of V instead
    of 0, and scores below about -1e9 + 700 lose to masked keys.

    >>> Q = np.zeros((1, 2)); V = np.array([[1.0], [3.0]])
    >>> output, weights = scaled_dot_product_attention(Q, np.eye(2), V, mask=np.zeros((1, 2)))
    >>> output.item()   # every key masked, yet 2 = mean(V); attention() gives 0
    2.0
    """
    Q, K, V = exact64(Q, "Q"), exact64(K, "K"), exact64(V, "V")
    scores = Q @ K.swapaxes(-1, -2) * scale_of(None, Q.shape[-1])
    if mask is not None:
        scores = np.where(np.asarray(mask) == 0, -1e9, scores)
    weights = np.exp(scores - scores.max(-1, initial=-np.inf, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ V, weights


def multi_head_attention(
    Q: Any, K: Any, V: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any, *, mask: Any = None
) -> Array:  # fmt: skip
    """Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q[i], K W_K[i], V W_V[i]).

    Vaswani et al. 2017, section 3.2.2.  Q (B, Lq, d_model), K and V (B, Lk, d_model);
    W_Q, W_K (h, d_model, d_k), W_V (h, d_model, d_v), W_O (h * d_v, d_model); mask as in
    `attention`, (B, h, Lq, Lk).  Returns (B, Lq, d_model) in float64.
    """
    named = {"Q": Q, "K": K, "V": V, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}
    x = {name: exact64(array, name) for name, array in named.items()}
    for name, ndim, form in (
        *((n, 3, "(B, length, d_model)") for n in "QKV"),
        *((n, 3, "(h, d_model, d_head)") for n in ("W_Q", "W_K", "W_V")),
        ("W_O", 2, "(h * d_v, d_model)"),
    ):
        if x[name].ndim != ndim:
            raise ValueError(f"{name}.shape={x[name].shape} must have {ndim} dimensions, {form}")
    h, _, d_v = x["W_V"].shape
    for a, w in (("Q", "W_Q"), ("K", "W_K"), ("V", "W_V")):
        if x[w].shape[0] != h or x[w].shape[1] != x[a].shape[2]:
            raise ValueError(
                f"{w}.shape={x[w].shape} must begin with (h, d_model)={(h, x[a].shape[2])}, "
                f"of W_V.shape={x['W_V'].shape} and {a}.shape={x[a].shape}"
            )
    if x["W_O"].shape[0] != h * d_v:
        raise ValueError(f"W_O.shape={x['W_O'].shape} must begin with h * d_v = {h * d_v}")
    q, k, v = (np.einsum("blm,hmd->bhld", x[a], x[w]) for a, w in (("Q", "W_Q"), ("K", "W_K"), ("V", "W_V")))
    heads = attention(q, k, v, mask=mask).out
    B, _, Lq, _ = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(B, Lq, h * d_v) @ x["W_O"]
