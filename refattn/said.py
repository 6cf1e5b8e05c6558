"""What a candidate said, as text that is safe to print, to send and to keep."""

from __future__ import annotations

import dataclasses
import re

from .judge import Verdict

__all__ = ["cleaned", "plain"]

LIMIT = 4000
"""characters that are kept of one text: its beginning and its end"""
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain(text: str) -> str:
    r"""The text, shortened where it is long, with backslashes for what steers a terminal or is not encodable.

    >>> print(plain("red \x1b[31m, half a pair \ud800"))
    red \x1b[31m, half a pair \ud800
    """
    return _UNSAFE.sub(_escape, _shortened(text))


def cleaned(verdict: Verdict) -> Verdict:
    """The verdict with plain texts."""
    reasons, notes, suspicions = (
        tuple(map(plain, texts)) for texts in (verdict.reasons, verdict.notes, verdict.suspicions)
    )
    return dataclasses.replace(verdict, reasons=reasons, notes=notes, suspicions=suspicions)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _shortened(text: str) -> str:
    if len(text) <= LIMIT:
        return text
    head, tail = text[: LIMIT // 2], text[-LIMIT // 2 :]
    if (end := head.rfind("\n")) > LIMIT // 4:  # whole lines, unless they are long
        head = head[:end]
    if -1 < (begin := tail.find("\n")) < LIMIT // 4:
        tail = tail[begin + 1 :]
    return f"{head}\n... {len(text) - len(head) - len(tail):,} characters are left out ...\n{tail}"
