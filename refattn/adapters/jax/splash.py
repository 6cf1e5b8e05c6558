"""The splash attention of jax.experimental.pallas.ops.tpu in Pallas' interpreter, a kernel for each batch entry.

Rows and keys are padded to whole blocks of 128; segment ids hide keys that do not exist.  Causal masks and windows are
CausalMask and LocalMask with their offset, all others a NumpyMask; a row that sees nothing is undefined, by their
documentation.  It has no scale: q is multiplied before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...case import Case
from ...dtypes import round_to
from ...masks import Causal, Window
from ...precision import Conventions, Precision, preset
from ..adapter import Adapter, sees_nothing
from .dot_product import FLUSHED
from .flash import BLOCK, blocks, padded, scale_of

__all__ = ["splash"]

Array = np.ndarray[Any, Any]

MOST = 32
"""blocks of queries and keys, of all heads: what is tried of it in bearable time"""
SCALED = "q is multiplied by the scale by whoever calls it"


@dataclass(frozen=True)
class SplashAttention(Adapter):
    def refuses(self, case: Case) -> str | None:
        if 0 in (case.B, case.H, case.Lq, case.Lk, case.D, case.Dv):
            return "a dimension of 0"
        if case.backward and not _exact(case):
            return "gradients with a scale that is no power of 2"
        if case.B * case.H * blocks(case.Lq) * blocks(case.Lk) > MOST:
            return "too slow in interpret mode"
        if sees_nothing(case):
            return "a row that sees nothing"
        return None

    def precision(self, case: Case) -> Precision:
        contract = replace(preset(case.dtype), flush_subnormal=True, source=FLUSHED)
        if not case.backward:  # where p and v are float32 when they are multiplied
            contract = replace(contract, weights=None)
        return contract if _exact(case) else replace(contract, scaled_q=case.dtype, source=f"{SCALED}; {FLUSHED}")

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import jax

        with jax.default_device(jax.devices("cpu")[0]):
            entries = [self._entry(case, given, b) for b in range(case.B)]
        answer = {name: np.stack([entry[name] for entry in entries]) for name in entries[0]}
        if "dsinks" in answer:
            answer["dsinks"] = answer["dsinks"].sum(0)
        return answer

    def _entry(self, case: Case, given: Mapping[str, Any], b: int) -> dict[str, Array]:
        import jax
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

        Lq, Lk = (BLOCK * blocks(n) for n in (case.Lq, case.Lk))
        scaled = round_to(np.asarray(given["q"][b], np.float64) * scale_of(case), case.dtype).astype(given["q"].dtype)
        queries = slice(case.lengths[0][b])
        q, k, v = padded(scaled[:, queries], Lq), padded(given["k"][b], Lk), padded(given["v"][b], Lk)
        sinks = given["sinks"].astype(np.float32) if "sinks" in given else None
        ids: Any = np.ones(Lq, np.int32), (np.arange(Lk) < case.lengths[1][b]).astype(np.int32)
        segments = None if ids[1].all() else kernels.SegmentIds(*ids)
        mask = masks.MultiHeadMask([self._mask(masks, case, b, h, (Lq, Lk)) for h in range(case.H)])
        kernel = kernels.make_splash_mha(
            mask, head_shards=1, q_seq_shards=1, interpret=True,
            attn_logits_soft_cap=case.softcap, save_residuals=not case.backward,
        )  # fmt: skip

        def attend(q: Any, k: Any, v: Any, sinks: Any) -> Any:
            return kernel(q, k, v, segments, sinks)

        if not case.backward:
            out, (lse,) = attend(q, k, v, sinks)
            return {"out": np.array(out)[:, : case.Lq], "lse": np.array(lse)[:, : case.Lq]}
        out, back = jax.vjp(attend, q, k, v, sinks)
        found = dict(zip(("dq", "dk", "dv", "dsinks"), back(padded(given["dout"][b][:, queries], Lq)), strict=True))
        answer = {name: np.array(x) for name, x in (found | {"out": out}).items() if x is not None}
        answer["dq"] = (answer["dq"].astype(np.float64) * scale_of(case)).astype(q.dtype)  # exact
        return {n: x if n == "dsinks" else x[:, : case.Lk if n in ("dk", "dv") else case.Lq] for n, x in answer.items()}

    def _mask(self, masks: Any, case: Case, b: int, h: int, shape: tuple[int, int]) -> Any:
        """The mask of a head; those that hide nothing of what exists hide no padding either."""
        if case.mask is None:
            return masks.FullMask(shape)
        if isinstance(case.mask, (Causal, Window)):
            lq, lk = (lengths[b] for lengths in case.lengths)
            offset = lk - lq if case.mask.align == "bottom_right" else 0
            if isinstance(case.mask, Causal):
                return masks.CausalMask(shape, offset=offset)
            return masks.LocalMask(shape, (case.mask.left, case.mask.right), offset)
        seen = np.ones(shape, bool)
        seen[: case.Lq, : case.Lk] = case.visibility.tile(b=b, h=h)
        return masks.NumpyMask(seen)


def _exact(case: Case) -> bool:
    """Whether q times the scale is exact, but for subnormal numbers."""
    return abs(math.frexp(scale_of(case))[0]) == 0.5


splash = SplashAttention(
    "jax.experimental.pallas.ops.tpu.splash_attention (interpreted)",
    "jax",
    takes=frozenset({"softcap", "sinks", "mask", "gqa", "D!=Dv", "scale"}),
    dtypes=frozenset({"float32", "bfloat16"}),
    outputs=frozenset({"out", "lse", "dq", "dk", "dv", "dsinks"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks"),  # measured
)
