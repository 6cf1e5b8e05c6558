"""torch.nn.functional.scaled_dot_product_attention on the CPU.

The case's mask is realised exactly: `is_causal` for a top-left causal mask and nothing else, an
explicit boolean (or, with a bias, additive) attn_mask for all others.  Gradients come from
autograd.  What the call cannot express is refused: softcap, sinks, score_mod, rotation, quantised
inputs, packed sequences, pages, caches, lse, float8.

Dropout and weights are had from `torch.ops.aten._scaled_dot_product_attention_math`, which the math
backend is: True of its dropout_mask is kept, and 1 / (1 - p) is in the output but not in the weights,
from which what is dropped is missing all the same.  The other backends draw a mask that they do not
return.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...case import Case
from ...exchange import from_torch, to_torch
from ...precision import Conventions, Precision, Unsupported, preset
from ..adapter import Adapter, hides, is_causal, visible

__all__ = ["default", "flash", "math"]

SOURCE = (
    "FlashAttentionKernel.cpp, cpu_flash_attention_backward: gemm with beta=1 into 16-bit gradients, by blocks of "
    "32, 64 or 256 queries and 512 keys; docs/FINDINGS.md 2"
)
FLUSHED = "AVX512_BF16 and AMX flush subnormal numbers; docs/FINDINGS.md 3"
FAST_EXP = "fexp_u20 of ATen/cpu/vec is off by 1.07e-4 relatively (pytorch#151441); docs/FINDINGS.md 4"


@dataclass(frozen=True)
class ScaledDotProductAttention(Adapter):
    """One backend of the function, or None for the one that torch picks."""

    backend: str | None = None

    def refuses(self, case: Case) -> str | None:
        if case.dropout is not None and (self.backend != "MATH" or case.dropout == 1):
            return "dropout of 1" if self.backend == "MATH" else "dropout"  # of 1: 0 * inf
        broadcasts = case.bias_shape != (case.B, case.H, case.Lq, case.Lk)
        if "dbias" in case.want and case.dtype in ("float16", "bfloat16") and hides(case) and broadcasts:
            return f"dbias summed in {case.dtype}"  # attn_mask is the bias stretched to the mask, in its dtype
        if self.backend == "FLASH_ATTENTION" and (case.D != case.Dv or "dbias" in case.want):
            return "D!=Dv" if case.D != case.Dv else "dbias"
        return None

    def returned(self, case: Case) -> frozenset[str]:
        """Weights of the math backend alone, and none after dropout."""
        has_weights = self.backend == "MATH" and case.dropout is None
        return self.outputs | ({"weights"} if has_weights else set())

    def precision(self, case: Case) -> Precision:
        contract = preset(case.dtype, case.out_dtype)
        if self.backend == "MATH" or case.dtype not in ("float16", "bfloat16"):
            return contract
        sources = [FAST_EXP]
        contract = replace(contract, exp_ulp=2048.0)  # 1800 for the polynomial, the rest for its argument's rounding
        if case.dtype == "bfloat16" and flushes():
            sources.append(FLUSHED)
            contract = replace(contract, flush_subnormal=True)
        if case.backward:
            sources.append(SOURCE)
            block = 256 if case.Lq >= 768 else 64 if case.Lq >= 192 else 32
            contract = replace(contract, grad_q_block=block, grad_k_block=512, grad_per_head=True)
        return replace(contract, source="; ".join(sources))

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        names = [n for n in ("q", "k", "v", "bias") if n in given]
        x = {n: to_torch(given[n]).requires_grad_(case.backward) for n in names}
        causal = is_causal(case) and case.bias is None
        attn_mask = None if causal or not hides(case) else torch.from_numpy(visible(case))
        if "bias" in x:
            attn_mask = x["bias"] if attn_mask is None else torch.where(attn_mask, x["bias"], -torch.inf)
        answer = self._answer(case, x["q"], x["k"], x["v"], attn_mask, causal, given.get("keep"))
        wanted = [n for n in names if "d" + n in case.want]
        if wanted:
            found = torch.autograd.grad(answer["out"], [x[n] for n in wanted], to_torch(given["dout"]))
            answer |= {"d" + n: g for n, g in zip(wanted, found, strict=True)}
        return {n: from_torch(a) for n, a in answer.items()}

    def _answer(self, case: Case, q: Any, k: Any, v: Any, mask: Any, causal: bool, keep: Any) -> dict[str, Any]:
        """out, and weights where they are wanted and can be had."""
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        options: dict[str, Any] = {"scale": case.scale, "enable_gqa": case.H != case.Hkv}
        chosen = [getattr(SDPBackend, self.backend)] if self.backend else list(SDPBackend.__members__.values())
        try:
            with warnings.catch_warnings(), sdpa_kernel(chosen):
                warnings.simplefilter("ignore")  # why a kernel was not chosen, which the error says too
                if case.dropout is not None or ("weights" in case.want and "weights" in self.returned(case)):
                    math_attention = torch.ops.aten._scaled_dot_product_attention_math
                    kept = None if keep is None else to_torch(keep)
                    if mask is not None and mask.dtype == torch.bool:  # it would add 1 where True
                        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -torch.inf)
                    out, weights = math_attention(q, k, v, mask, case.dropout or 0.0, causal, kept, **options)
                    return {"out": out} | ({"weights": weights} if case.dropout is None else {})
                attend = torch.nn.functional.scaled_dot_product_attention
                return {"out": attend(q, k, v, attn_mask=mask, is_causal=causal, **options)}
        except RuntimeError as error:
            if "No available kernel" in str(error):
                raise Unsupported("no kernel of this backend takes the case") from None
            raise


def flushes() -> bool:
    """Whether this machine multiplies bfloat16 matrices by instructions that know no subnormal numbers."""
    import torch

    has: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def _backend(backend: str | None) -> ScaledDotProductAttention:
    return ScaledDotProductAttention(
        "torch SDPA" + (f" ({backend.split('_')[0].lower()})" if backend else ""),
        "torch",
        takes=frozenset({"dropout", "bias", "mask", "gqa", "D!=Dv", "scale"}),
        dtypes=frozenset({"float64", "float32", "float16", "bfloat16"}),
        outputs=frozenset({"out", "dq", "dk", "dv", "dbias"}),
        conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks"),
        backend=backend,
    )


default = _backend(None)
math = _backend("MATH")
flash = _backend("FLASH_ATTENTION")
