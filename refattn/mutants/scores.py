"""Wrong scores: scale, softcap, score_mod, and what is returned of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..case import Case
from ..streaming import Logits, Rules
from .catalogue import always, hides, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


@mutant(
    "scale", "Megatron-LM#1501 ROCm/hip-ep#621", lambda case: case.scale is None and case.D % 32 != 0, "scale_from_d",
    caught="one-token-f32",
)  # fmt: skip
class scale_from_padded_D(Rules):
    """The default scale comes from D rounded up to a multiple of 32."""

    def default_scale(self, D: int) -> float:
        return super().default_scale(-(-D // 32) * 32)


@mutant(
    "scale", "juho-lee/set_transformer#18",
    lambda case: case.scale is None and case.D != case.Dv and case.Dv > 0 and (case.D > 0), "scale_from_d",
    caught="shared-576-512-bf16",
)  # fmt: skip
class scale_from_Dv(Rules):
    """The default scale comes from the size of the values."""

    def read(self, case: Case) -> Case:
        ours = case.scale is None and case.Dv > 0 and case.D > 0
        return dataclasses.replace(case, scale=case.Dv**-0.5) if ours else case


@mutant(
    "scale", "attorch#14 metax-vllm#113",
    lambda case: case.scale is not None and case.scale != (case.D**-0.5 if case.D else 1.0), "scale_hard_coded",
    caught="shared-scale-e5m2",
)  # fmt: skip
class scale_ignored(Rules):
    """The scale is D**-0.5, whatever is passed."""

    def read(self, case: Case) -> Case:
        return dataclasses.replace(case, scale=None)


@mutant(
    "scale", "onnxruntime:MultiHeadAttention", lambda case: case.scale == 0, "scale_zero", caught="scores-scale-0-f32",
)  # fmt: skip
class scale_0_is_default(Rules):
    """A scale of 0 is taken for the default."""

    def read(self, case: Case) -> Case:
        return dataclasses.replace(case, scale=case.scale or None)


@mutant(
    "scale", "onnx:reference-implementation-of-Attention-23", always, "scale_negative",
    caught="scores-negative-scale-f16", equal="where scale > 0, up to a rounding",
)  # fmt: skip
class scale_by_square_roots(Rules):
    """q and k are each multiplied by sqrt(scale), which is NaN where scale is negative."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        root = np.sqrt(self.dtype.type(scale))
        return super().products(q * root, k * root, 1.0)


@mutant(
    "scale", "mlx#3119 tenstorrent/tt-metal#53217", lambda case: case.scale != 0, "scale_hard_coded",
    caught="shared-scale-e5m2", equal="out and gradients in 16 bits, up to the bound",
)  # fmt: skip
class scale_off_by_a_thousandth(Rules):
    """The scale is 0.1 % too large."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        return super().products(q, k, scale * 1.001)


@mutant("scale", "sgl-kernel-xpu#491", lambda case: case.softcap is not None, caught="scores-f16-out-bf16")
class softcap_dropped(Rules):
    """Softcap is accepted and not applied."""

    def capped(self, s: Array, softcap: float | None) -> tuple[Array, Array | None]:
        return s, None


@mutant(
    "scale", "onnx#7865 onnx#7867 flash-attention#1025",
    lambda case: case.softcap is not None and (hides(case) or case.score_mod is not None),
    caught="scores-softcap-bias-window-bf16",
)  # fmt: skip
class softcap_after_mask(Rules):
    """Softcap comes last and turns -inf into -softcap: what is hidden leaks."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        plain = super().logits(s, None, bias, visible, modify)
        return Logits(*self.capped(plain.t, softcap), plain.before)


@mutant(
    "scale", "emmtrix/emx-onnx-cgen#731 onnx#7913", lambda case: case.softcap is not None and case.bias is not None,
    caught="scores-softcap-bias-causal-f32",
)  # fmt: skip
class softcap_after_bias(Rules):
    """Softcap caps the scores with their bias."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        if softcap is None or bias is None:
            return super().logits(s, softcap, bias, visible, modify)
        return super().logits(s + bias, softcap, None, visible, modify)


@mutant(
    "scale", "unslothai/unsloth-zoo#593", lambda case: case.softcap is not None, "softcap_dropped",
    caught="scores-f16-out-bf16",
)  # fmt: skip
class softcap_not_multiplied_back(Rules):
    """Softcap is tanh(s / softcap), without the factor softcap."""

    def capped(self, s: Array, softcap: float | None) -> tuple[Array, Array | None]:
        capped, in_caps = super().capped(s, softcap)
        return (capped if in_caps is None else np.tanh(in_caps)), in_caps


@mutant("scale", "", lambda case: case.softcap is not None, "softcap_dropped", caught="scores-f16-out-bf16")
class softcap_clips(Rules):
    """Scores are clipped at softcap, and not bent."""

    def capped(self, s: Array, softcap: float | None) -> tuple[Array, Array | None]:
        _, in_caps = super().capped(s, softcap)
        return (s if softcap is None else np.clip(s, -softcap, softcap)), in_caps


# score_mod: the slopes of "relative", "distance" and "staircase" are 1


def _modified(*but: str) -> Any:
    return lambda case: case.score_mod is not None and case.score_mod not in but


@mutant(
    "score_mod", "onnx#7865 emmtrix/emx-onnx-cgen#731", lambda case: _modified()(case) and case.softcap is not None,
    "score_mod_ignored", caught="scores-mod-f64",
)  # fmt: skip
class mod_before_softcap(Rules):
    """The modifier sees the scores before they are capped, and softcap caps what it makes of them."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        before = None if modify is None else s
        plain = super().logits(s if modify is None else modify(s), softcap, bias, visible)
        return plain._replace(before=before)


@mutant(
    "score_mod", "emmtrix/emx-onnx-cgen#731", lambda case: _modified()(case) and case.bias is not None,
    "score_mod_ignored", caught="mod-softcap-bias-bf16",
)  # fmt: skip
class mod_after_bias(Rules):
    """The modifier sees the scores with their bias."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        if modify is None or bias is None:
            return super().logits(s, softcap, bias, visible, modify)
        return super().logits(s, softcap, None, visible, lambda capped: modify(capped + bias))


@mutant("score_mod", "torch-xpu-ops#1444", lambda case: case.score_mod is not None, caught="scores-mod-f64")
class score_mod_ignored(Rules):
    """The modifier of the scores is accepted and not applied."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        return super().logits(s, softcap, bias, visible)


@mutant(
    "score_mod", "flash-attention#2654 flash-attention#1937",
    lambda case: case.H > 1 and case.score_mod in ("distance", "tilt"), "score_mod_indices",
    caught="mod-tilt-batch-f32",
)  # fmt: skip
class mod_of_head_0(Rules):
    """The modifier is told head 0 for all heads."""

    def place(self, b: Any, h: Any, i: Any, j: Any) -> tuple[Any, Any, Any, Any]:
        return b, h * 0, i, j


@mutant(
    "score_mod", "attention-gym#86 flash-attention#2137",
    lambda case: case.score_mod == "relative" and (case.Lq > 1 or case.Lk > 1), "score_mod_indices",
    caught="mod-k-lens-decode-f16",
)  # fmt: skip
class mod_transposed(Rules):
    """The modifier is told the query's index as the key's, and the key's as the query's."""

    def place(self, b: Any, h: Any, i: Any, j: Any) -> tuple[Any, Any, Any, Any]:
        return b, h, j, i


@mutant(
    "score_mod", "pytorch#185991 flash-attention#2654",
    lambda case: _modified("relative", "distance", "staircase")(case) and wants("dq", "dk", "dscale", "dsoftcap")(case),
    "score_mod_slope", caught="dsoftcap-mod-f32",
)  # fmt: skip
class mod_slope_missing(Rules):
    """The backward goes through the modifier as if its slope were 1."""

    def through_mod(self, dt: Array, slope: Array) -> Array:
        return dt


# what is returned of the scores


def _unlike(case: Case) -> bool:
    return hides(case) and wants("capped", "biased")(case)


@mutant(
    "matrices", "onnx#7913 onnxruntime#28379 emmtrix/emx-onnx-cgen#731", _unlike, "scores_stage",
    caught="scores-drawn-f32",
)  # fmt: skip
class stages_exchanged(Rules):
    """The scores after softcap are returned for those after bias and mask, and the other way round."""

    def stages(self, scores: Array, capped: Array, biased: Array, weights: Array) -> dict[str, Array]:
        return super().stages(scores, biased, capped, weights)


@mutant("matrices", "flash-attention#902 flash-attention#106", wants("weights"), caught="scores-all-masked-f16")
class weights_unnormalised(Rules):
    """The weights returned are exp(t - m), not divided by their sum."""

    def stages(self, scores: Array, capped: Array, biased: Array, weights: Array) -> dict[str, Array]:
        peak = np.max(biased, axis=1, keepdims=True, initial=-np.inf)
        return super().stages(scores, capped, biased, np.exp(biased - np.where(np.isfinite(peak), peak, 0)))
