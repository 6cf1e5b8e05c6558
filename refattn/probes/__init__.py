"""What an implementation does where libraries differ, and whether it aligns, windows and scales as it was asked.

    found = probes(candidate)                     # a `Worker` or a `Local`
    print("\n".join(found.lines()))
    found.mismatches                              # sentences; none if all is as declared, or asked

A probe knows no tolerance and replaces no case: it names what the cases then judge.  An answer that is none of the
alternatives is "neither", which is no mismatch: the cases say what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..calling import Local
from ..inputs import Problem
from ..worker import Worker
from .questions import Probe, plain, questions

__all__ = ["Convention", "Found", "probes"]

SETTINGS = tuple((dtype, D) for D in (64, 128, 32, 16, 8) for dtype in ("float32", "bfloat16", "float16", "float64"))
"""dtypes and head sizes, of which the first that is supported is used"""
_PERMITS: Mapping[str, tuple[str, ...]] = {"leaks": ("hidden",), "any": ("-inf", "+inf", "nan", "finite")}
"""what a declaration permits besides itself"""


@dataclass(frozen=True)
class Convention:
    """One row of the table: what was found, and what was declared, or asked for where nothing can be declared."""

    name: str
    found: str
    declared: str
    field: str = ""
    """of `refattn.precision.Conventions`"""
    known: bool = True
    """whether `found` is an alternative, and would be if that were the only bug"""

    @property
    def fits(self) -> bool:
        return not self.known or self.found == self.declared or self.found in _PERMITS.get(self.declared, ())

    @property
    def asked_for(self) -> bool:
        """Whether it was found to be as declared, or asked."""
        return self.known and self.fits

    def __str__(self) -> str:
        if self.fits:
            return f"{self.name}: {self.found}"
        if not self.field:
            return f"{self.name}: asked for {self.declared!r}, found {self.found!r}: a bug, which cannot be declared"
        value = "any" if self.found == "finite" else self.found
        cure = f"declare Conventions({self.field}={value!r}), or mend it"
        return f"{self.name}: declared {self.declared!r}, found {self.found!r}; {cure}"


@dataclass(frozen=True)
class Found:
    """The table of all that was asked."""

    rows: tuple[Convention, ...]

    @property
    def mismatches(self) -> tuple[str, ...]:
        """What is not as it was declared, or asked: each a failure."""
        return tuple(str(row) for row in self.rows if not row.fits)

    def lines(self) -> list[str]:
        """A line for each row, and the mismatches after them."""
        width = max((len(row.name) for row in self.rows), default=0)
        return [f"{row.name:<{width}}  {row.found}" for row in self.rows] + [f"MISMATCH {x}" for x in self.mismatches]


def probes(candidate: Worker | Local) -> Found:
    """Ask every question in one call each; after a crash or a missed deadline no more."""
    conventions = candidate.description.conventions
    dtype, D = next((x for x in SETTINGS if candidate.plan(plain(*x)).reason is None), SETTINGS[0])
    rows: dict[str, Convention] = {}
    lost = ""
    for probe in questions(dtype, D):
        if probe.name in rows and rows[probe.name].found != "unsupported":
            continue
        found, known = (lost, False) if lost else _ask(candidate, probe)
        if found in ("crashed", "timed out"):
            lost = f"not asked, for it {found} before"
        known = known and all(rows[name].asked_for for name in probe.needs)
        declared = str(getattr(conventions, probe.field)) if probe.field else probe.asked
        rows[probe.name] = Convention(probe.name, found, declared, probe.field, known)
    return Found(tuple(rows.values()))


def _ask(candidate: Worker | Local, probe: Probe) -> tuple[str, bool]:
    """What is found, and whether it is one of the alternatives."""
    plan = candidate.plan(probe.case)
    if plan.reason is not None:
        return "unsupported", False
    answer = plan.failure
    if answer is None:
        candidate.start(Problem(probe.case, probe.arrays))
        answer = candidate.result()
    if answer.kind == "error":
        return f"raised {answer.text.splitlines()[-1].split(':')[0] if answer.text else 'an exception'}", False
    if answer.kind != "answer":
        return {"unsupported": "unsupported", "crash": "crashed", "timeout": "timed out"}[answer.kind], False
    if probe.output not in answer.outputs:
        return "unsupported", False
    name = probe.named(answer.outputs[probe.output])
    return name or "neither", name is not None
