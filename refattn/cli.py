"""The command `refattn`: check, matrix, judge, list, show, fuzz, teeth, vectors, prove.

Exit codes of check: 0 if no case (or law) failed and every case of the basics chapter passed, 1 if not, 2
for a mistake in how it was called, 130 if it was interrupted.  Of judge: 0 if all is within bound, 1 if
not.  Of matrix: 0 if nothing failed but what is known to.  Of teeth: 0 if every mutant is killed that can
be, and no honest kernel.
Of prove: 0 if all claims hold, 1 if one is refuted or its proof failed, 3 if one is undecided.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import check_command, judge_command, selection, vectors_command
from .check_command import natural, positive
from .implementation import DEFAULT
from .matrix import command as matrix_command
from .teeth import command as teeth_command

if TYPE_CHECKING:
    from .judge import Verdict

__all__ = ["main"]


class _Usage(Exception):
    """A mistake of the caller, in one line."""


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a candidate says may not be encodable
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(argv)
    except KeyboardInterrupt:  # at any time, from the first import on
        print("refattn: interrupted", file=sys.stderr)
        return 130


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    from .conform import BadContract
    from .said import plain
    from .worker import CannotLoad

    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except (_Usage, BadContract, CannotLoad) as error:
        print(f"refattn: error: {plain(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # of `refattn list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


class _Parser(argparse.ArgumentParser):
    """Takes options by their whole names: --law is not short for --laws."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from .report import suite_version

        print(f"refattn {suite_version()}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="refattn", description="Judges implementations of attention.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the suite's version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    chosen = _Parser(add_help=False)
    selection.add_options(chosen)

    candidate = _Parser(add_help=False)
    candidate.add_argument(
        "implementation", nargs="?", default=DEFAULT, metavar="IMPL",
        help="module:callable, or torch, or refattn (the default: its own kernel)",
    )  # fmt: skip
    candidate.add_argument("--seed", type=natural, default=0, metavar="N", help="shift the seed of every case by N")
    candidate.add_argument("--timeout", type=positive, default=60.0, metavar="S", help="seconds for one call (60)")

    check_command.add_parser(commands, [candidate, chosen]).set_defaults(command=_check)

    judge_command.add_parser(commands).set_defaults(command=_judge)

    lists = commands.add_parser("list", parents=[chosen], help="one line for each case")
    lists.set_defaults(command=_list)
    lists.add_argument("--laws", action="store_true", help="in place of the cases the laws")

    show = commands.add_parser("show", help="all about one case, with the picture of its mask")
    show.add_argument("case", metavar="CASE")
    show.set_defaults(command=_show)

    fuzz = commands.add_parser("fuzz", parents=[candidate], help="random cases, shrunk to the smallest that fails")
    fuzz.add_argument("--seconds", type=positive, default=60.0, metavar="S", help="how long to search (default 60)")
    fuzz.set_defaults(command=_fuzz)

    matrix_command.add_parser(commands, [chosen]).set_defaults(command=_matrix)
    teeth_command.add_parser(commands).set_defaults(command=_teeth)
    vectors_command.add_parser(commands, [chosen]).set_defaults(command=_vectors)

    prove = commands.add_parser("prove", help="run the proofs of this checkout, and write a page with their pictures")
    prove.set_defaults(command=_prove)
    prove.add_argument("--proofs", type=Path, default=Path("proofs"), metavar="DIR", help="where they are (proofs)")
    prove.add_argument("--only", action="append", default=[], metavar="NAME", help="a proof or glob; may be repeated")
    prove.add_argument("--quick", action="store_true", help="a few seconds each, wider margins")
    prove.add_argument("--seed", type=natural, default=0, metavar="N", help="the seed of all (0)")
    prove.add_argument("--jobs", type=natural, default=0, metavar="N", help="so many at a time (0: a core each)")
    prove.add_argument("--json", type=Path, metavar="FILE", help="write all findings as JSON")
    prove.add_argument("--html", type=Path, metavar="FILE", help="write one page with the pictures; needs matplotlib")
    prove.add_argument("--markdown", type=Path, metavar="FILE", help="the same, with the pictures in files beside it")
    return parser


def _check(arguments: argparse.Namespace) -> int:
    _writeable(*((f"--{name}", getattr(arguments, name)) for name in ("json", "junit", "record")))
    try:
        return check_command.command(arguments)
    except check_command.CannotCheck as error:
        raise _Usage(str(error)) from None


def _judge(arguments: argparse.Namespace) -> int:
    _writeable(("--json", arguments.json))
    try:
        return judge_command.command(arguments)
    except judge_command.CannotJudge as error:
        raise _Usage(str(error)) from None


def _writeable(*files: tuple[str, Path | None]) -> None:
    for option, path in files:
        if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
            raise _Usage(f"{option}: {path} cannot be written; it must be a file in a folder that exists")


def _matrix(arguments: argparse.Namespace) -> int:
    _writeable(*((f"--{name}", getattr(arguments, name)) for name in matrix_command.FILES))
    try:
        return matrix_command.command(arguments)
    except matrix_command.CannotDraw as error:
        raise _Usage(str(error)) from None


def _teeth(arguments: argparse.Namespace) -> int:
    _writeable(*((f"--{name}", getattr(arguments, name)) for name in ("json", "html", "markdown", "out")))
    try:
        return teeth_command.command(arguments, check_command.stdout())
    except teeth_command.CannotBite as error:
        raise _Usage(str(error)) from None


def _list(arguments: argparse.Namespace) -> int:
    from .laws import LAWS
    from .show import line

    if arguments.laws:
        if selection.given(arguments):
            raise _Usage("list --laws lists all of them; without other options")
        width = max(map(len, LAWS))
        for law in LAWS.values():
            print(f"{law.name:{width}}  {law.kind:7}  {law.statement}")
        return 0
    try:
        cases = selection.selected(arguments)
    except ValueError as error:
        raise _Usage(str(error)) from None
    for case in cases:
        print(line(case))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from .cases import FLAGS, by_id
    from .show import page

    try:
        case = by_id(arguments.case)
    except (KeyError, ValueError) as error:
        raise _Usage(str(error.args[0])) from None
    print(page(case, FLAGS))
    return 0


def _fuzz(arguments: argparse.Namespace) -> int:
    from .fuzz import fuzz
    from .report import failure
    from .said import cleaned
    from .worker import Worker

    try:
        import hypothesis  # noqa: F401
    except ImportError:
        raise _Usage("fuzz needs hypothesis: pip install hypothesis") from None
    with Worker(arguments.implementation, arguments.timeout) as worker:
        outcome = fuzz(worker, arguments.seconds, arguments.seed, _ticker())
    print(f"{outcome.ran} random cases, {outcome.unsupported} unsupported, seed {arguments.seed}")
    if outcome.failure is None:
        if outcome.ran == outcome.unsupported:
            print("no success: no case was judged")
            return 1
        return 0
    print(json.dumps(outcome.failure.case.to_json(), indent=1))
    print(failure(cleaned(outcome.failure), arguments.implementation))
    return 1


def _ticker() -> Callable[[Verdict], None]:
    """Counts on stderr, if that is a terminal."""
    count = 0

    def tick(verdict: Verdict) -> None:
        nonlocal count
        count += 1
        if sys.stderr.isatty() and count % 20 == 0:
            print(f"\r{count} cases", end="", file=sys.stderr, flush=True)

    return tick


def _vectors(arguments: argparse.Namespace) -> int:
    try:
        return vectors_command.command(arguments)
    except vectors_command.CannotDo as error:
        raise _Usage(str(error)) from None


def _prove(arguments: argparse.Namespace) -> int:
    from .prove import CannotProve, command

    _writeable(*((f"--{name}", getattr(arguments, name)) for name in ("json", "html", "markdown")))
    try:
        return command(arguments, check_command.stdout())
    except CannotProve as error:
        raise _Usage(str(error)) from None
