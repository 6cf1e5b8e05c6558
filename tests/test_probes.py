"""Anti-coincidence: an implementation that is right but for one argument it never looks at must fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn.case import Cache, Case, Dense, Paged
from refattn.cases import select
from refattn.inputs import make
from refattn.judge import judge
from refattn.streaming import implementation
from tests.bare_verdicts import bare_verdicts  # noqa: F401

SCORES = 1 << 14  # cases with more are left out here, to be quick


def without(**fields: Any) -> Any:
    """The call as it is for a case that has those fields at None."""

    def change(case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        arrays = {"bias": ("bias",), "sinks": ("sinks",), "dropout": ("keep",)}
        gone = {array for name in fields for array in arrays.get(name, ())}
        want = case.want - {f"d{name}" for name in fields}
        return replace(case, want=want or {"out"}, **fields), {n: x for n, x in given.items() if n not in gone}

    return change


def with_array(name: str, of: Any) -> Any:
    """The call with another array in the place of that one."""
    return lambda case, given: (case, {**given, name: of(given[name])})


DROPPED: dict[str, Any] = {
    **{
        name: without(**{name: None})
        for name in ("mask", "k_lens", "q_lens", "scale", "softcap", "bias", "sinks", "score_mod", "dropout", "rotary")
    },
    "dlse": lambda case, given: (case, {n: x for n, x in given.items() if n != "dlse"}),
    "dout": with_array("dout", np.ones_like),
    "q": with_array("q", np.zeros_like),
    "k": with_array("k", np.zeros_like),
    "v": with_array("v", np.ones_like),
    "k_scale": with_array("k_scale", np.ones_like),
    "v_scale": with_array("v_scale", np.ones_like),
    "block_table": with_array("block_table", lambda x: np.arange(x.size, dtype=x.dtype).reshape(x.shape)),
    "cache_lens": with_array("cache_lens", np.zeros_like),
    "strides": lambda case, given: (case, {n: as_if_contiguous(case, x) for n, x in given.items()}),
}


def as_if_contiguous(case: Case, x: Any) -> Any:
    """What a kernel reads that takes the memory of a strided array for (B, H, L, D)."""
    if x.ndim != 4:
        return x
    order = ["BHLD".index(letter) for letter in case.storage.layout]  # type: ignore[union-attr]
    return np.ascontiguousarray(x.transpose(order)).reshape(x.shape)


def has(case: Case, argument: str) -> bool:
    if argument in ("dout", "dlse"):
        return case.backward and (argument == "dout" or "lse" in case.want)
    if argument in ("q", "k", "v"):
        return bool(case.B and case.H and case.Lq and case.Lk and case.D and case.Dv)
    if argument in ("k_scale", "v_scale"):
        return case.quant is not None
    if argument == "block_table":
        return isinstance(case.storage, Paged) and case.storage.page_size < case.Lk
    if argument == "cache_lens":
        return isinstance(case.storage, Cache) and case.Lq < case.Lk
    if argument == "strides":
        return isinstance(case.storage, Dense) and case.storage != Dense()
    return getattr(case, argument) is not None


@pytest.mark.parametrize("argument", DROPPED)
def test_an_argument_that_is_not_looked_at_fails(argument: str) -> None:
    killed, judged = [], 0
    cases = [c for c in select() if c.scores <= SCORES and has(c, argument)]
    for case in cases[:: 1 + len(cases) // 30]:
        problem = make(case)
        try:
            answer = implementation(*DROPPED[argument](case, problem.fresh()))
        except (ValueError, IndexError):  # a case that is not one without the argument, a page that is none
            continue
        answer = {n: x for n, x in answer.items() if n in case.want}
        verdict = judge(problem, answer, implementation.precision(case), implementation.conventions)
        judged += 1
        if verdict.status == "failed":
            killed.append(case.id)
    assert killed, f"no case of {judged} notices that {argument} is dropped"
    assert len(killed) >= judged / 2, f"{argument}: only {len(killed)} of {judged} cases notice"
