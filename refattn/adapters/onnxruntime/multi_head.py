"""com.microsoft MultiHeadAttention, float32 only.

A mask is `unidirectional` where it is a causal one aligned top-left, or behind a cache bottom-right; key lengths alone
are key_padding_mask; all else is an attention_bias with -inf in it.  Its fourth output has bias and mask in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...case import CACHES, Cache, Case
from ...masks import Causal
from ...precision import Conventions
from ..adapter import Adapter, additive, hides, is_causal
from .session import contrib

__all__ = ["mha"]

Array = np.ndarray[Any, Any]

INPUTS = ("q", "k", "v", "projection_bias", "key_padding_mask", "attention_bias", "past_k", "past_v")


@dataclass(frozen=True)
class MultiHeadAttention(Adapter):
    def refuses(self, case: Case) -> str | None:
        if 0 in (case.B, case.Lq, case.Lk, case.D, case.Dv):
            return "a dimension of 0"
        if case.scale == 0:
            return "scale=0"  # it means the default
        if isinstance(case.storage, Cache) and (case.D != case.Dv or len(set(case.lengths[1])) > 1):
            return "ragged cache" if case.D == case.Dv else "cache of D!=Dv"
        return None

    def returned(self, case: Case) -> frozenset[str]:
        return self.outputs | (set(CACHES) if isinstance(case.storage, Cache) else set())

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        feeds = {n: given[n].swapaxes(1, 2).reshape(case.B, given[n].shape[2], -1) for n in "qkv"}
        options: dict[str, Any] = {"num_heads": case.H, "mask_filter_value": -np.inf}
        if case.scale is not None:
            options["scale"] = case.scale
        cache = isinstance(case.storage, Cache)
        if cache:
            past = int(given["cache_lens"][0])
            feeds |= {f"past_{n}": given[f"{n}_cache"][:, :past].swapaxes(1, 2) for n in "kv"}
        causal = case.mask == Causal("bottom_right") if cache else is_causal(case)
        if causal:
            options["unidirectional"] = 1
        elif case.mask is None and case.k_lens is not None and case.q_lens is None and not cache and min(case.k_lens):
            feeds["key_padding_mask"] = np.array(case.k_lens, np.int32)
        elif hides(case) and not (case.mask is None and cache):
            feeds["attention_bias"] = additive(case, given)
        if "bias" in given and "attention_bias" not in feeds:
            bias = given["bias"]
            feeds["attention_bias"] = np.broadcast_to(bias, (*bias.shape[:2], case.Lq, case.Lk))
        shown = not {"scores", "biased"}.isdisjoint(case.want)
        outputs = ["out", *(["present_k", "present_v"] if cache else ["", ""]), "biased" if shown else ""]
        while not outputs[-1]:
            outputs.pop()
        found = contrib("MultiHeadAttention", INPUTS, outputs, options, feeds)
        answer = {"out": found["out"].reshape(case.B, case.Lq, case.H, case.Dv).swapaxes(1, 2)}
        if shown:
            answer["biased"] = found["biased"]
            if case.bias is None and not hides(case):
                answer["scores"] = found["biased"].copy()
        for name in CACHES if cache else ():
            present = found[f"present_{name[0]}"].swapaxes(1, 2)
            answer[name] = given[name].copy()
            answer[name][:, : present.shape[1]] = present
        return answer


mha = MultiHeadAttention(
    "onnxruntime com.microsoft.MultiHeadAttention",
    "onnxruntime",
    takes=frozenset({"cache", "bias", "mask", "D!=Dv", "scale"}),
    outputs=frozenset({"out", "biased"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="nan"),  # measured
)
