"""Which cases a run of `refattn check` is about, and which of them are known to fail."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import selection
from .case import Case

__all__ = ["CannotCheck", "chosen", "known_to_fail"]

MOST_NUMBERS, MOST_SCORES = 2**28, 2**30
"""of a case given as JSON: in q, k, v, out together, and B * H * Lq * Lk; the suite's largest have 2**24, 2**23"""


class CannotCheck(Exception):
    """A mistake of the caller, in one line."""


def chosen(arguments: argparse.Namespace) -> tuple[Case, ...]:
    """The cases, or the laws as cases."""
    given = [option for option in selection.given(arguments) if option != "--full"]
    if arguments.case_json and given:
        raise CannotCheck(f"--case-json and {', '.join(given)} exclude each other")
    if arguments.captured:
        return _captured(arguments)
    if arguments.laws or arguments.law:
        return _laws(arguments)
    if arguments.case_json:
        return _cases_of(arguments.case_json)
    try:
        return selection.selected(arguments)
    except ValueError as error:
        raise CannotCheck(str(error)) from None


def _laws(arguments: argparse.Namespace) -> tuple[Case, ...]:
    """The rows of the laws; refused if none is left."""
    from .laws import BASES, rows, select

    others = [option for option in selection.given(arguments) if option != "--dtype"]
    if others:
        raise CannotCheck(f"--laws and {', '.join(others)} exclude each other; --law and --dtype select among the laws")
    bases = _cases_of(arguments.case_json) if arguments.case_json else BASES
    try:
        found = rows(select(arguments.law), [c for c in bases if not arguments.dtype or c.dtype in arguments.dtype])
    except ValueError as error:
        raise CannotCheck(f"--law: {error}") from None
    if not found:
        raise CannotCheck("no law applies to what is selected")
    return found


def _captured(arguments: argparse.Namespace) -> tuple[Case, ...]:
    """The cases of a file of captured arrays, of the dtypes that are meant."""
    from .inputs import make
    from .inputs.captured import cases_of

    others = [option for option in selection.given(arguments) if option != "--dtype"]
    others += [f"--{name.replace('_', '-')}" for name in ("case_json", "laws", "law") if getattr(arguments, name)]
    if others:
        raise CannotCheck(f"--captured and {', '.join(others)} exclude each other; --dtype selects among its cases")
    try:
        cases = tuple(c for c in cases_of(arguments.captured) if not arguments.dtype or c.dtype in arguments.dtype)
        for case in cases:
            make(case)
    except (ValueError, TypeError) as error:
        raise CannotCheck(f"--captured: {error}") from None
    return cases


def _cases_of(text: str) -> tuple[Case, ...]:
    """The cases of a JSON text or file; refused, with the reason, if they make no problem."""
    from .inputs import make

    try:
        data = json.loads(text if text.lstrip().startswith(("{", "[")) else Path(text).read_text())
        cases = tuple(map(_case_of, data if isinstance(data, list) else [data]))
        for case in cases:
            _check_size(case)
            make(case)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        raise CannotCheck(f"--case-json: {type(error).__name__}: {error}") from None
    return cases


def _case_of(data: Any) -> Case:
    """The case, which may make arrays of its lengths as soon as it is there."""
    for name in ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv"):
        size = data.get(name)
        if isinstance(size, int) and size > MOST_NUMBERS:
            raise ValueError(f"{name}={size} must be <= {MOST_NUMBERS:,}")
    return Case.from_json(data)


def _check_size(case: Case) -> None:
    """Refuse what would not fit in memory."""
    numbers = case.B * (case.H * case.Lq + case.Hkv * case.Lk) * (case.D + case.Dv)
    scores = case.scores
    for what, found, most in (("numbers in q, k, v, out", numbers, MOST_NUMBERS), ("scores", scores, MOST_SCORES)):
        if found > most:
            raise ValueError(f"{case.id}: {found:,} {what} must be <= {most:,}; make B, H, Lq, Lk or D smaller")


def known_to_fail(arguments: argparse.Namespace, cases: Sequence[Case]) -> dict[str, str]:
    """The user's list, or that which comes with refattn for a library."""
    from .expected import expected_failures, shipped

    path = arguments.expected_failures or shipped(arguments.implementation)
    if path is None:
        return {}
    try:
        return expected_failures(path, arguments.implementation, cases)
    except (OSError, ValueError) as error:
        raise CannotCheck(f"--expected-failures: {error}") from None
