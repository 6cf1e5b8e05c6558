"""Random small cases over all features: strategies of hypothesis for a project's own tests.

    from refattn.strategies import problems

    @given(problem=problems(features=["causal", "gqa", "Lq!=Lk"], dtypes=["float32"], align="bottom_right"))
    def test_mine(problem):
        q, k, v = (problem.fresh()[name] for name in "qkv")
        out = my_attention(q, k, v, causal=problem.case.mask is not None)
        refattn.assert_attention(out, q, k, v, mask=problem.case.mask)

Nothing is refused afterwards: every draw is a valid case, and has no feature that was not asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from .case import Case
from .draw import MASKS, STORAGES, Bounds, Draw, matches
from .dtypes import format_of
from .inputs import BIAS, FAMILIES, Problem, make
from .quantise import KINDS
from .score_mods import SCORE_MODS
from .visibility import check_align

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["WORDS", "cases", "problems"]

DTYPES = ("float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
LENGTHS = (1, 2, 3, 4, 5, 7, 9, 0, 15, 16, 17, 31, 33, 65)
WORDS = (
    "mask", *MASKS, "gqa", "D!=Dv", "Lq!=Lk", "scale", "softcap", *(f"bias={f}" for f in BIAS), "sinks", "q_lens",
    "k_lens", "backward", "dlse", "dscale", "dsoftcap", "matrices", "strided", "far", "shared", *STORAGES, "cache",
    *(f"score_mod={name}" for name in SCORE_MODS), "dropout", "rotary", *(f"quant={kind}" for kind in KINDS),
)  # fmt: skip
"""the features that can be asked for: words of `Case.features`, or what stands before their ="""


def problems(**filters: Any) -> SearchStrategy[Problem]:
    """Cases with their arrays; `filters` are those of `cases`."""
    return cases(**filters).map(make)


def cases(
    *, features: Iterable[str] | None = None, without: Iterable[str] = (), dtypes: Sequence[str] = DTYPES,
    align: str | None = None, families: Sequence[str] = ("normal", *FAMILIES), lengths: Sequence[int] = LENGTHS,
    D: Sequence[int] | None = None, B: Sequence[int] = (1, 2, 3), Hkv: Sequence[int] = (1, 2),
    groups: Sequence[int] = (1, 2, 3),
) -> SearchStrategy[Case]:  # fmt: skip
    """Cases of a few dozen elements; the simplest is one float32 query and key.

    `features`: words, or globs, of `refattn list` that a case may have, None = any: causal, window, gqa, "Lq!=Lk",
    softcap, bias, backward, "quant=*" ...; "mask" stands for all masks and their combinations.  `without`: those
    that it must not have.  `align`: of masks, top_left or bottom_right, None = both.  The others are what is
    drawn from, the simplest first.  D, the size of keys and values, is from 1 to 17 if it is None.  Of the families
    those named poisoned hold NaN where a kernel must not look; a dtype of narrow range gets "normal" for one that
    it has no room for.
    """
    from hypothesis import strategies as st

    if align is not None:
        check_align(align)
    aligns = ("top_left", "bottom_right") if align is None else (align,)
    for dtype in dtypes:
        format_of(dtype)
    for family in families:
        if family not in FAMILIES:
            raise ValueError(f"families={tuple(families)} has {family!r}, which is not one of {', '.join(FAMILIES)}")
    wanted = None if features is None else _known("features", features)
    sizes = (tuple(B), tuple(Hkv), tuple(groups), tuple(lengths), None if D is None else tuple(D))
    bounds = Bounds(wanted, _known("without", without), tuple(dtypes), aligns, tuple(families), *sizes)
    return st.builds(Draw, st.data(), st.just(bounds)).map(Draw.case)


def _known(name: str, words: Iterable[str]) -> tuple[str, ...]:
    """The words; refused if one stands for nothing."""
    words = (words,) if isinstance(words, str) else tuple(words)
    for word in words:
        if not any(matches(known, (word,)) for known in WORDS):
            near = get_close_matches(word, WORDS, 1)
            raise ValueError(f"{name}: {word!r} is no feature; use {near[0] if near else 'one of ' + ', '.join(WORDS)}")
    return words
