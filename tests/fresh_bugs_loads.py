"""Bugs of the fresh kernel: lengths, heads, addresses, storage.  See `tests.fresh_bugs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refattn.case import Cache, Dense, Packed, Paged
from refattn.implementation import Function
from tests.fresh_kernel import Kernel, made
from tests.fresh_loads import Array, Space

Row = tuple[str, str, Callable[[], Function]]
ROWS: list[Row] = []


def bug(description: str, rows: list[Row] = ROWS) -> Callable[[type[Kernel]], type[Kernel]]:
    """Puts a kernel down as a row, under the name of its class."""

    def note(kind: type[Kernel]) -> type[Kernel]:
        rows.append((kind.__name__, description, lambda: made(kind(), kind.__name__)))
        return kind

    return note


# lengths


@bug("Keys beyond the end of the last tile count as keys of zeros: the bounds check is missing.")
class tail_not_masked(Kernel):
    def in_length(self, a: Space, t: Space, j: Array) -> Array:
        return np.broadcast_to(t.ok[:, None], (self.BM, self.BN))


@bug("What the last tile of V has too much is not loaded as zero; weight 0 times garbage is NaN.")
class tail_of_v_not_cleared(Kernel):
    def tail(self, name: str) -> float:
        return np.nan if name == "v" else 0.0


@bug("The length of the keys is not read: all keys of the padded tensor are seen.")
class k_lens_ignored(Kernel):
    def lengths(self, a: Space) -> tuple[Array, Array]:
        q_lens, k_lens = super().lengths(a)
        return q_lens, k_lens * 0 + a.case.Lk if isinstance(a.storage, Dense) else k_lens


@bug("The last tile of rows is not launched where it is not full: the number of tiles is rounded down.")
class last_rows_not_launched(Kernel):
    def row_end(self, a: Space, b: int) -> int:
        end = super().row_end(a, b)
        return end if end < self.BM else end // self.BM * self.BM


@bug("A sequence without keys returns early: its rows of out are never written.")
class early_return(Kernel):
    def row_end(self, a: Space, b: int) -> int:
        return super().row_end(a, b) if a.k_lens[b] else 0


# heads


@bug("Query head h reads key head h % Hkv: groups are interleaved.")
class heads_interleaved(Kernel):
    def head(self, a: Space, hk: int, r: Array, r0: int) -> Array:
        return (r % a.G) * a.case.Hkv + hk


@bug("The value head is h % Hkv where the key head is h // G.")
class v_head_interleaved(Kernel):
    def kv_head(self, a: Space, name: str, hk: int) -> int:
        return hk * a.G % a.case.Hkv if name == "v" else hk


@bug("Each tile starts with the first head of the group; 64 rows do not divide by a group of 3, 5, 6...")
class tile_starts_group(Kernel):
    def head(self, a: Space, hk: int, r: Array, r0: int) -> Array:
        return hk * a.G + (r - r0) % a.G


@bug("All heads read key head 0.")
class key_head_zero(Kernel):
    def kv_head(self, a: Space, name: str, hk: int) -> int:
        return 0


@bug("V is read as if it were contiguous.")
class v_taken_for_contiguous(Kernel):
    def source(self, a: Space, name: str) -> Array:
        x = super().source(a, name)
        order = np.argsort([-n for n in x.strides], kind="stable")
        return x.transpose(order).reshape(x.shape) if name == "v" and x.size else x


@bug("Values are read from K.")
class k_for_v(Kernel):
    def source(self, a: Space, name: str) -> Array:
        return super().source(a, "k" if a.case.D == a.case.Dv else name)


@bug("The offset of a row is computed in 32 bits: rows far apart are read from the wrong place.")
class offset_in_32_bits(Kernel):
    def load_keys(self, a: Space, name: str, b: int, hk: int, n: int) -> Array:
        x = self.source(a, name)
        row = x.strides[-2] // x.itemsize
        y = super().load_keys(a, name, b, hk, n)
        j = np.arange(n * self.BN, n * self.BN + len(y))
        return y if row < 2**20 else np.where((j * row < 2**31)[:, None], y, 0)


# storage


@bug("Keys of a packed sequence are found with the offsets of the queries.")
class packed_keys_by_queries(Kernel):
    def index(self, a: Space, b: int, hk: int, j: Array) -> tuple[Any, ...]:
        if not isinstance(a.storage, Packed):
            return super().index(a, b, hk, j)
        return np.minimum(a.given["cu_seqlens_q"][b] + j, len(a.given["k"]) - 1), hk


@bug("The used length of a packed sequence is ignored: the gap after it is read.")
class seqused_ignored(Kernel):
    def lengths(self, a: Space) -> tuple[Array, Array]:
        q_lens, k_lens = super().lengths(a)
        return q_lens, np.diff(a.given["cu_seqlens_k"]) if isinstance(a.storage, Packed) else k_lens


@bug("A page is taken to hold 16 tokens, whatever its size.")
class page_of_16(Kernel):
    def page(self, a: Space, b: int, j: Array, size: int) -> Array:
        table = a.given["block_table"]
        return table[b, np.minimum(j // 16, table.shape[1] - 1)]


@bug("Pages are read in the order in which they lie: the block table is ignored.")
class block_table_ignored(Kernel):
    def page(self, a: Space, b: int, j: Array, size: int) -> Array:
        return np.minimum(b * a.given["block_table"].shape[1] + j // size, len(a.given["k"]) - 1)


@bug("The number of keys of a paged sequence is rounded up to whole pages.")
class whole_pages(Kernel):
    def lengths(self, a: Space) -> tuple[Array, Array]:
        q_lens, k_lens = super().lengths(a)
        size = a.given["k"].shape[1]
        return q_lens, -(-k_lens // size) * size if isinstance(a.storage, Paged) else k_lens


@bug("New tokens are appended to the cache one slot too late.")
class appended_too_late(Kernel):
    def slots(self, a: Space) -> Array:
        return np.minimum(a.given["cache_lens"] + 1, a.given["k_cache"].shape[1] - a.case.Lq)


@bug("The scale of quantised values is not applied.")
class v_scale_dropped(Kernel):
    def descale(self, a: Space, name: str, b: int, hk: int, j: Array) -> Array:
        x = super().descale(a, name, b, hk, j)
        return x if name == "k" else x * 0 + 1


@bug("The scale of quantised keys and values is that of head 0.")
class descale_of_head_zero(Kernel):
    def descale(self, a: Space, name: str, b: int, hk: int, j: Array) -> Array:
        return super().descale(a, name, b, 0, j)


@bug("Values are multiplied by the scale of the keys.")
class v_scaled_as_k(Kernel):
    def descale(self, a: Space, name: str, b: int, hk: int, j: Array) -> Array:
        return super().descale(a, "k", b, hk, j)


@bug("Packed queries are found at b times the longest length.")
class packed_as_padded(Kernel):
    def tokens(self, a: Space, t: Space) -> Array:
        return np.minimum(t.b * a.case.Lq + t.i, len(a.given["q"]) - 1)


@bug("The new tokens of a cache are written, but not attended to.")
class new_tokens_not_seen(Kernel):
    def lengths(self, a: Space) -> tuple[Array, Array]:
        q_lens, k_lens = super().lengths(a)
        return q_lens, a.given["cache_lens"] if isinstance(a.storage, Cache) else k_lens
