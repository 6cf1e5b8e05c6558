"""How arrays (B, heads, L, D) are handed over: other orders, packed sequences, pages; and back.

Packed ("THD"): the tokens that exist, one sequence after the other, in an array (T, heads, D), and
int32 `cu_seqlens` (B + 1,) that says where each starts; lse is (heads, T) then, as in FlashAttention.
With gap > 0 that many slots lie unused after each sequence, and the starts count them
(TransformerEngine's `cu_seqlens_q_padded`; FlashAttention's `cu_seqlens_q` beside `seqused_q`).

Paged: tokens in pages of equal size in any order, (P, page_size, heads, D), and an int32
`block_table` (B, pages of the longest): token n of entry b is in page block_table[b, n // page_size].

Fill (NaN) marks memory that must not be read.  Lengths may be 0, all the way to no page at all.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from .visibility import check_int

__all__ = [
    "cu_seqlens", "from_layout", "pack", "pack_lse", "page", "to_layout", "unpack", "unpack_lse", "unpage",
]  # fmt: skip

Array = np.ndarray[Any, Any]


def to_layout(x: Any, layout: str) -> Array:
    """A contiguous copy of x (B, heads, L, D) with its axes in another order, "BLHD", "LBHD", ...; S reads as L."""
    return _four(x, "x").transpose(["BHLD".index(letter) for letter in _layout(layout)]).copy()


def from_layout(x: Any, layout: str) -> Array:
    """The array (B, heads, L, D), contiguous, of one with its axes in the order of `layout`."""
    letters = _layout(layout)
    return _four(x, "x", letters).transpose([letters.index(letter) for letter in "BHLD"]).copy()


def cu_seqlens(lens: Sequence[int], gap: int = 0) -> Array:
    """Where each packed sequence starts, int32 (B + 1,): 0, and sums of the lengths and gaps."""
    check_int("gap", gap, 0)
    starts = np.cumsum([0, *(n + gap for n in _lengths(lens))], dtype=np.int64)
    if starts[-1] >= 2**31:
        raise ValueError(f"lens and gap={gap} add up to {starts[-1]} tokens, beyond int32; pack fewer")
    return starts.astype(np.int32)


def pack(x: Any, lens: Sequence[int], gap: int = 0, fill: float = np.nan) -> Array:
    """The first lens[b] tokens of each entry of x (B, heads, L, D), packed: (T, heads, D), gaps filled."""
    x = _four(x, "x")
    lens, starts = _lengths(lens, x.shape[0], x.shape[2]), cu_seqlens(lens, gap)
    packed = _filled((int(starts[-1]), x.shape[1], x.shape[3]), fill, x.dtype, gap > 0 and len(lens) > 0)
    for b, n in enumerate(lens):
        packed[starts[b] : starts[b] + n] = x[b, :, :n].swapaxes(0, 1)
    return packed


def unpack(packed: Any, lens: Sequence[int], gap: int = 0, L: int | None = None, fill: float = 0.0) -> Array:
    """(B, heads, L, D) of a packed array (T, heads, D): `fill` beyond lens[b]; L=None is the longest."""
    packed = np.asarray(packed)
    if packed.ndim != 3:
        raise ValueError(f"packed.shape={packed.shape} must have 3 dimensions (T, heads, D)")
    (lens, L), starts = _with_longest(lens, None, L), cu_seqlens(lens, gap)
    if packed.shape[0] != starts[-1]:
        raise ValueError(f"packed.shape={packed.shape} must hold T={starts[-1]} tokens, as lens and gap={gap} say")
    x = _filled((len(lens), packed.shape[1], L, packed.shape[2]), fill, packed.dtype, any(n < L for n in lens))
    for b, n in enumerate(lens):
        x[b, :, :n] = packed[starts[b] : starts[b] + n].swapaxes(0, 1)
    return x


def pack_lse(lse: Any, lens: Sequence[int], gap: int = 0, fill: float = np.nan) -> Array:
    """lse (B, heads, L) packed: (heads, T)."""
    lse = np.asarray(lse)
    if lse.ndim != 3:
        raise ValueError(f"lse.shape={lse.shape} must have 3 dimensions (B, heads, L)")
    return np.ascontiguousarray(pack(lse[..., None], lens, gap, fill)[..., 0].T)


def unpack_lse(packed: Any, lens: Sequence[int], gap: int = 0, L: int | None = None, fill: float = 0.0) -> Array:
    """lse (B, heads, L) of a packed one (heads, T)."""
    packed = np.asarray(packed)
    if packed.ndim != 2:
        raise ValueError(f"packed.shape={packed.shape} must have 2 dimensions (heads, T)")
    return unpack(packed.T[..., None], lens, gap, L, fill)[..., 0]


def page(
    x: Any,
    lens: Sequence[int],
    page_size: int,
    seed: int = 0,
    spare: int = 0,
    fill: float = np.nan,
    unused: Literal["-1", "poisoned"] = "-1",
) -> tuple[Array, Array]:
    """Pages (P, page_size, heads, D) in shuffled order, and the block_table that finds them.

    P is the pages needed plus `spare` ones of fill; the rest of a last page is fill too.  Entries of
    the table that stand for no token are -1, or the number of a spare page ("poisoned").  The table
    depends on lens, L, page_size, seed, spare and unused, not on x: k and v share theirs.
    """
    x = _four(x, "x")
    lens = _lengths(lens, x.shape[0], x.shape[2])
    for name, value, least in (("page_size", page_size, 1), ("spare", spare, 0), ("seed", seed, 0)):
        check_int(name, value, least)
    if unused not in ("-1", "poisoned"):
        raise ValueError(f"unused={unused!r} must be '-1' or 'poisoned'")
    if unused == "poisoned" and spare == 0:
        raise ValueError("unused='poisoned' needs a page to point to; pass spare=1")
    needed = [-(-n // page_size) for n in lens]
    P = sum(needed) + spare
    order = _shuffled(P, seed)
    table = np.full((len(lens), -(-x.shape[2] // page_size)), order[-1] if unused == "poisoned" else -1, dtype=np.int32)
    pages = _filled((P, page_size, x.shape[1], x.shape[3]), fill, x.dtype, P * page_size > sum(lens))
    taken = 0
    for b, n in enumerate(lens):
        table[b, : needed[b]] = order[taken : taken + needed[b]]
        taken += needed[b]
        for start, at in zip(range(0, n, page_size), table[b], strict=False):
            tokens = x[b, :, start : min(start + page_size, n)]
            pages[at, : tokens.shape[1]] = tokens.swapaxes(0, 1)
    return pages, table


def unpage(pages: Any, block_table: Any, lens: Sequence[int], L: int | None = None, fill: float = 0.0) -> Array:
    """(B, heads, L, D) of pages: `fill` beyond lens[b]; L=None is the longest."""
    pages, block_table = _four(pages, "pages", "P, page_size, heads, D"), np.asarray(block_table)
    if block_table.dtype.kind not in "iu" or block_table.ndim != 2:
        raise TypeError(f"block_table of {block_table.dtype}, {block_table.shape} must be integers (B, most pages)")
    P, page_size, heads, D = pages.shape
    if page_size == 0:
        raise ValueError(f"pages.shape={pages.shape} must have page_size >= 1")
    lens, L = _with_longest(lens, block_table.shape[0], L)
    x = _filled((len(lens), heads, L, D), fill, pages.dtype, any(n < L for n in lens))
    for b, n in enumerate(lens):
        needed = -(-n // page_size)
        found = block_table[b, :needed].astype(np.int64)
        if found.size < needed or (found < 0).any() or (found >= P).any():
            row = block_table[b].tolist()
            raise ValueError(f"block_table[{b}]={row} must name {needed} of P={P} pages for {n} tokens")
        x[b, :, :n] = pages[found].reshape(needed * page_size, heads, D)[:n].swapaxes(0, 1)
    return x


def _shuffled(n: int, seed: int) -> Array:
    """The numbers below n, shuffled by raw words of Philox, the same in all versions of NumPy; never left in order."""
    words = np.random.Philox(key=seed).random_raw(n) if n else np.zeros(0)
    order = np.argsort(words, kind="stable")
    return order[::-1] if n > 1 and (order == np.arange(n)).all() else order


def _filled(shape: tuple[int, ...], fill: float, dtype: Any, used: bool) -> Array:
    """An array full of `fill`, which is refused where it is `used` and the dtype does not have it."""
    if not used:
        return np.zeros(shape, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        try:
            value = np.array(fill).astype(dtype)
            kept = np.isnan(float(value)) if np.isnan(fill) else float(value) == fill
        except (TypeError, ValueError):
            kept = False
    if not kept:
        raise ValueError(f"fill={fill!r} is no value of dtype {np.dtype(dtype).name}; pass one, such as fill=0")
    return np.full(shape, value, dtype)


def _layout(layout: str) -> str:
    letters = layout.replace("S", "L") if isinstance(layout, str) else ""
    if sorted(letters) != sorted("BHLD"):
        raise ValueError(f"layout={layout!r} must be an order of B, H, L (or S) and D; for THD use pack(x, lens)")
    return letters


def _four(x: Any, name: str, what: str = "B, heads, L, D") -> Array:
    x = np.asarray(x)
    if x.ndim != 4:
        raise ValueError(f"{name}.shape={x.shape} must have 4 dimensions ({what})")
    return x


def _lengths(lens: Sequence[int], B: int | None = None, longest: int | None = None) -> list[int]:
    try:
        whole = [operator.index(n) for n in lens]
    except TypeError:
        whole = [-1]
    fits = all(0 <= n and (longest is None or n <= longest) for n in whole)
    if not fits or (B is not None and len(whole) != B):
        upto = "" if longest is None else f" up to L={longest}"
        raise ValueError(f"lens={lens!r} must hold {'' if B is None else f'B={B} '}ints >= 0{upto}")
    return whole


def _with_longest(lens: Sequence[int], B: int | None, L: int | None) -> tuple[list[int], int]:
    if L is not None:
        check_int("L", L, 0, "; pass None for the longest")
    whole = _lengths(lens, B, L)
    return whole, max(whole, default=0) if L is None else L
