"""torch SDPA on the CPU through the suite: no false alarm, and each known finding is still there."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from refattn.adapters.torch import default, flash, math  # noqa: E402
from refattn.case import Case  # noqa: E402
from refattn.cases import CASES  # noqa: E402
from refattn.inputs import make  # noqa: E402
from refattn.judge import judge  # noqa: E402
from refattn.precision import Unsupported, preset  # noqa: E402

KNOWN = Path(__file__).parents[1] / "docs" / "expected-torch.txt"


def known() -> list[str]:
    lines = (line.split("#")[0].strip() for line in KNOWN.read_text().splitlines())
    return [line for line in lines if line]


@pytest.mark.parametrize("implementation", [default, math, flash], ids=lambda i: i.backend or "default")
@pytest.mark.parametrize("chapter", sorted({c.chapter for c in CASES} - {"long"}))
def test_no_false_alarm(implementation, chapter: str) -> None:
    judged = 0
    for case in CASES:
        if case.chapter != chapter or any(fnmatch.fnmatch(case.id, pattern) for pattern in known()):
            continue
        if implementation.supports(case) is not None:
            continue
        problem = make(case)
        try:
            answer = implementation(case, problem.fresh())
        except Unsupported:
            continue
        contract = implementation.precision(case)
        verdict = judge(problem, answer, contract, implementation.conventions, outputs=implementation.outputs)
        assert verdict.status in ("passed", "acceptable"), (case.id, verdict.outputs, verdict.reasons)
        judged += 1
    assert judged


@pytest.mark.parametrize("id", known())
def test_what_is_known_to_fail_still_fails(id: str) -> None:
    (case,) = (c for c in CASES if c.id == id)
    problem = make(case)
    verdict = judge(problem, default(case, problem.fresh()), preset(case.dtype), default.conventions)
    assert verdict.status == "failed", "remove it from docs/expected-torch.txt and date docs/FINDINGS.md"


def test_finding_1_in_torch_alone() -> None:
    q = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    attend = torch.nn.functional.scaled_dot_product_attention
    assert attend(q, q, q, is_causal=True, scale=-1.0).isnan().any()
    assert not attend(q, q, q, attn_mask=torch.ones(3, 3).tril().bool(), scale=-1.0).isnan().any()


def test_finding_2_needs_its_contract() -> None:
    """Judged by a contract of float32 accumulation the flash backward is over the bound."""
    fields = {"Lq": 300, "Lk": 300, "D": 64, "Dv": 64, "dtype": "bfloat16", "family": "peaked"}
    case = Case("flash-backward", "16-bit accumulation", want=frozenset({"dk", "dv"}), **fields)
    problem = make(case)
    answer = flash(case, problem.fresh())
    assert judge(problem, answer, preset("bfloat16"), flash.conventions).status == "failed"
    assert judge(problem, answer, flash.precision(case), flash.conventions).status == "passed"


def test_refuses_what_the_call_cannot_express() -> None:
    for reason, fields in {
        "softcap": {"softcap": 1.0}, "sinks": {"sinks": "normal"}, "float8_e5m2": {"dtype": "float8_e5m2"},
        "dlse": {"want": frozenset({"lse", "dq"})}, "returns no lse": {"want": frozenset({"lse"})},
    }.items():  # fmt: skip
        assert default.supports(Case("x", "refused", **fields)) == reason
