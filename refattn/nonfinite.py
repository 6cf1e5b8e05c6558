"""Where a NaN or an infinity is an honest answer.

Where a *visible* input is not finite any non-finite answer is accepted, and with the convention
`leaks` also where a hidden one is: then 0 * NaN is let through, for a value to its own column in
every row, for a key or a query to whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .case import Case
from .precision import Conventions

__all__ = ["Nonfinite"]

Array = np.ndarray[Any, Any]


class Nonfinite:
    """For each output, the elements that depend on something visible (or leaking) that is not finite.

    Dense, B x H x Lq x Lk: cases with such inputs are small.
    """

    def __init__(self, case: Case, x: Mapping[str, Array], conventions: Conventions) -> None:
        self.case, self.group = case, case.H // case.Hkv if case.Hkv else 1
        shape = (case.B, case.H, case.Lq, case.Lk)
        seen = case.visibility.tile()
        bias = np.broadcast_to(x["bias"], shape) if "bias" in x else np.zeros(shape)
        self.bias = bias
        seen = seen & ~np.isneginf(bias)
        bad = {n: ~np.isfinite(a) for n, a in x.items()}
        q, k, v = (np.repeat(bad[n], self.group, 1) if n in "kv" else bad[n] for n in "qkv")
        hides_k, hides_v = conventions.masked_nan_k == "hidden", conventions.masked_nan_v == "hidden"
        see_k = seen if hides_k else np.ones(shape, dtype=bool)
        see_v = seen if hides_v else np.ones(shape, dtype=bool)
        pair = seen & ~np.isfinite(bias) | see_k & (
            np.asarray(q.any(-1))[..., None] | np.asarray(k.any(-1))[..., None, :]
        )
        reads = np.asarray(q.any(-1))[..., None] | np.asarray(k.any(-1))[..., None, :]
        self.scores = reads
        row = np.asarray(pair.any(-1))
        if "sinks" in bad:
            row = row | (bad["sinks"] & ~np.isneginf(x["sinks"]))[:, None]
        self.lse = row
        reached_v = (see_v.astype(np.float64) @ v) > 0
        self.out = row[..., None] | reached_v
        dout = bad.get("dout", np.zeros_like(self.out))
        dlse = bad.get("dlse", np.zeros_like(row))
        row_grad = row | reached_v.any(-1) | dlse | (dout.any(-1) & (seen.any(-1) if hides_v else True))
        self.dq = row_grad
        see = seen if hides_k and hides_v else np.ones(shape, dtype=bool)
        self.pairs = see & row_grad[..., None]
        self.dv = np.asarray((see & row[..., None]).any(-2))[..., None] | (
            (see.swapaxes(-1, -2).astype(np.float64) @ dout) > 0
        )
        self.sink = row_grad.any((0, 2))

    def of(self, name: str) -> Array:
        """The elements of an output, broadcasting to its shape."""
        case = self.case
        if name in ("out", "lse"):
            return self.out if name == "out" else self.lse
        if name in ("scores", "capped", "biased"):
            return self.scores | ~np.isfinite(self.bias) if name == "biased" else self.scores
        if name == "weights":
            return self.lse[..., None]
        if name in ("k_cache", "v_cache"):
            return np.zeros((), dtype=bool)
        if name in ("dscale", "dsoftcap"):
            return np.asarray(self.pairs.any())
        if name == "dq":
            return self.dq[..., None]
        if name == "dsinks":
            return self.sink
        if name == "dbias":
            stretched = tuple(a for a, n in enumerate(case.bias_shape) if n == 1)
            return np.asarray(self.pairs.any(axis=stretched, keepdims=True))
        keys = np.asarray(self.pairs.any(-2))[..., None] if name == "dk" else self.dv
        return np.asarray(keys.reshape(case.B, case.Hkv, self.group, *keys.shape[2:]).any(2))
