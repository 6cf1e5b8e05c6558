"""How the arrays of a case are handed over: one small description for each way, without arrays.

`refattn.memory` does what they say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from .visibility import check_int

__all__ = ["Cache", "Dense", "Packed", "Paged", "Shared", "Storage", "Strided", "part_from_json", "storage_from_json"]


@dataclass(frozen=True)
class Dense:
    """Plain arrays of shape (B, heads, L, D); `layout` is the order they have in memory."""

    layout: str = "BHLD"

    def __post_init__(self) -> None:
        if not isinstance(self.layout, str) or sorted(self.layout) != sorted("BHLD"):
            raise ValueError(f"layout={self.layout!r} must be a permutation of 'BHLD'")


@dataclass(frozen=True)
class Strided:
    """Plain shapes, but the rows of q, k, v, bias and dout lie `row` elements apart, in untouched memory.

    With row = 2**20 an index of row times length needs more than 32 bits at 2,048 rows.
    """

    row: int = 1 << 20

    def __post_init__(self) -> None:
        check_int("row", self.row, 1, most=2**32)


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
        check_int("gap", self.gap, 0, most=2**20)


@dataclass(frozen=True)
class Paged:
    """k and v in pages (pages, page_size, Hkv, D) in any order; block_table (B, most pages) int32 finds them.

    seqused_k (B,) int32 says how many keys there are.  What is not in use holds NaN, and unused
    entries of the table are -1.
    """

    page_size: int = 16

    def __post_init__(self) -> None:
        check_int("page_size", self.page_size, 1, most=2**20)


@dataclass(frozen=True)
class Cache:
    """Keys and values to be appended to a cache, which is returned: k_cache, v_cache (B, slots, Hkv, D).

    k and v (B, Hkv, Lq, D) are those of the queries' own tokens; those of entry b go to the slots
    from cache_lens[b] on (int32).  `spare` slots are left over; what is not in use holds NaN.
    """

    spare: int = 3

    def __post_init__(self) -> None:
        check_int("spare", self.spare, 0, most=2**20)


Storage = Union[Dense, Strided, Shared, Packed, Paged, Cache]  # noqa: UP007 - evaluated by Python 3.10 too


def storage_from_json(data: Mapping[str, Any]) -> Storage:
    """The storage that `to_json` of a case described; without "type" it is Dense."""
    kinds: dict[str, Any] = {c.__name__: c for c in (Dense, Strided, Shared, Packed, Paged, Cache)}
    if not isinstance(data, Mapping):
        raise ValueError(f"storage={data!r} must be an object whose type is one of {', '.join(kinds)}")
    kind = kinds.get(data.get("type", "Dense"))
    if kind is None:
        raise ValueError(f"type={data.get('type')!r} of a storage is not one of {', '.join(kinds)}")
    return part_from_json(kind, "storage", {name: value for name, value in data.items() if name != "type"})


def part_from_json(kind: Any, name: str, data: Any) -> Any:
    """A dataclass of its fields; refused, by the name of the field of Case that it is for, if they do not fit."""
    fields = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(kind)}
    needed = {field for field, required in fields.items() if required}
    if not isinstance(data, Mapping) or not needed <= set(data) <= set(fields):
        known = ", ".join(field if required else f"{field} (or not)" for field, required in fields.items())
        raise ValueError(f"{name}={data!r} must be an object with {known or 'nothing but its type'}")
    return kind(**data)


def storage_to_json(storage: Storage) -> dict[str, Any]:
    return {"type": type(storage).__name__, **dataclasses.asdict(storage)}
