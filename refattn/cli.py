"""The command `refattn`: check, judge, list, show, fuzz, teeth, prove.

Exit codes of check: 0 if no case (or law) failed and every case of the basics chapter passed, 1 if not, 2
for a mistake in how it was called, 130 if it was interrupted.  Of judge: 0 if all is within bound, 1 if
not.  Of teeth: 0 if every mutant is killed that can be, and no honest kernel.
Of prove: 0 if all claims hold, 1 if one is refuted or its proof failed, 3 if one is undecided.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import check_command, judge_command
from .case import Case
from .implementation import DEFAULT
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
    arguments = _parser().parse_args(argv)
    from .conform import BadContract
    from .worker import CannotLoad

    try:
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except (_Usage, BadContract, CannotLoad) as error:
        print(f"refattn: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("refattn: interrupted", file=sys.stderr)
        return 130
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

    selection = _Parser(add_help=False)
    for option, metavar, what in (
        ("case", "ID", "case or glob"), ("chapter", "C", "chapter"), ("dtype", "D", "dtype"),
        ("feature", "F", "feature or glob, such as rotary or quant=*"),
    ):  # fmt: skip
        text = f"a {what}; may be repeated"
        selection.add_argument(f"--{option}", action="append", default=[], metavar=metavar, help=text)
    selection.add_argument("--full", action="store_true", help="the chapter huge too, which takes minutes")

    candidate = _Parser(add_help=False)
    candidate.add_argument(
        "implementation", nargs="?", default=DEFAULT, metavar="IMPL",
        help="module:callable, or torch, or refattn (the default: its own kernel)",
    )  # fmt: skip
    candidate.add_argument("--seed", type=_natural, default=0, metavar="N", help="shift the seed of every case by N")
    candidate.add_argument("--timeout", type=_positive, default=60.0, metavar="S", help="seconds for one call (60)")

    check = commands.add_parser("check", parents=[candidate, selection], help="judge an implementation case by case")
    check.set_defaults(command=_check)
    check.add_argument("--case-json", metavar="JSON", help="a case as JSON, or a file of one case or of a list")
    check.add_argument(
        "--laws", action="store_true",
        help="in place of the cases the laws, which relate answers to each other (with --case-json: on those cases)",
    )  # fmt: skip
    check.add_argument("--law", action="append", default=[], metavar="L", help="a law or glob; may be repeated")
    check.add_argument(
        "--expected-failures", type=Path, metavar="FILE",
        help="lines `ID-or-glob  # reason`; one that passes is an error",
    )  # fmt: skip
    check.add_argument("--dump", type=Path, metavar="DIR", help="write the tensors of failing cases as safetensors")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    check.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML")
    check.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")

    judge_command.add_parser(commands).set_defaults(command=_judge)

    lists = commands.add_parser("list", parents=[selection], help="one line for each case")
    lists.set_defaults(command=_list)
    lists.add_argument("--laws", action="store_true", help="in place of the cases the laws")

    show = commands.add_parser("show", help="all about one case, with the picture of its mask")
    show.add_argument("case", metavar="CASE")
    show.set_defaults(command=_show)

    fuzz = commands.add_parser("fuzz", parents=[candidate], help="random cases, shrunk to the smallest that fails")
    fuzz.add_argument("--seconds", type=_positive, default=60.0, metavar="S", help="how long to search (default 60)")
    fuzz.set_defaults(command=_fuzz)

    teeth_command.add_parser(commands).set_defaults(command=_teeth)

    prove = commands.add_parser("prove", help="run the proofs of this checkout, and write a page with their pictures")
    prove.set_defaults(command=_prove)
    prove.add_argument("--proofs", type=Path, default=Path("proofs"), metavar="DIR", help="where they are (proofs)")
    prove.add_argument("--only", action="append", default=[], metavar="NAME", help="a proof or glob; may be repeated")
    prove.add_argument("--quick", action="store_true", help="a few seconds each, wider margins")
    prove.add_argument("--seed", type=_natural, default=0, metavar="N", help="the seed of all (0)")
    prove.add_argument("--jobs", type=_natural, default=0, metavar="N", help="so many at a time (0: a core each)")
    prove.add_argument("--json", type=Path, metavar="FILE", help="write all findings as JSON")
    prove.add_argument("--html", type=Path, metavar="FILE", help="write one page with the pictures; needs matplotlib")
    prove.add_argument("--markdown", type=Path, metavar="FILE", help="the same, with the pictures in files beside it")
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be a number > 0 of seconds")
    return value


def _natural(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be an int >= 0")
    return value


def _selected(arguments: argparse.Namespace) -> tuple[Case, ...]:
    from .cases import select

    try:
        return tuple(select(arguments.case, arguments.chapter, arguments.dtype, arguments.feature, arguments.full))
    except ValueError as error:
        raise _Usage(str(error)) from None


def _selected_laws(arguments: argparse.Namespace) -> tuple[Case, ...]:
    """The rows of the laws; refused if none is left."""
    from .laws import BASES, rows, select

    if arguments.case or arguments.chapter or arguments.feature or arguments.full:
        others = "--case, --chapter, --feature, --full"
        raise _Usage(f"--laws and {others} exclude each other; --law and --dtype select among the laws")
    bases = _cases_of(arguments.case_json) if arguments.case_json else BASES
    try:
        found = rows(select(arguments.law), [c for c in bases if not arguments.dtype or c.dtype in arguments.dtype])
    except ValueError as error:
        raise _Usage(f"--law: {error}") from None
    if not found:
        raise _Usage("no law applies to what is selected")
    return found


def _cases_of(text: str) -> tuple[Case, ...]:
    """The cases of a JSON text or file; refused, with the reason, if they make no problem."""
    from .inputs import make

    try:
        data = json.loads(text if text.lstrip().startswith(("{", "[")) else Path(text).read_text())
        cases = tuple(Case.from_json(one) for one in (data if isinstance(data, list) else [data]))
        for case in cases:
            make(case)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _Usage(f"--case-json: {type(error).__name__}: {error}") from None
    return cases


def _expected_failures(path: Path | None, cases: Sequence[Case]) -> dict[str, str]:
    """The reason for each case that is expected to fail; refused if a line matches no case of the suite."""
    from .cases import CASES

    expected: dict[str, str] = {}
    try:
        lines = [] if path is None else path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _Usage(f"--expected-failures: {error}") from None
    ids = {case.id for case in (*CASES, *cases)}
    for number, line in enumerate(lines, 1):
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        if not pattern:
            continue
        matching = fnmatch.filter(ids, pattern)
        if not matching:
            raise _Usage(f"{path}:{number}: {pattern!r} matches no case")
        expected.update(dict.fromkeys(matching, reason or "no reason given"))
    return expected


def _check(arguments: argparse.Namespace) -> int:
    if arguments.case_json and (arguments.case or arguments.chapter or arguments.dtype or arguments.feature):
        raise _Usage("--case-json and --case, --chapter, --dtype, --feature exclude each other")
    if arguments.laws or arguments.law:
        cases = _selected_laws(arguments)
    else:
        cases = _cases_of(arguments.case_json) if arguments.case_json else _selected(arguments)
    expected = _expected_failures(arguments.expected_failures, cases)
    _writeable(("--json", arguments.json), ("--junit", arguments.junit))
    if arguments.dump is not None:
        try:
            arguments.dump.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _Usage(f"--dump: {error}") from None

    from .report import as_json, as_junit

    report = check_command.run(arguments, cases, expected)
    try:
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(as_json(report), indent=1) + "\n")
        if arguments.junit is not None:
            arguments.junit.write_text(as_junit(report), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise _Usage(str(error)) from None
    return check_command.exit_code(report)


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
        if arguments.case or arguments.chapter or arguments.dtype or arguments.feature or arguments.full:
            raise _Usage("list --laws lists all of them; without other options")
        width = max(map(len, LAWS))
        for law in LAWS.values():
            print(f"{law.name:{width}}  {law.kind:7}  {law.statement}")
        return 0
    for case in _selected(arguments):
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
    print(failure(outcome.failure, arguments.implementation))
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


def _prove(arguments: argparse.Namespace) -> int:
    from .prove import CannotProve, command

    _writeable(*((f"--{name}", getattr(arguments, name)) for name in ("json", "html", "markdown")))
    try:
        return command(arguments, check_command.stdout())
    except CannotProve as error:
        raise _Usage(str(error)) from None
