"""A wrong bias: dropped, scaled, broadcast along another dimension; and ALiBi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..alibi import alibi, slopes
from ..case import Case
from ..streaming import Logits, Rules
from ..visibility import Align
from .catalogue import mutant

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _bias(case: Case) -> bool:
    return case.bias is not None


@mutant("bias", "onnxruntime#26766", _bias, caught="lse-alone-f16")
class bias_dropped(Rules):
    """The bias is accepted and not added."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        return super().logits(s, softcap, None, visible, modify)


@mutant("bias", "attention-gym#86", _bias, "bias_dropped", caught="lse-alone-f16")
class bias_subtracted(Rules):
    """The bias is subtracted."""

    def logits(
        self, s: Array, softcap: float | None, bias: Array | None, visible: Array | None, modify: Any = None
    ) -> Logits:
        return super().logits(s, softcap, None if bias is None else -bias, visible, modify)


def _scaled(case: Case) -> bool:
    return _bias(case) and case.scale != 1 and (case.scale is not None or case.D > 1)


@mutant("bias", "TransformerEngine:pre_scale_bias", _scaled, caught="e5m2-bias-f16")
class bias_scaled(Rules):
    """The bias is multiplied by the scale, as the scores are."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if "bias" not in dense:
            return dense
        scale = self.default_scale(case.D) if case.scale is None else case.scale
        bias = np.asarray(dense["bias"], np.float64)
        return dense | {"bias": np.where(np.isneginf(bias), bias, bias * scale)}


def _over(axis: int) -> Any:
    return lambda case: _bias(case) and case.bias_shape[axis] > 1


def _first(x: Array, axis: int) -> Array:
    """The first along an axis, for all."""
    return np.broadcast_to(np.take(x, [0], axis), x.shape)


@mutant("bias", "onnxruntime#26766 onnxruntime#26715", _over(1), "bias_broadcast", caught="bias-queries-f32")
class bias_of_head_0(Rules):
    """The bias of head 0 is used for all heads."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        return dense | {"bias": _first(dense["bias"], 1)} if _over(1)(case) else dense


@mutant("bias", "onnxruntime#26715", _over(2), "bias_broadcast", caught="bias-queries-f32")
class bias_of_row_0(Rules):
    """The bias of the first query is used for all queries: its row stride is taken for 0."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        return dense | {"bias": _first(dense["bias"], 2)} if _over(2)(case) else dense


@mutant("bias", "onnxruntime#26715", _over(0), "bias_broadcast", caught="bias-keys-f32")
class bias_of_entry_0(Rules):
    """The bias of the first batch entry is used for all."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        return dense | {"bias": _first(dense["bias"], 0)} if _over(0)(case) else dense


@mutant(
    "bias", "onnxruntime#26715", lambda case: _bias(case) and max(case.bias_shape[:2]) == 1 < min(case.bias_shape[2:]),
    "bias_broadcast", caught="dilated-x-bias-f32",
)  # fmt: skip
class bias_transposed(Rules):
    """A bias of queries and keys is read with rows and columns exchanged."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if "bias" in dense and max(case.bias_shape[:2]) == 1 < min(case.bias_shape[2:]):
            dense["bias"] = np.ascontiguousarray(dense["bias"].swapaxes(2, 3)).reshape(dense["bias"].shape)
        return dense


# ALiBi: the array is what the slopes and distances of the case make; a kernel that makes its own may err


def _alibi(case: Case) -> bool:
    return case.bias is not None and case.bias.family in ("alibi", "alibi_signed")


def _own(case: Case, of_heads: Array, align: Align = "bottom_right") -> Array:
    """The bias of a case's family from other slopes, or another diagonal."""
    signed = case.bias is not None and case.bias.family == "alibi_signed"
    _, h, i, j = case.bias_shape
    lengths = max(case.Lq, 1), max(case.Lk, 1)
    whole = alibi(of_heads, *lengths, "signed", "top_left") if signed else alibi(of_heads, *lengths, align=align)
    return np.broadcast_to(whole[:h, :i, :j], case.bias_shape)


def _not_power_of_2(case: Case) -> bool:
    return _alibi(case) and bool(case.H & (case.H - 1)) and case.bias_shape[1] > 1


@mutant("bias", "mlx#343 transformers#28380", _not_power_of_2, "alibi_slopes", caught="alibi-decode-bf16")
class alibi_slopes_of_formula(Rules):
    """The slopes of ALiBi are 2**(-8 (h + 1) / H) where H is no power of two, too."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if _not_power_of_2(case):
            dense["bias"] = _own(case, 2.0 ** (-8 * np.arange(1, case.H + 1) / case.H))
        return dense


@mutant(
    "bias", "vllm#9136", lambda case: _alibi(case) and case.bias_shape[1] > 1, "alibi_slopes",
    caught="alibi-decode-bf16",
)  # fmt: skip
class alibi_slopes_of_next_head(Rules):
    """Each head has the slope of the next."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if _alibi(case) and case.bias_shape[1] > 1:
            dense["bias"] = _own(case, np.roll(slopes(case.H), -1))
        return dense


def _absolute(case: Case) -> bool:
    return case.bias is not None and case.bias.family == "alibi" and case.Lq != case.Lk


@mutant(
    "bias", "keras-hub#2861 vllm#945", _absolute, "alibi_distance", caught="paged-alibi-f32",
    equal="out, under a causal mask: there the two distances differ by a constant of the row, which softmax forgets",
)  # fmt: skip
class alibi_from_0(Rules):
    """The distance of ALiBi is |i - j|: the offset lk - lq of the cached keys is lost."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if _absolute(case):
            dense["bias"] = _own(case, slopes(max(case.H, 1)), "top_left")
        return dense
