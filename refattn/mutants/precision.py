"""Too few bits somewhere that the contract does not say: in sums, products, scores, weights, exp, tanh, outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..case import Case
from ..dtypes import FORMATS, round_to
from ..online import State
from ..precision import Precision, preset
from ..streaming import Rules
from .catalogue import TILES, always, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]
SIXTEEN = ("float16", "bfloat16")


def _of(*dtypes: str) -> Any:
    return lambda case: case.dtype in dtypes


def _weights_in_16_bits(case: Case) -> bool:
    return preset(case.dtype, case.out_dtype).weights in SIXTEEN


def _many_tiles(case: Case) -> bool:
    return case.Lk > TILES.tile_k


# accumulators


@mutant(
    "precision", "llama.cpp#17610 llama.cpp#13975", always, "accumulator_16_bit", caught="one-token-f32",
    semantic=False,
)  # fmt: skip
class bf16_accumulator(Rules):
    """The running output is kept in bfloat16 between tiles."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        return after._replace(o=self.round(after.o, "bfloat16"))


@mutant(
    "precision", "llama.cpp#13975 llama.cpp#17746 ComfyUI#9773", always, "pv_fp16", caught="constant-v-f16",
    semantic=False,
)  # fmt: skip
class pv_in_fp16(Rules):
    """p·v is accumulated in float16, which overflows."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        return after._replace(o=self.round(after.o, "float16"))


@mutant(
    "precision", "llama.cpp#17558 flash-attention#543 tinygrad#4985 MIGraphX#2555 MIGraphX#4677", always, "qk_fp16",
    caught="scores-e4m3", semantic=False,
)  # fmt: skip
class qk_in_fp16(Rules):
    """q·k is held in float16, which overflows, before it is scaled."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        held = self.round(np.asarray(q @ k.T), "float16")
        return self.round(held * self.dtype.type(scale), self.precision.scores)


@mutant("precision", "autoware-ml#95", always, "row_sum_fp16", caught="gqa-mask-per-head-f32", semantic=False)
class row_sum_in_fp16(Rules):
    """The row sum is held in float16 between tiles."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        return after._replace(l=self.round(after.l, "float16"))


@mutant("precision", "jax:without-x64", _of("float64"), "float64_demoted", caught="cache-first-f64", semantic=False)
class float64_in_float32(Rules):
    """Inputs of float64 are computed with in float32."""

    def contract(self, precision: Precision) -> Precision:
        return replace(precision, accumulate="float32") if precision.inputs == "float64" else precision


@mutant("precision", "mlx:test_fast_sdpa", _of("float32"), "tf32", caught="grad-cancelling-f32", semantic=False)
class products_in_tf32(Rules):
    """q and k of float32 are rounded to the ten bits of TF32 before they are multiplied."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        if self.precision.inputs != "float32":
            return super().products(q, k, scale)
        return super().products(_tf32(q), _tf32(k), scale)


def _tf32(x: Array) -> Array:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x).astype(x.dtype)


# scores and weights


@mutant(
    "precision", "transformers:eager_attention_forward", _of(*SIXTEEN), "scores_16_bit", caught="scores-f16-out-bf16",
    semantic=False,
)  # fmt: skip
class scores_in_16_bits(Rules):
    """Scores are rounded to the inputs' 16 bits before softmax, undeclared."""

    def contract(self, precision: Precision) -> Precision:
        return replace(precision, scores=precision.inputs) if precision.inputs in SIXTEEN else precision


@mutant(
    "precision", "transformers:eager_attention_forward", _of(*SIXTEEN), "scores_16_bit", caught="scores-f16-out-bf16",
    semantic=False,
)  # fmt: skip
class eager_undeclared(Rules):
    """Weights are normalised before they are rounded, and scores held in 16 bits: the eager way, undeclared."""

    def contract(self, precision: Precision) -> Precision:
        if precision.inputs not in SIXTEEN:
            return precision
        return replace(precision, scores=precision.inputs, weights_normalised=True)


@mutant("precision", "antirez/h3.c#3", _of(*SIXTEEN), "scores_16_bit", caught="scores-f16-out-bf16", semantic=False)
class q_scaled_in_16_bits(Rules):
    """q times scale is rounded to 16 bits beforehand, undeclared."""

    def contract(self, precision: Precision) -> Precision:
        return replace(precision, scaled_q=precision.inputs) if precision.inputs in SIXTEEN else precision


def _float8(case: Case) -> bool:
    return case.dtype.startswith("float8")


@mutant("precision", "flash-attention#2717", _float8, "p_underflow", caught="cache-e4m3", semantic=False)
class weights_in_float8(Rules):
    """Weights are rounded to float8 before p·v where inputs are, undeclared."""

    def contract(self, precision: Precision) -> Precision:
        narrow = precision.inputs.startswith("float8")
        return replace(precision, weights=precision.inputs) if narrow else precision


@mutant("precision", "Paddle#68689", _weights_in_16_bits, "p_underflow", caught="paged-tree-bf16", semantic=False)
class weights_truncated(Rules):
    """Weights are cut to 16 bits, and not rounded."""

    def weigh(
        self, p: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> tuple[Array, Array]:  # fmt: skip
        sums, _ = super().weigh(p, v, visible, kept)
        cut = p if self.precision.weights not in SIXTEEN else _cut(p, self.precision.weights)
        return sums, super().weigh(cut.astype(p.dtype), v, visible, kept)[1]


def _cut(x: Array, name: str) -> Array:
    """`x` rounded towards zero to a format."""
    near = round_to(x, name).astype(np.float64)
    lower = np.nextafter(near.astype(FORMATS[name].dtype), FORMATS[name].dtype.type(0)).astype(np.float64)
    return np.where(np.abs(near) > np.abs(x.astype(np.float64)), lower, near)


# exp, tanh


@mutant("precision", "mlx#3119", always, "lse_scale", caught="bias-queries-f32", semantic=False)
class log2e_in_bf16(Rules):
    """exp is exp2 with log2(e) rounded to bfloat16: 1.4453 for 1.4427."""

    def exp(self, x: Array, shift: Array) -> Array:
        return np.asarray(np.exp2((x - shift).astype(np.float64) * 1.4453125).astype(self.dtype))


@mutant("precision", "ninetoothed#203", always, "lse_scale", caught="bias-queries-f32", semantic=False)
class log2e_in_fp16(Rules):
    """exp is exp2 with log2(e) rounded to float16: 1.44238 for 1.44270."""

    def exp(self, x: Array, shift: Array) -> Array:
        return np.asarray(np.exp2((x - shift).astype(np.float64) * 1.4423828125).astype(self.dtype))


@mutant(
    "precision", "flash-attention@c2006099", always, "large_logits", caught="mod-softsign-large-bf16", semantic=False,
)  # fmt: skip
class exp_by_a_parabola(Rules):
    """exp2 of the fraction is a polynomial of degree 2, off by 0.2 %."""

    def exp(self, x: Array, shift: Array) -> Array:
        y = (x - shift).astype(np.float64) * np.log2(np.e)
        whole = np.floor(np.where(np.isfinite(y), y, 0))
        f = np.where(np.isfinite(y), y, 0) - whole
        found = np.ldexp(1 + f * (0.6565 + 0.3435 * f), np.clip(whole, -2000, 2000).astype(int))
        return np.asarray(np.where(np.isfinite(y), found, np.exp2(y)).astype(self.dtype))


@mutant("precision", "", always, "large_logits", caught="mod-softsign-large-bf16", semantic=False)
class exp_off_by_4096th(Rules):
    """exp is too large by 2^-12, but for exp(0)."""

    def exp(self, x: Array, shift: Array) -> Array:
        y = super().exp(x, shift)
        return np.where(x == shift, y, y * self.dtype.type(1 + 2.0**-12))


@mutant(
    "precision", "tenstorrent/tt-metal#22807", lambda case: case.softcap is not None, "softcap_dropped",
    caught="scores-f16-out-bf16", semantic=False,
)  # fmt: skip
class tanh_approximate(Rules):
    """tanh is off by 2^-11, as tanh.approx.f32 is, undeclared."""

    def capped(self, s: Array, softcap: float | None) -> tuple[Array, Array | None]:
        capped, in_caps = super().capped(s, softcap)
        return (capped if in_caps is None else capped * self.dtype.type(1 - 2.0**-11)), in_caps


# what is stored


@mutant("precision", "ROCm/aiter#5151", always, "accumulator_16_bit", caught="blocks-x-k-lens-f16", semantic=False)
class stored_truncated(Rules):
    """What is returned is cut to its format, and not rounded."""

    def store(self, x: Array, name: str) -> Array:
        narrow = FORMATS[name].bits < FORMATS[self.precision.accumulate].bits
        return super().store(_cut(x, name) if narrow else x, name)


@mutant(
    "precision", "lmdeploy#403", lambda case: "bfloat16" in (case.dtype, case.out_dtype), "accumulator_16_bit",
    caught="padding-x-decode-bf16", semantic=False,
)  # fmt: skip
class stored_through_fp16(Rules):
    """What is returned in bfloat16 was rounded to float16 before."""

    def store(self, x: Array, name: str) -> Array:
        return super().store(self.round(x, "float16") if name == "bfloat16" else x, name)


@mutant("precision", "cuda:-ftz=true", always, "subnormal", caught="tiny-f32", semantic=False)
class subnormals_flushed(Rules):
    """Subnormal outputs are flushed to zero."""

    def contract(self, precision: Precision) -> Precision:
        return replace(precision, flush_subnormal=True)


# gradients


@mutant(
    "precision", "pytorch:cpu-flash-backward", lambda case: case.dtype in SIXTEEN and wants("dk", "dv")(case),
    "grad_16_bit", caught="padding-x-square-f16", shows="dk dv", semantic=False,
)  # fmt: skip
class dkdv_in_16_bits(Rules):
    """dk and dv are kept in 16 bits from one tile of queries to the next, undeclared."""

    def contract(self, precision: Precision) -> Precision:
        return replace(precision, grad_q_block=16) if precision.inputs in SIXTEEN else precision


@mutant(
    "precision", "pytorch:cpu-flash-backward", lambda case: case.dtype in SIXTEEN and wants("dq")(case), "grad_16_bit",
    caught="grad-keys-4k-bf16", shows="dq", semantic=False,
)  # fmt: skip
class dq_in_16_bits(Rules):
    """dq is kept in 16 bits from one tile of keys to the next, undeclared."""

    def contract(self, precision: Precision) -> Precision:
        return replace(precision, grad_k_block=64) if precision.inputs in SIXTEEN else precision


@mutant(
    "precision", "",
    lambda case: case.dtype in SIXTEEN and wants("dq", "dk", "dbias", "dscale", "dsinks", "dsoftcap")(case),
    "delta_missing", caught="grad-f16", shows="dq dk dbias dscale dsinks dsoftcap", semantic=False,
)  # fmt: skip
class delta_in_bf16(Rules):
    """delta is rounded to bfloat16."""

    def delta(self, out: Array, dout: Array) -> Array:
        found = super().delta(out, dout)
        return self.round(found, "bfloat16") if self.precision.inputs in SIXTEEN else found
