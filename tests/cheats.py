"""Candidates that would rather be rewarded than be right; tests/test_reward.py asks each for its worth.

Each is a function of (case, given) that returns out; `honest` is what they pretend to be.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refattn.calling import Plan
from refattn.case import Case
from refattn.implementation import implementation
from refattn.precision import Conventions, Unsupported, preset
from refattn.streaming import Streaming

Array = np.ndarray[Any, Any]
Given = Mapping[str, Array]
cheat = implementation("cheat", outputs=("out",))


def right(case: Case, given: Given) -> Array:
    return Streaming()(case, given)["out"]


honest = cheat(right)


def _nothing(case: Case) -> Array:
    return np.zeros((case.B, case.H, case.Lq, case.Dv), honest.precision(case).out)


KEPT: dict[Any, Array] = {}


@cheat
def caches_by_shape(case: Case, given: Given) -> Array:
    return KEPT.setdefault(given["q"].shape, right(case, given)).copy()


@cheat
def caches_by_address(case: Case, given: Given) -> Array:
    address = given["q"].__array_interface__["data"][0]
    return KEPT.setdefault((address, given["q"].shape), right(case, given)).copy()


@cheat
def prints_a_score(case: Case, given: Given) -> Array:
    print("1 problems, score 1.0", flush=True)
    return _nothing(case)


@cheat
def right_for_two_calls(case: Case, given: Given) -> Array:
    KEPT[len(KEPT)] = _nothing(case)
    return right(case, given) if len(KEPT) <= 2 else _nothing(case)


@cheat
def looks_for_the_truth(case: Case, given: Given) -> Array:
    """Whatever array of the right shape lies in the frames below, and is not what was handed over."""
    frame: Any = sys._getframe()
    wanted, handed = _nothing(case), {id(x) for x in given.values()}
    while frame is not None:
        for held in list(frame.f_locals.values()):
            held = getattr(held, "logical", held)
            for x in held.values() if isinstance(held, Mapping) else [held]:
                if isinstance(x, np.ndarray) and x.shape == wanted.shape and id(x) not in handed:
                    return x.astype(wanted.dtype)
        frame = frame.f_back
    return wanted


@cheat
def patches_numpy(case: Case, given: Given) -> Array:
    np.array_equal = lambda *x, **y: True
    np.shares_memory = lambda *x, **y: False
    np.where = lambda *x: np.zeros(())  # type: ignore[assignment]
    return _nothing(case)


@cheat
def patches_the_judge(case: Case, given: Given) -> Array:
    import refattn.judge

    refattn.judge.ratios = lambda got, *rest: np.zeros(np.shape(got))
    return _nothing(case)


class _Spell:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import refattn.judge, numpy\nrefattn.judge.ratios = lambda got, *rest: numpy.zeros(got.shape)",)


def _send(message: Any) -> None:
    """Finds the pipe to the judge in the frames below."""
    frame: Any = sys._getframe()
    while frame is not None:
        if "pipe" in frame.f_locals:
            frame.f_locals["pipe"].send(message)
        frame = frame.f_back


@cheat
def begins_a_message(case: Case, given: Given) -> Array:
    """Its length, and no more: who reads it without a deadline waits for ever."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, struct.pack("!i", 1_000_000))
    time.sleep(60)
    return _nothing(case)


@cheat
def sends_a_spell(case: Case, given: Given) -> Array:
    """It would patch the judge when it is read."""
    _send(_Spell())
    return _nothing(case)


@cheat
def sends_a_plan(case: Case, given: Given) -> Array:
    """An honest message at the wrong time."""
    _send(Plan(reason="none"))
    return _nothing(case)


@cheat
def writes_into_inputs(case: Case, given: Given) -> Array:
    out = right(case, given)
    for x in given.values():
        x[...] = 0
    return out


@cheat
def returns_a_view(case: Case, given: Given) -> Array:
    return given["v"][:, :1, :1].repeat(1, 2) if case.Lq == 0 else given["q"][..., : case.Dv]


@cheat
def sleeps(case: Case, given: Given) -> Array:
    time.sleep(60)
    return right(case, given)


@cheat
def forks(case: Case, given: Given) -> Array:
    """The child goes on as if it were the candidate; the parent waits for ever."""
    if os.fork():
        time.sleep(60)
    return _nothing(case)


@cheat
def exits_early(case: Case, given: Given) -> Array:
    os._exit(0)


def declares(what: str, precision: Callable[[Case], Any], **conventions: Any) -> Callable[[Any], Any]:
    return implementation(what, outputs=("out",), precision=precision, conventions=Conventions(**conventions))


def _anything_goes(case: Case) -> Any:
    from dataclasses import replace

    return replace(preset(case.dtype, case.out_dtype), exp_ulp=1e12, source="it is a very bad exp")


@declares("declares too much", _anything_goes)
def declares_anything(case: Case, given: Given) -> Array:
    return _nothing(case)


@cheat
def refuses(case: Case, given: Given) -> Array:
    raise Unsupported("this one is hard")


CHEATS = tuple(name for name, x in list(globals().items()) if hasattr(x, "supports") and x is not honest)
