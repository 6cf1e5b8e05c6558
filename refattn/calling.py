"""One call of an implementation, in the process it lives in, and what it did besides answering.

Whatever the implementation does is a result: an exception becomes its own traceback, without the
frames that lead there; inputs that it changed and outputs that alias them become findings.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from . import exchange
from . import implementation as door
from .case import CACHES, Case, Dense
from .dtypes import FORMATS
from .implementation import Implementation
from .inputs import Problem
from .precision import Conventions, Precision, Unsupported

__all__ = ["FRAMES_TO_CUT", "Answer", "Description", "Local", "Plan", "call", "candidate_traceback", "describe", "plan"]

Array = np.ndarray[Any, Any]
Kind = Literal["answer", "unsupported", "error", "crash", "timeout"]


@dataclass(frozen=True)
class Description:
    """What an implementation says about itself, as plain data."""

    name: str
    version: str
    arrays: str
    conventions: Conventions
    outputs: frozenset[str]
    never_given: tuple[str, ...] = ()
    """options of a plain function that no case has"""


@dataclass(frozen=True)
class Answer:
    """What came of one call: the arrays, or why there are none.

    `text` is the reason of a refusal, the candidate's traceback, or how it died; `findings` are
    faults that do not show in the values: inputs changed, outputs that alias an input.
    """

    kind: Kind
    outputs: Mapping[str, Array] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """What the implementation means to do with a case: a reason to refuse, a contract, or a failure."""

    reason: str | None = None
    precision: Precision | None = None
    failure: Answer | None = None


def describe(implementation: Implementation) -> Description:
    if implementation.arrays not in exchange.KINDS:
        raise TypeError(f"arrays={implementation.arrays!r} must be one of {', '.join(exchange.KINDS)}")
    if type(implementation.conventions) is not Conventions:
        raise TypeError(f"conventions={implementation.conventions!r} must be a refattn.precision.Conventions")
    return Description(
        str(implementation.name),
        str(implementation.version),
        implementation.arrays,
        implementation.conventions,
        frozenset(map(str, implementation.outputs)),
        implementation.never_given if isinstance(implementation, door.Function) else (),
    )


def plan(implementation: Implementation, case: Case) -> Plan:
    try:
        reason = implementation.supports(case)
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"supports(case) gave {reason!r}, which must be None or the reason as text")
        if reason is not None:
            return Plan(reason=reason or "no reason given")
        precision = implementation.precision(case)
        if type(precision) is not Precision:
            raise TypeError(f"precision(case) gave {precision!r}, which must be a refattn.precision.Precision")
        return Plan(precision=precision)
    except Unsupported as refusal:
        return Plan(reason=str(refusal) or "no reason given")
    except KeyboardInterrupt:  # of a run in this process
        raise
    except BaseException as error:
        return Plan(failure=Answer("error", text=candidate_traceback(error)))


def call(implementation: Implementation, problem: Problem) -> Answer:
    """Call the implementation with fresh arrays and look at what it did to them."""
    given = _where_the_last_lay(problem)
    untouched = problem.fresh()

    def hand(arrays: Mapping[str, Array]) -> dict[str, Any]:
        return {name: exchange.hand_over(x, implementation.arrays) for name, x in arrays.items()}

    begin = time.perf_counter()
    try:
        handed = hand(given)
        begin = time.perf_counter()
        outputs, findings = _as_arrays(implementation(problem.case, handed))
        seconds = time.perf_counter() - begin  # with the wait for what is computed when it is asked for
        if problem.case.chapter == "basics" and implementation.conventions.deterministic:
            again, _ = _as_arrays(implementation(problem.case, hand(problem.fresh())))
            findings += [
                f"{name} has other bits in a second call; declare Conventions(deterministic=False)"
                for name, x in outputs.items()
                if name not in again or x.shape != again[name].shape or not _same_bits(x, again[name])
            ]
    except Unsupported as refusal:
        return Answer("unsupported", text=str(refusal) or "no reason given", seconds=time.perf_counter() - begin)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Answer("error", text=candidate_traceback(error), seconds=time.perf_counter() - begin)
    findings += [
        f"{name} was modified in place"
        for name in given
        if name not in CACHES and not _same_bits(given[name], untouched[name])
    ]
    findings += [
        f"{output} shares memory with the input {name}"
        for output, x in outputs.items()
        for name, y in given.items()
        if not (output == name and name in CACHES) and _shares_memory(x, y)
    ]
    return Answer("answer", outputs, tuple(findings), seconds=seconds)


_PLACES: dict[Any, Array] = {}


def _where_the_last_lay(problem: Problem) -> dict[str, Array]:
    """The arrays of a case of `basics` in the memory of the last ones of their form: who caches by address is wrong."""
    given = problem.fresh()
    if problem.case.chapter == "basics" and isinstance(problem.case.storage, Dense):
        for name, x in given.items():
            place = _PLACES.setdefault((name, x.dtype, x.shape, x.strides), x)
            if place.flags.writeable:
                place[...] = x
                given[name] = place
    return given


def _as_arrays(returned: Any) -> tuple[dict[str, Array], list[str]]:
    if not isinstance(returned, Mapping):
        return {}, [f"returned {_type(returned)}, which must be out, (out, lse), or a mapping of named arrays"]
    outputs: dict[str, Array] = {}
    findings = []
    for name, x in returned.items():
        if x is None:  # not returned
            continue
        if exchange.is_array(x):
            x = exchange.as_numpy(x)
        if not isinstance(x, np.ndarray):
            cure = "; return out, (out, lse), or a mapping" if isinstance(x, (list, tuple)) else ""
            findings.append(f"{name} is {_type(x)}, which must be an array{cure}")
        elif np.ma.isMaskedArray(x):
            findings.append(f"{name} is a masked array, whose mask means nothing here; return {name}.filled()")
        elif name == "keep" and x.dtype == np.bool_:
            outputs["keep"] = np.asarray(x)
        elif x.dtype.name not in FORMATS or not x.dtype.isnative:
            findings.append(f"{name}.dtype={x.dtype} must be one of {', '.join(FORMATS)}")
        else:
            outputs[str(name)] = np.asarray(x)
    return outputs, findings


def _type(x: Any) -> str:
    return "None" if x is None else f"a {type(x).__module__}.{type(x).__qualname__}".replace("builtins.", "")


def _same_bits(x: Array, y: Array) -> bool:
    kind = f"u{x.dtype.itemsize}"
    return bool(np.array_equal(x.view(kind), y.view(kind)))


def _shares_memory(x: Array, y: Array) -> bool:
    try:
        return bool(np.shares_memory(x, y, max_work=100_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False


FRAMES_TO_CUT = (__file__, os.path.join(os.path.dirname(__file__), "worker.py"), str(door.__file__))
"""the files whose frames lead from us to the candidate"""


def candidate_traceback(error: BaseException) -> str:
    """The traceback without the frames that lead from us to the candidate."""
    trace = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = trace
    while link is not None:
        stack = list(link.stack)
        while stack and (stack[0].filename in FRAMES_TO_CUT or "importlib" in stack[0].filename):
            stack.pop(0)
        link.stack = traceback.StackSummary.from_list(stack)
        if not stack:
            return "".join(trace.format_exception_only()).rstrip()
        link = link.__cause__ or link.__context__
    return "".join(trace.format()).rstrip()


class Local:
    """The same interface as `Worker`, in this process: no deadline, and a crash is a crash."""

    def __init__(self, implementation: Implementation) -> None:
        self.implementation = implementation
        self.description = describe(implementation)
        self._answer = Answer("error")

    def plan(self, case: Case) -> Plan:
        return plan(self.implementation, case)

    def start(self, problem: Problem) -> None:
        self._answer = call(self.implementation, problem)

    def result(self) -> Answer:
        return self._answer

    def close(self) -> None:
        pass
