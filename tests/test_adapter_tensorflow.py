"""keras.ops.dot_product_attention and the attention layers of tf.keras through the suite."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="tensorflow is not installed")
pytest.importorskip("keras", reason="keras is not installed")

from refattn.adapters.keras import default as ops  # noqa: E402
from refattn.adapters.keras import library  # noqa: E402
from refattn.adapters.tensorflow import attention  # noqa: E402
from refattn.adapters.tensorflow import default as multi_head  # noqa: E402
from refattn.case import BiasSpec  # noqa: E402
from refattn.cases import by_id  # noqa: E402
from refattn.masks import Padding, Window  # noqa: E402
from tests.adapter_checks import BOTTOM, GRAD, TOP, judged, small, verdict, words  # noqa: E402

BIAS = BiasSpec("HQK", "float32")
EACH = [
    (ops, {"Hkv": 2, "mask": TOP, "want": GRAD | {"out"}}),
    (ops, {"bias": BIAS, "mask": Window(2, 1, "bottom_right"), "want": GRAD | {"dbias"}}),
    (ops, {"k_lens": (9, 3), "dtype": "bfloat16"}),
    (multi_head, {"mask": TOP, "want": GRAD | {"out"}}),
    (multi_head, {"mask": BOTTOM, "dtype": "bfloat16", "Dv": 8}),
    (multi_head, {"k_lens": (9, 3), "want": frozenset({"weights"})}),
    (attention, {"mask": TOP, "scale": 0.3, "want": GRAD | {"out"}}),
    (attention, {"mask": Padding((9, 4)), "dtype": "bfloat16"}),
    (attention, {"mask": TOP, "k_lens": (9, 3), "want": frozenset({"out", "weights"})}),
]


@pytest.mark.parametrize(("adapter", "fields"), EACH, ids=words)
def test_passes(adapter: Any, fields: dict[str, Any]) -> None:
    case = small(**fields)
    assert judged(adapter, case) == "passed"
    wrong = {"mask": None, "k_lens": (7, 5)} if adapter is attention else {"mask": ~TOP, "k_lens": None}
    assert judged(adapter, case, **wrong) == "failed"


def test_empty_rows() -> None:
    empty = {"mask": Padding((0, 4))}
    assert judged(ops, small(**empty)) == judged(attention, small(**empty)) == "acceptable"
    assert judged(multi_head, small(**empty)) == "passed"  # it puts zeros there


@pytest.mark.parametrize(
    ("adapter", "fields", "reason"),
    [
        (ops, {"dtype": "float16"}, "products summed in float16"),
        (ops, {"softcap": 1.0}, "softcap"),
        (multi_head, {"scale": 0.5}, "scale"),
        (multi_head, {"Hkv": 2}, "gqa"),
        (multi_head, {"family": "poisoned"}, "NaN passes from head to head in its projections"),
        (attention, {"mask": BOTTOM}, "mask"),
        (attention, {"bias": BIAS}, "bias"),
    ],
)
def test_refused(adapter: Any, fields: dict[str, Any], reason: str) -> None:
    assert adapter.supports(small(**fields)) == reason


@pytest.mark.parametrize(
    ("adapter", "id"), [(ops, "full-f64"), (multi_head, "full-f64"), (attention, "scores-k-lens-f32")]
)
def test_what_is_known_to_fail_still_fails(adapter: Any, id: str) -> None:
    assert verdict(adapter, by_id(id)).status == "failed", "remove it from refattn/adapters/expected"


def test_finding_multi_query() -> None:
    keras, tf = library("keras"), library("tensorflow")
    q, kv = tf.ones((1, 3, 2, 4)), tf.ones((1, 3, 1, 4))
    with pytest.raises(Exception, match="Expected dimension"):
        keras.ops.dot_product_attention(q, kv, kv)
