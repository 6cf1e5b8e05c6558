"""What each project usually asks: a handful of problems with its own sizes, dtypes, features and distributions.

They follow each project's tests in what is tested (sizes that are not round, causal and windowed masks, groups,
pages, quantised caches, gradients) and in how inputs are drawn: N(0, 1) or U[0, 1).  They are smaller.
"""

from __future__ import annotations

from typing import Any

from ..case import BiasSpec, Cache, Case, Packed, Paged
from ..masks import Causal, Window
from ..quantise import Quant
from ..rotary import Rotary

__all__ = ["FLASH", "FP8", "GGML", "PLAIN", "SDPA", "PERCENT"]

F32, F16, BF16, E4M3 = "float32", "float16", "bfloat16", "float8_e4m3fn"
OUT = frozenset({"out"})
GRAD = frozenset({"out", "dq", "dk", "dv"})
_TL, _BR = Causal("top_left"), Causal("bottom_right")


def _row(project: str, id: str, sizes: tuple[int, ...], dtype: str, family: str = "normal", **fields: Any) -> Case:
    named = dict(zip(("B", "H", "Hkv", "Lq", "Lk", "D", "Dv"), sizes, strict=True))
    made = {"want": OUT, **named, **fields}
    return Case(f"{project}-{id}", "As a published test has it.", (), "public", dtype=dtype, family=family, **made)


PLAIN = (
    _row("plain", "f32", (2, 4, 4, 64, 64, 32, 32), F32, want=GRAD | {"lse"}),
    _row("plain", "causal-f32", (2, 4, 4, 64, 64, 32, 32), F32, mask=_TL, want=GRAD),
    _row("plain", "gqa-f32", (2, 8, 2, 64, 128, 64, 64), F32),
    _row("plain", "padded-f32", (2, 4, 4, 64, 64, 64, 64), F32, k_lens=(64, 50)),
    _row("plain", "bias-f32", (2, 2, 2, 48, 48, 32, 32), F32, bias=BiasSpec("BHQK"), want=GRAD | {"dbias"}),
    _row("plain", "f16", (1, 2, 2, 256, 256, 64, 64), F16),
    _row("plain", "causal-bf16", (1, 2, 2, 256, 256, 64, 64), BF16, mask=_TL),
)
"""What one writes beside a kernel: randn, a few sizes, with and without a mask."""

PERCENT = (
    _row("jax", "uniform-f16", (1, 1, 1, 512, 512, 64, 64), F16, "uniform"),  # KernelBench level 1, 97, but one head
    _row("jax", "causal-f16", (1, 2, 2, 256, 256, 64, 64), F16, mask=_TL, scale=0.5, want=GRAD),  # Triton's tutorial
    _row("jax", "gqa-bf16", (2, 4, 2, 128, 128, 64, 64), BF16, want=GRAD),
    _row("jax", "causal-bf16", (2, 4, 4, 128, 128, 64, 64), BF16, mask=_TL, want=GRAD),
    _row("jax", "window-bf16", (2, 4, 4, 128, 128, 64, 64), BF16, mask=Window(10, 0, "top_left"), want=GRAD),
    _row("jax", "lengths-f16", (2, 4, 4, 128, 128, 64, 64), F16, q_lens=(100, 128), k_lens=(90, 128)),
    _row("jax", "bias-f16", (2, 4, 4, 128, 128, 64, 64), F16, bias=BiasSpec("HQK", F16)),
)
"""Those that compare with atol = rtol = 1e-2: KernelBench, Triton's tutorial, jax.nn's tests."""

FLASH = (
    _row("fa", "97-f16", (2, 4, 4, 97, 97, 59, 59), F16, want=GRAD),
    _row("fa", "causal-128-bf16", (1, 4, 4, 128, 128, 64, 64), BF16, mask=_BR, want=GRAD),
    _row("fa", "gqa-causal-113x203-bf16", (1, 6, 2, 113, 203, 64, 64), BF16, mask=_BR, want=GRAD),
    _row("fa", "mqa-window-128x217-f16", (1, 4, 1, 128, 217, 64, 64), F16, mask=Window(33, 12, "bottom_right"),
         want=GRAD),
    _row("fa", "alibi-108x256-bf16", (1, 4, 4, 108, 256, 64, 64), BF16, mask=_BR, want=GRAD,
         bias=BiasSpec("HQK", F32, "alibi")),
    _row("fa", "softcap-bf16", (1, 4, 4, 113, 128, 64, 64), BF16, softcap=50.0, want=GRAD),
    _row("fa", "dropout-f16", (1, 4, 4, 128, 128, 32, 32), F16, dropout=0.17, want=GRAD),
    _row("fa", "varlen-bf16", (3, 4, 4, 99, 99, 64, 64), BF16, q_lens=(99, 34, 71), k_lens=(99, 34, 71), mask=_BR,
         storage=Packed(), want=GRAD),
    _row("fa", "splitkv-3x799-f16", (1, 4, 4, 3, 799, 64, 64), F16, mask=_BR),
    _row("fa", "kvcache-paged-1x339-bf16", (2, 8, 2, 1, 339, 64, 64), BF16, mask=_BR, storage=Paged(256),
         k_lens=(339, 120)),
    _row("fa", "kvcache-rotary-f16", (2, 4, 2, 3, 64, 32, 32), F16, mask=_BR, storage=Cache(), k_lens=(64, 41),
         rotary=Rotary(16, True), want=frozenset({"out", "k_cache", "v_cache"})),
)  # fmt: skip
"""FlashAttention: odd sizes, pairs such as (113, 203) and (3, 799), all that its interface has."""

GGML = (
    _row("ggml", "hs64-f16", (1, 4, 4, 35, 113, 64, 64), F16, out_dtype=F32, bias=BiasSpec("QK", F16, "minus_inf")),
    _row("ggml", "gqa-f16", (1, 16, 4, 3, 512, 64, 64), F16, out_dtype=F32, bias=BiasSpec("QK", F16, "minus_inf")),
    _row("ggml", "no-mask-bf16", (2, 4, 4, 1, 113, 128, 128), BF16, out_dtype=F32),
    _row("ggml", "alibi-f16", (1, 4, 4, 35, 113, 64, 64), F16, out_dtype=F32, bias=BiasSpec("HQK", F32, "alibi")),
    _row("ggml", "softcap-f16", (1, 4, 4, 35, 113, 64, 64), F16, out_dtype=F32, softcap=10.0,
         bias=BiasSpec("QK", F16, "minus_inf")),
    _row("ggml", "sinks-f16", (1, 4, 4, 35, 113, 64, 64), F16, out_dtype=F32, sinks="normal",
         bias=BiasSpec("QK", F16, "minus_inf")),
    _row("ggml", "q8_0-f32", (1, 4, 4, 3, 113, 64, 64), F32, quant=Quant("q8_0", "block"),
         bias=BiasSpec("QK", F32, "minus_inf")),
    _row("ggml", "q4_0-f32", (1, 4, 4, 1, 512, 64, 64), F32, quant=Quant("q4_0", "block")),
    _row("ggml", "192x128-f32", (1, 4, 4, 35, 113, 192, 128), F32, bias=BiasSpec("QK", F32, "minus_inf")),
)  # fmt: skip
"""llama.cpp's test-backend-ops: heads of 64 to 192, caches of 113 and 512, a mask with -inf, quantised caches."""

FP8 = (
    _row("fp8", "causal-e4m3", (1, 4, 2, 128, 128, 64, 64), E4M3, mask=_BR),
    _row("fp8", "decode-e4m3", (2, 8, 2, 1, 300, 64, 64), E4M3, mask=_BR),
    _row("fp8", "cache-bf16", (2, 8, 2, 2, 200, 64, 64), BF16, mask=_BR, quant=Quant("float8_e4m3fn", "head")),
    _row("fp8", "paged-bf16", (2, 8, 2, 1, 200, 64, 64), BF16, mask=_BR, quant=Quant("float8_e4m3fn", "tensor"),
         storage=Paged(16), k_lens=(200, 77)),
)  # fmt: skip
"""Decoding in float8, as FlashAttention 4 and many serving engines test it."""

SDPA = (
    _row("sdpa", "f16", (2, 3, 3, 128, 128, 32, 32), F16, "uniform", want=GRAD),
    _row("sdpa", "causal-bf16", (2, 3, 3, 128, 128, 64, 64), BF16, "uniform", mask=_TL, want=GRAD),
    _row("sdpa", "causal-f32", (1, 3, 3, 64, 64, 16, 16), F32, "uniform", mask=_TL, want=GRAD, scale=1 / 16),
    _row("sdpa", "4x8-f32", (8, 3, 3, 4, 8, 8, 8), F32, "uniform", want=GRAD),
    _row("sdpa", "attn-mask-f16", (2, 3, 3, 64, 152, 32, 32), F16, "uniform", bias=BiasSpec("BHQK", F16),
         want=GRAD | {"dbias"}),
    _row("sdpa", "attn-mask-bool-f32", (2, 3, 3, 64, 64, 32, 32), F32, "uniform", k_lens=(64, 40), want=GRAD),
    _row("sdpa", "dropout-f16", (2, 3, 3, 64, 64, 32, 32), F16, "uniform", dropout=0.22, want=GRAD),
    _row("sdpa", "gqa-bf16", (2, 6, 2, 64, 128, 64, 64), BF16, "uniform", want=GRAD),
)  # fmt: skip
"""torch's test_transformers: U[0, 1), gradients, a float mask, dropout."""
