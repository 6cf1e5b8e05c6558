"""The flash attention of jax.experimental.pallas.ops.tpu in the TPU's interpret mode, which takes seconds a case.

Rows and keys are padded to whole blocks of 128; segment ids hide the keys that do not exist.  A causal mask aligned
top-left is `causal`, all others, and the bias, are `ab`, which is added before the multiplication by sm_scale: so a
bias is divided by the scale first, and refused if that is no power of 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...case import Case
from ...masks import Causal
from ...precision import Conventions, Precision, preset
from ..adapter import Adapter, additive, hides

__all__ = ["flash"]

Array = np.ndarray[Any, Any]

BLOCK = 128
MOST = 8
"""blocks of queries and keys, of all heads: a case takes about a second for each"""
NORMALISED = "jax/experimental/pallas/ops/tpu/flash_attention.py: of one block of keys p /= l comes before p.astype"


@dataclass(frozen=True)
class FlashAttention(Adapter):
    def refuses(self, case: Case) -> str | None:
        if 0 in (case.B, case.H, case.Lq, case.Lk, case.D) or 0 in case.lengths[1]:
            return "a dimension of 0"
        if case.D > BLOCK and case.D % BLOCK:
            return "D beyond 128"
        if case.bias is not None and math.frexp(_scale(case))[0] != 0.5:
            return "bias with a scale that is no power of 2"
        if case.B * case.H * _blocks(case.Lq) * _blocks(case.Lk) > MOST:
            return "too slow in interpret mode"
        return None

    def precision(self, case: Case) -> Precision:
        if case.dtype == "float32" or _blocks(case.Lk) > 1:
            return preset(case.dtype)
        return replace(preset(case.dtype), weights_normalised=True, source=NORMALISED)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import jax
        from jax.experimental.pallas import tpu
        from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

        Lq, Lk = (BLOCK * _blocks(n) for n in (case.Lq, case.Lk))
        q, k, v = (_padded(given[name], n) for name, n in (("q", Lq), ("k", Lk), ("v", Lk)))
        exists = np.arange(Lk) < np.array(case.lengths[1])[:, None]
        ids: Any = np.ones((case.B, Lq), np.int32), exists.astype(np.int32)
        segments = None if exists.all() else SegmentIds(*ids)
        causal = case.mask == Causal("top_left")
        ab = None
        if "bias" in given or (hides(case) and not causal and case.mask is not None):
            ab = np.zeros((case.B, case.H, Lq, Lk), np.float32)
            ab[:, :, : case.Lq, : case.Lk] = additive(case, given, "float32") / np.float32(_scale(case))

        def attend(q: Any, k: Any, v: Any) -> Any:
            return flash_attention(q, k, v, ab, segments, causal=causal and ab is None, sm_scale=_scale(case))

        with jax.default_device(jax.devices("cpu")[0]), tpu.force_tpu_interpret_mode():
            if not case.backward:
                return {"out": np.array(attend(q, k, v))[:, :, : case.Lq]}
            out, back = jax.vjp(attend, q, k, v)
            found = [np.array(x) for x in (out, *back(_padded(given["dout"], Lq)))]
        lengths = (case.Lq, case.Lq, case.Lk, case.Lk)
        names = ("out", "dq", "dk", "dv")
        return {name: x[:, :, :n].copy() for name, x, n in zip(names, found, lengths, strict=True)}


def _scale(case: Case) -> float:
    return case.D**-0.5 if case.scale is None else case.scale


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _padded(x: Array, n: int) -> Array:
    return np.pad(x, [(0, 0), (0, 0), (0, n - x.shape[2]), (0, 0)])


flash = FlashAttention(
    "jax.experimental.pallas.ops.tpu.flash_attention (interpreted)",
    "jax",
    takes=frozenset({"bias", "bias of another dtype", "mask", "scale"}),
    dtypes=frozenset({"float32", "bfloat16"}),
    outputs=frozenset({"out", "dq", "dk", "dv"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="nan"),  # measured
)
