"""A failing case is made small, keeps its kind of fault, and becomes a test that runs as it stands."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refattn.calling import Answer, Local
from refattn.case import Case, Paged
from refattn.cases import CASES, by_id
from refattn.conform import Verdict, examine
from refattn.implementation import Function, implementation
from refattn.laws import rows as law_rows
from refattn.masks import Causal, Dense, Documents, Padding, Prefix, Window
from refattn.mutants import MUTANTS
from refattn.sampling import Given
from refattn.shrink import as_test, kind_of, shrink
from refattn.shrink.paste import literal
from refattn.shrink.steps import cut, entry, less, simpler_masks
from refattn.streaming import implementation as honest
from refattn.worker import Worker
from tests.bare_verdicts import bare_verdicts  # noqa: F401
from tests.candidates import install


def local(mutant: str) -> Local:
    return Local(MUTANTS[mutant].implementation)


def failing(candidate: Any, case: str | Case) -> Verdict:
    verdict = examine(candidate, by_id(case) if isinstance(case, str) else case)
    assert verdict.status == "failed"
    return verdict


def wrong(change: Any, outputs: tuple[str, ...] = ("out", "lse")) -> Function:
    """Our kernel, with its answer changed: change(case, answer)."""

    @implementation("wrong", outputs=outputs)
    def attention(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        return change(case, dict(honest(case, given)))  # type: ignore[no-any-return]

    return attention


@pytest.mark.parametrize(
    "mutant, case, left",
    [
        ("causal_top_left", "causal-br-wide-f32", {"Lk": 2, "mask": Causal("bottom_right")}),
        ("gqa_tiled", "q4-gqa-bf16", {"H": 4, "Hkv": 2}),
        ("pages_of_entry_0", "paged-16-decode-bf16", {"B": 2, "storage": Paged(16)}),
        ("softcap_after_mask", "softcap-1-causal-f32", {"softcap": 1.0}),
        ("window_off_by_one", "window-16-0-br-bf16", {"mask": Window(0, 0, "bottom_right")}),
    ],
)
def test_what_is_left(mutant: str, case: str, left: dict[str, Any]) -> None:
    candidate = local(mutant)
    small = shrink(candidate, failing(candidate, case), calls=200, seconds=60)
    assert examine(candidate, small).status == "failed" and examine(Local(honest), small).status == "passed"
    assert {name: getattr(small, name) for name in left} == left
    assert small.id == f"{case}-small" and small.seed == by_id(case).seed
    assert max(small.Lq, small.D, small.Dv) <= 2 and small.Lk <= 4 and small.dtype == "float32" and len(small.want) == 1
    assert small.k_lens is small.score_mod is small.dropout is small.quant is None


def tile_of_queries(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    """Rows from 23 on of longer problems are not written, if D is at least 5."""
    if case.D >= 5:
        answer["out"][:, :, 23:] = np.nan
    return answer


def test_lengths_are_bisected_to_the_last_one() -> None:
    candidate = Local(wrong(tile_of_queries))
    small = shrink(candidate, failing(candidate, "full-f32"), seconds=60)
    assert (small.Lq, small.Lk, small.D, small.Dv, small.B, small.H) == (24, 1, 5, 1, 1, 1)


def test_it_is_the_same_every_time() -> None:
    candidate = local("causal_top_left")
    verdict = failing(candidate, "causal-br-1x2-f32")
    assert shrink(candidate, verdict, seconds=60) == shrink(candidate, verdict, seconds=60)


def two_exceptions(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    if case.Lk < 9:
        raise IndexError("a bug of its own")
    if case.Lq > 6:
        raise ValueError(f"Lq={case.Lq}: too long")
    return answer


def test_an_exception_stays_the_same_exception() -> None:
    candidate = Local(wrong(two_exceptions))
    verdict = failing(candidate, "full-f32")
    assert kind_of(verdict) == "raised ValueError"
    small = shrink(candidate, verdict, seconds=60)
    assert (small.Lq, small.Lk) == (7, 9)


def nan_or_more(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
    answer["out"] = answer["out"] + (np.nan if case.Lq > 4 else 1)
    return answer


def test_nan_stays_nan_and_dtype_stays_dtype() -> None:
    candidate = Local(wrong(nan_or_more))
    verdict = failing(candidate, "full-f32")
    assert kind_of(verdict) == "out not finite"
    assert shrink(candidate, verdict, seconds=60).Lq == 5
    candidate = Local(wrong(lambda case, answer: {**answer, "out": answer["out"].astype(np.float64)}))
    verdict = failing(candidate, "gqa-causal-br-ragged-bf16")
    assert kind_of(verdict) == "out.dtype"
    assert shrink(candidate, verdict, seconds=60).Lk == 1


def test_limits_are_kept() -> None:
    asked: list[Case] = []

    def count(case: Case, answer: dict[str, Any]) -> dict[str, Any]:
        asked.append(case)
        return {n: x + 1 for n, x in answer.items()}

    candidate = Local(wrong(count))
    verdict = failing(candidate, replace(by_id("full-tiny-f32"), chapter="user"))  # that of basics calls twice
    asked.clear()
    shrink(candidate, verdict, calls=5, seconds=60)
    assert len(asked) <= 5
    begin = time.monotonic()
    assert shrink(candidate, verdict, seconds=0) == verdict.case
    assert time.monotonic() - begin < 1


def test_what_cannot_be_shrunk_comes_back() -> None:
    candidate = local("causal_top_left")
    passed = examine(candidate, by_id("full-tiny-f32"))
    law = law_rows()[0]
    given = replace(by_id("full-f32"), family="given")
    for case in (passed, Verdict(law, "failed", reasons=("x",)), Verdict(given, "failed", reasons=("x",))):
        assert shrink(candidate, case) is case.case
    assert kind_of(passed) is None


SMALL = [case for case in CASES if case.scores <= 1 << 12]


@pytest.mark.parametrize("case", SMALL[::19], ids=lambda case: case.id)
def test_any_case_can_be_shrunk(case: Case) -> None:
    constant = wrong(lambda case, answer: {n: np.full_like(x, -7) for n, x in answer.items()}, tuple(case.want))
    candidate = Local(constant)
    verdict = examine(candidate, case)
    if verdict.status == "failed":
        small = shrink(candidate, verdict, calls=15, seconds=20)
        assert examine(candidate, small).status == "failed"


def test_through_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    monkeypatch.chdir(tmp_path)
    with Worker("my_kernel:deeds", timeout=20) as candidate:  # does what the case's id says
        case = replace(by_id("full-tiny-f32"), id="exit3")
        verdict = failing(candidate, case)
        assert kind_of(verdict) == "crashed"
        small = shrink(candidate, verdict, calls=3, seconds=20)
        assert small.want == {"out"} and small.B == 1
        late = Verdict(case, "failed", reasons=("timed out: no answer within 20 s",))
        assert kind_of(late) == "timed out" and shrink(candidate, late) is case  # a call would take all the time


# ---- steps


def test_masks_follow_the_sizes() -> None:
    case = Case("x", "y", B=2, H=2, Hkv=2, Lq=6, Lk=6, k_lens=(6, 3), mask=Documents(((0, 0, 0, 1, 1, 1), (0, 1) * 3)))
    assert entry(case, 1).mask == Documents((0, 1) * 3) and entry(case, 1).k_lens == (3,)
    case = replace(case, mask=Documents((0, 0, 0, 1, 1, 1)) & Causal("top_left"))
    assert cut(case, {"Lq": 4, "Lk": 4}).mask == Documents((0, 0, 0, 1)) & Causal("top_left")
    assert list(simpler_masks(case.mask)) == [Documents((0, 0, 0, 1, 1, 1)), Causal("top_left")]
    case = replace(case, mask=Prefix((2, 5), "top_left"))
    assert entry(case, 1).mask == Prefix(5, "top_left")
    assert less(replace(case, mask=~Window(9, 2, "top_left")), "left", 4).mask == ~Window(5, 2, "top_left")
    assert cut(replace(case, mask=Padding((6, 3))), {"Lk": 4}).mask == Padding((4, 3))
    per_entry = Dense((("xxxxxx",) * 6, ("x.x.x.",) * 6)[:1])
    assert entry(replace(case, mask=per_entry, Lk=6), 1).B == 1


# ---- the test to paste


def test_the_literal_is_the_case() -> None:
    for case in CASES:
        scope: dict[str, Any] = {}
        exec(as_test(case, "refattn"), scope)
        assert scope["CASE"] == case


def run(text: str) -> None:
    scope: dict[str, Any] = {"__name__": "pasted"}
    exec(compile(text, "pasted", "exec"), scope)
    for name, test in list(scope.items()):
        if name.startswith("test_"):
            test()


@pytest.mark.parametrize("apart", [False, True])
def test_it_runs_as_it_stands(apart: bool) -> None:
    case = by_id("causal-br-1x2-f32")
    with pytest.raises(AssertionError, match=r"FAIL causal-br-1x2-f32  out|FAIL causal-br-1x2-f32  lse"):
        run(as_test(case, "refattn.mutants:causal_top_left", apart=apart))
    run(as_test(case, "refattn", apart=apart))


def test_its_text() -> None:
    case = Case("a-1.small", "Why.", Lq=2, mask=Causal("top_left"), want={"out"}, storage=Paged(4))  # type: ignore[arg-type]
    text = as_test(case, "my_kernel:attention")
    assert text.startswith("from refattn import storage\nfrom refattn.calling import call\n")
    assert "from refattn.masks import Causal\n" in text and "def test_a_1_small():" in text
    assert "    want={'out'},\n" in text and "    storage=storage.Paged(page_size=4),\n" in text
    assert "SPEC = 'my_kernel:attention'" in text and "timeout" not in text


def test_a_given_mask_has_no_literal() -> None:
    case = Case("x", "y", Lq=2, Lk=2, mask=Given(np.ones((1, 1, 2, 2), dtype=bool)))
    with pytest.raises(ValueError, match="has no literal; pass refattn.masks.Dense.of"):
        literal(case)


def test_kinds() -> None:
    def of(*reasons: str) -> str | None:
        return kind_of(Verdict(by_id("full-f32"), "failed", reasons=reasons))

    trace = "raised: Traceback (most recent call last):\n  File \"x.py\", line 3, in f\n    g()\nmy.Error: it: broke"
    assert of(trace) == "raised my.Error"
    assert of("raised: KeyError") == "raised KeyError"
    assert of("crashed: the process was killed by SIGSEGV") == "crashed"
    assert of("k was modified in place") == "k was modified in place"
    assert of("out.shape=(1, 2) should be (3, 4)") == "out.shape"
    assert of("lse is missing; the case wants lse out") == "lse is missing"
    assert Answer("error").kind == "error"
