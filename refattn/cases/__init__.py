"""The table of cases, by chapter, and FLAGS, the bugs they are for.

>>> by_id("causal-br-1x2-f32").flags
('causal_top_left',)
>>> [c.id for c in select(["causal-*"], chapters=["basics"], dtypes=["float16"])]
['causal-f16']

Two tiers: what is selected without a word is the usual one, which covers every feature and flag in a
minute; the chapters of FULL come along when they are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from ..case import Case
from ..nearest import nearest
from . import (
    basics,
    captured,
    degenerate,
    gradients,
    heads,
    huge,
    long,
    masks,
    modifiers,
    outputs,
    pairs,
    patterns,
    precision,
    scores,
    shapes,
    storage,
    transforms,
)
from .flags import FLAGS

__all__ = ["CASES", "CHAPTERS", "FLAGS", "FULL", "by_id", "select"]

_WRITTEN: tuple[Case, ...] = tuple(
    case
    for chapter in (
        basics, shapes, masks, patterns, heads, scores, modifiers, transforms, storage, outputs, precision, long,
        gradients, degenerate,
    )
    for case in chapter.CASES
)  # fmt: skip
CASES: tuple[Case, ...] = (*_WRITTEN, *captured.CASES, *pairs.rows(_WRITTEN), *huge.CASES)
CHAPTERS: tuple[str, ...] = tuple(dict.fromkeys(case.chapter for case in CASES))
FULL: tuple[str, ...] = ("huge",)
"""chapters that a run leaves out unless it is a full one, or they are named"""
_BY_ID = {case.id: case for case in CASES}


def by_id(id: str) -> Case:
    """The case of that id."""
    if id not in _BY_ID:
        raise ValueError(f"id={id!r} is no case; {nearest(id, _BY_ID)}`refattn list --full` shows them")
    return _BY_ID[id]


def select(
    patterns: Iterable[str] = (), chapters: Iterable[str] = (), dtypes: Iterable[str] = (),
    features: Iterable[str] = (), full: bool = False, only: Iterable[str] = (), skip: Iterable[str] = (),
) -> tuple[Case, ...]:  # fmt: skip
    """The cases that match any of the patterns (globs), chapters, dtypes and features (globs of `Case.features`).

    Words of `only`, of which one has to match, and of `skip`, of which none may, are globs of a case's id, chapter,
    dtype, features and flags.

    Nothing given means all, the chapters of FULL only if `full`; of patterns and chapters given, all that match.
    Refused: a pattern that matches no id, a chapter, dtype, feature or word that no case has.
    """
    only, skip = tuple(only), tuple(skip)
    for word in (*only, *skip):
        if not any(_has(case, word) for case in CASES):
            near = nearest(word, frozenset().union(*map(_names, CASES)))
            raise ValueError(f"{word!r} is no id, chapter, dtype, feature or flag; {near}`refattn show CASE` has them")
    patterns, chapters, dtypes, features = tuple(patterns), tuple(chapters), tuple(dtypes), tuple(features)
    words = frozenset().union(*(case.features() for case in CASES)) if features else frozenset()
    for feature in features:
        if not any(fnmatchcase(word, feature) for word in words):
            globs = {f"{word.partition('=')[0]}=*" for word in words if "=" in word}
            near = nearest(f"{feature}=*", globs) or nearest(feature, words)
            raise ValueError(f"feature {feature!r}: {near}there are {', '.join(sorted(words))}")
    for pattern in patterns:
        if not any(fnmatchcase(case.id, pattern) for case in CASES):
            near = nearest(pattern, _BY_ID)
            raise ValueError(f"pattern {pattern!r} matches no case; {near}`refattn list --full` shows them")
    for what, given, known in (
        ("chapter", chapters, CHAPTERS),
        ("dtype", dtypes, tuple(dict.fromkeys(case.dtype for case in CASES))),
    ):
        for name in given:
            if name not in known:
                raise ValueError(f"{what} {name!r} is not one of {', '.join(known)}")
    everything = full or bool(patterns) or bool(chapters)
    return tuple(
        case
        for case in CASES
        if (everything or case.chapter not in FULL or any(_has(case, w, {case.id, case.chapter}) for w in only))
        and (not only or any(_has(case, word) for word in only))
        and not any(_has(case, word) for word in skip)
        and (not patterns or any(fnmatchcase(case.id, pattern) for pattern in patterns))
        and (not chapters or case.chapter in chapters)
        and (not dtypes or case.dtype in dtypes)
        and (not features or any(fnmatchcase(word, f) for word in case.features() for f in features))
    )


def _names(case: Case) -> frozenset[str]:
    """All words by which a case can be meant."""
    return frozenset({case.id, case.chapter, case.dtype, *case.flags}) | case.features()


def _has(case: Case, word: str, names: Collection[str] | None = None) -> bool:
    return any(fnmatchcase(name, word) for name in (_names(case) if names is None else names))
