"""How a Triton kernel enters the suite: `kernel.py` is the author's, this file what it declares.

Without a GPU it runs in Triton's interpreter, on the CPU.  Of masks it has the causal ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...case import Case
from ...exchange import from_torch, to_torch
from ...masks import Causal
from ...oracle import scale_of
from ...precision import Conventions, Unsupported
from ..adapter import Adapter, hides

__all__ = ["default"]


@dataclass(frozen=True)
class Flash(Adapter):
    def refuses(self, case: Case) -> str | None:
        if case.dtype == "bfloat16" and _device() == "cpu":
            return "bfloat16 in the interpreter"  # its tl.dot multiplies the bits as integers (triton#11584)
        if not hides(case):
            return "a size of 0" if 0 in (case.B, case.H, case.Lq) else None
        if isinstance(case.mask, Causal) and case.q_lens is case.k_lens is None:
            return None
        return "lengths" if case.mask is None or isinstance(case.mask, Causal) else type(case.mask).__name__.lower()

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        device = _device()
        if device == "cpu":
            if "triton" not in sys.modules:
                os.environ["TRITON_INTERPRET"] = "1"
            if os.environ.get("TRITON_INTERPRET") != "1":
                raise Unsupported("triton was imported without TRITON_INTERPRET=1")
        from .kernel import attention

        offset = None
        if isinstance(case.mask, Causal):
            offset = case.Lk - case.Lq if case.mask.align == "bottom_right" else 0
        q, k, v = (to_torch(given[n]).to(device) for n in "qkv")
        out, lse = attention(q, k, v, scale_of(case.scale, case.D), offset)
        return {"out": from_torch(out), "lse": from_torch(lse)}


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


default = Flash(
    "a flash kernel in Triton",
    "triton",
    takes=frozenset({"mask", "gqa", "D!=Dv", "scale"}),
    dtypes=frozenset({"float32", "float16", "bfloat16"}),
    outputs=frozenset({"out", "lse"}),
    conventions=Conventions(masked_nan_v="leaks"),
)
