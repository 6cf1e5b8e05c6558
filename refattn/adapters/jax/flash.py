"""The flash attention of jax.experimental.pallas.ops.tpu in the TPU's interpret mode, which takes seconds a case.

Rows and keys are padded to whole blocks of 128; segment ids hide the keys that do not exist.  A causal mask aligned
top-left is `causal`, all others, and the bias, are `ab`, which is added before the multiplication by sm_scale: it is
divided by the scale first, and a bias refused if that is no power of 2.
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
from ..adapter import Adapter, additive, hides, sees_nothing
from .dot_product import FLUSHED

__all__ = ["BLOCK", "blocks", "flash", "padded", "scale_of"]

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
        if case.bias is not None and math.frexp(scale_of(case))[0] != 0.5:
            return "bias with a scale that is no power of 2"
        if case.mask is not None and scale_of(case) == 0:
            return "mask with scale=0"
        if hides(case) and sees_nothing(case):
            return "a row that sees no key"  # NaN or 0, by how many blocks there are
        if case.B * case.H * blocks(case.Lq) * blocks(case.Lk) > MOST:
            return "too slow in interpret mode"
        return None

    def precision(self, case: Case) -> Precision:
        contract = replace(preset(case.dtype), flush_subnormal=True, source=FLUSHED)
        if case.dtype == "float32" or blocks(case.Lk) > 1:
            return contract
        return replace(contract, weights_normalised=True, source=f"{NORMALISED}; {FLUSHED}")

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import jax
        from jax.experimental.pallas import tpu
        from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

        Lq, Lk = (BLOCK * blocks(n) for n in (case.Lq, case.Lk))
        queries, keys = (np.arange(n) < np.array(lens)[:, None] for n, lens in zip((Lq, Lk), case.lengths, strict=True))

        def of_queries(x: Array) -> Array:
            return np.where(queries[:, None, :, None], padded(x, Lq), np.zeros((), x.dtype))

        q, k, v = of_queries(given["q"]), padded(given["k"], Lk), padded(given["v"], Lk)
        ids: Any = np.ones((case.B, Lq), np.int32), keys.astype(np.int32)
        segments = None if keys.all() else SegmentIds(*ids)
        causal = case.mask == Causal("top_left")
        ab = None
        if "bias" in given or (hides(case) and not causal and case.mask is not None):
            ab = np.zeros((case.B, case.H, case.Lq, Lk), np.float32)
            ab[..., : case.Lk] = additive(case, given, "float32") / np.float32(scale_of(case))
            ab = of_queries(ab)

        def attend(q: Any, k: Any, v: Any) -> Any:
            return flash_attention(q, k, v, ab, segments, causal=causal and ab is None, sm_scale=scale_of(case))

        with jax.default_device(jax.devices("cpu")[0]), tpu.force_tpu_interpret_mode():
            if not case.backward:
                return {"out": np.array(attend(q, k, v))[:, :, : case.Lq]}
            out, back = jax.vjp(attend, q, k, v)
            found = [np.array(x) for x in (out, *back(of_queries(given["dout"])))]
        lengths = (case.Lq, case.Lq, case.Lk, case.Lk)
        names = ("out", "dq", "dk", "dv")
        return {name: x[:, :, :n].copy() for name, x, n in zip(names, found, lengths, strict=True)}


def scale_of(case: Case) -> float:
    return case.D**-0.5 if case.scale is None else case.scale


def blocks(n: int) -> int:
    return -(-n // BLOCK)


def padded(x: Array, n: int) -> Array:
    """(..., L, D) with rows of 0 to the length n."""
    return np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, n - x.shape[-2]), (0, 0)])


flash = FlashAttention(
    "jax.experimental.pallas.ops.tpu.flash_attention (interpreted)",
    "jax",
    takes=frozenset({"bias", "bias of another dtype", "mask", "scale"}),
    dtypes=frozenset({"float32", "bfloat16"}),
    outputs=frozenset({"out", "dq", "dk", "dv"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks"),  # measured
)
