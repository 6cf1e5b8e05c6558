"""Memory read from the wrong place: packed sequences, pages, shared values, far rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case, Packed, Paged, Shared, Strided
from ..streaming import Rules
from .catalogue import mutant, wants

__all__: list[str] = []

Array = np.ndarray[Any, Any]


def _starts(case: Case) -> bool:
    """Whether an entry's keys start elsewhere than its queries."""
    q_lens, k_lens = case.lengths
    return any(sum(q_lens[:b]) != sum(k_lens[:b]) for b in range(case.B))


@mutant("packed", "vllm-omni#3525", lambda case: isinstance(case.storage, Packed) and _starts(case), "packed_leak")
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


@mutant("paged", "pytorch#160861 vllm#47305 hw-native-sys/simpler#72", _partly_filled, "page_table_end")
class page_tail_read(Rules):
    """The length is rounded up to whole pages: what is left of the last page is read."""

    def read(self, case: Case) -> Case:
        if not isinstance(case.storage, Paged) or case.k_lens is None:
            return case
        size = case.storage.page_size
        return dataclasses.replace(case, k_lens=tuple(min(-(-n // size) * size, case.Lk) for n in case.k_lens))


@mutant("paged", "hw-native-sys/pypto#470", lambda case: isinstance(case.storage, Paged))
class pages_in_order(Rules):
    """Pages are taken one after the other, without the table."""

    def take(self, case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
        if isinstance(case.storage, Paged):
            table = np.arange(given["block_table"].size).reshape(given["block_table"].shape)
            given = {**given, "block_table": table % len(given["k"])}
        return super().take(case, given)


@mutant(
    "paged", "quic/efficient-transformers#1209 rocm-libraries#10474",
    lambda case: isinstance(case.storage, Paged) and case.B > 1, "page_table_row",
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


@mutant("strided", "pytorch#187227 flash-attention#1500 flash-attention#2260", _rows_beyond, "offset_32_bit")
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
