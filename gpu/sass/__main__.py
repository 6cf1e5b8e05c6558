"""python -m gpu.sass: the table of what the compiler makes of each kernel."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from .gate import differences
from .table import Entry, Outcome, entries, examine_all, load, quick, rotation, save, versions
from .toolchain import Missing

_COLUMNS = (
    "| kernel | arch | threads | registers | stack | spills | local | tensor | shared | blocks | global | loop |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|",
)


def _line(outcome: Outcome) -> str:
    row, entry = outcome.row, outcome.entry
    if not row:
        return f"| {entry.module} {entry.name} | {entry.arch} |" + " |" * 10
    widths = " ".join(f"{k}:{n}" for k, n in row["global"].items())
    cells = [f"{entry.module} {entry.name}", entry.arch, row["threads"], row["registers"], row["stack"], row["spills"]]
    cells += [row["local"], row["tensor"], row["shared"], row["blocks"], widths, row["loop"].get("issue", "")]
    return "| " + " | ".join(map(str, cells)) + " |"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m gpu.sass", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with gpu/sass.json; 1 if a row is refused")
    what.add_argument("--write", action="store_true", help="renew gpu/sass.json, but for rows that break a rule")
    parser.add_argument("--quick", action="store_true", help="one row of each kernel and architecture, by turns")
    parser.add_argument("--turn", type=int, help="the turn of --quick (from the kernels' source if not given)")
    parser.add_argument("--only", metavar="TEXT", action="append", default=[], help="rows whose key holds TEXT")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    return parser.parse_args(given)


def _refused(outcome: Outcome, held: dict[str, dict[str, object]], same: bool) -> list[str]:
    """Broken rules and, where the same versions made the table, differences from it."""
    if not same or not outcome.row:
        return outcome.broken
    if outcome.entry.key not in held:
        return [*outcome.broken, "the table has no such row: python -m gpu.sass --write"]
    return outcome.broken + differences(outcome.row, held[outcome.entry.key])


def main(given: Sequence[str] | None = None) -> int:
    """0: all is well; 1: a row is refused; 2: a tool is missing."""
    wanted = _arguments(given)
    start = time.monotonic()
    try:
        every = entries()
        chosen: list[Entry] = [e for e in every if all(text in e.key for text in wanted.only)]
        if wanted.quick:
            chosen = quick(chosen, rotation() if wanted.turn is None else wanted.turn)
        made_with, held = load()
        same = made_with == versions()
        print(*_COLUMNS, sep="\n")
        refused, rows = 0, {}
        for outcome in examine_all(chosen, wanted.jobs):
            print(_line(outcome), flush=True)
            faults = _refused(outcome, held, same) if wanted.check else outcome.broken
            refused += bool(faults)
            for fault in faults:
                print(f"REFUSED {outcome.entry.key}: {fault}", flush=True)
            if not outcome.broken:
                rows[outcome.entry.key] = outcome.row
    except Missing as missing:
        print(f"gpu.sass: {missing}", file=sys.stderr)
        return 2
    if wanted.check and not same:
        print(f"rules only: the table was made with {made_with or 'nothing'}, here is {versions()}")
    gone = sorted(set(held) - {e.key for e in every})
    if wanted.check and not wanted.only and gone:
        refused += len(gone)
        print(f"REFUSED rows of kernels that are gone: {', '.join(gone)}; python -m gpu.sass --write")
    if wanted.write:
        kept = {k: row for k, row in held.items() if k not in gone} if wanted.quick or wanted.only else {}
        save(versions(), kept | rows)
    print(f"{len(chosen) - refused} passed, {refused} refused, {time.monotonic() - start:.0f} s")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
