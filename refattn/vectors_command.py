"""The command `refattn vectors`: write golden vectors, verify them, judge the answers of another program by them.

Exit code of write: 0.  Of verify: 0 if nothing is wrong (with --answers: if each case is answered, with --partial if
one is, and all answers pass), 1 if something is, 2 if the folder or the options make no sense.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import selection

__all__ = ["CannotDo", "add_parser", "command"]


class CannotDo(Exception):
    """The folder or the options make no sense; says why, in one line."""


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The parser of both actions; `parents` have the options of `selection`."""
    vectors: argparse.ArgumentParser = commands.add_parser(
        "vectors", help="golden vectors for any language: write, verify, judge answers by them",
        description="A folder of cases as safetensors files with a JSON index: inputs, and for each element of each "
        "output the interval it must lie in.  Its README says how to check a kernel in any language.",
    )  # fmt: skip
    actions = vectors.add_subparsers(metavar="ACTION", required=True, parser_class=type(vectors))
    write = actions.add_parser("write", parents=parents, help="write the vectors of cases (needs python-flint)")
    write.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    write.add_argument("--curated", action="store_true", help="the small set that is committed, docs/vectors")
    write.add_argument("--onnx", action="store_true", help="node tests of ONNX too, of what it can say (needs onnx)")
    write.set_defaults(action=_write)
    verify = actions.add_parser("verify", help="verify a folder, or judge answers by it")
    verify.add_argument("folder", type=Path, metavar="DIR", help="what `refattn vectors write` wrote")
    verify.add_argument("--answers", type=Path, metavar="DIR", help="judge DIR/ID.safetensors, with out, lse, dq, ...")
    verify.add_argument("--partial", action="store_true", help="cases without an answer are no failure")
    verify.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts on the answers as JSON")
    verify.set_defaults(action=_verify)
    return vectors


def command(arguments: argparse.Namespace) -> int:
    """Run write or verify; raises `CannotDo`."""
    from .vectors import BadIndex, Refused

    try:
        done: int = arguments.action(arguments)
        return done
    except (BadIndex, Refused, OSError, ModuleNotFoundError) as error:
        raise CannotDo(str(error)) from None


def _write(arguments: argparse.Namespace) -> int:
    from .cases import FULL, by_id
    from .vectors import CURATED, write

    if arguments.curated:
        if selection.given(arguments):
            raise CannotDo("--curated and the options that select cases exclude each other")
        cases = tuple(by_id(id) for id in CURATED)
    else:
        try:
            cases = selection.selected(arguments)
        except ValueError as error:
            raise CannotDo(str(error)) from None
    huge = [case.id for case in cases if case.chapter in FULL]
    if huge:
        raise CannotDo(f"{huge[0]} is of a chapter whose vectors would be gigabytes; leave it out")
    count = write(arguments.folder, cases, arguments.onnx)
    print(f"{count} cases in {arguments.folder}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from .vectors import judged_folder, opened, verify

    folder = opened(arguments.folder)
    if arguments.answers is None:
        for name in ("json", "partial"):
            if getattr(arguments, name):
                raise CannotDo(f"--{name} needs --answers")
        found = verify(folder)
        survived = [name for name, count in found.killed.items() if not count]
        print(f"{found.cases - len(found.faults)} of {found.cases} cases verified")
        print(f"{len(found.killed) - len(survived)} of {len(found.killed)} bugs that they are for fail")
        if survived:
            print(f"not seen by these cases: {', '.join(survived)}")
        return 0 if found.good else 1
    if not arguments.answers.is_dir():
        raise CannotDo(f"--answers {arguments.answers} must be a folder of ID.safetensors")
    verdicts = judged_folder(folder, arguments.answers)
    for verdict in verdicts:
        if verdict.status != "unanswered":
            print(verdict)
    counts = Counter(verdict.status for verdict in verdicts)
    lacking = sum(bool(verdict.missing) for verdict in verdicts if verdict.status == "passed")
    without = f" ({lacking} without outputs that are wanted)" if lacking else ""
    print(f"{counts['passed']} passed{without}, {counts['failed']} failed, {counts['unanswered']} unanswered")
    if arguments.json is not None:
        finite = [
            {"id": v.id, "status": v.status, "text": v.text, "ratio": min(v.ratio, 1e308), "missing": list(v.missing)}
            for v in verdicts
        ]
        arguments.json.write_text(json.dumps(finite, indent=1) + "\n")
    unanswered = counts["unanswered"] and not arguments.partial
    return 0 if counts["passed"] and not counts["failed"] and not unanswered else 1
