"""Memory read from the wrong place: packed sequences, pages, shared values, far rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Cache, Case, Dense, Packed, Paged, Shared, Strided
from ..masks import Causal, Padding, Window
from ..streaming import Rules
from .catalogue import Kernel, Wrapped, mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _starts(case: Case) -> bool:
    """Whether an entry's keys start elsewhere than its queries."""
    q_lens, k_lens = case.lengths
    return any(sum(q_lens[:b]) != sum(k_lens[:b]) for b in range(case.B))


@mutant(
    "packed", "vllm-omni#3525", lambda case: isinstance(case.storage, Packed) and _starts(case), "packed_leak",
    caught="packed-bias-grad-f32",
)  # fmt: skip
class keys_from_cu_seqlens_q(Rules):
    """The keys of a packed sequence are looked for where its queries start."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if isinstance(case.storage, Packed) and len(given["k"]):
            at = given["cu_seqlens_q"][:-1, None] + np.arange(case.Lk)
            for name in "kv":
                dense[name] = given[name][np.minimum(at, len(given[name]) - 1)].swapaxes(1, 2)
        return dense


def _partly_filled(case: Case) -> bool:
    return isinstance(case.storage, Paged) and any(n % case.storage.page_size and n < case.Lk for n in case.lengths[1])


@mutant(
    "paged", "pytorch#160861 vllm#47305 hw-native-sys/simpler#72", _partly_filled, "page_table_end",
    caught="paged-16-decode-bf16",
)  # fmt: skip
class page_tail_read(Rules):
    """The length is rounded up to whole pages: what is left of the last page is read."""

    def read(self, case: Case) -> Case:
        if not isinstance(case.storage, Paged) or case.k_lens is None:
            return case
        size = case.storage.page_size
        return dataclasses.replace(case, k_lens=tuple(min(-(-n // size) * size, case.Lk) for n in case.k_lens))


def _ends_with_page(n: int, case: Case) -> bool:
    return isinstance(case.storage, Paged) and 0 < n < case.Lk and n % case.storage.page_size == 0


@mutant(
    "paged", "pegainfer-project/pegainfer#291", lambda case: any(_ends_with_page(n, case) for n in case.lengths[1]),
    "page_table_end", caught="int8-paged-f16",
)  # fmt: skip
class page_after_full_one(Wrapped):
    """Where the last page of a sequence is full, the page that is kept for the next token is read too."""

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        if not isinstance(case.storage, Paged) or case.k_lens is None:
            return case, given
        more = (case.storage.page_size * _ends_with_page(n, case) for n in case.k_lens)
        lens = tuple(min(n + new, case.Lk) for n, new in zip(case.k_lens, more, strict=True))
        table = np.maximum(given["block_table"], 0)
        return dataclasses.replace(case, k_lens=lens), {**given, "block_table": table}


@mutant("paged", "hw-native-sys/pypto#470", lambda case: isinstance(case.storage, Paged), caught="scores-paged-f16")
class pages_in_order(Rules):
    """Pages are taken one after the other, without the table."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        if isinstance(case.storage, Paged):
            table = np.arange(given["block_table"].size).reshape(given["block_table"].shape)
            given = {**given, "block_table": table % len(given["k"])}
        return super().take(case, given)


@mutant(
    "paged", "quic/efficient-transformers#1209 ROCm/rocm-libraries#10474",
    lambda case: isinstance(case.storage, Paged) and case.B > 1, "page_table_row", caught="paged-tree-bf16",
)  # fmt: skip
class pages_of_entry_0(Rules):
    """All batch entries have the pages of the first."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        if isinstance(case.storage, Paged):
            first = np.maximum(given["block_table"][:1], 0)
            given = {**given, "block_table": np.broadcast_to(first, given["block_table"].shape)}
        return super().take(case, given)


@mutant(
    "shared", "ik_llama.cpp#2031 vllm#40705",
    lambda case: isinstance(case.storage, Shared) and case.Dv < case.D and wants("out")(case), "latent_rows",
    caught="shared-scale-e5m2",
)  # fmt: skip
class v_from_last_columns(Rules):
    """v is taken for the last columns of k; it is the first."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if isinstance(case.storage, Shared):
            dense["v"] = dense["k"][..., case.D - case.Dv :]
        return dense


def _rows_beyond(case: Case) -> bool:
    """Whether some row of q, k, v, bias or dout begins beyond 2**31 elements."""
    if not isinstance(case.storage, Strided):
        return False
    rows = case.B * max(case.H * case.Lq, case.Hkv * case.Lk)
    return rows * max(case.storage.row, case.D, case.Dv, case.Lk) > 2**31


@mutant(
    "strided", "pytorch#187227 flash-attention#1500 flash-attention#2260", _rows_beyond, "offset_32_bit",
    caught="far-heads-f16",
)  # fmt: skip
class offsets_of_32_bits(Rules):
    """The offset of a row is an int32 whose sign is lost: beyond 2**31 elements it begins again."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if isinstance(case.storage, Strided):
            for name in (n for n in ("q", "k", "v", "bias", "dout") if n in dense):
                x = dense[name]
                step = max(case.storage.row, x.shape[3])
                rows = x.reshape(-1, x.shape[3])
                dense[name] = rows[np.arange(len(rows)) * step % 2**31 // step].reshape(x.shape)
        return dense


# packed sequences


def _as_one(case: Case) -> bool:
    """Whether a packed case can be computed as if it were one sequence."""
    simple = case.mask is None or isinstance(case.mask, (Causal, Window))
    plain = case.bias is case.dropout is case.rotary is case.quant is None
    return isinstance(case.storage, Packed) and case.B > 1 and simple and plain


@mutant("packed", "NeMo-RL#2105", _as_one, "packed_leak", caught="packed-dv-wide-f32")
class packed_as_one_sequence(Kernel):
    """cu_seqlens is lost: all packed tokens are of one sequence."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        if not _as_one(case):
            return super().__call__(case, given)
        tokens = {n: given[n].swapaxes(0, 1)[None] for n in ("q", "k", "v", "dout") if n in given}
        tokens |= {"dlse": given["dlse"][None]} if "dlse" in given else {}
        lengths = {"Lq": tokens["q"].shape[2], "Lk": tokens["k"].shape[2], "q_lens": None, "k_lens": None}
        one = dataclasses.replace(case, B=1, storage=Dense(), **lengths)
        y = super().__call__(one, {**given, **tokens})
        return {n: x[0].swapaxes(0, 1) if x.ndim == 4 else x[0] if n == "lse" else x for n, x in y.items()}


@mutant(
    "packed", "flash-attention#2324 TransformerEngine#3333",
    lambda case: isinstance(case.storage, Packed) and case.storage.gap > 0 and case.B > 1, "packed_gap",
    caught="packed-gap-grad-f16",
)  # fmt: skip
class gaps_not_counted(Rules):
    """The keys of packed sequences are looked for as if there were no gaps between them."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if not isinstance(case.storage, Packed) or not case.storage.gap:
            return dense
        starts = np.concatenate([[0], np.cumsum(case.lengths[1])[:-1]]).astype(int)
        at = np.minimum(starts[:, None] + np.arange(case.Lk), len(given["k"]) - 1)
        return dense | {name: given[name][at].swapaxes(1, 2) for name in "kv"}


# pages


@mutant(
    "paged", "flashinfer#4347 ROCm/aiter#200",
    lambda case: isinstance(case.storage, Paged) and case.storage.page_size != 16 and case.Lk > 0, "page_size",
    caught="e4m3-paged-1-bf16",
)  # fmt: skip
class pages_of_16(Rules):
    """Pages are taken to hold 16 tokens, whatever their size."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if not isinstance(case.storage, Paged) or not len(given["k"]):
            return dense
        table, j = given["block_table"], np.arange(case.Lk)
        page = np.maximum(table[:, np.minimum(j // 16, table.shape[1] - 1)], 0)
        slot = j % 16 % case.storage.page_size
        return dense | {name: given[name][page, slot].swapaxes(1, 2) for name in "kv"}


@mutant(
    "paged", "vllm#5412",
    lambda case: isinstance(case.storage, Paged) and any(n % case.storage.page_size for n in case.lengths[1]),
    "page_table_end", caught="paged-empty-f32",
)  # fmt: skip
class last_page_dropped(Rules):
    """The last page is not attended to unless it is full."""

    def read(self, case: Case) -> Case:
        if not isinstance(case.storage, Paged):
            return case
        size = case.storage.page_size
        whole = Padding(tuple(n // size * size for n in case.lengths[1]))
        return dataclasses.replace(case, mask=whole if case.mask is None else case.mask & whole)


# caches


def _appends(case: Case) -> bool:
    return isinstance(case.storage, Cache) and case.Lq > 0 and case.B > 0


@mutant(
    "cache", "onnxruntime#27791", lambda case: _appends(case) and any(n > case.Lq for n in case.lengths[1]),
    "cache_chunk", caught="cache-f32",
)  # fmt: skip
class past_ignored(Rules):
    """Only the new tokens are attended to, and not those of the cache."""

    def read(self, case: Case) -> Case:
        if not isinstance(case.storage, Cache):
            return case
        past = ~Padding(tuple(n - case.Lq for n in case.lengths[1]))
        return dataclasses.replace(case, mask=past if case.mask is None else case.mask & past)


@mutant(
    "cache", "flash-attention#772", lambda case: _appends(case) and case.B > 1, "cache_slot", caught="cache-first-f64",
)  # fmt: skip
class cache_of_entry_before(Rules):
    """New tokens are appended to the cache of the entry before, at this one's length."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        for name in "kv" if isinstance(case.storage, Cache) else "":
            for b, n in enumerate(case.lengths[1]):
                dense[name][b, :, n - case.Lq : n] = given[name][(b + 1) % case.B]
        return dense


@mutant(
    "cache", "flash-attention#638 flash-attention#772",
    lambda case: _appends(case) and any(n > case.Lq for n in case.lengths[1]), "cache_slot", caught="cache-alone-bf16",
)  # fmt: skip
class cache_slot_early(Rules):
    """New tokens are appended one slot too early: over the last one of the cache."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        for name in "kv" if isinstance(case.storage, Cache) else "":
            for b, n in enumerate(case.lengths[1]):
                if n > case.Lq:
                    dense[name][b, :, n - case.Lq - 1 : n - 1] = given[name][b]
        return dense


@mutant(
    "shared", "ik_llama.cpp#2031",
    lambda case: isinstance(case.storage, Shared) and case.Dv < case.D and case.Lk > 1 and wants("out")(case),
    "latent_rows", caught="shared-scale-e5m2",
)  # fmt: skip
class v_rows_stepped_by_Dv(Rules):
    """Rows of v, a part of k, are stepped by Dv elements, and not by D."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        dense = super().take(case, given)
        if isinstance(case.storage, Shared):
            k = np.ascontiguousarray(dense["k"])
            flat = k.reshape(*k.shape[:2], -1)
            dense["v"] = flat[..., : case.Lk * case.Dv].reshape(*k.shape[:3], case.Dv)
        return dense
