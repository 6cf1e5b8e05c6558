"""Runs the mutants of `gpu.mutants` in the executor, and says which check caught each.

    python -m gpu.mutation [--jobs 2] [NAME ...]

A mutant is caught by an error of `gpu.simt`, named by its class and required in every schedule, or by "bound": an output
outside the interval of `refattn.truth` in one of the problems of its kernel.  Exit code 1 if one is not caught as the
table says, or if a kernel without a mutation is.
"""

from __future__ import annotations

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import argparse  # noqa: E402
import contextlib  # noqa: E402
import importlib  # noqa: E402
import importlib.machinery  # noqa: E402
import importlib.util  # noqa: E402
import multiprocessing  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from gpu import simt  # noqa: E402
from gpu.mutants import MUTANTS, Mutant, problems  # noqa: E402
from refattn.case import Case  # noqa: E402
from refattn.inputs import make  # noqa: E402
from refattn.judge import judge  # noqa: E402

__all__ = ["SCHEDULES", "caught", "main", "planted"]

SCHEDULES = ("first", "last", 1)
KERNELS = Path(__file__).parent / "kernels"


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from its source with one text replaced."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self.old, self.new = old, new

    def get_code(self, fullname: str) -> Any:
        source = Path(self.path).read_text()
        if source.count(self.old) != 1:
            raise ValueError(f"{self.path}: {self.old!r} occurs {source.count(self.old)} times, must be once")
        return compile(source.replace(self.old, self.new), self.path, "exec", dont_inherit=True)


class _Finder:
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != f"gpu.kernels.{self.mutant.file}":
            return None
        file = str(KERNELS / f"{self.mutant.file}.py")
        loader = _Changed(name, file, self.mutant.old, self.mutant.new)
        return importlib.util.spec_from_file_location(name, file, loader=loader)


@contextlib.contextmanager
def planted(mutant: Mutant | None) -> Iterator[Any]:
    """The door to the kernels, with the mutant's line in place of the right one."""
    _forget()
    finder = None if mutant is None else _Finder(mutant)
    if finder is not None:
        sys.meta_path.insert(0, finder)  # type: ignore[arg-type]
    try:
        yield importlib.import_module("gpu.implementation")
    finally:
        if finder is not None:
            sys.meta_path.remove(finder)  # type: ignore[arg-type]
        _forget()


def _forget() -> None:
    for name in [n for n in sys.modules if n.startswith(("gpu.kernels", "gpu.launch", "gpu.implementation"))]:
        del sys.modules[name]


def caught(mutant: Mutant | None, kernel: str) -> str:
    """The name of the check that catches it: an error in every schedule, "bound", or "" for none."""
    with planted(mutant) as door, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        implementation = getattr(door, kernel)
        for case in problems(kernel):
            found = [_one(implementation, case, schedule) for schedule in SCHEDULES]
            if "bound" in found:
                return "bound"
            if all(found):
                return found[0]
    return ""


def _one(implementation: Any, case: Case, schedule: Any) -> str:
    problem = make(case)
    reason = implementation.supports(case)
    if reason is not None:
        raise ValueError(f"{case.id}: {implementation.name} does not support it: {reason}")
    try:
        with simt.scheduled(schedule):
            answer = implementation(case, problem.fresh())
    except simt.SimtError as error:
        return type(error).__name__
    verdict = judge(problem, answer, implementation.precision(case), implementation.conventions)
    return "" if verdict.status in ("passed", "acceptable") else "bound"


def _task(item: tuple[str, str]) -> tuple[str, str]:
    name, kernel = item
    mutant = next((m for m in MUTANTS if m.name == name), None)
    return name, caught(mutant, kernel)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutants to run; all by default")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.names) - {m.name for m in MUTANTS}
    if unknown:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    mutants = [m for m in MUTANTS if not chosen.names or m.name in chosen.names]
    tasks = [("", kernel) for kernel in dict.fromkeys(m.kernel for m in mutants)]
    tasks += [(m.name, m.kernel) for m in mutants]
    wanted = {m.name: m.caught for m in mutants} | {"": ""}
    wrong = 0
    with multiprocessing.get_context("spawn").Pool(chosen.jobs) as pool:
        for (name, check), (_, kernel) in zip(pool.imap(_task, tasks), tasks, strict=True):
            right = check == wanted[name]
            wrong += not right
            print(f"{kernel:12} {name or '(no mutation)':45} {check or 'nothing':20} "
                  f"{'' if right else 'must be ' + (wanted[name] or 'nothing')}", flush=True)  # fmt: skip
    print(f"{len(mutants)} mutants, {wrong} not caught as they must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
