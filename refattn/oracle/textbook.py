"""What the paper writes down: the textbook function."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import exact64
from .arguments import scale_of

__all__ = ["scaled_dot_product_attention"]

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
