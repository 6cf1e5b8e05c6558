"""Wrong sums of parts: splits that are merged, the sink, and the lse that is handed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import online
from ..case import Case, Packed
from ..memory import take_answer
from ..online import State
from ..streaming import Rules
from .catalogue import SPLITS, Wrapped, always, changed, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _split(case: Case) -> bool:
    return case.Lk > SPLITS.tile_k


# splits


@mutant("merge", "ring-flash-attention#20", always, "merge_plain", caught="tail-4-f16", schedule=SPLITS)
class merge_by_average(Rules):
    """The outputs of two splits are averaged, whatever their sums."""

    def merge(self, a: State, b: State) -> State:
        both = super().merge(a, b)
        some = np.stack([a.l > 0, b.l > 0]).sum(0)
        halves = sum(np.where(x.l > 0, 1 / np.where(x.l > 0, x.l, 1), 0)[:, None] * x.o for x in (a, b))
        return both._replace(o=halves / np.maximum(some, 1)[:, None] * both.l[:, None])


@mutant("merge", "ring-flash-attention#20", _split, "merge_plain", caught="tail-4-f16", schedule=SPLITS)
class merge_without_weights(Rules):
    """The sums and outputs of two splits are added as they are, each relative to its own maximum."""

    def merge(self, a: State, b: State) -> State:
        return State(np.maximum(a.m, b.m), a.l + b.l, a.o + b.o)


@mutant(
    "merge", "flashinfer#2113 sglang#35045 tokenspeed#571 FlashMLA#106", _split, "merge_plain", caught="tail-4-f16",
    schedule=SPLITS,
)  # fmt: skip
class merge_in_base_2(Rules):
    """Splits whose maxima are natural are merged by powers of 2."""

    def merge(self, a: State, b: State) -> State:
        def exp2(x: Array, shift: Array) -> Array:
            return np.asarray(np.exp2((x - shift).astype(np.float64)).astype(self.dtype))

        return online.merge(a, b, exp2)


@mutant("merge", "flash-attention#2388", _split, "merge_plain", caught="tail-4-f16", schedule=SPLITS)
class merge_exchanges_maxima(Rules):
    """Each split is weighted by the other's maximum: it is read with the wrong stride."""

    def merge(self, a: State, b: State) -> State:
        both = (a.l > 0) & (b.l > 0)
        return super().merge(a._replace(m=np.where(both, b.m, a.m)), b._replace(m=np.where(both, a.m, b.m)))


@mutant("merge", "tilelang#2010", _split, "merge_plain", caught="tail-4-f16", schedule=SPLITS)
class last_split_alone(Rules):
    """Only the last split is returned."""

    def merge(self, a: State, b: State) -> State:
        return b


@mutant("merge", "", always, "lse_16_bit", caught="blocks-x-out-f32-f16", semantic=False, schedule=SPLITS)
class merge_of_16_bit_maxima(Rules):
    """The maxima of splits are handed over in bfloat16."""

    def merge(self, a: State, b: State) -> State:
        return super().merge(a._replace(m=self.round(a.m, "bfloat16")), b._replace(m=self.round(b.m, "bfloat16")))


@mutant(
    "precision", "llama.cpp#17610 ring-flash-attention#22", always, "accumulator_16_bit", caught="one-token-f32",
    semantic=False, schedule=SPLITS,
)  # fmt: skip
class bf16_merge(Rules):
    """The output is rounded to bfloat16 at each merge of splits."""

    def merge(self, a: State, b: State) -> State:
        both = super().merge(a, b)
        return both._replace(o=self.round(both.o, "bfloat16"))


@mutant(
    "packed", "pytorch#194167 flash-attention#2550 vllm-project/flash-attention#176",
    lambda case: isinstance(case.storage, Packed) and case.B > 1 and wants("out")(case), "packed_leak",
    caught="packed-dv-wide-f32", shows="out", schedule=SPLITS,
)  # fmt: skip
class merged_without_batch_stride(Wrapped):
    """Where splits are merged, every packed sequence is written from row 0 on, over those before it."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if not isinstance(case.storage, Packed) or "out" not in y:
            return y
        out = np.zeros_like(y["out"])
        for rows, n in zip(take_answer(case, "out", y["out"]), case.lengths[0], strict=True):
            out[:n] = rows[:, :n].swapaxes(0, 1)
        return y | {"out": out}


# the sink


def _sinks(case: Case) -> bool:
    return case.sinks is not None


@mutant("merge", "kekzl/imp#1303 kekzl/imp#1345 vllm-metal#550", _sinks, caught="no-keys-sinks-bf16")
class sinks_dropped(Rules):
    """The sink does not join the denominator."""

    def sink(self, sinks: Array, h: int) -> Array | None:
        return None


@mutant("merge", "kekzl/imp#1303", _sinks, "sinks_per_split", caught="no-keys-sinks-bf16", schedule=SPLITS)
class sinks_per_split(Rules):
    """The sink joins the denominator once in each split."""

    def sink(self, sinks: Array, h: int) -> Array | None:
        return np.asarray(sinks[h] + np.log(self.schedule.splits), self.dtype)


@mutant("merge", "kekzl/imp#1303", _sinks, "sinks_per_split", caught="no-keys-sinks-bf16")
class sinks_twice(Rules):
    """The sink joins the denominator twice."""

    def sink(self, sinks: Array, h: int) -> Array | None:
        return np.asarray(sinks[h] + np.log(2.0), self.dtype)


@mutant("merge", "ROCm/rocm-libraries#12227", _sinks, "sinks_dropped", caught="no-keys-sinks-bf16")
class sinks_in_base_2(Rules):
    """The sink joins scores that are in base 2 as it is, not times log2(e): it counts 2**sink, for e**sink."""

    def sink(self, sinks: Array, h: int) -> Array | None:
        return np.asarray(sinks[h] * np.log(2.0), self.dtype)


@mutant(
    "merge", "vllm#9136 hpc-ops#6", lambda case: _sinks(case) and case.H > 1, "sinks_dropped",
    caught="no-keys-sinks-bf16",
)  # fmt: skip
class sinks_of_next_head(Rules):
    """Each head has the sink of the next."""

    def sink(self, sinks: Array, h: int) -> Array | None:
        return super().sink(sinks, (h + 1) % len(sinks))


@mutant(
    "merge", "kekzl/imp#1303", lambda case: _sinks(case) and wants("lse")(case), "sinks_in_lse",
    caught="k-lens-0-sinks-br-f16", shows="lse",
)  # fmt: skip
class sinks_not_in_lse(Wrapped):
    """lse lacks the sink, though the output has it."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if case.sinks is None or "lse" not in y:
            return y
        return y | self(dataclasses.replace(case, sinks=None, want=frozenset({"lse"})), _without(given, "sinks"))


def _without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {n: x for n, x in given.items() if n != name}


# lse


@mutant(
    "merge", "flashinfer#2113 flashinfer#4485 sglang#35045 pytorch#181645", wants("lse"), caught="one-token-f32",
    shows="lse",
)  # fmt: skip
class lse_base_2(Rules):
    """lse is left as log2 of the sum."""

    def lse(self, lse: Array) -> Array:
        return lse * self.dtype.type(np.log2(np.e))


@mutant("merge", "FlashMLA#106", always, "lse_scale", caught="bias-queries-f32")
class lse_without_maximum(Rules):
    """lse is log l: the maximum that was subtracted is not added again."""

    def finish(self, state: State) -> tuple[Array, Array]:
        out, _ = super().finish(state)
        return out, np.log(state.l)


@mutant(
    "merge", "vllm-project/flash-attention#34 FlashMLA#106",
    lambda case: wants("lse")(case) and case.scale != 1 and (case.scale is not None or case.D > 1), "lse_scale",
    caught="bias-queries-f32", shows="lse",
)  # fmt: skip
class lse_of_unscaled_scores(Wrapped):
    """lse is that of scores without the scale."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        if "lse" not in y or case.scale == 1:
            return y
        return y | self(dataclasses.replace(case, scale=1.0, want=frozenset({"lse"})), given)


@mutant(
    "merge", "hpc-ops#6", lambda case: wants("lse")(case) and case.H > 1, "lse_head", caught="heads-16-f64",
    shows="lse",
)  # fmt: skip
class lse_of_first_head_of_group(Wrapped):
    """lse of each head is that of the first of its group, or without groups of head 0."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        group = case.H // case.Hkv if case.H != case.Hkv else case.H
        return changed(case, y, "lse", lambda x: x[:, np.arange(case.H) // group * group]) if case.H else y


@mutant(
    "precision", "jax:nn.dot_product_attention", wants("lse"), "lse_16_bit", caught="lse-alone-tree-bf16", shows="lse",
    semantic=False,
)  # fmt: skip
class lse_in_bf16(Rules):
    """lse is rounded to bfloat16."""

    def lse(self, lse: Array) -> Array:
        return self.round(lse, "bfloat16")


@mutant(
    "precision", "jax:nn.dot_product_attention",
    lambda case: wants("lse")(case) and case.dtype in ("float16", "bfloat16"), "lse_16_bit",
    caught="lse-alone-tree-bf16", shows="lse", semantic=False,
)  # fmt: skip
class lse_has_dtype_of_keys(Wrapped):
    """lse is returned in the dtype of the keys."""

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        narrow = case.dtype in ("float16", "bfloat16") and "lse" in y
        return {**y, "lse": y["lse"].astype(y["out"].dtype if "out" in y else given["k"].dtype)} if narrow else y
