"""Mutation testing of the honest kernel: every place of `refattn.streaming` and `refattn.online` made wrong in turn.

    python -m tests.kernel_mutation --out FILE [--jobs N] [--only TEXT]
    python -m tests.kernel_mutation --out FILE --summary docs/kernel-mutation.json

A site (tests/kernel_mutation_sites.py) is killed by the first probe (tests/kernel_mutation_probes.py) that the
judge fails, by an exception, or by the time limit.  One that passes all probes must be argued in
tests/kernel_mutation_survivors.py: equivalent, or a hole; until it is, it is asked of every small case besides.  The
summary lists the survivors by argument.  A line of JSON for each goes to FILE; what is there already, for the source
as it is, is not run again.

mutmut 3.8 and cosmic-ray 8.7 were looked at and do not serve.  Both know Python's operators alone (numbers,
comparisons, booleans, arguments): no axis, no slice, no rounding dropped or to another dtype, no `max` for `min`,
no tile for a whole.  Both mutate the package in place, and the truth of the judge would be mutated with it, for it uses
`refattn.streaming` and `refattn.online` too.  And both run a test command, so that each mutant would compute the
truth anew: here a mutant is one forked child of a process that has it.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import multiprocessing
import os
import platform
import resource
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests import kernel_mutation_probes as probes
from tests.kernel_mutation_sites import FILES, Site, every
from tests.kernel_mutation_survivors import argument
from tests.written_lines import read

LIMIT = 20.0
"""seconds for a mutant; the honest kernel takes less than one for all probes"""
MEMORY = 8 << 30


def source() -> str:
    """What the results are about: a digest of the mutated files."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in FILES.values())).hexdigest()[:12]


def digest(asked: list[probes.Probe]) -> str:
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:12]


def short(name: str) -> str:
    """Ten digits that stand for a name in the summary."""
    return hashlib.sha256(name.encode()).hexdigest()[:10]


def examine(site: Site | None, asked: list[probes.Probe], limit: float = LIMIT) -> dict[str, Any]:
    """What became of a mutant, in a forked child: {"by": probe, "how": ...}, or {"by": None}."""
    receiver, sender = os.pipe()
    began = time.perf_counter()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.close(receiver)
            os.write(sender, json.dumps(_in_child(site, asked)).encode())
        finally:
            os._exit(0)
    os.close(sender)
    text = b""
    try:
        while select.select([receiver], [], [], max(0.0, began + limit - time.perf_counter()))[0]:
            part = os.read(receiver, 1 << 16)
            if not part:
                break
            text += part
        else:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(receiver)
        os.waitpid(child, 0)
    seconds = round(time.perf_counter() - began, 2)
    found = json.loads(text) if text else {"by": "?", "how": "timed out" if seconds >= limit else "crashed"}
    name, kind = ("honest", "honest") if site is None else (site.name, site.kind)
    return {"name": name, "kind": kind, **found, "seconds": seconds}


def _in_child(site: Site | None, asked: list[probes.Probe]) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    probes.only_whether()
    try:
        package = probes.kernel(site)
    except Exception as e:
        return {"by": "import", "how": f"raised {type(e).__name__}"}
    found = probes.first_failing(package, asked)
    return {"by": None} if found is None else {"by": found[0].name, "how": found[1]}


def run(sites: list[Site], asked: list[probes.Probe], jobs: int, limit: float) -> Iterator[dict[str, Any]]:
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(examine, asked=asked, limit=limit), sites)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What docs/kernel-mutation.json holds; the last line of a site counts."""
    known = {site.name for site in every()}
    last = {line["name"]: line for line in lines if line["source"] == source() and line["name"] in known}
    kinds: dict[str, Counter[str]] = {}
    by: Counter[str] = Counter()
    survivors: dict[str, list[str]] = {}
    for line in last.values():
        kinds.setdefault(line["kind"], Counter())["killed" if line["by"] else "survived"] += 1
        if line["by"]:
            how = line["how"].split(" ")[0]
            by["an exception" if how == "raised" else "the time limit" if how == "timed" else line["by"]] += 1
        else:
            survivors.setdefault(argument(line["name"]) or "NOT ARGUED", []).append(line["name"])
    killed = sum(count["killed"] for count in kinds.values())
    return {
        "made": datetime.date.today().isoformat(), "source": source(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__},
        "command": "python -m tests.kernel_mutation --out FILE --summary docs/kernel-mutation.json",
        "sites": len(known), "run": len(last), "killed": killed, "survived": len(last) - killed,
        "holes": len([n for why, names in survivors.items() if why.startswith("hole") for n in names]),
        "not argued": len(survivors.get("NOT ARGUED", [])),
        "kinds": {kind: dict(count) for kind, count in sorted(kinds.items())},
        "killed by": dict(by.most_common()), "survivors": survivors,
        "names of the killed": " ".join(sorted(short(n) for n, line in last.items() if line["by"])),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="sites whose name has this text")
    parser.add_argument("--summary", type=Path, help="write the summary of what FILE has, and run nothing")
    options = parser.parse_args(arguments)
    if options.summary:
        found = summary(read(options.out))
        options.summary.write_text(json.dumps(found, indent=1) + "\n")
        print(*(f"{key}: {found[key]}" for key in ("sites", "run", "killed", "survived", "holes", "not argued")))
        return
    now = source()
    lines = [line for line in read(options.out) if line["source"] == now]
    wanted = [site for site in every() if options.only in site.name]
    with options.out.open("a") as file:
        if file.tell() and not options.out.read_text().endswith("\n"):
            file.write("\n")
        for stage, asked in ((1, list(probes.PROBES)), (2, probes.more())):
            these = digest(asked)
            done = {line["name"] for line in lines if line["by"] or line["asked"] == these}
            # what is argued already is not asked of all that is small
            left = [site for site in wanted if site.name not in done and (stage == 1 or not argument(site.name))]
            if not left:
                continue
            print(f"stage {stage}: {len(left)} mutants, {len(asked)} probes; truths first", file=sys.stderr, flush=True)
            seconds = probes.warm_up(asked)
            honest = examine(None, asked)
            if honest["by"]:
                raise SystemExit(f"the honest kernel is killed in a child: {honest}")
            for n, line in enumerate(run(left, asked, options.jobs, max(LIMIT, 10 * seconds)), 1):
                line |= {"asked": these, "source": now}
                lines.append(line)
                file.write(json.dumps(line) + "\n")
                file.flush()
                if n % 50 == 0:
                    print(f"{n} of {len(left)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
