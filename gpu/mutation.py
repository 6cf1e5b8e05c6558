"""Runs the mutants of `gpu.mutants` in the executor, and says which check caught each.

    python -m gpu.mutation [--jobs 2] [--search] [NAME ...]

A mutant is run on the problem that its row names.  It is caught by an error of `gpu.simt`, named by its class and
required in every schedule, or by "bound": an output outside the interval of `refattn.truth`.  Memory that a launch
makes is full of NaN until a kernel writes it.  The kernels without a mutation must pass all problems.

NAME is a part of names.  --search tries all problems, and names the quickest on which a mutant is caught; without
names, for those whose row names none.  Exit code 1 if anything is not as the table says.
"""

from __future__ import annotations

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import argparse  # noqa: E402
import collections  # noqa: E402
import contextlib  # noqa: E402
import functools  # noqa: E402
import importlib  # noqa: E402
import importlib.machinery  # noqa: E402
import importlib.util  # noqa: E402
import multiprocessing  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Iterator, Mapping, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from gpu import simt  # noqa: E402
from gpu.mutants import ALIBI, KERNELS, MUTANTS, PROBLEMS, Mutant, Posed  # noqa: E402
from refattn import alibi  # noqa: E402
from refattn.inputs import Problem, make  # noqa: E402
from refattn.judge import judge  # noqa: E402
from refattn.truth import Expected, truth  # noqa: E402

__all__ = ["SCHEDULES", "caught", "main", "planted", "search"]

SCHEDULES = ("first", "last", 1)
REPLACED = ("gpu.kernels", "gpu.launch", "gpu.implementation")
"""What is imported anew, with its submodules, for each mutant."""


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a kernel's module from its source with the mutant's text in it."""

    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self.mutant = mutant

    def get_code(self, fullname: str) -> Any:
        return compile(self.mutant.applied(Path(self.path).read_text()), self.path, "exec", dont_inherit=True)


class _Finder:
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != f"gpu.kernels.{self.mutant.file}":
            return None
        file = str(KERNELS / f"{self.mutant.file}.py")
        return importlib.util.spec_from_file_location(name, file, loader=_Changed(name, file, self.mutant))


@contextlib.contextmanager
def planted(mutant: Mutant | None) -> Iterator[Any]:
    """The door to the kernels, with the mutant's text in place of the right one; after it all modules are as before."""
    before = _taken_out()
    finder = None if mutant is None else _Finder(mutant)
    if finder is not None:
        sys.meta_path.insert(0, finder)
    try:
        yield importlib.import_module("gpu.implementation")
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)
        _taken_out()
        sys.modules.update(before)
        for name, module in before.items():
            if name in REPLACED:
                setattr(sys.modules["gpu"], name.partition(".")[2], module)


def _taken_out() -> dict[str, Any]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(REPLACED)}


def caught(mutant: Mutant | None, problem: str) -> str:
    """What catches it on a problem: "bound", or the error of each schedule, joined by "or"; "" if nothing does.

    An error must show in every schedule, and so "nothing" is among those joined if one has found none.
    """
    found: list[str] = []
    with planted(mutant) as door, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for schedule in SCHEDULES:
            found.append(_outcome(door, problem, schedule))
            if found[0] == "bound" or found[0] == "" and mutant is not None:
                return found[0]
    return " or ".join(sorted({f or "nothing" for f in found})) if any(found) else ""


def _outcome(door: Any, name: str, schedule: str | int) -> str:
    posed = PROBLEMS[name]
    implementation = getattr(door, posed.kernel)
    reason = implementation.supports(posed.case)
    if reason is not None:
        raise ValueError(f"{name}: {implementation.name} does not take it: {reason}")
    problem, expected = _truth(name)
    tiles = importlib.import_module("gpu.launch").tiles
    try:
        with simt.scheduled(schedule), tiles(**posed.tiles):
            answer = _answer(implementation, posed, problem)
    except simt.SimtError as error:
        return type(error).__name__
    contract, conventions = implementation.precision(posed.case), implementation.conventions
    verdict = judge(problem, answer, contract, conventions, outputs=posed.case.want, expected=expected)
    return "" if verdict.status in ("passed", "acceptable") else "bound"


@functools.cache
def _truth(name: str) -> tuple[Problem, Mapping[str, Expected]]:
    from gpu import implementation

    posed = PROBLEMS[name]
    problem = make(posed.case)
    return problem, truth(problem, getattr(implementation, posed.kernel).precision(posed.case))


def _answer(implementation: Any, posed: Posed, problem: Problem) -> Mapping[str, Any]:
    """What the door gives; it has no ALiBi, which is handed to the kernels themselves."""
    case, given = posed.case, problem.fresh()
    if case.bias != ALIBI:
        return implementation(case, given)
    names = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
    lengths = {name: given[name] for name in names if name in given}
    slopes = alibi.slopes(case.H).astype("float32")
    attention = importlib.import_module("gpu.launch").attention
    found = attention(
        given["q"], given["k"], given["v"], kernel=posed.kernel, mask=case.mask, alibi_slopes=slopes, **lengths
    )
    return found._asdict()


def search(mutant: Mutant) -> tuple[str, str]:
    """(problem, check) of the quickest problem on which it is caught, as its row says if it does; else ("", "")."""
    found: list[tuple[float, str, str]] = []
    for name in PROBLEMS:
        begin = time.process_time()
        check = caught(mutant, name)
        if check and "nothing" not in check and (not mutant.caught or mutant.allows(check)):
            found.append((time.process_time() - begin, name, check))
    return min(found)[1:] if found else ("", "")


def _task(item: tuple[str, str, bool]) -> tuple[str, float]:
    """What came of one mutant, or of the kernels without one, and the seconds that it took."""
    name, problem, searching = item
    begin = time.process_time()
    mutant = next((m for m in MUTANTS if m.name == name), None)
    if searching and mutant is not None:
        return " on ".join(reversed(search(mutant))), time.process_time() - begin
    return caught(mutant, problem), time.process_time() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the names of mutants; all by default")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--search", action="store_true", help="try all problems on those that are named, or name none")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in MUTANTS if not chosen.names or any(name in m.name for name in chosen.names)]
    if not mutants:
        parser.error(f"no mutant's name has {' or '.join(map(repr, chosen.names))} in it")
    lost = [reason for reason in (m.lost() for m in mutants) if reason]
    if lost:
        parser.error("\n".join(lost))
    if chosen.search and not chosen.names:
        mutants = [m for m in mutants if not m.problem]
    problems = PROBLEMS if not chosen.names else dict.fromkeys(m.problem for m in mutants)
    tasks = [] if chosen.search else [("", problem, False) for problem in problems]
    tasks += [(m.name, m.problem, chosen.search) for m in mutants]
    wanted = {m.name: m for m in mutants}
    checks: collections.Counter[str] = collections.Counter()
    wrong, seconds = 0, 0.0
    with multiprocessing.get_context("spawn").Pool(chosen.jobs) as pool:
        for (check, took), (name, problem, _) in zip(pool.imap(_task, tasks), tasks, strict=True):
            want = wanted[name].caught if name else ""
            right = " on " in check if chosen.search else wanted[name].allows(check) if name else not check
            wrong, seconds = wrong + (not right), seconds + took
            checks.update([check] if name else [])
            print(f"{name or 'no mutation':75} {problem:16} {took:5.2f} s  {check or 'nothing'}"
                  f"{'' if right else ', must be ' + (want or 'nothing')}", flush=True)  # fmt: skip
    counts = ", ".join(f"{check or 'nothing'} {n}" for check, n in checks.most_common())
    print(f"{len(mutants)} mutants ({counts}), {wrong} not as they must be, {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
