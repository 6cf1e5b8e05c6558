"""Laws: relations between answers that need no oracle's value, each a function in one place.

An implementation is asked several problems that a law relates, and its answers are compared with one
another: |b - f(a)| at most the sum of their derived radii, or to the last bit.  What no case of a
table shows is seen here: state that is left over from a call, bits that depend on the batch, an index
that overflows, a rounding that is not to nearest.

To add a law, write one function under `@law` in the module of its subject: `order` (keys and queries
are sets), `values` (linearity in v), `scores`, `masks` (visibility), `heads`, `storages` (memory),
`backward` (conservation, adjoints), `calls`.  `bases` has the problems that they are asked of.  A law that is
asked of a case is a case again: its id is "law.base", its chapter "laws.law", and any other case can be
given such a chapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from ..calling import Local
from ..case import Case
from ..judge import Output, Verdict
from ..precision import Precision, preset
from ..worker import Worker
from . import backward, calls, heads, masks, order, scores, storages, values  # noqa: F401 - they enter their laws
from .bases import BASES, ONLY
from .bench import Bench, Broken, Refused
from .law import LAWS, Law
from .problems import Inexact

__all__ = ["BASES", "CHAPTER", "LAWS", "Law", "examine", "law_of", "rows", "select"]

CHAPTER = "laws."


def select(patterns: Iterable[str] = ()) -> tuple[Law, ...]:
    """The laws that match any of the glob patterns; all if none is given.  Refused: one that matches none."""
    patterns = tuple(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in LAWS):
            raise ValueError(f"{pattern!r} matches no law; there are {', '.join(LAWS)}")
    return tuple(x for x in LAWS.values() if not patterns or any(fnmatchcase(x.name, p) for p in patterns))


def rows(laws: Iterable[Law] | None = None, bases: Iterable[Case] = BASES) -> tuple[Case, ...]:
    """Each law on each base to which it applies, as a case."""
    chosen = tuple(LAWS.values() if laws is None else laws)
    return tuple(
        replace(base, id=f"{law.name}.{base.id}", chapter=CHAPTER + law.name)
        for base in bases
        for law in chosen
        if law.applies(base) and (law.name in ONLY[base.id] if base.id in ONLY else True)
    )


def law_of(case: Case) -> Law | None:
    """The law that a case of `rows` is about."""
    return LAWS.get(case.chapter[len(CHAPTER) :]) if case.chapter.startswith(CHAPTER) else None


def examine(
    candidate: Worker | Local, case: Case, law: Law, check: Callable[[Precision, Case, str], None]
) -> Verdict:  # fmt: skip
    """Ask a law of the implementation; `check` refuses a contract that may not be declared."""
    verdict, narrow = _examine(candidate, case, law, check, quick=True)
    if verdict.status == "failed" and narrow:  # radii were smaller than they may be: that decides nothing
        verdict, _ = _examine(candidate, case, law, check, quick=False)
    return verdict


def _examine(
    candidate: Worker | Local, case: Case, law: Law, check: Callable[[Precision, Case, str], None], quick: bool
) -> tuple[Verdict, bool]:
    """The verdict, and whether any radius was narrower than it is."""
    outputs: list[Output] = []
    reasons: list[str] = []
    notes = (f"law: {law.statement} ({law.kind})",)
    refusal = ""
    try:
        bench = Bench(candidate, case, check, quick)
    except Refused as refused:
        return Verdict(case, "unsupported", reasons=(str(refused),)), False
    if not law.applies(bench.base.case):
        lacking = " ".join(sorted(case.want - bench.base.case.want))
        why = f"returns no {lacking}" if lacking else "the law does not hold there"
        return Verdict(case, "unsupported", reasons=(why,)), False
    try:
        outputs.extend(law.check(bench.base, bench))  # what came before a refusal or a fault is kept
    except (Refused, Inexact) as refused:
        refusal = str(refused)
    except Broken as fault:
        reasons = [str(fault)]
    reasons += bench.findings
    failed = bool(reasons) or not all(o.passed for o in outputs)
    if not failed and (refusal or not any(o.elements for o in outputs)):
        why = refusal or "nothing that the law is about is returned and judged"
        return Verdict(case, "unsupported", reasons=(why,)), False
    contract = bench.contract
    loosened = {} if contract is None else contract.looser_than(preset(case.dtype, case.out_dtype))
    verdict = Verdict(
        case, "failed" if failed else "passed", tuple(outputs), tuple(reasons), notes if failed else (),
        loosened=loosened, contract=contract, seconds=bench.seconds,
    )  # fmt: skip
    return verdict, bench.narrow
