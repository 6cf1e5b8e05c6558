"""The bench: problems go to the implementation, answers come back with their radii.

Where a problem has more than SMALL scores its truth is had for some query rows only: those rows with
all the keys are a problem of their own, with the same out, lse and dq; dk and dv, which need every
row, are then not judged.  A law that is `long` leaves the rows in their places, so that the same
rows can be compared before and after.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..calling import Local
from ..case import Case
from ..dtypes import round_to
from ..inputs import Problem, make
from ..judge import Output, failed_call
from ..memory import answer_shape, take_answer
from ..precision import Conventions, Precision
from ..truth import Expected, quick_truth, truth
from ..worker import Worker
from .measured import Measured, compare, exact
from .problems import taken

__all__ = ["SMALL", "Bench", "Broken", "Refused", "Reply", "same", "size"]

Array = np.ndarray[Any, Any]
SMALL = 1 << 17
"""scores of all heads up to which the truth of all rows is affordable"""
SAMPLE = 16
EDGES = (32767, 32768, 46340, 46341, 65535, 65536, 65537)
"""rows at which an index of 16 bits, or the square of one in 31, overflows"""
OF_ROWS = ("out", "lse", "dq")
OF_KEYS = ("dk", "dv")


class Refused(Exception):
    """The implementation cannot do what the law asks."""


class Broken(Exception):
    """The implementation gave no answer, or none that can be looked at."""


def size(case: Case) -> int:
    """Scores of all heads."""
    return case.scores


@dataclass(frozen=True)
class Reply:
    """The answer to a problem; `reply["out"]` is an output with its radii.

    `problem` is what is judged: where the asked one is large, the sampled rows of it.
    """

    problem: Problem
    outputs: Mapping[str, Array]
    expected: Mapping[str, Expected]
    precision: Precision
    unruly: bool
    """rows that see nothing have another answer than 0 and -inf, by convention: they are not judged"""

    def __contains__(self, name: str) -> bool:
        return name in self.outputs and name in self.expected

    def __getitem__(self, name: str) -> Measured:
        if name not in self:
            raise Refused(f"returns no {name}")
        measured = Measured.of(self.outputs[name], self.expected[name], self.precision)
        if self.unruly and name in OF_ROWS:
            dead = ~self.sees.reshape(measured.x.shape[:3] + (1,) * (measured.x.ndim - 3))
            measured = replace(measured, free=measured.free | dead)
        return measured

    def only(self, *names: str) -> dict[str, Measured]:
        """Those of the outputs that are there."""
        return {name: self[name] for name in names if name in self}

    def true(self, name: str) -> Measured:
        """The oracle's value of an output, as exact: for the rows of which it is known."""
        return exact(self.expected[name].value)

    @property
    def seen(self) -> Array:
        """(B, H, Lq, Lk): what is visible."""
        seen = self.problem.case.visibility.tile()
        bias = self.problem.logical.get("bias")
        return seen if bias is None else seen & ~np.isneginf(np.asarray(bias, dtype=np.float64))

    @property
    def sees(self) -> Array:
        """(B, H, Lq): whether a row sees any key."""
        return np.asarray(self.seen.any(-1))


class Bench:
    """What a law has of the implementation: `ask`, and what it declares.

    `check` refuses a contract that may not be declared.  With `quick` the radii of long forwards may
    be narrower than they are; `narrow` says afterwards whether any was.
    """

    def __init__(
        self, candidate: Worker | Local, case: Case, check: Callable[[Precision, Case, str], None], quick: bool
    ) -> None:
        self.candidate, self.check, self.quick = candidate, check, quick
        self.conventions: Conventions = candidate.description.conventions
        self.findings: list[str] = []
        self.contract: Precision | None = None
        self.seconds = 0.0
        self.narrow = False
        self.base = _made(replace(case, want=_wanted(case, candidate.description.outputs)))
        self.rows = None if size(case) <= SMALL else _sample(case)

    @property
    def nats(self) -> float:
        """What one unit of the lse it returns is in nats."""
        return math.log(2.0) if self.conventions.lse_base == "2" else 1.0

    def ask(self, problem: Problem) -> Reply:
        """The answer; the truth is computed while the candidate works."""
        case = problem.case
        plan = self.candidate.plan(case)
        if plan.failure is not None:
            raise Broken(f"{case.id}: {failed_call(plan.failure)}")
        if plan.reason is not None or plan.precision is None:
            raise Refused(plan.reason or "no reason given")
        self.check(plan.precision, case, self.candidate.description.name)
        self.contract = self.contract or plan.precision
        self.candidate.start(problem)
        judged = problem
        if self.rows is not None:
            if case.want.isdisjoint(OF_ROWS):
                raise Refused(f"returns no {' '.join(OF_ROWS)}")
            judged = taken(problem, "rows", rows=self.rows, want=case.want & set(OF_ROWS))
        expected = self._expected(judged, plan.precision, problem is self.base)
        outputs = self._outputs(case, expected)
        unruly = (self.conventions.empty_rows, self.conventions.empty_lse) != ("zero", "-inf")
        return Reply(judged, outputs, expected, plan.precision, unruly)

    def _outputs(self, case: Case, expected: Mapping[str, Expected]) -> dict[str, Array]:
        """What is judged of the answer, in float64."""
        answer = self.candidate.result()
        self.seconds += answer.seconds
        if answer.kind == "unsupported":
            raise Refused(answer.text)
        if answer.kind != "answer":
            raise Broken(f"{case.id}: {failed_call(answer)}")
        self.findings += [f"{case.id}: {finding}" for finding in answer.findings]
        outputs = {}
        for name, e in expected.items():
            if name not in answer.outputs or (self.rows is not None and name not in OF_ROWS):
                continue
            x, shape = answer.outputs[name], answer_shape(case, name, case.shape_of(name))
            if x.shape != shape:
                raise Broken(f"{case.id}: {name}.shape={x.shape} should be {shape}")
            if x.dtype.name != e.dtype and (name, x.dtype.name) != ("lse", "float64"):
                raise Broken(f"{case.id}: {name}.dtype={x.dtype.name} should be {e.dtype}")
            x = take_answer(case, name, x)
            x = x if self.rows is None else x[:, :, self.rows]
            exactly = np.asarray(x, dtype=np.float64)
            outputs[name] = exactly if x.dtype.name == e.dtype else round_to(exactly, e.dtype)
        return outputs

    def _expected(self, problem: Problem, precision: Precision, is_base: bool) -> Mapping[str, Expected]:
        case = problem.case
        if is_base:  # many laws ask for it in turn
            anonymous = replace(problem, case=_anonymous(case))
            expected = _of_base(_Same(anonymous), precision, self.conventions, self.quick)
        else:
            expected = _intervals(problem, precision, self.conventions, self.quick)
        self.narrow |= any(e.narrow for e in expected.values())
        return expected


def same(reply: Reply, images: Mapping[str, Measured], bitwise: Any = False) -> Iterator[Output]:
    """Compare each output that is there with its image."""
    for name, image in images.items():
        if name in reply:
            yield compare(name, reply[name], image, bitwise=bitwise)


def _wanted(case: Case, outputs: frozenset[str]) -> frozenset[str]:
    """What the case wants of what is returned and has a law; lse may always be asked of a forward."""
    wanted = case.want & outputs & {*OF_ROWS, *OF_KEYS, "dsinks"}
    if wanted.isdisjoint((*OF_KEYS, "dq", "dsinks")):
        wanted |= case.want & {"lse"}
    if not wanted:
        raise Refused(f"returns no {' '.join(sorted(case.want))}")
    return wanted


def _anonymous(case: Case) -> Case:
    """The case without what says nothing of its arrays."""
    return replace(case, id="base", why="", flags=(), chapter="base")


def _made(case: Case) -> Problem:
    return replace(_drawn(_anonymous(case)), case=case)


_drawn = lru_cache(maxsize=2)(make)


def _sample(case: Case) -> Array:
    """Some rows: the ends, those at which an index overflows, and others."""
    fixed = {0, case.Lq - 1, *(i for i in EDGES if i < case.Lq)}
    rng = np.random.Generator(np.random.Philox(case.seed))
    return np.array(sorted(fixed | set(rng.integers(0, case.Lq, SAMPLE).tolist())))


def _intervals(
    problem: Problem, precision: Precision, conventions: Conventions, quick: bool
) -> Mapping[str, Expected]:
    usual = not conventions.declared().keys() & {"empty_rows", "empty_lse", "lse_base", "lse_sinks"}
    return quick_truth(problem, precision) if quick and usual else truth(problem, precision, conventions)


@dataclass(frozen=True, eq=False)
class _Same:
    """A problem that was made from its case, and is therefore equal to another made from it."""

    problem: Problem

    def __hash__(self) -> int:
        return hash(self.problem.case)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.problem.case == other.problem.case


@lru_cache(maxsize=2)
def _of_base(base: _Same, precision: Precision, conventions: Conventions, quick: bool) -> Mapping[str, Expected]:
    return _intervals(base.problem, precision, conventions, quick)
