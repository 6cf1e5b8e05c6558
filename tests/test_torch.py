"""torch SDPA on the CPU through the suite: no false alarm, and each known finding is still there."""

from __future__ import annotations

import math as numbers
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from refattn.adapters.torch import default, flash, math  # noqa: E402
from refattn.case import BiasSpec, Cache, Case, Dense, Packed, Paged, Shared, Strided  # noqa: E402
from refattn.cases import CASES, CHAPTERS, FULL, by_id  # noqa: E402
from refattn.expected import expected_failures, shipped  # noqa: E402
from refattn.inputs import make  # noqa: E402
from refattn.judge import Verdict, judge  # noqa: E402
from refattn.masks import Causal, Window  # noqa: E402
from refattn.precision import Unsupported, preset  # noqa: E402
from refattn.quantise import Quant  # noqa: E402
from refattn.rotary import Rotary  # noqa: E402

LIST = shipped("torch")
KNOWN = expected_failures(LIST, "torch", ()) if LIST else {}
BACKENDS = (default, math, flash)
EACH = 2
"""cases of each chapter that are tried here; `refattn check torch` tries all"""
NOT_FOR = {
    default: {"modifiers", "transforms"}, math: {"transforms"}, flash: {"modifiers", "transforms"},
}  # fmt: skip
"""chapters in which a backend supports nothing"""
GRAD = frozenset({"dq", "dk", "dv"})
SMALL: dict[str, Any] = {"B": 2, "H": 4, "Hkv": 2, "Lq": 5, "Lk": 9, "D": 8, "Dv": 8, "family": "peaked"}
FLUSHES = default.precision(Case("x", "bf16", dtype="bfloat16")).flush_subnormal


def verdict(implementation: Any, case: Case, **changes: Any) -> Verdict:
    problem = make(case)
    contract = replace(implementation.precision(case), **changes)
    answer = implementation(case, problem.fresh())
    return judge(problem, answer, contract, implementation.conventions, outputs=implementation.outputs)


@pytest.mark.parametrize("implementation", BACKENDS, ids=lambda i: i.backend or "default")
@pytest.mark.parametrize("chapter", sorted(set(CHAPTERS) - {"long", *FULL}))
def test_no_false_alarm(implementation: Any, chapter: str) -> None:
    cases = [
        case
        for case in CASES
        if case.chapter == chapter and case.scores < 4_000
        if implementation.supports(case) is None and case.id not in KNOWN
    ]
    assert bool(cases) == (chapter not in NOT_FOR[implementation])
    for case in cases[:: 1 + len(cases) // EACH]:
        try:
            found = verdict(implementation, case)
        except Unsupported:
            continue
        unjudged = found.status == "unsupported" and found.reasons[0].startswith("nothing to judge under masked_nan")
        assert found.status in ("passed", "acceptable") or unjudged, (case.id, found.outputs, found.reasons)


@pytest.mark.parametrize("id", KNOWN)
def test_what_is_known_to_fail_still_fails(id: str) -> None:
    assert verdict(default, by_id(id)).status == "failed", "remove it from refattn/adapters/expected/torch.txt"


def test_finding_1_in_torch_alone() -> None:
    q = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    attend = torch.nn.functional.scaled_dot_product_attention
    assert attend(q, q, q, is_causal=True, scale=-1.0).isnan().any()
    assert not attend(q, q, q, attn_mask=torch.ones(3, 3).tril().bool(), scale=-1.0).isnan().any()


def test_finding_2_needs_its_contract() -> None:
    """Judged by a contract of float32 accumulation the flash backward is over the bound."""
    fields = {"Lq": 300, "Lk": 300, "D": 64, "Dv": 64, "dtype": "bfloat16", "family": "peaked"}
    case = Case("flash-backward", "16-bit accumulation", want=frozenset({"dk", "dv"}), **fields)
    assert verdict(flash, case, grad_q_block=0, grad_k_block=0, grad_per_head=False).status == "failed"
    assert verdict(flash, case).status == "passed"


@pytest.mark.skipif(not FLUSHES, reason="this processor has no bfloat16 instructions")
def test_finding_3_needs_its_contract() -> None:
    x, y = (torch.full(shape, 2.0**e, dtype=torch.bfloat16) for shape, e in (((16, 64), -70), ((64, 16), -57)))
    assert (x @ y)[0, 0] == 0 and (x.float() @ y.float())[0, 0] == 2.0**-121
    case = Case(
        "tiny", "products below 2**-126", H=3, Hkv=3, Lq=9, Lk=130, D=16, Dv=16, dtype="bfloat16", family="tiny",
        seed=351343390, want=GRAD, mask=Window(28, 5, "bottom_right"),
    )  # fmt: skip
    assert verdict(flash, case, flush_subnormal=False).status == "failed"
    assert verdict(flash, case).status == "passed"
    assert verdict(math, case).status == "passed" and not math.precision(case).flush_subnormal


def test_finding_4_in_torch_alone() -> None:
    s = torch.linspace(-3, 0, 2000).half()
    q, k = torch.zeros(1, 1, 2000, 16, dtype=torch.half), torch.zeros(1, 1, 17, 16, dtype=torch.half)
    q[0, 0, :, 0], k[0, 0, :16, 0] = s, 1
    lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, scale=1.0)[1][0, 0].double()
    error = float(((lse.exp() - 1) / 16 / s.double().exp() - 1).abs().max())
    contract = flash.precision(Case("x", "float16", dtype="float16"))
    assert 5e-5 < error < contract.exp_ulp * 2.0**-24 and "FINDINGS.md 4" in contract.source


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"softcap": 1.0}, "softcap", "all"),
    ({"sinks": "normal"}, "sinks", "all"),
    ({"score_mod": "tilt"}, "score_mod", "all"),
    ({"rotary": Rotary(4, True)}, "rotary", "all"),
    ({"quant": Quant("int8", "head")}, "quant", "all"),
    ({"storage": Packed()}, "packed", "all"),
    ({"storage": Paged(4)}, "paged", "all"),
    ({"storage": Cache()}, "cache", "all"),
    ({"dtype": "float8_e5m2"}, "float8_e5m2", "all"),
    ({"want": frozenset({"lse", "dq"})}, "dlse", "all"),
    ({"want": frozenset({"lse"})}, "returns no lse", "all"),
    ({"want": frozenset({"scores", "biased"})}, "returns no biased scores", "all"),
    ({"want": frozenset({"dscale"})}, "returns no dscale", "all"),
    ({"dropout": 1.0}, "dropout of 1", "MATH"),
    ({"dropout": 0.5}, "dropout", "others"),
    ({"want": frozenset({"weights"})}, "returns no weights", "others"),
    ({"want": frozenset({"weights"}), "dropout": 0.5}, "returns no weights", "MATH"),
    ({"out_dtype": "float64"}, "out_dtype", "all"),
    ({"bias": BiasSpec("HQK", "float16")}, "bias of another dtype", "all"),
    (
        {"dtype": "float16", "bias": BiasSpec("K", "float16"), "want": frozenset({"dbias"}),
         "mask": Causal("top_left")}, "dbias summed in float16", "all",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "reason", "who"), REFUSED, ids=[reason for _, reason, _ in REFUSED])
def test_refuses_what_the_call_cannot_express(fields: dict[str, Any], reason: str, who: str) -> None:
    case = Case("x", "refused", **SMALL | fields)
    for implementation in BACKENDS:
        if who == "all" or (implementation is math) == (who == "MATH"):
            assert implementation.supports(case) == reason


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dropout", [0.0, 0.25, 0.9])
def test_dropout_by_a_given_mask(dtype: str, dropout: float) -> None:
    want = GRAD | {"out", "dbias"}
    case = Case(
        "x", "dropout", **SMALL, dtype=dtype, dropout=dropout, mask=Causal("bottom_right"), want=want,
        bias=BiasSpec("BHQK", dtype),
    )  # fmt: skip
    found = verdict(math, case)
    assert found.status == "passed" and {o.name for o in found.outputs} == want
    for wrong in (lambda keep: ~keep, lambda keep: keep | True):  # its polarity, and that it is applied at all
        problem = make(case)
        given = problem.fresh()
        answer = math(case, given | {"keep": wrong(given["keep"])})
        judged = judge(problem, answer, math.precision(case), math.conventions, outputs=math.outputs)
        assert judged.status == ("passed" if dropout == 0.0 else "failed")


def test_weights() -> None:
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        for mask, lens in ((None, None), (Causal("top_left"), None), (Causal("bottom_right"), (9, 3))):
            case = Case(
                "x", "weights", **SMALL, dtype=dtype, mask=mask, k_lens=lens, want=frozenset({"weights", "out"})
            )  # fmt: skip
            found = verdict(math, case)
            assert found.status == "passed" and {o.name for o in found.outputs} == {"out", "weights"}, case


def test_what_else_is_wanted_is_judged_on_what_is_returned() -> None:
    case = Case("x", "dscale too", **SMALL, want=GRAD | {"out", "dscale"})
    for implementation in BACKENDS:
        found = verdict(implementation, case)
        assert found.status == "passed" and {o.name for o in found.outputs} == GRAD | {"out"}
    assert {o.name for o in verdict(default, replace(case, want=frozenset({"out", "dscale"}))).outputs} == {"out"}


@pytest.mark.parametrize("storage", [Dense("BLHD"), Dense("LBHD"), Strided(4096), Shared()], ids=repr)
def test_views_are_handed_over_as_they_are(storage: Any) -> None:
    shapes = SMALL | {"D": 8, "Dv": 8}
    want = frozenset({"out"}) | (frozenset() if isinstance(storage, Shared) else GRAD)
    for implementation in BACKENDS:
        for dtype in ("float32", "bfloat16"):
            case = Case("x", "views", **shapes, dtype=dtype, storage=storage, want=want)
            assert implementation.supports(case) is None and verdict(implementation, case).status == "passed"


def test_flush_subnormal_covers_products() -> None:
    """A kernel that loses what is below 2**-126 before it adds: within the bound with that contract, else over it."""
    case = Case("x", "tiny values", Lq=3, Lk=64, D=4, Dv=4, family="uniform", want=frozenset({"out"}))
    problem = make(case)
    logical = dict(problem.logical)
    logical["v"] = (logical["v"] * 2.0**-122).astype(np.float32)
    problem = replace(problem, logical=logical)
    q, k, v = (logical[n][0, 0].astype(np.float64) for n in "qkv")
    p = np.exp(q @ k.T / numbers.sqrt(4))
    terms = (p / p.sum(1, keepdims=True))[..., None] * v
    out = np.where(np.abs(terms) < 2.0**-126, 0.0, terms).sum(1)[None, None].astype(np.float32)
    for flush in (False, True):
        contract = replace(preset("float32"), flush_subnormal=flush)
        status = judge(problem, {"out": out}, contract, default.conventions).status
        assert status == ("passed" if flush else "failed")
