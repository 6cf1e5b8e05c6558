"""How `refattn.strategies` draws one case: which parts it has, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from .case import MATRICES, BiasSpec, Cache, Case, Dense, Packed, Paged, Shared, Storage, Strided
from .dtypes import FORMATS
from .inputs import BIAS, SINKS
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

__all__ = ["Bounds", "DIMS", "Draw", "MASKS", "NARROW", "STORAGES", "matches"]

DIMS = ("K", "HK", "QK", "HQK", "BK", "BHQK", "BQ", "H")
NARROW = ("uniform", "peaked", "one_hot_v", "ties", "sparse_q")
"""families within the range of every dtype at any shape"""
MASKS = (
    "causal", "window", "prefix", "padding", "sinktokens", "documents", "blocksparse", "dense", "chunked", "dilated",
    "globaltokens", "tree", "gathered",
)  # fmt: skip
JOINS = ("not", "and", "or")
STORAGES: dict[str, tuple[Storage, ...]] = {"packed": (Packed(), Packed(2)), "paged": (Paged(1), Paged(3), Paged(16))}


def matches(word: str, globs: Iterable[str]) -> bool:
    """Whether a glob is of the word or of what stands before its =."""
    return any(fnmatchcase(part, glob) for glob in globs for part in (word, word.partition("=")[0]))


@dataclass(frozen=True)
class Bounds:
    """What may be drawn."""

    features: tuple[str, ...] | None
    without: tuple[str, ...]
    dtypes: tuple[str, ...]
    aligns: tuple[str, ...]
    families: tuple[str, ...]
    B: tuple[int, ...]
    Hkv: tuple[int, ...]
    groups: tuple[int, ...]
    lengths: tuple[int, ...]
    D: tuple[int, ...] | None

    def allow(self, word: str) -> bool:
        return not matches(word, self.without) and (self.features is None or matches(word, self.features))

    def masks(self) -> tuple[str, ...]:
        """The kinds of masks that may be drawn; with JOINS if all may."""
        if matches("mask", self.without):
            return ()
        if self.allow("mask"):
            return tuple(kind for kind in MASKS if not matches(kind, self.without)) + JOINS
        return tuple(kind for kind in MASKS if self.allow(kind))


class Draw:
    """Draws one case; the first of each list is what a failure shrinks to."""

    def __init__(self, data: DataObject, bounds: Bounds) -> None:
        self.data = data
        self.bounds = bounds
        self.may = bounds.allow

    def within(self, low: int, high: int) -> int:
        return int(self.data.draw(_integers(low, high)))

    def one(self, *values: Any) -> Any:
        return self.data.draw(_among(*values))

    def maybe(self, word: str, *values: Any) -> Any:
        """One of the values, if the feature may be drawn; None otherwise."""
        return self.one(*values) if self.may(word) else None

    def case(self) -> Case:
        bounds = self.bounds
        B, Hkv, group = self.one(*bounds.B), self.one(*bounds.Hkv), self.maybe("gqa", *bounds.groups) or 1
        Lq = self.one(*bounds.lengths)
        Lk = self.one(*bounds.lengths) if self.may("Lq!=Lk") else Lq
        D = self.one(*(bounds.D or range(1, 18)))
        Dv = self.one(*(bounds.D or range(1, 18))) if self.may("D!=Dv") else D
        dtype = self.one(*bounds.dtypes)
        kinds = [family for family in BIAS if self.may(f"bias={family}")]
        bias = BiasSpec(self.one(*DIMS), self.one("float32", "bfloat16"), self.one(*kinds)) \
            if kinds and self.one(0, 1) else None  # fmt: skip
        q_lens = self.lengths(B, Lq) if self.maybe("q_lens", 0, 0, 1) else None
        k_lens = self.lengths(B, Lk) if self.maybe("k_lens", 0, 0, 1) else None
        narrow, behind = FORMATS[dtype].bits <= 4, _behind(B, q_lens, Lq, k_lens, Lk)
        quant = None if narrow else self.quant()
        if quant is not None and quant.granularity == "block":
            D = Dv = self.one(*self.blocks())
        rotary = None
        if not narrow and behind and quant is None and D > 1 and self.maybe("rotary", 0, 0, 1):
            rotary = Rotary(2 * self.within(1, D // 2), self.one(True, False), self.one(10000.0, 500.0))
        storage = self.storage(quant, Dv <= D, q_lens is None and _behind(B, None, Lq, k_lens, Lk))
        sinks, softcap = self.maybe("sinks", None, *SINKS), self.maybe("softcap", None, None, 30.0, 5.0, 1.0)
        want = {"out"} | set(self.one((), ("lse",)))
        if isinstance(storage, Cache):
            want |= set(self.one((), ("k_cache", "v_cache")))
        if not isinstance(storage, Packed):
            want |= set(self.maybe("matrices", (), (), (), MATRICES) or ())
        low = rotary is not None and FORMATS[dtype].bits <= 11
        through = not (narrow or low or quant or isinstance(storage, (Paged, Cache, Shared)))
        if through and self.maybe("backward", 0, 1):
            want |= {"dq", "dk", "dv"} | ({"dbias"} if bias else set()) | ({"dsinks"} if sinks else set())
            want |= set(self.maybe("dscale", (), ("dscale",)) or ())
            want |= {"dsoftcap"} if softcap and self.may("dsoftcap") else set()
            want -= set() if self.may("dlse") else {"lse"}
        wide = FORMATS[dtype].max > 1e9 and quant is None
        families = [f for f in bounds.families if wide or f in ("normal", *NARROW)]
        mods = [name for name in SCORE_MODS if self.may(f"score_mod={name}")]
        return Case(
            "fuzz",
            "drawn at random",
            B=B, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk, D=D, Dv=Dv,
            dtype=dtype,
            family=self.one(*(families or ["normal"])),
            seed=self.within(0, 99),
            want=frozenset(want),
            mask=self.mask(B, Lq, Lk, 3) if bounds.masks() and self.one(0, 1) else None,
            q_lens=q_lens,
            k_lens=k_lens,
            scale=self.maybe("scale", None, None, 1.0, 0.5, -0.25, 0.0),
            softcap=softcap,
            bias=bias,
            sinks=sinks,
            score_mod=self.one(None, None, None, *mods),
            dropout=self.maybe("dropout", None, None, None, 0.5, 0.1, 0.9, 0.0, 1.0),
            rotary=rotary,
            quant=quant,
            storage=storage,
        )  # fmt: skip

    def blocks(self) -> tuple[int, ...]:
        """The sizes D that codes by blocks of 32 can have."""
        return (32,) if self.bounds.D is None else tuple(n for n in self.bounds.D if n and n % 32 == 0)

    def quant(self) -> Quant | None:
        in_blocks = ("q8_0", "q4_0")
        kinds = [k for k in KINDS if self.may(f"quant={k}") and (self.blocks() or k not in in_blocks)]
        kind = self.one(None, None, None, None, *kinds)
        if kind is None:
            return None
        if kind in in_blocks:
            return Quant(kind, "block")
        return Quant(kind, self.one("tensor", "head", *(("block",) if self.blocks() else ())), self.one("kv", "qkv"))

    def storage(self, quant: Quant | None, within_keys: bool, grows: bool) -> Storage:
        """One that goes with the rest: v may be part of k, or the queries' own tokens appended to a cache."""
        kinds: list[Storage] = [Dense(), Dense()]
        kinds += [Dense("BLHD"), Dense("LBHD")] if self.may("strided") else []
        kinds += [Strided(1 << 20)] if self.may("far") else []
        if quant is None or quant.granularity != "block":
            kinds += [storage for word, some in STORAGES.items() if self.may(word) for storage in some]
        if quant is None:
            kinds += [Shared()] if within_keys and self.may("shared") else []
            kinds += [Cache(0), Cache(2)] if grows and self.may("cache") else []
        chosen: Storage = self.one(*kinds)
        return chosen

    def lengths(self, B: int, longest: int) -> tuple[int, ...]:
        return tuple(self.within(0, longest) for _ in range(B))

    def mask(self, B: int, Lq: int, Lk: int, leaves: int) -> Mask | None:
        """A mask of at most so many parts; None where none that may be drawn is of this size."""
        align = self.one(*self.bounds.aligns)
        sized = {"documents": Lq and Lk, "gathered": Lq and Lk, "dense": 0 < Lq * Lk <= 64}
        kinds = [kind for kind in self.bounds.masks() if sized.get(kind, True) and (leaves > 1 or kind not in JOINS)]
        if not set(kinds) - set(JOINS):
            return None
        kind = self.one(*kinds)
        if kind in JOINS:
            left = self.mask(B, Lq, Lk, leaves // 2)
            right = self.mask(B, Lq, Lk, leaves - leaves // 2) if kind != "not" else left
            if left is None or right is None:
                return None
            return ~left if kind == "not" else left & right if kind == "and" else left | right
        if kind == "window":
            left_keys, right_keys = (self.one(None, *range(20)) for _ in range(2))
            return Window(left_keys, right_keys, align)
        if kind == "prefix":
            return Prefix(self.within(0, Lk), align)
        if kind == "padding":
            return Padding(self.lengths(B, Lk))
        if kind == "sinktokens":
            return SinkTokens(self.within(0, 4))
        if kind == "documents":
            return Documents(self.ids(Lq), self.ids(Lk))
        if kind == "blocksparse":
            return BlockSparse(self.drawing(-(-Lq // 16) or 1, -(-Lk // 16) or 1), 16, 16)
        if kind == "dense":
            return Drawn(self.drawing(Lq, Lk))
        if kind == "chunked":
            return Chunked(self.within(1, 20), align)
        if kind == "dilated":
            return Dilated(self.within(0, 5), self.within(1, 4), align)
        if kind == "globaltokens":
            return GlobalTokens(tuple(self.within(0, Lk) for _ in range(self.within(0, 3))), align)
        if kind == "tree":
            return Tree(tuple(self.within(-1, node - 1) for node in range(self.within(0, min(Lk, 9)))))
        if kind == "gathered":
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
