"""The attention functions of transformers through the suite."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from refattn.adapters.transformers import default, gemma2, gpt_oss, sdpa  # noqa: E402
from refattn.case import BiasSpec  # noqa: E402
from refattn.cases import by_id  # noqa: E402
from refattn.masks import Window  # noqa: E402
from tests.adapter_checks import BOTTOM, GRAD, TOP, judged, small, verdict, words  # noqa: E402

ALL = (default, gemma2, sdpa)
BIAS = BiasSpec("BHQK", "float32")


@pytest.mark.parametrize("adapter", ALL, ids=words)
@pytest.mark.parametrize(
    "fields",
    [
        {"Hkv": 2, "mask": TOP, "want": GRAD | {"out"}},
        {"mask": Window(3, 1, "bottom_right"), "dtype": "bfloat16"},
        {"bias": BIAS, "scale": 0.3, "mask": TOP},
        {"Lq": 1, "mask": TOP},
        {"k_lens": (9, 2), "Dv": 8},
    ],
    ids=words,
)
def test_passes(adapter: Any, fields: dict[str, Any]) -> None:
    case = small(**fields)
    assert judged(adapter, case) == "passed"
    assert judged(adapter, case, mask=~BOTTOM, k_lens=None) == "failed"


def test_softcap_and_weights_of_gemma2() -> None:
    case = small(softcap=0.5, mask=TOP, want=frozenset({"out", "weights"}))
    assert judged(gemma2, case) == "passed" and default.supports(case) == "softcap"
    assert judged(gemma2, case, softcap=0.7) == "failed"


def test_sinks_of_gpt_oss() -> None:
    case = small(sinks="normal", mask=BOTTOM, Hkv=2, want=GRAD | {"dsinks", "out"})
    assert judged(gpt_oss, case) == "passed"
    assert judged(gpt_oss, case, mask=TOP) == "failed"
    assert judged(gpt_oss, small(sinks="normal", mask=BOTTOM, Lq=9, Lk=5)) == "passed"  # empty rows


@pytest.mark.parametrize(
    ("adapter", "fields", "reason"),
    [
        (default, {"sinks": "normal"}, "sinks"),
        (default, {"dropout": 0.5}, "dropout"),
        (default, {"bias": BiasSpec("K", "float16"), "dtype": "float16"}, "bias applied in float16"),
        (gemma2, {"softcap": 1.0, "dtype": "bfloat16"}, "softcap applied in bfloat16"),
        (gpt_oss, {}, "needs sinks"),
        (gpt_oss, {"sinks": "normal", "dtype": "bfloat16"}, "bfloat16"),
        (sdpa, {"softcap": 1.0}, "softcap"),
        (sdpa, {"Lq": 0}, "a size of 0"),
    ],
)
def test_refused(adapter: Any, fields: dict[str, Any], reason: str) -> None:
    assert adapter.supports(small(**fields)) == reason


def test_finding_softmax_of_float64_in_float32() -> None:
    from dataclasses import replace

    from refattn.inputs import make
    from refattn.judge import judge
    from refattn.precision import preset

    problem = make(small(dtype="float64"))
    answer = default(problem.case, problem.fresh())
    for contract, status in ((preset("float64"), "failed"), (default.precision(problem.case), "passed")):
        assert judge(problem, answer, replace(contract, source="x"), default.conventions).status == status


@pytest.mark.parametrize("id", ["offset-f16", "chunks-tall-f64"])
def test_what_is_known_to_fail_still_fails(id: str) -> None:
    assert verdict(default, by_id(id)).status == "failed", "remove it from refattn/adapters/expected/transformers.txt"
