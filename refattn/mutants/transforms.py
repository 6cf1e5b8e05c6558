"""What q, k and v are made of, wrongly: rotation, the cache of rotated keys, codes and scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..case import Cache, Case
from ..dtypes import round_to
from ..precision import Precision
from ..quantise import BLOCK, Kind
from ..rotary import Rotary
from ..streaming import Rules
from .catalogue import mutant, unequal_lengths, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]
GGML = ("q8_0", "q4_0")


def _rotates(also: Callable[[Case, Rotary], bool]) -> Callable[[Case], bool]:
    return lambda case: case.rotary is not None and also(case, case.rotary)


@mutant(
    "rotary", "vllm#49323 vllm-ascend#12765 gpt-neox#834", _rotates(lambda case, rotary: rotary.dim > 2),
    "rotary_pairing", caught="rotary-scores-f32",
)  # fmt: skip
class rotary_pairs_exchanged(Rules):
    """Coordinates 2i and 2i + 1 are a pair where i and i + dim / 2 should be, and the other way round."""

    def read(self, case: Case) -> Case:
        if case.rotary is None:
            return case
        rotary = dataclasses.replace(case.rotary, interleaved=not case.rotary.interleaved)
        return dataclasses.replace(case, rotary=rotary)


@mutant(
    "rotary", "nanochat#489 ngxson/llama.cpp#59", _rotates(lambda case, rotary: True), "rotary_position",
    caught="cache-rotary-decode-f16",
)  # fmt: skip
class rotary_backwards(Rules):
    """The angles have the other sign."""

    def rotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        return super().rotate(x, cos, -sin, rotary)


@mutant(
    "rotary", "mlx-vlm#1983 executorch#2010 moeut#6", _rotates(lambda case, rotary: unequal_lengths(case)),
    "rotary_position", caught="cache-rotary-decode-f16",
)  # fmt: skip
class rotary_from_0(Rules):
    """Queries are counted from 0, as if there were no keys before them."""

    def query_positions(self, i: Array, lq: Array, lk: Array) -> Array:
        return i


@mutant(
    "rotary", "kekzl/imp#1325 candle#3520", _rotates(lambda case, rotary: case.Lk > 256), "rotary_far",
    caught="rotary-at-33k-bf16",
)  # fmt: skip
class rotary_positions_in_bf16(Rules):
    """The positions of queries have eight bits, as in bfloat16: from 256 on they are rounded."""

    def query_positions(self, i: Array, lq: Array, lk: Array) -> Array:
        at = super().query_positions(i, lq, lk)
        rounded = round_to(at.astype(np.float64), "bfloat16").astype(at.dtype)
        return np.minimum(rounded, np.maximum(lk - 1, 0))


@mutant(
    "rotary", "ComfyUI#15698",
    _rotates(lambda case, rotary: any(lk - lq != case.Lk - case.Lq for lq, lk in zip(*case.lengths, strict=True))),
    "rotary_ragged", caught="rotary-ragged-grad-f64",
)  # fmt: skip
class rotary_from_padded_end(Rules):
    """Queries are counted from the end of the longest sequence of the batch, and not of each."""

    def query_positions(self, i: Array, lq: Array, lk: Array) -> Array:
        return np.asarray(i + np.max(lk - lq, initial=0))


@mutant(
    "rotary", "maxtext#4616 mlx-lm#1698 labscommunity/cascadia#69",
    _rotates(lambda case, rotary: rotary.dim <= case.D - 2), "rotary_partial", caught="shared-rotary-f32",
)  # fmt: skip
class rotary_of_whole_head(Rules):
    """All coordinates are rotated, those beyond dim by the same angles again."""

    def rotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        again = np.arange(x.shape[-1] // 2) % cos.shape[-1]
        return super().rotate(x, cos[..., again], sin[..., again], rotary)


@mutant(
    "rotary", "candle#3568 ngxson/llama.cpp#59 Dao-AILab/flash-attention#569",
    _rotates(lambda case, rotary: wants("dq", "dk")(case)), "rotary_backward", caught="rotary-ragged-grad-f64",
)  # fmt: skip
class rotary_not_undone(Rules):
    """dq and dk are those of the rotated q and k."""

    def unrotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        return x.astype(self.dtype)


def _cached(case: Case, rotary: Rotary) -> bool:
    return isinstance(case.storage, Cache) and case.Lq > 0


@mutant("cache", "kvcache-ai/sglang#66", _rotates(_cached), "cache_rotation", caught="cache-rotary-f64")
class new_keys_unrotated(Rules):
    """Keys are appended, and attended to, as they come."""

    def rotated_before(self, case: Case, past: Array) -> Array:
        return np.full_like(past, True) if isinstance(case.storage, Cache) else past & False


@mutant(
    "cache", "shainet#110", _rotates(lambda case, rotary: _cached(case, rotary) and unequal_lengths(case)),
    "cache_rotation", caught="cache-rotary-f64",
)  # fmt: skip
class cached_keys_rotated_again(Rules):
    """Keys of the cache, which were rotated when they were appended, are rotated once more."""

    def rotated_before(self, case: Case, past: Array) -> Array:
        return np.zeros_like(past)


@mutant(
    "cache", "gpt-neox#363 equinox#704",
    _rotates(lambda case, rotary: _cached(case, rotary) and "k_cache" in case.want), "cache_rotation",
    caught="cache-rotary-f64",
)  # fmt: skip
class cache_gets_unrotated_keys(Rules):
    """Rotated keys are attended to, and unrotated ones are appended."""

    def to_cache(self, turned: Array, plain: Array) -> Array:
        return plain


# codes and scales


def _coded(also: Callable[[Case, Any], bool]) -> Callable[[Case], bool]:
    return lambda case: case.quant is not None and also(case, case.quant)


_UNSCALED = "flashinfer#4979 flashinfer#1023 vllm#51363 sglang#20705"


@mutant("quant", _UNSCALED, _coded(lambda case, quant: True), "descale_dropped", caught="e4m3-paged-1-bf16")
class k_scale_dropped(Rules):
    """The scale of the keys is taken for 1."""

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        return super().dequantise(name, codes, np.ones_like(scale) if name == "k" else scale, kind)


@mutant(
    "quant", _UNSCALED, _coded(lambda case, quant: wants("out")(case)), "descale_dropped", caught="e4m3-paged-1-bf16",
)  # fmt: skip
class v_scale_dropped(Rules):
    """The scale of the values is taken for 1."""

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        return super().dequantise(name, codes, np.ones_like(scale) if name == "v" else scale, kind)


@mutant(
    "quant", "ROCm/rocm-libraries#10474 sgl-kernel-xpu#252 vllm#42580",
    _coded(lambda case, quant: quant.granularity != "tensor" and (case.H if quant.of == "qkv" else case.Hkv) > 1),
    "descale_shared", caught="int8-paged-f16",
)  # fmt: skip
class scale_of_head_0(Rules):
    """All heads have the scale of the first."""

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        return super().dequantise(name, codes, np.broadcast_to(scale[:, :1], scale.shape), kind)


def _blocks(case: Case, quant: Any) -> bool:
    if quant.kind in GGML:
        return max(case.D, case.Dv) > 32
    return bool(quant.granularity == "block" and max(case.Lk, case.Lq if quant.of == "qkv" else 0) > BLOCK)


@mutant("quant", "vllm#38874 llama.cpp#23693 kvcached#435", _coded(_blocks), "code_index", caught="q8-d256-f32")
class scale_of_next_block(Rules):
    """Each block has the scale of the block before it."""

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        return super().dequantise(name, codes, np.roll(scale, 1, axis=3 if kind in GGML else 2), kind)


@mutant(
    "quant", "kekzl/imp#722 1bit-MONSTER#572", _coded(lambda case, quant: quant.kind == "q4_0"), "code_index",
    caught="q4-wide-v-f16",
)  # fmt: skip
class nibbles_interleaved(Rules):
    """A byte of q4_0 is taken for entries 2t and 2t + 1; it holds t and t + 16."""

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        x = super().dequantise(name, codes, scale, kind)
        if kind != "q4_0":
            return x
        return x.reshape(*x.shape[:3], x.shape[3] // 32, 2, 16).swapaxes(-1, -2).reshape(x.shape)


@mutant(
    "quant", "kekzl/imp#722 1bit-MONSTER#572", _coded(lambda case, quant: quant.kind == "q4_0"), "code_index",
    caught="q4-wide-v-f16",
)  # fmt: skip
class nibbles_without_offset(Rules):
    """A nibble n of q4_0 is taken for n; it stands for n - 8."""

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        x = super().dequantise(name, codes, scale, kind)
        return x + np.repeat(8 * scale.astype(x.dtype), 32, axis=3) if kind == "q4_0" else x


@mutant(
    "cache", "onnxruntime-genai#2354", lambda case: isinstance(case.storage, Cache) and case.Lq > 0 and case.B > 0,
    "cache_slot", caught="cache-first-f64",
)  # fmt: skip
class cache_slot_late(Rules):
    """New tokens are appended one slot too late, which leaves a hole."""

    def take(self, case: Case, given: Any) -> dict[str, Array]:
        dense = super().take(case, given)
        for name in "kv" if isinstance(case.storage, Cache) else "":
            for b, n in enumerate(case.lengths[1]):
                past = n - case.Lq
                dense[name][b, :, past] = given[f"{name}_cache"][b, past]
                dense[name][b, :, past + 1 : n] = given[name][b][:, : case.Lq - 1]
        return dense


@mutant(
    "precision", "flashinfer#4979", lambda case: case.quant is not None and case.dtype in ("float16", "bfloat16"),
    "descale_dropped", caught="e4m3-paged-1-bf16", semantic=False,
)  # fmt: skip
class dequantised_to_float8(Rules):
    """Dequantised keys and values are rounded to float8 on the way."""

    def contract(self, precision: Precision) -> Precision:
        return dataclasses.replace(precision, dequantised="float8_e5m2")


@mutant(
    "precision", "sglang#28144", _coded(lambda case, quant: quant.of == "kv" and quant.kind.startswith("float8")),
    "descale_dropped", caught="e4m3-paged-1-bf16", semantic=False,
)  # fmt: skip
class q_cast_to_float8(Rules):
    """Where keys are float8, so is q made, without a scale of its own: it is rounded, and overflows."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if case.quant is not None and case.quant.of == "kv" and case.quant.kind.startswith("float8"):
            dense["q"] = round_to(dense["q"], case.quant.kind).astype(dense["q"].dtype)
        return dense
