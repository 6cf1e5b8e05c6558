"""com.microsoft GroupQueryAttention: the queries stand at the end of a cache, each batch entry has its own lengths.

Dense keys are handed over likewise: as many as there are queries are new, those before them are past.  Causal to the
bottom right, and a window to the left with it, is what the operator does; its local_window_size counts the query's own
key.  Any other mask is an attention_bias without `causal`, for which batch entries with a past go one by one.
Weights are qk_output=2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...case import CACHES, Cache, Case
from ...masks import Causal, Window
from ...precision import Conventions, Precision, preset
from ..adapter import Adapter, additive
from .session import contrib

__all__ = ["gqa"]

Array = np.ndarray[Any, Any]

INPUTS = (
    "q", "k", "v", "past_k", "past_v", "seqlens_k", "total", "cos", "sin", "position_ids", "attention_bias", "sinks",
    "k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens",
)  # fmt: skip
SOURCE = "onnxruntime/contrib_ops/cpu/bert/gqa_attention_base.h: float16 is widened, and rounded once at the end"


@dataclass(frozen=True)
class GroupQueryAttention(Adapter):
    def refuses(self, case: Case) -> str | None:
        dense = not isinstance(case.storage, Cache)
        if 0 in (case.Lq, case.D):
            return "a dimension of 0"
        if case.D % 8:
            return "D is no multiple of 8"
        if case.scale == 0:
            return "scale=0"  # it means the default
        if 0 in case.lengths[1] or any(lq > lk for lq, lk in zip(*case.lengths, strict=True)):
            return "more queries than keys" if case.Lk else "no keys"
        if case.rotary is not None:
            if case.dtype != "float32":
                return f"cos and sin in {case.dtype}"
            if case.D % 16 or case.rotary.dim % 16:
                return "rotary of no multiple of 16"
            if dense and case.lengths[0] != case.lengths[1]:
                return "rotary of a past"  # which would have to be rotated already
        return None

    def returned(self, case: Case) -> frozenset[str]:
        return self.outputs | (set(CACHES) if isinstance(case.storage, Cache) else set())

    def precision(self, case: Case) -> Precision:
        return replace(preset(case.dtype), weights=None, source=SOURCE)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        options = _options(case)
        feeds = _feeds(case, given)
        if case.mask is not None and not options["causal"]:
            feeds["attention_bias"] = additive(case, given)
        elif "bias" in given:
            feeds["attention_bias"] = np.broadcast_to(given["bias"], (*given["bias"].shape[:2], case.Lq, case.Lk))
        for name in ("sinks", "cos", "sin"):
            if name in given:
                feeds[name] = given[name]
        if options["causal"] or "past_k" not in feeds:
            if "past_k" in feeds:
                feeds["query_seqlens"] = np.array(case.lengths[0], np.int32)
            found = _call(options, feeds)
        else:
            entries = [_entry(feeds, b, *n) for b, n in enumerate(zip(*case.lengths, strict=True))]
            parts = [_call(options, entry) for entry in entries]
            found = {name: _joined([part[name] for part in parts]) for name in parts[0]}
        out = found["out"].reshape(*found["out"].shape[:2], case.H, case.Dv).swapaxes(1, 2)
        answer = {"out": _sized(out, 2, case.Lq)}
        if "weights" in found:
            answer["weights"] = _sized(_sized(found["weights"], 2, case.Lq), 3, case.Lk)
        for name in CACHES if isinstance(case.storage, Cache) else ():
            answer[name] = found[f"present_{name[0]}"].swapaxes(1, 2)
        return answer


def _options(case: Case) -> dict[str, Any]:
    """The attributes; `causal` is 1 if with them the operator's own mask is that of the case."""
    options: dict[str, Any] = {"num_heads": case.H, "kv_num_heads": case.Hkv, "causal": 0}
    if "weights" in case.want:
        options["qk_output"] = 2
    if case.scale is not None:
        options["scale"] = case.scale
    if case.softcap is not None:
        options["softcap"] = case.softcap
    if case.rotary is not None:
        options |= {"do_rotary": 1, "rotary_interleaved": int(case.rotary.interleaved)}
    square = case.lengths[0] == case.lengths[1]  # where both alignments are one
    if isinstance(case.mask, (Causal, Window)) and (case.mask.align == "bottom_right" or square):
        if isinstance(case.mask, Causal):
            options["causal"] = 1
        elif case.mask.right == 0:
            options["causal"] = 1
            options["local_window_size"] = -1 if case.mask.left is None else case.mask.left + 1
    return options


def _feeds(case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
    """q, the new k and v, the past ones, if there are any, and the lengths."""
    q_lens, k_lens = (np.array(n, np.int32) for n in case.lengths)
    feeds = {"q": _flat(given["q"]), "seqlens_k": k_lens - np.int32(1)}
    past = k_lens - q_lens
    for name in "kv":
        if isinstance(case.storage, Cache):
            new, buffer = given[name], given[f"{name}_cache"].swapaxes(1, 2)
        else:
            x = given[name]
            new, buffer = (
                np.zeros((case.B, case.Hkv, n, x.shape[3]), x.dtype) for n in (case.Lq, past.max(initial=0) + case.Lq)
            )
            for b, n in enumerate(past):
                buffer[b, :, :n] = x[b, :, :n]
                new[b, :, : q_lens[b]] = x[b, :, n : k_lens[b]]
        feeds[name] = _flat(new)
        if past.any() or isinstance(case.storage, Cache):
            feeds[f"past_{name}"] = buffer
    return feeds


def _entry(feeds: Mapping[str, Array], b: int, lq: int, lk: int) -> dict[str, Array]:
    """What goes in for one batch entry."""
    one = {n: x if n in ("sinks", "cos", "sin") else x[b % len(x) :][:1] for n, x in feeds.items()}
    one |= {n: one[n][:, :lq] for n in "qkv"}
    return one | {n: one[n][:, :, :lq, :lk] for n in ("attention_bias",) if n in one}


def _call(options: dict[str, Any], feeds: dict[str, Array]) -> dict[str, Array]:
    outputs = ["out", "present_k", "present_v", *(["weights"] if "qk_output" in options else [])]
    total = int(feeds["seqlens_k"].max(initial=feeds["k"].shape[1] - 1)) + 1
    feeds = feeds | {"total": np.array(total, np.int32)}
    if "attention_bias" in feeds:
        feeds["attention_bias"] = feeds["attention_bias"][..., :total]
    return contrib("GroupQueryAttention", INPUTS, outputs, options, feeds)


def _flat(x: Array) -> Array:
    """(B, heads, L, D) as (B, L, heads D)."""
    B, heads, L, D = x.shape
    return x.swapaxes(1, 2).reshape(B, L, heads * D)


def _joined(parts: list[Array]) -> Array:
    """Arrays of batch entries, with 0 where one is smaller than another."""
    shape = np.max([x.shape for x in parts], axis=0)
    for axis in range(1, len(shape)):
        parts = [_sized(x, axis, shape[axis]) for x in parts]
    return np.concatenate(parts)


def _sized(x: Array, axis: int, n: int) -> Array:
    """An axis cut, or filled with 0, to n."""
    x = x[(slice(None),) * axis + (slice(n),)]
    fill = [(0, n - x.shape[axis] if a == axis else 0) for a in range(x.ndim)]
    return np.pad(x, fill)


gqa = GroupQueryAttention(
    "onnxruntime com.microsoft.GroupQueryAttention",
    "onnxruntime",
    takes=frozenset({"softcap", "sinks", "rotary", "cache", "bias", "mask", "gqa", "scale"}),
    dtypes=frozenset({"float32", "float16"}),
    outputs=frozenset({"out", "weights"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="nan"),
)
