"""mx.fast.scaled_dot_product_attention through the suite."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="mlx is not installed")

from refattn.adapters.mlx import default  # noqa: E402
from refattn.case import BiasSpec  # noqa: E402
from refattn.masks import Window  # noqa: E402
from tests.adapter_checks import BOTTOM, GRAD, TOP, judged, small, words  # noqa: E402


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "fields",
    [
        {"Hkv": 2, "mask": BOTTOM, "want": GRAD | {"out"}},
        {"mask": Window(2, 1, "bottom_right"), "k_lens": (9, 4)},
        {"sinks": "normal", "mask": TOP, "want": GRAD | {"out", "dsinks"}},
        {"bias": True, "mask": BOTTOM, "want": GRAD | {"dbias"}},
    ],
    ids=words,
)
def test_passes(dtype: str, fields: dict[str, Any]) -> None:
    if "bias" in fields:
        fields = fields | {"bias": BiasSpec("HQK", dtype)}
    case = small(dtype=dtype, **fields)
    assert judged(default, case) == "passed"
    assert judged(default, case, mask=~TOP, k_lens=None) == "failed"


def test_causal_is_bottom_right() -> None:
    assert judged(default, small(mask=TOP), mask=BOTTOM) == "failed"
    assert judged(default, small(mask=BOTTOM, Lq=9, Lk=5)) == "acceptable"  # rows that see nothing


@pytest.mark.parametrize("feature", [{"softcap": 1.0}, {"score_mod": "tilt"}, {"dropout": 0.5}])
def test_refused(feature: dict[str, Any]) -> None:
    assert default.supports(small(**feature)) == next(iter(feature))
