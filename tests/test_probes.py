"""Anti-coincidence: an implementation that is right but for one argument it never looks at must fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn.case import Case, Dense
from refattn.cases import CASES
from refattn.inputs import make
from refattn.judge import judge
from refattn.streaming import implementation

DROPPED: dict[str, Any] = {
    "mask": lambda case, given: (replace(case, mask=None), given),
    "k_lens": lambda case, given: (replace(case, k_lens=None), given),
    "q_lens": lambda case, given: (replace(case, q_lens=None), given),
    "scale": lambda case, given: (replace(case, scale=None), given),
    "softcap": lambda case, given: (replace(case, softcap=None), given),
    "bias": lambda case, given: (replace(case, bias=None, want=case.want - {"dbias"}), without(given, "bias")),
    "sinks": lambda case, given: (replace(case, sinks=None, want=case.want - {"dsinks"}), without(given, "sinks")),
    "dlse": lambda case, given: (case, without(given, "dlse")),
    "dout": lambda case, given: (case, {**given, "dout": np.ones_like(given["dout"])}),
    "q": lambda case, given: (case, {**given, "q": np.zeros_like(given["q"])}),
    "k": lambda case, given: (case, {**given, "k": np.zeros_like(given["k"])}),
    "v": lambda case, given: (case, {**given, "v": np.ones_like(given["v"])}),
    "strides": lambda case, given: (case, {n: as_if_contiguous(case, x) for n, x in given.items()}),
}


def without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {n: x for n, x in given.items() if n != name}


def as_if_contiguous(case: Case, x: Any) -> Any:
    """What a kernel reads that takes the memory of a strided array for (B, H, L, D)."""
    if x.ndim != 4:
        return x
    order = ["BHLD".index(letter) for letter in case.storage.layout]
    return np.ascontiguousarray(x.transpose(order)).reshape(x.shape)


def has(case: Case, argument: str) -> bool:
    if argument in ("dout", "dlse"):
        return case.backward and (argument == "dout" or "lse" in case.want)
    if argument in ("q", "k", "v"):
        return bool(case.B and case.H and case.Lq and case.Lk and case.D and case.Dv)
    return case.storage != Dense() if argument == "strides" else getattr(case, argument) is not None


@pytest.mark.parametrize("argument", DROPPED)
def test_an_argument_that_is_not_looked_at_fails(argument: str) -> None:
    killed, judged = [], 0
    cases = [c for c in CASES if c.chapter != "long" and has(c, argument)]
    for case in cases[:: 1 + len(cases) // 30]:
        problem = make(case)
        given = problem.fresh()
        other, changed = DROPPED[argument](case, given)
        try:
            answer = implementation(other, changed)
        except ValueError:  # a case that is not one without the argument
            continue
        answer = {n: x for n, x in answer.items() if n in case.want}
        verdict = judge(problem, answer, implementation.precision(case), implementation.conventions)
        judged += 1
        if verdict.status == "failed":
            killed.append(case.id)
    assert killed, f"no case of {judged} notices that {argument} is dropped"
    assert len(killed) >= judged / 2, f"{argument}: only {len(killed)} of {judged} cases notice"
