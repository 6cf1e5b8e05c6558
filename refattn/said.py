"""What a candidate said, as text that is safe to print, to send and to keep."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from .judge import Verdict

__all__ = ["cleaned", "plain", "without_folders"]

LIMIT = 4000
"""characters that are kept of one text: its beginning and its end"""
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_FOLDERS = re.compile(
    r"""(?<=["'])(?:[A-Za-z]:)?[/\\][^"'\n]*[/\\]"""  # within quotes, as of frames, names may hold spaces
    r"""|(?<![\w.:/])/(?:[^\s/"':]+/)+"""
    r"""|\b[A-Za-z]:\\(?:[^\s\\"':]+\\)+"""
)


def plain(text: str) -> str:
    r"""The text, shortened where it is long, with backslashes for what steers a terminal or is not encodable.

    >>> print(plain("red \x1b[31m, half a pair \ud800"))
    red \x1b[31m, half a pair \ud800
    """
    return _UNSAFE.sub(_escape, _shortened(text))


def without_folders(text: str) -> str:
    r"""The text with the names of files alone, for a page that others read: where they lie is of this machine.

    >>> print(without_folders('File "/home/me/my code/kernel.py", line 3 in run\nOSError: /tmp/x/model.bin, 1/2/3'))
    File "kernel.py", line 3 in run
    OSError: model.bin, 1/2/3
    """
    return _FOLDERS.sub("", text)


def cleaned(verdict: Verdict, by: Callable[[str], str] = plain) -> Verdict:
    """The verdict with plain texts, or with what `by` makes of each."""
    texts = verdict.reasons, verdict.notes, verdict.suspicions
    reasons, notes, suspicions = (tuple(map(by, each)) for each in texts)
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
