"""Random small cases over all features: a strategy of hypothesis.

`cases()` refuses nothing afterwards, every draw is a valid case.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from .case import MATRICES, BiasSpec, Cache, Case, Dense, Packed, Paged, Shared, Storage, Strided
from .dtypes import FORMATS
from .inputs import BIAS, FAMILIES, SINKS
from .masks import (
    BlockSparse,
    Causal,
    Chunked,
    Dilated,
    Documents,
    Gathered,
    GlobalTokens,
    Mask,
    Padding,
    Prefix,
    SinkTokens,
    Tree,
    Window,
)
from .masks import Dense as Drawn
from .quantise import KINDS, Quant
from .rotary import Rotary
from .score_mods import SCORE_MODS

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject, SearchStrategy

__all__ = ["cases"]

LENGTHS = (1, 2, 3, 4, 5, 7, 9, 0, 15, 16, 17, 31, 33, 65)
DIMS = ("K", "HK", "QK", "HQK", "BK", "BHQK", "BQ", "H")
NARROW = ("uniform", "peaked", "one_hot_v", "ties", "sparse_q")
"""families within the range of every dtype at any shape"""
MASKS = (
    "causal", "window", "prefix", "padding", "sink_tokens", "documents", "blocks", "drawn", "chunks", "dilated",
    "global_tokens", "tree", "gathered",
)  # fmt: skip
JOINS = ("not", "and", "or")


def cases() -> SearchStrategy[Case]:
    """Cases of a few dozen elements; the simplest is one float32 query and key."""
    from hypothesis import strategies as st

    return st.builds(_Draw, st.data()).map(_Draw.case)


class _Draw:
    """Draws one case; the first of each list is what a failure shrinks to."""

    def __init__(self, data: DataObject) -> None:
        self.data = data

    def within(self, low: int, high: int) -> int:
        return int(self.data.draw(_integers(low, high)))

    def one(self, *values: Any) -> Any:
        return self.data.draw(_among(*values))

    def case(self) -> Case:
        B, Hkv, group = self.within(1, 3), self.within(1, 2), self.within(1, 3)
        Lq, Lk = self.one(*LENGTHS), self.one(*LENGTHS)
        D, Dv = self.within(1, 17), self.within(1, 17)
        dtype = self.one("float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
        bias = BiasSpec(self.one(*DIMS), self.one("float32", "bfloat16"), self.one(*BIAS)) if self.one(0, 1) else None
        q_lens = self.lengths(B, Lq) if self.one(0, 0, 1) else None
        k_lens = self.lengths(B, Lk) if self.one(0, 0, 1) else None
        narrow, behind = FORMATS[dtype].bits <= 4, _behind(B, q_lens, Lq, k_lens, Lk)
        quant = None if narrow else self.quant()
        if quant is not None and quant.granularity == "block":
            D = Dv = 32
        rotary = None
        if not narrow and behind and quant is None and D > 1 and self.one(0, 0, 1):
            rotary = Rotary(2 * self.within(1, D // 2), self.one(True, False), self.one(10000.0, 500.0))
        storage = self.storage(quant, Dv <= D, q_lens is None and _behind(B, None, Lq, k_lens, Lk))
        sinks, softcap = self.one(None, *SINKS), self.one(None, None, 30.0, 5.0, 1.0)
        want = {"out"} | set(self.one((), ("lse",)))
        if isinstance(storage, Cache):
            want |= set(self.one((), ("k_cache", "v_cache")))
        if not isinstance(storage, Packed):
            want |= set(self.one((), (), (), MATRICES))
        low = rotary is not None and FORMATS[dtype].bits <= 11
        if not (narrow or low or quant or isinstance(storage, (Paged, Cache, Shared))) and self.one(0, 1):
            want |= {"dq", "dk", "dv"} | ({"dbias"} if bias else set()) | ({"dsinks"} if sinks else set())
            want |= set(self.one((), ("dscale",))) | ({"dsoftcap"} if softcap else set())
        wide = FORMATS[dtype].max > 1e9 and quant is None
        return Case(
            "fuzz",
            "drawn at random",
            B=B, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk, D=D, Dv=Dv,
            dtype=dtype,
            family=self.one("normal", *(FAMILIES if wide else NARROW)),
            seed=self.within(0, 99),
            want=frozenset(want),
            mask=self.mask(B, Lq, Lk, 3) if self.one(0, 1) else None,
            q_lens=q_lens,
            k_lens=k_lens,
            scale=self.one(None, None, 1.0, 0.5, -0.25, 0.0),
            softcap=softcap,
            bias=bias,
            sinks=sinks,
            score_mod=self.one(None, None, None, *SCORE_MODS),
            dropout=self.one(None, None, None, 0.5, 0.1, 0.9, 0.0, 1.0),
            rotary=rotary,
            quant=quant,
            storage=storage,
        )  # fmt: skip

    def quant(self) -> Quant | None:
        kind = self.one(None, None, None, None, *KINDS)
        if kind is None:
            return None
        if kind in ("q8_0", "q4_0"):
            return Quant(kind, "block")
        return Quant(kind, self.one("tensor", "head", "block"), self.one("kv", "qkv"))

    def storage(self, quant: Quant | None, within_keys: bool, grows: bool) -> Storage:
        """One that goes with the rest: v may be part of k, or the queries' own tokens appended to a cache."""
        kinds = [Dense(), Dense(), Dense("BLHD"), Dense("LBHD"), Strided(1 << 20)]
        if quant is None or quant.granularity != "block":
            kinds += [Packed(), Packed(2), Paged(1), Paged(3), Paged(16)]
        if quant is None:
            kinds += ([Shared()] if within_keys else []) + ([Cache(0), Cache(2)] if grows else [])
        chosen: Storage = self.one(*kinds)
        return chosen

    def lengths(self, B: int, longest: int) -> tuple[int, ...]:
        return tuple(self.within(0, longest) for _ in range(B))

    def mask(self, B: int, Lq: int, Lk: int, leaves: int) -> Mask:
        """A mask of at most so many parts."""
        align = self.one("top_left", "bottom_right")
        kind = self.one(*(MASKS + JOINS if leaves > 1 else MASKS))
        if kind in JOINS:
            left = self.mask(B, Lq, Lk, leaves // 2)
            if kind == "not":
                return ~left
            right = self.mask(B, Lq, Lk, leaves - leaves // 2)
            return left & right if kind == "and" else left | right
        if kind == "window":
            left_keys, right_keys = (self.one(None, *range(20)) for _ in range(2))
            return Window(left_keys, right_keys, align)
        if kind == "prefix":
            return Prefix(self.within(0, Lk), align)
        if kind == "padding":
            return Padding(self.lengths(B, Lk))
        if kind == "sink_tokens":
            return SinkTokens(self.within(0, 4))
        if kind == "documents" and Lq and Lk:
            return Documents(self.ids(Lq), self.ids(Lk))
        if kind == "blocks":
            return BlockSparse(self.drawing(-(-Lq // 16) or 1, -(-Lk // 16) or 1), 16, 16)
        if kind == "drawn" and 0 < Lq * Lk <= 64:
            return Drawn(self.drawing(Lq, Lk))
        if kind == "chunks":
            return Chunked(self.within(1, 20), align)
        if kind == "dilated":
            return Dilated(self.within(0, 5), self.within(1, 4), align)
        if kind == "global_tokens":
            return GlobalTokens(tuple(self.within(0, Lk) for _ in range(self.within(0, 3))), align)
        if kind == "tree":
            return Tree(tuple(self.within(-1, node - 1) for node in range(self.within(0, min(Lk, 9)))))
        if kind == "gathered" and Lq and Lk:
            first, step = self.within(-Lk, Lk - 1), self.within(-2, 2) or 1
            rows = ([first + i + step * c for c in range(min(Lk, 5))] for i in range(Lq))
            return Gathered(tuple(tuple(j if 0 <= j < Lk else -1 for j in row) for row in rows))
        return Causal(align)

    def ids(self, n: int) -> tuple[int, ...]:
        """Up to three documents, in order."""
        first, second = self.within(0, n), self.within(0, n)
        return tuple((i >= first) + (i >= second) for i in range(n))

    def drawing(self, rows: int, columns: int) -> tuple[str, ...]:
        bits = self.within(0, 2 ** (rows * columns) - 1)
        text = "".join("x" if bits >> i & 1 else "." for i in range(rows * columns))
        return tuple(text[i * columns : (i + 1) * columns] for i in range(rows))


@cache
def _integers(low: int, high: int) -> SearchStrategy[int]:
    from hypothesis import strategies

    return strategies.integers(low, high)


@lru_cache(maxsize=None, typed=True)
def _among(*values: Any) -> SearchStrategy[Any]:
    from hypothesis import strategies

    return strategies.sampled_from(values)


def _behind(
    B: int, q_lens: tuple[int, ...] | None, Lq: int, k_lens: tuple[int, ...] | None, Lk: int
) -> bool:  # fmt: skip
    """Whether each entry has a key for each of its queries."""
    return all(lq <= lk for lq, lk in zip(q_lens or (Lq,) * B, k_lens or (Lk,) * B, strict=True))
