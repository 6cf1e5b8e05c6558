"""ALiBi: a bias that is linear in the distance between query and key, with a slope for each head.

Press, Smith and Lewis 2021, "Train Short, Test Long", section 3.  Two distances are in use: absolute
and bottom-right, -slope |i + Lk - Lq - j| (FlashAttention's alibi_slopes, by its docstring), and signed
and top-left, slope (j - i) (cuDNN's reference).  Up to the diagonal they differ by a constant of the
row, so that under a causal mask out is the same and lse is not.  The same holds for slope j, which the
authors' code adds, and FlashAttention where causal (flash-attention#1585).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from .visibility import Align, check_align, check_int, diagonal

__all__ = ["alibi", "slopes"]

Array = np.ndarray[Any, Any]


def slopes(H: int) -> Array:
    """The slopes of H heads, (H,) float64.

    2**(-8 (h + 1) / H) where H is a power of two.  Otherwise, by the authors' code (get_slopes in
    ofirpress/attention_with_linear_biases), those of the power of two below, n, then every other one
    of 2 n, from the first.  (The paper's text has the first formula for all H; models follow the code.)

    >>> slopes(8)[[0, 1, 7]].tolist()
    [0.5, 0.25, 0.00390625]
    >>> slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    check_int("H", H, 0)
    n = 1 << max(H.bit_length() - 1, 0)
    first = 2.0 ** (-8 * np.arange(1, n + 1) / n)
    between = 2.0 ** (-8 * np.arange(1, 2 * n, 2) / (2 * n))
    return np.concatenate([first, between])[:H]


def alibi(
    slopes: Any, Lq: int, Lk: int,
    distance: Literal["absolute", "signed"] = "absolute", align: Align = "bottom_right",
) -> Array:  # fmt: skip
    """The bias of each head, (H, Lq, Lk) float64; `slopes` is (H,).

    With d = i ("top_left") or i + Lk - Lq ("bottom_right"): -slope |d - j| for "absolute",
    slope (j - d) for "signed".

    >>> alibi([0.5], 2, 3)[0].tolist()
    [[-0.5, 0.0, -0.5], [-1.0, -0.5, 0.0]]
    >>> alibi([0.5], 2, 3, "signed", "top_left")[0].tolist()
    [[0.0, 0.5, 1.0], [-0.5, 0.0, 0.5]]
    """
    slopes = np.asarray(slopes, dtype=np.float64)
    if slopes.ndim != 1 or not np.isfinite(slopes).all():
        raise ValueError(f"slopes of shape {slopes.shape} must be finite, (H,): one for each head")
    check_int("Lq", Lq, 0)
    check_int("Lk", Lk, 0)
    if distance not in ("absolute", "signed"):
        raise ValueError(f"distance={distance!r} must be 'absolute' or 'signed'")
    check_align(align)
    i, j = np.ogrid[:Lq, :Lk]
    offset = j - diagonal(align, i, np.array(Lq), np.array(Lk))
    return slopes[:, None, None] * (-np.abs(offset) if distance == "absolute" else offset)
