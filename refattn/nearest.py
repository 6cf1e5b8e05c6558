"""What a mistyped name may stand for."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

__all__ = ["nearest"]


def nearest(word: str, known: Collection[str]) -> str:
    """The known words that are like it, or parts of it, as the beginning of a cure.

    >>> nearest("is_causal", ["causal", "scale"]), nearest("softmax_scale", ["causal", "scale"])
    ('do you mean causal? ', 'do you mean scale? ')
    >>> nearest("x", ["causal", "scale"])
    ''
    """
    found = get_close_matches(word, known, 3, 0.7) or [part for part in word.split("_") if part in known]
    return f"do you mean {' or '.join(found)}? " if found else ""
