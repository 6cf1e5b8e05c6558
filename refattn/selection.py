"""The options that say which cases a command is about, the same in all commands."""

from __future__ import annotations

import argparse

from .case import Case

__all__ = ["OPTIONS", "add_options", "given", "selected"]

OPTIONS = {
    "case": ("ID", "a case or glob"),
    "chapter": ("C", "a chapter"),
    "dtype": ("D", "a dtype"),
    "feature": ("F", "a feature or glob, such as rotary or quant=*"),
    "only": ("WORD", "cases with this id, chapter, dtype, feature or flag, or glob of one"),
    "skip": ("WORD", "leave out what has this id, chapter, dtype, feature or flag, or glob of one"),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    for option, (metavar, what) in OPTIONS.items():
        text = f"{what}; may be repeated"
        parser.add_argument(f"--{option}", action="append", default=[], metavar=metavar, help=text)
    parser.add_argument("--full", action="store_true", help="the chapter huge too, which takes minutes")


def given(arguments: argparse.Namespace) -> list[str]:
    """Which of these options were given."""
    return [f"--{name}" for name in (*OPTIONS, "full") if getattr(arguments, name)]


def selected(arguments: argparse.Namespace) -> tuple[Case, ...]:
    """The cases that are meant; raises ValueError for a word that means none."""
    from .cases import select

    return select(
        arguments.case, arguments.chapter, arguments.dtype, arguments.feature, arguments.full, arguments.only,
        arguments.skip,
    )  # fmt: skip
