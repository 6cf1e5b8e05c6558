"""What an implementation does where libraries differ, and whether it aligns, windows and scales as it was asked.

    found = probes(candidate)                     # a `Worker` or a `Local`
    print("\n".join(found.lines()))
    found.mismatches                              # sentences; none if all is as declared, or asked

A probe is a tiny case whose values are one-hot, so that out is the matrix of weights, and whose answers under all
alternatives are far apart.  It knows no tolerance and replaces no case: it names what the cases then judge.  An answer
that is none of the alternatives is "neither", which is no mismatch: the cases say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .calling import Local
from .case import Case
from .dtypes import FORMATS
from .inputs import Problem
from .masks import Causal, Dense, Mask, Window
from .oracle import attention
from .worker import Worker

__all__ = ["Convention", "Found", "Probe", "probes", "questions"]

Array = np.ndarray[Any, Any]

NEAR = 0.04
"""how near an answer must be to an alternative, as a share of its largest number; the next is twice as far at least"""
SETTINGS = tuple((dtype, D) for dtype in ("float32", "bfloat16", "float16", "float64") for D in (64, 128, 32, 16, 8))
"""of these the first that is supported is used"""
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
    """whether `found` is one of the alternatives, and not "neither" or why there is no answer"""

    @property
    def fits(self) -> bool:
        return not self.known or self.found == self.declared or self.found in _PERMITS.get(self.declared, ())

    def __str__(self) -> str:
        if self.fits:
            return f"{self.name}: {self.found}"
        if not self.field:
            return f"{self.name}: asked for {self.declared}, found {self.found}; that is a bug, not a convention"
        value = "any" if self.found == "finite" else self.found
        return f"{self.name}: declared {self.declared}, found {self.found}; declare {self.field}={value!r}, or mend it"


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
        lines = [f"{row.name:<{width}}  {row.found}{'' if row.fits else '  MISMATCH'}" for row in self.rows]
        return lines + [f"MISMATCH {text}" for text in self.mismatches]


@dataclass(frozen=True)
class Probe:
    """A question: a case with its arrays, which output is looked at where, and what each alternative gives there.

    `asked` is the alternative that is right where no convention, `field`, says otherwise.
    """

    name: str
    case: Case
    arrays: Mapping[str, Array]
    alternatives: Mapping[str, Array]
    asked: str = ""
    field: str = ""
    output: str = "out"
    rows: slice = slice(None)

    def named(self, got: Array) -> str | None:
        """The alternative that the answer is near, if it is far from all others."""
        if got.shape != self.case.shape_of(self.output):
            return None
        seen = np.asarray(got[:, :, self.rows], np.float64)
        far = {name: _distance(seen, value) for name, value in self.alternatives.items()}
        best = min(far, key=lambda name: far[name])
        others = [x for name, x in far.items() if name != best]
        return best if far[best] <= NEAR and all(x >= 2 * NEAR for x in others) else None


def _distance(got: Array, value: Array) -> float:
    """The largest difference as a share of the largest number; infinite where one is NaN or infinite and the other not.

    A value of "finite", an empty array, is at no distance from what is finite.
    """
    if not value.size:
        return 0.0 if np.isfinite(got).all() else np.inf
    if not np.array_equal(np.isfinite(got), np.isfinite(value)):
        return np.inf
    some = np.isfinite(value)
    if not np.array_equal(got[~some], value[~some], equal_nan=True):
        return np.inf
    return float(np.abs(got[some] - value[some]).max(initial=0.0) / max(np.abs(value[some]).max(initial=0.0), 0.1))


def probes(candidate: Worker | Local) -> Found:
    """Ask every question in one call; after a crash or a missed deadline no more."""
    conventions = candidate.description.conventions
    dtype, D = next((x for x in SETTINGS if candidate.plan(_plain(*x)).reason is None), SETTINGS[0])
    rows, lost = [], ""
    for probe in questions(dtype, D):
        found, known = (lost, False) if lost else _ask(candidate, probe)
        if found in ("crashed", "timed out"):
            lost = f"not asked: it {found} before"
        declared = str(getattr(conventions, probe.field)) if probe.field else probe.asked
        rows.append(Convention(probe.name, found, declared, probe.field, known))
    return Found(tuple(rows))


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
        return f"raised {answer.text.splitlines()[-1].split(':')[0]}" if answer.text else "raised", False
    if answer.kind != "answer":
        return {"unsupported": "unsupported", "crash": "crashed", "timeout": "timed out"}[answer.kind], False
    if probe.output not in answer.outputs:
        return "unsupported", False
    name = probe.named(answer.outputs[probe.output])
    return name or "neither", name is not None


# ---- the questions


def _plain(dtype: str, D: int) -> Case:
    return Case("probe", "What a convention is.", Lq=8, Lk=8, D=D, Dv=D, dtype=dtype, want=frozenset({"out"}))


def questions(dtype: str, D: int) -> Iterator[Probe]:
    """All probes, in a dtype and of head size D >= 8, which is also the number of columns of v."""
    plain = _plain(dtype, D)
    for name, asked in (("bottom_right", Causal("bottom_right")), ("top_left", Causal("top_left"))):
        case = replace(plain, Lq=4, mask=asked)
        br, tl = (Window(None, 0, align) for align in ("bottom_right", "top_left"))  # type: ignore[arg-type]
        at = br if name == "bottom_right" else tl
        off = {"a key too many": replace(at, right=1), "a key too few": _shifted(at)}
        masks = {"bottom_right": br, "top_left": tl, "ignored": None, **off}
        yield _masked(f"causal aligned {name}", case, masks, name)
    case = replace(plain, mask=Window(2, 0, "bottom_right"))
    widths = {"inclusive": (2, 0), "a key too few": (1, 0), "a key too many": (3, 0), "both sides": (2, 2)}
    windows = {name: Window(*sides, "bottom_right") for name, sides in widths.items()}
    yield _masked("window of 2 before the own key", case, {**windows, "ignored": None, "causal": Causal("top_left")}, "inclusive")
    yield _polarity(plain)
    yield from _scales(plain)
    yield from _empty_rows(plain)
    yield from _lse(plain)
    yield from _masked_nan(plain)
