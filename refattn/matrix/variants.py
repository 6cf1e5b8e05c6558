"""The rows of the matrix: features of attention, in groups, and which cases of the suite each is about.

A case counts in every row whose feature it has, so that a row answers "does softcap work", whatever else its cases
have; rows of several features, joined by +, answer "does it work together with that".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..case import GRADIENTS, MATRICES, Case

__all__ = ["ROWS", "Variant", "joined", "rows_of"]

Has = Callable[[Case, frozenset[str]], bool]


@dataclass(frozen=True)
class Variant:
    """A row: the word by which it is joined to others, its title, its group, and whether it is about a case.

    `has` is asked of a case and of its features, which are thus found but once for all rows.  A verdict belongs to the
    row only if of each of `outputs` one of the names was judged.
    """

    word: str
    title: str
    group: str
    has: Has
    outputs: tuple[frozenset[str], ...] = ()


def _word(*words: str) -> Has:
    """Whether a case has one of these words of `Case.features`; a word that ends in = stands for all that begin so."""
    exact, beginnings = frozenset(words), tuple(word for word in words if word.endswith("="))
    return lambda case, words: not exact.isdisjoint(words) or any(w.startswith(beginnings) for w in words)


def _chapter(name: str) -> Has:
    return lambda case, words: case.chapter == name


def _causal(align: str) -> Has:
    """Causal of that alignment, where the other one would be another mask."""
    lengths = ("Lq!=Lk", "q_lens", "k_lens")
    named = re.compile(rf"Causal\([^)]*{align}")
    return lambda case, words: (
        "causal" in words and not words.isdisjoint(lengths) and named.search(repr(case.mask)) is not None
    )


def _plain(case: Case, words: frozenset[str]) -> bool:
    return all(word == "Lq!=Lk" or word.startswith("dtype=") for word in words)


def _flag(beginning: str) -> Has:
    return lambda case, words: any(flag.startswith(beginning) for flag in case.flags)


_SINGLE: tuple[tuple[str, tuple[tuple[str, str, Has], ...]], ...] = (
    ("Sizes", (
        ("basics", "basics", _chapter("basics")),
        ("plain", "no feature at all", _plain),
        ("tails", "odd sizes, tile ± 1", _chapter("shapes")),
        ("decode", "one query", lambda case, words: case.Lq == 1),
        ("dv", "D ≠ Dv", _word("D!=Dv")),
        ("long", "thousands of keys", _chapter("long")),
        ("huge", "65,536 positions and more", _chapter("huge")),
        ("degenerate", "no keys, no queries, D = 0", _chapter("degenerate")),
    )),
    ("Numbers", (
        ("float64", "float64", _word("dtype=float64")),
        ("float32", "float32", _word("dtype=float32")),
        ("float16", "float16", _word("dtype=float16")),
        ("bfloat16", "bfloat16", _word("dtype=bfloat16")),
        ("float8", "float8", _word("dtype=float8_e4m3fn", "dtype=float8_e5m2")),
        ("out-dtype", "out of another dtype", _word("out_dtype")),
        ("hard", "overflow, underflow, ties", _chapter("precision")),
        ("nan", "NaN in hidden memory", lambda case, words: case.family.startswith("poisoned")),
    )),
    ("Masks", (
        ("mask", "boolean mask", _word("dense")),
        ("causal", "causal", _word("causal")),
        ("causal-tl", "causal, top left, Lq ≠ Lk", _causal("top_left")),
        ("causal-br", "causal, bottom right, Lq ≠ Lk", _causal("bottom_right")),
        ("window", "sliding window", _word("window")),
        ("padding", "padding mask", _word("padding")),
        ("lengths", "lengths by entry", _word("k_lens", "q_lens")),
        ("documents", "documents, segments", _word("documents")),
        ("prefix", "prefix-LM", _word("prefix")),
        ("sink-tokens", "sink tokens", _word("sinktokens")),
        ("chunked", "chunked", _word("chunked")),
        ("dilated", "dilated, global tokens", _word("dilated", "globaltokens")),
        ("blocks", "block-sparse", _word("blocksparse")),
        ("tree", "tree of drafts", _word("tree")),
        ("gathered", "gathered keys", _word("gathered")),
        ("empty", "rows that see no key", _flag("empty_")),
    )),
    ("Heads", (
        ("mha", "several heads", lambda case, words: case.H == case.Hkv > 1),
        ("gqa", "grouped heads (GQA, MQA)", _word("gqa")),
        ("mqa", "one key head (MQA)", lambda case, words: case.H > case.Hkv == 1),
    )),
    ("Scores", (
        ("scale", "scale", _word("scale")),
        ("softcap", "softcap", _word("softcap")),
        ("bias", "additive bias", _word("bias")),
        ("alibi", "ALiBi", _word("bias=alibi", "bias=alibi_signed")),
        ("bias-inf", "bias of −∞", _word("bias=minus_inf", "bias=padding")),
        ("bias-finite", "masks of −10⁴, −10⁹, lowest",
         _word("bias=minus_10000", "bias=minus_1e9", "bias=finite_min")),
        ("score-mod", "score modifiers", _word("score_mod=")),
        ("sinks", "learnable sinks", _word("sinks")),
        ("dropout", "dropout", _word("dropout")),
    )),
    ("Rotation and codes", (
        ("rotary", "rotary", _word("rotary")),
        ("int8", "int8 keys and values", _word("quant=int8")),
        ("fp8", "float8 keys and values", _word("quant=float8_e4m3fn", "quant=float8_e5m2")),
        ("ggml", "q8_0, q4_0", _word("quant=q8_0", "quant=q4_0")),
    )),
    ("Memory", (
        ("layouts", "other layouts", _word("strided")),
        ("packed", "packed sequences (varlen)", _word("packed")),
        ("paged", "paged cache", _word("paged")),
        ("cache", "append to a cache", _word("cache")),
        ("latent", "v a part of k (MLA)", _word("shared")),
        ("far", "offsets beyond 32 bits", _word("far")),
    )),
    ("Returned", (
        ("lse", "lse", lambda case, words: "lse" in case.want and not case.backward),
        ("matrices", "scores, weights", _word("matrices")),
    )),
    ("Gradients", (
        ("backward", "dq, dk, dv", _word("backward")),
        ("dlse", "through lse", _word("dlse")),
        ("dbias", "dbias", lambda case, words: "dbias" in case.want),
        ("dsinks", "dsinks", lambda case, words: "dsinks" in case.want),
        ("dscale", "dscale, dsoftcap", _word("dscale", "dsoftcap")),
    )),
)  # fmt: skip

_TOGETHER = (
    "gqa+causal-br", "gqa+causal-br+softcap", "mqa+causal", "gqa+window", "gqa+lengths", "causal-br+lengths",
    "window+softcap", "window+sinks", "alibi+causal", "sinks+causal", "documents+causal", "rotary+causal", "rotary+gqa",
    "gqa+paged", "paged+causal", "cache+rotary", "cache+window", "packed+causal", "latent+causal",
    "backward+causal", "backward+window", "backward+gqa", "backward+softcap", "backward+sinks", "backward+dropout",
    "backward+packed", "backward+lengths",
)  # fmt: skip

_SHORT = {
    "gqa": "GQA", "mqa": "MQA", "causal-br": "causal bottom right", "causal-tl": "causal top left", "alibi": "ALiBi",
    "lengths": "lengths by entry", "backward": "gradients", "latent": "MLA", "paged": "pages", "dv": "D ≠ Dv",
}  # fmt: skip
"""the words of a joined row that are not their own title"""

_OUTPUTS = {
    "lse": {"lse"}, "matrices": MATRICES, "backward": GRADIENTS, "dbias": {"dbias"}, "dsinks": {"dsinks"},
    "dscale": {"dscale", "dsoftcap"},
}  # fmt: skip
"""of a row about what is returned, its names"""

_ALONE = {
    word: Variant(word, title, group, has, (frozenset(_OUTPUTS[word]),) if word in _OUTPUTS else ())
    for group, rows in _SINGLE
    for word, title, has in rows
}


def joined(words: str) -> Variant:
    """The row of all the features that are joined by +; refused if a word is none of ROWS.

    >>> joined("gqa+softcap").title
    'GQA + softcap'
    """
    unknown = [word for word in words.split("+") if word not in _ALONE]
    if unknown:
        raise ValueError(f"row {words!r}: {unknown[0]!r} is not one of {', '.join(_ALONE)}, joined by +")
    parts = [_ALONE[word] for word in words.split("+")]
    title = " + ".join(_SHORT.get(part.word, part.word) for part in parts)
    outputs = tuple(names for part in parts for names in part.outputs)
    return Variant(words, title, "Together", lambda case, words: all(part.has(case, words) for part in parts), outputs)


ROWS: tuple[Variant, ...] = (*_ALONE.values(), *map(joined, _TOGETHER))


def rows_of(cases: Sequence[Case], more: Sequence[str] = ()) -> list[tuple[Variant, frozenset[str]]]:
    """The rows that some of the cases belong to, and `more` such as "gqa+softcap", each with the ids of its cases."""
    rows = (*ROWS, *(joined(words) for words in more))
    words = {case.id: case.features() for case in cases}
    found = [(row, frozenset(c.id for c in cases if row.has(c, words[c.id]))) for row in dict.fromkeys(rows)]
    return [(row, ids) for row, ids in found if ids]
