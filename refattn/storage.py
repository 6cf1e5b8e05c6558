"""How the arrays of a case are handed over: one small description for each way, without arrays.

`refattn.memory` does what they say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from .visibility import check_int

__all__ = ["Cache", "Dense", "Packed", "Paged", "Shared", "Storage", "Strided", "storage_from_json"]


@dataclass(frozen=True)
class Dense:
    """Plain arrays of shape (B, heads, L, D); `layout` is the order they have in memory."""

    layout: str = "BHLD"

    def __post_init__(self) -> None:
        if sorted(self.layout) != sorted("BHLD"):
            raise ValueError(f"layout={self.layout!r} must be a permutation of 'BHLD'")


@dataclass(frozen=True)
class Strided:
    """Plain shapes, but the rows of q, k, v, bias and dout lie `row` elements apart, in untouched memory.

    With row = 2**20 an index of row times length needs more than 32 bits at 2,048 rows.
    """

    row: int = 1 << 20

    def __post_init__(self) -> None:
        check_int("row", self.row, 1)


@dataclass(frozen=True)
class Shared:
    """v is no array of its own but the first Dv columns of k, as in latent attention (MLA)."""


@dataclass(frozen=True)
class Packed:
    """Sequences one after the other: q, k, v, out, ... are (tokens, heads, D), lse (heads, tokens).

    Entry b has the rows from cu_seqlens_q[b] to cu_seqlens_q[b + 1], both int32, and of these, where
    `gap` > 0, only the first seqused_q[b] are in use; the `gap` rows after them hold NaN.  Keys
    likewise.
    """

    gap: int = 0

    def __post_init__(self) -> None:
        check_int("gap", self.gap, 0)


@dataclass(frozen=True)
class Paged:
    """k and v in pages (pages, page_size, Hkv, D) in any order; block_table (B, most pages) int32 finds them.

    seqused_k (B,) int32 says how many keys there are.  What is not in use holds NaN, and unused
    entries of the table are -1.
    """

    page_size: int = 16

    def __post_init__(self) -> None:
        check_int("page_size", self.page_size, 1)


@dataclass(frozen=True)
class Cache:
    """Keys and values to be appended to a cache, which is returned: k_cache, v_cache (B, slots, Hkv, D).

    k and v (B, Hkv, Lq, D) are those of the queries' own tokens; those of entry b go to the slots
    from cache_lens[b] on (int32).  `spare` slots are left over; what is not in use holds NaN.
    """

    spare: int = 3

    def __post_init__(self) -> None:
        check_int("spare", self.spare, 0)


Storage = Union[Dense, Strided, Shared, Packed, Paged, Cache]  # noqa: UP007 - evaluated by Python 3.10 too


def storage_from_json(data: Mapping[str, Any]) -> Storage:
    """The storage that `to_json` of a case described; without "type" it is Dense."""
    kinds: dict[str, Any] = {c.__name__: c for c in (Dense, Strided, Shared, Packed, Paged, Cache)}
    kind = kinds.get(data.get("type", "Dense"))
    if kind is None:
        raise ValueError(f"type={data.get('type')!r} of a storage is not one of {', '.join(kinds)}")
    return kind(**{name: value for name, value in data.items() if name != "type"})


def storage_to_json(storage: Storage) -> dict[str, Any]:
    return {"type": type(storage).__name__, **dataclasses.asdict(storage)}
