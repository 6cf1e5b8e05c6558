"""Chapter pairs: each kind of mask with each other feature, wherever no case written by hand has the two together.

The rows are made by rule from the two tables below; dtype, family and sizes go round, so that all
of them meet all masks and nearly all features.  Every other row of a feature that has gradients asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

from ..case import MATRICES, BiasSpec, Cache, Case, Dense, Packed, Paged, Shared, Strided
from ..masks import (
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
from ..masks import Dense as Drawn
from ..quantise import Quant
from ..rotary import Rotary
from ..score_mods import SCORE_MODS
from ..visibility import Align
from .row import BF16, E4M3, E5M2, F16, F32, F64, GRAD, Sizes, row

__all__ = ["FEATURES", "MASKS", "rows"]


class Kind(NamedTuple):
    """A kind of mask: its word of `Case.features`, how a case's reason names it, a bug, and one of given sizes."""

    word: str
    phrase: str
    flag: str
    mask: Callable[[Align, int, int, int], Mask]


class Feature(NamedTuple):
    """A feature: whether a case has it, its name in a reason, a bug, and the fields of its n-th row."""

    has: Callable[[Case], bool]
    phrase: str
    flag: str
    fields: Callable[[int], dict[str, Any]]
    dtypes: tuple[str, ...] = (F32, BF16, F16, F64, E4M3, E5M2)
    backward: tuple[str, ...] = (F32, BF16, F16, F64)
    """dtypes of its rows with gradients"""


def _drawn(Lq: int, Lk: int) -> Drawn:
    return Drawn(tuple("".join("x" if (3 * i + 5 * j) % 7 < 4 else "." for j in range(Lk)) for i in range(Lq)))


def _gathered(Lq: int, Lk: int) -> Gathered:
    keys = min(5, Lk)
    return Gathered(tuple((*((7 * i + 3 * c) % Lk for c in range(keys)), -1) for i in range(Lq)))


MASKS: dict[str, Kind] = {
    "causal": Kind("causal", "Causal", "causal_ignored", lambda align, B, Lq, Lk: Causal(align)),
    "window": Kind("window", "A window", "window_off_by_one", lambda align, B, Lq, Lk: Window(5, 2, align)),
    "prefix": Kind("prefix", "A prefix", "causal_ignored", lambda align, B, Lq, Lk: Prefix(4, align)),
    "documents": Kind(
        "documents", "Documents", "documents_lost",
        lambda align, B, Lq, Lk: Documents(
            tuple(3 * i // max(Lq, 1) for i in range(Lq)), tuple(3 * j // max(Lk, 1) for j in range(Lk))
        ),
    ),
    "padding": Kind(
        "padding", "Padding", "lengths_ignored",
        lambda align, B, Lq, Lk: Padding(tuple(Lk - 2 - 3 * b if b < 2 else Lk for b in range(B))),
    ),
    "first": Kind("sinktokens", "The first tokens alone", "mask_union", lambda align, B, Lq, Lk: SinkTokens(5)),
    "blocks": Kind(
        "blocksparse", "Blocks", "block_mask_scaled",
        lambda align, B, Lq, Lk: BlockSparse(("x.x.x", ".xx.x", "xx.x."), 16, 16),
    ),
    "drawn": Kind("dense", "A drawn mask", "mask_transposed", lambda align, B, Lq, Lk: _drawn(Lq, Lk)),
    "chunks": Kind("chunked", "Chunks", "chunk_boundary", lambda align, B, Lq, Lk: Chunked(8, align)),
    "dilated": Kind("dilated", "A dilated window", "dilation_ignored", lambda align, B, Lq, Lk: Dilated(3, 2, align)),
    "global": Kind(
        "globaltokens", "Global tokens", "global_one_way", lambda align, B, Lq, Lk: GlobalTokens((1, 6), align)
    ),
    "tree": Kind("tree", "A token tree", "tree_as_causal", lambda align, B, Lq, Lk: Tree((-1, 0, 0, 1, 1))),
    "gathered": Kind("gathered", "Gathered keys", "gathered_none", lambda align, B, Lq, Lk: _gathered(Lq, Lk)),
}  # fmt: skip

_WIDE, _CODED = (F32, BF16, F16, F64), (F16, BF16, F32)
_DIMS, _SINKS, _LAYOUTS = ("HQK", "K", "BK", "QK", "BHQK", "HQ", "BQK"), ("normal", "large", "zero"), (
    "BLHD", "LBHD", "BHDL", "HBLD",
)  # fmt: skip
_MODS = tuple(name for name, mod in SCORE_MODS.items() if mod.hides is None)


def _quant(kind: Any, what: str) -> Feature:
    granularities: Any = ("block",) if kind in ("q8_0", "q4_0") else ("head", "block", "tensor")

    def fields(n: int) -> dict[str, Any]:
        return {"quant": Quant(kind, granularities[n % len(granularities)]), "sizes": (3, 2, 2, 13, 39, 32, 32)}

    return Feature(
        lambda c: c.quant is not None and c.quant.kind == kind, what,
        "code_index" if len(granularities) == 1 else "descale_dropped", fields, _CODED,
    )  # fmt: skip


def _or_grad(n: int, *more: str, **fields: Any) -> dict[str, Any]:
    """The fields, and in every other row gradients, those of the feature among them."""
    return fields if n % 2 else fields | {"want": GRAD | set(more)}


FEATURES: dict[str, Feature] = {
    "packed": Feature(lambda c: isinstance(c.storage, Packed), "packed sequences", "packed_leak",
                      lambda n: _or_grad(n, storage=Packed(n % 3))),
    "paged": Feature(lambda c: isinstance(c.storage, Paged), "keys in pages", "pages_in_order",
                     lambda n: {"storage": Paged((4, 16, 1, 7)[n % 4])}),
    "cache": Feature(lambda c: isinstance(c.storage, Cache), "a cache that grows", "cache_slot",
                     lambda n: {"storage": Cache(n % 3), "want": frozenset({"out", "lse", "k_cache", "v_cache"})}),
    "shared": Feature(lambda c: isinstance(c.storage, Shared), "values that are part of the keys", "latent_rows",
                      lambda n: {"storage": Shared(), "sizes": (2, 5, 5, 11, 29, 24, 16)}),
    "far": Feature(lambda c: isinstance(c.storage, Strided), "rows far apart in memory", "offset_32_bit",
                   lambda n: _or_grad(n, storage=Strided(1 << 26))),
    "layout": Feature(lambda c: isinstance(c.storage, Dense) and c.storage != Dense(), "axes in another order",
                      "strides_ignored", lambda n: _or_grad(n, storage=Dense(_LAYOUTS[n % 4]))),
    "rotary": Feature(lambda c: c.rotary is not None, "rotated q and k", "rotary_position",
                      lambda n: _or_grad(n, rotary=Rotary((16, 8)[n // 2 % 2], n % 3 == 0)), _WIDE, (F32, F64)),
    "int8": _quant("int8", "an int8 cache"),
    "kv-e4m3": _quant("float8_e4m3fn", "a float8 cache"),
    "kv-e5m2": _quant("float8_e5m2", "a float8 cache of two bits"),
    "q8": _quant("q8_0", "a q8_0 cache"),
    "q4": _quant("q4_0", "a q4_0 cache"),
    "mod": Feature(lambda c: c.score_mod is not None, "a modifier of the scores", "score_mod_ignored",
                   lambda n: _or_grad(n, score_mod=_MODS[n % len(_MODS)])),
    "dropout": Feature(lambda c: c.dropout is not None, "dropout on the weights", "dropout_scale",
                       lambda n: _or_grad(n, dropout=(0.1, 0.5, 0.9)[n % 3])),
    "softcap": Feature(lambda c: c.softcap is not None, "a softcap", "softcap_dropped",
                       lambda n: _or_grad(n, "dsoftcap", softcap=(2.0, 30.0, 5.0)[n % 3])),
    "sinks": Feature(lambda c: c.sinks is not None, "a sink in the denominator", "sinks_dropped",
                     lambda n: _or_grad(n, "dsinks", sinks=_SINKS[n % 3])),
    "bias": Feature(lambda c: c.bias is not None, "an additive bias", "bias_broadcast",
                    lambda n: _or_grad(n, "dbias", bias=BiasSpec(_DIMS[n % 7]))),
    "scores": Feature(lambda c: not c.want.isdisjoint(MATRICES), "scores and weights returned", "scores_stage",
                      lambda n: {"want": frozenset(MATRICES)}),
    "q-lens": Feature(lambda c: c.q_lens is not None, "lengths of queries", "tail_queries",
                      lambda n: _or_grad(n, q_lens=(17, 3, 9), sizes=(3, 2, 2, 17, 31, 16, 16))),
    "k-lens": Feature(lambda c: c.k_lens is not None, "lengths of keys", "lengths_ignored",
                      lambda n: _or_grad(n, k_lens=(37, 7, 19), sizes=(3, 2, 2, 7, 37, 16, 16))),
    "gqa": Feature(lambda c: c.H != c.Hkv, "grouped heads", "gqa_tiled",
                   lambda n: _or_grad(n, sizes=((5, 6, 2, 17, 33, 16, 16), (3, 10, 2, 13, 31, 32, 32))[n // 2 % 2])),
    "dv-wide": Feature(lambda c: c.D < c.Dv, "values wider than keys", "dv_is_d",
                       lambda n: _or_grad(n, sizes=(2, 3, 3, 15, 29, 16, 24))),
    "negative": Feature(lambda c: c.scale is not None and c.scale < 0, "a negative scale", "scale_negative",
                        lambda n: _or_grad(n, scale=(-0.5, -0.2)[n % 2])),
    "zero": Feature(lambda c: c.scale == 0, "a scale of 0", "scale_zero", lambda n: _or_grad(n, scale=0.0)),
    "out-f32": Feature(lambda c: "out_dtype" in c.features(), "an output in float32", "lse_16_bit",
                       lambda n: _or_grad(n, out_dtype=F32), (BF16, F16)),
    "dlse": Feature(lambda c: c.backward and "lse" in c.want, "a gradient at lse", "dlse_ignored",
                    lambda n: {"want": GRAD | {"lse"}}, _WIDE),
    "dscale": Feature(lambda c: "dscale" in c.want, "the gradient of the scale", "dscale_missing",
                      lambda n: {"want": GRAD | {"dscale"}}, _WIDE),
    "lse": Feature(lambda c: c.want == {"lse"}, "lse alone", "lse_scale", lambda n: {"want": frozenset({"lse"})}),
    "decode": Feature(lambda c: c.Lq == 1, "a single query", "window_decode",
                      lambda n: _or_grad(n, sizes=(2, 3, 3, 1, 35, 16, 16))),
    "square": Feature(lambda c: c.Lq == c.Lk, "as many queries as keys", "one_length",
                      lambda n: _or_grad(n, sizes=(2, 3, 3, 25, 25, 16, 16))),
    "tall": Feature(lambda c: c.Lq > c.Lk, "more queries than keys", "one_length",
                    lambda n: _or_grad(n, sizes=(2, 3, 3, 31, 19, 16, 16))),
}  # fmt: skip

_SIZES: tuple[Sizes, ...] = (
    (2, 3, 3, 17, 33, 16, 16), (3, 2, 2, 13, 29, 32, 32), (2, 5, 5, 9, 37, 16, 16), (3, 2, 2, 21, 47, 24, 24),
    (2, 3, 3, 15, 31, 16, 16), (1, 2, 2, 33, 65, 32, 32), (3, 5, 5, 7, 19, 16, 16),
)  # fmt: skip
_SHORT = {F64: "f64", F32: "f32", F16: "f16", BF16: "bf16", E4M3: "e4m3", E5M2: "e5m2"}
_NARROW = ("peaked", "uniform", "one_hot_v", "ties", "sparse_q", "needle", "v_of_k", "poisoned")
_FAMILIES = (
    "peaked", "needle", "near_ties", "poisoned", "rising", "one_hot_v", "large_logits", "normal", "cancelling_v",
    "falling", "ties", "outliers", "v_of_k", "huge_offset", "sparse_q", "all_negative_logits", "constant_v",
    "uniform", "far_below", "poisoned_pairs", "tiny", "underflow",
)  # fmt: skip


class _Met:
    """What the cases so far have together: (mask, feature), and the families of each."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()
        self.families: dict[str, set[str]] = {name: set() for name in (*MASKS, *FEATURES)}

    def add(self, case: Case) -> None:
        words = case.features()
        masks = [name for name, kind in MASKS.items() if kind.word in words]
        features = [name for name, feature in FEATURES.items() if feature.has(case)]
        self.pairs.update(product(masks, features))
        for name in (*masks, *features):
            self.families[name].add(case.family)


def rows(written: Sequence[Case]) -> tuple[Case, ...]:
    """A case for each mask and feature that no case of `written`, or row before it, has together."""
    met = _Met()
    for case in written:
        met.add(case)
    made: list[Case] = []
    for (m, mask), (f, name) in product(enumerate(MASKS), enumerate(FEATURES)):
        if (mask, name) not in met.pairs:
            made.append(_row(m, mask, f, name, met))
            met.add(made[-1])
    return tuple(made)


def _row(m: int, mask: str, f: int, name: str, met: _Met) -> Case:
    """The row of a pair; of its families the first that its feature, or else its mask, has not met."""
    kind, feature, n = MASKS[mask], FEATURES[name], m + f // 2
    fields = feature.fields(n)
    sizes = fields.pop("sizes", _SIZES[(m + 2 * f) % len(_SIZES)])
    backward = "want" in fields and not fields["want"].isdisjoint(GRAD)
    dtypes = tuple(d for d in feature.dtypes if not backward or d in feature.backward)
    dtype = dtypes[(n // 2 + f) % len(dtypes)]
    beyond = _beyond(fields, sizes[3])
    families = [x for x in (_NARROW if dtype in (E4M3, E5M2) else _FAMILIES) if x not in beyond]
    start = (5 * m + f) % len(families)
    in_turn = families[start:] + families[:start]
    family = next((x for of in (name, mask) for x in in_turn if x not in met.families[of]), in_turn[0])
    B, _, _, Lq, Lk, _, _ = sizes
    align: Align = "bottom_right" if (m + f) % 2 else "top_left"
    why = f"{kind.phrase} and {feature.phrase}; {family.replace('_', ' ')} inputs."
    return row(
        "pairs", f"{mask}-x-{name}-{_SHORT[dtype]}", why, " ".join(dict.fromkeys((kind.flag, feature.flag))), sizes,
        dtype, family, mask=kind.mask(align, B, Lq, Lk), **fields,
    )  # fmt: skip


def _beyond(fields: dict[str, Any], queries: int) -> tuple[str, ...]:
    """Families that do not go with the fields: refused, not judged, or of a flat softmax."""
    if "rotary" in fields:  # v_of_k lives in a coordinate which is not rotated; of the others, sharp, bounds are wide
        return ("v_of_k", "far_below", "huge_offset", "all_negative_logits", "rising", "falling", "large_logits")
    if "quant" in fields:  # NaN has no code; the scales would be no normal numbers; the offset takes all the codes
        return ("poisoned", "poisoned_pairs", "tiny", "underflow", "huge_offset")
    if "softcap" in fields or "score_mod" in fields:  # saturated
        return ("all_negative_logits", "far_below", "huge_offset", "rising", "falling")
    if queries == 1:  # the only query would be NaN; few rows to tell ties apart
        return ("poisoned_pairs", "ties")
    return ()
