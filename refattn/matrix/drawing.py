"""The pictures of `refattn.picture` as SVG that stands in a page: colours come from its style sheet, by class.

Fields of a map that are of a kind and follow one another in a line are one stroke of a path, of width 1, which is a
tenth of the text that squares would be; so are bars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ..picture import FIRST

__all__ = ["CLASSES", "bars", "heat_map", "said", "ticks"]

CLASSES = {
    "ratio": {"0": "ok", "1": "a1", "2": "a2", "3": "a3", "4": "a4", "5": "a5"},
    "weight": {"0": "ok", "-": "hid", "1": "b1", "2": "b2", "3": "b3", "A": "a1", "B": "a3", "C": "a5"},
}  # fmt: skip
"""the class of each sign: a for too much, b for missing"""
KEYS = {
    "ratio": (("ok", 0, 3, "in bounds"), ("a1", 52, 3, "≤ 3"), ("a2", 88, 3, "≤ 10"),
              ("a3", 0, 13, "≤ 100"), ("a4", 52, 13, "≤ 10⁴"), ("a5", 88, 13, "more, NaN")),
    "weight": (("b2", 0, 3, "weight missing"), ("a3", 68, 3, "too much"),
               ("ok", 0, 13, "right"), ("hid", 68, 13, "hidden, right")),
}  # fmt: skip
"""what the colours of a map mean: class, place, and text"""
TICKS = (-10, 0, 10, 20)
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def heat_map(picture: Mapping[str, Any]) -> str:
    """The paths of a map, as wide and as high as it has fields, half a field too high up."""
    strokes: dict[str, list[str]] = {}
    ends: dict[str, tuple[int, int]] = {}
    for y, line in enumerate(picture["map"]):
        x = 0
        for sign, run in groupby(line):
            n = len(list(run))
            name = CLASSES[picture["of"]].get(sign)
            if name:
                before = ends.get(name, (0, 0))
                strokes.setdefault(name, []).append(f"m{x - before[0]} {y - before[1]}h{n}")
                ends[name] = x + n, y
            x += n
    return _paths(strokes)


def _paths(strokes: Mapping[str, list[str]]) -> str:
    return "".join(f'<path class="{name}" d="{"".join(d)}"/>' for name, d in strokes.items() if d)


def said(picture: Mapping[str, Any]) -> str:
    """What is drawn, in a sentence.

    >>> said({"output": "out", "at": {"head": 3}, "down": ["row", 40], "across": ["column", 64]})
    'out of head 3: 40 rows down, 64 columns across'
    """
    at = ", ".join(f"{name} {i}" for name, i in picture["at"].items())
    sizes = [f"{n:,} {_many(name, n)} {way}" for (name, n), way in
             ((picture["down"], "down"), (picture["across"], "across")) if name]  # fmt: skip
    return f"{picture['output']}{' of ' if at else ''}{at}{': ' if sizes else ''}{', '.join(sizes)}"


def _many(name: str, n: int) -> str:
    return name if n == 1 else "entries" if name == "entry" else f"{name}s"


def bars(picture: Mapping[str, Any], height: float = 24.0) -> str:
    """The histogram as two paths: bins within the bound, and beyond; heights are logarithms of counts."""
    counts = picture["histogram"]
    top = max(max(counts), 1)
    paths: dict[str, list[str]] = {"in": [], "out": []}
    for at, count in enumerate(counts):
        if count:
            h = round(height * (1 + math.log2(count)) / (1 + math.log2(top)), 1)
            paths["in" if FIRST + at <= 0 else "out"].append(f"M{at} {height:g}v-{h:g}")
    return _paths(paths)


def ticks() -> list[tuple[float, str]]:
    """Where the powers of two stand below the bars, at the right end of theirs, and their texts."""
    return [(at - FIRST + 0.5, "1" if at == 0 else "2" + str(at).translate(_RAISED)) for at in TICKS]
