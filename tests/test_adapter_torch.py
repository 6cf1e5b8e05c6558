"""flex_attention and nn.MultiheadAttention through the suite."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from refattn.adapters.torch import flex, mha, mha_weights  # noqa: E402
from refattn.case import BiasSpec, Case  # noqa: E402
from refattn.cases import by_id  # noqa: E402
from refattn.masks import Padding, Window  # noqa: E402
from tests.adapter_checks import BOTTOM, GRAD, TOP, judged, small, words  # noqa: E402

BIAS = BiasSpec("HQK", "float32")


@pytest.mark.parametrize(
    "fields",
    [
        {"Hkv": 2, "mask": BOTTOM},
        {"Hkv": 2, "mask": Window(2, 1, "bottom_right"), "softcap": 2.0, "Dv": 8},
        {"bias": BIAS, "score_mod": "tilt", "dtype": "float64"},
        {"bias": BIAS, "score_mod": "distance", "k_lens": (9, 3), "dtype": "bfloat16"},
        {"sinks": "normal", "mask": BOTTOM},
    ],
    ids=words,
)
def test_flex(fields: dict[str, Any]) -> None:
    case = small(**fields)
    assert judged(flex, case) == "passed"
    for wrong in ({"score_mod": "relative"}, {"scale": 0.3}):
        assert judged(flex, case, **wrong) == "failed"


def test_flex_sinks_of_an_empty_row() -> None:
    assert judged(flex, small(sinks="normal", mask=BOTTOM, Lq=9, Lk=5)) == "passed"


def test_flex_order_of_softcap_and_bias() -> None:
    """The bias comes after softcap and score_mod: told another softcap, or none, it fails."""
    case = small(softcap=1.0, bias=BIAS, score_mod="softsign")
    assert judged(flex, case) == "passed"
    assert judged(flex, case, softcap=None) == "failed"


def test_flex_has_no_gradients_on_the_cpu() -> None:
    q = torch.zeros(1, 1, 2, 8, requires_grad=True)
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        torch.nn.attention.flex_attention.flex_attention(q, q, q)


@pytest.mark.parametrize("adapter", [mha, mha_weights], ids=["sdpa", "eager"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "fields",
    [
        {"mask": TOP},
        {"mask": Window(3, 0, "bottom_right")},
        {"mask": Padding((9, 4))},
        {"k_lens": (9, 3)},
        {"q_lens": (4, 2)},
        {"mask": TOP, "bias": True},
        {"k_lens": (9, 3), "bias": True, "want": GRAD | {"out", "dbias"}},
        {"mask": TOP, "want": GRAD | {"out"}},
    ],
    ids=words,
)
def test_mha(adapter: Any, dtype: str, fields: dict[str, Any]) -> None:
    if "bias" in fields:
        fields = fields | {"bias": BiasSpec("BHQK", dtype)}
    assert judged(adapter, small(dtype=dtype, **fields)) == "passed"


@pytest.mark.parametrize("adapter", [mha, mha_weights], ids=["sdpa", "eager"])
def test_mha_told_wrongly(adapter: Any) -> None:
    case = small(mask=BOTTOM)
    assert judged(adapter, case, mask=TOP) == "failed"
    assert judged(adapter, case, mask=~BOTTOM) == "failed"  # the polarity of its boolean masks
    assert judged(adapter, small(k_lens=(9, 3)), k_lens=(9, 4)) == "failed"


def test_mha_weights() -> None:
    case = small(want=frozenset({"weights", "out"}), mask=TOP)
    assert judged(mha_weights, case) == "passed" and "weights" not in mha.outputs
    assert judged(mha_weights, small(want=frozenset({"weights"}), mask=Padding((0, 5)))) == "acceptable"


@pytest.mark.parametrize(
    ("adapter", "fields", "reason"),
    [
        (flex, {"dropout": 0.5}, "dropout"),
        (flex, {"want": GRAD}, "returns no dk dq dv"),
        (flex, {"sinks": "normal", "dtype": "float16"}, "sinks applied to an out rounded to float16"),
        (flex, {"Lk": 0}, "a size of 0"),
        (mha, {"Hkv": 2}, "gqa"),
        (mha, {"Dv": 8}, "D!=Dv"),
        (mha, {"scale": 0.5}, "scale"),
        (mha, {"family": "poisoned"}, "NaN passes from head to head in its projections"),
    ],
)
def test_refused(adapter: Any, fields: dict[str, Any], reason: str) -> None:
    assert adapter.supports(small(**fields)) == reason


def test_a_case_of_the_table() -> None:
    case: Case = by_id("causal-f32")
    assert judged(mha, case) == "passed" and judged(flex, case) == "passed"
