"""The table of cases, by chapter, and FLAGS, the bugs they are for.

>>> by_id("causal-br-1x2-f32").flags
('causal_top_left',)
>>> [c.id for c in select(["causal-*"], chapters=["basics"], dtypes=["float16"])]
['causal-f16']
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ..case import Case
from . import basics, degenerate, gradients, heads, long, masks, patterns, precision, scores, shapes
from .flags import FLAGS

__all__ = ["CASES", "CHAPTERS", "FLAGS", "by_id", "select"]

CASES: tuple[Case, ...] = tuple(
    case
    for chapter in (basics, shapes, masks, patterns, heads, scores, precision, long, gradients, degenerate)
    for case in chapter.CASES
)
CHAPTERS: tuple[str, ...] = tuple(dict.fromkeys(case.chapter for case in CASES))
_BY_ID = {case.id: case for case in CASES}


def by_id(id: str) -> Case:
    """The case of that id."""
    if id not in _BY_ID:
        raise ValueError(f"id={id!r} is no case; `refattn list` shows them")
    return _BY_ID[id]


def select(
    patterns: Iterable[str] = (), chapters: Iterable[str] = (), dtypes: Iterable[str] = ()
) -> tuple[Case, ...]:  # fmt: skip
    """The cases that match any of the glob patterns, any of the chapters and any of the dtypes.

    Nothing given means all.  Refused: a pattern that matches no id, a chapter or dtype that no case has.
    """
    patterns, chapters, dtypes = tuple(patterns), tuple(chapters), tuple(dtypes)
    for pattern in patterns:
        if not any(fnmatchcase(case.id, pattern) for case in CASES):
            raise ValueError(f"pattern {pattern!r} matches no case; `refattn list` shows them")
    for what, given, known in (
        ("chapter", chapters, CHAPTERS),
        ("dtype", dtypes, tuple(dict.fromkeys(case.dtype for case in CASES))),
    ):
        for name in given:
            if name not in known:
                raise ValueError(f"{what} {name!r} is not one of {', '.join(known)}")
    return tuple(
        case
        for case in CASES
        if (not patterns or any(fnmatchcase(case.id, pattern) for pattern in patterns))
        and (not chapters or case.chapter in chapters)
        and (not dtypes or case.dtype in dtypes)
    )
