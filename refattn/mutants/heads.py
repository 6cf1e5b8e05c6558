"""Wrong heads, batch entries and strides: the right numbers from the wrong place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case, Dense, Shared, Strided
from ..masks import Causal, Mask, Padding
from ..streaming import Rules
from .catalogue import Wrapped, changed, mutant, wants
from .masks import Seen, has, rewritten, told

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _several_groups(case: Case) -> bool:
    return 1 < case.Hkv < case.H


@mutant("heads", "onnx#7274 jax-js#180 quant.cpp#61", _several_groups, caught="gqa-mask-per-head-f32")
class gqa_tiled(Rules):
    """Key heads are tiled, 0 1 0 1, where they should be repeated, 0 0 1 1."""

    def key_head(self, h: int, H: int, Hkv: int) -> int:
        return h % Hkv


@mutant(
    "heads", "native-sparse-attention-triton#27", lambda case: _several_groups(case) and wants("dk", "dv")(case),
    "gqa_backward", caught="dk-alone-f16", shows="dk dv",
)  # fmt: skip
class gqa_tiled_backward(Rules):
    """dk and dv of a query head are added to key head h % Hkv, for h // (H // Hkv)."""

    def gradient_head(self, h: int, H: int, Hkv: int) -> int:
        return h % Hkv


def _group_is_no_power_of_2(case: Case) -> bool:
    group = case.H // case.Hkv if case.Hkv else 1
    return bool(group & (group - 1)) and case.Hkv > 1


@mutant("heads", "llama.cpp#19115", _group_is_no_power_of_2, "gqa_group", caught="q8-gqa-6-bf16")
class gqa_group_rounded_up(Rules):
    """The size of a group is rounded up to a power of two, so that heads cross into another group."""

    def key_head(self, h: int, H: int, Hkv: int) -> int:
        return h // (1 << (H // Hkv - 1).bit_length())


@mutant(
    "heads", "flash-attention#2528", lambda case: case.H > case.Hkv and case.Lq > 1 and has("Causal(")(case),
    "causal_off_by_one", caught="shared-576-512-bf16",
)  # fmt: skip
class causal_row_by_group(Rules):
    """The row of a causal bound is divided by the size of the group, as if the heads of a group lay in its rows."""

    def read(self, case: Case) -> Case:
        group = case.H // case.Hkv if case.Hkv else 1

        def change(m: Mask) -> Mask:
            return Seen(m, lambda m, b, h, i, j, lq, lk: m(b, h, i // group, j, lq, lk)) if isinstance(m, Causal) else m

        return dataclasses.replace(case, mask=rewritten(case.mask, change))


@mutant("heads", "attorch#14", lambda case: case.Hkv > 1, "head_dropped", caught="drawn-per-head-f32")
class key_head_0(Rules):
    """Every head reads the keys and values of head 0."""

    def key_head(self, h: int, H: int, Hkv: int) -> int:
        return 0


@mutant(
    "heads", "nntile#347", lambda case: _several_groups(case) and wants("out")(case), "heads_transposed",
    caught="gqa-2x2-f32", shows="out",
)  # fmt: skip
class heads_transposed(Wrapped):
    """Heads of the output lie in the order (group, key head) where (key head, group) is meant."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if not case.H:
            return y
        order = np.arange(case.H).reshape(case.Hkv, -1).T.ravel()
        return changed(case, y, "out", lambda x: x[:, order])


@mutant("heads", "flash-attention#772", lambda case: case.B > 1, "batch_dropped", caught="drawn-per-batch-f16")
class keys_of_entry_0(Rules):
    """Every batch entry reads the keys and values of entry 0."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        return dense | {name: np.broadcast_to(dense[name][:1], dense[name].shape) for name in "kv"}


@mutant("heads", "flash-attention#772", lambda case: case.B > 1, "batch_dropped", caught="drawn-per-batch-f16")
class values_of_entry_0(Rules):
    """The batch stride of v is taken for 0."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        return dense | {"v": np.broadcast_to(dense["v"][:1], dense["v"].shape)}


# layout


def _permuted(case: Case) -> bool:
    return isinstance(case.storage, Dense) and case.storage.layout != "BHLD"


@mutant(
    "layout", "pytorch#181133 pytorch#163597 pytorch#187506 FlagGems#5896 flash-attention#2666", _permuted,
    "strides_ignored", caught="hbld-rotary-mod-f32",
)  # fmt: skip
class v_read_as_contiguous(Rules):
    """v is read in the order that it has in memory, whatever its strides."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if isinstance(case.storage, Dense):
            dense["v"] = np.ravel(dense["v"], order="K").reshape(dense["v"].shape)
        return dense


@mutant(
    "layout", "pytorch#181133 FlagGems#5896 torch-spyre#4331", _permuted, "strides_ignored", caught="scores-blhd-f64",
)  # fmt: skip
class q_read_as_contiguous(Rules):
    """q is read in the order that it has in memory, whatever its strides."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if isinstance(case.storage, Dense):
            dense["q"] = np.ravel(dense["q"], order="K").reshape(dense["q"].shape)
        return dense


@mutant(
    "layout", "cudnn-frontend#823", lambda case: case.bias is not None and _permuted(case), "bias_strides",
    caught="bias-strided-f32",
)  # fmt: skip
class bias_read_as_contiguous(Rules):
    """The bias is read in the order that it has in memory, whatever its strides."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if "bias" in dense and isinstance(case.storage, Dense):
            dense["bias"] = np.ravel(dense["bias"], order="K").reshape(dense["bias"].shape)
        return dense


@mutant(
    "layout", "diffusers#14338", lambda case: case.Hkv > 1 and case.Lk > 1, "layout_confused", caught="small-5x3-f32",
)  # fmt: skip
class layout_bshd_for_bhsd(Rules):
    """The memory of k and v is taken for (batch, length, heads, size)."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        for name in "kv":
            B, H, L, D = dense[name].shape
            dense[name] = np.ascontiguousarray(dense[name]).reshape(B, L, H, D).swapaxes(1, 2)
        return dense


def _k_is_not_v(case: Case) -> bool:
    two = min(case.D, case.Dv) > 0 and not isinstance(case.storage, Shared)
    return two and (case.quant is None or case.D == case.Dv)


@mutant("layout", "agentic-flow#191 ik_llama.cpp#1592", _k_is_not_v, "v_is_k", caught="one-token-f32")
class v_is_k(Rules):
    """Keys are used as values."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        k = dense["k"]
        if not _k_is_not_v(case):
            return dense
        return dense | {"v": k[..., np.arange(dense["v"].shape[-1]) % k.shape[-1]]}


@mutant("layout", "triton#2626 jax#24491", lambda case: case.Lk > case.Lq, "one_length", caught="small-1x2-f32")
class as_many_keys_as_queries(Rules):
    """Keys from Lq on are not attended to: one length is used for both."""

    def read(self, case: Case) -> Case:
        first = Padding((case.Lq,) * case.B)
        return dataclasses.replace(case, mask=first if case.mask is None else case.mask & first)


# integers


def _bias_beyond(case: Case) -> bool:
    far = isinstance(case.storage, Strided) and case.bias is not None
    return far and case.B * case.H * case.Lq * _row(case) > 2**32


def _row(case: Case) -> int:
    return max(case.storage.row, case.Lk) if isinstance(case.storage, Strided) else case.Lk


@mutant("width", "pytorch#187227 pytorch#162588", _bias_beyond, "bias_offset_32_bit", caught="far-bias-grad-bf16")
class bias_offsets_of_32_bits(Rules):
    """Row times stride of the bias is a uint32: beyond 2**32 elements it begins again."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if isinstance(case.storage, Strided) and "bias" in dense:
            bias, step = dense["bias"], _row(case)
            rows = bias.reshape(-1, bias.shape[-1])
            dense["bias"] = rows[np.arange(len(rows)) * step % 2**32 // step].reshape(bias.shape)
        return dense


@mutant(
    "width", "Automodel#3802 mlx#2894",
    lambda case: case.Lq * case.Lk > 0 and case.mask is not None and case.Lk > 46341, "position_bits",
    caught="rotary-at-47k-f32",
)  # fmt: skip
class mask_index_of_32_bits(Rules):
    """Query and key of a mask are one index, position times length plus key, in 32 bits."""

    def geometry(self, mask: Any) -> Any:
        def how(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
            length = np.maximum(lk, 1)
            wrapped = ((i + lk - lq) * length + j + 2**31) % 2**32 - 2**31
            return np.asarray(m(b, h, wrapped // length - lk + lq, wrapped % length, lq, lk))

        return told(mask, how)


@mutant("width", "llama.cpp#24912 mlx#2903", lambda case: case.Lk > 2**15, "position_bits", caught="rotary-at-47k-f32")
class keys_wrap_at_32768(Rules):
    """The index of a key has 15 bits: keys from 32,768 on are read from the beginning."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        for name in "kv" if case.Lk > 2**15 else "":
            dense[name] = dense[name][:, :, np.arange(case.Lk) % 2**15]
        return dense

