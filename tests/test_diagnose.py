"""The diagnosis: the right bug is named, a wrong one never, and suspicions are told apart from failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn.calling import Local
from refattn.case import BiasSpec, Case
from refattn.cases import CASES, by_id
from refattn.conform import examine, run
from refattn.diagnose import Suspects, diagnose
from refattn.diagnose.hypothesis import hypotheses
from refattn.diagnose.model import Model
from refattn.diagnose.trial import Trial
from refattn.implementation import Function
from refattn.inputs import make
from refattn.judge import Verdict, judge
from refattn.judging import judge_arrays
from refattn.masks import Window
from refattn.mutants import MUTANTS
from refattn.oracle import attention
from refattn.precision import Conventions, preset
from refattn.report import as_json
from refattn.streaming import Rules, Streaming

NAMED = (
    "causal_top_left", "window_off_by_one", "gqa_tiled", "softcap_after_bias", "sinks_dropped", "lse_base_2",
    "missing_rescale", "delta_missing", "scale_missing_in_dk", "dropout_not_rescaled", "page_tail_read",
    "k_scale_dropped",
)  # fmt: skip


def failure_of(name: str) -> Verdict:
    """The verdict on the case that kills a mutant."""
    mutant = MUTANTS[name]
    return examine(Local(mutant.implementation), by_id(mutant.caught.split()[-1]))


@pytest.mark.parametrize("name", NAMED)
def test_a_mutant_is_named(name: str) -> None:
    verdict = failure_of(name)
    assert verdict.status == "failed"
    found = diagnose([verdict])
    assert name in found.names
    assert found.lines()[0].startswith("your output is attention with this bug: ")
    assert f"({name})" in " ".join(found.lines())


def noisy(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """The right answer with some of it exchanged: no bug of the catalogue."""
    y = Streaming()(case, given)
    return {n: np.where(np.arange(x.size).reshape(x.shape) % 7 == 3, x + x.dtype.type(0.25), x) for n, x in y.items()}


def test_no_bug_is_named_for_what_is_none() -> None:
    candidate = Local(Function(noisy, "noisy", outputs=frozenset({"out"})))
    verdicts = [examine(candidate, by_id(name)) for name in ("causal-br-wide-f32", "gqa-4-f32")]
    assert [v.status for v in verdicts] == ["failed", "failed"]
    found = diagnose(verdicts)
    assert found.names == ()
    assert "your output is" not in " ".join(found.lines())
    assert found.common and set(found.common) < set(found.lines())


def test_a_passed_case_contradicts() -> None:
    """Tiled key heads would have failed the other case; so that cannot be it."""
    verdict = failure_of("gqa_tiled")
    other = by_id("gqa-4-f32")
    assert other != verdict.case and MUTANTS["gqa_tiled"].separates(other)
    assert "gqa_tiled" in diagnose([verdict]).names
    assert "gqa_tiled" not in diagnose([verdict], passed=[other]).names


def test_another_bug_in_one_case_spoils_the_name() -> None:
    found = diagnose([failure_of("gqa_tiled"), failure_of("lse_base_2")])
    assert found.names == ()


def test_a_run_tells_it_and_says_where() -> None:
    cases = [by_id(name) for name in ("full-f32", "gqa-2x2-f32", "gqa-4-f32")]
    report = run(MUTANTS["gqa_tiled"].implementation, cases)
    failed = [v for v in report.verdicts if v.status == "failed"]
    assert failed and all(any("(gqa_tiled)" in note for note in v.notes) for v in failed)
    assert "(gqa_tiled)" in report.diagnosis[0]
    assert as_json(report)["diagnosis"] == list(report.diagnosis)
    unknown = run(Function(noisy, "noisy", outputs=frozenset({"out"})), cases[:1])
    assert any("out" in note for note in unknown.verdicts[0].notes)  # where it is, since no bug explains it
    assert "looks like" not in " ".join(unknown.verdicts[0].notes)


def test_a_dump_is_told_too() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 16)) for n in (9, 30, 30))
    out = attention(q, k, v, mask=Window(6, 0, "bottom_right")).out
    found = judge_arrays(q, k, v, out=out, window=(5, 0, "bottom_right"))
    assert any("(window_off_by_one)" in note for note in found.notes)


def test_a_wrong_dtype_is_no_bug_of_the_catalogue() -> None:
    def widened(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        return {n: x.astype(np.float64) for n, x in Streaming()(case, given).items()}

    report = run(Function(widened, "widened", outputs=frozenset({"out"})), [by_id("full-f32"), by_id("gqa-4-f32")])
    assert [v.status for v in report.verdicts] == ["failed", "failed"]
    assert report.diagnosis == () and "looks like" not in " ".join(n for v in report.verdicts for n in v.notes)


def test_most_cases_name_a_bug_that_does_not_explain_all() -> None:
    kernel = MUTANTS["gqa_tiled"].implementation

    def two_bugs(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        y = kernel(case, given)
        return y if case.H != case.Hkv else {n: x * x.dtype.type(1.5) for n, x in y.items()}

    cases = [by_id(name) for name in ("full-f32", "gqa-2x2-f32", "gqa-4-f32")]
    report = run(Function(two_bugs, "two bugs", outputs=frozenset({"out"})), cases)
    assert report.diagnosis[0].startswith("2 of 3 failing cases look like this bug: ")
    assert "(gqa_tiled)" in report.diagnosis[0]


def test_a_bug_of_some_cases_alone() -> None:
    """Where cases that passed speak against it, it is not exact, and it is said in which cases alone it holds."""
    kernel = MUTANTS["scale_from_padded_D"].implementation

    def conditional(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        return (kernel if case.softcap is not None else Streaming())(case, given)

    cases = [c for c in CASES if c.D % 32 and c.scale is None and c.want == {"out", "lse"} and c.dtype == "float32"
             and c.scores < 2**12]  # fmt: skip
    with_softcap = [c for c in cases if c.softcap is not None]
    assert with_softcap and len(cases) > len(with_softcap)
    report = run(Function(conditional, "conditional", outputs=frozenset({"out"})), cases)
    told = " ".join(report.diagnosis)
    assert "your output is" not in told and "scale" in report.diagnosis[0]
    assert "in cases with softcap alone" in told


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bf16_accumulator", "the running output is rounded to bfloat16"),
        ("lse_in_bf16", "lse is rounded to bfloat16"),
        ("qk_in_fp16", "q·k is rounded to float16"),
        ("tanh_approximate", "tanh(x) of softcap is too small by 2^-11"),
    ],
)
def test_a_loss_of_bits_is_named(name: str, words: str) -> None:
    """Too few bits: what it explains is a share of the error, and not all."""
    kernel, separates = MUTANTS[name].implementation, MUTANTS[name].separates
    cases = [c for c in CASES if separates(c) and c.want <= {"out", "lse"} and 2**9 < c.scores < 2**13
             and c.dtype == "float32"][:14]  # fmt: skip
    report = run(kernel, cases)
    assert words in report.diagnosis[0]


@pytest.mark.parametrize("tile", [16, 32])
def test_the_size_of_tiles_is_found(tile: int) -> None:
    mutant = MUTANTS["missing_rescale"]
    kernel = replace(mutant.implementation, schedule=replace(mutant.implementation.schedule, tile_k=tile))
    cases = [c for c in CASES if c.Lk > 2 * tile and c.want == {"out", "lse"} and c.scores < 2**13][:12]
    report = run(kernel, cases)
    assert f"From tile to tile of {tile} keys, the output so far is not rescaled" in report.diagnosis[0]


def test_a_declared_base_of_lse_is_minded() -> None:
    """Hypotheses have lse in base e; one that returns it in base 2, and says so, is compared in base e."""

    def kernel(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        y = MUTANTS["gqa_tiled"].implementation(case, given)
        return y | {"lse": (y["lse"] * np.log2(np.e)).astype(y["lse"].dtype)}

    ours = Function(kernel, "base 2", conventions=Conventions(lse_base="2"), outputs=frozenset({"out", "lse"}))
    report = run(ours, [by_id("gqa-2x2-f32"), by_id("full-f32")])
    assert "(gqa_tiled)" in report.diagnosis[0]


class unbiased_backward(Rules):
    """The backward does not see the bias."""

    def from_forward(self, shift: Any, factor: Any) -> tuple[Any, Any]:
        vars(self)["logits"] = lambda s, cap, bias, visible, modify=None: super(unbiased_backward, self).logits(
            s, cap, None, visible, modify
        )
        return shift, factor


def test_a_bug_of_the_backward_alone() -> None:
    want = frozenset({"out", "lse", "dq", "dk", "dv", "dbias"})
    cases = [
        Case(f"bias-{n}", "forward and backward", Lq=n, Lk=2 * n, bias=BiasSpec("QK"), want=want) for n in (5, 7, 9)
    ]
    report = run(Streaming(rules=unbiased_backward), cases[:2])  # of a kind of many members, which may fit by accident
    assert report.diagnosis[0].startswith("2 of 2 failing cases look like this bug: ")
    report = run(Streaming(rules=unbiased_backward), cases)
    assert report.diagnosis[0].startswith("your output is attention with this bug: ")
    told = " ".join(report.diagnosis)
    assert "backward" in told and "bias" in told


def test_time_is_kept() -> None:
    suspects = Suspects(seconds=0.0)
    assert "looks like" not in " ".join(suspects.watch(failure_of("gqa_tiled")))


class hot(Rules):
    """The scale is 0.3 % too large."""

    def products(self, q: Any, k: Any, scale: float) -> Any:
        return super().products(q, k, scale * 1.003)


def test_suspicious_is_not_failed() -> None:
    case = Case("hot", "scores of many keys", Lq=256, Lk=2048, D=64, Dv=64, dtype="bfloat16", want=frozenset({"out"}))
    honest, wrong = (examine(Local(Streaming(rules=r)), case) for r in (Rules, hot))
    assert (honest.status, honest.suspicions) == ("passed", ())
    assert wrong.status == "passed" and any("scale" in text for text in wrong.suspicions)
    assert replace(wrong, suspicions=()) != wrong


def _plain(c: Case) -> bool:
    """Several entries and heads, and nothing else."""
    usual = c.want == {"out", "lse"} and c.dtype == "float32" and type(c.storage).__name__ == "Dense"
    return usual and c.mask is c.dropout is c.scale is None and c.family == "peaked" and c.B > 1 < c.H == c.Hkv


SMALL = [c for c in CASES if _plain(c) and 0 < c.scores < 2**12][:6]


def in_a_part(name: str, part: Any) -> Function:
    """The answer of a mutant where `part` says of indices b, h, i; the right one elsewhere."""
    wrong, right = MUTANTS[name].implementation, Streaming()

    def kernel(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        b, h, i = np.ogrid[: case.B, : case.H, : case.Lq]
        at = np.broadcast_to(part(case, b, h, i), (case.B, case.H, case.Lq))
        y, z = wrong(case, dict(given)), right(case, dict(given))
        return {n: np.where(at if n == "lse" else at[..., None], y[n], z[n]) for n in ("out", "lse")}

    return Function(kernel, "in a part", outputs=frozenset({"out", "lse"}))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (lambda case, b, h, i: b > 0, "in all entries but the first alone"),
        (lambda case, b, h, i: h == case.H - 1, "in the last head alone"),
        (lambda case, b, h, i: i == 0, "of the rows the first alone"),
    ],
)
def test_a_bug_in_a_part_alone_is_named_with_the_part(part: Any, words: str) -> None:
    report = run(in_a_part("lse_base_2", part), SMALL)
    assert report.counts()["failed"] == len(SMALL)
    told = " ".join(report.diagnosis)
    assert "base 2" in report.diagnosis[0] and words in told


def test_tiles_may_differ_from_case_to_case() -> None:
    """No single size of tiles explains all."""
    mutant = MUTANTS["missing_rescale"]
    kernels = [replace(mutant.implementation, schedule=replace(mutant.implementation.schedule, tile_k=n))
               for n in (16, 32)]  # fmt: skip

    def kernel(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        y: dict[str, Any] = dict(kernels[len(case.id) % 2](case, given))
        return y

    cases = [c for c in CASES if c.Lk > 36 and c.want == {"out", "lse"} and c.scores < 2**12][::3][:12]
    report = run(Function(kernel, "two sizes", outputs=frozenset({"out", "lse"})), cases)
    told = " ".join(report.diagnosis)
    assert "the output so far is not rescaled" in report.diagnosis[0] and "whatever the tiles" in told


def test_infinity_that_leaks_is_not_called_nan() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, n, 8)) for n in (4, 6, 6))
    v[0, 0, 5, 2] = np.inf
    right = attention(q, k, v, mask=Window(2, 0, "top_left")).out
    wrong = right.copy()
    wrong[..., 2] = np.nan
    found = judge_arrays(q, k, v, out=wrong, window=(2, 0, "top_left"))
    note = next(n for n in found.notes if "masked_nan_v" in n)
    assert "v holds no NaN but infinity" in note


def test_an_infinity_of_the_other_sign_is_not_explained_by_what_is_right() -> None:
    case = by_id("all-masked-f32")
    answer = dict(Streaming()(case, make(case).fresh()))
    answer["lse"] = np.where(np.isneginf(answer["lse"]), np.inf, answer["lse"])
    trial = Trial(judge(make(case), answer, preset(case.dtype), Conventions()))
    right = Model(trial.inputs).solve(frozenset(case.want))
    assert trial.failing == {"lse"} and not trial.fit(right, right, case.want, False).explains
    plus = next(h for h in hypotheses() if h.name == "empty_lse[+inf]")
    assert trial.match(plus).explains
